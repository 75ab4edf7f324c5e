"""Checkpoints of simulated training: a simulation that was stopped goes on with the same bits.

The clock and the `Run` are not in a checkpoint, as they are deterministic. A resumed simulation plays them
again from the beginning, with the findings of training that the checkpoint holds; this takes a small part of
the time. Where the checkpoint was written, it takes the models, the optimizer and the states of clients from
it, and trains on.

The file is a ZIP archive without compression, written under a temporary name and renamed. Its checksums show
damage, and nothing is unpickled. The process that has a checkpoint locks its file, until it ends.
"""

import json
import os
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, BinaryIO, Final, TypeVar
from zipfile import ZIP_STORED, ZipFile, ZipInfo

import numpy as np
from numpy.typing import NDArray

from fedgc.aggregators.memory import give_back, memory_of
from fedgc.errors import EdgeFailed
from fedgc.sim.checkpoint_file import SHOWN, check_same, locked, reading, writing
from fedgc.training import Vector
from fedgc.training.next_model import NextModel
from fedgc.training.round_sum import RoundSum

if TYPE_CHECKING:
    from fedgc.sim.fleet import Fleet
    from fedgc.sim.training import OneForAll

T = TypeVar("T")
Key = tuple[Any, ...]  # of JSON's own types
Part = tuple[Key, bytes | memoryview]
# A model's figures, why its round's update is left out, and the clients whose update did not count
Made = tuple[Mapping[str, float], str, Sequence[str]]
ABOUT: Final = "about"  # the last part of the archive; the names of the others are keys as JSON
FINDINGS, MODEL, OPTIMIZER, RULE = "findings", "model", "optimizer", "rule"  # what keys begin with
SPARED: Final = 20  # times as long as a checkpoint takes, until the next one is written
KINDS: Final[Mapping[str, type]] = MappingProxyType(
    {
        "turns": int, "rounds": int, "now": float, "of": dict, "options": dict, "made": list,
        "noise": dict, "privacy": str, "parts": list,
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class About:
    """What JSON can hold of a simulation, where its checkpoint was written."""

    turns: int  # between events of the clock
    rounds: int  # that were over
    now: float
    of: Mapping[str, object]  # the description of the simulation
    options: Mapping[str, Any]
    made: Sequence[Made]  # by version of the model, from 1
    noise: Mapping[str, Any]
    privacy: str
    parts: Sequence[str] = ()  # the names of all others, in order

    def __post_init__(self) -> None:
        for each in fields(self):
            if not isinstance(seen := getattr(self, each.name), KINDS[each.name] | tuple):
                raise TypeError(f"{each.name} as {type(seen).__name__}, not {KINDS[each.name].__name__}")
        if not all(isinstance(value, float) for figures, _, _ in self.made for value in figures.values()):
            raise TypeError("a figure that is no number")
        if not all(
            isinstance(each, str) for _, left_out, clients in self.made for each in (left_out, *clients)
        ):
            raise TypeError("a reason or a client that is no text")

    @classmethod
    def of_archive(cls, archive: ZipFile, size_bytes: int) -> "About":
        """Check a file of this many bytes and return what it is about; raise any error if it is not whole."""
        members = archive.infolist()
        if any(each.compress_type != ZIP_STORED for each in members):
            raise ValueError("compressed parts")
        if sum(each.file_size for each in members) > size_bytes:
            raise ValueError(f"parts of more than its {size_bytes} bytes")
        damaged = archive.testzip()
        if damaged is not None:
            raise ValueError(f"wrong bytes in {damaged}")
        about = cls(**json.loads(archive.read(ABOUT)))
        listed = {*about.parts, ABOUT, *(json.dumps([kind]) for kind in (FINDINGS, OPTIMIZER))}
        others = sorted(listed.symmetric_difference(archive.namelist()))
        if others or len(members) != len(listed):
            raise ValueError(f"other parts than it lists: {', '.join(others[:SHOWN])}")
        return about


@dataclass(slots=True)
class Checkpoint:
    """The file of a simulation's checkpoint; `options` say how to start the simulation again."""

    path: Path
    options: Mapping[str, Any] = field(default_factory=dict)
    rounds: int = 0  # that were over when it was written
    _about: About | None = field(default=None, init=False, repr=False)
    _file: BinaryIO | None = field(default=None, init=False, repr=False)  # as it was read or written last
    _next: BinaryIO | None = field(default=None, init=False, repr=False)  # has a temporary name

    def about(self) -> About | None:
        """Lock the file, check it and return what it is about; None if there is no file."""
        if self._file is None and self.path.exists():
            with reading(self.path):
                self._file = locked(self.path)
                with ZipFile(self._file) as archive:
                    self._about = About.of_archive(archive, os.fstat(self._file.fileno()).st_size)
        return self._about

    def other_course(self, at: int, saw: str, needed: object) -> EdgeFailed:
        """Return the error of a simulation that does not do what it did before the checkpoint."""
        course = f"the simulation takes another course in round {at}"
        return EdgeFailed(f"checkpoint {self.path}: {course}: saw {saw}, needed {needed} as before")

    def parts(self, *kinds: str) -> Iterator[tuple[Key, bytes]]:
        """Yield the parts of these kinds, or all, in the order in which they were written."""
        if self._about is not None and self._file is not None:
            with ZipFile(self._file) as archive:
                for name in self._about.parts:
                    key = tuple(json.loads(name))
                    if not kinds or key[0] in kinds:
                        yield key, archive.read(name)

    def reserve(self) -> BinaryIO:
        """Make the next file under a temporary name, which no other process then has."""
        if self._next is None:
            with writing(self.path):
                self._part.touch()
                self._next = locked(self._part)
                self._next.truncate()
        return self._next

    def write(self, about: About, parts: Iterable[Part]) -> None:
        """Write a checkpoint in place of the last one."""
        names, made = [], self.reserve()
        with writing(self.path):
            with ZipFile(made, "w") as archive:
                for key, data in parts:
                    names.append(json.dumps(key))
                    with archive.open(ZipInfo(names[-1]), "w", force_zip64=True) as part:
                        part.write(data)
                archive.writestr(ZipInfo(ABOUT), json.dumps(asdict(replace(about, parts=names))))
            made.flush()
            self._part.replace(self.path)
        if self._file is not None:
            self._file.close()
        self.rounds, self._file, self._next = about.rounds, made, None

    def remove(self) -> None:
        """Remove the file of a simulation that is over."""
        if self._file is not None:
            with suppress(OSError):
                self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Let other processes have the file."""
        if self._next is not None:
            self._part.unlink(missing_ok=True)
        for file in (self._next, self._file):
            if file is not None:
                file.close()
        self._about = self._next = self._file = None

    @property
    def _part(self) -> Path:
        return self.path.with_name(f"{self.path.name}.part")


class Findings:
    """The numbers that training found, in order: noted for a checkpoint, or taken from one.

    >>> first, later = Findings(Checkpoint(Path("a"))), Findings(Checkpoint(Path("b")))
    >>> first.of(lambda: (0.5, 3.0), max)
    3.0
    >>> later.replay(bytes(first.values))
    >>> later.of(lambda: (7.0,), max)
    3.0
    """

    def __init__(self, checkpoint: Checkpoint | None = None) -> None:
        self._checkpoint, self._taken = checkpoint, 0
        self.values = array("d")  # each finding after its length
        self.replays, self.round = False, 1

    def replay(self, data: bytes) -> None:
        """Take findings from a checkpoint, until `replays` is unset."""
        self.values.frombytes(data)
        self.replays = True

    @property
    def left(self) -> int:
        """The numbers of the checkpoint that were not taken."""
        return len(self.values) - self._taken

    def of(self, train: Callable[[], Sequence[float]], make: Callable[..., T]) -> T:
        """Make a finding of what training finds, or of what it found before the checkpoint."""
        if self.replays and self._checkpoint is not None:
            if not self.left:
                raise self._checkpoint.other_course(self.round, "one more finding of training", "none")
            with reading(self._checkpoint.path):
                begin = self._taken + 1
                self._taken = begin + int(self.values[self._taken])
                return make(*self.values[begin : self._taken])
        found = train()
        if self._checkpoint is not None:
            self.values.append(len(found))
            self.values.extend(found)
        return make(*found)


@dataclass(frozen=True, slots=True)
class Numbers:
    """What a simulation computes with, besides its clock and its `Run`."""

    trainers: "Fleet | OneForAll"
    optimizer: NextModel
    sum: RoundSum
    noise: np.random.Generator

    def parts(self) -> Iterator[Part]:
        """Yield all that `restore` takes."""
        for version in sorted(self.trainers.models):
            yield (MODEL, version), self.trainers.models[version].data
        yield (OPTIMIZER,), self.optimizer.state()
        for number, rule in enumerate(self.sum.rules):
            for name, values in memory_of(rule, self.sum.name).items():
                key = (RULE, number, name, values.dtype.str, np.shape(values))
                yield key, np.ascontiguousarray(values).data
        yield from self.trainers.parts()

    def restore(self, parts: Iterable[tuple[Key, bytes]]) -> None:
        """Take the parts of a checkpoint."""
        memory: list[dict[str, NDArray[Any]]] = [{} for _ in self.sum.rules]
        (size,) = {model.size for model in self.trainers.models.values()}
        for (kind, *of), data in parts:
            if kind == MODEL:
                self.trainers.load(of[0], np.frombuffer(data, np.float32).reshape(size).copy())
            elif kind == OPTIMIZER:
                self.optimizer.restore(data)
            elif kind == RULE:
                number, name, dtype, shape = of
                memory[number][name] = np.frombuffer(data, dtype).reshape(shape).copy()
            elif kind != FINDINGS:
                self.trainers.restore(kind, of, data)
        self.trainers.restored()
        for rule, kept in zip(self.sum.rules, memory, strict=True):
            give_back(rule, self.sum.name, kept)


class Keeper:
    """Keeps one simulation in its checkpoint, and goes on from what it finds there."""

    def __init__(self, checkpoint: Checkpoint, of: Mapping[str, object], numbers: Numbers) -> None:
        """`of` describes the simulation; the checkpoint of another one is refused."""
        self._checkpoint, self._of, self._numbers = checkpoint, of, numbers
        self._turns, self._rounds, self._due, self._next_s = 0, 0, False, 0.0
        self._made: list[Made] = []
        self._findings = numbers.trainers.findings = Findings(checkpoint)
        self._about = checkpoint.about()
        if self._about is None:
            checkpoint.reserve()
            return
        check_same(checkpoint.path, self._about.of, of)
        checkpoint.rounds = self._about.rounds
        with reading(checkpoint.path):
            self._findings.replay(next(data for _, data in checkpoint.parts(FINDINGS)))

    @property
    def replays(self) -> bool:
        """Whether the simulation is still before its checkpoint: nothing is computed."""
        return self._findings.replays

    @property
    def model(self) -> Vector:
        """The newest common model."""
        return self._numbers.trainers.models[max(self._numbers.trainers.models)]

    def made(self, make: Callable[[], Made]) -> Made:
        """Make a new model and return what is known of it, or return what was."""
        at, kept = len(self._made), self._about.made if self.replays and self._about else None
        if kept is not None and at == len(kept):
            raise self._checkpoint.other_course(self._findings.round, "one more model", "none")
        made = figures, left_out, uncounted = make() if kept is None else kept[at]
        self._made.append(({name: float(value) for name, value in figures.items()}, left_out, uncounted))
        return made

    def ended(self, rounds: int, *, due: bool) -> None:
        """So many rounds are over; after this one a checkpoint may be written."""
        self._rounds, self._findings.round = rounds, rounds + 1
        self._due = due and time.monotonic() >= self._next_s

    def turn(self, now: float) -> bool:
        """Between two events of the clock: write a checkpoint, or return whether it was reached."""
        self._turns += 1
        if self._about is not None and self._turns == self._about.turns:
            self._restore(self._about, now)
            return True
        if self._due and not self.replays and self._numbers.trainers.settled:
            self._write(now)
        return False

    def over(self) -> None:
        """Remove the checkpoint of a simulation that is over; raise if it ended before its checkpoint."""
        if self.replays:
            path, then = self._checkpoint.path, self._checkpoint.rounds
            saw = f"saw the simulation end after round {self._rounds}"
            raise EdgeFailed(
                f"checkpoint {path}: {saw}, needed it to go on: it was written after round {then}"
            )
        self._checkpoint.remove()

    def _restore(self, about: About, now: float) -> None:
        for what, then, seen in (
            ("the clock at", about.now, now),
            ("ended rounds:", about.rounds, self._rounds),
            ("models:", len(about.made), len(self._made)),
            ("numbers of training left:", 0, self._findings.left),
        ):
            if then != seen:
                raise self._checkpoint.other_course(self._findings.round, f"{what} {seen}", then)
        began = time.monotonic()
        with reading(self._checkpoint.path):
            self._numbers.restore(self._checkpoint.parts())
            if max(self._numbers.trainers.models) != len(about.made):
                raise ValueError(f"no model of version {len(about.made)}")
            self._numbers.noise.bit_generator.state = about.noise
            if self._numbers.sum.private is not None:
                self._numbers.sum.private.restore(about.privacy)
        self._findings.replays = False
        self._pause(began)

    def _write(self, now: float) -> None:
        began, private = time.monotonic(), self._numbers.sum.private
        about = About(
            self._turns, self._rounds, now, self._of, self._checkpoint.options, self._made,
            self._numbers.noise.bit_generator.state, "" if private is None else private.text(),
        )  # fmt: skip
        findings: Part = (FINDINGS,), memoryview(self._findings.values)
        self._checkpoint.write(about, chain([findings], self._numbers.parts()))
        self._pause(began)

    def _pause(self, began: float) -> None:
        """Write no checkpoint for some time after one that was written or read since then."""
        self._due, self._next_s = False, time.monotonic() + SPARED * (time.monotonic() - began)
