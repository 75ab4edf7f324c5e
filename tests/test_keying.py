"""Keys of an epoch: who is in, who is named, and when there are none."""

import dataclasses
import hashlib

import numpy as np
import pytest

from fedgc.errors import NotRecoverable
from fedgc.keying import Keying, Phase
from fedgc.messages import Deal, Failed, Lost, Open, Published, Refuse, Roster, Tick
from fedgc.secagg import Terms, letters, rules
from fedgc.secagg.client import LONGEST_LEAP

MODEL = hashlib.sha256(b"model").digest()
WALL_S = 1000.0  # seconds since 1970 when the server's clock says 0


def keying_of(party, there=None, patience_s=10.0):
    keying = Keying(party.federation, Terms(5, b"settings", MODEL), patience_s, WALL_S)
    assert keying.noted(Published(0.0, 0, MODEL)) == ()
    for device in party.devices if there is None else there:
        assert keying.enrol(party.enrolled(device)) == ()
    return keying


def play(keying, party, commands, silent=(), now=1.0):
    """Carry letters to and fro until nobody says anything more; return all that was commanded."""
    said, todo = list(commands), list(commands)
    while todo:
        command = todo.pop(0)
        if isinstance(command, Refuse) or command.device in silent:
            continue
        new = keying.heard(party.answer(command, now=now, wall=WALL_S + now))
        said += new
        todo += new
    return said


def set_up(keying, party, now=0.0, **how):
    return play(keying, party, keying.open(now, 1), now=now, **how)


def test_a_set_up_makes_keys_that_stand_for_all(party):
    four = party(4)
    keying = keying_of(four)
    said = set_up(keying, four)
    assert keying.phase is Phase.STANDING
    assert [type(each) for each in said] == [Open] * 4 + [Roster] * 4
    assert keying.stands_for(four.devices)
    assert keying.stands_for(four.devices[:3])
    assert not keying.stands_for(four.devices[:2])
    assert set(keying.members) == set(four.devices)
    assert not keying.newcomers


def test_an_exchange_runs_to_its_mean_on_the_keys(party):
    three = party(3)
    keying = keying_of(three)
    set_up(keying, three)
    drawn = keying.draw(three.devices)
    for device in three.devices:
        (begin,) = drawn.begin(device, 7)
        assert (begin.device, begin.round) == (device, 7)
        three.answer(begin)
        assert three.vector(device, np.ones(5, np.float32), 10).size == 6
    assert drawn.begin("a stranger", 7) == ()
    assert set(drawn.member) == set(three.devices)


def test_exchanges_are_numbered_and_run_out(party):
    three = party(3, exchanges=2)
    keying = keying_of(three)
    set_up(keying, three)
    numbers = []
    while keying.stands_for(three.devices):
        drawn = keying.draw(three.devices)
        numbers.append(letters.Begin.unpack(drawn.letter[three.devices[0]]).exchange)
    assert numbers == [1, 2]


def test_what_was_dealt_is_delivered_until_a_vector_shows_that_it_came(party):
    three = party(3)
    keying = keying_of(three)
    set_up(keying, three)

    def deliveries():
        drawn = keying.draw(three.devices)
        return [len(letters.Begin.unpack(drawn.letter[device]).deliveries) for device in three.devices]

    assert deliveries() == [2, 2, 2]
    keying.supplied(three.devices[1])
    assert deliveries() == [2, 0, 2]


def test_one_who_is_silent_is_left_out_when_the_time_is_over(party):
    four = party(4)
    keying = keying_of(four)
    set_up(keying, four, silent=["device 2"])
    assert keying.phase is Phase.OPENING
    assert keying.time_passed(9.9) == ()
    rosters = keying.time_passed(10.0)
    assert sorted(each.device for each in rosters) == ["device 0", "device 1", "device 3"]
    play(keying, four, rosters, now=11.0)
    assert set(keying.members) == {"device 0", "device 1", "device 3"}
    assert not keying.newcomers, "it was asked, and is not asked again before it comes back"
    keying.left("device 2", 12.0)
    keying.enrol(four.enrolled("device 2"))
    assert set(keying.newcomers) == {"device 2"}
    keying.left("device 1", 12.0)
    keying.enrol(four.enrolled("device 1"))
    assert set(keying.newcomers) == {"device 2"}, "who is in the epoch is no newcomer when it comes back"


def test_one_who_leaves_before_its_deal_is_left_out_at_once(party):
    four = party(4)
    keying = keying_of(four)
    set_up(keying, four, silent=["device 2"])
    for command in keying.time_passed(10.0):
        if command.device != "device 3":
            keying.heard(four.answer(command, wall=WALL_S))
    assert keying.phase is Phase.SHARING
    keying.left("device 3", 11.0)
    assert keying.phase is Phase.IDLE
    assert "saw the shares of 2, needed those of 3" in keying.reason


