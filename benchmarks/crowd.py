"""Masks of a thousand sites and of long vectors, for the figures of `benchmarks secagg`.

crowd    n sites with a sparse graph (5% may collude, a tenth may be away) and 10^6 numbers; 5% are lost
before they upload. Beside it 10 sites on the complete graph, one of them lost.
long     5 sites and a long vector: one site's masks and quantization, beside AES-256-GCM alone over as
many bytes as its masks have. The vector is held whole, in 8 bytes for each number.
link     8 sites with 100 MB models over 100 Mbit/s each, as a sum of seconds, one after the other: the
model down, the update up, a site's own and the server's CPU seconds, with masks and without.
"""

import os
from collections.abc import Iterator
from typing import Final

import numpy as np

from benchmarks.consortium import Consortium, Watch, staying
from benchmarks.report import Value
from benchmarks.secagg_cells import USUAL_NUMBERS, WEIGHT, Cell, our_row, plain_row, update_of
from fedgc.secagg.graph import graph_for
from fedgc.secagg.keystream import BLOCK_WORDS, RUN_WORDS, aes_stream

BESIDE: Final = Cell(10, 10**6, 1)
SHARE: Final = 20  # one site in so many colludes, and one is lost
LONG_SITES: Final = 5
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


def long_rows(numbers: int) -> Iterator[dict[str, Value]]:
    """Measure a site's masks and quantization of a long vector, beside its keystreams alone."""
    ours, set_up = _consortium(LONG_SITES)
    cell = Cell(LONG_SITES, numbers, 0)
    row = our_row(cell, ours, set_up, update_of(numbers))
    yield cell.row("long", method="masked", seconds=row["client_vector_s"])
    watch = Watch()
    block = np.empty(BLOCK_WORDS, np.uint32)
    zeros, target = bytes(block.nbytes), block.view(np.uint8).data
    with watch.on("aes"):
        for run in range(LONG_SITES * numbers // RUN_WORDS):
            stream = aes_stream(bytes(32), run)
            for _ in range(RUN_WORDS // BLOCK_WORDS):
                stream.update_into(zeros, target)
    yield cell.row("long", method="aes", seconds=watch.seconds["aes"][0])


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
