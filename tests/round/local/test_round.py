"""Test the local-work round against the plain mean, in every order of events Hypothesis generates."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fedgc.errors import BadMessage
from fedgc.gates import Decision
from fedgc.history import Speed, Speeds
from fedgc.messages import (
    SUMMED,
    Add,
    Close,
    Codeword,
    Command,
    Continue,
    Event,
    Failed,
    Held,
    Joined,
    Kept,
    Leaving,
    Loaded,
    Lost,
    Offered,
    Progress,
    Refuse,
    Report,
    Reveal,
    Stop,
    Tick,
    Work,
)
from fedgc.round.machine import Assignment, Round, State
from fedgc.round.plan import Chunk, Fleet, Plan, make_plan
from fedgc.sim.clock.reference_client import WHOLE, ReferenceClient, failed
from tests.config_of import config_of

SIZE, TARGET = 5, 16


def sync(_: object) -> Decision:
    return Decision(sync=True, reason="every round")


def skip(_: object) -> Decision:
    return Decision(sync=False, reason="nothing new")


def planned(clients: int, *, quorum: float = 1.0, patience: float = 0.0, step_s: object = ()) -> Plan:
    """A plan in which client w holds chunk w alone, of 10 * (w + 1) samples."""
    table = tuple(Chunk(w, f"chunk {w}", 10 * (w + 1)) for w in range(clients))
    names = [f"client {w}" for w in range(clients)]
    fleet = Fleet({name: frozenset({w}) for w, name in enumerate(names)}, table, SIZE)
    speeds = Speeds({name: Speed(name, each) for name, each in zip(names, step_s, strict=False)})
    config = config_of(
        {
            "work": "local", "quorum": quorum, "patience": patience,
            "deadline_s": 100, "upload_deadline_s": 50,
        }
    )  # fmt: skip
    return make_plan(fleet, speeds, config, steps=TARGET)


def joined(plan: Plan, client: str, now: float = 0.0, steps: int = 0, *, live: bool = True) -> Joined:
    w = plan.clients.index(client)
    kept = (Kept(0, w, steps),) if steps else ()
    return Joined(now, client, live, (Held(f"chunk {w}", 10 * (w + 1)),), kept)


class Clients:
    """Reference clients that train on request; an update is the steps times a vector of its client."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.samples = {client: 10 * (w + 1) for w, client in enumerate(plan.clients)}
        rng = np.random.default_rng(0)
        self.vector = {client: rng.normal(size=SIZE) for client in plan.clients}
        self.at = {client: ReferenceClient(client) for client in plan.clients}
        self.asked: dict[str, int | None] = {}  # steps of the update that is on its way
        self.requests: dict[str, Reveal] = {}
        self.unsent: list[str] = []  # clients with a request in transit
        self.sum, self.weight = np.zeros(SIZE), 0.0
        self.added: list[str] = []
        self.closed: list[Close] = []
        self.refused: list[Refuse] = []

    @property
    def steps(self) -> dict[str, int]:
        return {client: int(at.reached(WHOLE)) for client, at in self.at.items()}

    def train(self, client: str, steps: int) -> None:
        """Train a client to this number of steps without a report, unless it is idle."""
        at = self.at[client]
        while at.reached(WHOLE) < steps and not at.idle:
            at.step(0.1)

    def report(self, client: str, now: float, steps: int | None = None) -> Report:
        steps = self.steps[client] if steps is None else steps
        return Report(now, client, 1, steps, self.samples[client], 0.1 * steps, float(steps), 0.5)

    def obey(self, machine: Round, commands: Iterable[Command], now: float) -> None:
        for command in commands:
            match command:
                case Work() | Continue():
                    self.at[command.client].handle(command)
                case Reveal():
                    self.requests[command.client] = command
                    assert (command.kind, command.mix) == ("local", None)
                    if command.client not in self.unsent:
                        self.unsent.append(command.client)
                case Add():
                    steps = self.asked[command.client]
                    assert steps, "an update of no steps is in the sum"
                    assert command.weights == (self.samples[command.client],)
                    self.sum += command.weights[0] * steps * self.vector[command.client]
                    self.weight += command.weights[0]
                    self.added.append(command.client)
                case Close():
                    self.at[command.client].handle(command)
                    self.closed.append(command)
                case Refuse():
                    self.refused.append(command)

    def send(self, machine: Round, client: str, now: float) -> None:
        """Report the steps, then send the update, as a requested client does."""
        self.unsent.remove(client)
        request = self.requests[client]
        try:
            told = self.at[client].handle(request)
        except BadMessage as error:
            self.obey(machine, machine.handle(failed(now, request, error)), now)
            return
        assert told is not None
        self.asked[client] = told.reached
        self.obey(machine, machine.handle(self.report(client, now, told.reached)), now)
        if told.reached:
            self.obey(machine, machine.handle(Codeword(now, client, 1, 0)), now)

    @property
    def plain(self) -> np.ndarray:
        """Slow reference: the mean over all received updates."""
        weights = {client: self.samples[client] for client in self.added}
        parts = [weights[d] * (self.asked[d] or 0) * self.vector[d] for d in self.added]
        return np.sum(parts, axis=0) / sum(weights.values())


