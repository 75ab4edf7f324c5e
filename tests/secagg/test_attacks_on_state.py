"""Test crashes, repeated packets, and the erasure of secrets."""

import numpy as np
import pytest

from fedgc.errors import BadMessage, FedgcError
from fedgc.secagg import RingSum, SetUp
from fedgc.secagg.packets import Advert, Agree, Deal, Open, Opened


def test_12_crash_between_record_and_reply_repeats_first_answer(kit):
    group = kit.make(3)
    packet = Open(group.federation.fid, 1)
    firsts = [site.take(site.client.open(packet, kit.now, next(site.entropy))) for site in group.sites]
    for site, first in zip(group.sites, firsts, strict=True):
        site.restart()
        assert site.take(site.client.open(packet, kit.now + 5, next(site.entropy))) == first
    setup = SetUp(group.federation, 1)
    for first in firsts:
        setup = setup.admit(Advert.unpack(first), kit.now)
    setup, roster = setup.roster()
    for site in group.sites:
        deal = site.take(site.client.join(roster, kit.now, next(site.entropy)))
        site.restart()
        assert site.take(site.client.join(roster, kit.now, next(site.entropy))) == deal
        setup = setup.receive(Deal.unpack(deal))
    updates, weights = kit.vectors(3, kit.size)
    exchange, out = group.begin(setup.close(), 1, range(3), kit.size)
    ring = RingSum(group.federation.quantizer, kit.size)
    for member, site in enumerate(group.sites):
        site.restart()
        assert site.take(site.client.begin(out[member], kit.model)) is None  # it may still be trained
        ring.add(site.upload(updates[member], weights[member]))
        site.restart()
        with pytest.raises(BadMessage, match="its vector is gone"):
            site.client.begin(out[member], kit.model)
    exchange, agree = group.collect(exchange, range(3))
    for member, site in enumerate(group.sites):
        signature = site.take(site.client.agree(agree))
        site.restart()
        assert site.take(site.client.agree(agree)) == signature
        exchange = exchange.sign(member, signature)
    for site in group.sites:
        opened = site.take(site.client.unlock(exchange.unlock()))
        site.restart()
        assert site.take(site.client.unlock(exchange.unlock())) == opened
        exchange = exchange.open(Opened.unpack(opened))
    ring.remove(exchange.masks())
    assert ring.mean()[1] == sum(weights.values())


def test_12_repeated_roster_after_shares_is_refused(kit):
    group, *_ = kit.started(3)
    for restart in (False, True):
        site = group.sites[0]
        if restart:
            site.restart()
        with pytest.raises(BadMessage, match="roster: saw it for epoch 1 after the exchanges began"):
            site.client.join(site.client.state.known.roster, kit.now, next(site.entropy))


def test_12_crash_before_record_leaves_exchange_unused(kit):
    group, _epoch, _exchange, out, updates, weights = kit.started(3)
    site = group.sites[0]
    site.client.upload(updates[1], 1, site.client.state.start, bytes(32))  # never written, never sent
    site.restart()
    site.take(site.client.begin(out[0], kit.model))
    assert site.upload(updates[0], weights[0]).size == kit.size + 1


def test_12_site_that_lost_vector_continues_next_exchange(kit):
    group, epoch, _, _, updates, weights = kit.started(3)
    group.sites[0].upload(updates[0], weights[0])
    group.sites[0].restart()
    _mean, weight, _ = group.run(epoch, 2, updates, weights)
    assert weight == sum(weights.values())


def test_13_finished_secrets_are_erased_from_disk_and_memory(kit):
    group, exchange, packet, _, _ = kit.uploaded()
    exchange = group.sign(exchange, packet, range(5))
    site = group.sites[0]
    before = dict(site.disk)
    shares = before["held/1"]
    # Own secrets went with the upload, sealed blobs and the channel key with the first beginning.
    assert {"own/1", "channel", "deal"}.isdisjoint(before)
    site.take(site.client.unlock(exchange.unlock()))
    left = b"".join(site.disk.values()) + repr(site.client.state).encode()
    for at, _ in enumerate(range(5)):
        mask_key_share = shares[at * 64 : at * 64 + 32]  # all survived: these were never given
        assert mask_key_share in before["held/1"]
        assert mask_key_share not in left
    assert {name for name in site.disk if name.startswith(("own/", "held/"))} == {
        f"{kind}/{at}" for kind in ("own", "held") for at in (2, 3)
    }


def test_13_exchange_that_is_passed_over_is_erased(kit):
    group, epoch, *_ = kit.started(number=1)
    group.begin(epoch, 3, range(5), kit.size)
    names = {name for name in group.sites[0].disk if name.startswith(("own/", "held/"))}
    assert names == {"own/3", "held/3"}
    group.set_up(2)
    assert group.sites[0].disk["own/1"] != group.sites[0].disk["own/3"]


@pytest.mark.parametrize("entropy", [b"", bytes(31), bytes(33)])
def test_too_little_randomness_is_refused(kit, entropy):
    group, *_ = kit.started()
    client, packet = group.sites[0].client, Open(group.federation.fid, 2)
    roster = client.state.known.roster
    for ask in (
        lambda: client.open(packet, kit.now, entropy),
        lambda: client.join(roster, kit.now, entropy),
        lambda: client.upload(np.zeros(kit.size, np.float32), 1, client.state.start, entropy),
    ):
        with pytest.raises(BadMessage, match="entropy: saw"):
            ask()


def test_refused_packet_changes_nothing(kit):
    group, *_ = kit.uploaded()
    site = group.sites[0]
    before = site.client
    with pytest.raises(FedgcError):
        site.client.agree(Agree(1, 1, (1, 2, 3, 4)))
    assert site.client is before
