"""A site's update as it is sent: shortened, rounded, noised and masked, tile by tile while it is read.

Nothing of the vector's size is made, so memory does not grow with the model. A part can be read again, as
after a broken upload, and has the same bytes: rounding, noise and masks come from streams that can be entered
at any tile (noise has a key of its own for each run of 2^20 numbers).

Masks hide one update. So the update is pinned first, by a tag of each tile under a secret key (GMAC). A tile
that has changed when it is read is refused: training may have gone on, because the server has sent other work
in the middle of the upload. Two updates under the same masks would reveal their difference, and an update
that is made from another model than the others' is what `Client.upload` refuses.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from numpy.typing import NDArray

from fedgc.errors import BadVector
from fedgc.large_vectors import Readable
from fedgc.secagg.keys import derive
from fedgc.secagg.keystream import BLOCK_WORDS, RING_TYPES, RUN_WORDS, Masks, Strand, Words, tiles
from fedgc.secagg.privacy import DiscreteGaussian, Integers
from fedgc.secagg.quantizer import Quantizer, Rounding, Steps

Float = NDArray[np.float32]
_NONCE: Final = bytes(12)  # tags under it are never sent


@dataclass(frozen=True, slots=True)
class Shield:
    """What differential privacy does to an update: the factor that shortens it, and the noise in steps."""

    shortening: np.float32
    deviation: float
    key: bytes = field(repr=False)


class MaskedVector:
    """The words that a site sends, computed as they are read; BadVector if the update has changed."""

    def __init__(
        self,
        quantizer: Quantizer,
        update: Readable,
        weight: int,
        strands: Sequence[Strand],
        chance: bytes,
        shield: Shield | None = None,
    ) -> None:
        """Pin the update: `weight * update / w_max` is rounded by `chance`, and `strands` are its masks.

        Raises:
            BadVector: A number of the update is not finite (with a shield it then counts as zeros), or the
                weight is above its maximum.
        """
        self.dtype: Final = RING_TYPES[quantizer.ring]
        self.size: Final = quantizer.words(update.size)
        self._digits = quantizer.digits_of(weight)
        self._update, self._shield = update, shield
        self._rounding = Rounding(quantizer, weight, chance)
        self._masks = Masks(strands, self.dtype)
        self._noise: DiscreteGaussian | None = None
        self._noised = 0  # the number at which the noise is, unless it begins a run
        self._words: Words = np.empty(BLOCK_WORDS, self.dtype)
        self._first = -1  # of the tile that is in `_words`
        self._tagger = AESGCM(derive(chance, b"", "pin"))
        self._steps: Steps = np.empty(BLOCK_WORDS, np.int32)
        self._pinned = [self._pin(self._part(tile)) for tile in tiles(update.size)]

    def __getitem__(self, part: slice, /) -> Words:
        start, stop, _ = part.indices(self.size)
        found: Words = np.empty(max(0, stop - start), self.dtype)
        for first in range(start - start % BLOCK_WORDS, stop, BLOCK_WORDS):
            last = min(first + BLOCK_WORDS, self.size)
            if start <= first and last <= stop:
                self._write(first, found[first - start : last - start])
                continue
            if first != self._first:
                self._first = -1
                self._write(first, self._words[: last - first])
                self._first = first
            low, high = max(start, first), min(stop, last)
            found[low - start : high - start] = self._words[low - first : high - first]
        return found

    def _write(self, first: int, words: Words) -> None:
        """Compute a whole tile."""
        numbers = max(0, min(self._update.size - first, words.size))
        if numbers:
            self._write_steps(slice(first, first + numbers), words[:numbers])
        words[numbers:] = self._digits[first + numbers - self._update.size :][: words.size - numbers]
        self._masks.add_to(words, first)

    def _write_steps(self, tile: slice, words: Words) -> None:
        part, (tag, clips) = self._part(tile), self._pinned[tile.start // BLOCK_WORDS]
        if self._tag(part) != tag:
            raise BadVector("update: saw it changed since it was to be masked, needed the same")
        fits = words.itemsize == self._steps.itemsize
        steps = words.view(np.int32) if fits else self._steps[: words.size]
        shield = self._shield
        if shield is not None:
            part = part * shield.shortening if shield.shortening else np.zeros_like(part)
        self._rounding.steps(part, tile.start, steps, clips=clips)
        if shield is not None:
            steps += self._next_noise(shield, tile)
        if not fits:
            words[:] = steps.view(np.uint32)

    def _next_noise(self, shield: Shield, tile: slice) -> Integers:
        """Return the noise of a tile; it is drawn run by run."""
        run, skipped = divmod(tile.start, RUN_WORDS)
        if self._noise is None or tile.start != self._noised or not skipped:
            self._noise = DiscreteGaussian(shield.deviation, derive(shield.key, b"", "noise", run))
            for _ in range(0, skipped, BLOCK_WORDS):
                self._noise.next(BLOCK_WORDS)
        self._noised = tile.stop
        return self._noise.next(tile.stop - tile.start)

    def _part(self, tile: slice) -> Float:
        return np.ascontiguousarray(self._update[tile], np.float32)

    def _pin(self, part: Float) -> tuple[bytes, bool]:
        """Return the tag of a tile, and whether numbers of it may reach the clip."""
        return self._tag(part), self._shield is not None or self._rounding.clips(part)

    def _tag(self, part: Float) -> bytes:
        return self._tagger.encrypt(_NONCE, b"", part.data.cast("B"))
