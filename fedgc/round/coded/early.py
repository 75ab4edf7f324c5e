"""Early commit: which copies are fixed, and which are folded, before it is known what everybody finishes.

A client whose memory and disk are full can keep nothing more, and what it has finished must not be lost. As
the last resort it adds what it has finished to its codeword, and frees it. Its coefficients must be final for
that, and those of a chunk depend on whose copies of it are mixed alone (`codes.commit`). So

    blocks    are fixed by the first fold to the copies that were aimed for then;
    fixed     copies of a chunk are `blocks` of them, and no others are mixed;
    folded    copies are in a codeword that lies on its client, and in no other place;
    gone      copies are such whose client does not have the update any more.

A fixed copy that its client does not have (it is lost, or was counted on in vain) is *wanting*: what would be
mixed of it is owed as lost, and repaired by whoever has the update. For the same reason a chunk of which
there are fewer copies than blocks is no less exact: it is mixed as if others had it too, and those parts are
repaired. A codeword with a fold in it is lost as a whole, with its client or as soon as anything in it is
wrong: nothing can be taken out of it. A chunk of which nothing is folded any more, and not all that is
fixed is there, is fixed anew.

Index w is a client, c a chunk, as in the plan. May import: codes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedgc.codes import Coefficients, FrameCode, Placement, freeze

Bool = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Room:
    """What a client may free: these chunks once they are folded so, the spare ones at once."""

    fold: Coefficients
    spare: tuple[int, ...]


class Early:
    """Owns what is fixed of a round before its end; nothing is, as long as `blocks` is 0."""

    def __init__(self, placement: Placement) -> None:
        self.blocks = 0
        self._placement = placement
        shape = placement.holds.shape
        self._fixed_wc: Bool = np.zeros(shape, dtype=bool)
        self._folded_wc: Bool = np.zeros(shape, dtype=bool)
        self._gone_wc: Bool = np.zeros(shape, dtype=bool)

    @property
    def stands(self) -> bool:
        """Whether anything is fixed."""
        return bool(self._fixed_wc.any())

    @property
    def gone_wc(self) -> Bool:
        """The finished copies whose clients have their updates no more."""
        return self._gone_wc

    def folds(self, w: int, chunks: Sequence[int]) -> bool:
        """Whether any of these is folded on this client."""
        return bool(self._folded_wc[w, list(chunks)].any())

    # ---- what changes it

    def room(self, w: int, counting_wc: Bool, possible_wc: Bool, blocks: int) -> Room:
        """Fix and fold what a client has finished; `possible_wc` are copies that there are or may be.

        First what has enough copies; where that frees nothing, one chunk that is likely to get them.
        """
        self.blocks = self.blocks or blocks
        self._settle(counting_wc)
        has_c = counting_wc[w] & ~self._gone_wc[w]
        self._fixed_wc = freeze(self._fixed_wc | (counting_wc & has_c), self._fixed_wc, self.blocks)
        open_c = has_c & ~self._fixed_wc.any(axis=0)
        elsewhere_c = has_c & ~open_c & ~self._fixed_wc[w] & (self._fixed_wc <= counting_wc).all(axis=0)
        if open_c.any() and not (has_c & self._fixed_wc[w]).any() and not elsewhere_c.any():
            self._count_on_others(
                int(np.argmax(open_c * (1 + possible_wc.sum(axis=0)))), counting_wc, possible_wc
            )
        fold_c = has_c & self._fixed_wc[w]
        self._folded_wc[w] |= fold_c
        self._gone_wc[w] |= fold_c
        return Room(self._rows(w, fold_c), tuple(np.flatnonzero(elsewhere_c).tolist()))

    def let_go(self, w: int, chunks: Sequence[int]) -> None:
        """A client frees these updates, without folding them."""
        self._gone_wc[w, list(chunks)] = True

    def has_again(self, w: int, chunk: int) -> None:
        """A client has made an update again that it had freed."""
        self._gone_wc[w, chunk] = False

    def forget(self, w: int) -> None:
        """What this client has folded is in no codeword any more."""
        self._folded_wc[w] = False
        self._gone_wc[w] = False

    # ---- what is to be mixed in the end

    def mixed(self, counting_wc: Bool) -> Bool:
        """Return the copies to mix: those that are fixed, else all; short chunks as if others had them."""
        self._settle(counting_wc)
        mixed_wc: Bool = np.where(self._fixed_wc.any(axis=0), self._fixed_wc, counting_wc)
        return self._filled(mixed_wc, self._placement.holds, np.logical_or.reduce(mixed_wc, axis=0))

    # ---- small print

    def _settle(self, counting_wc: Bool) -> None:
        """Fix anew what nobody has folded, and not everybody has."""
        self._fixed_wc &= self._folded_wc.any(axis=0) | (self._fixed_wc <= counting_wc).all(axis=0)

    def _count_on_others(self, chunk: int, counting_wc: Bool, possible_wc: Bool) -> None:
        """Fix a chunk that has too few copies as if others had it, those who may."""
        column_c: Bool = np.arange(self._placement.chunks) == chunk
        fixed_wc = self._fixed_wc | (counting_wc & column_c)
        first_wc = self._filled(fixed_wc, possible_wc, column_c)
        self._fixed_wc = self._filled(first_wc, self._placement.holds, column_c)

    def _filled(self, copies_wc: Bool, holds_wc: Bool, chunks_c: Bool) -> Bool:
        """Return the copies and, of these chunks, as many others as it takes to have one for each block."""
        others_wc = holds_wc & ~copies_wc & chunks_c
        wanting_c = self.blocks - copies_wc.sum(axis=0)
        filled_wc: Bool = copies_wc | (others_wc & (np.cumsum(others_wc, axis=0) <= wanting_c))
        return filled_wc

    def _rows(self, w: int, chunks_c: Bool) -> Coefficients:
        """Return what these chunks are mixed with: final, as all that they depend on is fixed."""
        if not chunks_c.any():
            return Coefficients((), ())
        solution = FrameCode(self._placement, self.blocks).solve(self._fixed_wc, correlation=0.0)
        told = solution.coefficients(w)
        rows = [(c, row) for c, row in zip(told.chunks, told.matrix, strict=True) if chunks_c[c]]
        return Coefficients(tuple(c for c, _ in rows), tuple(row for _, row in rows))
