"""Test a hostile server and colluding sites while a sum is unmasked."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest

from fedgc.errors import BadMessage, NotAdmitted, NotRecoverable
from fedgc.secagg import SetUp, rules
from fedgc.secagg.packets import Agree, Deal, Opened, Unlock
from fedgc.secagg.shamir import combine, split


def test_02_split_survivor_sets_unmask_nothing(kit):
    group, _exchange, packet, _, _ = kit.uploaded()
    other = Agree(packet.epoch, packet.exchange, (0, 1, 2, 3))
    signatures = {}
    for member in (0, 1):
        site = group.sites[member]
        signatures[member] = site.take(site.client.agree(other))
    for member in (2, 3, 4):
        site = group.sites[member]
        signatures[member] = site.take(site.client.agree(packet))
    with pytest.raises(NotAdmitted, match="not of this key"):
        group.sites[0].client.unlock(Unlock(1, 1, tuple(sorted((m, signatures[m]) for m in range(4)))))
    honest = tuple((m, signatures[m]) for m in (2, 3, 4))
    with pytest.raises(BadMessage, match="saw 3 signatures, needed 4"):
        group.sites[2].client.unlock(Unlock(1, 1, honest))


def test_02_fewer_than_threshold_signatures_unlock_nothing(kit):
    group, exchange, packet, _, _ = kit.uploaded()
    exchange = group.sign(exchange, packet, (0, 1, 2))
    with pytest.raises(NotRecoverable, match="3 signatures, needed 4"):
        exchange.unlock()
    with pytest.raises(BadMessage, match="saw 3 signatures, needed 4"):
        group.sites[0].client.unlock(Unlock(1, 1, tuple(sorted(exchange.signatures.items()))))


def test_02_signature_cannot_count_twice(kit):
    group, exchange, packet, _, _ = kit.uploaded()
    exchange = group.sign(exchange, packet, (0, 1, 2))
    with pytest.raises(BadMessage, match="each site once"):
        Unlock(1, 1, (*sorted(exchange.signatures.items()), (2, exchange.signatures[2])))


def test_02_signature_of_non_survivor_does_not_count(kit):
    group, exchange, packet, _, _ = kit.uploaded(survivors=(0, 1, 2, 3))
    exchange = group.sign(exchange, packet, (0, 1, 2))
    statement = rules.agreement(group.federation.fid, exchange.context, exchange.survivors)
    outsider = group.sites[4].identity.sign(statement)
    with pytest.raises(BadMessage, match="signature of 4"):
        group.sites[0].client.unlock(Unlock(1, 1, (*sorted(exchange.signatures.items()), (4, outsider))))


def test_02_second_survivor_set_is_refused_after_restart(kit):
    group, _, packet, _, _ = kit.uploaded()
    site = group.sites[0]
    first = site.take(site.client.agree(packet))
    site.restart()
    with pytest.raises(BadMessage, match="one set an exchange"):
        site.client.agree(Agree(1, 1, (0, 1, 2, 3)))
    assert site.take(site.client.agree(packet)) == first


def test_02_second_unlock_is_refused_even_after_restart(kit):
    group, exchange, packet, _, _ = kit.uploaded()
    exchange = group.sign(exchange, packet, range(5))
    site, first = group.sites[0], exchange.unlock()
    given = site.take(site.client.unlock(first))
    site.restart()
    assert site.take(site.client.unlock(first)) == given
    with pytest.raises(BadMessage, match="second one"):
        site.client.unlock(Unlock(1, 1, tuple(sorted(exchange.signatures.items())[1:])))


def test_02_nothing_is_unlocked_before_survivors_are_agreed(kit):
    group, exchange, _, _, _ = kit.uploaded()
    fid, bound = group.federation.fid, exchange.context
    forged = tuple((m, s.identity.sign(rules.agreement(fid, bound, ()))) for m, s in enumerate(group.sites))
    with pytest.raises(BadMessage, match="before any survivors"):
        group.sites[0].client.unlock(Unlock(1, 1, forged))


def test_04_fewer_shares_than_threshold_are_refused(kit):
    group, exchange, packet, _, _ = kit.uploaded()
    exchange = group.open(group.sign(exchange, packet, range(5)), (0, 1, 2))
    with pytest.raises(NotRecoverable, match="shares of 3, needed 4"):
        exchange.masks()
    shares = split(b"secret", 4, (1, 2, 3, 4, 5), bytes(32))
    with pytest.raises(NotRecoverable, match="3 shares, needed 4"):
        combine({point: shares[point] for point in (1, 2, 3)}, 4)


@pytest.mark.parametrize(("epoch", "number"), [(1, 2), (2, 1)])
def test_06_survivors_of_other_exchange_or_epoch_are_refused(kit, epoch, number):
    group, exchange, packet, _, _ = kit.uploaded()
    client = group.sites[0].client
    with pytest.raises(BadMessage, match=f"saw {number} of epoch {epoch}, needed the present"):
        client.agree(replace(packet, epoch=epoch, exchange=number))
    exchange = group.sign(exchange, packet, range(5))
    with pytest.raises(BadMessage, match=f"saw {number} of epoch {epoch}, needed the present"):
        group.sites[0].client.unlock(replace(exchange.unlock(), epoch=epoch, exchange=number))


def test_09_helper_with_false_share_is_named_and_sum_is_exact(kit):
    group, exchange, packet, _vectors, _updates = kit.uploaded()
    exchange = group.sign(exchange, packet, range(5))
    unlock = exchange.unlock()
    opened = [Opened.unpack(s.take(s.client.unlock(unlock))) for s in group.sites]
    owner, share = opened[2].shares[3]
    false = bytes([share[0] ^ 1]) + share[1:]
    lie = replace(opened[2], shares=(*opened[2].shares[:3], (owner, false), *opened[2].shares[4:]))
    with pytest.raises(BadMessage, match="site 002: saw a false share of what site 003 dealt"):
        exchange.open(lie)
    for member in (0, 1, 3, 4):
        exchange = exchange.open(opened[member])
    assert len(exchange.masks()) == 5


@pytest.mark.parametrize("survives", [True, False])
def test_09_dealer_of_shares_of_other_secret_is_named(kit, survives):
    group = kit.make(5)
    adverts = group.adverts()
    liar = group.sites[1]
    wrong = {at: bytes(b ^ 1 for b in pair) for at, pair in liar.client.state.own.items()}
    liar.client = replace(liar.client, state=replace(liar.client.state, own=wrong))
    setup = SetUp(group.federation, 1)
    for advert in adverts:
        setup = setup.admit(advert, kit.now)
    setup, roster = setup.roster()
    for site in group.sites:
        setup = setup.receive(Deal.unpack(site.take(site.client.join(roster, kit.now, next(site.entropy)))))
    exchange, _ = group.begin(setup.close(), 1, range(5), kit.size)
    who = range(5) if survives else (0, 2, 3, 4)
    for member in who:
        group.sites[member].upload(np.zeros(kit.size, np.float32), 1)
    exchange, packet = group.collect(exchange, who)
    exchange = group.open(group.sign(exchange, packet, who), who)
    with pytest.raises(NotRecoverable, match="site 001 dealt shares of another secret"):
        exchange.masks()


@pytest.mark.parametrize(
    ("survivors", "reason"),
    [
        ((1, 2, 3, 4), "needed 0"),
        ((0, 1, 2), "saw 3 sites, needed 4"),
        ((0, 1, 2, 3, 9), "needed some of"),
    ],
)
def test_10_survivors_without_self_or_unknown_are_refused(kit, survivors, reason):
    group, *_ = kit.uploaded()
    with pytest.raises(BadMessage, match=reason):
        group.sites[0].client.agree(Agree(1, 1, survivors))


def test_10_survivors_are_not_signed_before_vector_is_sent(kit):
    group, *_ = kit.started()
    with pytest.raises(BadMessage, match="before the vector was sent"):
        group.sites[0].client.agree(Agree(1, 1, (0, 1, 2, 3)))


def test_13_shares_of_other_exchange_are_refused(kit):
    group, epoch, exchange, _, updates, weights = kit.started()
    opened = {}
    for number in (1, 2):
        if number == 2:
            exchange, _ = group.begin(epoch, 2, range(5), kit.size, hashlib.sha256(b"the next").digest())
        for member, site in enumerate(group.sites):
            site.upload(updates[member], weights[member])
        exchange, packet = group.collect(exchange, range(5))
        exchange = group.sign(exchange, packet, range(5))
        opened[number] = Opened.unpack(group.sites[0].take(group.sites[0].client.unlock(exchange.unlock())))
    with pytest.raises(BadMessage, match="shares of another exchange"):
        exchange.open(opened[1])
    with pytest.raises(BadMessage, match="a false share"):
        exchange.open(replace(opened[1], exchange=2))
