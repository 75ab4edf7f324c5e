"""Test the virtual clock on small hand-computed rounds, and properties of every round."""

from collections.abc import Mapping
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from fedgc.gates import Decision
from fedgc.history import Speed, Speeds
from fedgc.messages import Add, Close, Command, Event, Repair, Reveal
from fedgc.round.machine import Assignment, Round, State
from fedgc.round.plan import Chunk, Fleet, make_plan
from tests.config_of import config_of
from tests.one_round import Modelled, Replayed, discarded, replay, timeline

TARGET = 2


def sync(_: object) -> Decision:
    return Decision(sync=True, reason="every round")


def skip(_: object) -> Decision:
    return Decision(sync=False, reason="never")


def machine(holds: Mapping[str, set[int]], decide=sync, *, uplink: float | None = None, **settings) -> Round:
    """A round in which each client holds exactly these chunks."""
    chunks = 1 + max(max(held) for held in holds.values())
    table = tuple(Chunk(number, f"chunk {number}", 10) for number in range(chunks))
    fleet = Fleet({client: frozenset(held) for client, held in holds.items()}, table, 100)
    known = {client: Speed(client, 1.0, up_bytes_s=uplink) for client in holds} if uplink else {}
    config = config_of(
        {"work": "coded", "deadline_s": 100, "upload_deadline_s": 50, "late_s": 0.5, **settings}
    )
    plan = make_plan(fleet, Speeds(known), config, steps=TARGET)
    return Round(plan, Assignment(number=1, version=0, target=TARGET, seed=0), decide)


def spans(done: Replayed) -> dict[str, list[tuple[int, float, float, bool]]]:
    found: dict[str, list[tuple[int, float, float, bool]]] = {}
    for span in timeline(done):
        found.setdefault(span.client, []).append((span.chunk, span.begin_s, span.end_s, span.finished))
    return found


# ---- by hand


def test_single_client_works_its_queue_and_uploads():
    done = replay(machine({"a": {0, 1, 2}}), {"a": Modelled(2.0, upload_s=5.0)})
    assert done.round.outcome == "synced"
    assert done.seconds == 3 * 2.0 + 5.0
    assert [(begin, end) for _, begin, end, _ in spans(done)["a"]] == [(0, 2), (2, 4), (4, 6)]
    assert done.uploads == 1
    assert discarded(done) == 0


def test_time_counts_from_start_of_round():
    early = replay(machine({"a": {0}}), {"a": Modelled(2.0)})
    late = replay(machine({"a": {0}}), {"a": Modelled(2.0)}, now=40.0)
    assert late.seconds == early.seconds == 2.0
    assert spans(late)["a"] == [(0, 40.0, 42.0, True)]


def test_finished_chunk_is_left_at_once():
    done = replay(machine({"a": {0}, "b": {0, 1}, "c": {1}}),
                  {"a": Modelled(1.0), "b": Modelled(4.0), "c": Modelled(2.0)})  # fmt: skip
    assert spans(done)["a"] == [(0, 0.0, 1.0, True)]
    assert spans(done)["c"] == [(1, 0.0, 2.0, True)]
    assert not any(finished for *_, finished in spans(done)["b"])
    assert spans(done)["b"][-1][2] == 2.0, "b leaves what it is at as soon as nothing lacks"
    assert done.seconds == 2.0
    assert done.round.statistics.skips == 2
    assert discarded(done) == 0


def test_chunks_may_differ_in_length():
    times = {0: 1.0, 1: 10.0}
    done = replay(machine({"a": {0, 1}}), {"a": Modelled(times)})
    assert {chunk: end - begin for chunk, begin, end, _ in spans(done)["a"]} == times
    assert done.seconds == 11.0


def test_reassigned_chunk_comes_next():
    done = replay(machine({"a": {0}, "b": {0, 1, 2}}), {"a": Modelled(1.0, dies_s=2.0), "b": Modelled(5.0)})
    first, second, third = (chunk for chunk, _, _, finished in spans(done)["b"] if finished)
    assert second == 0, "skipped when a had it, taken back when a died, before what else is left"
    assert {first, third} == {1, 2}
    assert done.round.statistics.takes == 1
    assert done.round.outcome == "synced"


def test_work_of_dead_client_is_taken_over_and_its_span_ends():
    done = replay(machine({"a": {0, 1}, "b": {0}, "c": {1}}, replicas=2),
                  {"a": Modelled(3.0, dies_s=2.0), "b": Modelled(5.0), "c": Modelled(7.0)})  # fmt: skip
    assert [(begin, end, finished) for _, begin, end, finished in spans(done)["a"]] == [(0.0, 2.0, False)]
    assert spans(done)["b"] == [(0, 0.0, 5.0, True)]
    assert spans(done)["c"] == [(1, 0.0, 7.0, True)]
    assert (done.round.outcome, done.seconds) == ("synced", 7.0)


