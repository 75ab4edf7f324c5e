"""Accounting of releases by Renyi differential privacy (Mironov 2017), with and without Poisson sampling.

A release adds Gaussian noise of `noise` times the sensitivity to a sum over the records (or sites), of which
each is in the sum with probability `rate` (1: all are). At order a it costs

    rate 1:  a / (2 noise^2)
    else:    log E[((1 - rate) + rate exp((2 x - 1) / (2 noise^2)))^a] / (a - 1),  x ~ N(0, noise^2)

(Mironov, Talwar, Zhang, arXiv 1908.10530; the expectation is computed by the trapezoidal rule). Costs of
releases add up, and give epsilon by Canonne, Kamath, Steinke (arXiv 2004.00010), proposition 12.

The first line holds for a sum of n discrete Gaussians too, up to terms in tau < 10 n exp(-pi^2 s^2) if each
has a deviation of s steps (Kairouz et al., arXiv 2102.06387, proposition 14). A descriptor requires s >= 2,
so tau is below 1e-13: even times the root of 10^9 numbers it is below the precision of the figures.
"""

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedgc.errors import BadSetting

Numbers = NDArray[np.float64]
Release = tuple[float, float, int]  # noise, rate, and how many there were

ORDERS: Final[Numbers] = 1 + np.geomspace(0.02, 500, 200)
_FAR: Final = 12.0  # deviations beyond which the density adds nothing
_POINTS: Final = 16  # of the trapezoidal rule in one deviation
_HALVINGS: Final = 40
_MOST_NOISE: Final = 1e6


def epsilon_of_releases(releases: Iterable[Release], delta: float) -> float:
    """Return the epsilon of these releases together.

    >>> round(epsilon_of_releases([(4.0, 1.0, 100)], 1e-6), 2)
    15.33
    >>> round(epsilon_of_releases([(1.0, 0.01, 1000)], 1e-6), 2)
    2.44
    """
    costs = np.zeros(ORDERS.size)
    for noise, rate, count in releases:
        if count:
            costs = costs + count * _costs(noise, rate)
    if not costs.any():
        return 0.0
    return max(0.0, float((costs + _surcharge(delta)).min()))


@lru_cache(maxsize=16)
def noise_for_releases(most: float, rate: float, count: int, delta: float) -> float:
    """Return about the least noise with which so many releases spend at most this epsilon.

    Raises:
        BadSetting: The epsilon is too small to be shown at this delta.

    >>> round(noise_for_releases(2.44, 0.01, 1000, 1e-6), 2)
    1.0
    """
    low, high = 0.1, 1.0
    while epsilon_of_releases([(high, rate, count)], delta) > most:
        if high > _MOST_NOISE:
            raise BadSetting(
                f"epsilon: saw {most:g}, needed more than any noise can spend at delta {delta:g}"
            )
        low, high = high, 2 * high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        spent = epsilon_of_releases([(middle, rate, count)], delta)
        low, high = (middle, high) if spent > most else (low, middle)
    return high


def with_release(releases: Iterable[Release], release: Release) -> tuple[Release, ...]:
    """Return releases with one more entry; those of one noise and rate are counted together.

    >>> with_release([(1.0, 0.5, 2)], (1.0, 0.5, 3))
    ((1.0, 0.5, 5),)
    """
    counts = {(noise, rate): count for noise, rate, count in releases}
    noise, rate, more = release
    counts[noise, rate] = counts.get((noise, rate), 0) + more
    return tuple((noise, rate, count) for (noise, rate), count in counts.items())


def text_above(seen: float, most: float) -> str:
    """Return a number above `most` with as many digits as show that it is.

    >>> text_above(9.2461, 8), text_above(20.034, 20)
    ('9.25', '20.03')
    """
    texts = (f"{seen:.{digits}g}" for digits in range(3, 17))
    return next((text for text in texts if float(text) > most), repr(seen))


@lru_cache(maxsize=256)
def _costs(noise: float, rate: float) -> Numbers:
    """Return the cost of one release at each order."""
    if rate >= 1:
        return ORDERS / (2 * noise * noise)
    return np.array([_sampled_cost(noise, rate, float(order)) for order in ORDERS])


def _sampled_cost(noise: float, rate: float, order: float) -> float:
    step = noise / _POINTS
    x = np.arange(-_FAR * noise, order + _FAR * noise, step)
    ratio = np.logaddexp(math.log1p(-rate), math.log(rate) + (2 * x - 1) / (2 * noise * noise))
    logs = order * ratio - x * x / (2 * noise * noise)
    top = float(logs.max())
    scale = step / (noise * math.sqrt(2 * math.pi))
    return max(0.0, (top + math.log(float(np.exp(logs - top).sum()) * scale)) / (order - 1))


def _surcharge(delta: float) -> Numbers:
    found: Numbers = np.log1p(-1 / ORDERS) - np.log(delta * ORDERS) / (ORDERS - 1)
    return found
