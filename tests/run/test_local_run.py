"""Test a local-work run: gate state, reports, round assignments and resume."""

import json
import math
from itertools import pairwise
from types import MappingProxyType

import pytest

from fedgc.errors import BadSetting
from fedgc.history import Speeds
from fedgc.messages import (
    Closing,
    Codeword,
    Continue,
    Failed,
    Held,
    Joined,
    Kept,
    Leaving,
    Lost,
    Refuse,
    Report,
    Reveal,
    Tick,
    ToClient,
    Work,
)
from fedgc.run.machine import CHECK_BYTES, Append, Apply, Finished, Output, RunState
from fedgc.sim.clock.interfaces import Finding
from fedgc.sim.clock.reference_client import WHOLE, ReferenceClient, Reported
from fedgc.store.plausible import checked
from tests.config_of import config_of
from tests.tuned import tuned_run

CLIENTS = ("a", "b", "c", "d")
SAMPLES = 10


class Fleet:
    """Reference clients that do their steps at once, each with its own chunk, and send requested updates."""

    samples = MappingProxyType(dict.fromkeys(CLIENTS, SAMPLES))

    def __init__(
        self,
        resume: RunState | None = None,
        *,
        shared: bool = False,
        site=None,
        speeds: Speeds | None = None,
        **settings: object,
    ) -> None:
        values = {"work": "local", "rounds": 12, "quorum": 1.0, "min_clients": 4, "local_steps": 5}
        self.config = config_of({"work": "coded", **values, **settings})
        self.run = tuned_run(self.config, now=0.0, size=100, resume=resume, site=site, speeds=speeds)
        self.now = 0.0
        self.log: list[Output] = []
        self.clients = {client: ReferenceClient(client) for client in CLIENTS}
        self.asked: list[Reveal] = []
        self.norms = dict.fromkeys(CLIENTS, 1.0)
        self.done = dict.fromkeys(CLIENTS, 0)  # in all
        for client in CLIENTS:
            held, digest = (CLIENTS, "same") if shared else ((client,), "")
            holds = tuple(Held(f"chunk {each}", self.samples[each], digest) for each in held)
            self.say(Joined(0.0, client, True, holds))

    def say(self, event: object) -> None:
        outputs = self.run.handle(event)
        self.log += outputs
        for output in outputs:
            if isinstance(output, Reveal):
                self.asked.append(output)
            elif isinstance(output, ToClient):
                self.clients[output.client].handle(output)

    @property
    def names(self) -> dict[str, tuple[tuple[int, str], ...]]:
        return {client: at.named for client, at in self.clients.items()}

    @property
    def kept(self) -> dict[str, int]:
        """Steps since the common model."""
        return {client: int(at.reached(WHOLE)) for client, at in self.clients.items()}

    def report(self, client: str) -> None:
        at = self.clients[client]
        before, told = at.reached(WHOLE), at.due()
        if told is None and at.goal == at.target and at.start() is not None:  # else it trains ahead
            told = at.finish(0.1 * at.left)
        self.done[client] += int(at.reached(WHOLE) - before)
        self.tell(client, told)

    def tell(self, client: str, told: Reported | Failed | None) -> None:
        if isinstance(told, Reported):
            samples = sum(self.samples[name.removeprefix("chunk ")] for _, name in self.names[client])
            found = Finding(squared_norm=told.reached * self.norms[client], loss=0.5)
            self.say(told.event(self.now, client, samples, found))

    def do_a_round(self) -> None:
        number = self.run.number
        self.now += 1.0
        for client in CLIENTS:
            if self.run.number == number and self.clients[client].round == number:
                self.report(client)
        while self.asked:
            reveal = self.asked.pop(0)
            self.tell(reveal.client, self.clients[reveal.client].handle(reveal))
            self.say(Codeword(self.now, reveal.client, number, 0, seconds=0.25, size_bytes=400))

    def to_the_end(self) -> list[str]:
        while not self.run.finished:
            self.do_a_round()
        return self.outcomes

    @property
    def outcomes(self) -> list[str]:
        return [each.row.outcome for each in self.log if isinstance(each, Append)]

    @property
    def booked(self) -> dict[str, int]:
        """The steps of each client that the rows tell."""
        booked = dict.fromkeys(CLIENTS, 0)
        for append in self.of(Append):
            for each in append.row.clients:
                booked[each.client] += each.steps
        return booked

    @property
    def settled(self) -> dict[str, int]:
        """The steps of each client that the rows have counted or discarded."""
        settled = dict.fromkeys(CLIENTS, 0)
        for append in self.of(Append):
            for each in append.row.clients:
                settled[each.client] += each.finished
        return settled

    def of(self, kind: type) -> list:
        return [output for output in self.log if isinstance(output, kind)]


