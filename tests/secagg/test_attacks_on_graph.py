"""What a server or a colluding member can try in a sparse federation, whose members have few neighbors."""

import hashlib
from dataclasses import replace

import pytest

from fedgc.errors import BadMessage, NotAdmitted, NotRecoverable
from fedgc.secagg import Changes, Client, Identity, SetUp, Terms, rules
from fedgc.secagg.graph import graph_for
from fedgc.secagg.keys import public_of
from fedgc.secagg.packets import Advert, Agree, Begin, Deal, Delivery, Roster, Unlock

COUNT, THRESHOLD = 24, 21
GRAPH = graph_for(COUNT, THRESHOLD, THRESHOLD, colluders=2, lost=1)
SITE = 5  # the site that is attacked
SECRET = bytes([7]) * 32


@pytest.fixture(scope="module")
def opened(kit):
    """A group whose roster is ready, before anybody has joined."""
    group = kit.make(COUNT, threshold=THRESHOLD, graph=GRAPH)
    setup = SetUp(group.federation, 1)
    for advert in group.adverts():
        setup = setup.admit(advert, kit.now)
    return group, *setup.roster()


@pytest.fixture(scope="module")
def epoch(kit):
    group = kit.make(COUNT, threshold=THRESHOLD, graph=GRAPH)
    return group, group.set_up()


@pytest.fixture(scope="module")
def begun(kit, epoch):
    """The packets of an exchange that no site has taken yet."""
    group, made = epoch
    return group, made, made.begin(1, range(COUNT), Terms(kit.size, b"settings", kit.model))[1]


@pytest.fixture(scope="module")
def uploaded(kit):
    group = kit.make(COUNT, threshold=THRESHOLD, graph=GRAPH, seed=1)
    made = group.set_up()
    exchange, _ = group.begin(made, 1, range(COUNT), kit.size)
    updates, weights = kit.vectors(COUNT, kit.size)
    for member in range(COUNT):
        group.sites[member].upload(updates[member], weights[member])
    return group, exchange


@pytest.fixture(scope="module")
def agreed(uploaded):
    group, exchange = uploaded
    exchange, packet = group.collect(exchange, range(COUNT))
    return group, group.sign(exchange, packet, range(COUNT))


def changed(kit, roster, who, **fields):
    """Return the roster with another head of this member, signed by it unless a signature is given."""
    head = replace(roster.adverts[who], **fields)
    if "signature" not in fields:
        head = replace(head, signature=kit.identities(COUNT)[who].sign(head.statement))
    return replace(roster, adverts=(*roster.adverts[:who], head, *roster.adverts[who + 1 :]))


def join(group, roster, kit, entropy=SECRET):
    return Deal.unpack(group.sites[SITE].client.join(roster, kit.now, entropy)[1][1].content)


# ---- set-up


def test_forged_advert_refuses_roster_for_any_draw(opened, kit):
    group, _, roster = opened
    for member in set(range(COUNT)) - {SITE}:
        forged = changed(kit, roster, member, signature=bytes(64))
        with pytest.raises(NotAdmitted, match=f"{group.federation.name(member)}: saw a signature"):
            join(group, forged, kit)


def test_second_join_never_draws_anew(opened, kit):
    group, _, roster = opened
    site = group.sites[SITE]
    joined, (persist, reply) = site.client.join(roster, kit.now, SECRET)
    disk = {**site.disk, **dict(Changes.unpack(persist.record).puts)}
    for client in (joined, Client.start(group.federation, site.identity, disk)):
        again = client.join(roster, kit.now, bytes(32))[1]
        assert [each.content for each in again] == [reply.content]
        other = replace(roster, adverts=roster.adverts[:-1])
        with pytest.raises(BadMessage, match="saw another one for epoch 1"):
            client.join(other, kit.now, bytes(32))


def test_advert_of_other_epoch_in_roster_is_refused(opened, kit):
    group, _, roster = opened
    packet = SetUp(group.federation, 2).packet()
    opened_later = [s.client.open(packet, kit.now, bytes([s.client.number]) * 32)[1][1] for s in group.sites]
    later = [Advert.unpack(reply.content) for reply in opened_later]
    heads = tuple(each if each.member == SITE else later[each.member].head for each in roster.adverts)
    with pytest.raises(BadMessage, match="keys for epoch 2"):
        join(group, replace(roster, adverts=heads), kit)


