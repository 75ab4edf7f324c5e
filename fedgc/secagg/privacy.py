"""Differential privacy of the sum, of records or of sites: clipping, Gaussian noise per site, accounting.

Secure aggregation hides single updates; the sum can still reveal what is in them. With this option one
record, or the update of one site, changes the released sum by at most C in Euclidean norm, and the sum
carries Gaussian noise of standard deviation at least sigma C: each site adds N(0, (sigma C)^2 / n_min), and
every sum has at least n_min sites. A site adds the noise once, after it decoded the work of its own clients
and after its values were clipped to the range of the ring (`quantizer`), so the noise itself is not clipped.
A clip before the noise does not increase sensitivity; a clip after it would remove noise from values at the
edge.

T releases of the Gaussian mechanism without subsampling are one Gaussian mechanism with mu = sqrt(T) / sigma
(Dong, Roth, Su 2022), and exactly (Balle, Wang 2018, theorem 8)

    delta(eps) = Phi(mu / 2 - eps / mu) - e^eps Phi(-mu / 2 - eps / mu).

There is no amplification by subsampling: the batches here are neither Poisson nor secret.

For sites, each shortens its update to the norm C, whatever local steps it has made. Cohorts are adjacent if
the update of one site is zeros in one of them; noise is added to the zeros as well.

Requirements for records, ensured by training (fedgc.training.record_clipping): the update is one step's sum
of clipped gradients over a number fixed in advance (later local steps would use a record again); neighboring
data sets differ in the content of one record, not in their number, on which the choice of batches depends.
For both, all weights are w_max, since a weight that follows the number of records would reveal it. Colluding
sites know their own noise: against c of them, (n_min - c) / n_min of the variance remains.
"""

import math
from dataclasses import dataclass
from typing import Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedgc.aggregators import squared_norm
from fedgc.errors import BadSetting
from fedgc.secagg.keystream import BLOCK_WORDS, RandomBytes

Float = NDArray[np.float32]
Numbers = NDArray[np.float64]
Unit = Literal["record", "site"]
UNITS: Final[tuple[Unit, ...]] = get_args(Unit)
NOISE_BLOCK: Final = BLOCK_WORDS // 8
_HALVINGS: Final = 200
_FAR: Final = -20.0  # below, Phi is computed from its asymptotic series


@dataclass(frozen=True, slots=True)
class Privacy:
    """The pinned privacy parameters: of whom, clip, noise, number of releases, and delta."""

    clip: float
    noise: float
    exchanges: int
    delta: float
    unit: Unit = "record"

    def __post_init__(self) -> None:
        if self.unit not in UNITS:
            raise BadSetting(f"privacy: saw that of a {self.unit!r}, needed one of {', '.join(UNITS)}")
        if not (math.isfinite(self.clip) and self.clip > 0):
            raise BadSetting(f"{self.unit} clip: saw {self.clip}, needed a number above 0")
        if not (math.isfinite(self.noise) and self.noise > 0):
            raise BadSetting(f"noise: saw {self.noise}, needed a multiple of the {self.unit} clip above 0")
        if self.exchanges < 1:
            raise BadSetting(f"exchanges: saw {self.exchanges}, needed at least 1")
        if not 0 < self.delta < 1:
            raise BadSetting(f"delta: saw {self.delta}, needed a probability between 0 and 1")

    def spent(self, exchanges: int) -> float:
        """Return epsilon after this many releases.

        >>> round(Privacy(1.0, 4.0, 100, 1e-6).spent(100), 3)
        14.451
        """
        return epsilon(self.noise, exchanges, self.delta)

    def clipped(self, update: Float) -> Float:
        """Return what a site adds noise to: its update, for sites with a norm of at most the clip."""
        if self.unit == "record":  # its records were clipped in training
            return update
        norm = math.sqrt(squared_norm(update))
        return update * np.float32(self.clip / norm) if norm > self.clip else update

    def own_noise(self, n_min: int) -> float:
        """Return the standard deviation of the noise that each of at least `n_min` sites adds."""
        return self.noise * self.clip / math.sqrt(n_min)


class Gaussian:
    """Gaussian noise of this standard deviation (Box and Muller 1958), from the stream of a secret key."""

    def __init__(self, deviation: float, chance: bytes) -> None:
        self.deviation: Final = deviation
        self._source = RandomBytes(chance)

    def next(self, count: int) -> Numbers:
        """Return the next numbers, at most `NOISE_BLOCK`."""
        pairs = -(-count // 2)
        radius = np.sqrt(-2.0 * np.log(1.0 - _uniform(self._source, pairs)))  # 1 - [0, 1) is never 0
        angle = 2.0 * math.pi * _uniform(self._source, pairs)
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


def _uniform(source: RandomBytes, count: int) -> Numbers:
    """Return numbers in [0, 1) with 53 random bits."""
    bits = source.next(8 * count).view("<u8") >> np.uint64(11)
    return bits.astype(np.float64) * 2.0**-53
