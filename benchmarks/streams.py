"""Data that change while a model trains and is used: the streams of the gate benchmark.

    shift    half of the classes in the first part of the run, the others from a random time on (40% to 60%)
    phases   four groups of classes, one after another, from random times on
    bursts   each client sees a window of 128 of its samples, replaced now and then in quick succession

Labels are skewed over clients as in `skew`. Accuracy is that on the test samples of the classes of the time,
and what counts is its mean over the run.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedgc.training.tasks.partition import shards

STREAMS: Final = ("shift", "phases", "bursts")
SHARDS: Final = 2
PHASES: Final = 4
WINDOW: Final = 128
BURSTS: Final = 3  # of each client
BURST_SHARE: Final = 0.06  # of the run
CHECK: Final = 8  # steps for which a client of `bursts` keeps its window at least

Int = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Window:
    """The rows of a chunk, from `first` to `last`, that a client sees from a step on."""

    step: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Stream:
    """What each client sees when, and which test samples are those of the time."""

    rows: tuple[Int, ...]  # of each client, in the order in which it sees them
    windows: tuple[tuple[Window, ...], ...]
    tests: tuple[Int, ...]  # test samples of each period
    begins: tuple[int, ...]  # the first step of each period

    def window(self, client: int, step: int) -> Window:
        """Return what a client sees at a step."""
        return [each for each in self.windows[client] if each.step <= step][-1]

    def period(self, step: int) -> int:
        """Return the number of the period of a step."""
        return sum(begin <= step for begin in self.begins) - 1


def stream_of(
    kind: str, labels: Int, test_labels: Int, *, clients: int, steps: int, rng: np.random.Generator
) -> Stream:
    """Return the stream of this kind."""
    classes = rng.permutation(int(labels.max()) + 1)
    if kind == "bursts":
        homes = _skewed(np.arange(len(labels)), labels, clients, rng)
        seen = [_bursts(home, steps, rng) for home in homes]
        return Stream(
            tuple(rows for rows, _ in seen),
            tuple(windows for _, windows in seen),
            (np.arange(len(test_labels)),),
            (0,),
        )
    count = 2 if kind == "shift" else PHASES
    times = rng.uniform(0.4, 0.6, 1) if kind == "shift" else np.sort(rng.uniform(0.05, 0.95, count - 1))
    begins = (0, *(int(steps * share) for share in times))
    groups = np.array_split(classes, count)
    dealt = [
        _skewed(np.flatnonzero(np.isin(labels, group)), labels, clients, rng) for group in groups
    ]  # by group, by client
    rows, windows = [], []
    for client in range(clients):
        parts = [of_group[client] for of_group in dealt]
        ends = np.cumsum([len(part) for part in parts]).tolist()
        rows.append(np.concatenate(parts))
        windows.append(
            tuple(
                Window(begin, end - len(part), end)
                for begin, part, end in zip(begins, parts, ends, strict=True)
            )
        )
    tests = tuple(np.flatnonzero(np.isin(test_labels, group)) for group in groups)
    return Stream(tuple(rows), tuple(windows), tests, begins)


def _skewed(rows: Int, labels: Int, clients: int, rng: np.random.Generator) -> list[Int]:
    """Deal rows sorted by label in shards (McMahan et al., arXiv 1602.05629)."""
    return [rows[mine] for mine in shards(labels[rows], clients, SHARDS, rng)]


def _bursts(home: Int, steps: int, rng: np.random.Generator) -> tuple[Int, tuple[Window, ...]]:
    """Return the windows of a client, one after another."""
    starts = [0, *np.sort(rng.uniform(0, 1, BURSTS) * steps).astype(int).tolist()]
    length = int(BURST_SHARE * steps)
    begins = sorted({at for start in starts for at in range(start, min(start + length, steps), CHECK)})
    rows = [rng.choice(home, WINDOW) for _ in begins]
    windows = tuple(Window(begin, at * WINDOW, (at + 1) * WINDOW) for at, begin in enumerate(begins))
    return np.concatenate(rows), windows
