"""Speeds of mobile links: mean and deviation of up and down for each user (JSON; PKU-Chengxu/FLASH).

Speeds are in kilobytes per second. A link's speed is drawn each round from a normal distribution and is at
least a tenth of its mean, since a stopped link would be a failed client.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from fedgc.errors import BadSetting
from fedgc.guards import guarded
from fedgc.sim.clock import Scenario
from fedgc.sim.clock.conditions import Float
from fedgc.sim.traces.table import read_bytes
from fedgc.sim.traces.values import number, shown

FIELDS: Final = ("up_u", "up_sigma", "down_u", "down_sigma")
LEAST_SHARE: Final = 0.1
LEAST_MEAN: Final = 1e-6  # kilobytes per second
MOST: Final = 1e12


@dataclass(frozen=True, slots=True)
class Links:
    """Users' links; columns are mean up, its deviation, mean down, its deviation, in bytes per second."""

    speeds_u4: Float

    def over(self, scenario: Scenario, update_bytes: int, rng: np.random.Generator) -> Scenario:
        """Return the scenario with links; each client has one user's link in all rounds."""
        users = rng.integers(0, len(self.speeds_u4), scenario[0].clients)
        mean_wd, spread_wd = self.speeds_u4[users][:, [0, 2]], self.speeds_u4[users][:, [1, 3]]
        rounds = []
        for conditions in scenario:
            speed_wd = np.maximum(rng.normal(mean_wd, spread_wd), LEAST_SHARE * mean_wd)
            seconds_wd = update_bytes / speed_wd
            rounds.append(replace(conditions, up_s_w=seconds_wd[:, 0], down_s_w=seconds_wd[:, 1]))
        return tuple(rounds)


def read_links(path: Path) -> Links:
    """Return the links of all users."""
    with guarded("a trace", path.name, BadSetting):
        return _read_links(path)


def _read_links(path: Path) -> Links:
    try:
        users = json.loads(read_bytes(path))
    except (ValueError, RecursionError) as error:
        raise BadSetting(f"trace {path.name}: not JSON ({error})") from error
    if not isinstance(users, dict) or not users:
        raise BadSetting(f"trace {path.name}: needed a table of users")
    return Links(1000.0 * np.asarray([_speeds(path.name, name, user) for name, user in users.items()]))


def _speeds(trace: str, name: str, user: object) -> list[float]:
    where = f"trace {trace}, user {shown(name)}"
    if not isinstance(user, dict) or not set(FIELDS) <= user.keys():
        raise BadSetting(f"{where}: needed numbers {', '.join(FIELDS)}")
    speeds = [number(user[field], where) for field in FIELDS]
    if not all(LEAST_MEAN <= mean <= MOST for mean in speeds[::2]):
        raise BadSetting(f"{where}: saw means {speeds[::2]}, needed {LEAST_MEAN:g} to {MOST:g} kB/s")
    if not all(0 <= spread <= MOST for spread in speeds[1::2]):
        raise BadSetting(f"{where}: saw deviations {speeds[1::2]}, needed 0 to {MOST:g} kB/s")
    return speeds