def begun(plan: Plan, decide=sync, **changes: object) -> tuple[Round, Clients]:
    machine = Round(plan, Assignment(1, 0, TARGET, 0, **changes), decide)
    fleet = Clients(plan)
    fleet.obey(machine, machine.start(0.0, [joined(plan, client) for client in plan.clients]), 0.0)
    return machine, fleet


def reach(machine: Round, fleet: Clients, client: str, steps: int = TARGET, now: float = 1.0) -> None:
    fleet.train(client, steps)
    fleet.obey(machine, machine.handle(fleet.report(client, now)), now)


def test_failed_client_is_not_called_stalled_later():
    plan = replace(planned(3), gives_up_stalled=True)
    machine, fleet = begun(plan)
    machine.handle(Failed(1.0, "client 0", 1, "ValueError: no data", ()))
    reach(machine, fleet, "client 1", now=2.0)
    for now in (33.0, 40.0):
        machine.handle(Tick(now))
    assert "no data" in machine.statistics.failure[0]
    assert machine.statistics.awaited == {2}


def test_stalled_client_that_returns_is_not_called_stalled():
    """Its process was started again, and goes on with the steps that it has kept."""
    plan = replace(planned(3), gives_up_stalled=True)
    machine, fleet = begun(plan)
    reach(machine, fleet, "client 1", now=2.0)
    reach(machine, fleet, "client 2", 4, now=3.0)
    machine.handle(Tick(32.0))
    assert machine.statistics.failure[0] == "no progress for 32 s"
    machine.handle(joined(plan, "client 0", 33.0, 8))
    reach(machine, fleet, "client 0", now=34.0)
    assert machine.statistics.failure[0] == ""


def test_report_of_client_that_has_failed_is_no_fault():
    """It was on its way when the client said that it had failed; it counts nothing."""
    machine, fleet = begun(planned(3))
    fleet.train("client 0", TARGET)
    report = fleet.report("client 0", 1.5)
    machine.handle(Failed(1.0, "client 0", 1, "ValueError: no data", ()))
    assert machine.handle(report) == ()
    for client in ("client 1", "client 2"):
        reach(machine, fleet, client, now=2.0)
    assert sorted(fleet.unsent) == ["client 1", "client 2"], "its update is not asked for"


def test_report_of_earlier_round_is_no_refusal():
    """It crossed the command to continue from a skipped round; the history would call its client refused."""
    machine, fleet = begun(planned(2))
    early = replace(fleet.report("client 0", 1.0, 4), round=0)
    assert machine.handle(early) == machine.handle(replace(early, client="another")) == ()
    fleet.obey(machine, machine.handle(replace(early, round=2)), 1.0)
    assert [each.reason for each in fleet.refused] == ["report of round 2, this is round 1"]
    assert machine.statistics.refused == [1, 0]


