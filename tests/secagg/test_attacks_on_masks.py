"""Test masking: each mask is used once, on numbers that fit, and the rest looks uniform."""

import hashlib

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgc.errors import BadMessage, BadSetting, BadVector
from fedgc.secagg import MaskedVector, Quantizer, RingSum, rules
from fedgc.secagg.keys import loaded
from fedgc.secagg.keystream import BLOCK_WORDS, RUN_WORDS, Strand, add_strands
from fedgc.secagg.packets import Agree
from fedgc.secagg.shamir import combine


def looks_uniform(words):
    """Each of the 32 bits is set half of the time, within five deviations."""
    bits = (words[:, None] >> np.arange(32, dtype=np.uint32)) & 1
    return bool((abs(bits.mean(axis=0) - 0.5) < 5 * 0.5 / np.sqrt(len(words))).all())


def test_06_exchange_is_masked_once(kit):
    group, _, _, out, updates, weights = kit.started()
    site = group.sites[0]
    sent = site.upload(updates[0], weights[0])
    with pytest.raises(BadMessage, match="no exchange that waits"):
        site.upload(updates[1], 1)
    assert np.array_equal(site.take(site.client.begin(out[0], kit.model))[:], sent)
    site.restart()
    with pytest.raises(BadMessage, match="no exchange that waits"):
        site.upload(updates[1], 1)


def test_06_update_that_has_changed_is_not_masked(kit):
    """The server has sent other work in the middle of an upload, or before it has begun."""
    quantizer, size = Quantizer(1.0, 20, 32, 1000), 2 * BLOCK_WORDS + 5
    update = np.full(size, 0.25, np.float32)
    vector = MaskedVector(quantizer, update, 1, [Strand(bytes(32), minus=False)], bytes(32))
    first = vector[: BLOCK_WORDS + 1]
    update[-1] = 0.5
    with pytest.raises(BadVector, match="update: saw it changed"):
        vector[2 * BLOCK_WORDS :]
    with pytest.raises(BadVector, match="update: saw it changed"):
        vector[:]
    assert np.array_equal(vector[: BLOCK_WORDS + 1], first)
    update[0] = 0.5
    with pytest.raises(BadVector, match="update: saw it changed"):
        vector[:1]


@pytest.mark.parametrize(("model", "settings"), [(b"another", b"settings"), (b"model", b"other settings")])
@pytest.mark.parametrize("restart", [False, True])
def test_05_update_from_unbound_model_is_not_masked(kit, model, settings, restart):
    """The server sends one site another model after the exchange has begun."""
    group, _, _, _, updates, weights = kit.started()
    site = group.sites[0]
    if restart:
        site.restart()
    wrong = rules.start(hashlib.sha256(model).digest(), settings)
    before = dict(site.disk)
    with pytest.raises(BadMessage, match="made from another model or other settings"):
        site.client.upload(updates[0], weights[0], wrong, bytes(32))
    assert site.disk == before
    right = rules.start(kit.model, b"settings")
    assert site.take(site.client.upload(updates[0], weights[0], right, bytes(32))).size == 41


@pytest.mark.parametrize(("bits", "ring", "count"), [(22, 32, 5), (20, 32, 8), (8, 16, 8), (4, 8, 18)])
@pytest.mark.parametrize("sign", [1, -1])
def test_07_all_values_at_ring_maximum_are_exact(kit, bits, ring, count, sign):
    group = kit.make(count, quantizer=Quantizer(clip=2.0, bits=bits, ring=ring, w_max=7))
    epoch = group.set_up()
    updates = {m: np.full(kit.size, sign * 9.0, np.float32) for m in range(count)}
    mean, weight, _ = group.run(epoch, 1, updates, dict.fromkeys(range(count), 7))
    assert weight == 7 * count
    assert np.array_equal(mean, np.full(kit.size, sign * 2.0, np.float32))


