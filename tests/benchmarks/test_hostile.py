"""Test the benchmark of hostile clients: what they send, and that the bounded rule withstands it."""

import numpy as np
import pytest

from benchmarks.hostile import (
    ATTACKS,
    CLAIMED,
    OWN,
    ROUNDS,
    UNEVEN,
    Fleet,
    _announced,
    _beside,
    _Case,
    _play,
    _shares,
    _task,
)
from fedgc.messages import Reveal

FEW = 6  # rounds


def test_attack_updates_match_hand_computed_ones() -> None:
    update = np.array([1.0, -2.0, 3.0], np.float32)
    assert ATTACKS["none"](None, update, None) is update
    assert ATTACKS["flip x3"](None, update, None).tolist() == [-3, 6, -9]
    assert ATTACKS["zeros"](None, update, None).tolist() == [0, 0, 0]
    assert len(ATTACKS) == 14
    assert ROUNDS > FEW


def test_client_that_turns_follows_honest_mean_at_first() -> None:
    class Engines:
        hostile, clients = 1, 3

        def honest(self, w: int, command: Reveal) -> np.ndarray:
            return np.float32([w, 2 * w])

    first, last = (Reveal("client 0", round_, 0, "local", None) for round_ in (ROUNDS // 2, ROUNDS // 2 + 1))
    assert ATTACKS["turn"](Engines(), None, first).tolist() == [7.5, 15.0]
    assert ATTACKS["turn"](Engines(), None, last).tolist() == [-7.5, -15.0]


def test_false_samples_are_announced_only() -> None:
    fleet = Fleet(4, 1, "samples")
    task = _task(fleet, 0)
    announced, true = list(_announced(task, fleet).sizes().values()), list(task.sizes().values())
    assert announced == [CLAIMED, *true[1:]]


@pytest.mark.parametrize("data", UNEVEN)
def test_uneven_data_deal_each_sample_once(data: str) -> None:
    dealt = _task(Fleet(4, 0, "none", data), 0).sizes()
    assert sum(dealt.values()) == sum(_task(Fleet(4, 0, "none"), 0).sizes().values())
    assert (max(dealt.values()) > 2 * min(dealt.values())) == (data == "half")


def test_first_client_alone_has_its_own_labels() -> None:
    labels = np.repeat(np.arange(10), 20)
    own, *others = _shares(Fleet(4, 0, "none", "own labels"), labels, np.random.default_rng(0))
    assert set(labels[own]) == set(range(OWN))
    assert set(labels[np.concatenate(others)]) == set(range(OWN, 10))


def test_honest_run_is_compared_with_weighted_mean() -> None:
    uneven = _Case(Fleet(4, 0, "none", "half"), "median", FEW, 1)
    assert _beside(uneven) == _Case(Fleet(4, 0, "none", "half"), "weighted-mean", FEW, 1)
    attacked = _Case(Fleet(4, 1, "flip"), "median", FEW, 1)
    assert _beside(attacked) == _Case(Fleet(4, 1, "none"), "median", FEW, 1)


@pytest.mark.parametrize("attack", ["scale", "samples"])
def test_bounded_rule_learns_where_plain_mean_fails(attack: str) -> None:
    accuracy = {
        rule: _play(_Case(Fleet(4, 1, attack), rule, FEW, 0))[0] for rule in ("auto", "weighted-mean")
    }
    assert accuracy["auto"] > 0.6
    if attack == "scale":
        assert accuracy["weighted-mean"] < 0.3


def test_mute_client_delays_run_little() -> None:
    (_, alone_s), (_, delayed_s) = (
        _play(_Case(Fleet(4, 1, attack), "auto", ROUNDS, 0)) for attack in ("none", "mute")
    )
    assert delayed_s < 1.3 * alone_s
