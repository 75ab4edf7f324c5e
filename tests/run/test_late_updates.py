"""Test updates that come after their round: who is left behind, what counts, and what becomes of it."""

import math
from dataclasses import fields
from types import MappingProxyType

import pytest

from fedgc.config import RunConfig
from fedgc.history import Speed, Speeds
from fedgc.messages import (
    Add,
    Close,
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
    Work,
)
from fedgc.run.common_steps import KEPT
from fedgc.run.late_updates import MOST, TOO_LATE
from fedgc.run.machine import Append, Apply, Chose
from fedgc.sim.clock.reference_client import ReferenceClient
from tests.run.test_local_run import CLIENTS, SAMPLES, Fleet

LATE = "d"
QUICK = CLIENTS[:3]


class Late(Fleet):
    """Clients of which some send their updates when they are told to."""

    def __init__(self, **settings: object) -> None:
        self.sending: dict[str, Reveal] = {}
        super().__init__(late_updates="count", **{"gate": "every", "quorum": 0.75, **settings})

    def work(self, *clients: str) -> None:
        """Let clients do their steps, and answer the requests that follow, but for the vectors."""
        self.now += 1.0
        for client in clients:
            self.report(client)
        while self.asked:
            reveal = self.asked.pop(0)
            self.sending[reveal.client] = reveal
            self.tell(reveal.client, self.clients[reveal.client].handle(reveal))

    def send(self, *clients: str) -> list[object]:
        """Let the vectors of clients arrive; return what the run says."""
        before = len(self.log)
        for client in clients:
            reveal = self.sending.pop(client)
            self.say(Codeword(self.now, client, reveal.round, reveal.attempt, seconds=0.25, size_bytes=400))
        return self.log[before:]

    def do_round(self) -> None:
        """Do a round of the quick clients; the other one has done its steps too, and is sending."""
        self.work(*(each for each in CLIENTS if each not in self.sending))
        self.send(*(each for each in QUICK if each in self.sending))
        self.say(Tick(max(self.now, min(self.run.next_tick, self.now + 1.0))))

    @property
    def rows(self) -> list[dict[str, int]]:
        """What counted of each client, by round."""
        return [{each.client: each.counted for each in append.row.clients} for append in self.of(Append)]

    def told(self, kind: type, client: str) -> list:
        return [each for each in self.of(kind) if each.client == client]


def behind(**settings: object) -> Late:
    """Return a run after its first round, in which one client is still sending."""
    fleet = Late(**settings)
    fleet.do_round()
    assert fleet.rows == [{**dict.fromkeys(QUICK, 5), LATE: 0}]
    return fleet


def test_update_counts_in_round_in_which_it_comes():
    fleet = behind()
    said = fleet.send(LATE)
    add, close, work = said[0], said[1], said[2]
    assert isinstance(add, Add)
    assert (add.round, add.weights) == (1, (SAMPLES * math.sqrt(2),)), "it missed one model"
    assert close == Close(LATE, 1, "synced", frees=True)
    assert isinstance(work, Work)
    assert (work.round, work.version) == (2, 1)
    fleet.work(*QUICK)
    fleet.send(*QUICK)
    fleet.say(Tick(fleet.now + 1.0))
    assert fleet.rows[1] == dict.fromkeys(CLIENTS, 5)
    row = fleet.of(Append)[1].row
    assert (row.outcome, row.coverage) == ("synced", 1.0)
    assert row.reason.endswith("1 update of an earlier round")
    assert fleet.of(Apply)[1].weight == pytest.approx(3 * SAMPLES + SAMPLES * math.sqrt(2))


@pytest.mark.parametrize("rounds", [1, 3, 70])
def test_late_client_is_led_by_all_steps_since_its_model(rounds):
    fleet = behind(rounds=99)
    for _ in range(rounds - 1):
        fleet.do_round()
    fleet.send(LATE)
    late, quick = fleet.told(Work, LATE)[-1], fleet.told(Work, QUICK[0])[-1]
    assert (late.version, late.before) == (rounds, 0)
    assert late.common_steps == (5.0 * rounds if rounds <= KEPT else 0.0), "steps of few models are kept"
    assert (quick.version, quick.before, quick.common_steps) == (rounds, rounds - 1, 5.0)


