"""Test masked runs with the real machines of both sides: keys, rounds, losses, refusals."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from fedgc.errors import Refused
from fedgc.messages import (
    Add,
    Advert,
    Begin,
    Close,
    Codeword,
    Deal,
    Enrolled,
    Failed,
    Held,
    Joined,
    Leaving,
    Open,
    Refuse,
    Reveal,
    Roster,
    Shares,
    Signed,
    Stop,
    Survivors,
    Tick,
    Unmask,
    Work,
)
from fedgc.round.machine import State
from fedgc.run.machine import Chose
from fedgc.secagg import Client, SetUp, packets
from fedgc.secagg.canonical import unpack
from fedgc.secagg.client import LONGEST_LEAP
from tests.masked_fleet import SIZE, STEPS, Fleet
from tests.party import Party


@pytest.fixture
def fleet(party):
    return lambda count=4, **settings: Fleet(party, count, **settings)


@pytest.mark.parametrize("work", ["coded", "local"])
def test_masked_run_trains_and_means_equal_plain_means(fleet, work):
    one = fleet(4, work=work, gate="every")
    one.join()
    one.drive()
    assert one.finished.complete, one.finished
    assert one.outcomes() == ["synced"] * 3
    for at in range(3):
        one.check(at, at + 1, one.party.clients)
    assert all(row.loss is None for row in one.rows)
    assert [client.counted > 0 for client in one.rows[0].clients] == [True] * 4
    assert [row.discarded for row in one.rows] == [0] * 3
    assert [row.blocks for row in one.rows] == [int(work == "coded")] * 3


@pytest.mark.parametrize("late", [False, True], ids=["one never comes", "all come at the last moment"])
def test_keys_are_set_up_when_minimum_is_reached(fleet, late):
    one = fleet(5, **{"min_clients": 5 if late else 4, "start_timeout_s": 20.0})
    if late:
        one.now = 19.995
    one.join(*one.party.clients[: None if late else 4])
    one.drive()
    assert one.finished.complete, one.finished
    assert one.outcomes() == ["synced"] * 3


def test_sites_with_quorum_below_minimum_do_not_begin(fleet):
    one = fleet(5, **{"min_clients": 5, "start_timeout_s": 20.0})
    one.join(*one.party.clients[:4])
    one.drive()
    assert one.rows == []
    assert one.finished.reason == "waited 20 s for 5 clients, saw 4; min-clients = 4 begins with them"


def test_unreported_local_work_counts_with_its_vector(fleet):
    one = fleet(4, work="local", gate="every", rounds=1)
    one.join()
    slow = one.party.clients[0]
    one.drive(lambda f: any(isinstance(each, Work) and each.client == slow for each in f.unsent))
    (work,) = [each for each in one.unsent if each.client == slow and isinstance(each, Work)]
    one.unsent.remove(work)
    one.answer(work)  # it trains, and its report is lost
    one.drive()
    row = one.rows[0]
    one.check(0, 1, one.party.clients)
    assert (row.clients[0].finished, row.clients[0].steps) == (1, 0)
    assert all(client.counted == client.finished for client in row.clients)
    assert row.discarded == 0


@pytest.mark.parametrize("work", ["coded", "local"])
def test_leaving_site_sends_its_vector_and_helps_to_unmask(fleet, work):
    """It says nothing of its steps, so the exchange is forced for it in any case."""
    one = fleet(5, work=work, gate="every", gate_period=9, rounds=3)
    one.join()
    one.drive(until=lambda fleet: fleet.count(Work) == 5 and fleet.unsent)
    leaver = one.party.clients[0]
    one.say(Leaving(one.now, leaver, 20.0))
    one.drive(until=lambda fleet: len(fleet.rows) == 1)
    assert one.outcomes() == ["synced"]
    assert one.rows[0].reason == f"client {leaver} is leaving"
    assert leaver in one.added[0][1]
    one.lose(leaver)
    one.drive()
    assert one.outcomes()[1:] == ["skipped", "synced"]
    assert leaver not in one.added[1][1]


def test_local_work_of_site_lost_while_uploading_is_discarded(fleet):
    one = fleet(4, work="local", gate="every", rounds=1)
    one.join()
    first = one.party.clients[0]
    one.drive(lambda f: any(isinstance(each, Reveal) and each.client == first for each in f.unsent))
    one.lose(first)
    one.drive()
    assert one.rows[0].discarded == one.config.round_steps


def test_slow_sites_join_sum_with_chunks_assigned_by_speed(fleet):
    one = fleet(4, rounds=4)
    one.shared = tuple(f"chunk {number}" for number in range(4))
    one.step_s = dict(zip(one.party.clients, (0.1, 0.1, 1.0, 1.0), strict=True))
    one.join()
    one.drive()
    assert one.outcomes() == ["synced"] * 4, [row.reason for row in one.rows]
    assert one.count(Chose) > 1, "it was planned anew once the speeds were known"
    for at in range(4):
        one.check(at, at + 1, one.party.clients)


def footings(fleet):
    """The clients of each round's exchange, and whether it has a lead."""
    told = {}
    for each in fleet.log:
        if isinstance(each, Begin):
            _, _, first, common, before = unpack(packets.Begin.unpack(each.packet).settings)
            told.setdefault(each.round, set()).add((each.client, first, common, bool(before)))
    return told


