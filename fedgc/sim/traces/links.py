"""Speeds of mobile links: mean and deviation of up and down for each user (JSON; PKU-Chengxu/FLASH).

Speeds are kilobytes a second. A link's speed is drawn anew each round from a normal distribution, cut at a
tenth of its mean: a link that stands still would be a device that is gone, which is another matter.

May import: replay; rows.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from fedgc.errors import BadSetting
from fedgc.replay import Weather
from fedgc.replay.conditions import Float
from fedgc.sim.traces.rows import read_bytes

FIELDS: Final = ("up_u", "up_sigma", "down_u", "down_sigma")
LEAST_SHARE: Final = 0.1


@dataclass(frozen=True, slots=True)
class Links:
    """Users' links; columns are mean up, its deviation, mean down, its deviation, in bytes a second."""

    speeds_u4: Float

    def over(self, weather: Weather, update_bytes: int, rng: np.random.Generator) -> Weather:
        """Return the weather with links for its devices: each is some user's, the same in all rounds."""
        users = rng.integers(0, len(self.speeds_u4), weather[0].devices)
        mean_wd, spread_wd = self.speeds_u4[users][:, [0, 2]], self.speeds_u4[users][:, [1, 3]]
        rounds = []
        for conditions in weather:
            speed_wd = np.maximum(rng.normal(mean_wd, spread_wd), LEAST_SHARE * mean_wd)
            seconds_wd = update_bytes / speed_wd
            rounds.append(replace(conditions, up_s_w=seconds_wd[:, 0], down_s_w=seconds_wd[:, 1]))
        return tuple(rounds)


def read_links(path: Path) -> Links:
    """Return the links of all users."""
    try:
        users = json.loads(read_bytes(path))
    except ValueError as error:
        raise BadSetting(f"trace {path.name}: not JSON ({error})") from error
    if not isinstance(users, dict) or not users:
        raise BadSetting(f"trace {path.name}: needed a table of users")
    return Links(1000.0 * np.asarray([_speeds(path.name, name, user) for name, user in users.items()]))


def _speeds(trace: str, name: str, user: object) -> list[float]:
    values = [user.get(field) for field in FIELDS] if isinstance(user, dict) else []
    if len(values) != len(FIELDS) or not all(type(value) in (int, float) for value in values):
        raise BadSetting(f"trace {trace}, user {name}: needed numbers {', '.join(FIELDS)}")
    numbers = [float(value) for value in values if value is not None]
    if not np.isfinite(numbers).all() or min(numbers[0], numbers[2]) <= 0 or min(numbers) < 0:
        raise BadSetting(
            f"trace {trace}, user {name}: saw {numbers}, needed means above 0, no negative deviation"
        )
    return numbers