def test_late_client_keeps_its_model_until_next_work():
    fleet = behind()
    fleet.work(*QUICK)
    fleet.send(QUICK[0])
    said = fleet.send(LATE)  # the round collects: the next one gives it work
    assert [type(each) for each in said] == [Add, Close]
    fleet.send(*QUICK[1:])
    fleet.say(Tick(fleet.now + 1.0))
    work = fleet.told(Work, LATE)[-1]
    assert (work.round, work.version, work.before, work.common_steps) == (3, 2, 0, 10.0)


def test_client_behind_is_told_nothing_of_later_rounds():
    fleet = behind()
    fleet.do_round()
    fleet.do_round()
    assert [each.round for each in fleet.told(Work, LATE)] == [1]
    assert not fleet.told(Close, LATE)
    assert [row[LATE] for row in fleet.rows] == [0, 0, 0]
    assert not any(append.awaited for append in fleet.of(Append)), "no round has waited for it"


def test_weight_grows_with_missed_models_up_to_limit():
    weights = []
    for rounds in (1, 2, 3, 9):
        fleet = behind()
        for _ in range(rounds - 1):
            fleet.do_round()
        weights.append(fleet.send(LATE)[0].weights[0] / SAMPLES)
    assert weights == pytest.approx([math.sqrt(2), math.sqrt(3), 2.0, MOST])


def test_late_update_of_bounded_share_counts_no_more_than_that():
    class Uneven(Late):
        samples = MappingProxyType({**Late.samples, LATE: 1000 * SAMPLES})

    fleet = Uneven()
    fleet.do_round()
    fleet.do_round()
    (weight,) = fleet.send(LATE)[0].weights
    assert weight == pytest.approx(sum(fleet.samples[each] for each in QUICK))


def test_setting_says_most_weight():
    """A reader of FedBuff expects less weight for older models."""
    says = next(each for each in fields(RunConfig) if each.name == "late_updates").metadata["says"]
    assert f"the more the older its model is, at most {MOST:g} times" in says


def test_client_counts_once_in_round():
    """Its late update is in the sum, so the one from the newest model is asked for after the round."""
    fleet = behind()
    fleet.send(LATE)
    fleet.work(*CLIENTS)
    assert LATE not in fleet.sending
    fleet.send(*QUICK)
    fleet.say(Tick(fleet.now + 1.0))
    assert fleet.rows[1][LATE] == 5
    fleet.work()
    assert fleet.sending[LATE].round == 2
    assert isinstance(fleet.send(LATE)[0], Add)
    fleet.do_round()
    assert fleet.rows[2][LATE] == 5


@pytest.mark.parametrize("keeps", [True, False])
def test_client_that_trains_on_and_comes_back_has_work(*, keeps):
    """Its late update is in the sum of the round that collects, so it is asked for the next one after it."""
    fleet = behind()
    fleet.send(LATE)
    fleet.work(*CLIENTS)
    work, holds = fleet.told(Work, LATE)[-1], fleet.run._clients.present[LATE].holds
    fleet.clients[LATE].restart(keeps=keeps)
    kept = (Kept(work.version, work.order[0], 5),) if keeps else ()
    fleet.say(Joined(fleet.now, LATE, True, holds, kept))
    fleet.send(*QUICK)
    fleet.say(Tick(fleet.now + 1.0))
    assert fleet.told(Work, LATE)[-1].round == (2 if keeps else 3)
    fleet.work(*CLIENTS)
    assert fleet.sending[LATE].round == (2 if keeps else 3)


