"""How fast the devices of a run are, from what it has measured so far.

A device's pace in the next round is guessed from its last few. But some fleets have no memory: each round
draws every device's speed anew, and whoever was slow is as likely to be fast. To share out work by such
noise is worse than to share it out evenly. So the guesses are shrunk towards their common mean by as much
as the rounds of one device differ among themselves, compared with the devices (James and Stein 1961; here
on the logarithms of step times):

    trust = 1 - (variance within devices / rounds) / variance between devices,   at least 0.

May import: history, errors.
"""

import math
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from fedgc.history import Speed, Speeds

RECENT_ROUNDS: Final = 5
LEAST_STEP_S: Final = 1e-9  # a clock may not have moved
FEW: Final = 3  # with fewer devices their spread says nothing


class Pace:
    """Owns the measurements of a run."""

    def __init__(self, history: Speeds) -> None:
        self._history = history
        self._logs: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=RECENT_ROUNDS))
        self._uplinks: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=RECENT_ROUNDS))
        self._downlinks: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=RECENT_ROUNDS))
        self._guesses: dict[str, float] | None = None

    def worked(self, device: str, step_s: float) -> None:
        """One more round of this device, at so many seconds a local step."""
        self._logs[device].append(math.log(max(step_s, LEAST_STEP_S)))
        self._guesses = None

    def sent(self, device: str, size_bytes: int, seconds: float) -> None:
        """One more upload of this device."""
        if size_bytes > 0 and seconds > 0:
            self._uplinks[device].append(size_bytes / seconds)

    def delayed(self, device: str, size_bytes: int, seconds: float) -> None:
        """An upload of this device was given up after so long: its line is no quicker than that."""
        known, at_most = self.up_bytes_s(device), size_bytes / max(seconds, LEAST_STEP_S)
        if size_bytes > 0 and (known is None or at_most < known):
            self._uplinks[device].append(at_most)

    def received(self, device: str, size_bytes: int, seconds: float) -> None:
        """One more model has come to this device."""
        if size_bytes > 0 and seconds > 0:
            self._downlinks[device].append(size_bytes / seconds)

    def step_s(self) -> Mapping[str, float]:
        """Return the guessed seconds of a local step of every device measured in this run."""
        if self._guesses is None:
            self._guesses = shrunk(self._logs)
        return self._guesses

    def down_bytes_s(self, device: str) -> float | None:
        """Return how fast a model comes to this device, where that is known."""
        before = self._history.known.get(device)
        return _middle(self._downlinks.get(device, ()), before.down_bytes_s if before else None)

    def up_bytes_s(self, device: str) -> float | None:
        """Return how fast its uploads go, where that is known."""
        before = self._history.known.get(device)
        return _middle(self._uplinks.get(device, ()), before.up_bytes_s if before else None)

    def speeds(self) -> Speeds:
        """Return the history, overlaid with what this run has measured."""
        known: dict[str, Speed] = dict(self._history.known)
        for device, step_s in self.step_s().items():
            before = known.get(device) or Speed(device, step_s)
            known[device] = replace(
                before,
                step_s=step_s,
                up_bytes_s=self.up_bytes_s(device),
                down_bytes_s=self.down_bytes_s(device),
                rounds=before.rounds + len(self._logs[device]),
            )
        return Speeds(known)


def shrunk(logs: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return each device's guess from the logarithms of its last step times.

    >>> steady = shrunk({"a": [0.0, 0.0], "b": [1.0, 1.0], "c": [2.0, 2.0]})
    >>> [round(math.log(steady[device]), 3) for device in "abc"]
    [0.0, 1.0, 2.0]
    >>> noise = shrunk({"a": [0.0, 2.0], "b": [2.0, 0.0], "c": [1.2, 1.0]})
    >>> [round(math.log(noise[device]), 3) for device in "abc"]
    [1.033, 1.033, 1.033]
    """
    means = {device: _mean(recent) for device, recent in logs.items() if recent}
    trust = _trust(logs, means)
    common = _mean(list(means.values())) if means else 0.0
    return {device: math.exp(common + trust * (mean - common)) for device, mean in means.items()}


def _trust(logs: Mapping[str, Sequence[float]], means: Mapping[str, float]) -> float:
    often = {device: recent for device, recent in logs.items() if len(recent) > 1}
    if len(often) < FEW:
        return 1.0
    within = _mean([_variance(recent, means[device]) for device, recent in often.items()])
    rounds = _mean([float(len(recent)) for recent in often.values()])
    between = _variance(list(means.values()), _mean(list(means.values())))
    return min(1.0, max(0.0, 1.0 - within / rounds / between)) if between > 0 else 0.0


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _variance(values: Sequence[float], mean: float) -> float:
    return sum((value - mean) ** 2 for value in values) / (len(values) - 1)


def _middle(values: Sequence[float], unmeasured: float | None) -> float | None:
    return sorted(values)[len(values) // 2] if values else unmeasured