def test_round_adds_steps_to_those_since_last_exchange():
    fleet = Fleet(gate="every", **{"gate_period": 3})
    assert fleet.to_the_end() == ["skipped", "skipped", "synced"] * 4
    assert [work.target for work in fleet.of(Work)] == [5] * 16
    assert {carry.target for carry in fleet.of(Continue)} == {10, 15}
    assert [work.first_step for work in fleet.of(Work)[::4]] == [0, 15, 30, 45]
    assert [apply.weight for apply in fleet.of(Apply)] == [4 * SAMPLES] * 4


def test_shared_momentum_reports_steps_between_models():
    fleet = Fleet(gate="every", **{"gate_period": 2, "rounds": 6})
    fleet.to_the_end()
    assert [work.common_steps for work in fleet.of(Work)[::4]] == [0.0, 10.0, 10.0]
    alone = Fleet(gate="every", **{"gate_period": 2, "rounds": 6, "shared_momentum": "off"})
    alone.to_the_end()
    assert {work.common_steps for work in alone.of(Work)} == {0.0}


def test_gate_state_is_json_and_resumed_run_decides_equally():
    settings = {"gate": "drift", "gate_budget": 0.3, "rounds": 20}
    whole = Fleet(**settings)
    first = Fleet(**settings)
    while first.outcomes.count("synced") < 3:
        first.do_a_round()
    state = first.run.state()
    assert isinstance(json.loads(state.gate), list)
    again = Fleet(resume=state, **settings)
    assert first.outcomes + again.to_the_end() == whole.to_the_end()
    assert again.of(Work)[0].common_steps == state.common_steps > 0
    assert again.of(Work)[0].first_step == state.first_step == 5 * len(first.outcomes)


def test_steps_of_skipped_rounds_count_after_resume_in_lockstep():
    settings = {"gate": "every", "gate_period": 4, "lockstep": "on"}
    first = Fleet(**settings)
    while first.outcomes.count("synced") < 1:
        first.do_a_round()
    state = first.run.state()
    while first.outcomes[-2:] != ["skipped", "skipped"]:
        first.do_a_round()
    again = Fleet(resume=state, **settings)
    for client in CLIENTS:  # as its process kept them while the server was away
        kept = tuple(first.clients[client].kept())
        again.clients[client] = first.clients[client]
        again.clients[client].restart(keeps=True)
        again.say(Lost(0.0, client))
        again.say(Joined(0.0, client, True, (Held(f"chunk {client}", SAMPLES),), kept))
    again.to_the_end()
    assert not again.of(Refuse)
    assert again.outcomes[:4] == ["skipped", "skipped", "skipped", "synced"]


@pytest.mark.parametrize(
    ("before", "after"),
    [({"gate": "drift"}, {"gate": "every"}), ({"gate": "auto"}, {"gate": "auto", "fragments": 2})],
)
def test_resumed_run_with_other_gate_decides_from_its_first_state(before, after):
    first = Fleet(gate_budget=0.3, rounds=20, link="session", **before)
    while first.outcomes.count("synced") < 3:
        first.do_a_round()
    left = 20 - len(first.outcomes)
    again = Fleet(resume=first.run.state(), gate_period=2, rounds=20, link="session", **after)
    assert again.to_the_end()[: left - 1] == (10 * ["skipped", "synced"])[: left - 1]