def test_channel_key_of_small_order_is_refused(opened, kit):
    group, _, roster = opened
    for member in (0, COUNT - 1):
        weak = changed(kit, roster, member, channel=bytes([member > 0]) + bytes(31))
        with pytest.raises(BadMessage, match="small order"):
            join(group, weak, kit)


@pytest.mark.parametrize(
    ("fields", "error"),
    [({"made": 0}, NotAdmitted), ({"fid": bytes(32)}, NotAdmitted), ({"member": 99}, NotAdmitted)],
)
def test_false_claim_of_member_is_refused(opened, kit, fields, error):
    group, _, roster = opened
    with pytest.raises(error, match=r"clock|descriptor|saw member"):
        join(group, changed(kit, roster, COUNT - 1, **fields), kit)


def test_one_key_of_two_members_is_refused(opened, kit):
    group, _, roster = opened
    for name in ("channel", "keys_digest", "commitments_digest"):
        same = {name: getattr(roster.adverts[0], name)}
        with pytest.raises(BadMessage, match="one key of members 0 and 1"):
            join(group, changed(kit, roster, 1, **same), kit)


@pytest.mark.parametrize("which", ["masks", "commitments"])
def test_keys_that_site_has_not_signed_are_refused(opened, kit, which):
    group, _, _ = opened
    advert = next(iter(group.adverts()))
    other = replace(advert, **{which: (SECRET, *getattr(advert, which)[1:])})
    with pytest.raises(NotAdmitted, match="signature"):
        SetUp(group.federation, 1).admit(other, kit.now)


def test_own_head_must_be_in_roster(opened, kit):
    group, _, roster = opened
    for wrong in (changed(kit, roster, SITE, channel=public_of(SECRET)),
                  replace(roster, adverts=roster.adverts[:SITE] + roster.adverts[SITE + 1 :])):  # fmt: skip
        with pytest.raises(BadMessage, match="another advert of this site or none"):
            join(group, wrong, kit)


def test_roster_below_quorum_is_refused(opened, kit):
    group, _, roster = opened
    with pytest.raises(BadMessage, match="saw 20 sites, needed 21"):
        join(group, replace(roster, adverts=roster.adverts[:20]), kit)


def test_kind_of_roster_follows_descriptor(opened, kit):
    group, setup, _roster = opened
    full = Roster(1, tuple(setup.adverts[m] for m in sorted(setup.adverts)))
    with pytest.raises(BadMessage, match="saw Advert, needed Head"):
        join(group, full, kit)
    complete = kit.make(4)
    heads = Roster(1, tuple(advert.head for advert in complete.adverts()))
    with pytest.raises(BadMessage, match="saw Head, needed Advert"):
        complete.sites[0].client.join(heads, kit.now, SECRET)


def test_draw_is_secret_and_new_for_every_roster(opened, kit):
    group, _, roster = opened
    drawn = {(join(group, roster, kit, bytes([chance]) * 32).holders) for chance in range(20)}
    assert len(drawn) == 20
    other = changed(kit, roster, 0, made=roster.adverts[0].made + 1)  # the same members and randomness
    drew = [join(group, each, kit).holders for each in (roster, roster, other)]
    assert drew[0] == drew[1]
    assert drew[0] != drew[2]
    for holders in drawn:
        assert len(holders) == GRAPH.holders
        assert SITE in holders


