"""Quantization between float32 and the ring: clipping, unbiased stochastic rounding, sums without overflow.

With b bits a value becomes one of the steps -Q..Q, Q = 2^(b-1) - 1, a step being clip / Q. It is first
written in finer steps, v = rint(F s x) with F = 256 (65,536 when b <= 8) and s = Q / clip, then rounded with
local randomness r, uniform on 0..F-1: q = floor((v + r) / F). The mean of q is v / F. The only bias is that
of the first rounding, at most 1 / 2F of a step, and the precision of float32 (2^-24 of the value: 1/16 of a
step at 22 bits, the maximum).

The sum of n sites must fit the ring of K bits with its sign: n Q < 2^(K-1); otherwise sums would silently
wrap around. This is checked when a federation is written, not during training.

Noise (`masked_vector`) is a number of steps, added after the rounding, so it is not clipped. The ring has
room for 9 standard deviations of a sum's noise beside the values, so a value wraps around with probability
below 1e-18. That would corrupt the value; it reveals nothing.

Weights are part of the vector: site i sends w_i x_i / w_max, and w_i itself as digits of b - 1 bits, one ring
word each, as few as w_max needs. Digits obey the same bound, so the sum of the weights is exact.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedgc.errors import BadSetting, BadVector, NotRecoverable
from fedgc.secagg.keystream import BLOCK_WORDS, RING_TYPES, RandomBytes, Words

Float = NDArray[np.float32]
Steps = NDArray[np.int32]
FEWEST_BITS: Final = 2
MOST_BITS: Final = 22
_SHORT_BITS: Final = (
    8  # up to here the random part has 16 bits, so that its bias stays small relative to the step
)
LEAST_NOISE: Final = 2.0  # steps: with less, a sum of discrete Gaussians is no discrete Gaussian
_FAR: Final = 9.0  # standard deviations of the noise of a sum that must fit the ring
_NEAR: Final = 0.999  # share of the clip below which clipping changes nothing


def fits(members: int, bits: int, ring: int) -> bool:
    """Return whether the sum of this many values of `bits` fits the ring.

    >>> fits(256, 8, 16), fits(259, 8, 16)
    (True, False)
    """
    return members * _top(bits) < 1 << (ring - 1)


def fits_with_noise(members: int, bits: int, ring: int, noise_steps: float) -> bool:
    """Return whether the sum also has room for noise of this standard deviation, in steps, from each member.

    >>> fits_with_noise(3, 8, 16, 293.0), fits_with_noise(3, 4, 8, 16.0)
    (True, False)
    """
    noise = _FAR * noise_steps * math.sqrt(members)
    return members * (_top(bits) + 1) + noise < 1 << (ring - 1)


@dataclass(frozen=True, slots=True)
class Quantizer:
    """The pinned number format, the same for every member."""

    clip: float
    bits: int
    ring: int
    w_max: int

    def __post_init__(self) -> None:
        if not (math.isfinite(self.clip) and 1e-12 <= self.clip <= 1e12):
            raise BadSetting(f"clip: saw {self.clip}, needed 1e-12 to 1e12")
        if not FEWEST_BITS <= self.bits <= MOST_BITS:
            raise BadSetting(f"bits: saw {self.bits}, needed {FEWEST_BITS} to {MOST_BITS}")
        if self.ring not in RING_TYPES:
            raise BadSetting(f"ring: saw {self.ring}, needed one of {sorted(RING_TYPES)}")
        if not 1 <= self.w_max < 2**32:
            raise BadSetting(f"w_max: saw {self.w_max}, needed 1 to 2^32 - 1")

    @property
    def top(self) -> int:
        """Return the largest step, Q."""
        return _top(self.bits)

    @property
    def digits(self) -> int:
        """Return the number of ring words for a weight."""
        return -(-self.w_max.bit_length() // (self.bits - 1))

    def words(self, size: int) -> int:
        """Return the number of ring words for a vector of `size` numbers."""
        return size + self.digits

    def bound(self, sites: int, weight: int) -> float:
        """Return the largest error of any coordinate of the mean, for values inside the clip.

        Each site adds less than one step by stochastic rounding, 1 / 2F by the first rounding and 2^-22 of Q
        by float32; the sum is then scaled by w_max / weight and rounded to float32 once more.
        """
        steps = sites * (1 + 1 / (2 * self.finer) + self.top * 2**-22)
        return steps * self.clip / self.top * self.w_max / weight + self.clip * 2**-22

    @property
    def step(self) -> float:
        """Return the value of one step at the largest weight."""
        return self.clip / self.top

    @property
    def reach(self) -> float:
        """Return how far one vector can move a value of the mean if its words are not made by this class.

        It is half of the ring in steps, and the false weight word may leave as little as 1 to divide by.
        """
        return self.step * (1 << (self.ring - 1)) * self.w_max

    def digits_of(self, weight: int) -> Words:
        """Return the ring words of a weight."""
        if not 0 <= weight <= self.w_max:
            raise BadVector(f"weight: saw {weight}, needed 0 to w_max ({self.w_max})")
        values = [(weight >> (at * (self.bits - 1))) & self.top for at in range(self.digits)]
        return np.array(values, RING_TYPES[self.ring])

    def mean(self, words: Words, sites: int) -> tuple[Float, int]:
        """Return the weighted mean and the sum of weights from an unmasked sum of this many vectors.

        Leftover masks make the sum and its weight noise, which is detected here with high probability. Words
        of 32 bits are overwritten with the mean, since a second large array costs more than the arithmetic.
        """
        size = words.size - self.digits
        if size < 1 or words.dtype != RING_TYPES[self.ring]:
            raise BadVector(f"sum: saw {words.size} words of {words.dtype}, needed {self.words(1)} or more")
        weight = sum(int(digit) << (at * (self.bits - 1)) for at, digit in enumerate(words[size:]))
        if not 1 <= weight <= sites * self.w_max:
            raise NotRecoverable(
                f"mean: saw weights that sum to {weight}, needed 1 to {sites * self.w_max}: "
                "no site did work, or masks are left in the sum"
            )
        signed = words[:size].view(f"<i{words.itemsize}")
        scale = np.float32(self.clip / self.top * self.w_max / weight)
        own_size = words.itemsize == np.dtype(np.float32).itemsize
        mean = words[:size].view(np.float32) if own_size else np.empty(size, np.float32)
        for start in range(0, size, BLOCK_WORDS):
            part = mean[start : start + BLOCK_WORDS]
            np.copyto(part, signed[start : start + BLOCK_WORDS], casting="same_kind")
            np.multiply(part, scale, out=part)
        return mean, weight

    @property
    def finer(self) -> int:
        """Return into how many finer steps the first rounding divides a step, F."""
        return 1 << (16 if self.bits <= _SHORT_BITS else 8)


class Rounding:
    """Rounds `weight * update / w_max` to steps, tile by tile, with randomness from the stream of a key."""

    def __init__(self, quantizer: Quantizer, weight: int, chance: bytes) -> None:
        finer, clip = quantizer.finer, quantizer.clip
        self._clip, self._finer, self._edge = clip, finer, np.float32(finer * quantizer.top)
        self._scale = np.float32(finer * quantizer.top / clip * weight / quantizer.w_max)
        self._chance = RandomBytes(chance)
        self._kind = np.dtype("<u2" if finer > 256 else "<u1")
        self._fine: Float = np.empty(BLOCK_WORDS, np.float32)

    def steps(self, part: Float, first: int, out: Steps, *, clips: bool) -> None:
        """Write the steps of a tile that begins at the number `first`.

        `clips` says whether numbers of it may reach the clip; if not, clipping would change nothing.
        """
        fine = self._fine[: part.size]
        if clips:
            np.clip(part, -self._clip, self._clip, out=fine)
            np.multiply(fine, self._scale, out=fine)
            np.clip(fine, -self._edge, self._edge, out=fine)  # float32 may round the clip above the top
        else:
            np.multiply(part, self._scale, out=fine)
        np.rint(fine, out=fine)
        np.copyto(out, fine, casting="unsafe")
        self._chance.seek(first * self._kind.itemsize)
        extra = fine.view(np.int32)  # the room serves twice: what fits the second-level cache is quicker
        np.copyto(extra, self._chance.next(part.size * self._kind.itemsize).view(self._kind))
        np.add(out, extra, out=out)
        np.right_shift(out, self._finer.bit_length() - 1, out=out)

    def clips(self, part: Float) -> bool:
        """Return whether numbers of a tile may reach the clip; raise unless all are finite."""
        low, high = float(part.min()), float(part.max())
        if not (math.isfinite(low) and math.isfinite(high)):
            raise BadVector(f"update: saw values from {low} to {high}, needed finite ones")
        return max(-low, high) >= _NEAR * self._clip


def _top(bits: int) -> int:
    return (1 << (bits - 1)) - 1