class AnyOrder(RuleBasedStateMachine):
    """Reports, deaths, returns with and without state, failures, late and foreign events, in any order."""

    @initialize(
        clients=st.integers(1, 5),
        quorum=st.sampled_from([0.2, 0.5, 1.0]),
        patience=st.sampled_from([0.0, 0.5]),
        gives_up_late=st.booleans(),
    )
    def begin(self, clients: int, quorum: float, patience: float, *, gives_up_late: bool) -> None:
        self.plan = replace(
            planned(clients, quorum=quorum, patience=patience), gives_up_late=gives_up_late, late_s=2.0
        )
        self.now = 0.0
        self.round, self.fleet = begun(self.plan)
        self.live = set(self.plan.clients)

    def say(self, event: Event) -> None:
        self.fleet.obey(self.round, self.round.handle(event), self.now)

    def open(self) -> bool:
        return self.round.state is not State.CLOSED

    @precondition(lambda self: self.live)
    @rule(data=st.data(), steps=st.integers(0, TARGET))
    def tell_steps(self, data: st.DataObject, steps: int) -> None:
        client = data.draw(st.sampled_from(sorted(self.live)))
        if self.round.state is State.WORKING:
            self.fleet.train(client, steps)
        self.say(self.fleet.report(client, self.now))

    @precondition(lambda self: self.live)
    @rule(data=st.data(), steps=st.integers(0, TARGET - 1))
    def work_without_a_word(self, data: st.DataObject, steps: int) -> None:
        client = data.draw(st.sampled_from(sorted(self.live)))
        if self.round.state is State.WORKING:
            self.fleet.train(client, steps)

    @precondition(lambda self: set(self.fleet.unsent) & self.live)
    @rule(data=st.data())
    def send_an_update(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(sorted(set(self.fleet.unsent) & self.live)))
        self.fleet.send(self.round, client, self.now)

    @rule(data=st.data())
    def offer_an_update(self, data: st.DataObject) -> None:
        self.say(Offered(self.now, data.draw(st.sampled_from(self.plan.clients)), 1, 0))

    @rule(data=st.data(), attempt=st.integers(0, 2))
    def send_again_or_unasked(self, data: st.DataObject, attempt: int) -> None:
        client = data.draw(st.sampled_from(self.plan.clients))
        if client not in self.fleet.unsent:
            self.say(Codeword(self.now, client, 1, attempt))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def lose_a_client(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(sorted(self.live)))
        self.live.discard(client)
        self.say(Lost(self.now, client))

    @precondition(lambda self: self.live)
    @rule(data=st.data(), grace_s=st.sampled_from([0.0, 20.0, 1e30]))
    def ask_one_to_leave(self, data: st.DataObject, grace_s: float) -> None:
        client = data.draw(st.sampled_from(sorted(self.live)))
        self.say(Leaving(self.now, client, grace_s))
        if self.round.state is State.WORKING:
            assert self.round.next_tick <= max(self.now + grace_s, self.round.next_tick)

    @rule(data=st.data(), keeps=st.booleans(), live=st.booleans())
    def join_or_return(self, data: st.DataObject, *, keeps: bool, live: bool) -> None:
        client = data.draw(st.sampled_from(self.plan.clients))
        self.fleet.at[client].restart(keeps=keeps)
        if not keeps:
            self.fleet.unsent = [each for each in self.fleet.unsent if each != client]
        self.live.add(client)
        self.say(joined(self.plan, client, self.now, self.fleet.steps[client], live=live))

    @precondition(lambda self: self.live)
    @rule(data=st.data(), named=st.booleans())
    def fail(self, data: st.DataObject, *, named: bool) -> None:
        client = data.draw(st.sampled_from(sorted(self.live)))
        self.say(
            Failed(
                self.now, client, 1, "the loss is nan", (self.plan.clients.index(client),) if named else ()
            )
        )

    @rule(kind=st.sampled_from(["stranger", "old", "samples", "progress", "early"]))
    def say_what_does_not_belong_here(self, kind: str) -> None:
        client = self.plan.clients[0]
        before = (self.fleet.added[:], self.round.state)
        events: dict[str, Event] = {
            "stranger": Report(self.now, "nobody", 1, TARGET, 10, 1.0, 1.0, 0.5),
            "old": Report(self.now, client, 0, TARGET, 10, 1.0, 1.0, 0.5),
            "samples": Report(self.now, client, 1, TARGET, 11, 1.0, 1.0, 0.5),
            "progress": Progress(self.now, client, 1, 0, TARGET, 1.0, 10, 1.0, 0.5),
            "early": Tick(self.now),
        }
        is_early = self.now < self.round.next_tick
        ends_wait = kind == "samples" and self.round.state is State.COLLECTING  # its update does not count
        self.say(events[kind])
        if is_early and not ends_wait:
            assert (self.fleet.added, self.round.state) == before

    @rule(seconds=st.sampled_from([1.0, 60.0, 1000.0]))
    def let_time_pass(self, seconds: float) -> None:
        self.now += seconds
        self.say(Tick(self.now))

    @invariant()
    def every_client_enters_the_mean_once(self) -> None:
        assert len(set(self.fleet.added)) == len(self.fleet.added)

    @invariant()
    def the_mean_is_over_what_came_in(self) -> None:
        if self.round.outcome in SUMMED:
            assert self.round.result
            np.testing.assert_allclose(self.fleet.sum / self.round.result.weight, self.fleet.plain, rtol=1e-9)
            there = {self.plan.clients.index(client) for client in self.fleet.added}
            assert set(self.round.short) == set(range(len(self.plan.clients))) - there
            assert (self.round.outcome == "synced") is not bool(self.round.short)
        else:
            assert self.round.outcome in (None, "empty")

    def teardown(self) -> None:
        if not hasattr(self, "round"):
            return
        ticks = 0
        while self.open():
            ticks += 1
            assert ticks <= 2 * len(self.plan.clients) + 4, "the round does not end"
            self.now = max(self.now, self.round.next_tick)
            self.say(Tick(self.now))
        self.the_mean_is_over_what_came_in()


