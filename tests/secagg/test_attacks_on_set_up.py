"""Test a hostile server during set-up: swapped, repeated, stale and foreign adverts and rosters."""

from dataclasses import replace

import pytest

from fedgc.errors import BadMessage, NotAdmitted
from fedgc.secagg import Client, Federation, Identity, SetUp
from fedgc.secagg.packets import Open, Roster


def test_06_epoch_cannot_be_replayed(kit):
    group = kit.make(3)
    group.adverts(2)
    site = group.sites[0]
    site.restart()
    with pytest.raises(BadMessage, match="saw 1, needed a later one than 2"):
        site.client.open(Open(group.federation.fid, 1), kit.now, bytes(32))
    with pytest.raises(BadMessage, match="near it"):
        site.client.open(Open(group.federation.fid, 2**40), kit.now, bytes(32))


def test_06_roster_of_other_epoch_is_refused(kit):
    group = kit.make(3)
    old = Roster(1, tuple(group.adverts(1)))
    with pytest.raises(BadMessage, match="needed the one opened, 0"):
        kit.make(3).sites[0].client.join(old, kit.now, bytes(32))
    with pytest.raises(BadMessage, match="another advert of this site or none"):
        kit.make(3).sites[0].client.join(Roster(0, ()), kit.now, bytes(32))
    group.adverts(2)
    with pytest.raises(BadMessage, match="saw epoch 1, needed the one opened, 2"):
        group.sites[0].client.join(old, kit.now, bytes(32))


def test_06_second_roster_with_same_keys_is_refused(kit):
    group = kit.make(5)
    adverts = group.adverts()
    site = group.sites[0]
    first, second = Roster(1, tuple(adverts)), Roster(1, tuple(adverts[:4]))
    deal = site.take(site.client.join(first, kit.now, bytes(32)))
    for restart in (False, True):
        if restart:
            site.restart()
        with pytest.raises(BadMessage, match="needed the first"):
            site.client.join(second, kit.now, bytes(32))
    assert site.take(site.client.join(first, kit.now, b"\1" * 32)) == deal


def rostered(kit, change, count=5):
    """Site 0's answer to a roster changed by the server."""
    group = kit.make(count)
    adverts = group.adverts()
    site = group.sites[0]
    return site.client.join(Roster(1, tuple(change(group, adverts))), kit.now, bytes(32))


def signed(group, member, advert):
    return replace(advert, signature=group.sites[member].identity.sign(advert.statement))


def test_10_swapped_key_breaks_signature(kit):
    def swap(group, adverts):
        return [*adverts[:4], replace(adverts[4], masks=(bytes(range(32)), *adverts[4].masks[1:]))]

    with pytest.raises(NotAdmitted, match="site 004"):
        rostered(kit, swap)


def test_10_unknown_member_or_other_descriptor_is_refused(kit):
    def stranger(group, adverts):
        return [*adverts, replace(adverts[4], member=5)]

    def other(group, adverts):
        return [*adverts[:4], signed(group, 4, replace(adverts[4], fid=bytes(32)))]

    with pytest.raises(NotAdmitted, match="saw member number 5"):
        rostered(kit, stranger)
    with pytest.raises(NotAdmitted, match="site 004 holds the descriptor"):
        rostered(kit, other)


@pytest.mark.parametrize("which", ["channel", "masks", "commitments"])
def test_10_duplicate_key_is_refused(kit, which):
    def twice(group, adverts):
        theirs, own = getattr(adverts[3], which), getattr(adverts[4], which)
        taken = theirs if which == "channel" else (*own[:2], theirs[0])
        return [*adverts[:4], signed(group, 4, replace(adverts[4], **{which: taken}))]

    with pytest.raises(BadMessage, match="one key of members 3 and 4"):
        rostered(kit, twice)


def test_10_keys_of_other_epoch_are_refused(kit):
    def stale(group, adverts):
        return [*adverts[:4], signed(group, 4, replace(adverts[4], epoch=7))]

    with pytest.raises(BadMessage, match="keys for epoch 7"):
        rostered(kit, stale)


@pytest.mark.parametrize("count", [2, 4])
def test_10_keys_for_fewer_or_more_exchanges_are_refused(kit, count):
    def other(group, adverts):
        keys, promised = (tuple(bytes([9 * at + 1] * 31 + [kind]) for at in range(count)) for kind in (1, 2))
        return [*adverts[:4], signed(group, 4, replace(adverts[4], masks=keys, commitments=promised))]

    with pytest.raises(BadMessage, match=f"keys for epoch 1, {count} exchanges; needed epoch 1, 3"):
        rostered(kit, other)


@pytest.mark.parametrize("shift", [-601, 601])
def test_10_different_clock_is_named(kit, shift):
    def late(group, adverts):
        return [*adverts[:4], signed(group, 4, replace(adverts[4], made=adverts[4].made + shift))]

    with pytest.raises(NotAdmitted, match="site 004: saw keys made at"):
        rostered(kit, late)


def test_10_roster_with_missing_or_other_own_entry_is_refused(kit):
    def without(group, adverts):
        return adverts[1:]

    def another(group, adverts):
        return [signed(group, 0, replace(adverts[0], channel=bytes(range(32)))), *adverts[1:]]

    for change in (without, another):
        with pytest.raises(BadMessage, match="another advert of this site"):
            rostered(kit, change)


def test_10_small_roster_is_refused(kit):
    with pytest.raises(BadMessage, match="roster: saw 3 sites, needed 4"):
        rostered(kit, lambda group, adverts: adverts[:3])


def test_10_duplicate_member_is_refused(kit):
    with pytest.raises(BadMessage, match="each site once"):
        rostered(kit, lambda group, adverts: [*adverts, adverts[4]])


def test_10_server_with_other_descriptor_is_refused(kit):
    group = kit.make(3)
    other = kit.federation(3, exchanges=5)
    with pytest.raises(NotAdmitted, match="compare the files"):
        group.sites[0].client.open(SetUp(other, 1).packet(), kit.now, bytes(32))


def test_10_unpinned_identity_cannot_start(kit):
    with pytest.raises(NotAdmitted, match="needed a member's"):
        Client.start(kit.federation(3), Identity(bytes(32)), {})


@pytest.mark.parametrize("which", ["channel", "mask"])
def test_10_key_of_small_order_is_refused_before_sharing(kit, which):
    def weak(group, adverts):
        masks = (*adverts[4].masks[:2], bytes(32))
        bad = replace(adverts[4], **({"channel": bytes(32)} if which == "channel" else {"masks": masks}))
        return [*adverts[:4], signed(group, 4, bad)]

    with pytest.raises(BadMessage, match="site 004: saw a key of small order"):
        rostered(kit, weak)


def test_10_other_encoding_of_used_key_is_refused(kit):
    def disguised(group, adverts):
        key = adverts[3].masks[0]
        bad = replace(adverts[4], masks=(key[:31] + bytes([key[31] | 128]), *adverts[4].masks[1:]))
        return [*adverts[:4], signed(group, 4, bad)]

    with pytest.raises(BadMessage, match="second spelling"):
        rostered(kit, disguised)


def test_federation_of_every_machine_equals_pinned_federation(kit):
    federation = kit.federation(5)
    assert Federation.unpack(federation.pack()) == federation
