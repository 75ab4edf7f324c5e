"""Test key agreement of an epoch: included sites, named faults, and failure to agree."""

import dataclasses
import hashlib

import numpy as np
import pytest

from fedgc.errors import NotRecoverable
from fedgc.messages import Deal, Failed, Lost, Open, Published, Refuse, Roster, Tick
from fedgc.round.masked.key_agreement import KeyAgreement, Phase
from fedgc.secagg import Terms, packets, rules
from fedgc.secagg.client import LONGEST_LEAP

MODEL = hashlib.sha256(b"model").digest()
WALL_S = 1000.0  # seconds since 1970 when the server's clock says 0


def keying_of(party, there=None, patience_s=10.0, wall=lambda: WALL_S):
    key_agreement = KeyAgreement(party.federation, Terms(5, b"settings", MODEL), patience_s, wall)
    assert key_agreement.noted(Published(0.0, 0, MODEL)) == ()
    for client in party.clients if there is None else there:
        assert key_agreement.enrol(party.enrolled(client)) == ()
    return key_agreement


def play(key_agreement, party, commands, silent=(), now=1.0):
    """Exchange packets until no side sends any more; return all commands."""
    said, todo = list(commands), list(commands)
    while todo:
        command = todo.pop(0)
        if isinstance(command, Refuse) or command.client in silent:
            continue
        new = key_agreement.heard(party.answer(command, now=now, wall=WALL_S + now))
        said += new
        todo += new
    return said


def set_up(key_agreement, party, now=0.0, **how):
    return play(key_agreement, party, key_agreement.open(now, 1), now=now, **how)


def test_set_up_makes_keys_for_all_sites(party):
    four = party(4)
    key_agreement = keying_of(four)
    said = set_up(key_agreement, four)
    assert key_agreement.phase is Phase.STANDING
    assert [type(each) for each in said] == [Open] * 4 + [Roster] * 4
    assert key_agreement.stands_for(four.clients)
    assert key_agreement.stands_for(four.clients[:3])
    assert not key_agreement.stands_for(four.clients[:2])
    assert set(key_agreement.members) == set(four.clients)
    assert not key_agreement.newcomers(1.0)


def test_keys_are_made_after_machine_was_suspended(party):
    """The clock of events stands still meanwhile, those of the sites do not."""
    three, slept_s = party(3), 0.0
    key_agreement = keying_of(three, wall=lambda: WALL_S + slept_s)
    slept_s = 1200.0
    for command in (commands := list(key_agreement.open(1.0, 1))):
        commands += key_agreement.heard(three.answer(command, now=1.0, wall=WALL_S + slept_s))
    assert key_agreement.phase is Phase.STANDING


def test_exchange_reaches_its_mean_with_keys(party):
    three = party(3)
    key_agreement = keying_of(three)
    set_up(key_agreement, three)
    exchange = key_agreement.draw(three.clients)
    for client in three.clients:
        (begin,) = exchange.begin(client, 7)
        assert (begin.client, begin.round) == (client, 7)
        three.answer(begin)
        assert three.vector(client, np.ones(5, np.float32), 10).size == 6
    assert exchange.begin("a stranger", 7) == ()
    assert set(exchange.member) == set(three.clients)


def test_exchanges_are_numbered_and_run_out(party):
    three = party(3, exchanges=2)
    key_agreement = keying_of(three)
    set_up(key_agreement, three)
    numbers = []
    while key_agreement.stands_for(three.clients):
        exchange = key_agreement.draw(three.clients)
        numbers.append(packets.Begin.unpack(exchange.packet[three.clients[0]]).exchange)
    assert numbers == [1, 2]


def test_share_is_redelivered_until_vector_confirms_it(party):
    three = party(3)
    key_agreement = keying_of(three)
    set_up(key_agreement, three)

    def deliveries():
        exchange = key_agreement.draw(three.clients)
        return [len(packets.Begin.unpack(exchange.packet[client]).deliveries) for client in three.clients]

    assert deliveries() == [2, 2, 2]
    key_agreement.supplied(three.clients[1])
    assert deliveries() == [2, 0, 2]