@pytest.mark.parametrize("lost", [True, False])
def test_shared_momentum_leads_all_sites_or_none(fleet, lost):
    one = fleet(4, work="local", gate="every", rounds=4)
    one.join()
    one.drive(lambda f: any(isinstance(each, Unmask) for each in f.unsent))
    if lost:
        one.lose(one.party.clients[0])
    one.join(one.party.clients[0])  # a new process: it has not seen the model before
    one.drive()
    steps = float(one.config.round_steps)
    told, everybody = footings(one), one.party.clients
    assert told[1] == {(client, 0, 0.0, False) for client in everybody}
    assert told[2] == {(client, steps, steps, True) for client in everybody[1:]}
    assert told[4] == {(client, 3 * steps, steps, True) for client in everybody}
    works = [each for each in one.log if isinstance(each, Work) and each.round == 2]
    assert {each.common_steps for each in works} == {steps}


def test_momentum_leads_none_if_too_few_sites_know_model(fleet):
    before, one = fleet(4, work="local", gate="every"), fleet(4, work="local", gate="every")
    before.join()
    before.drive(lambda f: len(f.rows) == 1)
    state = before.run.state()
    assert state.common_steps > 0
    one.models[1] = before.models[1]
    one.restart_server(state)
    one.join()
    one.drive()
    steps = one.config.round_steps
    assert footings(one) == {
        2: {(client, steps, 0.0, False) for client in one.party.clients},
        3: {(client, 2 * steps, float(steps), True) for client in one.party.clients},
    }
    works = {(each.round, each.common_steps) for each in one.log if isinstance(each, Work)}
    assert works == {(2, 0.0), (3, float(steps))}
    assert one.outcomes() == ["synced"] * 2


def test_steps_of_skipped_round_with_lost_site_count_once(fleet):
    one = fleet(4, work="local", gate="every", rounds=2, quorum=1.0, **{"gate_period": 2})
    one.join()
    one.drive(lambda f: any(isinstance(each, Work) for each in f.unsent))
    one.lose(one.party.clients[0])
    one.drive()
    assert one.outcomes() == ["skipped", "synced"]
    steps = one.config.round_steps
    assert [[client.steps for client in row.clients] for row in one.rows] == [[0] + [steps] * 3, [steps] * 3]
    assert [each.target for each in one.log if isinstance(each, Work) and each.round == 2] == [2 * steps] * 3