@pytest.mark.parametrize("norm", [math.nan, -1.0, math.inf])
@pytest.mark.parametrize("gate", ["drift", "relative-change"])
def test_client_with_invalid_norm_is_ignored_and_named(norm, gate):
    sound, broken = Fleet(gate=gate, rounds=8), Fleet(gate=gate, rounds=8)
    broken.norms["b"] = norm
    assert broken.to_the_end() == sound.to_the_end()
    reasons = [append.row.reason for append in broken.of(Append)[:-1]]
    assert all("left out: b" in reason for reason in reasons)


def test_gate_knows_cost_of_exchange_and_check():
    fleet = Fleet(gate="every")
    seen = []
    step = fleet.run._gate._gate.step

    class Listening:
        always_syncs = False
        init = fleet.run._gate._gate.init

        @staticmethod
        def step(state, reports):
            seen.append(reports)
            return step(state, reports)

    fleet.run._gate._gate = Listening()
    fleet.do_a_round()
    fleet.do_a_round()
    first, second = seen
    assert first.sync_bytes == second.sync_bytes == 4 * (400 + 400)
    assert first.sync_seconds > 0
    assert first.check_bytes == 4 * CHECK_BYTES
    assert (first.rounds_left, second.rounds_left) == (11, 10)
    assert first.learning_rate == fleet.config.learning_rate


@pytest.mark.parametrize("rounds", [1, 2, 12, 20])
def test_default_short_run_exchanges_each_round(rounds):
    assert Fleet(rounds=rounds).to_the_end() == ["synced"] * rounds


@pytest.mark.parametrize(("rounds", "exchanges"), [(21, 20), (40, 20), (200, 20), (400, 40)])
def test_default_long_run_has_20_exchanges_or_tenth_of_rounds(rounds, exchanges):
    assert Fleet(rounds=rounds).to_the_end().count("synced") == exchanges


@pytest.mark.parametrize("gaps", [{"max_gap": 4}, {"min_gap": 20}, {"min_gap": 3, "max_gap": 3}])
def test_default_budget_fits_any_gaps(gaps):
    assert Fleet(rounds=100, **gaps).to_the_end().count("synced") >= 5


def test_explicit_budget_is_kept_for_short_run():
    assert Fleet(rounds=12, **{"gate_budget": 0.1}).to_the_end() == ["skipped"] * 11 + ["synced"]


def test_last_round_is_always_exchanged():
    fleet = Fleet(gate="relative-change", **{"gate_options": "delta=inf", "max_gap": 0})
    assert fleet.to_the_end() == ["skipped"] * 11 + ["synced"]


def test_gap_stays_within_hard_limit():
    fleet = Fleet(gate="relative-change", **{"gate_options": "delta=inf", "max_gap": 4})
    assert fleet.to_the_end() == ["skipped", "skipped", "skipped", "synced"] * 3


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"gate_budget": 0.0}, "setting gate.budget: saw 0.0, needed above 0"),
        ({"gate_budget": 1.5}, "setting gate.budget: saw 1.5 of all rounds, needed at most 1"),
        (
            {"gate": "relative-change", "gate_options": "delta=-0.1"},
            "gate relative-change: saw delta -0.1, needed 0",
        ),
        ({"max_gap": 2, "min_gap": 3}, "setting gate.max-gap: saw 2, needed at least gate.min-gap"),
        (
            {"shared_momentum": 0.0},
            "setting optimizer.shared-momentum: saw 0.0, needed above 0 and at most 1",
        ),
        (
            {"shared_momentum": 1.1},
            "setting optimizer.shared-momentum: saw 1.1, needed above 0 and at most 1",
        ),
        ({"gate_budget": 0.01}, "gate drift: saw a budget of 0.01 of all checks with max_gap 32"),
        (
            {"codec": "int3"},
            "setting links.codec: saw 'int3', needed one of bf16, float32, int4, int8, top-k",
        ),
        (
            {"codec": "top-k:share=0.1"},
            "setting links.codec: saw 'top-k:share=0.1', needed a codec, then a space and its options",
        ),
        ({"quorum": 0.0}, "setting timing.quorum: saw 0.0, needed above 0"),
    ],
)
def test_bad_settings_give_one_clear_line(settings, says):
    with pytest.raises(BadSetting) as caught:
        Fleet(**settings)
    assert str(caught.value).startswith(says)
    assert "\n" not in str(caught.value)


