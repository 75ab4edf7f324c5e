"""Speeds of links: of users (JSON; PKU-Chengxu/FLASH), or of each client (CSV).

JSON has mean and deviation of up and down for each user, in kilobytes per second. A client has the link of a
random user. Its speed is drawn each round from a normal distribution and is at least a tenth of its mean,
since a stopped link would be a failed client.

CSV has the columns client, up_mb_s, down_mb_s: the constant speeds of each client. Clients of a trace have
the row of their name, modelled clients the rows in their order.
"""

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from fedgc.errors import BadSetting
from fedgc.guards import guarded
from fedgc.sim.clock import Scenario
from fedgc.sim.clock.conditions import Float, Int
from fedgc.sim.traces.table import read_bytes, read_text
from fedgc.sim.traces.values import number, shown

FIELDS: Final = ("up_u", "up_sigma", "down_u", "down_sigma")
LEAST_SHARE: Final = 0.1
LEAST_MEAN: Final = 1e-6  # kilobytes per second
MOST: Final = 1e12
COLUMNS: Final = ["client", "up_mb_s", "down_mb_s"]
NAMED: Final = 4  # clients in a message
KILOBYTES: Final = 1000.0  # of a megabyte


@dataclass(frozen=True, slots=True)
class Links:
    """Users' links; columns are mean up, its deviation, mean down, its deviation, in bytes per second.

    With `names` each user is the client of that name. Otherwise a client has the link of a random user.
    """

    speeds_u4: Float
    names: tuple[str, ...] = ()

    def over(
        self, scenario: Scenario, update_bytes: int, rng: np.random.Generator, clients: Sequence[str] = ()
    ) -> Scenario:
        """Return the scenario with links; each client has one user's link in all rounds.

        `clients` are the names of its clients, if they have any.
        """
        users = self._users(scenario[0].clients, clients, rng)
        mean_wd, spread_wd = self.speeds_u4[users][:, [0, 2]], self.speeds_u4[users][:, [1, 3]]
        rounds = []
        for conditions in scenario:
            speed_wd = np.maximum(rng.normal(mean_wd, spread_wd), LEAST_SHARE * mean_wd)
            seconds_wd = update_bytes / speed_wd
            rounds.append(replace(conditions, up_s_w=seconds_wd[:, 0], down_s_w=seconds_wd[:, 1]))
        return tuple(rounds)

    def _users(self, clients: int, names: Sequence[str], rng: np.random.Generator) -> Int:
        if not self.names:
            return rng.integers(0, len(self.speeds_u4), clients)
        if len(self.speeds_u4) < clients:
            raise BadSetting(
                f"links: saw {len(self.speeds_u4)} clients, needed one row for each of {clients}"
            )
        row = {name: at for at, name in enumerate(self.names)}
        if lacking := [name for name in names[:clients] if name not in row]:
            seen = ", ".join(map(shown, self.names[:NAMED]))
            raise BadSetting(f"links: saw the clients {seen}, needed a row for {shown(lacking[0])} too")
        return np.asarray([row[name] for name in names[:clients]] or range(clients))


def read_links(path: Path) -> Links:
    """Return the links of all users, or those of each client if the file is a table (.csv)."""
    with guarded("a trace", path.name, BadSetting):
        return _read_table(path) if path.suffix.lower() == ".csv" else _read_links(path)


def _read_table(path: Path) -> Links:
    try:
        rows = csv.reader(read_text(path))
        (first, header), *lines = [(rows.line_num, row) for row in rows if row] or [(1, [])]
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadSetting(f"trace {path.name}: not a table of text ({error})") from error
    if [name.strip() for name in header] != COLUMNS or not lines:
        raise BadSetting(
            f"trace {path.name}, row {first}: saw {shown(','.join(header))} and {len(lines)} rows, "
            f"needed {','.join(COLUMNS)} and a row for each client"
        )
    means: dict[str, tuple[float, float]] = {}
    for at, line in lines:
        where = f"trace {path.name}, row {at}"
        name, each = _means(where, line)
        if name in means:
            raise BadSetting(f"{where}: saw client {shown(name)} before")
        means[name] = each
    return Links(1000.0 * np.asarray([(up, 0.0, down, 0.0) for up, down in means.values()]), tuple(means))


def _means(where: str, line: list[str]) -> tuple[str, tuple[float, float]]:
    try:
        name, up, down = (value.strip() for value in line)
        means = KILOBYTES * float(up), KILOBYTES * float(down)
    except ValueError:
        raise BadSetting(f"{where}: saw {shown(','.join(line))}, needed a client and two speeds") from None
    if not all(LEAST_MEAN <= mean <= MOST for mean in means):
        raise BadSetting(
            f"{where}: saw {shown(','.join(line))}, needed {LEAST_MEAN / KILOBYTES:g} to "
            f"{MOST / KILOBYTES:g} MB/s"
        )
    return name, means


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