def test_deal_for_other_holders_is_refused_by_server(opened, kit):
    group, setup, roster = opened
    deal = join(group, roster, kit)
    outside = next(m for m in range(COUNT) if m not in deal.holders)
    drew = set(deal.neighbors)
    moved = tuple(sorted((replace(p, target=outside) if p.target == SITE else p for p in deal.parcels),
                         key=lambda parcel: parcel.target))  # fmt: skip
    for wrong in (replace(deal, parcels=deal.parcels[:-1]), replace(deal, neighbors=deal.neighbors[:-1]),
                  replace(deal, neighbors=tuple(sorted((drew - {min(drew)}) | {outside}))),
                  replace(deal, neighbors=tuple(sorted((drew - {min(drew)}) | {SITE}))),
                  replace(deal, parcels=moved)):  # fmt: skip
        with pytest.raises(BadMessage, match="parcels for others"):
            setup.receive(wrong)
    assert setup.receive(deal).deals
    last = max(deal.holders)
    left = tuple(advert for advert in roster.adverts if advert.member != last)
    without = replace(setup, known=rules.Known.of(replace(roster, adverts=left)))
    with pytest.raises(BadMessage, match="parcels for others"):
        without.receive(deal)


def test_head_carries_all_that_its_signature_covers(opened):
    roster = opened[2]
    assert Roster.unpack(roster.pack()) == roster
    head = roster.adverts[0]
    for name, other in (("fid", SECRET), ("epoch", 2), ("member", 3), ("made", 4), ("channel", SECRET),
                        ("keys_digest", SECRET), ("commitments_digest", SECRET)):  # fmt: skip
        assert replace(head, **{name: other}).statement != head.statement
    assert replace(head, signature=bytes(64)).statement == head.statement


# ---- beginning


def delivered(begun, kit, change):
    """The site takes its packet after a change of its deliveries or keys."""
    group, _, out = begun
    group.sites[SITE].client.begin(Begin.unpack(change(out[SITE]).pack()), kit.model)


def first(deliveries, **fields):
    return (replace(deliveries[0], **fields), *deliveries[1:])


def test_changed_neighbors_of_source_are_refused(begun, kit):
    def fewer(packet):
        delivery = packet.deliveries[0]
        return replace(packet, deliveries=first(packet.deliveries, neighbors=delivery.neighbors[1:]))

    with pytest.raises(BadMessage, match="changed or meant for another place"):
        delivered(begun, kit, fewer)


def test_members_outside_epoch_count_for_no_quorum(begun, kit):
    with pytest.raises(BadMessage, match=r"saw members \[24, 99\], needed those of the epoch"):
        delivered(begun, kit, lambda packet: replace(packet, members=(*packet.members, COUNT, 99)))


def test_other_mask_keys_of_neighbor_are_refused(begun, kit):
    def with_keys(change):
        return lambda packet: replace(packet, keys=tuple(sorted((change(packet.keys[0]), *packet.keys[1:]))))

    for wrong in (lambda each: (each[0], each[1][:-32]), lambda each: (each[0], each[1][::-1])):
        with pytest.raises(BadMessage, match="mask keys"):
            delivered(begun, kit, with_keys(wrong))
    with pytest.raises(BadMessage, match="whose shares never came"):
        delivered(begun, kit, lambda packet: replace(packet, keys=packet.keys[1:]))
    strangers = set(range(COUNT)) - {SITE} - {member for member, _ in begun[2][SITE].keys}
    for stranger in (*strangers, SITE, 99):
        with pytest.raises(BadMessage, match="needed those of neighbors"):
            delivered(begun, kit, with_keys(lambda each, who=stranger: (who, each[1])))


def test_packets_fit_in_size_stated_for_graph(begun, opened):
    group, made, out = begun
    sizes = [len(each.pack()) for each in (*out.values(), *made.deals.values(), opened[2])]
    assert max(sizes) <= group.federation.largest_packet


def test_mask_key_of_small_order_is_refused(begun, kit):
    group, _, out = begun
    head = group.sites[SITE].client.state.known.advert(out[SITE].keys[0][0])
    keys = bytes(32 * group.federation.exchanges)
    from fedgc.secagg.packets import keys_digest

    with pytest.raises(BadMessage, match="small order"):
        rules.check_keys(group.federation, replace(head, keys_digest=keys_digest(keys)), keys)


def test_exchange_without_enough_own_neighbors_is_refused(begun, kit):
    group, made, _ = begun
    drew = made.deals[SITE].neighbors
    missing = drew[: GRAPH.neighbors - GRAPH.present + 1]
    there = [member for member in range(COUNT) if member not in missing]
    packet = made.begin(1, there, Terms(kit.size, b"settings", kit.model))[1][SITE]
    with pytest.raises(BadMessage, match=f"saw {GRAPH.present - 1} of {GRAPH.neighbors} neighbors"):
        group.sites[SITE].client.begin(packet, kit.model)
    assert not made.can_begin(there)
    assert made.can_begin(range(COUNT))
    assert not made.can_begin(range(THRESHOLD - 1))


