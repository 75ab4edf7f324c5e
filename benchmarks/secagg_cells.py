"""One cell of the masking benchmark: sites, numbers and dropouts, measured with masks and in plain."""

from dataclasses import dataclass
from statistics import median
from typing import Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.consortium import EXCHANGES, Consortium, Watch
from benchmarks.report import Value
from fedgc.errors import EdgeFailed
from fedgc.secagg import Quantizer

Float = NDArray[np.float32]

WEIGHT: Final = 500
W_MAX: Final = 1000
CLIP: Final = 1.0
USUAL_NUMBERS: Final = Quantizer(CLIP, 20, 32, W_MAX)


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell: the number of sites, of parameters and of dropouts."""

    sites: int
    numbers: int
    lost: int

    @property
    def name(self) -> str:
        """Return its name in the figures."""
        return f"{self.sites},1e{len(str(self.numbers)) - 1},{self.lost}"

    def row(self, what: str, **measured: Value) -> dict[str, Value]:
        """Return a row of the report."""
        return {
            "what": what,
            "sites": self.sites,
            "numbers": self.numbers,
            "lost": self.lost,
            **measured,
        }


def our_row(cell: Cell, consortium: Consortium, set_up: Watch, update: Float) -> dict[str, Value]:
    """Measure one exchange of ours, and check its mean."""
    watch = Watch()
    mean, bound = consortium.round(update, WEIGHT, cell.lost, watch)
    error = float(np.abs(mean - update).max())
    if error > bound:
        raise EdgeFailed(
            f"masked mean of {cell.name}: saw an error of {error:.2e}, needed at most {bound:.2e}"
        )
    vector_s, packets_s = (_each(watch, f"client {what}", cell.sites) for what in ("vector", "packets"))
    set_up_s = sum(map(sum, (set_up.seconds["client"], set_up.seconds["client packets"])))
    server_set_up_s = sum(set_up.seconds["server"]) / EXCHANGES
    server_s = sum(watch.seconds["server vector"]) + sum(watch.seconds["server packets"])
    return cell.row(
        "ours",
        client_s=vector_s + packets_s + set_up_s / cell.sites / EXCHANGES,
        client_vector_s=vector_s,
        server_s=server_s + server_set_up_s,
        server_vector_s=sum(watch.seconds["server vector"]),
        up_bytes=_up_bytes(watch, set_up, cell.sites),
        error=error,
        bound=bound,
    )


def _each(watch: Watch, what: str, sites: int) -> float:
    """Return one site's seconds: the median of a step that each does once, the mean of several."""
    seconds = watch.seconds[what]
    return median(seconds) if len(seconds) <= sites else sum(seconds) / sites


def _up_bytes(watch: Watch, set_up: Watch, sites: int) -> float:
    spread = sum(set_up.size_bytes["packets"]) / EXCHANGES
    survivors = len(watch.size_bytes["vector"])
    packets = sum(watch.size_bytes["packets"]) / survivors
    return watch.size_bytes["vector"][0] + packets + spread / sites


def plain_row(cell: Cell, update: Float) -> dict[str, Value]:
    """Measure a round without masks on the same vectors."""
    watch = Watch()
    with watch.on("client"):
        sent = update.copy()
    with watch.on("server"):
        total = sent.copy()
        for _ in range(cell.sites - cell.lost - 1):
            np.add(total, sent, out=total)
        np.divide(total, cell.sites - cell.lost, out=total)
    return cell.row(
        "plain",
        client_s=watch.seconds["client"][0],
        server_s=watch.seconds["server"][0],
        up_bytes=sent.nbytes,
    )


def update_of(numbers: int) -> Float:
    """Return an update as in training: most values small, all inside the clip."""
    return np.random.default_rng(0).uniform(-0.05, 0.05, numbers).astype(np.float32)
