"""Test a hostile server at the beginning of an exchange: other models, members and rerouted shares."""

import hashlib
from dataclasses import replace

import pytest

from fedgc.errors import BadMessage, NotAdmitted, NotRecoverable
from fedgc.secagg import RingSum, SetUp, Terms, rules
from fedgc.secagg.keys import loaded, seal
from fedgc.secagg.packets import Agree, Begin, Deal, Delivery, Unlock


def redelivered(kit, change):
    group = kit.make(5)
    epoch = group.set_up()
    _, out = epoch.begin(1, range(5), Terms(kit.size, b"", kit.model))
    return group.sites[0].client.begin(replace(out[0], **change(out)), kit.model)


def test_05_other_model_for_one_site_gives_noise(kit):
    group = kit.make(5)
    epoch = group.set_up()
    updates, weights = kit.vectors(5, kit.size)
    exchange, out = epoch.begin(1, range(5), Terms(kit.size, b"settings", kit.model))
    for member, site in enumerate(group.sites):
        came = hashlib.sha256(b"another").digest() if member == 0 else kit.model
        site.take(site.client.begin(out[member], came))
    ring = RingSum(group.federation.quantizer, kit.size)
    for member, site in enumerate(group.sites):
        ring.add(site.upload(updates[member], weights[member]))
    exchange, packet = group.collect(exchange, range(5))
    strange = group.sites[0].take(group.sites[0].client.agree(packet))
    with pytest.raises(NotAdmitted, match="site 000"):
        exchange.sign(0, strange)
    exchange = group.sign(exchange, packet, (1, 2, 3, 4))
    with pytest.raises(NotAdmitted, match="site 000"):
        group.sites[1].client.unlock(Unlock(1, 1, ((0, strange), *sorted(exchange.signatures.items()))))
    ring.remove(group.open(exchange, (1, 2, 3, 4)).masks())
    with pytest.raises(NotRecoverable, match="masks are left in the sum"):
        ring.mean()


@pytest.mark.parametrize("change", [{"settings": b"other"}, {"size": 41}, {"members": (0, 1, 2, 3)}])
def test_05_other_settings_or_members_give_other_context(kit, change):
    group, epoch, exchange, out, _, _ = kit.started()
    other = replace(out[0], **change)
    assert rules.context(group.federation, epoch.known.rho, other, kit.model) != exchange.context
    with pytest.raises(BadMessage, match="again with another"):
        group.sites[0].client.begin(other, kit.model)


def test_06_exchange_cannot_restart_with_other_model_or_go_back(kit):
    group, _epoch, _, out, _updates, _weights = kit.started(number=2)
    site = group.sites[0]
    for restart in (False, True):
        if restart:
            site.restart()
        with pytest.raises(BadMessage, match="again with another"):
            site.client.begin(out[0], hashlib.sha256(b"another").digest())
        with pytest.raises(BadMessage, match="saw 1 after 2"):
            site.client.begin(replace(out[0], exchange=1), kit.model)


def test_06_exchange_beyond_epoch_is_refused(kit):
    group, _epoch, _, out, _updates, _weights = kit.started()
    with pytest.raises(BadMessage, match="saw 4 after 1, needed a later one, at most 3"):
        group.sites[0].client.begin(replace(out[0], exchange=4), kit.model)


def test_06_packets_of_old_epoch_are_refused_in_next(kit):
    group, _, _, out, _updates, _weights = kit.started()
    roster = group.sites[0].client.state.known.roster
    group.set_up(2)
    site = group.sites[0]
    with pytest.raises(BadMessage, match="epoch 1"):
        site.client.join(roster, kit.now, bytes(32))
    with pytest.raises(BadMessage, match="epoch 1"):
        site.client.begin(out[0], kit.model)
    with pytest.raises(BadMessage, match="of epoch 1"):
        site.client.agree(Agree(1, 1, (0, 1, 2, 3)))