def test_led_steps_are_dropped_when_same_model_leads_none(fleet):
    one = fleet(4, work="local", gate="every", rounds=9, quorum=1.0, **{"gate_period": 2})
    one.join()
    one.drive(lambda f: f.outcomes() == ["skipped", "synced"])
    *others, last = one.party.clients
    one.drive(lambda f: any(isinstance(each, Work) and each.round == 3 for each in f.unsent))
    for client in others:
        one.lose(client)
    one.drive(lambda f: len(f.rows) == 3)
    assert one.outcomes()[2] == "skipped"
    one.join(*others)  # new processes: they have not seen the model before
    one.drive(lambda f: f.run.round is not None)
    assert one.run.round.assignment.common_steps == ()
    assert one.run.round.summary.reached[last] == 0


def test_large_and_tiny_exchanges_share_keys_of_many_rounds(fleet):
    one = fleet(3, rounds=5)  # the party's descriptor has 3 exchanges an epoch
    one.join()
    one.drive()
    assert one.outcomes() == ["synced"] * 5
    assert one.count(Open) == one.count(Roster) == 2 * 3
    for kind in (Work, Begin, Reveal, Survivors, Unmask):
        assert one.count(kind) == 5 * 3


def test_server_asks_only_for_masked_vectors(fleet):
    one = fleet(4)
    one.join()
    one.drive()
    reveals = [each for each in one.log if isinstance(each, Reveal)]
    assert reveals
    assert {(each.kind, each.mix) for each in reveals} == {("masked", None)}
    assert {each.ring.words for each in reveals} == {SIZE + 1}


@pytest.mark.parametrize("work", ["coded", "local"])
@pytest.mark.parametrize("step", STEPS)
def test_loss_of_one_in_four_at_any_point_gives_sum_of_others(fleet, work, step):
    one = fleet(4, work=work, gate="every", quorum=1.0)
    one.join()
    first = one.party.clients[0]
    kind = {"work": Work, "reveal": Reveal, "sign": Survivors, "open": Unmask}[step]
    one.drive(lambda f: any(isinstance(each, kind) and each.client == first for each in f.unsent))
    one.lose(first)
    one.drive()
    assert one.finished.complete
    counted = one.party.clients[1:] if step in ("work", "reveal") else one.party.clients
    one.check(0, 1, counted)
    one.check(1, 2, one.party.clients[1:])
    assert one.outcomes()[0] == ("approximate" if step in ("work", "reveal") else "synced")


@pytest.mark.parametrize("step", STEPS[1:3])
def test_too_many_losses_abort_round_without_sum(fleet, step):
    one = fleet(4)
    one.join()
    kind = {"reveal": Reveal, "sign": Survivors}[step]
    one.drive(lambda f: any(isinstance(each, kind) for each in f.unsent))
    for client in one.party.clients[:2]:
        one.lose(client)
    one.drive(lambda f: f.rows)
    assert one.outcomes() == ["aborted"]
    assert one.means == []
    assert one.run.version == 0
    one.join(*one.party.clients[:2])
    one.drive()
    assert one.outcomes()[1:] == ["synced"] * 2
    numbers = dict.fromkeys(one.updates)
    assert len(numbers) >= 8, "the updates of the aborted round were masked anew, with other keys"


def lost_while_unmasking(fleet):
    """Four sites, of which one gave its shares and three are lost."""
    one = fleet(4)
    one.join()
    one.drive(lambda f: sum(isinstance(each, Unmask) for each in f.unsent) == 4)
    take(one, one.party.clients[0], Unmask)
    for client in one.party.clients[1:]:
        one.lose(client)
    return one


def test_second_sum_of_model_is_not_requested_and_run_ends(fleet):
    one = lost_while_unmasking(fleet)
    one.drive()
    assert one.outcomes() == ["aborted"]
    assert one.rows[0].reason == "too few shares in 180 s"
    assert not one.finished.complete
    assert one.finished.reason.startswith(
        "too few shares in 180 s; round 1: its sum was asked for and made no"
    )
    assert one.count(Begin) == 4