@pytest.mark.parametrize(("bits", "ring", "count"), [(8, 8, 3), (4, 8, 19), (16, 16, 3), (9, 16, 129)])
def test_07_overflowing_sums_are_refused_in_descriptor(kit, bits, ring, count):
    with pytest.raises(BadSetting, match="ring: saw"):
        kit.federation(count, quantizer=Quantizer(clip=1.0, bits=bits, ring=ring, w_max=7))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_08_non_finite_value_is_refused_and_uses_nothing_up(kit, value):
    group, _, _, _, updates, weights = kit.started()
    site, before = group.sites[0], dict(group.sites[0].disk)
    bad = updates[0].copy()
    bad[kit.size // 2] = value
    with pytest.raises(BadVector, match="needed finite"):
        site.upload(bad, 1)
    assert site.disk == before
    assert site.upload(updates[0], weights[0]).size == kit.size + 1


def test_08_huge_values_are_clipped(kit):
    group = kit.make(3)
    updates = {m: np.array([3e38, -3e38, 0.0], np.float32) for m in range(3)}
    mean, _, _ = group.run(group.set_up(), 1, updates, dict.fromkeys(range(3), 1000))
    assert mean.tolist() == [1.0, -1.0, 0.0]


@pytest.mark.parametrize(("size", "kind"), [(41, np.float32), (40, np.float64)])
def test_08_vector_of_wrong_size_or_type_is_refused(kit, size, kind):
    group, *_ = kit.started()
    client, update = group.sites[0].client, np.zeros(size, kind)
    with pytest.raises(BadVector, match="update: saw"):
        client.upload(update, 1, client.state.start, bytes(32))


@pytest.mark.parametrize("weight", [-1, 1001])
def test_08_weight_above_pinned_weight_is_refused(kit, weight):
    group, _, _, _, updates, _ = kit.started()
    with pytest.raises(BadVector, match="weight: saw"):
        group.sites[0].upload(updates[0], weight)


@pytest.mark.parametrize(("size", "kind"), [(40, np.uint32), (42, np.uint32), (41, np.uint64)])
def test_08_server_refuses_oversized_or_ill_typed_vector(kit, size, kind):
    RingSum(kit.quantizer, 40).add(np.zeros(41, np.uint32))
    with pytest.raises(BadVector, match="masked vector"):
        RingSum(kit.quantizer, 40).add(np.zeros(size, kind))


@given(key=st.binary(min_size=32, max_size=32), run=st.integers(0, 3), size=st.integers(1, 300))
@settings(max_examples=20)
def test_11_mask_is_aes_256_in_counter_mode(key, run, size):
    words = np.zeros(run * RUN_WORDS + size, np.uint32)
    add_strands(words, [Strand(key, minus=False)])
    counter = bytes(4) + run.to_bytes(8, "big") + (2).to_bytes(4, "big")
    plain = Cipher(algorithms.AES(key), modes.CTR(counter)).encryptor().update(bytes(4 * size))
    assert words[run * RUN_WORDS :].tobytes() == plain


def test_03_late_vector_of_dropped_site_stays_uniform(kit):
    group = kit.make(5)
    epoch = group.set_up()
    size = 20_000
    updates, weights = {m: np.zeros(size, np.float32) for m in range(5)}, dict.fromkeys(range(5), 1)
    exchange, _ = group.begin(epoch, 1, range(5), size)
    vectors = {m: group.sites[m].upload(updates[m], weights[m]) for m in range(5)}
    exchange, packet = group.collect(exchange, (0, 1, 2, 3))
    exchange = group.open(group.sign(exchange, packet, (0, 1, 2, 3)), (0, 1, 2, 3))
    ring = RingSum(group.federation.quantizer, size)
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
    # Only the self mask is left, and no site gives shares of it any more.
    with pytest.raises(BadMessage, match="one set an exchange"):
        group.sites[0].client.agree(Agree(1, 1, (0, 1, 2, 3, 4)))
    assert not any(name == "held/1" for site in group.sites[:4] for name in site.disk)


def test_single_masked_vector_is_uniform(kit):
    group = kit.make(3)
    size = 20_000
    _exchange, _ = group.begin(group.set_up(), 1, range(3), size)
    vector = group.sites[0].upload(np.zeros(size, np.float32), 0)
    assert looks_uniform(vector[:size])
    assert not looks_uniform(np.zeros(size, np.uint32))


@pytest.mark.parametrize(("weight_word", "moved"), [(0, 4096 / 200), (-199, 4096)])
def test_15_clip_does_not_bound_dishonest_member(kit, weight_word, moved):
    """The documented bound: half of the ring, divided by the remaining weights."""
    quantizer = Quantizer(clip=1.0, bits=20, ring=32, w_max=100)
    ring = RingSum(quantizer, kit.size)
    honest = MaskedVector(quantizer, np.zeros(kit.size, np.float32), 100, (), bytes(32))
    for _ in range(2):
        ring.add(honest)
    hostile = np.full(honest.size, 2**31 - 1, np.uint32)
    hostile[kit.size :] = np.uint32(weight_word % 2**32)
    ring.add(hostile)
    mean, _ = ring.mean()
    assert mean == pytest.approx(np.full(kit.size, 100 * moved), rel=1e-3)
    assert quantizer.reach == pytest.approx(100 * 4096, rel=1e-3)