AnyOrder.TestCase.settings = settings(
    max_examples=150, stateful_step_count=40, suppress_health_check=list(HealthCheck)
)
TestAnyOrder = AnyOrder.TestCase


# ---- the table, row by row


def test_partial_steps_count_unscaled():
    plan = planned(2, quorum=0.5)
    machine, fleet = begun(plan)
    slow, quick = plan.clients
    fleet.train(slow, 3)
    reach(machine, fleet, quick)
    assert sorted(fleet.unsent) == [slow, quick]
    for client in (slow, quick):
        fleet.send(machine, client, 2.0)
    assert machine.outcome == "synced"
    expected = (10 * 3 * fleet.vector[slow] + 20 * 16 * fleet.vector[quick]) / (10 + 20)
    assert machine.result
    np.testing.assert_allclose(fleet.sum / machine.result.weight, expected)
    assert (machine.statistics.counted, machine.statistics.finished) == ([3, 16], [3, 16])
    assert machine.result.steps == pytest.approx((3 * 10 + 16 * 20) / 30)


def test_gate_decides_at_quorum_and_skip_collects_nothing():
    seen = []

    def asked(reports) -> Decision:
        seen.append({item.source: item.steps for item in reports.items})
        return skip(reports)

    plan = planned(4, quorum=0.75)
    machine, fleet = begun(plan, asked)
    for client in plan.clients[:3]:
        assert machine.state is State.WORKING
        reach(machine, fleet, client)
    assert machine.outcome == "skipped"
    assert seen == [dict.fromkeys(plan.clients[:3], TARGET)]
    assert not fleet.unsent
    assert [close.frees for close in fleet.closed] == [False] * 4


def test_client_without_state_gives_no_steps_and_is_not_awaited():
    plan = planned(2, quorum=0.5)
    machine, fleet = begun(plan)
    reach(machine, fleet, plan.clients[1])
    fleet.send(machine, plan.clients[0], 2.0)
    fleet.send(machine, plan.clients[1], 2.0)
    assert fleet.added == [plan.clients[1]]
    assert (machine.outcome, machine.short) == ("approximate", (0,))