def test_below_a_quorum_there_are_no_keys_and_the_reason_is_told(party):
    three = party(3)
    keying = keying_of(three)
    set_up(keying, three, silent=["device 0"])
    keying.time_passed(10.0)
    assert keying.phase is Phase.IDLE
    assert "saw 2 institutions, needed 3" in keying.reason
    with pytest.raises(NotRecoverable, match="needed a set-up"):
        keying.draw(three.devices)


def test_a_refusal_by_an_institution_is_the_reason(party):
    three = party(3)
    keying = keying_of(three)
    keying.open(0.0, 1)
    keying.failed(Failed(1.0, "device 1", 1, "epoch: saw 1, needed a later one than 4"))
    for device in ("device 0", "device 2"):
        keying.left(device, 1.0)
    assert keying.phase is Phase.IDLE
    assert "device 1: epoch: saw 1" in keying.reason


def test_another_descriptor_is_refused_before_anything_else(party):
    three = party(3)
    keying = keying_of(three, there=())
    (said,) = keying.enrol(dataclasses.replace(three.enrolled("device 0"), descriptor=bytes(32)))
    assert isinstance(said, Refuse)
    assert "compare the files" in said.reason
    (said,) = keying.enrol(dataclasses.replace(three.enrolled("device 0"), member=3))
    assert "saw member 3" in said.reason
    assert not keying.enrolled


def test_a_clock_that_differs_is_named(party):
    three = party(3)
    keying = keying_of(three)
    opens = keying.open(0.0, 1)
    (said, *_) = keying.heard(three.answer(opens[0], wall=WALL_S + 601))
    assert "set the clocks" in said.reason


def test_a_device_is_one_institution_and_an_institution_is_one_device(party):
    three = party(3)
    keying = keying_of(three)
    opens = keying.open(0.0, 1)
    advert = three.answer(opens[0], wall=WALL_S)
    assert keying.heard(advert) == ()
    (said,) = keying.heard(dataclasses.replace(advert, device="device 1"))
    assert isinstance(said, Refuse)
    assert "needed one device for each institution" in said.reason


def test_a_stolen_advert_keeps_its_thief_out_and_nobody_else(party):
    three = party(3)
    keying = keying_of(three, there=["device 0", "device 1", "device 2"])
    opens = {each.device: each for each in keying.open(0.0, 1)}
    for device in ("device 0", "device 1"):
        keying.heard(three.answer(opens[device], wall=WALL_S))
    stolen = dataclasses.replace(three.answer(opens["device 0"], wall=WALL_S), device="device 2")
    assert any(isinstance(each, Refuse) for each in keying.heard(stolen))
    assert keying.phase is Phase.IDLE, "two of three are too few"


def test_a_letter_out_of_turn_is_refused(party):
    three = party(3)
    keying = keying_of(three)
    (said,) = keying.heard(Deal(0.0, "device 0", 1, b"letter"))
    assert "while the keys are idle" in said.reason
    keying.open(0.0, 1)
    (said,) = keying.heard(Deal(0.0, "device 0", 1, b"letter"))
    assert "while the keys are opening" in said.reason


def test_what_is_no_letter_is_refused_and_its_sender_waited_for_no_more(party):
    four = party(4)
    keying = keying_of(four)
    opens = keying.open(0.0, 1)
    bad = dataclasses.replace(four.answer(opens[0], wall=WALL_S), letter=b"rubbish")
    assert isinstance(keying.heard(bad)[0], Refuse)
    said = play(keying, four, opens[1:], now=0.0)
    assert keying.phase is Phase.STANDING
    assert [each.device for each in said if isinstance(each, Roster)] == four.devices[1:]


def test_who_comes_while_keys_are_opened_is_in_and_later_is_not(party):
    four = party(4)
    keying = keying_of(four, there=four.devices[:3])
    opens = keying.open(0.0, 1)
    (late,) = keying.enrol(four.enrolled("device 3"))
    assert isinstance(late, Open)
    rosters = [each for each in play(keying, four, [*opens, late], now=0.0) if isinstance(each, Roster)]
    assert len(rosters) == 4
    assert keying.enrol(four.enrolled("device 0")) == ()


def test_who_comes_back_before_its_deal_gets_the_roster_again(party):
    three = party(3)
    keying = keying_of(three)
    opens = keying.open(0.0, 1)
    rosters = [each for command in opens for each in keying.heard(three.answer(command, wall=WALL_S))]
    again = keying.enrol(three.enrolled("device 1"))
    assert again == tuple(each for each in rosters if each.device == "device 1")


def test_epochs_go_up_past_what_any_institution_has_seen(party):
    three = party(3)
    keying = keying_of(three)
    assert keying.enrol(three.enrolled("device 1", epoch=41)) == ()
    assert letters.Open.unpack(keying.open(0.0, 1)[0].letter).epoch == 42


def test_one_who_claims_a_number_far_beyond_the_others_is_not_followed(party):
    three = party(3)
    keying = keying_of(three)
    assert keying.enrol(three.enrolled("device 1", epoch=LONGEST_LEAP)) == ()
    assert letters.Open.unpack(keying.open(0.0, 1)[0].letter).epoch == 1