def test_rows_hold_round_steps_and_exchange_totals():
    fleet = Fleet(gate="every", **{"gate_period": 2, "rounds": 2})
    fleet.to_the_end()
    skipped, synced = (append.row for append in fleet.of(Append))
    assert [row.steps for row in skipped.clients] == [row.steps for row in synced.clients] == [5] * 4
    assert [(row.finished, row.counted) for row in skipped.clients] == [(0, 0)] * 4
    assert [(row.finished, row.counted) for row in synced.clients] == [(10, 10)] * 4
    assert (skipped.discarded, synced.discarded) == (0, 0)
    assert all(row.step_s == pytest.approx(0.1) for row in synced.clients)


def test_row_without_steps_of_its_round_tells_no_time():
    fleet = Fleet(gate="every", gate_period=3, rounds=3)
    for number in (1, 2, 3):
        fleet.now += 10.0
        for client in CLIENTS:
            steps = 15 if client == "a" else 5 * number  # "a" trains ahead, and then waits
            fleet.say(Report(fleet.now, client, number, steps, SAMPLES, 0.1 * steps, 1.0, 0.5))
    for client in CLIENTS:
        fleet.say(Report(fleet.now, client, 3, 15, SAMPLES, 1.5, 1.0, 0.5))
        fleet.say(Codeword(fleet.now, client, 3, 0, seconds=0.25, size_bytes=400))
    of_a = [append.row.clients[0] for append in fleet.of(Append)]
    assert [row.steps for row in of_a] == [15, 0, 0]
    assert [row.finished for row in of_a] == [0, 0, 15]
    assert [row.step_s for row in of_a] == [pytest.approx(0.1), None, pytest.approx(0.1)]
    assert [checked(row, 60.0)[1] for row in of_a] == [0, 0, 0]


def test_nearly_finished_clients_are_awaited_in_every_round():
    fleet = Fleet(gate="every", quorum=0.5, patience=0.25, rounds=4)
    while not fleet.run.finished:
        fleet.now += 0.48
        for client in CLIENTS[:2]:
            fleet.report(client)
        assert not fleet.asked, "the others need 5 steps of 0.1 s: they are due in a moment"
        fleet.do_a_round()
    assert fleet.outcomes == ["synced"] * 4


INJECTED = {"placement": "cyclic", "replicas": 2, "inject_clients": 0.5, "batch_size": 32}


@pytest.mark.parametrize(
    ("settings", "same", "carried"),
    [({}, "abc", "abc"), ({"shared": True}, "ab", "ab"), ({"shared": True, **INJECTED}, "a", "")],
    ids=["own data", "shared data", "injected data"],
)
def test_restart_on_same_chunks_after_skipped_round_keeps_steps(settings, same, carried):
    fleet = Fleet(gate="every", **{"gate_period": 3, "rounds": 3, "quorum": 0.75, **settings})
    before = dict(fleet.names)
    for client in "abc":
        fleet.report(client)
        if client == "b":
            fleet.log.clear()
            fleet.say(Lost(fleet.now, "d"))
    again = [output for output in fleet.log if isinstance(output, Work | Continue) and output.round == 2]
    assert "".join(sorted(each.client for each in again if isinstance(each, Continue))) == carried
    assert "".join(each for each in "abc" if fleet.names[each] == before[each]) == same
    assert fleet.run.round.summary.reached == {each: fleet.kept[each] for each in "abc"}
    while not fleet.run.finished:
        fleet.do_a_round()
    assert fleet.booked == fleet.settled == fleet.done