def test_exchange_waits_only_for_nearly_finished_clients():
    plan = planned(3, quorum=0.5, patience=0.25, step_s=(0.1, 0.12, 1.0))
    machine, fleet = begun(plan)
    reach(machine, fleet, plan.clients[0], now=1.6)
    reach(machine, fleet, plan.clients[1], now=1.7)
    assert sorted(fleet.unsent) == sorted(plan.clients), "the third is not due for long"
    machine, fleet = begun(planned(2, quorum=0.5, patience=0.25, step_s=(0.1, 0.12)))
    reach(machine, fleet, "client 0", now=1.6)
    assert not fleet.unsent
    assert machine.next_tick == pytest.approx(1.92)
    fleet.obey(machine, machine.handle(Tick(1.92)), 1.92)
    assert len(fleet.unsent) == 2


def test_unknown_clients_get_whole_window():
    machine, fleet = begun(planned(2, quorum=0.5, patience=0.25))
    reach(machine, fleet, "client 0", now=4.0)
    assert machine.next_tick == 5.0
    reach(machine, fleet, "client 1", now=4.5)
    assert len(fleet.unsent) == 2


@pytest.mark.parametrize("step_s", [(), (0.1, 0.12)], ids=["unknown", "measured"])
def test_window_starts_with_round_for_earlier_clients(step_s):
    ends = []
    for since in (0.0, 399.0, 400.0):
        plan = planned(2, quorum=0.5, patience=0.25, step_s=step_s)
        machine, fleet = Round(plan, Assignment(1, 0, TARGET, 0), sync), Clients(plan)
        there = [joined(plan, "client 0", since), joined(plan, "client 1", 400.0)]
        fleet.obey(machine, machine.start(400.0, there), 400.0)
        reach(machine, fleet, "client 0", now=401.6)
        ends.append(machine.next_tick)
    assert ends == [pytest.approx(401.92 if step_s else 402.0)] * 3


def test_client_deadline_starts_at_arrival_of_model():
    machine, fleet = begun(planned(2, quorum=0.5, patience=0.25, step_s=(0.1, 0.12)))
    for client, at in (("client 0", 2.0), ("client 1", 2.5)):
        machine.handle(Loaded(at, client, 0))
    machine.handle(Loaded(2.9, "client 1", 0))  # it has had it before
    reach(machine, fleet, "client 0", now=3.6)
    assert machine.next_tick == pytest.approx(2.5 + 16 * 0.12)


def test_deadline_of_late_client_starts_at_join_or_model():
    plan = planned(2, quorum=0.5, patience=1.0, step_s=(0.1, 0.12))
    ends = []
    for came_by in (
        [joined(plan, "client 1", 0.3)],
        [joined(plan, "client 1", 0.1), Loaded(0.5, "client 1", 0)],
    ):
        machine, fleet = Round(plan, Assignment(1, 0, TARGET, 0), sync), Clients(plan)
        fleet.obey(machine, machine.start(0.0, [joined(plan, "client 0")]), 0.0)
        for event in came_by:
            fleet.obey(machine, machine.handle(event), event.now)
        reach(machine, fleet, "client 0", now=1.6)
        ends.append(machine.next_tick)
    assert ends == [pytest.approx(since + 16 * 0.12) for since in (0.3, 0.5)]


def test_lost_update_is_left_out_and_chunk_is_named():
    plan = planned(3)
    machine, fleet = begun(plan)
    for client in plan.clients:
        reach(machine, fleet, client)
    fleet.obey(machine, machine.handle(Lost(2.0, plan.clients[0])), 2.0)
    for client in plan.clients[1:]:
        fleet.send(machine, client, 3.0)
    assert (machine.outcome, machine.short) == ("approximate", (0,))
    np.testing.assert_allclose(fleet.sum / fleet.weight, fleet.plain)