def test_silent_site_is_left_out_at_deadline(party):
    four = party(4)
    key_agreement = keying_of(four)
    set_up(key_agreement, four, silent=["client 2"])
    assert key_agreement.phase is Phase.OPENING
    assert key_agreement.time_passed(9.9) == ()
    rosters = key_agreement.time_passed(10.0)
    assert sorted(each.client for each in rosters) == ["client 0", "client 1", "client 3"]
    play(key_agreement, four, rosters, now=11.0)
    assert set(key_agreement.members) == {"client 0", "client 1", "client 3"}
    assert not key_agreement.newcomers(11.0), "it was asked, and is not asked again before it comes back"
    key_agreement.left("client 2", 12.0)
    key_agreement.enrol(four.enrolled("client 2"))
    assert set(key_agreement.newcomers(12.0)) == {"client 2"}
    key_agreement.left("client 1", 12.0)
    key_agreement.enrol(four.enrolled("client 1"))
    assert set(key_agreement.newcomers(12.0)) == {"client 2"}, (
        "who is in the epoch is no newcomer when it comes back"
    )


def test_site_that_misses_each_set_up_begins_fewer(party):
    """It joins again each time, and never answers: otherwise each round would wait for it."""
    four, now, begun = party(4), 0.0, []
    key_agreement = keying_of(four, wall=lambda: WALL_S + now)
    while now < 3600.0:
        if not key_agreement.stands_for(four.clients[:3]) or key_agreement.newcomers(now):
            begun.append(now)
            set_up(key_agreement, four, now, silent=["client 3"])
            rosters = key_agreement.time_passed(now + 10.0)
            play(key_agreement, four, rosters, now=now + 10.0)
            assert len(key_agreement.members) == 3
        key_agreement.left("client 3", now)
        key_agreement.enrol(four.enrolled("client 3"))
        now += 20.0
    assert begun == [0.0, 20.0, 160.0, 420.0, 920.0, 1900.0]
    set_up(key_agreement, four, now)
    assert len(key_agreement.members) == 4, "a set-up that begins otherwise asks it too"
    key_agreement.left("client 2", now)
    key_agreement.enrol(four.enrolled("client 2"))
    assert not key_agreement.newcomers(now)


def test_site_that_leaves_before_dealing_is_left_out_at_once(party):
    four = party(4)
    key_agreement = keying_of(four)
    set_up(key_agreement, four, silent=["client 2"])
    for command in key_agreement.time_passed(10.0):
        if command.client != "client 3":
            key_agreement.heard(four.answer(command, wall=WALL_S))
    assert key_agreement.phase is Phase.SHARING
    key_agreement.left("client 3", 11.0)
    assert key_agreement.phase is Phase.IDLE
    assert "saw the shares of 2, needed those of 3" in key_agreement.reason


def test_quorum_failure_gives_no_keys_and_reason(party):
    three = party(3)
    key_agreement = keying_of(three)
    set_up(key_agreement, three, silent=["client 0"])
    key_agreement.time_passed(10.0)
    assert key_agreement.phase is Phase.IDLE
    assert "saw 2 sites, needed 3" in key_agreement.reason
    with pytest.raises(NotRecoverable, match="needed a set-up"):
        key_agreement.draw(three.clients)


def test_site_refusal_is_reason(party):
    three = party(3)
    key_agreement = keying_of(three)
    key_agreement.open(0.0, 1)
    key_agreement.failed(Failed(1.0, "client 1", 1, "epoch: saw 1, needed a later one than 4"))
    for client in ("client 0", "client 2"):
        key_agreement.left(client, 1.0)
    assert key_agreement.phase is Phase.IDLE
    assert "client 1: epoch: saw 1" in key_agreement.reason


