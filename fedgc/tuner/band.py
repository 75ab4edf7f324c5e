"""An 80% band for the time of the next round, learned from how past predictions came out.

A replay draws the errors of the clients nearly independently of each other. Where one cause slows many of
them at once, it is too optimistic, and its spread too small. So the tuner keeps the ratio of a round's time
to the mean of the replays that predicted it. The band of the next round is the mean of its replays times two
quantiles of the last ratios (conformal prediction, Vovk, Gammerman and Shafer 2005). Such quantiles are
calibrated if the ratios are exchangeable. Clients change, so the level of each tail follows the misses on
its side (adaptive conformal inference, Gibbs and Candes 2021, arXiv 2106.00170):

    level <- level + RATE * (TAIL - missed)        missed: 1 if the round was beyond the quantile, else 0

Until there are `FULL` ratios, the replays stand in for the missing ones, around the ratios that are there.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedgc.errors import BadSetting

Float = NDArray[np.float64]

TAIL: Final = 0.1  # share of the rounds that may be below the band, and above it
RATE: Final = 0.1
FULL: Final = 10  # ratios: the 10% quantile of fewer would be beyond the least of them
WIDEST: Final = 0.5  # a tail's level is at most this: the band then shrinks to the median
SAME: Final = 1e-3  # share of a time below which two times are equal


@dataclass(frozen=True, slots=True)
class Band:
    """The expected time of the next round, and the limits of four rounds in five."""

    expected_s: float
    low_s: float
    high_s: float

    def __post_init__(self) -> None:
        if not 0 <= self.low_s <= self.expected_s <= self.high_s:
            raise BadSetting(
                f"band: saw {self.expected_s} s in {self.low_s} to {self.high_s} s, needed it in the band"
            )

    def holds(self, seconds: float) -> bool:
        """Return whether a round of this time is in the band.

        >>> Band(2.0, 1.5, 3.0).holds(3.0), Band(2.0, 1.5, 3.0).holds(3.1)
        (True, False)
        """
        return self.low_s <= seconds <= self.high_s


def band_of(replayed_s: Sequence[float], ratios: Sequence[float]) -> Band:
    """Return the band of a plan with these replays, after rounds with these ratios (oldest first).

    Args:
        replayed_s: times of the plan in drawn futures, above 0.
        ratios: time of a round over the mean of the replays that predicted it, above 0.

    >>> band_of([1.0, 1.0], [])
    Band(expected_s=1.0, low_s=0.999, high_s=1.001)
    >>> late = band_of([0.9, 1.1], [1.4] * 10)
    >>> round(late.expected_s, 2), round(late.low_s, 2), round(late.high_s, 2)
    (1.4, 1.4, 1.4)
    """
    replay_s = float(np.mean(replayed_s))
    drawn, seen = np.log(np.asarray(replayed_s) / replay_s), np.log(np.asarray(ratios, np.float64))
    low_level = high_level = TAIL
    for at, log_ratio in enumerate(seen.tolist()):
        low, high = _Pool.of(drawn, seen[:at]).quantiles(low_level, high_level)
        low_level += RATE * (TAIL - (log_ratio < low - SAME))
        high_level += RATE * (TAIL - (log_ratio > high + SAME))
    pool = _Pool.of(drawn, seen)
    low, high = pool.quantiles(low_level, high_level)
    expected_s = replay_s * pool.mean_within(low, high)
    return Band(
        expected_s,
        min(expected_s, replay_s * math.exp(low) * (1.0 - SAME)),
        max(expected_s, replay_s * math.exp(high) * (1.0 + SAME)),
    )


@dataclass(frozen=True, slots=True)
class _Pool:
    """Logarithms of ratios, sorted, with their weights."""

    logs: Float
    weights: Float

    @classmethod
    def of(cls, drawn: Float, seen: Float) -> "_Pool":
        """Return the seen ratios, and drawn ones in place of those that are missing up to `FULL`."""
        lacks = max(0, FULL - seen.size) / FULL
        middle = float(np.median(drawn))
        center = lacks * middle + (1.0 - lacks) * float(np.median(seen)) if seen.size else middle
        logs = np.concatenate([seen, drawn - middle + center])
        weights = np.concatenate([np.ones(seen.size), np.full(drawn.size, FULL * lacks / drawn.size)])
        order = np.argsort(logs, kind="stable")
        order = order[weights[order] > 0]
        return cls(logs[order], weights[order])

    def quantiles(self, low_level: float, high_level: float) -> tuple[float, float]:
        """Return the quantiles beyond which these shares of the next ratios are expected.

        Of n exchangeable values, the next one exceeds the k-th least with probability 1 - k / (n + 1).
        """
        whole = self.weights.sum() + 1.0
        above = np.cumsum(self.weights) / whole
        below = 1.0 - np.cumsum(self.weights[::-1])[::-1] / whole
        return (
            float(np.interp(np.clip(low_level, 0.0, WIDEST), below, self.logs)),
            float(np.interp(1.0 - np.clip(high_level, 0.0, WIDEST), above, self.logs)),
        )

    def mean_within(self, low: float, high: float) -> float:
        """Return the mean ratio, with those beyond the limits moved to them, as one may be an outlier."""
        ratios = np.exp(np.clip(self.logs, min(low, high), max(low, high)))
        return float(np.average(ratios, weights=self.weights))