def test_row_names_other_data_of_returning_client():
    """A gateway that is started again announces the clients of its fleet that are there then."""
    plan = planned(2)
    machine, fleet = begun(plan)
    reach(machine, fleet, "client 0", 4)
    reach(machine, fleet, "client 1")
    back = joined(plan, "client 0", 2.0)
    fleet.obey(machine, machine.handle(replace(back, holds=(Held("chunk 0", 4),))), 2.0)
    assert machine.statistics.failure[0] == "returned with other data: saw 4 samples, needed 10"
    assert fleet.unsent == ["client 1"]


def test_returning_client_is_asked_again_only_with_its_update():
    for steps in (TARGET, 0):
        plan = planned(2)
        machine, fleet = begun(plan)
        for client in plan.clients:
            reach(machine, fleet, client)
        fleet.unsent.clear()
        fleet.at[plan.clients[0]].restart(keeps=bool(steps))
        said = machine.handle(joined(plan, plan.clients[0], 2.0, steps))
        fleet.obey(machine, said, 2.0)
        assert fleet.unsent == ([plan.clients[0]] if steps else [])
        given = [each for each in said if isinstance(each, Work)]
        assert [each.order for each in given] == ([()] if steps else []), "to send, not to train"


def test_steps_on_chunks_of_others_do_not_count():
    plan = planned(2)
    machine, _ = begun(plan)
    back = joined(plan, "client 0", 2.0, 9)
    machine.handle(back)
    assert machine.summary.reached["client 0"] == 9
    machine.handle(replace(back, kept=(*back.kept, Kept(0, 1, 9))))
    assert machine.summary.reached["client 0"] == 0, "it was one model for both chunks"


def test_steps_kept_from_abandoned_model_are_done_again():
    """After a resume the version has another model, so the client that was away trains from it anew."""
    plan = planned(2)
    machine, fleet = Round(plan, Assignment(1, 0, TARGET, 0, most_steps=2 * TARGET), sync), Clients(plan)
    present = [joined(plan, "client 0", steps=TARGET + 4), joined(plan, "client 1")]
    fleet.obey(machine, machine.start(0.0, present), 0.0)
    reach(machine, fleet, "client 0", 4)
    assert machine.summary.reached["client 0"] == 4
    assert not fleet.unsent
    for client in plan.clients:
        reach(machine, fleet, client, now=2.0)
    for client in plan.clients:
        fleet.send(machine, client, 3.0)
    assert (machine.outcome, fleet.refused) == ("synced", [])
    assert machine.statistics.steps == [TARGET, TARGET]


def test_report_of_fewer_steps_than_before_is_refused():
    machine, fleet = begun(planned(2))
    for steps in (4, 3):
        fleet.obey(machine, machine.handle(fleet.report("client 0", 1.0, steps)), 1.0)
    assert [each.reason for each in fleet.refused] == ["saw 3 steps, it has reported 4"]


def test_deadline_asks_every_client_even_without_report():
    plan = planned(2)
    machine, fleet = begun(plan)
    fleet.train("client 1", 2)
    fleet.obey(machine, machine.handle(Tick(100.0)), 100.0)
    assert fleet.unsent == list(plan.clients)
    for client in plan.clients:
        fleet.send(machine, client, 101.0)
    assert fleet.added == ["client 1"]


def test_continuing_client_gets_target_and_new_client_gets_work():
    plan = planned(2)
    machine = Round(
        plan, Assignment(2, 0, 2 * TARGET, 0, frozenset({"client 0"}), reached={"client 0": 9}), sync
    )
    began = machine.start(0.0, [joined(plan, client) for client in plan.clients])
    assert [type(command) for command in began] == [Continue, Work]
    assert all(command.target == 2 * TARGET for command in began if isinstance(command, Work | Continue))
    machine.handle(Report(1.0, "client 0", 2, 2 * TARGET, 10, 3.2, 1.0, 0.5))
    assert machine.statistics.steps == [2 * TARGET - 9, 0]


def test_stop_ends_round_while_working_and_collecting():
    for collecting in (False, True):
        plan = planned(2)
        machine, fleet = begun(plan)
        if collecting:
            for client in plan.clients:
                reach(machine, fleet, client)
        fleet.obey(machine, machine.handle(Stop(5.0, "somebody asked")), 5.0)
        assert machine.outcome == "stopped"
        assert len(fleet.closed) == 2


