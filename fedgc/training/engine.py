"""The engine of a client: works through its chunks, one micro-batch step at a time. No I/O, no threads.

Whoever drives it (a link, a simulator, a test) hands it commands and asks for steps in turn; between two
steps it may be told anything. It sleeps through the injected `rest` alone.

The queue is `Work.order`; after a chunk the next begins without waiting, unless `lockstep`. `Skip` takes a
chunk out of the queue and sets its trajectory aside, nothing of it is lost; `Take` puts some next in the
queue, and what of it is finished is reported again; `Continue` carries the trajectories on to a higher
target; `Close` that frees forgets them. A trajectory belongs to (model, seed, rates, lead, chunk): work from
another `Start` or with another seed forgets the earlier ones. Commands of another round are refused, save
`Close`, of which a late one changes nothing.

In local work (`Work.kind`) there is one trajectory, number WHOLE, over all chunks that the work names. It
reports at the target, and goes on to `Work.most_steps` while no command comes; there it reports again, and
waits. `update` stops it wherever it is. Its steps are numbered through the whole run, so that its batches go
on from one common model to the next.

Where it is given a folder (`last_in`), what it has finished outlives its process: a chunk that took long is
written as soon as it is finished, all of them by `keep`; a later engine takes up what lies there. It counts
only if the model that it started from is the one that is loaded again.

Where memory is full and the disk refuses, the oldest trajectory is given up.

What goes wrong with a chunk (data, loss, numbers that are not finite) becomes a `Failed` event that names
it, and the engine goes on with the next. Events carry 0.0 as their time: the server's clock counts.
"""

import math
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, assert_never

import numpy as np

from fedgc.codes import Wire
from fedgc.config import RunConfig
from fedgc.errors import BadMessage, BadSetting, BadVector, EdgeFailed, FedgcError, NotHere, TaskFailed
from fedgc.messages import (
    Close,
    Continue,
    Failed,
    Held,
    Kept,
    Mix,
    Progress,
    Report,
    Reveal,
    Skip,
    Take,
    Work,
)
from fedgc.training.cache import ClientCache
from fedgc.training.cache_files import About, CacheFiles, digest_of
from fedgc.training.flat import Vector, check_vector
from fedgc.training.injection import everything
from fedgc.training.local_update import WHOLE, Rest, names, numbers, title, with_rest
from fedgc.training.randomness import key
from fedgc.training.shared_momentum import lead_of, squared_way
from fedgc.training.tasks import Task
from fedgc.training.trainer import Pass, Trainer
from fedgc.training.update import Measure, measure, mixed, update_of

MEGABYTE: Final = 1_000_000
LONGEST_REASON: Final = 400  # characters of a task's exception that travel
WORTH_S: Final = 0.5  # work that is written down at once: what took less is sooner done again
Way = tuple[int, int, int, float]  # version, seed, first step, common steps
Order = Work | Skip | Take | Continue | Close  # the commands that are the engine's; the rest is the link's


@dataclass(slots=True)
class Trajectory:
    """How far a chunk has come from the common model; its vector is in the trainer or on the cache."""

    name: str
    samples: int
    reached: int = 0
    seconds: float = 0.0
    losses: float = 0.0
    led: float = 0.0
    measured: Measure | None = None  # at the target it last reached


@dataclass(frozen=True, slots=True, eq=False)
class Start:
    """What work starts from. Under masks all whose updates are summed must have it in common.

    `before` is the model before, where shared momentum leads by it. The numbers are those of `Work`.
    """

    model: Vector
    before: Vector | None
    first_step: int
    common_steps: float