def test_steps_on_moved_chunks_are_discarded_in_round_of_new_plan():
    fleet = Fleet(gate="every", shared=True, **{"gate_period": 3, "rounds": 3, "quorum": 0.75})
    for client in "abc":
        fleet.report(client)
        if client == "b":
            fleet.say(Lost(fleet.now, "d"))
    fleet.to_the_end()
    told = [[(each.steps, each.finished, each.counted) for each in row.clients][:3] for row in rows(fleet)]
    assert told == [
        [(5, 0, 0)] * 3,
        [(5, 0, 0), (5, 0, 0), (10, 5, 0)],  # the last one has begun anew
        [(5, 15, 15)] * 3,
    ]


def test_row_of_lost_client_discards_its_steps_of_all_rounds():
    fleet = Fleet(gate="every", gate_period=3, rounds=3)
    fleet.do_a_round()
    fleet.report("d")
    fleet.say(Lost(fleet.now, "d"))
    fleet.to_the_end()
    lost = [(row.outcome, each) for row in rows(fleet) for each in row.clients if each.failure]
    assert [(outcome, each.steps, each.finished, each.counted) for outcome, each in lost] == [
        ("skipped", 5, 10, 0)
    ]
    assert fleet.settled == fleet.done


@pytest.mark.parametrize("reported", [False, True])
def test_failure_discards_steps_that_it_names(reported: bool):
    fleet = Fleet(gate="every", rounds=1)
    if reported:
        fleet.report("d")
    fleet.say(Failed(fleet.now, "d", 1, "local work, step 8: no loss", (), 8))
    fleet.do_a_round()
    (row,) = rows(fleet)
    assert [(each.steps, each.finished, each.counted) for each in row.clients] == [(5, 5, 5)] * 3 + [
        (8, 8, 0)
    ]


def test_failure_names_no_more_steps_than_were_asked_for():
    fleet = Fleet(gate="every", rounds=1)
    fleet.say(Failed(fleet.now, "d", 1, "no loss", (), 10**9))
    fleet.do_a_round()
    assert rows(fleet)[0].clients[3].finished <= fleet.config.round_steps + fleet.config.most_steps


def test_steps_of_client_that_left_unheard_are_discarded_in_own_row():
    fleet = Fleet(gate="every", gate_period=6, rounds=9)
    leave(fleet, "b")
    fleet.do_a_round()
    fleet.say(Lost(fleet.now, "b"))
    fleet.clients["b"].restart(keeps=False)
    fleet.say(Joined(fleet.now, "b", True, (Held("chunk b", SAMPLES),)))
    fleet.do_a_round()
    leave(fleet, "b")
    fleet.do_a_round()
    assert fleet.outcomes[-1] == "skipped", "an exchange was forced a moment ago"
    done = fleet.kept["b"]
    fleet.say(Lost(fleet.now, "b"))
    fleet.do_a_round()
    (row,) = (each for each in rows(fleet)[-1].clients if each.client == "b")
    assert (row.finished, row.counted, row.failure) == (done, 0, "lost")


def test_restart_in_round_discards_steps_that_were_not_kept():
    fleet = Fleet(gate="every", rounds=1)
    fleet.report("d")
    fleet.clients["d"].restart(keeps=False)
    fleet.say(Joined(fleet.now, "d", True, (Held("chunk d", SAMPLES),)))
    fleet.do_a_round()
    last = rows(fleet)[0].clients[3]
    assert (last.steps, last.finished, last.counted, last.failure) == (10, 10, 5, "")