def test_other_descriptor_is_refused_first(party):
    three = party(3)
    key_agreement = keying_of(three, there=())
    (said,) = key_agreement.enrol(dataclasses.replace(three.enrolled("client 0"), descriptor=bytes(32)))
    assert isinstance(said, Refuse)
    assert "compare the files" in said.reason
    (said,) = key_agreement.enrol(dataclasses.replace(three.enrolled("client 0"), member=3))
    assert "saw member 3" in said.reason
    assert not key_agreement.enrolled
    key_agreement.enrol(three.enrolled("client 0"))
    assert key_agreement.enrolled
    key_agreement.enrol(dataclasses.replace(three.enrolled("client 0"), descriptor=bytes(32)))
    assert not key_agreement.enrolled, "a new process holds another descriptor"


def test_different_clock_is_named(party):
    three = party(3)
    key_agreement = keying_of(three)
    opens = key_agreement.open(0.0, 1)
    (said, *_) = key_agreement.heard(three.answer(opens[0], wall=WALL_S + 601))
    assert "set the clocks" in said.reason


def test_client_and_site_are_one_to_one(party):
    three = party(3)
    key_agreement = keying_of(three)
    opens = key_agreement.open(0.0, 1)
    advert = three.answer(opens[0], wall=WALL_S)
    assert key_agreement.heard(advert) == ()
    (said,) = key_agreement.heard(dataclasses.replace(advert, client="client 1"))
    assert isinstance(said, Refuse)
    assert "needed one client for each site" in said.reason


def test_stolen_advert_excludes_only_its_sender(party):
    three = party(3)
    key_agreement = keying_of(three, there=["client 0", "client 1", "client 2"])
    opens = {each.client: each for each in key_agreement.open(0.0, 1)}
    for client in ("client 0", "client 1"):
        key_agreement.heard(three.answer(opens[client], wall=WALL_S))
    stolen = dataclasses.replace(three.answer(opens["client 0"], wall=WALL_S), client="client 2")
    assert any(isinstance(each, Refuse) for each in key_agreement.heard(stolen))
    assert key_agreement.phase is Phase.IDLE, "two of three are too few"


def test_advert_from_client_of_no_member_is_refused(party):
    four = party(4)
    key_agreement = keying_of(four, there=four.clients[:3])
    opens = key_agreement.open(0.0, 1)
    (late,) = key_agreement.enrol(four.enrolled("client 3"))
    given = dataclasses.replace(four.answer(late, wall=WALL_S), client="a stranger")
    (said,) = key_agreement.heard(given)
    assert (said.client, type(said)) == ("a stranger", Refuse)
    play(key_agreement, four, [*opens, late], now=0.0)
    assert set(key_agreement.members) == set(four.clients)


def test_out_of_turn_packet_is_refused(party):
    three = party(3)
    key_agreement = keying_of(three)
    (said,) = key_agreement.heard(Deal(0.0, "client 0", 1, b"packet"))
    assert "while the keys are idle" in said.reason
    key_agreement.open(0.0, 1)
    (said,) = key_agreement.heard(Deal(0.0, "client 0", 1, b"packet"))
    assert "while the keys are opening" in said.reason


@pytest.mark.parametrize("kind", [Open, Roster])
def test_late_packet_of_epoch_before_excludes_no_site(party, kind):
    three, wall = party(3), WALL_S
    key_agreement = keying_of(three)
    late = []
    for command in (commands := list(key_agreement.open(0.0, 1))):
        answer = three.answer(command, wall=wall)
        if isinstance(command, kind):
            late.append(answer)
        else:
            commands += key_agreement.heard(answer)
    key_agreement.time_passed(10.0)
    assert key_agreement.phase is Phase.IDLE
    for command in (commands := list(key_agreement.open(11.0, 1))):
        answer = three.answer(command, wall=wall)
        if isinstance(command, kind) and late:
            (said,) = key_agreement.heard(late.pop(0))
            assert said.reason == "saw a packet of epoch 1, needed one of 2"
        commands += key_agreement.heard(answer)
    assert key_agreement.phase is Phase.STANDING
    assert set(key_agreement.members) == set(three.clients)


