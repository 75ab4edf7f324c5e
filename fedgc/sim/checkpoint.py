"""Checkpoints of simulated training: a simulation that was stopped goes on with the same bits.

The clock and the `Run` are not in a checkpoint, as they are deterministic. A resumed simulation plays them
again from the beginning, with the findings of training that the checkpoint holds; this takes a small part of
the time. Where the checkpoint was written, it takes the models, the optimizer and the states of clients from
it, and trains on.

The file is a ZIP archive without compression, written under a temporary name and renamed. Its checksums show
damage, and nothing is unpickled.
"""

import json
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from zipfile import ZipFile, ZipInfo

import numpy as np
from numpy.typing import NDArray

from fedgc.errors import EdgeFailed, Unusable
from fedgc.guards import words_of
from fedgc.training import ServerOptimizer, Vector
from fedgc.training.round_sum import RoundSum

if TYPE_CHECKING:
    from fedgc.sim.fleet import Fleet
    from fedgc.sim.training import OneForAll

Key = tuple[Any, ...]  # of JSON's own types
Part = tuple[Key, bytes | memoryview]
ABOUT, FINDINGS = "about", "findings"  # in the archive; the names of the other parts are keys as JSON
MODEL, OPTIMIZER, RULE = "model", "optimizer", "rule"  # what keys begin with; the engines have others
SPARED: Final = 20  # times as long as a checkpoint takes, until the next one is written
OTHER_COURSE: Final = "training: the simulation takes another course than before its checkpoint"


class Findings:
    """The numbers that training found, in order: noted for a checkpoint, or taken from one.

    >>> first, later = Findings(notes=True), Findings(notes=True)
    >>> list(first.of(lambda: (0.5, 3.0)))
    [0.5, 3.0]
    >>> later.replay(bytes(first.values))
    >>> list(later.of(lambda: (7.0,)))
    [0.5, 3.0]
    """

    def __init__(self, *, notes: bool = False) -> None:
        self._notes, self._at = notes, 0
        self.values = array("d")  # each finding after its length
        self.replays = False

    @property
    def ended(self) -> bool:
        """Whether all findings of the checkpoint were taken."""
        return self._at == len(self.values)

    def replay(self, data: bytes) -> None:
        """Take findings from a checkpoint, until `replays` is unset."""
        self.values.frombytes(data)
        self.replays = True

    def of(self, train: Callable[[], Sequence[float]]) -> Sequence[float]:
        """Return what training finds, or what it found before the checkpoint."""
        if self.replays:
            if self.ended:
                raise EdgeFailed(OTHER_COURSE)
            begin = self._at + 1
            self._at = begin + int(self.values[self._at])
            return self.values[begin : self._at]
        found = train()
        if self._notes:
            self.values.append(len(found))
            self.values.extend(found)
        return found