def test_returning_client_restarts_without_work():
    done = replay(
        machine({"a": {0, 1}, "b": {1, 2}}),
        {"a": Modelled(3.0, dies_s=4.0, returns_s=10.0), "b": Modelled(20.0)},
    )
    begins = [(begin, finished) for _, begin, _, finished in spans(done)["a"]]
    assert begins[:2] == [(0.0, True), (3.0, False)]
    assert begins[2][0] == 10.0
    first = spans(done)["a"][0][0]
    assert [chunk for chunk, begin, *_ in spans(done)["a"] if begin >= 10].count(first) == 1, (
        "lost, so done anew"
    )
    assert done.round.outcome == "synced"


def test_death_during_upload_is_repaired_by_other_client():
    done = replay(machine({"a": {0}, "b": {0}, "c": {1}}),
                  {"a": Modelled(1.0, upload_s=10.0, dies_s=2.5), "b": Modelled(4.0, upload_s=1.0),
                   "c": Modelled(2.0, upload_s=1.0)})  # fmt: skip
    assert spans(done)["b"] == [(0, 0.0, 1.0, False), (0, 2.5, 5.5, True)], "it goes on from a quarter"
    assert (done.round.outcome, done.seconds) == ("synced", 6.5)
    assert done.uploads == 3
    assert discarded(done) == 1, "what a finished went down with it"


def test_late_upload_is_repaired_without_dead_client():
    """c has sent its own 1 s after both were asked at 2 s, so a is late at 3.5 s; b has 3 s left to do."""
    done = replay(machine({"a": {0}, "b": {0}, "c": {1}}),
                  {"a": Modelled(1.0, upload_s=10.0), "b": Modelled(4.0, upload_s=1.0),
                   "c": Modelled(2.0, upload_s=1.0)})  # fmt: skip
    assert spans(done)["b"] == [(0, 0.0, 1.0, False), (0, 3.5, 6.5, True)]
    assert (done.round.outcome, done.seconds) == ("synced", 7.5)
    assert done.uploads == 3


def test_returning_client_reports_kept_work():
    holds = {"a": {0, 1}, "b": {2}}
    forgets, keeps = (
        replay(
            machine(holds),
            {"a": Modelled(3.0, dies_s=4.0, returns_s=10.0, keeps=kept), "b": Modelled(20.0)},
        )
        for kept in (False, True)
    )
    assert sum(finished for *_, finished in spans(forgets)["a"]) == 3, "one of two was lost"
    assert spans(keeps)["a"][-1][2:] == (12.0, True), "a third of the second was done"
    assert (discarded(forgets), discarded(keeps)) == (1, 0)
    assert [finished for *_, finished in spans(keeps)["a"]].count(True) == 2, "what it tells again is no work"
    assert keeps.computed == 3


def test_two_block_codeword_takes_half_time():
    models = {client: Modelled(1.0, upload_s=8.0) for client in "ab"}
    assert replay(machine({"a": {0}, "b": {0}}, blocks=2), models).seconds == 1.0 + 4.0
    assert replay(machine({"a": {0}, "b": {0}}, blocks=1), models).seconds == 1.0 + 8.0


def test_commands_and_reports_have_latency():
    done = replay(machine({"a": {0}}), {"a": Modelled(1.0, upload_s=5.0, control_s=0.25)})
    assert spans(done)["a"] == [(0, 0.25, 1.25, True)]
    assert done.seconds == 0.25 + 1.0 + 0.25 + 0.25 + 5.0


def test_endless_client_meets_deadline():
    done = replay(machine({"a": {0}, "b": {1}}), {"a": Modelled(1.0), "b": Modelled(1e9)})
    assert (done.round.outcome, done.round.short) == ("approximate", (1,))
    assert done.seconds == 100.0
    assert spans(done)["b"] == [(1, 0.0, 100.0, False)]


def test_round_without_live_clients_is_empty_at_once():
    done = replay(
        machine({"a": {0}, "b": {0}}), {"a": Modelled(9.0, dies_s=1.0), "b": Modelled(9.0, dies_s=3.0)}
    )
    assert (done.round.outcome, done.seconds, done.uploads) == ("empty", 3.0, 0)


def test_skipped_round_sends_nothing():
    done = replay(machine({"a": {0}, "b": {0}}, skip), {"a": Modelled(1.0), "b": Modelled(2.0)})
    assert (done.round.outcome, done.seconds, done.uploads) == ("skipped", 1.0, 0)
    assert discarded(done) == 1


# ---- of every round


@st.composite
def modelled(draw: st.DrawFn) -> Modelled:
    dies_s = draw(st.none() | st.floats(0, 60))
    returns_s = None if dies_s is None else draw(st.none() | st.floats(60, 150))
    return Modelled(
        chunk_s=draw(st.floats(0.1, 30)),
        upload_s=draw(st.floats(0, 30)),
        control_s=draw(st.just(0.0) | st.floats(0, 1)),
        dies_s=dies_s,
        returns_s=returns_s,
        keeps=draw(st.booleans()),
        live=draw(st.booleans()),
    )