def test_round_whose_clients_were_lost_has_no_reason_of_gate():
    fleet = Fleet(gate="every", rounds=3)
    for client in CLIENTS:
        fleet.report(client)
    for client in CLIENTS:
        fleet.say(Lost(fleet.now, client))
    assert [(row.outcome, row.reason) for row in rows(fleet)] == [("empty", "")]
    assert {each.failure for each in rows(fleet)[0].clients} == {"lost"}


def test_steps_without_update_are_not_counted_again():
    fleet = Fleet(gate="every", rounds=3)
    for client in CLIENTS:
        fleet.report(client)
    fleet.asked.clear()
    while not fleet.outcomes:
        fleet.now = max(fleet.now, fleet.run.next_tick)
        fleet.say(Tick(fleet.now))
    assert fleet.to_the_end() == ["empty", "synced", "synced"]
    assert fleet.done == dict.fromkeys(CLIENTS, 2 * fleet.config.round_steps)
    assert fleet.booked == fleet.done


def test_return_after_skipped_round_keeps_reported_steps():
    fleet = Fleet(gate="every", **{"gate_period": 3, "quorum": 0.75})
    for client in "abc":
        fleet.report(client)
    fleet.say(Lost(fleet.now, "a"))
    fleet.say(Joined(fleet.now, "a", True, (Held("chunk a", SAMPLES),)))
    assert fleet.run.round.summary.reached == {"a": 0, "b": 5, "c": 5, "d": 0}


@pytest.mark.parametrize("holds", [("another",), CLIENTS])
def test_client_without_assignable_data_does_not_end_run(holds):
    fleet = Fleet(shared=True, placement="shuffled-once", rounds=6, gate="every")
    fleet.do_a_round()
    fleet.say(Joined(fleet.now, "e", True, tuple(Held(f"chunk {each}", SAMPLES) for each in holds)))
    assert fleet.to_the_end() == ["synced"] * 6
    assert {work.client for work in fleet.of(Work)} == set(CLIENTS)


def test_undistributable_data_ends_run_with_reason():
    fleet = Fleet(placement="shuffled-once")
    said = "placement shuffled-once: saw 4 clients of which 1 can load the same chunks, needed more than half"
    assert fleet.log == [Finished(said, complete=False)]


def test_client_that_did_its_steps_is_not_awaited():
    fleet = Fleet()
    assert fleet.run.waiting.clients == set(CLIENTS)
    fleet.report("a")
    assert fleet.run.waiting.clients == set("bcd")
    assert fleet.now < fleet.run.waiting.until < math.inf


# ---- clients that leave


def leave(fleet: Fleet, client: str, steps: int = 2, grace_s: float = 20.0) -> None:
    """Report what a client has, and say that it leaves."""
    before, samples = fleet.kept[client], SAMPLES * len(fleet.names[client])
    number = fleet.run.number
    fleet.say(Report(fleet.now, client, number, before + steps, samples, 0.1 * steps, 1.0, 0.5))
    fleet.say(Leaving(fleet.now, client, grace_s))


def rows(fleet: Fleet) -> list:
    return [each.row for each in fleet.of(Append)]


def test_departure_forces_exchange_and_gets_no_new_work():
    fleet = Fleet(gate="every", gate_period=6)
    fleet.do_a_round()
    leave(fleet, "b")
    fleet.do_a_round()
    assert fleet.outcomes == ["skipped", "synced"]
    assert rows(fleet)[1].reason == "client b is leaving"
    fleet.do_a_round()
    assert [each.client for each in rows(fleet)[2].clients] == ["a", "c", "d"]
    fleet.say(Lost(fleet.now, "b"))
    fleet.do_a_round()
    assert fleet.outcomes == ["skipped", "synced", "skipped", "skipped"]
    assert not any(each.failure for row in rows(fleet) for each in row.clients)