@pytest.mark.parametrize("is_back", [False, True])
def test_update_of_client_that_was_lost_does_not_count(*, is_back):
    fleet = behind()
    holds = fleet.run._clients.present[LATE].holds
    fleet.say(Lost(fleet.now, LATE))
    if is_back:
        fleet.say(Joined(fleet.now, LATE, True, holds))
    assert [type(each) for each in fleet.send(LATE)] == [Refuse]
    assert [each.version for each in fleet.told(Work, LATE)] == [0, 1][: 1 + is_back]


def test_client_is_given_up_after_deadlines():
    fleet = behind(deadline_s=30.0, upload_deadline_s=20.0)
    fleet.do_round()
    until = fleet.run._late.next_tick
    fleet.say(Tick(until))
    assert fleet.told(Close, LATE) == [Close(LATE, 1, "synced", frees=True)]
    assert [each.version for each in fleet.told(Work, LATE)] == [0, 2]
    fleet.do_round()
    failures = {each.client: each.failure for each in fleet.of(Append)[-1].row.clients}
    assert failures == {**dict.fromkeys(QUICK, ""), LATE: TOO_LATE}


def test_failure_of_client_behind_gives_it_new_work():
    fleet = behind()
    fleet.say(Failed(fleet.now, LATE, 1, "disk full"))
    assert [each.version for each in fleet.told(Work, LATE)] == [0, 1]


def test_leaving_client_is_asked_for_its_steps():
    fleet = behind()
    fleet.send(LATE)
    fleet.work(*CLIENTS)  # it counts in this round, and is asked after it
    fleet.say(Leaving(fleet.now, LATE, 20.0))
    fleet.send(*QUICK)
    fleet.say(Tick(fleet.now + 1.0))
    fleet.work()
    assert fleet.sending[LATE].round == 2
    fleet.send(LATE)
    assert fleet.told(Close, LATE)[-1].round == 2
    assert fleet.told(Work, LATE)[-1].round == 2, "it gets no more work"


def test_client_behind_is_free_once_run_is_over():
    """So that it scores the last model: it scores none while it trains."""
    fleet = Late(rounds=1)
    fleet.do_round()
    assert fleet.run.finished
    assert fleet.told(Close, LATE) == [Close(LATE, 1, "synced", frees=True)]


def test_run_that_goes_back_takes_no_update_from_abandoned_models():
    fleet = behind()
    fleet.run.goes_back = True
    fleet.do_round()
    assert fleet.told(Close, LATE) == [Close(LATE, 1, "synced", frees=True)]
    assert [(each.round, each.version) for each in fleet.told(Work, LATE)] == [(1, 0), (3, 2)]
    assert [type(each) for each in fleet.send(LATE)] == [Refuse]


def all_behind(**settings: object) -> Late:
    """Return a run whose clients all send since its first round, which ended without an update."""
    fleet = Late(quorum=0.25, aggregator="weighted-mean", shared=True, upload_deadline_s=20.0, **settings)
    if settings.get("rounds"):
        fleet.clients["spare"] = ReferenceClient("spare")
        fleet.say(
            Joined(0.5, "spare", True, tuple(Held(f"chunk {each}", SAMPLES, "same") for each in CLIENTS))
        )
    fleet.work(*CLIENTS)
    fleet.now += 20.0
    fleet.say(Tick(fleet.now))
    assert fleet.outcomes == ["empty"]
    return fleet


@pytest.mark.parametrize("settings", [{}, {"rounds": 20}], ids=["no spare client", "spare client"])
def test_round_waits_for_clients_of_which_all_are_behind(settings):
    fleet = all_behind(**settings)
    assert fleet.run.waiting.clients == set(CLIENTS)
    fleet.say(Tick(fleet.now + 1.0))
    assert (fleet.outcomes, fleet.run.finished) == (["empty"], False)
    fleet.send("b")
    fleet.say(Tick(fleet.now + 1.0))
    fleet.work("b")
    fleet.send(*fleet.sending.keys() & {"b"})
    assert fleet.outcomes[1] == "approximate"
    assert fleet.rows[1]["b"] == 5