@st.composite
def rounds(draw: st.DrawFn) -> tuple[dict[str, set[int]], dict[str, Modelled], dict[str, object]]:
    chunks = draw(st.integers(1, 5))
    clients = "abcd"[: draw(st.integers(1, 4))]
    held = st.sets(st.integers(0, chunks - 1), min_size=1) | st.just(set(range(chunks)))
    holds = {client: draw(held) for client in clients}
    models = {client: draw(modelled()) for client in clients}
    choices = {"replicas": 3, "blocks": draw(st.sampled_from([1, 2, 3, "auto"]))}
    return holds, models, {**choices, "uplink": draw(st.sampled_from([None, 10.0]))}


def played(exchange) -> Replayed:
    holds, models, choices = exchange
    return replay(machine(holds, **choices), models)


class Overheard:
    """Record the commands, so that the replicas in the sum can be counted independently."""

    def __init__(self, of: Round) -> None:
        self._requests: dict[tuple[str, int], tuple[int, ...]] = {}
        self.replicas: set[tuple[str, int]] = set()
        self.closed: list[str] = []
        self._handle = of.handle
        of.handle = self.handle

    def handle(self, event: Event) -> tuple[Command, ...]:
        commands = self._handle(event)
        for command in commands:
            if isinstance(command, Reveal | Repair) and command.mix:
                self._requests[command.client, command.attempt] = command.mix.chunks
            elif isinstance(command, Add):
                chunks = self._requests[command.client, command.attempt]
                self.replicas |= {(command.client, chunk) for chunk in chunks}
            elif isinstance(command, Close):
                self.closed.append(command.client)
        return commands


@settings(max_examples=80)
@given(rounds())
def test_round_accounts_for_all_finished_work(exchange):
    holds, models, choices = exchange
    of = machine(holds, **choices)
    heard = Overheard(of)
    done = replay(of, models)
    assert of.state is State.CLOSED
    assert 0 <= done.seconds < float("inf")
    assert len(set(heard.closed)) == len(heard.closed)
    finished = [(span.client, span.chunk) for span in done.spans if span.finished]
    assert heard.replicas <= set(finished), "only what was finished is in the sum"
    for client, counted in zip(of.plan.clients, of.statistics.counted, strict=True):
        assert counted == sum(each == client for each, _ in heard.replicas)
    assert done.computed == len(finished)
    again = [each for each in finished if models[each[0]].keeps]
    assert len(set(again)) == len(again), "what is kept is not done twice"
    assert discarded(done) == len(finished) - len(heard.replicas)
    if of.outcome == "synced":
        assert {chunk for _, chunk in heard.replicas} == {chunk.number for chunk in of.plan.chunks}
        assert not of.short


@settings(max_examples=80)
@given(rounds())
def test_client_does_one_task_at_once_on_its_own_chunks(exchange):
    holds, models, _ = exchange
    done = played(exchange)
    for client in holds:
        mine = [span for span in timeline(done) if span.client == client]
        for span in mine:
            assert span.chunk in holds[client]
            assert span.begin_s <= span.end_s
            assert span.end_s - span.begin_s <= models[client].seconds(span.chunk) + 1e-9
        for before, after in pairwise(mine):
            assert before.end_s <= after.begin_s + 1e-9


@settings(max_examples=40)
@given(rounds())
def test_same_clients_give_same_round(exchange):
    one, other = played(exchange), played(exchange)
    assert (one.seconds, one.spans, one.uploads) == (other.seconds, other.spans, other.uploads)
    assert one.round.statistics == other.round.statistics


@settings(max_examples=60)
@given(
    clients=st.integers(1, 4), chunks=st.integers(1, 6), chunk_s=st.floats(0.5, 5), upload_s=st.floats(0, 5)
)
def test_round_time_is_between_fluid_bound_and_single_client(clients, chunks, chunk_s, upload_s):
    holds = {"abcd"[w]: set(range(chunks)) for w in range(clients)}
    models = {client: Modelled(chunk_s, upload_s=upload_s) for client in holds}
    done = replay(machine(holds, replicas=clients, blocks=1), models)
    assert done.round.outcome == "synced"
    assert done.seconds >= chunk_s * -(-chunks // clients) + upload_s - 1e-9
    assert done.seconds <= chunk_s * chunks + upload_s + 1e-9


def test_timeline_is_sorted_by_client_and_time():
    holds = {"b": {0, 1}, "a": {2, 3}}
    read = timeline(replay(machine(holds), {"a": Modelled(1.0), "b": Modelled(0.5)}))
    assert [(span.client, span.begin_s) for span in read] == [("a", 0.0), ("a", 1.0), ("b", 0.0), ("b", 0.5)]
