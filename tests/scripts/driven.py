"""A client that drives a script by hand: it waits for its model, for steps and for what it hands in."""

import json
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from fedgc.config import RunConfig
from fedgc.messages import Work
from fedgc.training.local_loop import Begin
from fedgc.training.script.connection import ScriptFacts
from fedgc.training.script.script_loop import ScriptLoop

WAIT_S = 60.0
MANY = 100_000  # steps that no test waits for


class Driven:
    """One script with its client."""

    def __init__(self, script: Path, folder: Path) -> None:
        self.log = folder / "state" / "script.log"
        facts = ScriptFacts(RunConfig(script=str(script)), "north", {"name": "client-1"}, folder / "state")
        self.loop = ScriptLoop(facts, time.sleep)
        self.losses = 0.0  # the sum over the steps that were waited for
        self._version = 0

    def __enter__(self) -> Self:
        self._until(lambda: self.loop.layout is not None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.loop.close(complete=error is None)

    def begin(self, fill: float, target: int = MANY) -> None:
        """Have the script train from a model of equal numbers."""
        size = self.loop.layout.size
        names = ((0, "north"),)
        work = Work("north", self._version + 1, self._version, target, (0,), names, 0, 60.0, kind="local")
        self._version += 1
        self.loop.begin(Begin(work, ("north",), np.full(size, fill, np.float32), None, None, 0))

    def steps(self, goal: int) -> int:
        """Wait until the script has done so many steps from the model."""
        reached = 0

        def enough() -> bool:
            nonlocal reached
            advance = self.loop.advance(reached, goal)
            reached += advance.steps if advance else 0
            self.losses += advance.losses if advance else 0.0
            return reached >= goal

        self._until(enough)
        return reached

    def handed(self, reached: int) -> tuple[np.ndarray, int]:
        """Ask for the model; return it, and the steps that are in it."""
        self._until(lambda: self.loop.hand_in() is not None)
        more = self.loop.advance(reached, reached)
        return self.loop.hand_in().copy(), reached + (more.steps if more else 0)

    def wait_for_leave(self) -> None:
        """Wait until the script has left by itself."""

        def left() -> bool:
            self.loop.scores(wait=False)  # takes in what the script has said
            return self.loop._left

        self._until(left)

    def pid(self) -> int:
        return self.loop._script._process._process.pid

    def words(self) -> str:
        """What the script has printed, once it has ended."""
        self.loop.close(complete=True)
        return self.log.read_text()

    def _until(self, condition) -> None:
        end = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < end, self.log.read_text() if self.log.exists() else "no output"
            time.sleep(0.01)


def told(words: str) -> dict[str, object]:
    """Return what a script has printed after the word `told`."""
    line = next(line for line in words.splitlines() if line.startswith("told "))
    return json.loads(line.removeprefix("told "))