def test_failing_client_ends_no_run_whose_others_are_behind():
    fleet = Late(quorum=0.25, aggregator="weighted-mean")
    fleet.work(*CLIENTS)
    fleet.send("d")
    fleet.say(Tick(fleet.now + 1.0))
    for _ in range(5):
        fleet.now += 0.05
        fleet.say(Failed(fleet.now, "d", fleet.run.number, "CUDA error"))
    assert (fleet.outcomes, fleet.run.finished) == (["approximate"], False)
    fleet.send(*QUICK)
    fleet.work(*CLIENTS)
    assert fleet.told(Work, "d")[-1].version == 2


def test_client_alone_gets_model_with_its_own_late_update():
    """Its update makes the model of a round without others, and it trains from that one."""
    fleet = all_behind()
    for client in CLIENTS[1:]:
        fleet.say(Lost(fleet.now, client))
    said = fleet.send("a")
    assert [type(each) for each in said] == [Add, Close, Apply, Append, Chose, Work]
    assert said[-1].version == said[2].version == 1


def test_update_of_leaving_client_completes_round():
    fleet = all_behind()
    fleet.say(Leaving(fleet.now, "a", 20.0))
    fleet.send("a")
    assert fleet.outcomes == ["empty", "approximate"]


def test_round_without_clients_ends_once_they_are_gone():
    fleet = all_behind()
    for client in CLIENTS:
        fleet.say(Lost(fleet.now, client))
    assert fleet.run.round is None
    fleet.say(Joined(fleet.now, "b", True, tuple(Held(f"chunk {each}", SAMPLES, "same") for each in CLIENTS)))
    assert fleet.run.round is not None


def test_quorum_is_of_all_clients_also_of_those_behind():
    fleet = Late(quorum=0.5, aggregator="weighted-mean")
    fleet.work(*CLIENTS)
    fleet.send("a", "b")
    for late in ("c", "d"):
        fleet.say(Tick(fleet.now + 1.0))
        before = len(fleet.rows)
        fleet.work(*CLIENTS)
        fleet.send("a")
        fleet.say(Tick(fleet.now + 1.0))
        assert len(fleet.rows) == before, "one quick client makes no model alone"
        fleet.send(late)
        assert {client for client, steps in fleet.rows[-1].items() if steps} == {"a", late}


def test_round_ends_with_updates_of_any_group():
    """Three clients are quick. The slow one completes a round too, with two of them."""
    speeds = Speeds({name: Speed(name, 2.0 if name == LATE else 0.1) for name in CLIENTS})
    fleet = Late(groups="speed", quorum=1.0, aggregator="weighted-mean", speeds=speeds)
    assert fleet.of(Chose)[0].reason.endswith("groups by speed, of 3, 1 clients")
    for _ in range(2):
        fleet.work(*QUICK)
        fleet.send(*QUICK)
        fleet.say(Tick(fleet.now + 1.0))
    assert fleet.rows == [{**dict.fromkeys(QUICK, 5), LATE: 0}] * 2
    fleet.work(*CLIENTS)
    fleet.send("a", "b")
    fleet.say(Tick(fleet.now + 1.0))
    assert len(fleet.rows) == 2, "neither group is complete"
    fleet.send(LATE)
    fleet.say(Tick(fleet.now + 1.0))
    assert fleet.rows[2] == {"a": 5, "b": 5, "c": 0, LATE: 5}


def test_groups_are_made_anew_when_link_is_measured():
    """All clients train alike, and the uplink of one turns out to be slow in its first round."""
    alike = Speeds({name: Speed(name, 0.1, up_bytes_s=400.0, down_bytes_s=400.0) for name in CLIENTS})
    fleet = Late(groups="speed", quorum=0.5, speeds=alike)
    assert "groups" not in fleet.of(Chose)[0].reason
    for _ in range(3):
        fleet.work(*(each for each in CLIENTS if each not in fleet.sending))
        fleet.send(*(each for each in QUICK if each in fleet.sending))
        fleet.say(Tick(fleet.now + 1.0))
        if LATE in fleet.sending:
            reveal = fleet.sending.pop(LATE)
            fleet.say(Codeword(fleet.now, LATE, reveal.round, reveal.attempt, seconds=60.0, size_bytes=400))
    assert fleet.of(Chose)[-1].reason.endswith("groups by speed, of 3, 1 clients")


