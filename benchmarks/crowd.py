"""Masks of a thousand sites and of long vectors, for the figures of `benchmarks secagg`.

crowd    n sites with a sparse graph (5% may collude, a tenth may be away) and 10^6 numbers; 5% are lost
before they upload. Beside it 10 sites on the complete graph, one of them lost.
long     5 sites and 10^9 numbers: the seconds in which one site rounds and masks its update, beside
AES-256-GCM alone over as many bytes as its masks have; and the memory of a site, and of the server, whose
sum is in a file: of the server what the system cannot take back, so all but mapped files. The update is
read by slices; the model that it is computed from, which training holds in any case, is left out.
link     8 sites with 100 MB models over 100 Mbit/s each, as a sum of seconds, one after the other: the
model down, the update up, a site's own and the server's CPU seconds, with masks and without.
"""

import os
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np

from benchmarks.consortium import Consortium, Watch, staying
from benchmarks.memory_watch import resident_bytes, watched
from benchmarks.report import Value
from benchmarks.secagg_cells import USUAL_NUMBERS, WEIGHT, Cell, Float, our_row, plain_row, update_of
from fedgc.errors import EdgeFailed
from fedgc.large_vectors import Scratch
from fedgc.secagg import RingSum
from fedgc.secagg.graph import graph_for
from fedgc.secagg.keystream import BLOCK_WORDS, RUN_WORDS, ZEROS, aes_stream, tiles

BESIDE: Final = Cell(10, 10**6, 1)
SHARE: Final = 20  # one site in so many colludes, and one is lost
LONG_SITES: Final = 5
PEAK: Final = ("VmHWM",)  # of all memory, with mapped files
PIECE_WORDS: Final = 1 << 18  # of an upload: links send 1 MiB at a time
LINK: Final = Cell(8, 25 * 10**6, 0)
LINK_BYTES_S: Final = 100e6 / 8
REPEATS: Final = 5


def crowd_rows(sites: int) -> Iterator[dict[str, Value]]:
    """Measure one exchange of many sites, and some of ten."""
    ours, watch = _consortium(BESIDE.sites)
    for _ in range(REPEATS):
        yield {**our_row(BESIDE, ours, watch, update_of(BESIDE.numbers)), "what": "crowd"}
    cell = Cell(sites, BESIDE.numbers, sites // SHARE)
    ours, watch = _consortium(sites)
    yield {**our_row(cell, ours, watch, update_of(cell.numbers)), "what": "crowd"}


def long_rows_apart(numbers: int) -> list[dict[str, Value]]:
    """Measure a long vector in a process of its own, for its memory."""
    with get_context("spawn").Pool(1) as pool:
        return pool.apply(long_rows, (numbers,))


def long_rows(numbers: int) -> list[dict[str, Value]]:
    """Measure one exchange of a long vector, a site's keystreams alone, and the memory of both sides."""
    ours, _ = _consortium(LONG_SITES)
    cell, update, watch = Cell(LONG_SITES, numbers, 0), Repeated(update_of(BLOCK_WORDS), numbers), Watch()
    exchange = ours.begin(numbers, watch)
    with watch.on("masked"):
        first = ours.masked(0, update, WEIGHT)
        for start in range(0, first.size, PIECE_WORDS):
            first[start : start + PIECE_WORDS]
    site_bytes = resident_bytes(os.getpid(), PEAK)
    with watch.on("aes"):
        _run_keystreams(LONG_SITES * numbers)
    finders = {"process": os.getpid}
    with TemporaryDirectory(prefix="fedgc-bench-") as folder, watched(finders) as of_server:
        total = RingSum(USUAL_NUMBERS, numbers, Scratch(Path(folder)))
        for member in range(LONG_SITES):
            total.add(ours.masked(member, update, WEIGHT) if member else first)
        mean, bound = ours.finish(exchange, total, range(LONG_SITES), watch)
        error = max(float(np.abs(mean[tile] - update[tile]).max()) for tile in tiles(numbers))
        of_server.look(finders)
    if error > bound:
        raise EdgeFailed(f"masked mean of {cell.name}: saw an error of {error:.2e}, needed {bound:.2e}")
    masked_s, aes_s = (watch.seconds[what][0] for what in ("masked", "aes"))
    server_bytes, mapped_bytes = of_server.peak["process"], resident_bytes(os.getpid(), PEAK)
    return [
        cell.row("long", method="masked", seconds=masked_s, peak_bytes=site_bytes),
        cell.row("long", method="sum", peak_bytes=server_bytes, with_file_bytes=mapped_bytes, error=error),
        cell.row("long", method="aes", seconds=aes_s),
    ]


class Repeated:
    """An update that repeats a tile."""

    dtype: Final = np.dtype(np.float32)

    def __init__(self, tile: Float, size: int) -> None:
        self.size: Final = size
        self._twice = np.concatenate([tile, tile])

    def __getitem__(self, part: slice, /) -> Float:
        start, stop, _ = part.indices(self.size)
        at = start % BLOCK_WORDS
        return self._twice[at : at + stop - start]


def _run_keystreams(words: int) -> None:
    block = np.empty(BLOCK_WORDS, np.uint32)
    target = block.view(np.uint8).data
    for run in range(words // RUN_WORDS):
        stream = aes_stream(bytes(32), run)
        for _ in range(RUN_WORDS // BLOCK_WORDS):
            stream.update_into(ZEROS, target)


def link_rows() -> Iterator[dict[str, Value]]:
    """Measure the seconds of a round over a link, with masks and without."""
    ours, set_up = _consortium(LINK.sites)
    update = update_of(LINK.numbers)
    for method, row in (
        ("masked", our_row(LINK, ours, set_up, update)),
        ("plain", plain_row(LINK, update)),
    ):
        names = "client_s", "server_s", "up_bytes"
        client_s, server_s, up_bytes = (float(str(row[name])) for name in names)
        link_s = (update.nbytes + up_bytes) / LINK_BYTES_S
        yield LINK.row("link", method=method, round_s=link_s + client_s + server_s, link_s=link_s)


def _consortium(sites: int) -> tuple[Consortium, Watch]:
    """Return sites whose keys are set up and delivered, and what that has cost."""
    stays, watch = staying(sites), Watch()
    graph = graph_for(sites, stays, stays, sites // SHARE, sites // SHARE) if sites > BESIDE.sites else None
    ours = Consortium(sites, USUAL_NUMBERS, os.urandom, watch, graph)
    ours.round(update_of(1000), WEIGHT, 0, watch)
    return ours, watch
