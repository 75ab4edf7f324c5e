"""Exchanges of a sparse federation: members with few neighbors and holders."""

import numpy as np
import pytest

from fedgc.secagg.graph import graph_for

COUNT, THRESHOLD = 24, 21
GRAPH = graph_for(COUNT, THRESHOLD, THRESHOLD, colluders=2, lost=1)


@pytest.fixture
def sparse(kit):
    return lambda **pinned: kit.make(COUNT, threshold=THRESHOLD, graph=GRAPH, **pinned)


@pytest.mark.parametrize("stage", ["lost_early", "lost_late", "lost_last"])
def test_sparse_sum_equals_survivor_sum_wherever_site_is_lost(kit, sparse, stage):
    group = sparse()
    epoch = group.set_up()
    updates, weights = kit.vectors(COUNT, kit.size)
    for number in (1, 2):
        mean, weight, survivors = group.run(epoch, number, updates, weights, **{stage: [7]})
        assert weight == sum(weights[m] for m in survivors)
        bound = group.federation.quantizer.bound(len(survivors), weight)
        assert np.abs(mean - kit.true_mean(updates, weights, survivors)).max() <= bound
        for member in survivors:
            epoch = epoch.supply(member)
