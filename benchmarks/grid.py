"""The scenarios of `python -m benchmarks rounds`: client models, and every trace with a reader.

    *.parquet, *.pkl, *.pickle, *.csv   times of clients: GPU jobs, AWS Lambda, a plain table
    flash_speed_distri.json             links of mobile users, for otherwise modelled clients
    client_device_capacity              FedScale's phones: speed and links
    client_behave_trace                 with it: their availability

Times without links are used for every ratio of upload to work (see `rounds`). Recorded links are used
unchanged; the size of the model sets the ratio.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import numpy as np

from benchmarks.traces import READERS, read_behavior, read_capacity, read_scenario
from fedgc.errors import EdgeFailed
from fedgc.sim.clock import MODELS, Conditions, Scenario
from fedgc.sim.clock.conditions import Int
from fedgc.sim.traces import read_links

LINKS: Final = "flash_speed_distri.json"
CAPACITY: Final = "client_device_capacity"
BEHAVIOR: Final = "client_behave_trace"
LINK_RATIOS: Final = (0.3, 3.0)  # of the median client's upload to its unit of work
ONE_MEGABYTE: Final = 1_000_000
PHONE_BYTES: Final = 5 * ONE_MEGABYTE  # a model for phones
PHONE_SAMPLES: Final = 100  # samples in a unit of a phone's work
APART_S: Final = 3600.0  # between the beginnings of two rounds with phones


class Source(Protocol):
    """The source of a scenario's rounds; frozen, since it is sent to other processes."""

    @property
    def name(self) -> str:
        """Return the name in tables."""

    def make(self, clients: int, rounds: int, seed: int) -> Scenario:
        """Return this many rounds of at most this many clients."""

    def __hash__(self) -> int:
        """Return the same for equal sources, whose rounds are made once."""


@dataclass(frozen=True, slots=True)
class Modelled:
    """A client model without links."""

    name: str

    def make(self, clients: int, rounds: int, seed: int) -> Scenario:
        """Draw the rounds."""
        return MODELS[self.name](clients, rounds, np.random.default_rng(seed))


@dataclass(frozen=True, slots=True)
class Recorded:
    """A trace of times, with a different start for every seed, repeated at its end."""

    path: Path

    @property
    def name(self) -> str:
        """Return the name in tables."""
        return self.path.stem

    def make(self, clients: int, rounds: int, seed: int) -> Scenario:
        """Return rounds of the trace."""
        whole = read_scenario(self.path)
        rows_w = _some(whole[0], clients, np.random.default_rng(seed))
        return tuple(whole[(seed * rounds + at) % len(whole)].only(rows_w) for at in range(rounds))


@dataclass(frozen=True, slots=True)
class Linked:
    """Shifted-exponential clients on recorded links; a median upload takes `ratio` units of work."""

    path: Path
    ratio: float

    @property
    def name(self) -> str:
        """Return the name in tables."""
        return f"links of users x{self.ratio:g}"

    def make(self, clients: int, rounds: int, seed: int) -> Scenario:
        """Draw paces, then a user's link for each client; the size of the model follows from the ratio."""
        rng = np.random.default_rng(seed)
        scenario = MODELS["shifted-exponential"](clients, rounds, rng)
        links = read_links(self.path)
        small = links.over(scenario, ONE_MEGABYTE, np.random.default_rng(seed))
        size = self.ratio / link_ratio(small) * ONE_MEGABYTE
        return links.over(scenario, round(size), np.random.default_rng(seed))


@dataclass(frozen=True, slots=True)
class Phones:
    """FedScale's clients, a different sample for every seed; with a recording they come and go."""

    capacity: Path
    behavior: Path | None = None

    @property
    def name(self) -> str:
        """Return the name in tables."""
        return "phones" + (" that come and go" if self.behavior else "")

    def make(self, clients: int, rounds: int, seed: int) -> Scenario:
        """Choose clients; rounds begin an hour apart."""
        processes = read_capacity(self.capacity, samples=PHONE_SAMPLES, update_bytes=PHONE_BYTES)
        absences = read_behavior(self.behavior) if self.behavior else None
        most = min(clients, len(absences.laps_s)) if absences else clients
        scenario = (processes.only(_some(processes, most, np.random.default_rng(seed))),) * rounds
        starts_s = tuple(APART_S * (seed * rounds + at) for at in range(rounds))
        return absences.over(scenario, starts_s) if absences else scenario


def sources(traces: Path | None) -> list[Source]:
    """Return all scenarios: the models, and the traces in a folder."""
    found: list[Source] = [Modelled(name) for name in MODELS]
    if traces is not None and not traces.is_dir():
        raise EdgeFailed(f"traces {traces}: saw no folder, needed one that is there")
    return found if traces is None else [*found, *_of_folder(traces)]


def _of_folder(traces: Path) -> Iterator[Source]:
    yield from (Recorded(path) for path in sorted(traces.iterdir()) if path.suffix in READERS)
    if (traces / LINKS).exists():
        yield from (Linked(traces / LINKS, ratio) for ratio in LINK_RATIOS)
    if (traces / CAPACITY).exists():
        yield Phones(traces / CAPACITY)
        if (traces / BEHAVIOR).exists():
            yield Phones(traces / CAPACITY, traces / BEHAVIOR)


def link_ratio(scenario: Scenario) -> float:
    """Return the median upload of a whole update over the median unit of work.

    >>> from fedgc.sim.clock import working
    >>> link_ratio((working([[1.0], [2.0], [4.0]], up_s=3.0),))
    1.5
    """
    up_s = float(np.median([each.up_s_w for each in scenario]))
    return up_s / float(np.median([each.mean_pace_w for each in scenario]))


def _some(conditions: Conditions, clients: int, rng: np.random.Generator) -> Int:
    """Return all clients, or a random subset of this many."""
    if conditions.clients <= clients:
        return np.arange(conditions.clients)
    return np.sort(rng.choice(conditions.clients, clients, replace=False))