def test_only_neighbors_share_masks(begun, kit):
    group, made, out = begun
    client = group.sites[SITE].client.begin(out[SITE], kit.model)[0]
    near = client.state.near(SITE)
    both = {m for m in range(COUNT) if SITE in made.deals[m].neighbors} | set(made.deals[SITE].neighbors)
    assert near == both
    assert len(client._strands(client.state.turn)) == 1 + len(near)
    assert set(client.state.peers) == near


def test_site_goes_on_from_disk_with_its_neighbors(begun, kit):
    group, _, out = begun
    site = group.sites[SITE]
    after, (persist,) = site.client.begin(out[SITE], kit.model)
    disk = {**site.disk, **dict(Changes.unpack(persist.record).puts)}
    again = Client.start(group.federation, site.identity, disk)
    assert again.state.drew == after.state.drew
    assert again._strands(again.state.turn) == after._strands(after.state.turn)


# ---- survivors


def test_survivors_that_cut_off_source_are_not_signed(uploaded):
    group, exchange = uploaded
    for source in range(COUNT):
        drew = set(exchange.deals[source].neighbors)
        lost = sorted(drew)[: GRAPH.neighbors - GRAPH.present + 1]
        left = tuple(member for member in range(COUNT) if member not in lost)
        for holder in set(exchange.deals[source].holders) - set(lost):
            with pytest.raises(BadMessage, match=f"of {GRAPH.neighbors} neighbors that it drew"):
                group.sites[holder].client.agree(Agree(1, 1, left))
        with pytest.raises(NotRecoverable, match="neighbors that it drew"):
            exchange.agree(left)


def test_sites_without_link_to_source_do_sign(uploaded):
    group, exchange = uploaded
    drew = sorted(exchange.deals[0].neighbors)
    left = tuple(m for m in range(COUNT) if m not in drew[: GRAPH.neighbors - GRAPH.present])
    client = group.sites[0].client
    assert client.agree(Agree(1, 1, left))[1]  # as many as may be lost


# ---- signatures


def test_unlock_packet_must_be_noted_first(agreed):
    group, exchange = agreed
    with pytest.raises(BadMessage, match="saw a second one"):
        group.sites[SITE].client.unlock(exchange.unlock())


def test_second_unlock_packet_is_never_noted(agreed):
    group, exchange = agreed
    packet = exchange.unlock()
    noted, todo = group.sites[SITE].client.note(packet)
    assert len(todo) == 1
    assert noted.note(packet)[1] == ()
    other = Unlock(1, 1, tuple(sorted(exchange.signatures.items()))[-THRESHOLD:])
    for step in (noted.note, noted.unlock):
        with pytest.raises(BadMessage, match="saw a second one"):
            step(other)
    disk = {**group.sites[SITE].disk, **dict(Changes.unpack(todo[0].record).puts)}
    with pytest.raises(BadMessage, match="saw a second one"):
        Client.start(group.federation, group.sites[SITE].identity, disk).note(other)


def test_false_signatures_are_found_by_secret_choice(agreed):
    group, exchange = agreed
    true = exchange.unlock().signatures
    fooled = 0
    for half in range(2):
        forged = tuple((m, s if at % 2 == half else bytes(64)) for at, (m, s) in enumerate(true))
        for site in group.sites:
            client = site.client.note(Unlock(1, 1, forged))[0]
            try:
                client.unlock(Unlock(1, 1, forged))
                fooled += 1
            except NotAdmitted:
                pass
    assert fooled == 0  # each is fooled with a probability below 1e-3