def test_sites_lost_before_giving_shares_may_return(fleet):
    one = lost_while_unmasking(fleet)
    one.now += 120
    one.say(Tick(one.now))
    assert not one.rows, "Flower starts a client's app again a minute after it has died, and more"
    one.join(*one.party.clients[1:3])
    one.drive(lambda f: f.rows)
    one.check(0, 1, one.party.clients)
    one.join(one.party.clients[3])
    one.drive()
    assert one.finished.complete
    assert one.outcomes() == ["synced"] * 3


@pytest.mark.parametrize("work", ["coded", "local"])
def test_server_that_lost_unmasked_sum_cannot_resume_from_model(fleet, work):
    """The server died before it stored the new model: the sites refuse to mask, with a reason."""
    one = fleet(4, work=work, gate="every", **{"min_clients": 3})
    one.join()
    one.drive(lambda f: f.means)
    one.restart_server()
    one.join(*one.party.clients[1:])
    one.drive()
    assert not one.finished.complete
    assert "two sums of one model tell single updates" in one.finished.reason
    assert len(one.means) == 1
    assert {each.outcome for each in one.rows} <= {"synced", "aborted", "empty"}


def test_no_site_trains_below_quorum(fleet):
    one = fleet(4)
    one.join(*one.party.clients[:2])
    one.drive()
    assert not one.finished.complete
    assert "waited 120 s for 4 clients, saw 2" in one.finished.reason
    assert one.count(Work) == one.count(Open) == 0


def test_late_site_joins_with_next_keys(fleet):
    one = fleet(4, rounds=3, **{"min_clients": 3})
    one.join(*one.party.clients[:3])
    one.drive(lambda f: f.rows)
    one.join(one.party.clients[3])
    one.drive()
    assert one.outcomes() == ["synced"] * 3
    one.check(0, 1, one.party.clients[:3])
    one.check(2, 3, one.party.clients)


def test_site_that_returns_between_upload_and_signature_signs(fleet):
    one = fleet(3)
    one.join()
    first = one.party.clients[0]
    one.drive(lambda f: any(isinstance(each, Survivors) and each.client == first for each in f.unsent))
    one.unsent = [each for each in one.unsent if each.client != first]
    one.say(Joined(one.now, first, True, tuple(Held(f"chunk 0-{half}", 1) for half in range(2))))
    one.drive()
    assert one.outcomes() == ["synced"] * 3


def return_at_once(one, client):
    """A client is lost and returns at once, with its keys."""
    at = one.party.clients.index(client)
    one.lose(client)
    one.away.discard(client)
    one.say(Joined(one.now, client, True, tuple(Held(f"chunk {at}-{half}", 1) for half in range(2))))


@pytest.mark.parametrize("work", ["coded", "local"])
@pytest.mark.parametrize("kind", [Survivors, Unmask])
def test_returning_site_may_answer_for_site_lost_later(fleet, work, kind):
    one = fleet(4, work=work, gate="every", rounds=1)
    one.join()
    first, second = one.party.clients[:2]
    one.drive(lambda f: any(isinstance(each, kind) and each.client == first for each in f.unsent))
    return_at_once(one, first)
    one.lose(second)
    one.drive()
    assert one.outcomes() == ["synced"]
    one.check(0, 1, one.party.clients)


@pytest.mark.parametrize("work", ["coded", "local"])
def test_site_lost_twice_is_not_counted_on(fleet, work):
    one = fleet(4, work=work, gate="every", rounds=1)
    one.join()
    first, second = one.party.clients[:2]
    one.drive(lambda f: any(isinstance(each, Survivors) for each in f.unsent))
    return_at_once(one, first)
    one.lose(first)
    one.lose(second)
    assert one.outcomes() == ["aborted"]