def test_09_dealer_with_wrong_share_tags_is_named_by_receiver(kit):
    group = kit.make(5)
    setup = SetUp(group.federation, 1)
    for advert in group.adverts():
        setup = setup.admit(advert, kit.now)
    setup, roster = setup.roster()
    for member, site in enumerate(group.sites):
        deal = Deal.unpack(site.take(site.client.join(roster, kit.now, next(site.entropy))))
        if member == 3:
            parcels = tuple(replace(p, tags=bytes(len(p.tags))) for p in deal.parcels)
            deal = replace(deal, parcels=parcels)
        setup = setup.receive(deal)
    _, out = setup.close().begin(1, range(5), Terms(kit.size, b"", kit.model))
    with pytest.raises(BadMessage, match="shares of site 003: saw others than it committed to"):
        group.sites[0].client.begin(out[0], kit.model)


def test_09_dealer_with_too_few_shares_is_named_by_receiver(kit):
    group = kit.make(5)
    setup = SetUp(group.federation, 1)
    for advert in group.adverts():
        setup = setup.admit(advert, kit.now)
    secret = loaded(group.sites[1].client.state.channel)
    setup, roster = setup.roster()
    for site in group.sites:
        setup = setup.receive(Deal.unpack(site.take(site.client.join(roster, kit.now, next(site.entropy)))))
    epoch = setup.close()
    _, out = epoch.begin(1, range(5), Terms(kit.size, b"", kit.model))
    rho, fid = epoch.known.rho, group.federation.fid
    key = rules.channel(secret, epoch.known.advert(0).channel, rho, 1, 0)
    for size in (64, 63, 64 * 4):
        blob = seal(key, bytes(size), rules.blob_context(fid, 1, rho, 1, 0))
        deliveries = (Delivery(1, blob, bytes(32)), *out[0].deliveries[1:])
        with pytest.raises(BadMessage, match=r"shares of site 001: saw \d+, needed 3 whole"):
            group.sites[0].client.begin(replace(out[0], deliveries=deliveries), kit.model)


def test_10_rerouted_or_changed_blob_is_refused(kit):
    def rerouted(out):
        return {"deliveries": (out[2].deliveries[1], *out[0].deliveries[1:])}  # of 1, but meant for 2

    def exchanged(out):
        first, second, *rest = out[0].deliveries
        return {"deliveries": (replace(first, blob=second.blob), second, *rest)}

    def changed(out):
        first = out[0].deliveries[0]
        broken = bytes([first.blob[0] ^ 1]) + first.blob[1:]
        return {"deliveries": (replace(first, blob=broken), *out[0].deliveries[1:])}

    for change in (rerouted, exchanged, changed):
        with pytest.raises(BadMessage, match="shares of site 001: saw a blob"):
            redelivered(kit, change)


def test_10_shares_of_self_or_non_member_are_refused(kit):
    def own(out):
        return {"deliveries": (Delivery(0, b"", bytes(32)), *out[0].deliveries)}

    def strange(out):
        return {"deliveries": (*out[0].deliveries, Delivery(9, b"", bytes(32)))}

    for change in (own, strange):
        with pytest.raises(BadMessage, match="needed those of others"):
            redelivered(kit, change)


def test_10_member_without_delivered_shares_is_refused(kit):
    with pytest.raises(BadMessage, match=r"members \[4\] whose shares never came"):
        redelivered(kit, lambda out: {"deliveries": out[0].deliveries[:3]})


def test_10_too_small_exchange_or_one_without_self_is_refused(kit):
    with pytest.raises(BadMessage, match="begin: saw 3 sites, needed 4"):
        redelivered(kit, lambda out: {"members": (0, 1, 2)})
    with pytest.raises(BadMessage, match=r"needed 0 \(|needed 0 in it"):
        redelivered(kit, lambda out: {"members": (1, 2, 3, 4)})


def test_begin_packet_is_decoded_equal(kit):
    _, _, _, out, _, _ = kit.started()
    assert all(Begin.unpack(packet.pack()) == packet for packet in out.values())
