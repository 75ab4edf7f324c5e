"""The weathers of `fedgc bench rounds`: models of machines, and every trace in a folder that has a reader.

    *.parquet, *.pkl, *.pickle, *.csv   times of workers: GPU jobs, AWS Lambda, a plain table
    flash_speed_distri.json             links of mobile users, for devices that are otherwise modelled
    client_device_capacity              FedScale's phones: what they can do, and their links
    client_behave_trace                 beside it: when they are there

Times without links serve for every ratio of upload to work (see `rounds`). Links are as they are recorded;
their model's size is what makes an upload some share of the work.

May import: sim and below.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import numpy as np

from fedgc.errors import EdgeFailed
from fedgc.replay import MODELS, Conditions, Weather
from fedgc.replay.conditions import Int
from fedgc.sim.traces import read_behaviour, read_capacity, read_links, read_weather

TIMES: Final = (".parquet", ".pkl", ".pickle", ".csv")
LINKS: Final = "flash_speed_distri.json"
CAPACITY: Final = "client_device_capacity"
BEHAVIOUR: Final = "client_behave_trace"
LINK_RATIOS: Final = (0.3, 3.0)  # of the median device's upload to its unit of work
ONE_MEGABYTE: Final = 1_000_000
PHONE_BYTES: Final = 5 * ONE_MEGABYTE  # a model for phones
PHONE_SAMPLES: Final = 100  # in a unit of a phone's work
APART_S: Final = 3600.0  # from the beginning of a round with phones to that of the next


class Source(Protocol):
    """Where the rounds of one weather come from; frozen, as it goes to other processes."""

    @property
    def name(self) -> str:
        """Return its name in tables."""

    def make(self, devices: int, rounds: int, seed: int) -> Weather:
        """Return so many rounds of at most so many devices."""


@dataclass(frozen=True, slots=True)
class Modelled:
    """A model of machines, without links."""

    name: str

    def make(self, devices: int, rounds: int, seed: int) -> Weather:
        """Draw the rounds."""
        return MODELS[self.name](devices, rounds, np.random.default_rng(seed))


@dataclass(frozen=True, slots=True)
class Recorded:
    """A trace of times, which begins elsewhere for every seed and over again where it ends."""

    path: Path

    @property
    def name(self) -> str:
        """Return its name in tables."""
        return self.path.stem

    def make(self, devices: int, rounds: int, seed: int) -> Weather:
        """Cut the rounds out of the trace."""
        whole = read_weather(self.path)
        rows_w = _some(whole[0], devices, np.random.default_rng(seed))
        return tuple(whole[(seed * rounds + at) % len(whole)].only(rows_w) for at in range(rounds))


@dataclass(frozen=True, slots=True)
class Linked:
    """Shifted-exponential devices on recorded links; a median upload takes `ratio` units of work."""

    path: Path
    ratio: float

    @property
    def name(self) -> str:
        """Return its name in tables."""
        return f"links of users x{self.ratio:g}"

    def make(self, devices: int, rounds: int, seed: int) -> Weather:
        """Draw paces, then a user's link for each device; the model is as large as the ratio wants it."""
        rng = np.random.default_rng(seed)
        weather = MODELS["shifted-exponential"](devices, rounds, rng)
        links = read_links(self.path)
        small = links.over(weather, ONE_MEGABYTE, np.random.default_rng(seed))
        size = self.ratio / link_ratio(small) * ONE_MEGABYTE
        return links.over(weather, round(size), np.random.default_rng(seed))


@dataclass(frozen=True, slots=True)
class Phones:
    """FedScale's clients, others for every seed; they come and go where that was recorded."""

    capacity: Path
    behaviour: Path | None = None

    @property
    def name(self) -> str:
        """Return its name in tables."""
        return "phones" + (" that come and go" if self.behaviour else "")

    def make(self, devices: int, rounds: int, seed: int) -> Weather:
        """Choose clients; rounds begin an hour apart."""
        clients = read_capacity(self.capacity, samples=PHONE_SAMPLES, update_bytes=PHONE_BYTES)
        absences = read_behaviour(self.behaviour) if self.behaviour else None
        most = min(devices, len(absences.laps_s)) if absences else devices
        weather = (clients.only(_some(clients, most, np.random.default_rng(seed))),) * rounds
        starts_s = tuple(APART_S * (seed * rounds + at) for at in range(rounds))
        return absences.over(weather, starts_s) if absences else weather


def sources(traces: Path | None) -> list[Source]:
    """Return all weathers: the models, and what lies in a folder of traces."""
    found: list[Source] = [Modelled(name) for name in MODELS]
    if traces is not None and not traces.is_dir():
        raise EdgeFailed(f"traces {traces}: saw no folder, needed one that is there")
    return found if traces is None else [*found, *_of_folder(traces)]


def _of_folder(traces: Path) -> Iterator[Source]:
    yield from (Recorded(path) for path in sorted(traces.iterdir()) if path.suffix in TIMES)
    if (traces / LINKS).exists():
        yield from (Linked(traces / LINKS, ratio) for ratio in LINK_RATIOS)
    if (traces / CAPACITY).exists():
        yield Phones(traces / CAPACITY)
        if (traces / BEHAVIOUR).exists():
            yield Phones(traces / CAPACITY, traces / BEHAVIOUR)


def link_ratio(weather: Weather) -> float:
    """Return the median upload of a whole update over the median unit of work.

    >>> from fedgc.replay import working
    >>> link_ratio((working([[1.0], [2.0], [4.0]], up_s=3.0),))
    1.5
    """
    up_s = float(np.median([each.up_s_w for each in weather]))
    return up_s / float(np.median([each.mean_pace_w for each in weather]))


def _some(conditions: Conditions, devices: int, rng: np.random.Generator) -> Int:
    """Return all devices, or so many of them by chance."""
    if conditions.devices <= devices:
        return np.arange(conditions.devices)
    return np.sort(rng.choice(conditions.devices, devices, replace=False))