@pytest.mark.parametrize("work", ["coded", "local"])
@pytest.mark.parametrize("kind", [Survivors, Unmask])
def test_sites_refusing_to_answer_are_not_awaited(fleet, work, kind):
    one = fleet(4, work=work, gate="every", rounds=1)
    one.join()
    first, second = one.party.clients[:2]
    one.drive(lambda f: sum(isinstance(each, kind) for each in f.unsent) == 4)
    for client in (first, second):
        assert not one.rows, "three of four are enough"
        one.unsent = [each for each in one.unsent if each.client != client]
        one.say(Failed(one.now, client, 1, "the packet is not signed as agreed"))
    assert one.outcomes() == ["aborted"]
    assert "too few sites are left" in one.rows[0].reason


def take(one, client, kind):
    """Let a client answer its command of this kind."""
    for command in [each for each in one.unsent if each.client == client and isinstance(each, kind)]:
        one.unsent.remove(command)
        for event in one.answer(command):
            one.say(event)


@pytest.mark.parametrize("kind", [Reveal, Survivors])
def test_answers_of_lost_sites_are_not_awaited(fleet, kind):
    one = fleet(4, work="local", gate="every", rounds=1)
    one.join()
    one.drive(lambda f: [type(each) for each in f.unsent] == [kind] * 4)
    now = one.now
    for client in one.party.clients:
        take(one, client, kind)
        if client in one.party.clients[:2] and not one.rows:
            one.lose(client)
    assert one.outcomes() == ["aborted"]
    assert one.now == now, "that too few are left was known before anybody was asked"


@pytest.mark.parametrize("kind", [Survivors, Unmask])
def test_refusing_site_is_counted_on_after_return(fleet, kind):
    one = fleet(4, gate="every", rounds=1)
    one.join()
    first, second = one.party.clients[:2]
    one.drive(lambda f: sum(isinstance(each, kind) for each in f.unsent) == 4)
    one.unsent = [each for each in one.unsent if each.client != first]
    one.say(Failed(one.now, first, 1, "the disk is full"))
    return_at_once(one, first)
    one.lose(second)
    one.drive()
    assert one.outcomes() == ["synced"]


@pytest.mark.parametrize("work", ["coded", "local"])
def test_returning_site_with_delivered_vector_is_released(fleet, work):
    one = fleet(4, work=work, gate="every", rounds=1)
    one.join()
    first = one.party.clients[0]
    one.drive(lambda f: any(isinstance(each, Add) and each.client == first for each in f.log))
    assert one.run.round.state is State.COLLECTING
    before = one.count(Work)
    return_at_once(one, first)
    one.drive()
    assert one.count(Work) == before, "it owes nothing"
    assert one.outcomes() == ["synced"]
    assert [each.client for each in one.log if isinstance(each, Close)] == one.party.clients


def test_skipped_rounds_use_no_exchange(fleet):
    one = fleet(3, **{"gate": "every", "gate_period": 3, "rounds": 6})
    one.join()
    one.drive()
    assert one.outcomes() == ["skipped", "skipped", "synced"] * 2
    assert len(one.means) == 2
    assert one.count(Open) == 3, "three exchanges an epoch: two were used"


def test_other_descriptor_is_refused_before_training(fleet):
    one = fleet(3)
    one.join(*one.party.clients[:2])
    client = one.party.clients[2]
    one.say(Joined(one.now, client, True, (Held("chunk 2-0", 1),)))
    one.say(Enrolled(one.now, client, bytes(32), 2, 0, bytes(64)))
    assert any(isinstance(each, Refuse) and "compare the files" in each.reason for each in one.log)
    one.drive()
    assert "waited 120 s for 3 clients, saw 2" in one.finished.reason
    assert one.count(Work) == 0


def test_impossible_key_set_up_ends_run_with_reason(fleet, monkeypatch):
    one = fleet(3)
    wall = one.party.answer
    monkeypatch.setattr(one.party, "answer", lambda command, now, _, model: wall(command, now, now + 5000.0))
    one.join()
    one.drive()
    assert "no keys after 3 set-ups" in one.finished.reason
    assert "set the clocks" in one.finished.reason
    assert one.count(Work) == 0