def test_end_of_hours_brings_deadline_of_next_rounds_forward():
    """The hours end 60 s from now; an update needs 2 s. A client that is lost has no hours any more."""
    fleet = Fleet(gate="every", gate_period=6, deadline_s=500.0)
    fleet.say(Closing(fleet.now, "b", 60.0))
    closes = fleet.now + 58.0
    before = fleet.run.next_tick
    fleet.do_a_round()
    assert fleet.run.next_tick == closes < before
    assert fleet.outcomes == ["skipped"], "no exchange is forced long before"
    fleet.say(Lost(fleet.now, "b"))
    assert fleet.run.next_tick > closes
    fleet.do_a_round()
    assert fleet.run.next_tick > closes


def test_second_leaving_counts_only_after_return():
    fleet = Fleet(gate="every", gate_period=6)
    leave(fleet, "b")
    fleet.do_a_round()
    for _ in range(3):
        fleet.say(Leaving(fleet.now, "b", 20.0))
        fleet.do_a_round()
    assert fleet.outcomes == ["synced"] + ["skipped"] * 3


def test_hostile_departures_force_few_exchanges():
    """A client that leaves and joins again in every other second forces one exchange in ten seconds."""
    fleet = Fleet(gate="every", gate_period=60, rounds=41, max_gap=64)
    for _ in range(20):
        leave(fleet, "b")
        fleet.do_a_round()
        fleet.say(Lost(fleet.now, "b"))
        fleet.clients["b"].restart(keeps=False)
        fleet.say(Joined(fleet.now, "b", True, (Held("chunk b", SAMPLES),)))
        fleet.do_a_round()
    forced = [row.started for row in rows(fleet) if "is leaving" in row.reason]
    assert len(forced) == 4
    assert all(later - earlier >= 10.0 for earlier, later in pairwise(forced))


@pytest.mark.parametrize("steps", [0, 2])
def test_round_that_all_clients_leave_begins_again(steps: int):
    fleet = Fleet(gate="every", lockstep="on", rounds=2)
    fleet.do_a_round()
    for client in CLIENTS:
        leave(fleet, client, steps) if steps else fleet.say(Leaving(fleet.now, client, 20.0))
    for client in CLIENTS:
        fleet.say(Lost(fleet.now, client))
    assert fleet.outcomes == ["synced", "stopped"]
    assert not fleet.of(Finished), "the last round was not trained"
    fleet.asked.clear()
    for client in CLIENTS:
        fleet.clients[client].restart(keeps=False)
        fleet.say(Joined(fleet.now, client, True, (Held(f"chunk {client}", SAMPLES),)))
    fleet.do_a_round()
    assert [(row.round, row.outcome) for row in rows(fleet)] == [(1, "synced"), (2, "stopped"), (2, "synced")]
    assert fleet.of(Finished) == [Finished("2 rounds done", complete=True)]


def test_clients_that_come_and_leave_again_end_no_run():
    fleet = Fleet(gate="every", rounds=12)
    fleet.do_a_round()
    for _ in range(4):
        for client in CLIENTS:
            fleet.say(Leaving(fleet.now, client, 20.0))
        for client in reversed(CLIENTS):
            fleet.say(Lost(fleet.now, client))
        for client in CLIENTS:
            fleet.clients[client].restart(keeps=False)
            fleet.say(Joined(fleet.now, client, True, (Held(f"chunk {client}", SAMPLES),)))
    assert fleet.outcomes == ["synced", "stopped", *["empty", "stopped"] * 3]
    assert not fleet.of(Finished)


def test_last_round_whose_clients_are_killed_is_over():
    fleet = Fleet(gate="every", lockstep="on", rounds=1)
    for client in CLIENTS:
        fleet.say(Lost(fleet.now, client))
    assert fleet.outcomes == ["empty"]
    assert fleet.of(Finished)


