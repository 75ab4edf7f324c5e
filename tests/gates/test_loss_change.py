"""Test the gate loss-change: an even budget, with more exchanges after a client's loss has risen."""

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgc.gates import Report, Reports
from fedgc.gates.loss_change import LossChange

CHECKS = 240
losses = st.lists(st.floats(1e-9, 1e9), min_size=CHECKS, max_size=CHECKS)


def decisions(gate: LossChange, loss_at, clients: int = 3, **costs) -> list[bool]:
    """Drive the gate; reports carry the mean loss since the last sync, as those of clients do."""
    state, decided, since = gate.init(), [], []
    for check in range(CHECKS):
        since.append([loss_at(check, w) for w in range(clients)])
        means = [sum(column) / len(since) for column in zip(*since, strict=True)]
        items = tuple(Report(w, 8 * len(since), 1, 0.0, mean) for w, mean in enumerate(means))
        reports = Reports(items, rounds_left=CHECKS - 1 - check, **costs)
        state, decision = gate.step(json.loads(json.dumps(state, allow_nan=False)), reports)
        decided.append(decision.sync)
        since = [] if decision.sync else since
    return decided


def test_constant_loss_is_exchanged_evenly():
    at = [check for check, sync in enumerate(decisions(LossChange(0.1), lambda *_: 2.0)) if sync]
    gaps = {later - earlier for earlier, later in pairwise(at[:-1])}  # the last exchange ends the run
    assert len(at) == 24
    assert gaps <= {9, 10, 11, 12}


@pytest.mark.parametrize("who", [(0, 1, 2), (1,)])
def test_risen_loss_of_any_client_is_followed_by_exchanges(who):
    def loss(check: int, w: int) -> float:
        return 3.0 if check >= 120 and w in who else 1.0

    calm, risen = decisions(LossChange(0.1), lambda *_: 1.0), decisions(LossChange(0.1), loss)
    assert sum(risen[:120]) == sum(calm[:120])
    assert sum(risen[120:140]) >= sum(calm[120:140]) + 3
    assert sum(risen) == sum(calm)


def test_falling_loss_saves_exchanges():
    calm = decisions(LossChange(0.1), lambda *_: 1.0)
    fallen = decisions(LossChange(0.1), lambda check, _: 0.3 if check >= 120 else 1.0)
    assert sum(fallen[120:150]) < sum(calm[120:150])


@settings(max_examples=20)
@given(losses=losses, share=st.floats(0.05, 1))
def test_share_of_checks_is_never_exceeded(losses, share):
    decided = decisions(LossChange(share, max_gap=None), lambda check, w: losses[check] * (w + 1))
    assert 1 <= sum(decided) <= share * CHECKS + 1
    assert decided[-1]


@pytest.mark.parametrize("loss", [0.0, -3.0, float("nan"), float("inf")])
def test_losses_without_logarithm_leave_even_schedule(loss):
    def driven(value: float) -> list[bool]:
        gate, decided = LossChange(0.2), []
        state = gate.init()
        for check in range(40):
            reports = Reports((Report("a", 1, 1, 0.0, value),), rounds_left=39 - check)
            state, decision = gate.step(state, reports)
            decided.append(decision.sync)
        return decided

    assert driven(loss) == driven(1.0)


def test_gap_bounds_take_precedence():
    def loss(check: int, _w: int) -> float:
        return 50.0 if check % 40 < 5 else 0.01

    at = [check for check, sync in enumerate(decisions(LossChange(0.2, max_gap=9, min_gap=3), loss)) if sync]
    gaps = [later - earlier for earlier, later in pairwise(at)]
    assert min(gaps) >= 3
    assert max(gaps) <= 9