def test_reason_of_failed_set_up_is_short(fleet, monkeypatch):
    one = fleet(3)

    def refuse(*_):
        raise Refused(f"deal: saw {[2**64 - 1] * 70_000}, needed each holder once")

    monkeypatch.setattr(SetUp, "receive", refuse)
    one.join()
    one.drive()
    assert "no keys after 3 set-ups" in one.finished.reason
    assert "deal: saw [1844" in one.finished.reason
    assert len(one.finished.reason) < 1000


def test_stop_ends_masked_run_at_any_point(fleet):
    for kind in (Open, Roster, Work, Reveal, Survivors, Unmask):
        one = fleet(3)
        one.join()
        one.drive(lambda f, kind=kind: any(isinstance(each, kind) for each in f.unsent))
        one.say(Stop(one.now, "enough"))
        assert one.finished.reason == "enough"


def test_silence_ends_every_phase(fleet):
    for kind, outcome in ((Reveal, "aborted"), (Survivors, "aborted"), (Unmask, "aborted")):
        one = fleet(3)
        one.join()
        one.drive(lambda f, kind=kind: any(isinstance(each, kind) for each in f.unsent))
        one.unsent.clear()
        one.drive(lambda f: f.rows)
        assert one.outcomes() == [outcome]
        assert "too few" in one.rows[0].reason or "saw 0 vectors" in one.rows[0].reason


@pytest.mark.parametrize("state", [State.WORKING, State.AGREEING])
def test_shares_beyond_those_needed_are_no_fault_in_next_round(fleet, state):
    """The last of four sites answers after three, who are enough; the next round is under way by then."""
    one = fleet(4, gate="every")
    one.join()
    one.drive(lambda f: f.count(Unmask) == 4 and not any(isinstance(each, Survivors) for each in f.unsent))
    late = next(each for each in reversed(one.unsent) if isinstance(each, Unmask))
    one.unsent.remove(late)
    answers = one.answer(late)  # on their way
    one.drive(lambda f: len(f.rows) == 1 and f.run.round is not None and f.run.round.state is state)
    for answer in answers:
        one.say(answer)
    one.drive()
    assert one.outcomes() == ["synced"] * 3
    assert [each for each in one.log if isinstance(each, Refuse)] == []
    assert [client.refused for row in one.rows for client in row.clients] == [0] * 12


def test_foreign_packet_is_refused_and_named(fleet):
    one = fleet(3)
    one.join()
    one.drive(lambda f: f.run.round and f.run.round.state is State.AGREEING)
    before = len(one.log)
    client = one.party.clients[0]
    one.say(Signed(one.now, client, 1, bytes(64)))
    one.say(Shares(one.now, client, 1, b"packet"))
    one.say(Signed(one.now, client, 7, bytes(64)))
    one.say(Advert(one.now, client, 1, b"packet"))
    one.say(Deal(one.now, client, 1, b"packet"))
    one.say(Codeword(one.now, client, 1, 0))
    reasons = [each.reason for each in one.log[before:] if isinstance(each, Refuse)]
    assert len(reasons) == 6
    assert "not of this key" in reasons[0]
    one.drive()
    assert one.outcomes() == ["synced"] * 3


@pytest.mark.parametrize("lost", list(itertools.combinations(range(5), 1)))
def test_any_of_five_sites_may_be_lost_while_uploading(fleet, lost):
    one = fleet(5, rounds=1)
    one.join()
    one.drive(lambda f: any(isinstance(each, Reveal) for each in f.unsent))
    gone = [one.party.clients[at] for at in lost]
    for client in gone:
        one.lose(client)
    one.drive()
    one.check(0, 1, [client for client in one.party.clients if client not in gone])