def test_storm_of_departures_causes_one_exchange():
    fleet = Fleet(gate="every", gate_period=6)
    for client in "abc":
        fleet.now += 1.0
        leave(fleet, client)
    assert fleet.run.next_tick == 19.0, "that of the first one's grace"
    fleet.do_a_round()
    assert fleet.outcomes == ["synced"]
    assert rows(fleet)[0].reason == "client a and 2 more are leaving"


def test_client_whose_script_left_is_hurried_once_asked_to_end():
    fleet = Fleet(gate="every", gate_period=6)
    leave(fleet, "a", grace_s=7 * 86_400.0)
    usual = fleet.run.next_tick
    fleet.say(Leaving(fleet.now, "a", 20.0))
    hurried = fleet.run.next_tick
    assert hurried < 20.0 < usual
    fleet.say(Leaving(fleet.now, "a", 15.0))
    assert fleet.run.next_tick == hurried, "its time is not much shorter"


def test_leaving_client_does_not_count_for_min_clients():
    fleet = Fleet(gate="every", min_clients=5)
    fleet.say(Leaving(0.0, "b", 20.0))
    fleet.say(Joined(0.0, "e", True, (Held("chunk e", SAMPLES),)))
    assert not fleet.of(Work)


def joined_again(fleet: Fleet, client: str, steps: int) -> None:
    """Tell the run that a client's process was started again, with so many steps in its cache."""
    chunks = [number for number, _ in fleet.names[client]]
    kept = tuple(Kept(fleet.run.version, number, steps) for number in chunks) if steps else ()
    fleet.say(Joined(fleet.now, client, True, (Held(f"chunk {client}", SAMPLES),), kept))


def test_restarted_client_gets_its_work_again():
    fleet = Fleet(gate="every", lockstep="on", rounds=1)
    for client in CLIENTS[1:]:
        fleet.report(client)
    joined_again(fleet, "a", 0)
    assert [work.client for work in fleet.of(Work)].count("a") == 2
    assert not fleet.of(Reveal), "the round does not end without it"
    fleet.do_a_round()
    assert sorted(each.client for each in fleet.of(Append)[0].row.clients if each.counted) == list(CLIENTS)


def test_leaving_client_that_is_back_hurries_no_round():
    one, other = (Fleet(gate="every", lockstep="on", rounds=1) for _ in range(2))
    for fleet in (one, other):
        fleet.report("a")
        fleet.say(Leaving(fleet.now, "a", 20.0))
    other.say(Lost(other.now, "a"))
    for fleet in (one, other):
        joined_again(fleet, "a", 5)
    assert one.run.next_tick == other.run.next_tick


def test_restarted_client_is_asked_again_for_kept_steps():
    fleet = Fleet(gate="every", lockstep="on", rounds=1)
    for client in CLIENTS:
        fleet.report(client)
    fleet.asked.clear()
    joined_again(fleet, "a", 5)
    (work,) = [work for work in fleet.of(Work)[4:] if not work.order]
    assert work.client == "a"
    assert [reveal.client for reveal in fleet.asked] == ["a"]


def test_client_that_cannot_load_chunk_goes_on_with_others():
    """Chunk 1 is damaged wherever it lies; clients get it again after 20 rounds."""
    fleet, tried = Fleet(shared=True, rounds=24, gate="every", min_clients=3), []
    while not fleet.run.finished:
        number = fleet.run.number
        for client in CLIENTS:
            if 1 in dict(fleet.names[client]) and fleet.clients[client].round == number:
                fleet.say(Failed(fleet.now, client, number, "a damaged chunk", (1,)))
                tried.append(number)
        fleet.do_a_round()
    rows = [each.row for each in fleet.of(Append)]
    assert [row.round for row in rows] == list(range(1, 25))
    assert set(tried) <= {1, 2, 3, 4, 21, 22, 23, 24}
    assert {1, 21} <= set(tried)
    assert {(row.outcome, row.counted_samples) for row in rows[4:20]} == {("synced", 3 * SAMPLES)}
    assert {row.known_samples for row in rows} == {4 * SAMPLES}