def test_choice_of_signatures_differs_by_site_and_packet(agreed, monkeypatch):
    group, exchange = agreed
    from fedgc.secagg import client as module

    chosen = []
    monkeypatch.setattr(module, "verify", lambda public, *_: chosen[-1].append(public))
    signed = exchange.unlock().signatures
    for packet in (Unlock(1, 1, signed), Unlock(1, 1, (*signed[:-1], (signed[-1][0], bytes(64))))):
        for site in group.sites[:4]:
            chosen.append([])
            site.client.note(packet)[0].unlock(packet)
    assert {len(each) for each in chosen} == {GRAPH.checked}
    assert len({tuple(each) for each in chosen}) == len(chosen)


def test_fewer_signatures_than_threshold_are_refused(agreed):
    group, exchange = agreed
    packet = Unlock(1, 1, exchange.unlock().signatures[1:])
    with pytest.raises(BadMessage, match=f"saw {THRESHOLD - 1} signatures, needed {THRESHOLD}"):
        group.sites[SITE].client.note(packet)[0].unlock(packet)


# ---- shares


def test_site_gives_only_shares_that_it_holds(agreed):
    from fedgc.secagg.packets import Opened

    group, exchange = agreed
    packet = exchange.unlock()
    given = Opened.unpack(group.sites[SITE].client.note(packet)[0].unlock(packet)[1][1].content)
    assert [source for source, _ in given.shares] == [
        m for m in range(COUNT) if SITE in exchange.deals[m].holders
    ]
    for wrong in (given.shares[1:], ((given.shares[0][0], bytes(32)), *given.shares[1:])):
        with pytest.raises(BadMessage, match=r"shares of others|false share"):
            exchange.open(replace(given, shares=wrong))


def test_secret_needs_enough_of_its_own_holders(agreed):
    from fedgc.secagg.packets import Opened

    group, exchange = agreed
    packet, holders = exchange.unlock(), exchange.deals[SITE].holders
    spare = holders[: GRAPH.holders - GRAPH.shares + 1]
    others = [member for member in range(COUNT) if member not in spare]
    for member in others:
        shares = group.sites[member].client.note(packet)[0].unlock(packet)[1][1].content
        exchange = exchange.open(Opened.unpack(shares))
    assert not exchange.is_open
    assert not exchange.can_open(others)
    assert exchange.can_open(range(COUNT))
    with pytest.raises(NotRecoverable, match=f"saw shares of {GRAPH.shares - 1}, needed {GRAPH.shares}"):
        exchange.masks()
    last = group.sites[spare[0]].client.note(packet)[0].unlock(packet)[1][1].content
    done = exchange.open(Opened.unpack(last)).open(Opened.unpack(last))  # a repeated packet counts once
    assert done.is_open == (max(done.lacking.values()) <= 0)
    assert done.lacking[SITE] == 0


def test_unknown_identity_is_refused_with_graph(kit):
    with pytest.raises(NotAdmitted, match="needed a member's"):
        Client.start(kit.federation(COUNT, threshold=THRESHOLD, graph=GRAPH),
                     Identity(hashlib.sha256(b"stranger").digest()), {})  # fmt: skip


def test_deal_with_neighbors_is_refused_without_graph(kit):
    group = kit.make(4)
    setup = SetUp(group.federation, 1)
    for advert in group.adverts():
        setup = setup.admit(advert, kit.now)
    setup, roster = setup.roster()
    deal = Deal.unpack(group.sites[0].client.join(roster, kit.now, SECRET)[1][1].content)
    with pytest.raises(BadMessage, match="parcels for others"):
        setup.receive(replace(deal, neighbors=(1,)))


def test_point_is_place_among_holders_with_graph(kit, begun):
    assert rules.point(begun[0].federation, (3, 300, 900), 900) == 3
    assert rules.point(kit.federation(4), (1, 3), 3) == 4


def test_delivery_row_has_one_encoding():
    assert Delivery.of(Delivery(1, b"x", bytes(32), (2, 3)).row).neighbors == (2, 3)
    with pytest.raises(BadMessage, match="left out"):
        Delivery.of((1, b"x", bytes(32), ()))


def test_complete_exchange_opens_with_threshold_of_survivors(kit):
    exchange = kit.uploaded(5, survivors=range(1, 5))[1]
    assert exchange.can_open(range(5))
    assert not exchange.can_open(range(4))  # the first is no survivor