def test_bounded_mean_has_three_updates_where_there_are_three_clients():
    fleet = Late(quorum=0.25)
    fleet.work(*CLIENTS)
    fleet.send("a", "b")
    fleet.say(Tick(fleet.now + 5.0))
    assert not fleet.rows
    fleet.send("c")
    fleet.say(Tick(fleet.now + 1.0))
    assert fleet.rows == [{**dict.fromkeys(QUICK, 5), LATE: 0}]


def test_round_without_quorum_ends_at_upload_deadline():
    fleet = Late(quorum=1.0, upload_deadline_s=20.0)
    fleet.work(*CLIENTS)
    fleet.send(*QUICK)
    fleet.say(Tick(fleet.now + 19.0))
    assert not fleet.rows
    fleet.say(Tick(fleet.now + 20.0))
    assert fleet.rows == [{**dict.fromkeys(QUICK, 5), LATE: 0}]
    assert fleet.of(Append)[0].awaited == {LATE}


def test_update_that_comes_in_skipped_round_counts_in_next():
    fleet = Late(gate_period=2)
    fleet.work(*CLIENTS)
    fleet.do_round()
    assert fleet.outcomes == ["skipped", "approximate"]
    fleet.send(LATE)
    fleet.work(*QUICK)
    assert fleet.outcomes == ["skipped", "approximate", "skipped"]
    fleet.work(*QUICK)
    fleet.send(*QUICK)
    fleet.say(Tick(fleet.now + 1.0))
    assert fleet.outcomes[-1] == "synced"
    assert fleet.rows[3][LATE] == 10
    assert fleet.of(Apply)[1].weight == pytest.approx(3 * SAMPLES + SAMPLES * math.sqrt(2))


def test_client_whose_update_completes_skipped_round_gets_work():
    fleet = Late(gate_period=2)
    fleet.work(*CLIENTS)
    fleet.do_round()
    fleet.report("a")
    fleet.say(Lost(fleet.now, "c"))
    fleet.report("b")
    assert fleet.outcomes == ["skipped", "approximate"]
    fleet.send(LATE)
    assert fleet.outcomes == ["skipped", "approximate", "skipped"]
    assert fleet.told(Work, LATE)[-1].round == 4
    assert {each.client for each in fleet.of(Continue) if each.round == 4} == {"a", "b"}


def test_client_that_answers_messages_is_left_out_and_not_behind():
    fleet = Late()
    fleet.say(Joined(0.0, LATE, False, fleet.run._clients.present[LATE].holds))
    fleet.do_round()
    assert fleet.told(Close, LATE) == [Close(LATE, 1, "approximate", frees=True)]


def test_client_behind_may_have_worked_since_its_own_model():
    """Others are cut to the time since the newest model, so that no claim distorts a deadline."""
    fleet = behind()
    fleet.send(LATE)
    for _ in range(3):
        fleet.work(*QUICK)
        fleet.send(*QUICK)
        fleet.say(Tick(fleet.now + 1.0))
    report = Report(fleet.now, LATE, 2, 5, SAMPLES, 2.5, 1.0, 0.5)
    fleet.say(report)
    assert fleet.asked.pop() == Reveal(LATE, 2, 0, "local", None)
    fleet.say(report)
    fleet.say(Codeword(fleet.now, LATE, 2, 0, seconds=0.25, size_bytes=400))
    fleet.work(*QUICK)
    fleet.send(*QUICK)
    fleet.say(Tick(fleet.now + 1.0))
    row = next(each for each in fleet.of(Append)[-1].row.clients if each.client == LATE)
    assert (row.counted, row.busy_s) == (5, 2.5)
