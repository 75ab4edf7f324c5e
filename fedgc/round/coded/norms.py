"""The bound on the norm of a codeword, from the norms of its chunks.

A codeword is z = sum over chunks c, pieces b of U_cb u_cb, so by Cauchy and Schwarz

    |z|  <=  sum over chunks c of  |U_c| |u_c|

where u_c is the update of chunk c. Each client reports |u_c| / samples with every chunk that it finishes, and
is held to its own reports, so a false report of another does not reduce its bound. A report counts for at
most `MOST` times the median over the clients of each one's median report. A minority of clients cannot move
that beyond what honest clients report. Of two clients, neither can be outvoted: their reports count in full.

Index w is a client, c a chunk, as in the plan.
"""

import math
from collections.abc import Sequence
from statistics import median_high
from typing import Final

from fedgc.codes import Coefficients

MOST: Final = 10.0  # times the usual norm; digits: at most 1.9, also with chunks of one label
FEWEST: Final = 3  # clients
SLACK: Final = 2.0  # for the rounding of the wire: int8 adds a quarter at most


class CodewordNorms:
    """The norms that clients reported: of the mean step of a chunk, |u_c| / samples."""

    def __init__(self, samples_c: Sequence[int], clients_w: int) -> None:
        self._samples_c = samples_c
        self._told: list[dict[int, float]] = [{} for _ in range(clients_w)]
        self._most: float | None = None  # of a report that counts; known once codewords come

    def told(self, w: int, chunk: int, squared_norm: float) -> None:
        """Enter a client's report."""
        self._told[w][chunk] = math.sqrt(squared_norm)

    def excess(self, w: int, terms: Coefficients, norm: float) -> str:
        """Return why a client's codeword is not possible; empty if it is.

        >>> norms = CodewordNorms([10, 10], 1)
        >>> norms.told(0, 0, 4.0), norms.told(0, 1, 9.0)
        (None, None)
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
        return f"its codeword has norm {norm:.3g}, and {most}"

    def _norm(self, w: int, chunk: int) -> float:
        if self._most is None:
            usual = [median_high(each.values()) for each in self._told if each]
            self._most = MOST * median_high(usual) if len(usual) >= FEWEST else math.inf
        return min(self._told[w].get(chunk, math.inf), self._most)