def test_malformed_packet_is_refused_and_sender_is_not_awaited(party):
    four = party(4)
    key_agreement = keying_of(four)
    opens = key_agreement.open(0.0, 1)
    bad = dataclasses.replace(four.answer(opens[0], wall=WALL_S), packet=b"rubbish")
    assert isinstance(key_agreement.heard(bad)[0], Refuse)
    said = play(key_agreement, four, opens[1:], now=0.0)
    assert key_agreement.phase is Phase.STANDING
    assert [each.client for each in said if isinstance(each, Roster)] == four.clients[1:]


def test_site_is_included_only_while_keys_are_opened(party):
    four = party(4)
    key_agreement = keying_of(four, there=four.clients[:3])
    opens = key_agreement.open(0.0, 1)
    (late,) = key_agreement.enrol(four.enrolled("client 3"))
    assert isinstance(late, Open)
    rosters = [
        each for each in play(key_agreement, four, [*opens, late], now=0.0) if isinstance(each, Roster)
    ]
    assert len(rosters) == 4
    assert key_agreement.enrol(four.enrolled("client 0")) == ()


def test_site_that_returns_before_dealing_gets_roster_again(party):
    three = party(3)
    key_agreement = keying_of(three)
    opens = key_agreement.open(0.0, 1)
    rosters = [each for command in opens for each in key_agreement.heard(three.answer(command, wall=WALL_S))]
    again = key_agreement.enrol(three.enrolled("client 1"))
    assert again == tuple(each for each in rosters if each.client == "client 1")


def test_epoch_exceeds_every_seen_epoch(party):
    three = party(3)
    key_agreement = keying_of(three)
    assert key_agreement.enrol(three.enrolled("client 1", epoch=41)) == ()
    assert packets.Open.unpack(key_agreement.open(0.0, 1)[0].packet).epoch == 42


def test_claim_of_far_epoch_is_ignored(party):
    three = party(3)
    key_agreement = keying_of(three)
    assert key_agreement.enrol(three.enrolled("client 1", epoch=LONGEST_LEAP)) == ()
    assert packets.Open.unpack(key_agreement.open(0.0, 1)[0].packet).epoch == 1


@pytest.mark.parametrize("epoch", [1, LONGEST_LEAP - 1])
def test_claim_of_near_epoch_is_followed_by_all(party, epoch):
    three = party(3)
    key_agreement = keying_of(three)
    assert key_agreement.enrol(three.enrolled("client 1", epoch=epoch)) == ()
    set_up(key_agreement, three)
    assert key_agreement.phase is Phase.STANDING


CLAIMS = {  # what is no member's word, made from one that is
    "unsigned": {"signature": bytes(64), "client": "a stranger"},
    "of another client": {"client": "a stranger"},
    "as another member": {"member": 2},
    "of another epoch": {"epoch": LONGEST_LEAP - 1},
    "no such member": {"member": 3},
    "of another run": {},
}


@pytest.mark.parametrize("claim", CLAIMS)
@pytest.mark.parametrize("when", ["before", "while opening"])
def test_unsigned_claim_is_ignored_without_delay(party, claim, when):
    three = party(3)
    key_agreement = keying_of(three)
    run = "another run" if claim == "of another run" else ""
    said = dataclasses.replace(three.enrolled("client 1", epoch=LONGEST_LEAP, run=run), **CLAIMS[claim])
    if when == "before":
        (refused,) = key_agreement.enrol(said)
        opens = key_agreement.open(0.0, 1)
    else:
        opens = key_agreement.open(0.0, 1)
        (refused,) = key_agreement.enrol(said)
    assert isinstance(refused, Refuse)
    assert refused.client == said.client
    play(key_agreement, three, opens, now=0.0)
    assert key_agreement.phase is Phase.STANDING, "at once: nobody waited for it"
    assert set(key_agreement.members) == set(three.clients)
    assert {client.state.epoch for client in three.machines.values()} == {1}