def test_client_that_cannot_hear_stop_does_not_run_ahead():
    plan = planned(2)
    machine = Round(plan, Assignment(1, 0, TARGET, 0, most_steps=3 * TARGET), sync)
    given = machine.start(0.0, [joined(plan, client, live=client == "client 0") for client in plan.clients])
    assert {each.client: each.most_steps for each in given} == {"client 0": 3 * TARGET, "client 1": 0}


def test_steps_beyond_target_count():
    plan = planned(2)
    machine, fleet = begun(plan, most_steps=2 * TARGET)
    reach(machine, fleet, "client 0")
    reach(machine, fleet, "client 0", 2 * TARGET)
    reach(machine, fleet, "client 1")
    for client in plan.clients:
        fleet.send(machine, client, 2.0)
    assert machine.statistics.counted == [2 * TARGET, TARGET]


def test_steps_beyond_those_asked_for_are_refused():
    plan = planned(2)
    machine, fleet = begun(plan, most_steps=2 * TARGET)
    reach(machine, fleet, "client 1")
    told = machine.handle(fleet.report("client 0", 1.0, 10**15))
    assert [each.reason for each in told] == [f"saw {10**15} steps, it was asked for at most {2 * TARGET}"]
    assert machine.statistics.refused == [1, 0]
    assert machine.summary.reached["client 0"] == 0


def test_false_steps_do_not_reach_mean_and_round_does_not_wait():
    plan = planned(2)
    machine, fleet = begun(plan)
    for client in plan.clients:
        reach(machine, fleet, client)
    fleet.obey(machine, machine.handle(fleet.report("client 0", 2.0, 10**15)), 2.0)
    assert fleet.refused[0].client == "client 0"
    fleet.send(machine, "client 1", 3.0)
    assert (machine.outcome, machine.short) == ("approximate", (0,))
    assert machine.result.steps == TARGET


def test_kept_steps_beyond_those_asked_for_do_not_count():
    plan = planned(2)
    machine, _ = begun(plan)
    machine.handle(joined(plan, "client 0", 2.0, 10**15))
    assert machine.summary.reached["client 0"] == 0


# ---- clients that leave


def leave(machine: Round, fleet: Clients, client: str, steps: int, now: float, grace_s: float = 20.0) -> None:
    """Report what a client has, and say that it leaves."""
    if steps:
        reach(machine, fleet, client, steps, now)
    fleet.obey(machine, machine.handle(Leaving(now, client, grace_s)), now)


def test_leaving_client_brings_deadline_forward():
    """The grace of 20 s, less 2 s to send the update."""
    plan = planned(3)
    machine, fleet = begun(plan, skip)
    before = machine.next_tick
    leave(machine, fleet, plan.clients[0], 3, now=5.0)
    assert machine.next_tick == 23.0 < before
    fleet.train(plan.clients[1], 7)
    fleet.obey(machine, machine.handle(Tick(23.0)), 23.0)
    assert sorted(fleet.unsent) == sorted(plan.clients), "all hand in what they have"
    for client in list(fleet.unsent):
        fleet.send(machine, client, 24.0)
    assert machine.statistics.counted == [3, 7, 0]
    assert (machine.reason, machine.forced) == ("client client 0 is leaving", True)


def test_slow_uplink_keeps_more_of_grace():
    plan = planned(2)
    for upload_s, at in ((4.0, 12.0), (100.0, 10.0)):
        machine, fleet = begun(plan, upload_s=(upload_s, 0.0))
        leave(machine, fleet, plan.clients[0], 3, now=0.0)
        assert machine.next_tick == at, "twice the expected upload, at most half of the grace"


def test_round_that_ends_by_itself_is_not_forced():
    plan = planned(3)
    machine, fleet = begun(plan)
    leave(machine, fleet, plan.clients[0], 3, now=1.0)
    for client in plan.clients[1:]:
        assert machine.state is State.WORKING, "the leaving client does not count for the quorum"
        reach(machine, fleet, client, now=2.0)
    assert machine.state is State.COLLECTING
    assert (machine.reason, machine.forced) == ("every round", False)


