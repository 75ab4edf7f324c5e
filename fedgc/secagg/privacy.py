"""Differential privacy of sites under masks: clipping, discrete Gaussian noise of each site, accounting.

Secure aggregation hides single updates; the sum can still reveal what is in them. With this option each site
shortens its update to the norm C, whatever local steps it has made, rounds it to steps of the ring, and adds
integer noise before it masks: the distributed discrete Gaussian mechanism (Kairouz et al., arXiv 2102.06387).
Cohorts are adjacent if the update of one site is zeros in one of them; noise is added to the zeros as well.

    sensitivity = C / step + sqrt(numbers), in steps: the clipped update, and less than a step of rounding for
                  each number
    a site adds   discrete Gaussian noise of variance (noise * sensitivity)^2 / quorum
    a sum has     at least quorum sites, thus at least the deviation noise * sensitivity

Dropouts never leave too little noise: the fewest sites that a sum may have carry all of it, and a sum with
more sites has more. All words are integers of the ring, and adding modulo its size is post-processing, so the
accounting is that of what is sent (`renyi`). All weights are w_max, since a weight that follows the number of
records would reveal it. Colluding sites know their own noise: against c of them, (quorum - c) / quorum of the
variance remains.

T exchanges of the Gaussian mechanism in real numbers, which the server uses for clients, are one mechanism
with mu = sqrt(T) / noise (Dong, Roth, Su 2022), and exactly (Balle, Wang 2018, theorem 8)

    delta(eps) = Phi(mu / 2 - eps / mu) - e^eps Phi(-mu / 2 - eps / mu).
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedgc.aggregators import squared_norm
from fedgc.config.fields import LARGEST_DELTA
from fedgc.errors import BadSetting
from fedgc.large_vectors import Readable
from fedgc.secagg.keystream import BLOCK_WORDS, RandomBytes
from fedgc.secagg.renyi import epsilon_of_releases

Numbers = NDArray[np.float64]
Integers = NDArray[np.int64]
NOISE_BLOCK: Final = BLOCK_WORDS // 8
FLOAT_ERROR: Final = 2.0**-20  # relative, of scaling in float32
FIRST_ROUNDING: Final = 2.0**-9  # of a step, at most, before the stochastic one
_HALVINGS: Final = 200
_FAR: Final = -20.0  # below, Phi is computed from its asymptotic series


@dataclass(frozen=True, slots=True)
class Privacy:
    """The pinned privacy parameters of a site: clip, noise, number of exchanges, and delta."""

    clip: float
    noise: float
    exchanges: int
    delta: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.clip) and self.clip > 0):
            raise BadSetting(f"site clip: saw {self.clip}, needed a number above 0")
        if not (math.isfinite(self.noise) and self.noise > 0):
            raise BadSetting(f"noise: saw {self.noise}, needed a multiple of the site clip above 0")
        if self.exchanges < 1:
            raise BadSetting(f"exchanges: saw {self.exchanges}, needed at least 1")
        if not 0 < self.delta <= LARGEST_DELTA:
            raise BadSetting(f"delta: saw {self.delta}, needed above 0 and at most {LARGEST_DELTA}")

    def spent(self, exchanges: int) -> float:
        """Return epsilon after this many exchanges.

        >>> round(Privacy(1.0, 4.0, 100, 1e-6).spent(100), 2)
        15.33
        """
        return epsilon_of_releases([(self.noise, 1.0, exchanges)], self.delta)

    def shortening(self, update: Readable) -> np.float32:
        """Return the factor that shortens the update to the clip; 0 if it is not finite.

        A refusal would tell of the site's data, and the noise does not cover it.
        """
        norm = math.sqrt(squared_norm(update))
        if not math.isfinite(norm):
            return np.float32(0)
        return np.float32(self.clip / norm) if norm > self.clip else np.float32(1)

    def own_noise(self, quorum: int, step: float, numbers: int) -> float:
        """Return the deviation, in steps, of the noise that each of at least `quorum` sites adds."""
        sensitivity = self.clip / step * (1 + FLOAT_ERROR) + math.sqrt(numbers) * (1 + FIRST_ROUNDING)
        return self.noise * sensitivity / math.sqrt(quorum)


class DiscreteGaussian:
    """Discrete Gaussian noise of this deviation, from the stream of a secret key.

    The probability of an integer x is proportional to exp(-x^2 / (2 deviation^2)). Samples are those of
    Canonne, Kamath, Steinke (arXiv 2004.00010, algorithm 3): a discrete Laplace number is kept with a
    probability that makes it Gaussian. Integers are exact; events are drawn with 53 random bits.
    """

    def __init__(self, deviation: float, chance: bytes) -> None:
        self.deviation: Final = deviation
        self._scale: Final = math.floor(deviation) + 1  # of the Laplace numbers
        self._source = RandomBytes(chance)
        self._rest: Integers = np.empty(0, np.int64)

    def next(self, count: int) -> Integers:
        """Return the next numbers."""
        while self._rest.size < count:
            self._rest = np.concatenate([self._rest, self._kept()])
        found, self._rest = self._rest[:count], self._rest[count:]
        return found

    def _kept(self) -> Integers:
        """Return those of a block of proposals that are kept."""
        part = self._parts()
        source, count = self._source, part.size
        size = part + self._scale * np.floor(-np.log1p(-uniform(source, count))).astype(np.int64)
        minus = uniform(source, count) < 0.5
        far = size - self.deviation**2 / self._scale
        kept = uniform(source, count) < np.exp(far * far / (-2 * self.deviation**2))
        kept &= ~(minus & (size == 0))
        found: Integers = np.where(minus, -size, size)[kept]
        return found

    def _parts(self) -> Integers:
        """Return numbers below the scale, each kept with the probability exp(-number / scale)."""
        mask = np.uint64((1 << (self._scale - 1).bit_length()) - 1)
        drawn = (self._source.next(8 * NOISE_BLOCK).view("<u8") & mask).astype(np.int64)
        stays = uniform(self._source, NOISE_BLOCK) < np.exp(-drawn / self._scale)
        found: Integers = drawn[stays & (drawn < self._scale)]
        return found


class Gaussian:
    """Gaussian noise of this standard deviation (Box and Muller 1958), from the stream of a secret key."""

    def __init__(self, deviation: float, chance: bytes) -> None:
        self.deviation: Final = deviation
        self._source = RandomBytes(chance)

    def next(self, count: int) -> Numbers:
        """Return the next numbers, at most `NOISE_BLOCK`."""
        pairs = -(-count // 2)
        radius = np.sqrt(-2.0 * np.log(1.0 - uniform(self._source, pairs)))  # 1 - [0, 1) is never 0
        angle = 2.0 * math.pi * uniform(self._source, pairs)
        return self.deviation * np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]


def epsilon(noise: float, exchanges: int, delta: float) -> float:
    """Return the least epsilon at which this many releases are (epsilon, delta)-private.

    >>> round(epsilon(2.0, 100, 1e-6), 3), round(epsilon(8.0, 1000, 1e-6), 3)
    (35.566, 25.948)
    """
    mu = math.sqrt(exchanges) / noise
    if delta_of(0.0, mu) <= delta:
        return 0.0
    low, high = 0.0, 1.0
    while delta_of(high, mu) > delta:
        low, high = high, 2 * high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if delta_of(middle, mu) > delta else (low, middle)
    return high


def epsilon_of(spent: float, delta: float) -> float:
    """Return epsilon of releases of which 1 / noise^2 sums up to `spent`, as they compose by that sum."""
    return epsilon(spent**-0.5, 1, delta) if spent > 0 else 0.0


def noise_for(most: float, exchanges: int, delta: float) -> float:
    """Return the least noise with which this many releases spend at most this epsilon.

    >>> round(noise_for(14.451, 100, 1e-6), 3)
    4.0
    """
    low, high = 0.0, 1.0
    while epsilon(high, exchanges, delta) > most:
        low, high = high, 2 * high
    for _ in range(_HALVINGS // 4):
        middle = (low + high) / 2
        low, high = (middle, high) if epsilon(middle, exchanges, delta) > most else (low, middle)
    return high


def delta_of(eps: float, mu: float) -> float:
    """Return delta at epsilon of the Gaussian mechanism with separation mu."""
    one, other = mu / 2 - eps / mu, -mu / 2 - eps / mu
    return max(0.0, math.exp(_log_phi(one)) - math.exp(eps + _log_phi(other)))


def _log_phi(x: float) -> float:
    """Return log Phi(x), also where Phi(x) underflows."""
    if x > _FAR:
        return math.log(0.5 * math.erfc(-x / math.sqrt(2)))
    square = 1 / (x * x)
    series = 1 - square * (1 - 3 * square * (1 - 5 * square))
    return -x * x / 2 - math.log(-x * math.sqrt(2 * math.pi)) + math.log(series)


def uniform(source: RandomBytes, count: int) -> Numbers:
    """Return numbers in [0, 1) with 53 random bits."""
    bits = source.next(8 * count).view("<u8") >> np.uint64(11)
    return bits.astype(np.float64) * 2.0**-53