def test_failure_of_non_member_is_no_reason(party):
    three = party(3)
    key_agreement = keying_of(three)
    key_agreement.open(0.0, 1)
    key_agreement.failed(Failed(1.0, "a stranger", 1, "nonsense"))
    for client in three.clients:
        key_agreement.left(client, 1.0)
    assert "nonsense" not in key_agreement.reason


def test_failed_work_of_round_before_excludes_no_site(party):
    three = party(3)
    key_agreement = keying_of(three)
    opens = key_agreement.open(0.0, 2)
    for client in three.clients:
        key_agreement.noted(Failed(1.0, client, 1, "no memory", (0,)))
    assert not key_agreement.reason
    play(key_agreement, three, opens, now=1.0)
    assert set(key_agreement.members) == set(three.clients)


def test_second_set_up_makes_other_keys(party):
    three = party(3)
    key_agreement = keying_of(three)
    set_up(key_agreement, three)
    set_up(key_agreement, three, now=5.0)
    assert key_agreement.phase is Phase.STANDING
    assert {client.state.epoch for client in three.machines.values()} == {2}


def test_exchange_unused_by_skipped_round_is_reused(party):
    three = party(3)
    key_agreement = keying_of(three)
    set_up(key_agreement, three)
    first = key_agreement.draw(three.clients, again=True)
    assert key_agreement.draw(three.clients, again=True) is first
    assert key_agreement.draw(three.clients) is not first


def test_exchange_is_bound_to_last_published_model(party):
    three = party(3)
    key_agreement = keying_of(three)
    set_up(key_agreement, three)
    assert key_agreement.knows(0)
    assert not key_agreement.knows(1)
    key_agreement.noted(Published(1.0, 1, bytes(32)))
    assert key_agreement.knows(1)
    exchange = key_agreement.draw(three.clients)
    begin = packets.Begin.unpack(exchange.packet["client 0"])
    assert begin.settings == rules.footing(b"settings", 0, 0.0, b"")
    assert exchange.exchange.context == rules.context(
        three.federation, exchange.exchange.known.rho, begin, bytes(32)
    )


def test_exchange_is_bound_to_lead_of_its_steps(party):
    three = party(3)
    key_agreement = keying_of(three)
    set_up(key_agreement, three)
    before, now = hashlib.sha256(b"before").digest(), hashlib.sha256(b"now").digest()

    def settings_of(version, digest, steps):
        key_agreement.noted(Published(1.0, version, digest))
        return packets.Begin.unpack(key_agreement.draw(three.clients, steps).packet["client 0"]).settings

    key_agreement.noted(Published(1.0, 4, before))
    assert not key_agreement.knows_before, "version 3 was never published here"
    assert settings_of(5, now, (20, 4.0)) == rules.footing(b"settings", 20, 4.0, before)
    assert key_agreement.knows_before
    assert settings_of(5, now, (20, 0.0)) == rules.footing(b"settings", 20, 0.0, b""), "nothing leads"
    assert settings_of(7, now, (20, 0.0)) == rules.footing(b"settings", 20, 0.0, b"")
    assert not key_agreement.knows_before


def test_events_are_dispatched(party):
    three = party(3)
    key_agreement = KeyAgreement(three.federation, Terms(5, b"", MODEL), 10.0, lambda: WALL_S)
    for client in three.clients:
        assert key_agreement.noted(three.enrolled(client)) == ()
    assert key_agreement.noted(Tick(99.0)) == ()
    assert key_agreement.noted(Failed(0.0, "client 0", 1, "of a round")) == ()
    opens = key_agreement.open(0.0, 1)
    assert key_agreement.busy
    rosters = [each for command in opens for each in key_agreement.noted(three.answer(command, wall=WALL_S))]
    assert len(rosters) == 3
    key_agreement.noted(Failed(0.0, "client 0", 1, "no"))
    assert key_agreement.busy
    key_agreement.noted(Tick(10.0))
    assert key_agreement.phase is Phase.IDLE
    assert "client 0: no" in key_agreement.reason
    key_agreement.noted(Lost(11.0, "client 0"))
    assert set(key_agreement.enrolled) == {"client 1", "client 2"}
