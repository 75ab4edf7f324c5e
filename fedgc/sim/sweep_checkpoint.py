"""The checkpoint of a sweep: a line of JSON after its checksum for each run that has ended, written at once.

The first line describes the sweep. A last line that was cut off, as its process was killed, is removed, and
that run played again; other damage is refused.
"""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final
from zlib import crc32

from fedgc.errors import Unusable
from fedgc.sim.checkpoint_file import check_same, locked, reading, writing
from fedgc.sim.past_run import PastRun
from fedgc.sim.sweep import Key, Trial
from fedgc.sim.sweep_file import Sweep, SweepScenario
from fedgc.sim.traces.table import read_bytes

LONGEST: Final = 1_000_000  # bytes of the description that are read


class SweepCheckpoint:
    """The file of a sweep's runs; no other process has it until it is closed."""

    def __init__(self, path: Path, of: Mapping[str, object]) -> None:
        """Begin or read a file; `of` describes the sweep, and the file of another one is refused."""
        self.path, self._of = path, of
        self.trials: dict[Key, Trial] = {}
        self.cut_off = False  # whether the last line was removed
        with writing(path):
            path.touch()
            self._file = locked(path)
        try:
            with reading(path):
                self._begin()
        except BaseException:
            self.close()
            raise

    def add(self, key: Key, trial: Trial) -> None:
        """Write a run that has ended."""
        self.trials[key] = trial
        self._write([key[-1], asdict(trial)])

    def close(self) -> None:
        """Let other processes have the file."""
        self._file.close()

    def _begin(self) -> None:
        head, first = self._file.readline(LONGEST), _line(self._of)
        if first.startswith(head) and head != first:  # nothing, or the process was killed at its beginning
            self._file.seek(0)
            self._write(self._of)
            return
        then = _content(head)
        if not isinstance(then, dict):
            raise Unusable(f"checkpoint {self.path}: saw no sweep, needed a new file or that of a sweep")
        check_same(self.path, then, self._of)
        self._read(len(head))

    def _read(self, end: int) -> None:
        lines = self._file.readlines()
        for number, line in enumerate(lines, start=1):
            content = _content(line)
            if content is not None:
                seed, values = content
                trial = Trial(**values)
                self.trials[trial.combination, trial.scenario, seed] = trial
                end += len(line)
            elif number < len(lines):
                raise ValueError(f"wrong bytes in line {number + 1}")
            else:
                self.cut_off = True
        self._file.truncate(end)
        self._file.seek(end)

    def _write(self, content: object) -> None:
        with writing(self.path):
            self._file.write(_line(content))
            self._file.flush()
            os.fsync(self._file.fileno())


def _line(content: object) -> bytes:
    text = f"{json.dumps(content)}\n".encode()
    return b"%08x %b" % (crc32(text), text)


def _content(line: bytes) -> Any:  # noqa: ANN401  as JSON has it
    """Return what a line holds, or None if it is not whole."""
    checksum, _, text = line.partition(b" ")
    return json.loads(text) if checksum == b"%08x" % crc32(text) else None


def description(
    sweep: Sweep, past: Mapping[str, PastRun], first: Mapping[str, object] | None = None
) -> dict[str, object]:
    """Describe a sweep by its first run, or by `first` if it trains, and by digests of the others."""
    grid = [sweep.config(each, seed=0).table() for each in sweep.combinations]
    timed = {**{name: version(name) for name in ("fedgc", "numpy")}, **grid[0], "model-mb": sweep.model_mb}
    scenarios = [part for each in sweep.scenarios for part in _clients(each, past)]
    return {
        **(first or timed),
        "seeds": sweep.seeds,
        "figure": sweep.goal and f"{sweep.goal.figure} {sweep.goal.target!r}",
        "digest of the grid": sha256(json.dumps(grid).encode()).hexdigest()[:8],
        "digest of the scenarios": sha256(b"\n".join(scenarios)).hexdigest()[:8],
    }


def _clients(scenario: SweepScenario, past: Mapping[str, PastRun]) -> Iterator[bytes]:
    request = scenario.request
    yield repr(replace(scenario, request=replace(request, trace=None, links=None))).encode()
    yield from (read_bytes(path) for path in (request.trace, request.links) if path is not None)
    if scenario.like:
        yield repr(past[scenario.like]).encode()
