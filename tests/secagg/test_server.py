from dataclasses import replace

import pytest

from fedgc.errors import BadMessage, NotAdmitted, NotRecoverable
from fedgc.secagg import RingSum, SetUp, Terms
from fedgc.secagg.packets import Deal, Opened, Parcel


class Counted(tuple):
    """Items that count how often all of them are read."""

    def __iter__(self):
        self.times = getattr(self, "times", 0) + 1
        return super().__iter__()


def opened(kit, count=5):
    group = kit.make(count)
    setup = SetUp(group.federation, 1)
    adverts = group.adverts()
    for advert in adverts:
        setup = setup.admit(advert, kit.now)
    return group, setup, adverts


def dealt(kit, count=5):
    group, setup, _ = opened(kit, count)
    setup, roster = setup.roster()
    deals = [Deal.unpack(s.take(s.client.join(roster, kit.now, next(s.entropy)))) for s in group.sites]
    return group, setup, deals


def test_site_with_bad_descriptor_clock_or_signature_is_named(kit):
    group, _setup, adverts = opened(kit)
    fresh = SetUp(group.federation, 1)
    for wrong, reason in [
        (replace(adverts[1], fid=bytes(32)), "site 001 holds the descriptor"),
        (replace(adverts[1], made=adverts[1].made + 1), "site 001: saw a signature"),
    ]:
        with pytest.raises(NotAdmitted, match=reason):
            fresh.admit(wrong, kit.now)
    with pytest.raises(NotAdmitted, match="set the clocks"):
        fresh.admit(adverts[1], kit.now + 3600)
    with pytest.raises(BadMessage, match="keys for epoch 1"):
        SetUp(group.federation, 2).admit(adverts[1], kit.now)


def test_second_or_late_advert_is_refused(kit):
    group, setup, adverts = opened(kit)
    changed = replace(adverts[1], made=adverts[1].made + 1)
    changed = replace(changed, signature=group.sites[1].identity.sign(changed.statement))
    with pytest.raises(BadMessage, match="second advert"):
        setup.admit(changed, kit.now)
    assert setup.admit(adverts[1], kit.now) == setup
    with pytest.raises(BadMessage, match="after the roster went out"):
        setup.roster()[0].admit(adverts[1], kit.now)


def test_advert_is_not_read_again_for_each_further_site(kit):
    group = kit.make(9)
    first, *others = group.adverts()
    first = replace(first, masks=Counted(first.masks))
    setup = SetUp(group.federation, 1).admit(first, kit.now)
    before = first.masks.times
    for advert in others:
        setup = setup.admit(advert, kit.now)
    assert (first.masks.times, len(setup.adverts)) == (before, 9)


@pytest.mark.parametrize("count", [3, 7, 8, 9])
def test_key_of_each_earlier_site_is_refused_at_server(kit, count):
    group = kit.make(count)
    *earlier, last = group.adverts()
    setup = SetUp(group.federation, 1)
    for advert in earlier:
        setup = setup.admit(advert, kit.now)
    for advert in earlier:
        copied = replace(last, channel=advert.channel)
        copied = replace(copied, signature=group.sites[-1].identity.sign(copied.statement))
        with pytest.raises(BadMessage, match=f"one key of members {advert.member} and {last.member}"):
            setup.admit(copied, kit.now)
    assert len(setup.admit(last, kit.now).adverts) == count


def test_no_site_trains_below_quorum(kit):
    group = kit.make(5)
    setup = SetUp(group.federation, 1)
    for advert in group.adverts()[:3]:
        setup = setup.admit(advert, kit.now)
    with pytest.raises(NotRecoverable, match="saw 3 sites, needed 4"):
        setup.roster()
    _, setup, deals = dealt(kit)
    for deal in deals[:3]:
        setup = setup.receive(deal)
    with pytest.raises(NotRecoverable, match="shares of 3, needed those of 4"):
        setup.close()


