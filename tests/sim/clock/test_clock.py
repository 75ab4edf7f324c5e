"""Test the virtual clock: a hand-computed round, latency, links, failures, and properties of all rounds."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.bound import fluid_s
from fedgc.codecs import codec_of
from fedgc.config import RunConfig
from fedgc.errors import BadSetting
from fedgc.gates import Decision
from fedgc.history import Speeds
from fedgc.messages import Close, Continue, Held, Loaded, Mix, Repair, Report, Reveal, Skip, Take, Tick, Work
from fedgc.round.machine import Assignment, Round, State
from fedgc.round.plan import Chunk, Fleet, make_plan
from fedgc.run.machine import Append
from fedgc.sim.clock import MODELS, ClientModel, Failure, Line, Terms, VirtualClock, working
from tests.one_round import Modelled, replay
from tests.tuned import tuned_run


def machine(holds, *, blocks=1, target=1, **changes) -> Round:
    chunks = tuple(Chunk(number, f"chunk {number}", 1) for number in range(1 + max(map(max, holds.values()))))
    fleet = Fleet({client: frozenset(held) for client, held in holds.items()}, chunks)
    config = RunConfig(
        replicas=3, blocks=blocks, **{"work": "coded", "deadline_s": 1e3, "upload_deadline_s": 1e3, **changes}
    )
    plan = make_plan(fleet, Speeds(), config, steps=target)
    return Round(plan, Assignment(1, 0, target, 0), lambda _: Decision(sync=True, reason="every round"))


# ---- by hand


def test_three_clients_match_hand_computation():
    """a, b, c hold both chunks; a takes 1 s, b 3 s, c 10 s for each.

    Whoever begins with which, a has done its first at 1 s and its second at 2 s: both chunks have a copy
    at 2 s, everybody else was told to leave, and a alone sends: 4 s.
    """
    done = replay(
        machine({"a": {0, 1}, "b": {0, 1}, "c": {0, 1}}),
        {
            "a": Modelled(1.0, upload_s=2.0),
            "b": Modelled(3.0, upload_s=2.0),
            "c": Modelled(10.0, upload_s=2.0),
        },
    )
    assert done.round.outcome == "synced"
    assert done.round.working_s == 2.0
    assert done.seconds == 4.0
    assert done.computed == 2
    assert done.uploads == 1
    ends = {(span.client, span.end_s, span.finished, span.counted) for span in done.spans}
    assert {("a", 1.0, True, True), ("a", 2.0, True, True)} <= ends
    assert all(not finished for client, _, finished, _ in ends if client != "a")


def test_two_blocks_halve_upload_and_need_both_clients():
    done = replay(
        machine({"a": {0}, "b": {0}}, blocks=2),
        {"a": Modelled(1.0, upload_s=4.0), "b": Modelled(3.0, upload_s=4.0)},
    )
    assert done.round.working_s == 3.0
    assert done.seconds == 5.0
    assert done.sent == 1.0


def test_command_and_progress_each_take_their_latency():
    done = replay(machine({"a": {0}}), {"a": Modelled(1.0, upload_s=1.0, control_s=0.25)})
    assert done.seconds == pytest.approx(0.25 + 1.0 + 0.25 + 0.25 + 1.0)


def test_model_is_loaded_before_work_begins():
    done = replay(machine({"a": {0}}), {"a": Modelled(1.0, download_s=3.0)})
    assert done.seconds == 4.0


def test_transfers_share_servers_line():
    """Shared: both models are there after 2 s, both chunks after 3, both codewords after 5."""
    models = {"a": Modelled(1.0, upload_s=1.0), "b": Modelled(1.0, upload_s=1.0)}
    alone = replay(machine({"a": {0}, "b": {1}}), models)
    shared = replay(machine({"a": {0}, "b": {1}}), models, line=Line(update_s=1.0))
    one_by_one = replay(machine({"a": {0}, "b": {1}}), models, line=Line(slots=1))
    assert (alone.seconds, shared.seconds, one_by_one.seconds) == (2.0, 5.0, 3.0)


def test_paused_work_resumes_where_it_stopped():
    """b leaves chunk 0 when a finishes it at 1 s; a dies at 2 s, so b resumes: 3 s more, not 4."""
    done = replay(
        machine({"a": {0}, "b": {0}, "c": {1}}),
        {"a": Modelled(1.0, upload_s=9.0, dies_s=2.0), "b": Modelled(4.0), "c": Modelled(1.5)},
    )
    assert [(s.begin_s, s.end_s, s.finished) for s in done.spans if s.client == "b"] == [
        (0.0, 1.0, False),
        (2.0, 5.0, True),
    ]


def test_death_is_detected_after_grace_time():
    models = {"a": Modelled(5.0, dies_s=1.0), "b": Modelled(2.0)}
    done = replay(machine({"a": {0}, "b": {1}}), models, grace_s=3.0)
    assert done.seconds == 4.0
    assert done.round.statistics.failure[0] == "lost"


@pytest.mark.parametrize(("keeps", "ends_s"), [(True, 5.0), (False, 8.0)])
def test_returning_client_continues_or_restarts(keeps, ends_s):
    """It dies at 3 s, half through its second chunk, and is back at 4 s; the other is too slow to help."""
    models = {"a": Modelled(2.0, dies_s=3.0, returns_s=4.0, keeps=keeps), "b": Modelled(50.0)}
    done = replay(machine({"a": {0, 1}, "b": {0, 1}}), models, grace_s=0.5)
    assert done.round.outcome == "synced"
    assert done.seconds == ends_s


class Listener:
    """Record messages and send nothing."""

    def __init__(self, next_tick: float = 100.0) -> None:
        self.heard = []
        self.next_tick = next_tick

    def handle(self, event):
        self.heard.append(event)
        return ()

    @property
    def reports(self):
        return [event for event in self.heard if isinstance(event, Report)]


def lone(**slow: float) -> VirtualClock:
    """One client with three chunks, a second each."""
    slowness = {name: np.array([seconds]) for name, seconds in slow.items()}
    client_model = ClientModel(lambda _: replace(working([[1.0]]), **slowness), [1.0] * 3)
    return VirtualClock(
        ["a"], client_model, Terms(), tuple(Held(f"chunk {number}", 1, "same") for number in range(3))
    )


def test_client_sends_in_sequence_and_nothing_of_closed_round():
    clock, listener = lone(up_s_w=2.0), Listener()
    clock.run(listener, [Work("a", 1, 0, 1, (0,), ((0, "chunk 0"),), 0, 9.0)], lambda: listener.heard)
    asked = [Repair("a", 1, attempt, "b", Mix((0,), ((1.0,),))) for attempt in (1, 2, 3, 4)]
    clock.run(listener, asked, lambda: len(listener.heard) == 3)
    assert [(said.now, said.attempt, said.seconds) for said in listener.heard[1:]] == [
        (3.0, 1, 2.0),
        (5.0, 2, 2.0),
    ]
    clock.run(listener, [Close("a", 1, "skipped", False)], lambda: len(listener.heard) == 4)
    assert listener.heard[-1] == Tick(listener.next_tick)
    listener.next_tick *= 2
    given = [Continue("a", 2, 1, (), 9.0), replace(asked[0], round=2)]
    clock.run(listener, given, lambda: len(listener.heard) == 5)
    assert listener.heard[-1].now == 100.0 + 2.0


def test_client_cannot_send_untrained_chunks():
    clock, listener = lone(), Listener()
    given = [
        Work("a", 1, 0, 1, (), ((0, "chunk 0"),), 0, 9.0),
        Reveal("a", 1, 0, "coded", Mix((0,), ((1.0,),))),
    ]
    clock.run(listener, given, lambda: listener.heard)
    [failed] = listener.heard
    assert (failed.now, failed.chunks) == (0.0, (0,))


def test_commands_during_model_download_come_after_work():
    clock, listener = lone(down_s_w=5.0), Listener()
    names = tuple((number, f"chunk {number}") for number in range(3))
    said = [
        Work("a", 1, 0, 1, (0, 2, 1), names, 0, 9.0),
        Take("a", 1, (1,)),
        Skip("a", 1, 0),
        Skip("a", 2, 2),
    ]
    clock.run(listener, said, lambda: len(listener.heard) == 3)
    loaded, *reports = listener.heard
    assert loaded == Loaded(5.0, "a", 0, 5.0, loaded.size_bytes)
    assert [(each.now, each.chunk) for each in reports] == [(6.0, 1), (7.0, 2)]


@pytest.mark.parametrize(("steered", "order"), [(True, [0, 3, 2, 1, 4]), (False, [0, 1, 4, 3, 2])])
def test_reassigned_chunks_are_next_or_last_without_steering(steered, order):
    client_model = ClientModel(lambda _: working([[1.0]]), [1.0] * 5)
    held = tuple(Held(f"chunk {number}", 1, "same") for number in range(5))
    clock, listener = VirtualClock(["a"], client_model, Terms(steered=steered), held), Listener()
    names = tuple((number, each.name) for number, each in enumerate(held))
    said = [Work("a", 1, 0, 1, (0, 1, 2, 4), names, 0, 9.0), Take("a", 1, (0, 3, 2))]
    clock.run(listener, said, lambda: len(listener.heard) == 5)
    assert [each.chunk for each in listener.heard] == order


@pytest.mark.parametrize(("then", "ends_s"), [((0,), 2.0), ((0, 1), 3.0)])
def test_local_work_continues_on_same_chunks_only(then, ends_s):
    held = tuple(Held(f"chunk {number}", 1, "same") for number in range(2))
    clock = VirtualClock(["a"], ClientModel(lambda _: working([[1.0]]), [1.0] * 2), Terms(steps=4), held)
    listener = Listener()
    for number, chunks in ((1, (0,)), (2, then)):
        names = tuple((chunk, held[chunk].name) for chunk in chunks)
        given = Work("a", number, 0, 4 * number, chunks, names, 0, 9.0, kind="local")
        clock.run(listener, [given], lambda at=number: len(listener.reports) == at)
    assert [(said.now, said.steps) for said in listener.reports] == [(1.0, 4), (ends_s, 8)]


def asked_at(now: float, commands, reports: int) -> list[tuple[float, int]]:
    """Give four local steps of a second each, and commands at this time; return when steps were reported."""
    held = [Held("chunk 0", 1, "same")]
    clock = VirtualClock(["a"], ClientModel(lambda _: working([[4.0]]), [1.0]), Terms(steps=4), held)
    listener = Listener(next_tick=now)
    work = Work("a", 1, 0, 4, (0,), ((0, "chunk 0"),), 0, 99.0, kind="local")
    clock.run(listener, [work], lambda: Tick(now) in listener.heard)
    listener.next_tick = 99.0
    clock.run(listener, commands, lambda: len(listener.reports) == reports)
    return [(said.now, said.steps) for said in listener.reports]


@pytest.mark.parametrize(
    ("now", "answered"), [(0.25, (1.0, 1)), (2.5, (3.0, 3)), (3.0, (3.0, 3)), (3.5, (4.0, 4))]
)
def test_client_ends_its_step_before_it_hands_in_its_update(now, answered):
    assert asked_at(now, [Reveal("a", 1, 0, "local", None, "float32")], 1) == [answered]


def test_command_in_last_step_of_client_replaces_request_for_update():
    more = Continue("a", 2, 6, (0,), 99.0)
    assert asked_at(2.5, [Reveal("a", 1, 0, "local", None, "float32"), more], 1) == [(6.0, 6)]


def test_taken_finished_chunk_is_reported_during_next_chunk():
    clock, listener = lone(), Listener()
    names = tuple((number, f"chunk {number}") for number in range(3))
    work = Work("a", 1, 0, 1, (0, 1), names, 0, 9.0)
    clock.run(listener, [work], lambda: listener.heard)
    clock.run(listener, [Take("a", 1, (0,))], lambda: len(listener.heard) == 3)
    assert [(each.now, each.chunk) for each in listener.heard] == [(1.0, 0), (1.0, 0), (2.0, 1)]
    assert clock.computed == 2


def test_local_work_with_empty_order_only_names_its_chunks():
    clock, listener = lone(), Listener()
    clock.run(
        listener,
        [Work("a", 1, 0, 1, (), ((0, "chunk 0"),), 0, 9.0, kind="local")],
        lambda: len(listener.heard) == 2,
    )
    assert listener.heard == [Loaded(0.0, "a", 0), Tick(listener.next_tick)]


# ---- of all rounds

fleets = st.lists(st.sets(st.integers(0, 4), min_size=1), min_size=2, max_size=5)


@settings(max_examples=60)
@given(fleets, st.integers(1, 2), st.integers(0, 2**16))
def test_finished_work_is_counted_or_discarded_repeatably(held, blocks, seed):
    rng = np.random.default_rng(seed)
    holds = {f"d{at}": chunks for at, chunks in enumerate(held)}
    models = {
        client: Modelled(
            float(rng.uniform(0.5, 4)),
            upload_s=float(rng.uniform(0, 2)),
            control_s=float(rng.choice([0.0, 0.1])),
            dies_s=float(rng.uniform(0, 6)) if rng.random() < 0.2 else None,
        )
        for client in holds
    }
    first, again = (replay(machine(holds, blocks=blocks), models, line=Line(update_s=0.3)) for _ in range(2))
    assert first.round.state is State.CLOSED
    assert first.computed == sum(span.finished for span in first.spans)
    counted = sum(span.counted for span in first.spans)
    assert counted <= first.computed
    assert first.round.outcome == "empty" or counted >= 1 or first.round.outcome == "approximate"
    assert (first.seconds, first.spans, first.sent) == (again.seconds, again.spans, again.sent)


def played(scenario, *, chunks, replicas=2, rounds=None):
    clients = scenario[0].clients
    held = tuple(Held(f"chunk {number}", 1, "same") for number in range(chunks))
    client_model = ClientModel(lambda number: scenario[number - 1], [clients / chunks] * chunks)
    clock = VirtualClock([f"d{at}" for at in range(clients)], client_model, Terms(update_bytes=4_000), held)
    config = RunConfig(
        rounds=rounds or len(scenario),
        local_steps=1,
        chunks=chunks,
        replicas=replicas,
        blocks=1,
        min_clients=clients,
        work="coded",
    )
    run, rows = tuned_run(config, now=0.0, size=1000), []
    given = [output for at in range(clients) for output in run.handle(clock.joined(at, 0.0))]
    clock.run(run, given, lambda: run.finished, lambda out: isinstance(out, Append) and rows.append(out.row))
    return run, rows


def test_whole_run_is_driven_by_same_clock():
    scenario = MODELS["bimodal-persistent"](10, 6, np.random.default_rng(0))
    run, rows = played(scenario, chunks=40)
    assert run.version == 6
    assert [row.outcome for row in rows] == ["synced"] * 6
    fluid = fluid_s(scenario[0], 10.0)
    assert all(row.working_s >= fluid - 1e-9 for row in rows)
    assert rows[-1].working_s < rows[0].working_s * 1.01


def test_round_conditions_apply_to_that_round():
    scenario = (working([[1.0]] * 4), working([[3.0]] * 4))
    _, rows = played(scenario, chunks=4, replicas=1)
    assert [row.working_s for row in rows] == pytest.approx([1.0, 3.0])


@pytest.mark.parametrize("shared", [False, True], ids=["own lines", "a shared line"])
def test_large_model_over_slow_links_is_exact_from_first_round(shared):
    """Work of a second, a model of 400 MB that is on its way for two to twelve minutes."""
    numbers, down_s = 10**8, np.array([120.0, 400.0, 120.0, 700.0])
    conditions = working([[1.0]] * 4, down_s=down_s, up_s=60.0)
    held = tuple(Held(f"chunk {number}", 1, "same") for number in range(8))
    line = Line(update_s=30.0) if shared else Line()
    terms = Terms(update_bytes=4 * numbers, line=line)
    clock = VirtualClock(
        [f"d{at}" for at in range(4)], ClientModel(lambda _: conditions, [0.5] * 8), terms, held
    )
    config = RunConfig(rounds=5, local_steps=1, chunks=8, replicas=1, blocks=1, min_clients=4, work="coded")
    run, rows, plans = tuned_run(config, now=0.0, size=numbers), [], []

    def heed(output: object) -> None:
        rows.extend([output.row] if isinstance(output, Append) else [])
        plans.extend([run.round.plan] if isinstance(output, Append) and run.round else [])

    given = [output for at in range(4) for output in run.handle(clock.joined(at, 0.0))]
    clock.run(run, given, lambda: run.finished, heed)
    assert [row.outcome for row in rows] == ["synced"] * 5
    assert min(row.working_s for row in rows) > 700.0
    assert plans[-1].deadline_s < 60.0, "work alone is short"


def test_invalid_terms_and_failures_are_refused():
    with pytest.raises(BadSetting, match="at least one step"):
        Terms(steps=0)


@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize("buffers", [0, 4, 10])
@pytest.mark.parametrize("wire", ["float32", "int8", "int4"])
def test_share_is_that_of_bytes_that_client_sends(wire, buffers, blocks):
    vector = np.ones(-(-10 // blocks), np.float32)
    data = codec_of(wire, min(buffers, vector.size)).encode(vector, np.random.default_rng(0))
    terms = Terms(update_bytes=4 * 10, buffers=buffers)
    assert terms.share(wire, blocks) == pytest.approx(data.size / terms.update_bytes)
    with pytest.raises(BadSetting, match="a death"):
        Failure(2.0, 1.0)
    with pytest.raises(BadSetting, match="return after a death"):
        Modelled(1.0, returns_s=3.0)
    with pytest.raises(BadSetting, match="finite times"):
        Modelled(-1.0)
    with pytest.raises(BadSetting, match="no model of"):
        replay(machine({"a": {0}}), {})
