"""How often the tuner's band holds a round, on every model and trace, and on two scenarios of its own.

A prediction may not know what it predicts: the band of a round is made before it is played, from the rounds
before. The first rounds are for learning. The replays draw the errors of clients nearly independently, so
there is a scenario in which all clients are slow together, and one in which speeds change at once.

    held                 share of rounds in the band that `fedgc plan` would show before each
    held_as_made         share in the band that their plan had when it was made
    width                median of the band's width over the prediction
    predicted_over_seen  the predicted over the seen time of all rounds
    replayed_over_seen   the same without the correction by past predictions
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from benchmarks.report import Value
from fedgc.sim.clock import Scenario, working
from fedgc.tuner import Band, Choice

Row = Mapping[str, Value]

WANTED: Final = 0.8
BURSTS: Final = 0.3  # share of the rounds in which all clients are slow
LONGER: Final = (0.8, 0.6)  # mean and deviation of the logarithm of how much slower
OWN: Final = 0.4  # deviation of the logarithm of a client's own time
SPEEDS: Final = (1.0, 0.5, 0.2)
STEADY: Final = 12  # rounds until speeds are swapped
NOISE: Final = 0.05


@dataclass(frozen=True, slots=True)
class Bursts:
    """One cause, such as a busy network, slows all clients in some rounds."""

    name: str = "bursts"

    def make(self, clients: int, rounds: int, seed: int) -> Scenario:
        """Draw a factor for each round, then one for each client in it."""
        rng = np.random.default_rng([seed, 4])
        common_r = np.where(rng.random(rounds) < BURSTS, rng.lognormal(*LONGER, rounds), 1.0)
        return tuple(working((common * rng.lognormal(0.0, OWN, clients))[:, None]) for common in common_r)


@dataclass(frozen=True, slots=True)
class Swapped:
    """Clients of three speeds, which are dealt anew once, after the rounds of learning."""

    name: str = "swapped speeds"

    def make(self, clients: int, rounds: int, seed: int) -> Scenario:
        """Draw the speeds before and after."""
        rng = np.random.default_rng([seed, 5])
        before_w, after_w = rng.choice(SPEEDS, clients), rng.choice(SPEEDS, clients)
        speed_rw = [before_w if number < STEADY else after_w for number in range(rounds)]
        return tuple(working((rng.lognormal(0.0, NOISE, clients) / speed_w)[:, None]) for speed_w in speed_rw)


def row_of(
    name: str, seed: int, seconds: Sequence[float], bands: Sequence[Band], choices: Sequence[Choice]
) -> Row:
    """Return the row of a run: what was predicted for each round, and what it took."""
    beside = list(zip(seconds, bands, choices, strict=True))
    seen_s = sum(seconds)
    return {
        "band": name,
        "seed": seed,
        "rounds": len(beside),
        "held": _share(band.holds(each) for each, band, _ in beside),
        "below": _share(each < band.low_s for each, band, _ in beside),
        "above": _share(each > band.high_s for each, band, _ in beside),
        "held_as_made": _share(choice.band.holds(each) for each, _, choice in beside),
        "width": float(np.median([(band.high_s - band.low_s) / band.expected_s for band in bands])),
        "predicted_over_seen": sum(band.expected_s for band in bands) / seen_s,
        "replayed_over_seen": sum(choice.replay_s or choice.predicted_s for choice in choices) / seen_s,
    }


def _share(true: Iterable[bool]) -> float:
    return float(np.mean(list(true)))


def figures(rows: Sequence[Row]) -> dict[str, Mapping[str, float | None] | None]:
    """Return a figure with a value for each scenario, the mean over seeds; None without rows.

    >>> row = {"band": "calm", "held": 0.75, "width": 0.5, "predicted_over_seen": 1, "replayed_over_seen": 2}
    >>> figures([row, {**row, "held": 0.85}])["band_coverage"]
    {'calm': 0.8}
    """
    by_name: defaultdict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if "band" in row:
            by_name[str(row["band"])].append(row)
    named = {"band_coverage": "held", "band_width": "width"}
    named |= {name: name for name in ("predicted_over_seen", "replayed_over_seen")}
    return {
        figure: {name: _mean(each, column) for name, each in by_name.items()} or None
        for figure, column in named.items()
    }


def worst_first(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of bands, those farthest from four rounds in five first."""
    found = [row for row in rows if "band" in row]
    return sorted(found, key=lambda row: -abs(_mean([row], "held") - WANTED))


def _mean(rows: Sequence[Row], column: str) -> float:
    values = [row[column] for row in rows]
    return float(np.mean([value for value in values if isinstance(value, int | float)]))
