"""The bound on the norm of a codeword, from the norms of its chunks.

A codeword is z = sum over chunks c, pieces b of U_cb u_cb, so by Cauchy and Schwarz

    |z|  <=  sum over chunks c of  |U_c| |u_c|

where u_c is the update of chunk c. Each client reports |u_c| / samples with every chunk that it finishes, and
is held to its own reports, so a false report of another does not reduce its bound. A report counts for at
most `MOST` times the median over the clients of each one's median report. A minority of clients cannot move
that beyond what honest clients report. Of two clients, neither can be outvoted: their reports count in full.

The data of a chunk may be of that kind, and its update honestly longer. It counts in part, as a far update of
local work does: U_c is multiplied by the share that brings it to the cap (`shares`).

Index w is a client, c a chunk, as in the plan.
"""

import math
from collections.abc import Sequence
from statistics import median_high, median_low
from typing import Final

from fedgc.codes import Coefficients

MOST: Final = 10.0  # times the usual norm; digits: at most 1.9, also with chunks of one label
FEWEST: Final = 3  # clients
LEAST: Final = 1e-12  # share that counts, also where all others have updates of norm 0
SLACK: Final = 2.0  # for the rounding of the wire: int8 adds a quarter at most


class CodewordNorms:
    """The norms that clients reported: of the mean step of a chunk, |u_c| / samples."""

    def __init__(self, samples_c: Sequence[int], clients_w: int) -> None:
        self._samples_c = samples_c
        self._told: list[dict[int, float]] = [{} for _ in range(clients_w)]
        self._most_c: list[float] = []  # of a report that counts; known once codewords are asked for

    def told(self, w: int, chunk: int, squared_norm: float) -> None:
        """Enter a client's report."""
        self._told[w][chunk] = math.sqrt(squared_norm)

    def shares(self) -> tuple[float, ...]:
        """Fix what reports count for; return by chunk the share of its update that counts.

        >>> norms = CodewordNorms([10, 10, 10], 3)
        >>> for chunk, norm in enumerate((1.0, 2.0, 40.0)):
        ...     norms.told(chunk, chunk, norm**2)
        >>> norms.shares()
        (1.0, 1.0, 0.5)
        """
        usual = [median_high(each.values()) for each in self._told if each]
        most = MOST * median_high(usual) if len(usual) >= FEWEST else math.inf
        far_c: dict[int, list[float]] = {c: [] for each in self._told for c in each if each[c] > most}
        for each in self._told if far_c else ():
            for c in each.keys() & far_c:
                far_c[c].append(each[c])
        longest_c = [median_low(far_c[c]) if c in far_c else 0.0 for c in range(len(self._samples_c))]
        self._most_c = [max(most, longest) for longest in longest_c]
        return tuple(max(LEAST, most / longest) if longest > most else 1.0 for longest in longest_c)

    def excess(self, w: int, terms: Coefficients, norm: float) -> str:
        """Return why a client's codeword is not possible; empty if it is.

        >>> norms = CodewordNorms([10, 10], 1)
        >>> norms.told(0, 0, 4.0), norms.told(0, 1, 9.0), norms.shares()
        (None, None, (1.0, 1.0))
        >>> terms = Coefficients((0, 1), ((1.0,), (-0.5,)))
        >>> norms.excess(0, terms, 35.0), norms.excess(0, terms, 1e30)
        ('', 'its codeword has norm 1e+30, and at most 35 by the norms that it reported for its chunks')
        """
        largest = math.fsum(
            self._norm(w, c) * self._samples_c[c] * math.hypot(*row)
            for c, row in zip(terms.chunks, terms.matrix, strict=True)
        )
        if norm <= SLACK * largest:
            return ""
        most = f"at most {largest:.3g} by the norms that it reported for its chunks"
        is_cut = any(self._told[w].get(c, 0.0) > self._most_c[c] for c in terms.chunks)
        usual = f", which count up to {MOST:g} times the usual one" if is_cut else ""
        return f"its codeword has norm {norm:.3g}, and {most}{usual}"

    def _norm(self, w: int, chunk: int) -> float:
        return min(self._told[w].get(chunk, math.inf), self._most_c[chunk])