class Engine:
    """Trains chunks as it is told.

    `pace_s` is the least time of a local step: a quick machine stands in for slower ones.
    """

    def __init__(
        self,
        task: Task,
        config: RunConfig,
        *,
        clock: Callable[[], float],
        rest: Callable[[float], object],
        spill_dir: Path,
        pace_s: float = 0.0,
    ) -> None:
        if not (math.isfinite(pace_s) and pace_s >= 0):
            raise BadSetting(f"setting pace_s: saw {pace_s!r}, needed seconds, 0 or more")
        self._config = config
        self._trainer = Trainer(task, config)
        self._cache = ClientCache(config.memory_mb * MEGABYTE, spill_dir)
        self._clock, self._rest, self._pace_s = clock, rest, pace_s
        self._owed_s = 0.0  # rest that a command has cut short
        self._models: dict[int, Vector] = {}
        self._cache_files: CacheFiles | None = None
        self._work: Work | None = None  # with the round and target of the last Continue
        self._way: Way | None = None  # of the trajectories
        self._origin = ""  # digest of their model, where they were taken up from an earlier process
        self._before: Vector | str | None = None  # the model that led them; its digest, where taken up
        self._lead: Vector | None = None  # the common part of every step
        self._rounded: Rest | None = None  # what rounding has cost
        self._names: dict[int, str] = {}
        self._trajectories: dict[int, Trajectory] = {}
        self._queue: deque[int] = deque()
        self._current: int | None = None
        self._waits = False  # lockstep: for a verdict
        self._free = False  # local work has reported in this round, and goes on
        self._again: deque[int] = deque()  # finished chunks to report once more
        self._to_say: deque[Failed] = deque()

    # ---- what it is told

    def last_in(self, cache_files: CacheFiles) -> None:
        """Take up what an earlier process left there, and leave there what a later one may take up."""
        self._cache_files = cache_files
        self._rounded = cache_files.rest()
        for chunk, (about, saved) in cache_files.found().items():
            try:
                check_vector(saved.vector, self._trainer.flat.size)
            except BadVector:
                cache_files.drop(chunk)  # its work can be done again
                continue
            self._trajectories[chunk] = Trajectory(
                about.name, about.samples, about.reached, about.seconds, about.losses, about.led
            )
            self._cache.put(chunk, saved)
            for lost in self._cache.give_up():
                self._trajectories.pop(lost, None)
            self._way = (about.version, about.seed, about.first_step, about.common_steps)
            self._origin, self._before = about.model, about.before

    def clip_records(self, reach: float) -> None:
        """From now on no record moves an update by more than its reach; refuse what that cannot hold for."""
        self._trainer.clip_records(reach)

    def load(self, version: int, vector: Vector) -> None:
        """Keep a new common model; raise BadVector where it is not of this task."""
        check_vector(vector, self._trainer.flat.size)
        known = self._models.get(version)
        if known is not None and np.array_equal(known, vector):
            return
        same = known is None and self._origin and self._origin == digest_of(vector)
        if self._way is not None and self._way[0] == version and not same:
            self._forget()  # a server that went back to a checkpoint made this version anew
            self._work = None
        working = self._work.version if self._work else version
        needed = {working, version - 1} if self._config.alpha < 1 else {working}
        self._models = {old: model for old, model in self._models.items() if old in needed}
        self._models[version] = vector.copy()

    def handle(self, command: Order) -> None:
        """Take a command in; raise BadMessage where it cannot be followed."""
        match command:
            case Work():
                self._begin(command)
            case Continue():
                self._continue(command)
            case Skip() | Take():
                work = self._this_round(command)
                self._waits = False
                if isinstance(command, Skip):
                    self._skip(command.chunk)
                else:
                    for chunk in reversed(command.chunks):
                        self._take(chunk, work)
            case Close():
                self._close(command)
            case _:
                assert_never(command)

    # ---- what it does

    @property
    def idle(self) -> bool:
        """Whether a step would do nothing until a command comes."""
        if self._to_say:
            return False
        return not self._again and (self._waits or (self._current is None and not self._queue))

    def step(self) -> Progress | Report | Failed | None:
        """Do one micro-batch step, or report; return what is to be said, if anything."""
        if self._to_say:
            return self._to_say.popleft()
        if self.idle or self._work is None:
            return None
        chunk = self._next()
        try:
            return self._advance(chunk, self._work)
        except Exception as error:  # the edge to the user's code: whatever it raises is an event
            return self._give_up(chunk, self._work, error)

    def codeword(self, mix: Mix) -> Vector:
        """Mix finished updates; raise NotHere where some are not finished, EdgeFailed for one unread."""
        work = self._begun(mix)
        return mixed(self._models[work.version], self._ends(mix.chunks, work), mix)

    def _ends(self, chunks: tuple[int, ...], work: Work) -> list[tuple[Vector, int]]:
        lacking = tuple(chunk for chunk in chunks if self._reached(chunk) != work.target)
        if lacking:
            chunk = lacking[0]
            said = f"codeword: chunk {chunk} is at step {self._reached(chunk)}, needed {work.target}"
            raise NotHere(said, lacking)
        return [(self._cache.vector(chunk), self._trajectories[chunk].samples) for chunk in chunks]

    def standing(self) -> Report | None:
        """Return how far local work is that has not come to its target."""
        if self._work is None or self._work.kind != "local" or self.idle:
            return None
        self._set_aside()
        self._queue.appendleft(WHOLE)
        return self._report(self._work)

    def update(self, command: Reveal) -> tuple[Report, Vector | None]:
        """Stop local work where it is; return how far it came, and the way from there to the model before.

        There is no such way where there are no steps.
        """
        work = self._this_round(command)
        if work.kind != "local":
            raise BadMessage(f"{command!r}: needed a mix, this is coded work")
        self._set_aside()
        self._queue.clear()
        self._waits = self._free = False
        report = self._report(work)
        if not report.steps:
            return report, None
        way = update_of(self._models[work.version], self._cache.vector(WHOLE), 1)
        wire = Wire(command.wire)
        if wire is not Wire.FLOAT32:
            stamp = (command.round, command.attempt, command.client)
            way, self._rounded = with_rest(way, wire, stamp, self._rounded)
        return report, way

    def mean_update(self, command: Reveal) -> tuple[Vector, int]:
        """Return the mean step over all that is done since the common model, and what it weighs.

        The weight is the samples that were worked on; in local work they are all of the client's.
        """
        work = self._this_round(command)
        if work.kind == "local":
            report, way = self.update(command)
            if way is None:
                raise BadMessage("update: saw no step since the common model, needed one at least")
            return way, report.samples
        done = [chunk for chunk in sorted(self._names) if self._reached(chunk) == work.target]
        if not done:
            raise BadMessage("update: saw no finished chunk, needed one at least")
        update = self.codeword(Mix(tuple(done), ((1.0,),) * len(done)))
        samples = sum(self._trajectories[chunk].samples for chunk in done)
        update /= np.float32(samples)
        return update, samples

    # ---- what it tells

    @property
    def start(self) -> Start | None:
        """What the present work starts from, as it came."""
        work = self._work
        if work is None or work.version not in self._models:
            return None
        before = None if isinstance(self._before, str) else self._before
        return Start(self._models[work.version], before, work.first_step, work.common_steps)

    @property
    def size(self) -> int:
        """How many numbers the model's vector has."""
        return self._trainer.flat.size

    @property
    def chunks(self) -> int:
        """How many chunks the present work names."""
        return len(self._work.names) if self._work else 0

    @property
    def versions(self) -> tuple[int, ...]:
        """The versions of the common model that are here."""
        return tuple(self._models)

    def holds(self) -> tuple[Held, ...]:
        """Return the chunks that this client can load: its own, or with digests where they are shared."""
        digest = self._trainer.digest
        return tuple(Held(name, samples, digest(name)) for name, samples in self._trainer.sizes.items())

    def kept(self) -> tuple[Kept, ...]:
        """Return what there is of earlier work."""
        if self._way is None:
            return ()
        return tuple(
            Kept(self._way[0], number, each.reached, each.measured.sketch if each.measured else ())
            for chunk, each in sorted(self._trajectories.items())
            if each.reached
            for number in (numbers(each.name) if chunk == WHOLE else (chunk,))
        )

    def keep(self) -> tuple[Failed, ...]:
        """Write down all there is for a later process; tell what the disk did not take."""
        self._set_aside()
        failed = []
        if self._rounded is not None and self._cache_files is not None:
            with suppress(EdgeFailed):  # rounding then costs a little
                self._cache_files.put_rest(self._rounded)
        for chunk in list(self._trajectories):
            try:
                self._write_down(chunk)
            except EdgeFailed as error:
                client, round_ = (self._work.client, self._work.round) if self._work else ("?", 0)
                failed.append(Failed(0.0, client, round_, str(error)[:LONGEST_REASON], _named(chunk)))
        return tuple(failed)

    def close(self) -> None:
        """Forget everything that was not kept, and remove what was spilled to disk."""
        self._cache_files = None
        self._forget()
        self._work = None
        self._cache.close()

    # ---- commands

    def _begin(self, work: Work) -> None:
        if work.version not in self._models:
            here = f"only {sorted(self._models)}" if self._models else "none"
            raise BadMessage(f"work of round {work.round}: needed model version {work.version}, saw {here}")
        self._set_aside()
        self._lead = self._led(work)
        self._trainer.follow(self._lead)
        before = self._models.get(work.version - 1) if self._lead is not None else None
        way = (work.version, work.seed, work.first_step, work.common_steps)
        if self._way is not None and not (self._way == way and self._is_before(before)):
            self._forget()
        self._way, self._before = way, before
        oldest = work.version - (self._config.alpha < 1)
        self._models = {version: model for version, model in self._models.items() if version >= oldest}
        named = {WHOLE: title(dict(work.names))} if work.kind == "local" else dict(work.names)
        for chunk, trajectory in list(self._trajectories.items()):
            # Beyond the target is as useless as another chunk: the sum needs the same steps of every holder.
            beyond = trajectory.reached > work.target and chunk != WHOLE
            if named.get(chunk) != trajectory.name or beyond:
                self._drop(chunk)
        self._names = named
        self._start_round(work, work.order)

    def _continue(self, command: Continue) -> None:
        work = self._begun(command)
        unknown = set(command.order) - set(self._names)
        if unknown and work.kind != "local":
            raise BadMessage(f"continue: saw chunks {sorted(unknown)}, which no work has named")
        if command.target < work.target:
            raise BadMessage(f"continue: saw target {command.target}, needed at least {work.target}")
        self._set_aside()
        self._start_round(replace(work, round=command.round, target=command.target), command.order)

    def _led(self, work: Work) -> Vector | None:
        """Return the lead of this work; copies of a chunk are only the same where all have the same lead."""
        steps = (work.first_step, work.common_steps)
        lead = lead_of(self._config, self._models, work.version, self._trainer.flat.parameters, steps)
        lacks = lead is None and work.common_steps and work.version - 1 not in self._models
        if lacks and self._config.alpha < 1 and work.kind == "coded":
            raise BadMessage(
                f"work of round {work.round}: needed model version {work.version - 1} as well, from which "
                "shared momentum is computed"
            )
        return lead

    def _is_before(self, before: Vector | None) -> bool:
        """Whether this is what has led the trajectories."""
        known = self._before
        if isinstance(known, str):
            return known == _digest_or_nothing(before)
        return before is known or (before is not None and known is not None and np.array_equal(before, known))

    def _start_round(self, work: Work, order: tuple[int, ...]) -> None:
        self._work = work
        self._queue = deque((WHOLE,) if order and work.kind == "local" else order)
        self._again.clear()
        self._waits = self._free = False

    def _skip(self, chunk: int) -> None:
        if chunk == self._current:
            self._set_aside()
        self._unqueue(chunk)

    def _take(self, chunk: int, work: Work) -> None:
        if chunk not in self._names:
            reason = f"chunk {chunk} is not among the {len(self._names)} that the work has named"
            self._fail(chunk, work, reason)
        elif self._reached(chunk) == work.target:
            self._again.append(chunk)
        elif chunk != self._current:
            self._unqueue(chunk)
            self._queue.appendleft(chunk)

    def _close(self, command: Close) -> None:
        if self._work is None or command.round != self._work.round:
            return
        self._set_aside()
        self._queue.clear()
        self._again.clear()
        if command.frees:
            self._forget()
            self._work = None

    # ---- training

    def _next(self) -> int:
        if self._again:
            return self._again.popleft()
        return self._queue.popleft() if self._current is None else self._current

    def _advance(self, chunk: int, work: Work) -> Progress | Report | None:
        sources = names(self._names[chunk]) if chunk == WHOLE else (self._names[chunk],)
        if chunk == self._current:
            began = self._clock()
        elif self._reached(chunk) >= self._goal(work):
            return self._finished(chunk, work)
        else:
            samples = self._loaded(sources, work)  # once; no part of the chunk's time
            began = self._clock()
            self._open(chunk, samples, work)
        trajectory = self._trajectories[chunk]
        if self._owed_s > 0:
            trajectory.seconds += self._catch_up()
            return None
        this = self._pass(chunk, trajectory.reached, work)
        trajectory.losses += self._trainer.step(sources, this)
        trajectory.reached += 1
        trajectory.led += this.share if self._lead is not None else 0.0
        trajectory.measured = None
        trajectory.seconds += self._pause(began)
        if trajectory.reached < self._goal(work):
            return None
        self._set_aside()
        return self._finished(chunk, work) if chunk in self._trajectories else None

    def _loaded(self, sources: tuple[str, ...], work: Work) -> int:
        if work.pool is None:
            return self._trainer.load(sources)
        self._trainer.load(everything(work.pool))
        return sum(self._trainer.sizes[name] for name in sources)

    def _goal(self, work: Work) -> int:
        return work.most_steps if self._free else work.target

    def _pass(self, chunk: int, reached: int, work: Work) -> Pass:
        at = work.first_step + reached
        share = self._config.rate_share(at)
        if chunk == WHOLE:
            return Pass((work.seed, work.client), at, share, work.pool)
        return Pass((work.seed, work.version, chunk), reached, share)

    def _open(self, chunk: int, samples: int, work: Work) -> None:
        saved = self._cache.take(chunk)
        if saved is None:
            self._trajectories[chunk] = Trajectory(self._names[chunk], samples)
            self._trainer.begin(self._models[work.version])
        else:
            self._trainer.resume(saved)
        self._current = chunk

    def _pause(self, began: float) -> float:
        """Rest for what is left of a step's least time; return the seconds since `began`."""
        worked = self._clock() - began
        if worked >= self._pace_s:
            return worked
        self._rest(self._pace_s - worked)
        passed = self._clock() - began
        self._owed_s = max(0.0, self._pace_s - passed)
        return passed

    def _catch_up(self) -> float:
        """Rest for what is owed of the step before: a command may have cut its rest short."""
        began = self._clock()
        self._rest(self._owed_s)
        passed = self._clock() - began
        self._owed_s = max(0.0, self._owed_s - passed)
        return passed

    def _finished(self, chunk: int, work: Work) -> Progress | Report:
        if chunk == WHOLE:
            self._free = self._reached(chunk) < work.most_steps
            if self._free:
                self._queue.append(WHOLE)
            return self._report(work)
        trajectory, start = self._trajectories[chunk], self._models[work.version]
        if trajectory.measured is None:
            signs = key(
                work.seed, work.version, "sketch"
            )  # one projection for all chunks: their likeness shows
            trajectory.measured = measure(start, self._cache.vector(chunk), trajectory.samples, signs)
            if trajectory.seconds >= WORTH_S:
                with suppress(EdgeFailed):  # it lies in memory as well
                    self._write_down(chunk)
        self._waits = work.lockstep
        return Progress(
            now=0.0,
            client=work.client,
            round=work.round,
            chunk=chunk,
            reached=trajectory.reached,
            seconds=trajectory.seconds,
            samples=trajectory.samples,
            squared_norm=trajectory.measured.squared_norm,
            loss=trajectory.losses / trajectory.reached,
            sketch=trajectory.measured.sketch,
        )

    def _report(self, work: Work) -> Report:
        """Tell how far local work is, and what the gate weighs."""
        at = self._trajectories.get(WHOLE, Trajectory(self._names[WHOLE], 0))
        samples = sum(self._trainer.sizes[name] for name in names(at.name))
        squared_norm = self._trainer.squared_gradient
        if at.reached and self._config.measure != "gradient":
            parameters, lead = self._trainer.flat.parameters, self._lead
            start, now = self._models[work.version][:parameters], self._cache.vector(WHOLE)[:parameters]
            squared_norm = squared_way(start, now, lead, at.led)
        if not math.isfinite(squared_norm):
            raise TaskFailed(f"the squared norm is {squared_norm}, needed a finite number")
        loss = at.losses / at.reached if at.reached else 0.0
        return Report(0.0, work.client, work.round, at.reached, samples, at.seconds, squared_norm, loss)

    def _give_up(self, chunk: int, work: Work, error: Exception) -> Failed:
        step = min(self._reached(chunk) + 1, work.target)
        said = str(error).strip().split("\n")[0]
        what = said if isinstance(error, FedgcError) else f"{type(error).__name__}: {said}"
        if chunk == self._current:
            self._current = None
        self._drop(chunk)
        where = "local work" if chunk == WHOLE else f"chunk {chunk} ({self._names[chunk]})"
        return _failed(chunk, work, f"{where}, step {step}: {what}")

    def _fail(self, chunk: int, work: Work, reason: str) -> None:
        self._to_say.append(_failed(chunk, work, reason))

    # ---- what is kept

    def _begun(self, message: object) -> Work:
        if self._work is None:
            raise BadMessage(f"{message!r}: saw no work before it, needed some")
        return self._work

    def _this_round(self, command: Skip | Take | Reveal) -> Work:
        work = self._begun(command)
        if command.round != work.round:
            raise BadMessage(f"{command!r}: needed round {work.round}")
        return work

    def _reached(self, chunk: int) -> int:
        return self._trajectories[chunk].reached if chunk in self._trajectories else 0

    def _unqueue(self, chunk: int) -> None:
        self._queue = deque(each for each in self._queue if each != chunk)

    def _set_aside(self) -> None:
        if self._current is None or self._work is None:
            return
        refused = self._cache.put(self._current, self._trainer.save())
        self._current = None
        if refused:
            self._make_room(self._work)

    def _make_room(self, work: Work) -> None:
        """Give up the oldest trajectories where there is too much."""
        for chunk, reason in self._cache.give_up().items():
            self._let_go(chunk)
            self._fail(chunk, work, reason)

    def _let_go(self, chunk: int) -> None:
        """Forget a trajectory here; written down it stays, for a later process."""
        if chunk != self._current:
            self._trajectories.pop(chunk, None)
            self._cache.drop(chunk)
            self._again = deque(each for each in self._again if each != chunk)

    def _write_down(self, chunk: int) -> None:
        if self._cache_files is None or self._way is None:
            return
        each = self._trajectories[chunk]
        (version, seed, first_step, common_steps), origin = self._way, self._origin
        if not origin:
            origin = self._origin = digest_of(self._models[version])
        before = self._before if isinstance(self._before, str) else _digest_or_nothing(self._before)
        about = About(
            version,
            origin,
            seed,
            chunk,
            each.name,
            each.samples,
            each.reached,
            each.seconds,
            each.losses,
            each.led,
            first_step,
            common_steps,
            before,
        )
        self._cache_files.put(about, self._cache.saved(chunk))

    def _drop(self, chunk: int) -> None:
        self._trajectories.pop(chunk, None)
        self._cache.drop(chunk)
        if self._cache_files is not None:
            self._cache_files.drop(chunk)

    def _forget(self) -> None:
        self._current = None
        self._queue.clear()
        self._again.clear()
        self._trajectories.clear()
        self._cache.clear()
        self._way, self._origin, self._before = None, "", None
        if self._cache_files is not None:
            self._cache_files.clear()


def _digest_or_nothing(model: Vector | None) -> str:
    return "" if model is None else digest_of(model)


def _failed(chunk: int, work: Work, reason: str) -> Failed:
    return Failed(0.0, work.client, work.round, reason[:LONGEST_REASON], _named(chunk))


def _named(chunk: int) -> tuple[int, ...]:
    """Return the chunks that a failure names: all of local work fails together, and that is said by none."""
    return () if chunk == WHOLE else (chunk,)
