"""Baseline codes, fixed before the round and using only complete clients.

Each client sends sum over its chunks i and blocks k of c_ik[client] g_i^(k), with coefficients that do not
depend on the other clients' answers. Let H (stragglers x clients) and T (blocks x clients) be random. The
coefficients of chunk i, on the s + blocks clients that hold it, solve [H; T] c_ik = [0; e_k]. If the clients
F^c do not answer, the weights W = T + M H with W zero on F^c give W c_ik = T c_ik = e_k.

- blocks 1: cyclic gradient coding (Tandon et al. 2017), any m - s clients suffice;
- blocks > 1: communication-efficient gradient coding (Ye and Abbe 2018), load s + blocks;
- fractional repetition (Tandon et al. 2017): groups of clients with equal chunks, plain sums;
- block-coordinate (Wang et al. 2022): coordinate blocks with decreasing tolerance, one cyclic code each.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from fedgc.codes.arrays import Bool, Float, Int
from fedgc.codes.encode import Coefficients
from fedgc.errors import BadPlacement, NotRecoverable


@dataclass(frozen=True, slots=True, eq=False)
class FixedCode:
    """The coefficients of each client; there are as many chunks as clients."""

    held_wl: Int  # the chunks of each client
    factors_wlb: Float
    check_sw: Float = field(repr=False)  # H
    read_bw: Float = field(repr=False)  # T

    @property
    def stragglers(self) -> int:
        """Return how many clients, any of them, may fail to answer."""
        return len(self.check_sw)

    def coefficients(self, w: int) -> Coefficients:
        """Return the coefficients of a client."""
        rows = self.factors_wlb[w].tolist()
        return Coefficients(tuple(self.held_wl[w].tolist()), tuple(map(tuple, rows)))

    def weights(self, answered: Bool) -> Float:
        """Return W (blocks x clients): the sum's blocks are W times the codewords.

        >>> code = cyclic(4, 2, 1, np.random.default_rng(0))
        >>> bool(code.weights(np.array([True, True, False, True]))[0, 2] == 0.0)
        True
        """
        silent = np.flatnonzero(~answered)
        if silent.size > self.stragglers:
            raise NotRecoverable(f"{silent.size} clients are silent, {self.stragglers} may be")
        solved, *_ = np.linalg.lstsq(self.check_sw[:, silent].T, -self.read_bw[:, silent].T, rcond=None)
        weights_bw: Float = self.read_bw + solved.T @ self.check_sw
        weights_bw[:, silent] = 0.0
        return weights_bw

    def amplification(self, answered: Bool) -> float:
        """Return the amplification of noise relative to each codeword, as for `Solution`."""
        weights_bw = self.weights(answered)
        square_wl = (self.factors_wlb**2).sum(axis=2)
        clients_w, blocks = len(self.held_wl), self.factors_wlb.shape[2]
        return float(((weights_bw**2).sum(axis=0) @ square_wl).sum() / (clients_w * blocks))


def cyclic(clients_w: int, load: int, blocks: int, rng: np.random.Generator) -> FixedCode:
    """Return the cyclic code in which client w holds chunks w, w + 1, ... and load - blocks may fail.

    >>> cyclic(5, 3, 2, np.random.default_rng(0)).stragglers
    1
    """
    if not 1 <= blocks <= load <= clients_w:
        raise BadPlacement(
            f"{blocks} blocks, load {load}, {clients_w} clients: each at most the next, from 1"
        )
    held_wl = (np.arange(clients_w)[:, None] + np.arange(load)) % clients_w
    holders_nl = (np.arange(clients_w)[:, None] - np.arange(load)) % clients_w
    check_sw = rng.standard_normal((load - blocks, clients_w))
    read_bw = rng.standard_normal((blocks, clients_w))
    both = np.concatenate([check_sw, read_bw])
    wanted = np.eye(load)[:, load - blocks :]
    factors_nlb = np.linalg.solve(np.moveaxis(both[:, holders_nl], 1, 0), wanted)
    # chunk i is the l-th of client i - l, so client w finds the factors of its l-th chunk at (w + l, l)
    factors_wlb = factors_nlb[held_wl, np.arange(load)]
    return FixedCode(held_wl, factors_wlb, check_sw, read_bw)


@dataclass(frozen=True, slots=True)
class FractionalRepetition:
    """Groups of `load` clients with the same chunks; one answer from each group suffices.

    >>> FractionalRepetition(4, 2).weights(np.array([True, False, True, True])).tolist()
    [1.0, 0.0, 1.0, 0.0]
    """

    clients_w: int
    load: int

    def __post_init__(self) -> None:
        if not 1 <= self.load <= self.clients_w or self.clients_w % self.load:
            raise BadPlacement(f"load {self.load} must divide {self.clients_w} clients")

    def chunks(self, w: int) -> tuple[int, ...]:
        """Return the chunks that a client holds and sums."""
        first = w // self.load * self.load
        return tuple(range(first, first + self.load))

    def weights(self, answered: Bool) -> Float:
        """Return 1 for the first answer of each group, 0 for the rest."""
        answered_gl = answered.reshape(-1, self.load)
        if not answered_gl.any(axis=1).all():
            group = int((~answered_gl.any(axis=1)).argmax())
            raise NotRecoverable(f"no client of group {group} answered: one of {self.load} clients is needed")
        first_gl = np.zeros(answered_gl.shape)
        first_gl[np.arange(len(first_gl)), answered_gl.argmax(axis=1)] = 1.0
        return first_gl.reshape(-1)


@dataclass(frozen=True, slots=True)
class BlockCoordinate:
    """One cyclic code for each block of coordinates; clients work through the blocks in this order.

    More clients reach an early block than a late one, so late blocks tolerate more stragglers.
    """

    codes: tuple[FixedCode, ...]

    def recovered(self, progress_w: Sequence[int]) -> tuple[bool, ...]:
        """Return for each block whether enough clients have completed it."""
        progress = np.asarray(progress_w)
        return tuple(
            int((progress <= index).sum()) <= code.stragglers for index, code in enumerate(self.codes)
        )


def block_coordinate(clients_w: int, tolerances: Sequence[int], rng: np.random.Generator) -> BlockCoordinate:
    """Return cyclic codes with these tolerances, the largest last.

    >>> block_coordinate(4, (0, 2), np.random.default_rng(0)).recovered([2, 1, 2, 1])
    (True, True)
    """
    if list(tolerances) != sorted(tolerances) or not tolerances:
        raise BadPlacement(
            f"tolerances {list(tolerances)}: rising ones are needed, since fewer reach late blocks"
        )
    return BlockCoordinate(tuple(cyclic(clients_w, tolerance + 1, 1, rng) for tolerance in tolerances))