def test_incomplete_deal_is_refused(kit):
    _, setup, deals = dealt(kit)
    deal = deals[1]
    short = Parcel(1, 4, deal.parcels[4].blob[:-1], deal.parcels[4].tags)
    for wrong, reason in [
        (replace(deal, epoch=2), "a deal of epoch 2"),
        (replace(deal, parcels=deal.parcels[:4]), "one for each of"),
        (replace(deal, parcels=(*deal.parcels[:4], short)), "shares of every exchange"),
        (replace(deal, parcels=(*deal.parcels[:4], replace(deal.parcels[4], tags=b""))), "of every exchange"),
    ]:
        with pytest.raises(BadMessage, match=reason):
            setup.receive(wrong)
    setup = setup.receive(deal)
    assert setup.receive(deal) == setup
    other = replace(deal.parcels[4], blob=bytes(len(deal.parcels[4].blob)))
    with pytest.raises(BadMessage, match="second deal"):
        setup.receive(replace(deal, parcels=(*deal.parcels[:4], other)))


def test_exchange_begins_with_enough_sites_of_epoch(kit):
    epoch = kit.make(5).set_up(silent=[4])
    terms = Terms(4, b"", kit.model)
    with pytest.raises(BadMessage, match="needed some of"):
        epoch.begin(1, range(5), terms)
    with pytest.raises(NotRecoverable, match="saw 3 sites, needed 4"):
        epoch.begin(1, range(3), terms)
    with pytest.raises(BadMessage, match="saw 4, needed 1 to 3"):
        epoch.begin(4, range(4), terms)
    with pytest.raises(BadMessage, match="a digest of 3 bytes"):
        Terms(4, b"", b"abc")


def test_shares_are_resent_until_vector_confirms_them(kit):
    epoch = kit.make(3).set_up()
    _, out = epoch.supply(1).begin(1, range(3), Terms(4, b"", kit.model))
    assert [len(out[m].deliveries) for m in range(3)] == [2, 0, 2]


def reads_to_begin(kit, count):
    _, setup, deals = dealt(kit, count)
    for deal in deals:
        setup = setup.receive(replace(deal, parcels=Counted(deal.parcels)))
    epoch = setup.close()
    before = [deal.parcels.times for deal in epoch.deals.values()]
    _, begun = epoch.begin(1, epoch.members, Terms(8, b"", bytes(32)))
    assert [len(begun[member].deliveries) for member in range(count)] == [count - 1] * count
    return max(deal.parcels.times for deal in epoch.deals.values()) - max(before)


def test_reads_of_deal_at_begin_do_not_grow_with_members(kit):
    assert reads_to_begin(kit, 5) == reads_to_begin(kit, 25)


def test_survivors_are_fixed_once_and_shares_come_only_from_them(kit):
    group = kit.make(5)
    updates, weights = kit.vectors(5, 8)
    exchange, _ = group.begin(group.set_up(), 1, range(5), 8)
    for member, site in enumerate(group.sites):
        site.upload(updates[member], weights[member])
    with pytest.raises(NotRecoverable, match="saw 3 vectors, needed 4; aborted"):
        exchange.agree((0, 1, 2))
    with pytest.raises(BadMessage, match="needed some of"):
        exchange.agree((0, 1, 2, 9))
    exchange, _packet = group.collect(exchange, (0, 1, 2, 3))
    with pytest.raises(BadMessage, match="once an exchange"):
        exchange.agree((0, 1, 2, 3, 4))
    with pytest.raises(BadMessage, match="signature of no survivor"):
        exchange.sign(4, bytes(64))
    with pytest.raises(NotAdmitted, match="site 000"):
        exchange.sign(0, bytes(64))
    shares = tuple((m, bytes(32)) for m in range(5))
    for wrong in (Opened(1, 1, 4, shares), Opened(1, 1, 0, shares[:4])):
        with pytest.raises(BadMessage, match="shares of others"):
            exchange.open(wrong)


def test_sum_without_vectors_is_refused(kit):
    with pytest.raises(NotRecoverable, match="saw no vector"):
        RingSum(kit.quantizer, 4).mean()
