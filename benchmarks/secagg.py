"""`python -m benchmarks secagg`: the cost of masking, beside SecAgg+, plain float32 and the machine's limits.

For n sites and d numbers, without dropouts and with some before the upload, in one process:

    ours     a site: bind the exchange, expand masks, quantize, mask, sign, release shares, and its part of
             the set-up, which serves 32 exchanges. The server: begin, sum, check, rebuild secrets, remove
             the masks, dequantize, and its part of the set-up.
    flower   the same of SecAgg+, by Flower's own functions on the complete graph, with set-up in each round.
    plain    float32: a site copies its vector, the server sums and divides.

Seconds are CPU seconds; a cell is the median of its repeats, in which the methods alternate. The first rows
compare the methods cell by cell, those with the least gain over Flower first; plain is
always faster.

    flower_client_over_ours {"10,1e6,1": x, ...}   n, d, lost; the whole of a site's round
    flower_server_over_ours
    mask_over_aes          time of one mask / time of AES-256-GCM alone over as many bytes
    bytes_over_float32     {"32": x, ...} by ring: all bytes sent by a site, packets included, over 4 d
    masked_round_over_plain  overhead of a round on real Flower processes: 4 sites, 10 MB
    flower_round_over_ours   overhead of a round of Flower's own SecAgg+ there / of ours
    client_1000_over_10    a site's round among 1000 / among 10, of 10^6 numbers (`crowd`)
    server_1000_s          the server's seconds there, with 50 sites lost
    billion_over_aes       a site's rounding and masks of 10^9 numbers among 5 sites / AES-256-GCM alone
                           over as many bytes as its masks have (`crowd`)
    billion_peak_gb        {"site": x, "server": y}: memory then; of the server without its file
    masked_over_plain_100mb  seconds of a round of 8 sites with 100 MB over 100 Mbit/s / of one without masks
    commitments_s          10^6 scalar multiplications on Curve25519: less than a site needs to commit to 10^6
                           numbers, with which proofs of a masked update's norm begin
    commitments_over_ours  that / a site's whole masked round among 10 sites (`crowd`)
"""

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Final

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from benchmarks.consortium import Consortium, Watch
from benchmarks.crowd import crowd_rows, link_rows, long_rows_apart
from benchmarks.deployed import deployed_rows
from benchmarks.report import Figure, Report, Value, machine
from benchmarks.secagg_cells import CLIP, USUAL_NUMBERS, W_MAX, WEIGHT, Cell, our_row, plain_row, update_of
from benchmarks.secaggplus import PlusSites
from fedgc.secagg import Quantizer
from fedgc.secagg.federation import least_threshold
from fedgc.secagg.keystream import BLOCK_WORDS, Strand, add_strands, aes_stream

Float = NDArray[np.float32]

NARROW: Final = Quantizer(CLIP, 8, 16, W_MAX), Quantizer(CLIP, 4, 8, W_MAX)
NARROW_CELL: Final = (10, 10**6)
MOVED: Final = 3 * 10**8  # numbers that all repeats of a cell process, approximately
MASKS: Final = 10  # masks expanded at once to measure the rate of one
COMMITTED: Final = 10**6  # numbers, as in `crowd`
MULTIPLIED: Final = 200  # scalar multiplications at once to measure the rate of one


@dataclass(frozen=True, slots=True)
class Size:
    """The cells, and how many numbers all repeats of one cell may process."""

    sites: tuple[int, ...]
    numbers: tuple[int, ...]
    least: int  # repeats of a cell
    most: int
    mask_numbers: int
    deployed_rounds: int = 0
    crowd: int = 0  # sites of a large federation
    long: int = 0  # numbers of a long vector


USUAL: Final = Size((5, 10, 20, 50), (10**6, 10**7), 1, 7, 10**7, 15, crowd=1000, long=10**9)
LARGE: Final = replace(USUAL, numbers=(*USUAL.numbers, 10**8))
QUICK: Final = Size((5, 10), (10**6,), 2, 3, 10**6)
FLOWERS_LARGEST: Final = 5 * 10**8  # n d; beyond it Flower takes minutes and gigabytes


