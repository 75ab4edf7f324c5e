"""Test exchanges from set-up to mean, with losses at every point, and their bytes across versions."""

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgc.errors import NotRecoverable
from fedgc.secagg import MaskedVector, Quantizer, RingSum, rules


@pytest.mark.parametrize("count", [3, 5, 8])
@pytest.mark.parametrize("point", ["never", "before the deal", "known absent", "early", "late", "last"])
def test_01_sum_equals_survivor_sum_wherever_site_is_lost(kit, count, point):
    group = kit.make(count)
    lost = [1]
    updates, weights = kit.vectors(count, kit.size)
    here = [m for m in range(count) if m not in lost]

    def run():
        epoch = group.set_up(silent=lost if point == "before the deal" else ())
        absent = point in ("before the deal", "known absent")
        who = here if absent else range(count)
        failure = {"early": "lost_early", "late": "lost_late", "last": "lost_last"}.get(point)
        return group.run(
            epoch, 2, {m: updates[m] for m in who}, weights, **({failure: lost} if failure else {})
        )

    if count == 3 and point != "never":
        with pytest.raises(NotRecoverable, match=r"saw 2 |shares of 2,"):
            run()
        return
    mean, weight, survivors = run()
    assert set(survivors) == (set(range(count)) if point in ("never", "late", "last") else set(here))
    assert weight == sum(weights[m] for m in survivors)
    bound = group.federation.quantizer.bound(len(survivors), weight)
    assert np.abs(mean - kit.true_mean(updates, weights, survivors)).max() <= bound


@given(data=st.data(), count=st.sampled_from([3, 4, 5, 7]), ring=st.sampled_from([(20, 32), (8, 16), (4, 8)]))
@settings(max_examples=25)
def test_any_quorum_gives_exact_ring_sum_and_fewer_give_error(kit, data, count, ring):
    bits, width = ring
    group = kit.make(count, quantizer=Quantizer(1.0, bits, width, 1000))
    epoch = group.set_up()
    updates, weights = kit.vectors(count, kit.size, count)
    subset = st.sets(st.sampled_from(range(count)))
    survivors, signing, opening = (data.draw(subset) for _ in range(3))
    exchange, _ = group.begin(epoch, 1, range(count), kit.size)
    ring_sum = RingSum(group.federation.quantizer, kit.size)
    plain = np.zeros(group.federation.quantizer.words(kit.size), f"<u{width // 8}")
    for member in sorted(survivors):
        site = group.sites[member]
        chance = next(site.entropy)
        start = site.client.state.start
        ring_sum.add(site.take(site.client.upload(updates[member], weights[member], start, chance)))
        rounding = rules.derive(chance, exchange.context, "rounding")
        quantizer = group.federation.quantizer
        plain += MaskedVector(quantizer, updates[member], weights[member], (), rounding)[:]
    quorum, threshold = group.federation.quorum, group.federation.threshold
    signing, opening = signing & survivors, opening & signing & survivors

    def finish():
        agreed, packet = group.collect(exchange, survivors)
        ring_sum.remove(group.open(group.sign(agreed, packet, signing), opening).masks())

    if len(survivors) < quorum or min(len(signing), len(opening)) < threshold:
        with pytest.raises(NotRecoverable):
            finish()
        return
    finish()
    assert np.array_equal(ring_sum._words, plain)


def test_14_every_library_version_gives_same_bytes(kit):
    """Golden: two versions that differ in any of these cannot be in one federation."""
    group = kit.make(3)
    exchange, _ = group.begin(group.set_up(), 1, range(3), kit.size)
    update = np.linspace(-1.5, 1.5, kit.size, dtype=np.float32)
    vectors = [site.upload(update, 7 + member) for member, site in enumerate(group.sites)]
    exchange, packet = group.collect(exchange, range(3))
    exchange = group.open(group.sign(exchange, packet, range(3)), range(3))
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