def test_gate_that_would_skip_is_overruled():
    plan = planned(3)
    machine, fleet = begun(plan, skip)
    leave(machine, fleet, plan.clients[0], 3, now=1.0)
    leave(machine, fleet, plan.clients[2], 4, now=1.5)
    reach(machine, fleet, plan.clients[1], now=2.0)
    assert machine.state is State.COLLECTING
    assert machine.reason == "client client 0 and 1 more are leaving"
    assert machine.forced


def test_leaving_client_without_steps_forces_nothing():
    plan = planned(2)
    machine, fleet = begun(plan, skip)
    before = machine.next_tick
    leave(machine, fleet, plan.clients[0], 0, now=1.0)
    assert machine.next_tick == before
    reach(machine, fleet, plan.clients[1], now=2.0)
    assert (machine.outcome, machine.forced) == ("skipped", False)


def test_lost_leaving_client_is_not_waited_for():
    plan = planned(2)
    machine, fleet = begun(plan, skip)
    before = machine.next_tick
    leave(machine, fleet, plan.clients[0], 3, now=1.0)
    fleet.obey(machine, machine.handle(Lost(2.0, plan.clients[0])), 2.0)
    assert machine.next_tick == before
    reach(machine, fleet, plan.clients[1], now=2.0)
    assert (machine.outcome, machine.forced) == ("skipped", False)
    assert machine.statistics.failure == ["left", ""]


def test_last_clients_hand_in_at_once_when_all_leave():
    plan = planned(2)
    machine, fleet = begun(plan, skip)
    leave(machine, fleet, plan.clients[0], 3, now=1.0)
    assert machine.state is State.WORKING
    leave(machine, fleet, plan.clients[1], 0, now=1.5)
    assert machine.state is State.COLLECTING, "nobody is left to wait for"


@pytest.mark.parametrize(("forced_from", "at"), [(2.0, 18.0), (2.1, 18.0), (18.0, 18.0), (18.1, None)])
def test_exchange_is_forced_only_so_often(forced_from: float, at: float | None):
    plan = planned(2)
    machine, fleet = begun(plan, skip, forced_from=forced_from)
    before = machine.next_tick
    leave(machine, fleet, plan.clients[0], 3, now=0.0)
    assert machine.next_tick == (before if at is None else at)
    reach(machine, fleet, plan.clients[1], now=2.0)
    assert (machine.outcome == "skipped") is (forced_from > 2.0)


def test_leaving_client_over_messages_is_asked_at_once():
    plan = planned(2)
    for forced_from, at in ((0.0, None), (7.0, 7.0)):
        machine = Round(plan, Assignment(1, 0, TARGET, 0, forced_from=forced_from), skip)
        fleet = Clients(plan)
        start = [joined(plan, client, live=client != plan.clients[0]) for client in plan.clients]
        fleet.obey(machine, machine.start(0.0, start), 0.0)
        leave(machine, fleet, plan.clients[0], 3, now=1.0)
        assert machine.next_tick == (1.0 if at is None else at)
        fleet.obey(machine, machine.handle(Tick(machine.next_tick)), machine.next_tick)
        assert plan.clients[0] in fleet.unsent


def test_pinned_client_counts_for_its_fixed_samples():
    seen = []

    def asked(reports) -> Decision:
        seen.extend((item.source, item.samples) for item in reports.items)
        return sync(reports)

    plan = planned(3)
    machine, fleet = begun(plan, asked, pinned={"client 1": 5000, "not here": 7})
    for client in plan.clients:
        reach(machine, fleet, client)
    added = []
    for client in plan.clients:
        machine.handle(fleet.report(client, 2.0))
        added += [
            each.weights for each in machine.handle(Codeword(2.0, client, 1, 0)) if isinstance(each, Add)
        ]
    assert added == [(10,), (5000,), (30,)]
    assert machine.result
    assert machine.result.weight == 5040
    assert seen == [("client 0", 10), ("client 1", 5000), ("client 2", 30)]