@dataclass(slots=True)
class Checkpoint:
    """The file of a simulation's checkpoint; `options` say how to start the simulation again."""

    path: Path
    options: Mapping[str, object] = field(default_factory=dict)
    rounds: int = 0  # that were over when it was written

    def about(self) -> Mapping[str, Any] | None:
        """Check the file and return what JSON can hold of it; None if there is no file."""
        try:
            with ZipFile(self.path) as file:
                damaged = file.testzip()
                about: Mapping[str, Any] = json.loads(file.read(ABOUT)) if damaged is None else {}
        except FileNotFoundError:
            return None
        except Exception as error:  # zipfile raises many kinds of error for damaged bytes
            raise EdgeFailed(f"checkpoint {self.path}: saw {words_of(error)}, needed a whole file") from error
        if damaged is not None:
            raise EdgeFailed(f"checkpoint {self.path}: saw wrong bytes in {damaged}, needed a whole file")
        return about

    def parts(self) -> Iterator[tuple[Key, bytes]]:
        """Yield the other parts, in the order in which they were written."""
        with ZipFile(self.path) as file:
            for name in file.namelist():
                if name != ABOUT:
                    yield tuple(json.loads(name)), file.read(name)

    def write(self, about: Mapping[str, object], parts: Iterable[Part]) -> None:
        """Write a checkpoint in place of the last one."""
        temporary = self.path.with_name(f"{self.path.name}.part")
        named = ((json.dumps(key), data) for key, data in parts)
        try:
            with ZipFile(temporary, "w") as file:
                for name, data in chain([(ABOUT, json.dumps(about).encode())], named):
                    with file.open(ZipInfo(name), "w", force_zip64=True) as part:
                        part.write(data)
            temporary.replace(self.path)
        except OSError as error:
            reason = error.strerror or error
            raise EdgeFailed(f"checkpoint {self.path}: cannot be written: {reason}") from error
        finally:
            temporary.unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove the file of a simulation that is over."""
        with suppress(OSError):
            self.path.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class Numbers:
    """What a simulation computes with, besides its clock and its `Run`."""

    trainers: "Fleet | OneForAll"
    optimizer: ServerOptimizer
    sum: RoundSum
    noise: np.random.Generator

    def parts(self) -> Iterator[Part]:
        """Yield all that `restore` takes."""
        for version in sorted(self.trainers.models):
            yield (MODEL, version), self.trainers.models[version].data
        yield (OPTIMIZER,), self.optimizer.state()
        for rule in self.sum.rules:
            for name, values in rule.memory().items():
                yield (RULE, name, values.dtype.str), values.data
        yield from self.trainers.parts()

    def restore(self, parts: Iterable[tuple[Key, bytes]]) -> None:
        """Take the parts of a checkpoint."""
        memory: dict[str, NDArray[Any]] = {}
        for (kind, *of), data in parts:
            if kind == MODEL:
                self.trainers.load(of[0], np.frombuffer(data, np.float32).copy())
            elif kind == OPTIMIZER:
                self.optimizer.restore(data)
            elif kind == RULE:
                memory[of[0]] = np.frombuffer(data, of[1]).copy()
            elif kind != FINDINGS:
                self.trainers.restore(kind, of, data)
        self.trainers.restored()
        for rule in self.sum.rules:
            rule.recall(memory)


class Keeper:
    """Keeps one simulation in its checkpoint, and goes on from what it finds there."""

    def __init__(self, checkpoint: Checkpoint, of: Mapping[str, object], numbers: Numbers) -> None:
        """`of` describes the simulation; the checkpoint of another one is refused."""
        self._checkpoint, self._of, self._numbers = checkpoint, of, numbers
        self._turns, self._rounds, self._due, self._next_s = 0, 0, False, 0.0
        self._evaluated: list[Mapping[str, float]] = []
        self._findings = numbers.trainers.findings = Findings(notes=True)
        self._about = checkpoint.about()
        if self._about is not None:
            self._check(checkpoint.path, self._about["of"])
            checkpoint.rounds = self._about["rounds"]
            self._findings.replay(next(data for (kind, *_), data in checkpoint.parts() if kind == FINDINGS))

    def _check(self, path: Path, then: Mapping[str, object]) -> None:
        names = [name for name in sorted({*then, *self._of}) if then.get(name) != self._of.get(name)]
        if names:
            saw, needed = (", ".join(f"{name}={of.get(name)}" for name in names) for of in (self._of, then))
            raise Unusable(f"checkpoint {path}: saw {saw}, needed {needed} as when it was written")

    @property
    def replays(self) -> bool:
        """Whether the simulation is still before its checkpoint: nothing is computed."""
        return self._findings.replays

    @property
    def model(self) -> Vector:
        """The newest common model."""
        return self._numbers.trainers.models[max(self._numbers.trainers.models)]

    def evaluated(self, evaluate: Callable[[], Mapping[str, float]]) -> Mapping[str, float]:
        """Make a new model and return its figures, or return those of then."""
        kept = self._about["evaluated"] if self.replays and self._about is not None else None
        found = evaluate() if kept is None else kept[len(self._evaluated)]
        self._evaluated.append({name: float(value) for name, value in found.items()})
        return found

    def ended(self, rounds: int, *, due: bool) -> None:
        """So many rounds are over; after this one a checkpoint may be written."""
        self._rounds = rounds
        self._due = due and time.monotonic() >= self._next_s

    def turn(self, now: float) -> bool:
        """Between two events of the clock: write a checkpoint, or return whether it was reached."""
        self._turns += 1
        if self._about is not None and self._turns == self._about["turns"]:
            self._restore(self._about, now)
            return True
        if self._due and not self.replays and self._numbers.trainers.settled:
            self._write(now)
        return False

    def _restore(self, about: Mapping[str, Any], now: float) -> None:
        if not self._findings.ended or now != about["now"]:
            raise EdgeFailed(OTHER_COURSE)
        self._findings.replays = False
        self._numbers.restore(self._checkpoint.parts())
        self._numbers.noise.bit_generator.state = about["noise"]
        if self._numbers.sum.private is not None:
            self._numbers.sum.private.restore(about["privacy"])

    def _write(self, now: float) -> None:
        began, private = time.monotonic(), self._numbers.sum.private
        about = {
            "turns": self._turns,
            "rounds": self._rounds,
            "now": now,
            "of": self._of,
            "options": self._checkpoint.options,
            "evaluated": self._evaluated,
            "noise": self._numbers.noise.bit_generator.state,
            "privacy": "" if private is None else private.text(),
        }
        findings: Part = (FINDINGS,), memoryview(self._findings.values)
        self._checkpoint.write(about, chain([findings], self._numbers.parts()))
        self._checkpoint.rounds, self._due = self._rounds, False
        self._next_s = time.monotonic() + SPARED * (time.monotonic() - began)
