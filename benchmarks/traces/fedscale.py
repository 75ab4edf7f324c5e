"""FedScale's two traces of phones, both pickles: device capacity and availability.

`client_device_capacity`: client -> computation (milliseconds to run one sample forward) and communication
(kilobits a second). A training step on a sample takes three times its forward run, as in FedScale.
`client_behave_trace`: client -> active, inactive (seconds at which it comes and goes) and finish_time, after
which the trace repeats.
"""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.traces.pickles import read_plain
from fedgc.errors import BadSetting
from fedgc.sim.clock import NEVER, Conditions, Scenario, working
from fedgc.sim.traces.values import number, shown

TRAINING_OVER_FORWARD: Final = 3.0


def read_capacity(path: Path, *, samples: int, update_bytes: int) -> Conditions:
    """Return conditions in which a unit is `samples` samples; downlinks are as fast as uplinks."""
    clients = _table(path)
    pace, link_s = [], []
    for name, client in clients.items():
        where = f"trace {path.name}, client {shown(name)}"
        if not isinstance(client, dict) or not {"computation", "communication"} <= client.keys():
            raise BadSetting(f"{where}: needed computation and communication")
        forward_ms, kilobits = number(client["computation"], where), number(client["communication"], where)
        if not (0 < forward_ms < NEVER and 0 < kilobits < NEVER):
            raise BadSetting(f"{where}: saw {forward_ms} ms, {kilobits} kbit/s, needed both above 0")
        pace.append([TRAINING_OVER_FORWARD * forward_ms / 1000.0 * samples])
        link_s.append(8.0 * update_bytes / (1000.0 * kilobits))
    return working(pace, up_s=np.asarray(link_s), down_s=np.asarray(link_s))


@dataclass(frozen=True, slots=True)
class Absences:
    """The times at which each client comes and goes, repeating."""

    comes: tuple[tuple[float, ...], ...]
    goes: tuple[tuple[float, ...], ...]
    laps_s: tuple[float, ...]

    def over(self, scenario: Scenario, starts_s: tuple[float, ...]) -> Scenario:
        """Return the scenario with these absences; round r begins at `starts_s[r]`."""
        if scenario[0].clients > len(self.laps_s) or len(scenario) != len(starts_s):
            raise BadSetting(
                f"saw {scenario[0].clients} clients, {len(self.laps_s)} clients, {len(scenario)} rounds and "
                f"{len(starts_s)} starts: needed a client for each client and a start for each round"
            )
        rounds = []
        for conditions, start_s in zip(scenario, starts_s, strict=True):
            failures = [self.failure(client, start_s) for client in range(conditions.clients)]
            dies_s, returns_s = (np.asarray(column) for column in zip(*failures, strict=True))
            rounds.append(replace(conditions, dies_s_w=dies_s, returns_s_w=returns_s))
        return tuple(rounds)

    def failure(self, client: int, start_s: float) -> tuple[float, float]:
        """Return the seconds after `start_s` at which this client goes and comes back.

        >>> Absences(((0.0, 50.0),), ((20.0, 90.0),), (100.0,)).failure(0, 110.0)
        (10.0, 40.0)
        """
        now, lap_s = start_s % self.laps_s[client], self.laps_s[client]
        if not self.goes[client] or not self.comes[client]:
            return NEVER, NEVER
        came, gone = (_latest(times[client], now, lap_s) for times in (self.comes, self.goes))
        dies_s = 0.0 if gone > came else _next(self.goes[client], now, lap_s) - now
        return dies_s, _next(self.comes[client], now + dies_s, lap_s) - now


def read_behavior(path: Path) -> Absences:
    """Return the absences of all clients."""
    comes, goes, laps = [], [], []
    for name, client in _table(path).items():
        where = f"trace {path.name}, client {shown(name)}"
        if not isinstance(client, dict) or not {"active", "inactive", "finish_time"} <= client.keys():
            raise BadSetting(f"{where}: needed active, inactive and finish_time")
        lap_s = number(client["finish_time"], where)
        times = [_times(where, client[key], lap_s) for key in ("active", "inactive")]
        comes.append(times[0])
        goes.append(times[1])
        laps.append(lap_s)
    return Absences(tuple(comes), tuple(goes), tuple(laps))


def _latest(times: tuple[float, ...], now: float, lap_s: float) -> float:
    """Return the last of these times up to now, in this lap or the one before."""
    return max((each for each in times if each <= now), default=max(times) - lap_s)


def _next(times: tuple[float, ...], now: float, lap_s: float) -> float:
    """Return the first of these times after now, in this lap or a later one."""
    laps = now // lap_s * lap_s
    return min(laps + each + (lap_s if laps + each <= now else 0.0) for each in times)


def _times(where: str, values: object, lap_s: float) -> tuple[float, ...]:
    if not isinstance(values, list) or not 0 < lap_s < NEVER:
        raise BadSetting(f"{where}: needed lists of times and a finish_time above 0")
    times = [number(value, where) for value in values]
    for value in times:
        if not math.isfinite(value):
            raise BadSetting(f"{where}: saw {value}, needed finite times")
    return tuple(sorted(value % lap_s for value in times))


def _table(path: Path) -> dict[object, object]:
    clients = read_plain(path)
    if not isinstance(clients, dict) or not clients:
        raise BadSetting(f"trace {path.name}: saw {type(clients).__name__}, needed a table of clients")
    return clients
