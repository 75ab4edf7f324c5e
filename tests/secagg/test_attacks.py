"""A hostile server, colluding institutions, losses and crashes, against the real machines of institutions."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgc.errors import BadMessage, BadSetting, BadVector, FedgcError, NotAdmitted, NotRecoverable
from fedgc.secagg import Client, Federation, Identity, Quantiser, RingSum, SetUp, Terms, rules
from fedgc.secagg.keys import loaded, seal
from fedgc.secagg.keystream import RUN_WORDS, Strand, add_strands
from fedgc.secagg.letters import Advert, Agree, Begin, Deal, Delivery, Open, Opened, Roster, Unlock
from fedgc.secagg.shamir import combine, split

SIZE = 40


def started(kit, count=5, number=1, seed=0, **pinned):
    """A consortium whose set-up is done and whose exchange has begun, and its updates."""
    group = kit.make(count, seed=seed, **pinned)
    epoch = group.set_up()
    updates, weights = kit.vectors(count, SIZE, seed)
    exchange, out = group.begin(epoch, number, range(count), SIZE)
    return group, epoch, exchange, out, updates, weights


def uploaded(kit, count=5, survivors=None, **pinned):
    """The same, after the vectors of the survivors came and were agreed on."""
    group, _epoch, exchange, _, updates, weights = started(kit, count, **pinned)
    who = range(count) if survivors is None else survivors
    vectors = {m: group.sites[m].upload(updates[m], weights[m]) for m in range(count)}
    exchange, letter = group.collect(exchange, who)
    return group, exchange, letter, vectors, updates


def looks_uniform(words):
    """Each of the 32 bits is set half of the time, within five deviations."""
    bits = (words[:, None] >> np.arange(32, dtype=np.uint32)) & 1
    return bool((abs(bits.mean(axis=0) - 0.5) < 5 * 0.5 / np.sqrt(len(words))).all())


# ---- 1


@pytest.mark.parametrize("count", [3, 5, 8])
@pytest.mark.parametrize("point", ["never", "before the deal", "known absent", "early", "late", "last"])
def test_01_the_sum_is_that_of_the_survivors_wherever_one_is_lost(kit, count, point):
    group = kit.make(count)
    lost = [1]
    updates, weights = kit.vectors(count, SIZE)
    here = [m for m in range(count) if m not in lost]

    def run():
        epoch = group.set_up(silent=lost if point == "before the deal" else ())
        absent = point in ("before the deal", "known absent")
        who = here if absent else range(count)
        fate = {"early": "lost_early", "late": "lost_late", "last": "lost_last"}.get(point)
        return group.run(epoch, 2, {m: updates[m] for m in who}, weights, **({fate: lost} if fate else {}))

    if count == 3 and point != "never":
        with pytest.raises(NotRecoverable, match=r"saw 2 |shares of 2,"):
            run()
        return
    mean, weight, survivors = run()
    assert set(survivors) == (set(range(count)) if point in ("never", "late", "last") else set(here))
    assert weight == sum(weights[m] for m in survivors)
    bound = group.federation.quantiser.bound(len(survivors), weight)
    assert np.abs(mean - kit.true_mean(updates, weights, survivors)).max() <= bound


# ---- 2


def test_02_a_split_set_of_survivors_unmasks_nothing(kit):
    group, _exchange, letter, _, _ = uploaded(kit)
    other = Agree(letter.epoch, letter.exchange, (0, 1, 2, 3))
    signatures = {}
    for member in (0, 1):
        site = group.sites[member]
        signatures[member] = site.take(site.client.agree(other))
    for member in (2, 3, 4):
        site = group.sites[member]
        signatures[member] = site.take(site.client.agree(letter))
    with pytest.raises(NotAdmitted, match="not of the pinned key"):
        group.sites[0].client.unlock(Unlock(1, 1, tuple(sorted((m, signatures[m]) for m in range(4)))))
    honest = tuple((m, signatures[m]) for m in (2, 3, 4))
    with pytest.raises(BadMessage, match="saw 3 signatures, needed 4"):
        group.sites[2].client.unlock(Unlock(1, 1, honest))


def test_02_fewer_than_threshold_signatures_unlock_nothing(kit):
    group, exchange, letter, _, _ = uploaded(kit)
    exchange = group.sign(exchange, letter, (0, 1, 2))
    with pytest.raises(NotRecoverable, match="3 signatures, needed 4"):
        exchange.unlock()
    with pytest.raises(BadMessage, match="saw 3 signatures, needed 4"):
        group.sites[0].client.unlock(Unlock(1, 1, tuple(sorted(exchange.signatures.items()))))


def test_02_a_signature_cannot_count_twice(kit):
    group, exchange, letter, _, _ = uploaded(kit)
    exchange = group.sign(exchange, letter, (0, 1, 2))
    with pytest.raises(BadMessage, match="each institution once"):
        Unlock(1, 1, (*sorted(exchange.signatures.items()), (2, exchange.signatures[2])))


def test_02_a_signature_of_who_is_no_survivor_does_not_count(kit):
    group, exchange, letter, _, _ = uploaded(kit, survivors=(0, 1, 2, 3))
    exchange = group.sign(exchange, letter, (0, 1, 2))
    statement = rules.agreement(group.federation.fid, exchange.context, exchange.survivors)
    outsider = group.sites[4].identity.sign(statement)
    with pytest.raises(BadMessage, match="signature of 4"):
        group.sites[0].client.unlock(Unlock(1, 1, (*sorted(exchange.signatures.items()), (4, outsider))))


def test_02_a_second_set_of_survivors_is_refused_even_after_a_restart(kit):
    group, _, letter, _, _ = uploaded(kit)
    site = group.sites[0]
    first = site.take(site.client.agree(letter))
    site.restart()
    with pytest.raises(BadMessage, match="one set an exchange"):
        site.client.agree(Agree(1, 1, (0, 1, 2, 3)))
    assert site.take(site.client.agree(letter)) == first


def test_02_a_second_unlock_is_refused_even_after_a_restart(kit):
    group, exchange, letter, _, _ = uploaded(kit)
    exchange = group.sign(exchange, letter, range(5))
    site, first = group.sites[0], exchange.unlock()
    given = site.take(site.client.unlock(first))
    site.restart()
    assert site.take(site.client.unlock(first)) == given
    with pytest.raises(BadMessage, match="second one"):
        site.client.unlock(Unlock(1, 1, tuple(sorted(exchange.signatures.items())[1:])))


def test_02_nothing_is_unlocked_before_survivors_are_agreed_on(kit):
    group, exchange, _, _, _ = uploaded(kit)
    fid, bound = group.federation.fid, exchange.context
    forged = tuple((m, s.identity.sign(rules.agreement(fid, bound, ()))) for m, s in enumerate(group.sites))
    with pytest.raises(BadMessage, match="before any survivors"):
        group.sites[0].client.unlock(Unlock(1, 1, forged))


# ---- 3


def test_03_a_late_vector_of_one_declared_dropped_stays_uniform(kit):
    group = kit.make(5)
    epoch = group.set_up()
    size = 20_000
    updates, weights = {m: np.zeros(size, np.float32) for m in range(5)}, dict.fromkeys(range(5), 1)
    exchange, _ = group.begin(epoch, 1, range(5), size)
    vectors = {m: group.sites[m].upload(updates[m], weights[m]) for m in range(5)}
    exchange, letter = group.collect(exchange, (0, 1, 2, 3))
    exchange = group.open(group.sign(exchange, letter, (0, 1, 2, 3)), (0, 1, 2, 3))
    ring = RingSum(group.federation.quantiser, size)
    for member in (0, 1, 2, 3):
        ring.add(vectors[member])
    ring.remove(exchange.masks())
    assert np.array_equal(ring.mean()[0], np.zeros(size))
    # The server holds the mask key of 4 now, takes off every pair mask, and still sees noise.
    shares = {m + 1: dict(exchange.opened[m])[4] for m in range(4)}
    secret = loaded(combine(shares, 4))
    late = vectors[4].copy()
    publics = [epoch.known.advert(m).masks[0] for m in range(4)]
    pairs = [rules.pair_mask(secret, publics[m], exchange.context, 4, m) for m in range(4)]
    add_strands(late, [pair.opposite() for pair in pairs])
    assert looks_uniform(late[:size])
    # What is left is the self mask, whose shares nobody gives any more.
    with pytest.raises(BadMessage, match="one set an exchange"):
        group.sites[0].client.agree(Agree(1, 1, (0, 1, 2, 3, 4)))
    assert not any(name == "held/1" for site in group.sites[:4] for name in site.disk)


# ---- 4


def test_04_fewer_shares_than_the_threshold_are_refused(kit):
    group, exchange, letter, _, _ = uploaded(kit)
    exchange = group.open(group.sign(exchange, letter, range(5)), (0, 1, 2))
    with pytest.raises(NotRecoverable, match="shares of 3, needed 4"):
        exchange.masks()
    shares = split(b"secret", 4, (1, 2, 3, 4, 5), bytes(32))
    with pytest.raises(NotRecoverable, match="3 shares, needed 4"):
        combine({point: shares[point] for point in (1, 2, 3)}, 4)


# ---- 5


def test_05_another_model_to_one_institution_gives_noise_and_no_agreement(kit):
    group = kit.make(5)
    epoch = group.set_up()
    updates, weights = kit.vectors(5, SIZE)
    exchange, out = epoch.begin(1, range(5), Terms(SIZE, b"settings", kit.model))
    for member, site in enumerate(group.sites):
        came = hashlib.sha256(b"another").digest() if member == 0 else kit.model
        site.take(site.client.begin(out[member], came))
    ring = RingSum(group.federation.quantiser, SIZE)
    for member, site in enumerate(group.sites):
        ring.add(site.upload(updates[member], weights[member]))
    exchange, letter = group.collect(exchange, range(5))
    strange = group.sites[0].take(group.sites[0].client.agree(letter))
    with pytest.raises(NotAdmitted, match="site 000"):
        exchange.sign(0, strange)
    exchange = group.sign(exchange, letter, (1, 2, 3, 4))
    with pytest.raises(NotAdmitted, match="site 000"):
        group.sites[1].client.unlock(Unlock(1, 1, ((0, strange), *sorted(exchange.signatures.items()))))
    ring.remove(group.open(exchange, (1, 2, 3, 4)).masks())
    with pytest.raises(NotRecoverable, match="masks are left in the sum"):
        ring.mean()


@pytest.mark.parametrize("change", [{"settings": b"other"}, {"size": SIZE + 1}, {"members": (0, 1, 2, 3)}])
def test_05_other_settings_or_members_give_another_context(kit, change):
    group, epoch, exchange, out, _, _ = started(kit)
    other = replace(out[0], **change)
    assert rules.context(group.federation, epoch.known.rho, other, kit.model) != exchange.context
    with pytest.raises(BadMessage, match="again with another"):
        group.sites[0].client.begin(other, kit.model)


# ---- 6


def test_06_an_exchange_is_masked_once(kit):
    group, _, _, out, updates, weights = started(kit)
    site = group.sites[0]
    spare = site.client.pad()
    sent = site.upload(updates[0], weights[0])
    with pytest.raises(BadMessage, match="no exchange that waits"):
        site.client.upload(updates[1], 1, spare, bytes(32))
    with pytest.raises(BadMessage, match="no exchange that waits"):
        site.client.pad()
    assert site.take(site.client.begin(out[0], kit.model)) is sent
    site.restart()
    with pytest.raises(BadMessage, match="no exchange that waits"):
        site.client.upload(updates[1], 1, spare, bytes(32))


def test_06_an_exchange_cannot_begin_again_with_another_model_or_go_back(kit):
    group, _epoch, _, out, _updates, _weights = started(kit, number=2)
    site = group.sites[0]
    for restart in (False, True):
        if restart:
            site.restart()
        with pytest.raises(BadMessage, match="again with another"):
            site.client.begin(out[0], hashlib.sha256(b"another").digest())
        with pytest.raises(BadMessage, match="saw 1 after 2"):
            site.client.begin(replace(out[0], exchange=1), kit.model)


def test_06_an_epoch_cannot_be_replayed(kit):
    group = kit.make(3)
    group.adverts(2)
    site = group.sites[0]
    site.restart()
    with pytest.raises(BadMessage, match="saw 1, needed a later one than 2"):
        site.client.open(Open(group.federation.fid, 1), kit.now, bytes(32))
    with pytest.raises(BadMessage, match="near it"):
        site.client.open(Open(group.federation.fid, 2**40), kit.now, bytes(32))


def test_06_an_old_epochs_letters_are_refused_in_the_next(kit):
    group, _, _, out, _updates, _weights = started(kit)
    roster = group.sites[0].client.state.known.roster
    group.set_up(2)
    site = group.sites[0]
    with pytest.raises(BadMessage, match="epoch 1"):
        site.client.join(roster, kit.now, bytes(32))
    with pytest.raises(BadMessage, match="epoch 1"):
        site.client.begin(out[0], kit.model)
    with pytest.raises(BadMessage, match="of epoch 1"):
        site.client.agree(Agree(1, 1, (0, 1, 2, 3)))


def test_06_a_roster_of_an_epoch_that_is_not_the_opened_one_is_refused(kit):
    group = kit.make(3)
    old = Roster(1, tuple(group.adverts(1)))
    with pytest.raises(BadMessage, match="needed the one opened, 0"):
        kit.make(3).sites[0].client.join(old, kit.now, bytes(32))
    group.adverts(2)
    with pytest.raises(BadMessage, match="saw epoch 1, needed the one opened, 2"):
        group.sites[0].client.join(old, kit.now, bytes(32))


@pytest.mark.parametrize(("epoch", "number"), [(1, 2), (2, 1)])
def test_06_survivors_and_signatures_of_another_exchange_or_epoch_are_refused(kit, epoch, number):
    group, exchange, letter, _, _ = uploaded(kit)
    client = group.sites[0].client
    with pytest.raises(BadMessage, match=f"saw {number} of epoch {epoch}, needed the present"):
        client.agree(replace(letter, epoch=epoch, exchange=number))
    exchange = group.sign(exchange, letter, range(5))
    with pytest.raises(BadMessage, match=f"saw {number} of epoch {epoch}, needed the present"):
        group.sites[0].client.unlock(replace(exchange.unlock(), epoch=epoch, exchange=number))


def test_06_a_second_roster_with_the_same_keys_is_refused(kit):
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


def test_06_masks_of_another_exchange_are_not_taken(kit):
    group, epoch, _, _, updates, _weights = started(kit)
    site, stale = group.sites[0], group.sites[0].client.pad()
    group.begin(epoch, 2, range(5), SIZE)
    with pytest.raises(BadVector, match="of another exchange"):
        site.client.upload(updates[0], 1, stale, bytes(32))


# ---- 7


@pytest.mark.parametrize(("bits", "ring", "count"), [(22, 32, 5), (20, 32, 8), (8, 16, 8), (4, 8, 18)])
@pytest.mark.parametrize("sign", [1, -1])
def test_07_all_at_the_top_of_the_ring_is_exact(kit, bits, ring, count, sign):
    group = kit.make(count, quantiser=Quantiser(clip=2.0, bits=bits, ring=ring, w_max=7))
    epoch = group.set_up()
    updates = {m: np.full(SIZE, sign * 9.0, np.float32) for m in range(count)}
    mean, weight, _ = group.run(epoch, 1, updates, dict.fromkeys(range(count), 7))
    assert weight == 7 * count
    assert np.array_equal(mean, np.full(SIZE, sign * 2.0, np.float32))


@pytest.mark.parametrize(("bits", "ring", "count"), [(8, 8, 3), (4, 8, 19), (16, 16, 3), (9, 16, 129)])
def test_07_sums_that_would_not_fit_are_refused_when_written_down(kit, bits, ring, count):
    with pytest.raises(BadSetting, match="ring: saw"):
        kit.federation(count, quantiser=Quantiser(clip=1.0, bits=bits, ring=ring, w_max=7))


# ---- 8


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_08_what_is_not_finite_is_refused_and_nothing_is_used_up(kit, value):
    group, _, _, _, updates, weights = started(kit)
    site, before = group.sites[0], dict(group.sites[0].disk)
    bad = updates[0].copy()
    bad[SIZE // 2] = value
    with pytest.raises(BadVector, match="needed finite"):
        site.upload(bad, 1)
    assert site.disk == before
    assert site.upload(updates[0], weights[0]).size == SIZE + 1


def test_08_a_pad_that_met_bad_values_cannot_be_used_again(kit):
    group, _, _, _, updates, _ = started(kit)
    client = group.sites[0].client
    pad = client.pad()
    with pytest.raises(BadVector, match="needed finite"):
        client.upload(np.full(SIZE, np.nan, np.float32), 1, pad, bytes(32))
    with pytest.raises(BadVector, match="used before"):
        client.upload(updates[0], 1, pad, bytes(32))


def test_08_huge_values_are_clipped(kit):
    group = kit.make(3)
    updates = {m: np.array([3e38, -3e38, 0.0], np.float32) for m in range(3)}
    mean, _, _ = group.run(group.set_up(), 1, updates, dict.fromkeys(range(3), 1000))
    assert mean.tolist() == [1.0, -1.0, 0.0]


@pytest.mark.parametrize(
    "update", [np.zeros(SIZE + 1, np.float32), np.zeros((SIZE, 1), np.float32), np.zeros(SIZE)]
)
def test_08_a_vector_of_another_shape_or_type_is_refused(kit, update):
    group, *_ = started(kit)
    client = group.sites[0].client
    with pytest.raises(BadVector, match="update: saw"):
        client.upload(update, 1, client.pad(), bytes(32))


@pytest.mark.parametrize("weight", [-1, 1001])
def test_08_a_weight_beyond_the_pinned_one_is_refused(kit, weight):
    group, _, _, _, updates, _ = started(kit)
    with pytest.raises(BadVector, match="weight: saw"):
        group.sites[0].upload(updates[0], weight)


@pytest.mark.parametrize("vector", [np.zeros(SIZE, np.uint32), np.zeros(SIZE + 1, np.uint64)])
def test_08_the_server_refuses_an_oversized_or_ill_typed_vector(kit, vector):
    with pytest.raises(BadVector, match="masked vector"):
        RingSum(kit.quantiser, SIZE).add(vector)


# ---- 9


def test_09_a_helper_that_gives_a_false_share_is_named_and_the_sum_is_had_without_it(kit):
    group, exchange, letter, _vectors, _updates = uploaded(kit)
    exchange = group.sign(exchange, letter, range(5))
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


def test_09_a_dealer_whose_shares_do_not_match_its_tags_is_named_by_the_receiver(kit):
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
    _, out = setup.close().begin(1, range(5), Terms(SIZE, b"", kit.model))
    with pytest.raises(BadMessage, match="shares of site 003: saw others than it committed to"):
        group.sites[0].client.begin(out[0], kit.model)


@pytest.mark.parametrize("survives", [True, False])
def test_09_a_dealer_of_shares_of_another_secret_is_named(kit, survives):
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
    exchange, _ = group.begin(setup.close(), 1, range(5), SIZE)
    who = range(5) if survives else (0, 2, 3, 4)
    for member in who:
        group.sites[member].upload(np.zeros(SIZE, np.float32), 1)
    exchange, letter = group.collect(exchange, who)
    exchange = group.open(group.sign(exchange, letter, who), who)
    with pytest.raises(NotRecoverable, match="site 001 dealt shares of another secret"):
        exchange.masks()


# ---- 10


def rostered(kit, change, count=5):
    """What institution 0 says to a roster that the server changed."""
    group = kit.make(count)
    adverts = group.adverts()
    site = group.sites[0]
    return site.client.join(Roster(1, tuple(change(group, adverts))), kit.now, bytes(32))


def signed(group, member, advert):
    return replace(advert, signature=group.sites[member].identity.sign(advert.statement))


def test_10_a_swapped_key_breaks_the_signature(kit):
    def swap(group, adverts):
        return [*adverts[:4], replace(adverts[4], masks=(bytes(range(32)), *adverts[4].masks[1:]))]

    with pytest.raises(NotAdmitted, match="site 004"):
        rostered(kit, swap)


def test_10_an_unknown_member_or_another_descriptor_is_refused(kit):
    def stranger(group, adverts):
        return [*adverts, replace(adverts[4], member=5)]

    def other(group, adverts):
        return [*adverts[:4], signed(group, 4, replace(adverts[4], fid=bytes(32)))]

    with pytest.raises(NotAdmitted, match="saw member number 5"):
        rostered(kit, stranger)
    with pytest.raises(NotAdmitted, match="site 004 holds the descriptor"):
        rostered(kit, other)


def test_10_one_key_twice_is_refused(kit):
    def twice(group, adverts):
        return [*adverts[:4], signed(group, 4, replace(adverts[4], channel=adverts[3].channel))]

    with pytest.raises(BadMessage, match="one key of members 3 and 4"):
        rostered(kit, twice)


def test_10_keys_of_another_epoch_are_refused(kit):
    def stale(group, adverts):
        return [*adverts[:4], signed(group, 4, replace(adverts[4], epoch=7))]

    with pytest.raises(BadMessage, match="keys for epoch 7"):
        rostered(kit, stale)


@pytest.mark.parametrize("shift", [-601, 601])
def test_10_a_clock_that_differs_is_named(kit, shift):
    def late(group, adverts):
        return [*adverts[:4], signed(group, 4, replace(adverts[4], made=adverts[4].made + shift))]

    with pytest.raises(NotAdmitted, match="site 004: saw keys made at"):
        rostered(kit, late)


def test_10_a_roster_without_or_with_another_own_entry_is_refused(kit):
    def without(group, adverts):
        return adverts[1:]

    def another(group, adverts):
        return [signed(group, 0, replace(adverts[0], channel=bytes(range(32)))), *adverts[1:]]

    for change in (without, another):
        with pytest.raises(BadMessage, match="another advert of this institution"):
            rostered(kit, change)


def test_10_a_small_roster_is_refused(kit):
    with pytest.raises(BadMessage, match="roster: saw 3 institutions, needed 4"):
        rostered(kit, lambda group, adverts: adverts[:3])


def test_10_a_member_twice_is_refused(kit):
    with pytest.raises(BadMessage, match="each institution once"):
        rostered(kit, lambda group, adverts: [*adverts, adverts[4]])


def redelivered(kit, change):
    group = kit.make(5)
    epoch = group.set_up()
    _, out = epoch.begin(1, range(5), Terms(SIZE, b"", kit.model))
    return group.sites[0].client.begin(replace(out[0], **change(out)), kit.model)


def test_10_a_rerouted_or_changed_blob_is_refused(kit):
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


def test_10_shares_of_oneself_or_of_a_stranger_are_refused(kit):
    def own(out):
        return {"deliveries": (Delivery(0, b"", bytes(32)), *out[0].deliveries)}

    def strange(out):
        return {"deliveries": (*out[0].deliveries, Delivery(9, b"", bytes(32)))}

    for change in (own, strange):
        with pytest.raises(BadMessage, match="needed those of others"):
            redelivered(kit, change)


def test_09_a_dealer_that_seals_too_few_shares_is_named_by_the_receiver(kit):
    group = kit.make(5)
    setup = SetUp(group.federation, 1)
    for advert in group.adverts():
        setup = setup.admit(advert, kit.now)
    secret = loaded(group.sites[1].client.state.channel)
    setup, roster = setup.roster()
    for site in group.sites:
        setup = setup.receive(Deal.unpack(site.take(site.client.join(roster, kit.now, next(site.entropy)))))
    epoch = setup.close()
    _, out = epoch.begin(1, range(5), Terms(SIZE, b"", kit.model))
    rho, fid = epoch.known.rho, group.federation.fid
    key = rules.channel(secret, epoch.known.advert(0).channel, rho, 1, 0)
    for size in (64, 63, 64 * 4):
        blob = seal(key, bytes(size), rules.blob_context(fid, 1, rho, 1, 0))
        deliveries = (Delivery(1, blob, bytes(32)), *out[0].deliveries[1:])
        with pytest.raises(BadMessage, match=r"shares of site 001: saw \d+, needed 3 whole"):
            group.sites[0].client.begin(replace(out[0], deliveries=deliveries), kit.model)


def test_10_a_member_whose_shares_never_came_is_refused(kit):
    with pytest.raises(BadMessage, match=r"members \[4\] whose shares never came"):
        redelivered(kit, lambda out: {"deliveries": out[0].deliveries[:3]})


def test_10_an_exchange_that_is_too_small_or_without_oneself_is_refused(kit):
    with pytest.raises(BadMessage, match="begin: saw 3 institutions, needed 4"):
        redelivered(kit, lambda out: {"members": (0, 1, 2)})
    with pytest.raises(BadMessage, match=r"needed 0 \(|needed 0 in it"):
        redelivered(kit, lambda out: {"members": (1, 2, 3, 4)})


@pytest.mark.parametrize(
    ("survivors", "reason"),
    [
        ((1, 2, 3, 4), "needed 0"),
        ((0, 1, 2), "saw 3 institutions, needed 4"),
        ((0, 1, 2, 3, 9), "needed some of"),
    ],
)
def test_10_survivors_without_oneself_too_few_or_unknown_are_refused(kit, survivors, reason):
    group, *_ = uploaded(kit)
    with pytest.raises(BadMessage, match=reason):
        group.sites[0].client.agree(Agree(1, 1, survivors))


def test_10_survivors_are_not_signed_before_the_vector_is_sent(kit):
    group, *_ = started(kit)
    with pytest.raises(BadMessage, match="before the vector was sent"):
        group.sites[0].client.agree(Agree(1, 1, (0, 1, 2, 3)))


def test_10_a_server_with_another_descriptor_is_refused_before_training(kit):
    group = kit.make(3)
    other = kit.federation(3, exchanges=5)
    with pytest.raises(NotAdmitted, match="compare the files"):
        group.sites[0].client.open(SetUp(other, 1).letter(), kit.now, bytes(32))


def test_10_an_identity_that_is_not_pinned_cannot_start(kit):
    with pytest.raises(NotAdmitted, match="needed a member's"):
        Client.start(kit.federation(3), Identity(bytes(32)), {})


def test_10_a_mask_key_of_small_order_is_refused(kit):
    def weak(group, adverts):
        return [*adverts[:4], signed(group, 4, replace(adverts[4], channel=bytes(32)))]

    with pytest.raises(BadMessage, match="small order"):
        rostered(kit, weak)


# ---- 11


@given(key=st.binary(min_size=32, max_size=32), run=st.integers(0, 3), size=st.integers(1, 300))
@settings(max_examples=20)
def test_11_the_mask_is_aes_256_in_counter_mode(key, run, size):
    words = np.zeros(run * RUN_WORDS + size, np.uint32)
    add_strands(words, [Strand(key, minus=False)])
    counter = bytes(4) + run.to_bytes(8, "big") + (2).to_bytes(4, "big")
    plain = Cipher(algorithms.AES(key), modes.CTR(counter)).encryptor().update(bytes(4 * size))
    assert words[run * RUN_WORDS :].tobytes() == plain


# ---- 12


def test_12_after_a_crash_between_record_and_reply_each_letter_gets_its_first_answer_or_a_refusal(kit):
    group = kit.make(3)
    letter = Open(group.federation.fid, 1)
    firsts = [site.take(site.client.open(letter, kit.now, next(site.entropy))) for site in group.sites]
    for site, first in zip(group.sites, firsts, strict=True):
        site.restart()
        assert site.take(site.client.open(letter, kit.now + 5, next(site.entropy))) == first
    setup = SetUp(group.federation, 1)
    for first in firsts:
        setup = setup.admit(Advert.unpack(first), kit.now)
    setup, roster = setup.roster()
    for site in group.sites:
        deal = site.take(site.client.join(roster, kit.now, next(site.entropy)))
        site.restart()
        assert site.take(site.client.join(roster, kit.now, next(site.entropy))) == deal
        setup = setup.receive(Deal.unpack(deal))
    updates, weights = kit.vectors(3, SIZE)
    exchange, out = group.begin(setup.close(), 1, range(3), SIZE)
    ring = RingSum(group.federation.quantiser, SIZE)
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


def test_12_a_crash_before_the_record_leaves_the_exchange_unused(kit):
    group, _epoch, _exchange, out, updates, weights = started(kit, 3)
    site = group.sites[0]
    site.client.upload(updates[1], 1, site.client.pad(), bytes(32))  # never written, never sent
    site.restart()
    site.take(site.client.begin(out[0], kit.model))
    assert site.upload(updates[0], weights[0]).size == SIZE + 1


def test_12_an_institution_that_lost_its_vector_goes_on_with_the_next_exchange(kit):
    group, epoch, _, _, updates, weights = started(kit, 3)
    group.sites[0].upload(updates[0], weights[0])
    group.sites[0].restart()
    _mean, weight, _ = group.run(epoch, 2, updates, weights)
    assert weight == sum(weights.values())


# ---- 13


def test_13_shares_of_another_exchange_are_refused(kit):
    group, epoch, exchange, _, updates, weights = started(kit)
    opened = {}
    for number in (1, 2):
        if number == 2:
            exchange, _ = group.begin(epoch, 2, range(5), SIZE)
        for member, site in enumerate(group.sites):
            site.upload(updates[member], weights[member])
        exchange, letter = group.collect(exchange, range(5))
        exchange = group.sign(exchange, letter, range(5))
        opened[number] = Opened.unpack(group.sites[0].take(group.sites[0].client.unlock(exchange.unlock())))
    with pytest.raises(BadMessage, match="shares of another exchange"):
        exchange.open(opened[1])
    with pytest.raises(BadMessage, match="a false share"):
        exchange.open(replace(opened[1], exchange=2))


def test_13_what_is_over_is_erased_from_disk_and_memory(kit):
    group, exchange, letter, _, _ = uploaded(kit)
    exchange = group.sign(exchange, letter, range(5))
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


def test_13_an_exchange_that_is_passed_over_is_erased_too(kit):
    group, epoch, *_ = started(kit, number=1)
    group.begin(epoch, 3, range(5), SIZE)
    names = {name for name in group.sites[0].disk if name.startswith(("own/", "held/"))}
    assert names == {"own/3", "held/3"}
    group.set_up(2)
    assert group.sites[0].disk["own/1"] != group.sites[0].disk["own/3"]


# ---- 14


def test_14_every_library_version_gives_these_bytes(kit):
    """Golden: two versions that differ in any of these cannot be in one federation."""
    group = kit.make(3)
    exchange, _ = group.begin(group.set_up(), 1, range(3), SIZE)
    update = np.linspace(-1.5, 1.5, SIZE, dtype=np.float32)
    vectors = [site.upload(update, 7 + member) for member, site in enumerate(group.sites)]
    exchange, letter = group.collect(exchange, range(3))
    exchange = group.open(group.sign(exchange, letter, range(3)), range(3))
    found = {
        "descriptor": group.federation.fid,
        "roster": exchange.known.rho,
        "context": exchange.context,
        "vector": hashlib.sha256(vectors[1].tobytes()).digest(),
        "signature": exchange.signatures[1],
        "shares": hashlib.sha256(b"".join(s for _, s in sorted(exchange.opened[1].items()))).digest(),
    }
    assert {name: value.hex()[:32] for name, value in found.items()} == GOLDEN


GOLDEN = {
    "descriptor": "74582769a0f0ad7600c8192f12880c82",
    "roster": "e0a98f84390f56c2511c8fe8939ad5d2",
    "context": "05af2d9ba0e05de12ba0619efa9a6fac",
    "vector": "5c59184e97a83340226081fa2332dbb0",
    "signature": "1a0aedeeb74083ef42c1e0b332fe1cac",
    "shares": "2691ff0cf3d90c5307a7e45d13c3a53c",
}


# ---- what holds for any set of survivors


@given(data=st.data(), count=st.sampled_from([3, 4, 5, 7]), ring=st.sampled_from([(20, 32), (8, 16), (4, 8)]))
@settings(max_examples=25)
def test_any_quorum_of_survivors_gives_the_exact_ring_sum_and_fewer_give_an_error(kit, data, count, ring):
    bits, width = ring
    group = kit.make(count, quantiser=Quantiser(1.0, bits, width, 1000))
    epoch = group.set_up()
    updates, weights = kit.vectors(count, SIZE, count)
    subset = st.sets(st.sampled_from(range(count)))
    survivors, signing, opening = (data.draw(subset) for _ in range(3))
    exchange, _ = group.begin(epoch, 1, range(count), SIZE)
    ring_sum = RingSum(group.federation.quantiser, SIZE)
    plain = np.zeros(group.federation.quantiser.words(SIZE), f"<u{width // 8}")
    for member in sorted(survivors):
        site = group.sites[member]
        chance = next(site.entropy)
        pad = site.client.pad()
        ring_sum.add(site.take(site.client.upload(updates[member], weights[member], pad, chance)))
        rounding = rules.derive(chance, exchange.context, "rounding")
        group.federation.quantiser.add(updates[member], weights[member], plain, rounding)
    quorum, threshold = group.federation.quorum, group.federation.threshold
    signing, opening = signing & survivors, opening & signing & survivors

    def finish():
        agreed, letter = group.collect(exchange, survivors)
        ring_sum.remove(group.open(group.sign(agreed, letter, signing), opening).masks())

    if len(survivors) < quorum or min(len(signing), len(opening)) < threshold:
        with pytest.raises(NotRecoverable):
            finish()
        return
    finish()
    assert np.array_equal(ring_sum._words, plain)


def test_one_masked_vector_alone_is_uniform(kit):
    group = kit.make(3)
    size = 20_000
    _exchange, _ = group.begin(group.set_up(), 1, range(3), size)
    vector = group.sites[0].upload(np.zeros(size, np.float32), 0)
    assert looks_uniform(vector[:size])
    assert not looks_uniform(np.zeros(size, np.uint32))


@pytest.mark.parametrize("entropy", [b"", bytes(31), bytes(33)])
def test_too_little_chance_is_refused(kit, entropy):
    group, *_ = started(kit)
    client, letter = group.sites[0].client, Open(group.federation.fid, 2)
    roster = client.state.known.roster
    for ask in (
        lambda: client.open(letter, kit.now, entropy),
        lambda: client.join(roster, kit.now, entropy),
        lambda: client.upload(np.zeros(SIZE, np.float32), 1, client.pad(), entropy),
    ):
        with pytest.raises(BadMessage, match="entropy: saw"):
            ask()


def test_a_refused_letter_changes_nothing(kit):
    group, *_ = uploaded(kit)
    site = group.sites[0]
    before = site.client
    with pytest.raises(FedgcError):
        site.client.agree(Agree(1, 1, (1, 2, 3, 4)))
    assert site.client is before


def test_a_begin_letter_of_the_wire_is_the_one_that_was_sent(kit):
    _, _, _, out, _, _ = started(kit)
    assert all(Begin.unpack(letter.pack()) == letter for letter in out.values())


def test_the_federation_of_every_machine_is_the_pinned_one(kit):
    federation = kit.federation(5)
    assert Federation.unpack(federation.pack()) == federation