def lost_of(sites: int) -> tuple[int, int]:
    """Return the two measured numbers of dropouts: none, and about a tenth.

    >>> [lost_of(n)[1] for n in (5, 10, 20, 50)]
    [1, 1, 2, 5]
    """
    return 0, max(1, sites // 10)


def bench_secagg(size: Size) -> Report:
    """Measure all cells of a size."""
    rows: list[dict[str, Value]] = [
        {"what": "load", "load_1m": os.getloadavg()[0]},
        *limits(size.mask_numbers),
    ]
    for sites in size.sites:
        rows += _of_sites(sites, size)
    rows += _narrow()
    if size.long:
        rows += [*long_rows_apart(size.long), *link_rows()]
    if size.crowd:
        rows += crowd_rows(size.crowd)
    if size.deployed_rounds:
        rows += deployed_rows(size.deployed_rounds)
    return Report(figures(rows), [*compared(rows), *rows], machine())


# ---- cells


def repeats(cell: Cell, size: Size) -> int:
    """Return the number of repeats; small cells have more."""
    return max(size.least, min(size.most, MOVED // (cell.sites * cell.numbers)))


def _of_sites(sites: int, size: Size) -> list[dict[str, Value]]:
    watch = Watch()
    ours = Consortium(sites, USUAL_NUMBERS, os.urandom, watch)
    ours.round(update_of(1000), WEIGHT, 0, watch)  # unseals the other sites' shares: part of the set-up
    theirs = _Plus(sites)
    rows: list[dict[str, Value]] = []
    for numbers in size.numbers:
        for lost in lost_of(sites):
            cell = Cell(sites, numbers, lost)
            rows += _measured(cell, repeats(cell, size), (ours, watch), theirs)
    return rows


def _measured(
    cell: Cell, count: int, ours: tuple[Consortium, Watch], theirs: "_Plus"
) -> list[dict[str, Value]]:
    update, found = update_of(cell.numbers), []
    for _ in range(count):
        found.append(our_row(cell, *ours, update))
        if cell.sites * cell.numbers <= FLOWERS_LARGEST:
            found.append(theirs.row(cell, update))
        found.append(plain_row(cell, update))
    return found


class _Plus:
    """SecAgg+ of this many sites; one of them masks, and the others' uploads are taken as equal."""

    def __init__(self, sites: int) -> None:
        self._watch = watch = Watch()
        self._plus = PlusSites(sites, least_threshold(sites), W_MAX)
        self._set_up_bytes = 0
        for do in (self._plus.open, self._plus.share):
            for number in self._plus.numbers:
                with watch.on(do.__name__):
                    self._set_up_bytes += do(number)
        for number in self._plus.numbers:
            self._plus.mask(number, update_of(1), WEIGHT)  # unseals the shares for unlocking

    def row(self, cell: Cell, update: Float) -> dict[str, Value]:
        """Measure one round."""
        watch, plus = Watch(), self._plus
        survivors = plus.numbers[: cell.sites - cell.lost]
        with watch.on("vector"):
            upload = plus.mask(1, update, WEIGHT)
        opened = []
        for number in survivors:
            with watch.on("unlock"):
                opened.append(plus.unlock(number, survivors))
        with watch.on("server"):
            plus.mean(plus.total(upload for _ in survivors), opened, survivors)
        small_s = sum(median(each) for each in (*self._watch.seconds.values(), watch.seconds["unlock"]))
        packets = sum(len(share) for _, share in opened[0]) + self._set_up_bytes / cell.sites
        return cell.row(
            "flower",
            client_s=small_s + watch.seconds["vector"][0],
            client_vector_s=watch.seconds["vector"][0],
            server_s=watch.seconds["server"][0],
            up_bytes=sum(map(len, upload)) + packets,
        )


def _narrow() -> Iterable[dict[str, Value]]:
    """Run the narrower rings once, for their bytes."""
    cell = Cell(*NARROW_CELL, lost_of(NARROW_CELL[0])[1])
    for quantizer in (USUAL_NUMBERS, *NARROW):
        watch = Watch()
        consortium = Consortium(cell.sites, quantizer, os.urandom, watch)
        row = our_row(cell, consortium, watch, update_of(cell.numbers))
        yield {**row, "what": "ring", "ring": quantizer.ring, "bits": quantizer.bits}


# ---- limits


def limits(numbers: int) -> list[dict[str, Value]]:
    """Measure this machine's rates: AES-256-GCM alone, one mask, a copy in memory."""
    rows: list[dict[str, Value]] = []
    words = np.zeros(numbers, np.uint32)
    strands = [Strand(bytes(32), minus=False)] * MASKS
    block = np.empty(BLOCK_WORDS, np.uint32)
    zeros, target = bytes(block.nbytes), block.view(np.uint8).data
    for _ in range(5):
        watch = Watch()
        with watch.on("mask"):
            add_strands(words, strands)
        with watch.on("aes"):
            stream = aes_stream(bytes(32), 0)
            for _ in range(0, MASKS * numbers, BLOCK_WORDS):
                stream.update_into(zeros, target)
        with watch.on("memcpy"):
            for _ in range(MASKS):
                words.copy()
        rows += [
            {"what": what, "seconds": seconds / MASKS, "bytes_s": words.nbytes * MASKS / seconds}
            for what, (seconds,) in watch.seconds.items()
        ]
    return [*rows, *_commitments()]


def _commitments() -> Iterable[dict[str, Value]]:
    """Measure one scalar multiplication; a Pedersen commitment has two, with fixed points."""
    secret, point = X25519PrivateKey.generate(), X25519PrivateKey.generate().public_key()
    for _ in range(5):
        watch = Watch()
        with watch.on("commitment"):
            for _ in range(MULTIPLIED):
                secret.exchange(point)
        yield {"what": "commitment", "seconds": watch.seconds["commitment"][0] / MULTIPLIED}


# ---- figures


def figures(rows: Sequence[Mapping[str, Value]]) -> dict[str, Figure]:
    """Return the named figures, None if not measured."""
    rates = {what: _median(rows, "seconds", what=what) for what in ("mask", "aes")}
    commitment_s, among_10_s = (
        _median(rows, "seconds", what="commitment"),
        _crowd(rows, "client_s", most=False),
    )
    commitments_s = None if commitment_s is None else COMMITTED * commitment_s
    return {
        "flower_client_over_ours": _ratios(rows, "client_s"),
        "flower_server_over_ours": _ratios(rows, "server_s"),
        "mask_over_aes": _ratio(rates["mask"], rates["aes"]),
        "bytes_over_float32": {
            str(row["ring"]): number(row["up_bytes"]) / (4 * number(row["numbers"]))
            for row in rows
            if row["what"] == "ring"
        },
        "masked_round_over_plain": _compared(rows, "round_s", "deployed", "masked", "plain"),
        "flower_round_over_ours": _compared(rows, "round_s", "deployed", "flower", "masked"),
        "client_1000_over_10": _ratio(_crowd(rows, "client_s", most=True), among_10_s),
        "server_1000_s": _crowd(rows, "server_s", most=True),
        "billion_over_aes": _compared(rows, "seconds", "long", "masked", "aes"),
        "billion_peak_gb": {
            "server" if row["method"] == "sum" else "site": number(row["peak_bytes"]) / 1e9
            for row in rows
            if row["what"] == "long" and "peak_bytes" in row
        },
        "masked_over_plain_100mb": _compared(rows, "round_s", "link", "masked", "plain"),
        "commitments_s": commitments_s,
        "commitments_over_ours": _ratio(commitments_s, among_10_s),
    }


def _crowd(rows: Sequence[Mapping[str, Value]], field: str, *, most: bool) -> float | None:
    """Return a median of the largest, or of the smallest, federation of the crowd's rows."""
    sites = sorted({number(row["sites"]) for row in rows if row["what"] == "crowd"})
    return _median(rows, field, what="crowd", sites=sites[-1 if most else 0]) if sites else None


def compared(rows: Sequence[Mapping[str, Value]]) -> list[dict[str, Value]]:
    """Return a row for each cell, the least gain first: Flower's / ours, and ours / plain."""
    found: list[dict[str, Value]] = []
    for cell in _cells(rows):
        client_s, server_s = (
            {method: _median(rows, what, **cell.row(method)) for method in ("ours", "flower", "plain")}
            for what in ("client_s", "server_s")
        )
        found.append(
            cell.row(
                "compared",
                flower_client_over_ours=_ratio(client_s["flower"], client_s["ours"]),
                flower_server_over_ours=_ratio(server_s["flower"], server_s["ours"]),
                client_over_plain=_ratio(client_s["ours"], client_s["plain"]),
                server_over_plain=_ratio(server_s["ours"], server_s["plain"]),
            )
        )
    return sorted(found, key=_gain)


def lines(report: Report) -> list[str]:
    """Return for each cell the gain and cost of masks as text, the least gain first."""
    said = []
    for row in report.rows:
        if row["what"] == "compared":
            cell = Cell(*(int(number(row[name])) for name in ("sites", "numbers", "lost")))
            gains = [_times(row[f"flower_{side}_over_ours"]) for side in ("client", "server")]
            costs = [_times(row[f"{side}_over_plain"]) for side in ("client", "server")]
            said.append(
                f"{cell.name}: Flower's SecAgg+ takes {gains[0]} as long at a site, {gains[1]} at "
                f"the server; ours takes {costs[0]} and {costs[1]} as long as plain float32"
            )
    return said


def _gain(row: Mapping[str, Value]) -> float:
    known = [row[f"flower_{side}_over_ours"] for side in ("client", "server")]
    return min((number(each) for each in known if each is not None), default=math.inf)


def _times(ratio: Value) -> str:
    return "? x" if ratio is None else f"{number(ratio):.1f} x"


def _cells(rows: Sequence[Mapping[str, Value]]) -> list[Cell]:
    cells = {
        Cell(int(number(row["sites"])), int(number(row["numbers"])), int(number(row["lost"])))
        for row in rows
        if row["what"] in ("ours", "flower")
    }
    return sorted(cells, key=lambda cell: (cell.sites, cell.numbers, cell.lost))


def _ratios(rows: Sequence[Mapping[str, Value]], what: str) -> dict[str, float | None]:
    return {
        cell.name: _ratio(*(_median(rows, what, **cell.row(method)) for method in ("flower", "ours")))
        for cell in _cells(rows)
    }


def _median(rows: Sequence[Mapping[str, Value]], field: str, **like: Value) -> float | None:
    found = [number(row[field]) for row in rows if field in row and like.items() <= row.items()]
    return median(found) if found else None


def _compared(
    rows: Sequence[Mapping[str, Value]], field: str, what: str, method: str, other: str
) -> float | None:
    """Return the ratio of two methods' medians."""
    return _ratio(*(_median(rows, field, what=what, method=each) for each in (method, other)))


def _ratio(top: float | None, bottom: float | None) -> float | None:
    return None if top is None or not bottom else top / bottom


def number(value: Any) -> float:  # noqa: ANN401  a row's value
    """Return a row's value as a number."""
    return float(value)