class Chance:
    """Faults at random moments: losses, new processes, a dying server, false packets."""

    def __init__(self, one, rng):
        self.one, self.rng, self.kept = one, rng, None

    def happen(self):
        one, rng = self.one, self.rng
        if rng.random() < 0.3:  # some checkpoints come late
            self.kept = one.run.state()
        if any(model == one.model for _, model in one.given) and rng.random() < 0.1:
            self.disaster()
        if not one.unsent and rng.random() < 0.8:  # else all wait until the timeout
            one.join(*one.away)
        client = one.party.clients[rng.integers(len(one.party.clients))]
        match rng.integers(100):
            case 0 | 1 if client not in one.away:
                one.lose(client)
            case 2 | 3 | 4 if client in one.away:
                self.restart(client)
            case 5 if client not in one.away:
                return_at_once(one, client)
            case 6:
                self.claim()

    def disaster(self):
        """After a site gave its shares: all others are lost, or the server dies."""
        if self.rng.random() < 0.5:
            self.one.restart_server(self.kept)
            self.one.join()
        else:
            for client in self.one.party.clients[1:]:
                self.one.lose(client)

    def restart(self, client):
        machine = self.one.party.machines[client]
        again = Client.start(machine.federation, machine.identity, machine.state.records())
        self.one.party.machines[client] = again
        self.one.join(client)

    def claim(self):
        """A non-member claims membership, or a member's client sends an unsigned claim."""
        one, rng = self.one, self.rng
        client = str(rng.choice([*one.party.clients, "a stranger"]))
        said = one.party.enrolled(one.party.clients[0], one.now, int(rng.choice([0, 7, LONGEST_LEAP])))
        if client == said.client:
            said = dataclasses.replace(said, epoch=said.epoch + 1)
        one.say(Joined(one.now, "a stranger", True, (Held("of nobody", 1),)))
        one.say(dataclasses.replace(said, client=client))


@given(
    count=st.integers(3, 6),
    work=st.sampled_from(["coded", "local"]),
    period=st.integers(1, 2),
    seed=st.integers(0, 2**32 - 1),
)
@hypothesis_settings(max_examples=hypothesis_settings.default.max_examples // 4)
def test_no_model_has_two_sums_and_every_sum_is_correct(party, count, work, period, seed):
    one = Fleet(party, count, work=work, rounds=6, gate="every", **{"gate_period": period, "min_clients": 3})
    chance = Chance(one, np.random.default_rng(seed))
    one.join()
    for _ in range(400):
        if one.finished:
            break
        chance.happen()
        one.step()
    one.join(*one.away)
    one.drive()
    assert len(set(one.summed)) == len(one.summed), "two sums of one model"
    for which, (round_, clients) in enumerate(one.added):
        one.check(which, round_, clients)
    assert all(len(packets_) == 1 for packets_ in one.given.values()), "shares for two sums of one model"
    assert not one.run._key_agreement.enrolled - set(one.party.clients), "a stranger is in"


def test_run_with_sparse_graph_survives_lost_sites():
    one = Fleet(lambda count: Party(count, colluders=2), 24, work="local", gate="every")
    one.join()
    one.drive(until=lambda fleet: fleet.count(Add) == 5)
    machines = one.party.machines
    state, number = machines["client 23"].state, machines["client 23"].number
    drew = state.drew[state.sources.index(number)]
    first, second = (client for client in one.party.clients if machines[client].number in drew[:2])
    one.lose(first)
    one.drive(until=lambda fleet: len(fleet.rows) == 1)
    one.lose(second)  # one has drawn both, and lacks a neighbor: the next keys are of the 22 that are left
    one.drive()
    assert one.finished.complete, one.finished
    assert (one.outcomes()[0], one.outcomes()[-1]) == ("synced", "synced")
    assert any("of 9 neighbors that it drew" in row.reason for row in one.rows)
    for at, (round_, clients) in enumerate(one.added):
        one.check(at, round_, clients)