@pytest.mark.parametrize("epoch", [1, LONGEST_LEAP - 1])
def test_one_who_claims_less_than_that_is_followed_by_all(party, epoch):
    three = party(3)
    keying = keying_of(three)
    assert keying.enrol(three.enrolled("device 1", epoch=epoch)) == ()
    set_up(keying, three)
    assert keying.phase is Phase.STANDING


CLAIMS = {  # what is no member's word, made from one that is
    "unsigned": {"signature": bytes(64), "device": "a stranger"},
    "of another device": {"device": "a stranger"},
    "as another member": {"member": 2},
    "of another epoch": {"epoch": LONGEST_LEAP - 1},
    "no such member": {"member": 3},
    "of another run": {},
}


@pytest.mark.parametrize("claim", CLAIMS)
@pytest.mark.parametrize("when", ["before", "while opening"])
def test_a_claim_that_no_member_signed_is_not_believed_and_delays_nobody(party, claim, when):
    three = party(3)
    keying = keying_of(three)
    run = "another run" if claim == "of another run" else ""
    said = dataclasses.replace(three.enrolled("device 1", epoch=LONGEST_LEAP, run=run), **CLAIMS[claim])
    if when == "before":
        (refused,) = keying.enrol(said)
        opens = keying.open(0.0, 1)
    else:
        opens = keying.open(0.0, 1)
        (refused,) = keying.enrol(said)
    assert isinstance(refused, Refuse)
    assert refused.device == said.device
    play(keying, three, opens, now=0.0)
    assert keying.phase is Phase.STANDING, "at once: nobody waited for it"
    assert set(keying.members) == set(three.devices)
    assert {client.state.epoch for client in three.clients.values()} == {1}


def test_the_failure_of_a_stranger_is_no_reason(party):
    three = party(3)
    keying = keying_of(three)
    keying.open(0.0, 1)
    keying.failed(Failed(1.0, "a stranger", 1, "nonsense"))
    for device in three.devices:
        keying.left(device, 1.0)
    assert "nonsense" not in keying.reason


def test_a_second_set_up_makes_other_keys(party):
    three = party(3)
    keying = keying_of(three)
    set_up(keying, three)
    set_up(keying, three, now=5.0)
    assert keying.phase is Phase.STANDING
    assert {client.state.epoch for client in three.clients.values()} == {2}


def test_an_exchange_that_a_skipped_round_left_unused_is_gone_on_with(party):
    three = party(3)
    keying = keying_of(three)
    set_up(keying, three)
    first = keying.draw(three.devices, again=True)
    assert keying.draw(three.devices, again=True) is first
    assert keying.draw(three.devices) is not first


def test_an_exchange_is_bound_to_the_model_that_was_published_last(party):
    three = party(3)
    keying = keying_of(three)
    set_up(keying, three)
    assert keying.knows(0)
    assert not keying.knows(1)
    keying.noted(Published(1.0, 1, bytes(32)))
    assert keying.knows(1)
    drawn = keying.draw(three.devices)
    begin = letters.Begin.unpack(drawn.letter["device 0"])
    assert begin.settings == rules.footing(b"settings", 0, 0.0, b"")
    assert drawn.exchange.context == rules.context(
        three.federation, drawn.exchange.known.rho, begin, bytes(32)
    )


def test_an_exchange_is_bound_to_what_leads_its_steps(party):
    three = party(3)
    keying = keying_of(three)
    set_up(keying, three)
    before, now = hashlib.sha256(b"before").digest(), hashlib.sha256(b"now").digest()

    def settings_of(version, digest, steps):
        keying.noted(Published(1.0, version, digest))
        return letters.Begin.unpack(keying.draw(three.devices, steps).letter["device 0"]).settings

    keying.noted(Published(1.0, 4, before))
    assert not keying.knows_before, "version 3 was never published here"
    assert settings_of(5, now, (20, 4.0)) == rules.footing(b"settings", 20, 4.0, before)
    assert keying.knows_before
    assert settings_of(5, now, (20, 0.0)) == rules.footing(b"settings", 20, 0.0, b""), "nothing leads"
    assert settings_of(7, now, (20, 0.0)) == rules.footing(b"settings", 20, 0.0, b"")
    assert not keying.knows_before


def test_events_find_their_way(party):
    three = party(3)
    keying = Keying(three.federation, Terms(5, b"", MODEL), 10.0, WALL_S)
    for device in three.devices:
        assert keying.noted(three.enrolled(device)) == ()
    assert keying.noted(Tick(99.0)) == ()
    assert keying.noted(Failed(0.0, "device 0", 1, "of a round")) == ()
    opens = keying.open(0.0, 1)
    assert keying.busy
    rosters = [each for command in opens for each in keying.noted(three.answer(command, wall=WALL_S))]
    assert len(rosters) == 3
    keying.noted(Failed(0.0, "device 0", 1, "no"))
    assert keying.busy
    keying.noted(Tick(10.0))
    assert keying.phase is Phase.IDLE
    assert "device 0: no" in keying.reason
    keying.noted(Lost(11.0, "device 0"))
    assert set(keying.enrolled) == {"device 1", "device 2"}
