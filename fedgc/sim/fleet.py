"""Local work of simulated clients: each has a trajectory, and a few models in worker processes train all.

A client's trajectory from a common model depends only on the model, its data and the indices of its steps.
So a stretch of it can be trained before the virtual clock asks for the result: the clock forecasts the next
reports, and the workers are always busy. A forecast that a command overtakes costs time and changes nothing,
as a stretch always begins where the last one that the clock asked for has ended. The numbers are therefore
the same for any number of workers; a stack of clients gives them up to rounding.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fedgc.codecs import EXACT, codec_of, naming
from fedgc.errors import EdgeFailed, system_errors
from fedgc.messages import Continue, Repair, Reveal, Work
from fedgc.sim.checkpoint import Findings, Part
from fedgc.sim.clock import Finding
from fedgc.sim.ray_workers import RayWorkers
from fedgc.sim.workers import Alone, Order, Stacked, Workers
from fedgc.training import Vector
from fedgc.training.client_file import ClientFile, Extent, Extents
from fedgc.training.flat import check_shape
from fedgc.training.local_update import Residual, with_error_feedback
from fedgc.training.simulated import STATES, Stretch, Trained, model_file, vector_in
from fedgc.training.stacked import StackedTrainer
from fedgc.training.update import update_of

if TYPE_CHECKING:
    from fedgc.sim.training import Job

MODELS_KEPT: Final = 4  # common models from which a client with latency may begin
ROOM: Final = 65_536  # bytes of a state beside its vector, before the first one is known
SPARE: Final = 1024  # bytes by which a state may be longer than others
KEPT, REST = "kept", "rest"  # parts of a checkpoint


@dataclass(slots=True)
class Trajectory:
    """One client's trajectory since its common model."""

    work: Work
    samples: int
    kept: Extent | None  # where its state is
    reached: int = 0
    losses: float = 0.0
    led: float = 0.0
    squared_norm: float = 0.0
    ordered: Order | None = None  # its next stretch

    def found(self, losses: float, led: float, squared_norm: float) -> None:
        """Enter the sums over all its steps."""
        self.losses, self.led, self.squared_norm = losses, led, squared_norm


class Fleet:
    """The clients of one simulation; an observer of the clock, and the source of updates."""

    def __init__(self, job: "Job", folder: Path, buffers: int, workers: "Stacked | None" = None) -> None:
        """The last `buffers` numbers of a model are those of buffers; `workers` are by default the job's."""
        self._buffers = buffers
        self._folder, self._file = folder, ClientFile(folder / STATES)
        self._sizes, self._keeps_own = job.task.sizes(), bool(job.task.private)
        self._workers, self.findings = workers or _workers(job, folder), Findings()
        self.forecast: Callable[[int], Iterable[tuple[str, int]]] = lambda _: ()
        self.taken: Callable[[int], object] = lambda _: None  # hears of stretches since the last model
        self._taken = 0
        self._extents, self._room = Extents(), 0
        self.models: dict[int, Vector] = {}
        self._in_process = self._workers.share(self.models)
        self._trajectories: dict[str, Trajectory] = {}
        self._ahead: set[str] = set()  # clients whose next stretch is ordered
        self._given_up: list[Order] = []  # whose room a process may still write to
        self._rests: dict[str, tuple[tuple[int, int, str] | None, Extent]] = {}  # residuals of lossy codecs

    # ---- what clients are told

    def begin(self, work: Work) -> None:
        """Begin a trajectory, unless it has begun already."""
        known = self._trajectories.get(work.client)
        if known is not None and _origin(known.work) == _origin(work):
            known.work = work
            return
        kept = self._dropped(work.client)
        samples = sum(self._sizes[name] for _, name in work.names)
        self._trajectories[work.client] = Trajectory(work, samples, kept)

    def carry_on(self, work: Continue) -> None:
        """Do nothing: the trajectory goes on."""

    def lost(self, client: str) -> None:
        """Discard the client's trajectory and residual; its private tensors are on its disk."""
        if client in self._rests:
            self._extents.release(self._rests.pop(client)[1])
        if client in self._trajectories:
            work, samples = self._trajectories[client].work, self._trajectories[client].samples
            self._trajectories[client] = Trajectory(work, samples, self._dropped(client))

    def load(self, version: int, model: Vector, in_transit: Collection[int] = ()) -> None:
        """Store the new common model and a few earlier ones; clients will begin from those `in_transit`."""
        if not self._in_process:
            self._write(version, model)
        works = [path.work for path in self._trajectories.values()]
        needed = {each.version for each in works} | {each.before for each in works}.union(in_transit)
        for old in [each for each in self.models if each <= version - MODELS_KEPT and each not in needed]:
            del self.models[old]
            if not self._in_process:
                model_file(self._folder, old).unlink(missing_ok=True)
        self.models[version], self._taken = model, 0

    def _write(self, version: int, model: Vector) -> None:
        with system_errors("training: a model cannot be written"):
            model.tofile(model_file(self._folder, version))

    # ---- what they have done

    def finding(self, chunk: int, target: int) -> Finding:
        """Raise: local work does not train single chunks."""
        raise EdgeFailed(f"training: chunk {chunk} was taken to {target} steps, needed local work")

    def reached(self, client: str, steps: int) -> Finding:
        """Return the finding of the client after so many local steps; train them if they are not done."""
        path = self._trajectories[client]
        if not steps:
            return Finding(path.samples, 0.0)
        if path.reached > steps:
            raise EdgeFailed(f"training: {client} was asked for step {steps}, it had been stopped after that")
        if path.reached < steps:
            self.findings.of(lambda: self._trained(client, path, steps), path.found)
            path.reached = steps
        return Finding(path.samples, path.squared_norm, path.losses / steps)

    def sent(self, command: Reveal | Repair) -> Vector:
        """Return the client's update as decoded by the server."""
        client = command.client
        path = self._trajectories.get(client)
        if isinstance(command, Repair) or path is None or path.kept is None or not path.reached:
            raise EdgeFailed(f"training: {client} was asked for work that it has not done")
        update = self.update(path, path.kept)
        if command.wire == EXACT:
            return update
        size = update.size
        codec, stamp = codec_of(command.wire, self._buffers), (command.round, command.attempt, client)
        with naming(command.wire, f"the update of {client}"):
            data, rest = with_error_feedback(update, codec, stamp, self._rest(client, size))
            decoded = codec.decode(data, size)
            check_shape(decoded, size)
        self._put_rest(client, rest)
        return decoded

    def update(self, path: Trajectory, kept: Extent) -> Vector:
        """Return the update of a client that has kept its trajectory there."""
        model = self.models[path.work.version]
        return update_of(model, vector_in(self._file.read(kept), model.size), 1)

    def close(self) -> None:
        """End the worker processes."""
        self._workers.close()

    # ---- checkpoints

    settled = True

    def parts(self) -> Iterator[Part]:
        """Yield what the clients keep."""
        for client, path in self._trajectories.items():
            if path.kept is not None:
                yield (KEPT, client), self._file.read(path.kept).data
        for client, (stamp, extent) in self._rests.items():
            yield (REST, client, stamp), self._file.read(extent).data

    def restore(self, kind: str, of: Sequence[Any], data: bytes) -> None:
        """Take what a client kept, after the same commands as before."""
        client, *stamp = of
        least = 4 * next(iter(self.models.values())).size
        if len(data) < least or (kind == REST and len(data) % least) or kind not in (KEPT, REST):
            raise ValueError(f"{len(data)} bytes as {kind} of {client}")
        extent = self._file.write(self._extents.reserve(len(data)), data)
        if kind == KEPT:
            self._trajectories[client].kept = extent
        else:
            self._rests[client] = tuple(stamp[0]) if stamp[0] else None, extent

    def restored(self) -> None:
        """Check that no client lacks its state."""
        for client, path in self._trajectories.items():
            if path.reached and path.kept is None:
                raise ValueError(f"no state of {client}")

    # ---- stretches

    def _trained(self, client: str, path: Trajectory, steps: int) -> tuple[float, float, float]:
        """Have the client trained to this step, and those that report next."""
        self._order(client, steps)
        self._order_ahead(client)
        return self._take(client, path)

    def _order(self, client: str, steps: int) -> None:
        """Have a client's trajectory trained to this step."""
        path = self._trajectories[client]
        if path.ordered is not None and path.ordered.stretch.last == steps:
            return
        self._cancel(client, path)
        for order in [each for each in self._given_up if each.future.done()]:
            self._given_up.remove(order)
            self._extents.release(order.stretch.room)
        room = self._extents.reserve(self._room or 4 * next(iter(self.models.values())).size + ROOM)
        stretch = Stretch(path.work, path.reached, steps, path.kept, room, path.losses, path.led)
        path.ordered = self._workers.order(stretch)
        self._ahead.add(client)

    def _order_ahead(self, needed: str) -> None:
        """Have the clients trained that report after the one that is needed."""
        order = self._trajectories[needed].ordered
        if order is None or not (self._room or self._in_process):
            return  # the first stretch tells how much room others need
        nearest = dict[str, int]()
        more = self._workers.more(order, len(self._ahead), len(self._trajectories))
        for client, steps in self.forecast(more) if more else ():
            path = self._trajectories.get(client)
            if client != needed and path is not None and path.reached < steps:
                nearest.setdefault(client, steps)
        for client, steps in nearest.items():
            self._order(client, steps)  # also in place of an order that a command has overtaken

    def _take(self, client: str, path: Trajectory) -> tuple[float, float, float]:
        """Wait for the stretch that was ordered, and let the trajectory end there."""
        if path.ordered is None:
            raise EdgeFailed(f"training: {client} was asked for steps that no round ordered")
        trained = self._workers.result(path.ordered)
        kept = self._stored(trained)
        if path.kept is not None:
            self._extents.release(path.kept)
        path.ordered, path.kept = None, kept
        self._ahead.discard(client)
        self._taken += 1
        self.taken(self._taken)
        return trained.losses, trained.led, trained.squared_norm

    def _stored(self, trained: Trained) -> Extent:
        self._room = max(self._room, (len(trained.spilled) or trained.kept.size) + SPARE)
        if not trained.spilled:
            return trained.kept
        self._extents.release(trained.kept)
        return self._file.write(self._extents.reserve(self._room), trained.spilled)

    def _cancel(self, client: str, path: Trajectory) -> None:
        """Give up the stretch that was ordered; its room serves again once nobody writes to it."""
        if path.ordered is not None:
            self._workers.cancel(path.ordered)
            self._given_up.append(path.ordered)
            path.ordered = None
            self._ahead.discard(client)

    def _dropped(self, client: str) -> Extent | None:
        """Discard a trajectory; return where the client's private tensors are, if it has any."""
        path = self._trajectories.pop(client, None)
        if path is None:
            return None
        self._cancel(client, path)
        if path.kept is not None and not self._keeps_own:
            self._extents.release(path.kept)
            return None
        return path.kept

    # ---- error feedback

    def _rest(self, client: str, size: int) -> Residual | None:
        if client not in self._rests:
            return None
        stamp, extent = self._rests[client]
        after, *before = self._file.read(extent).view("float32").reshape(-1, size)
        return Residual(stamp, before[0] if before else None, after)

    def _put_rest(self, client: str, rest: Residual) -> None:
        data = rest.after.tobytes() + (b"" if rest.before is None else rest.before.tobytes())
        extent = self._file.write(self._extents.reserve(len(data)), data)
        if client in self._rests:
            self._extents.release(self._rests[client][1])
        self._rests[client] = rest.stamp, extent


def _workers(job: "Job", folder: Path) -> Alone | Stacked | Workers | RayWorkers:
    if job.stack > 1:
        return Stacked(StackedTrainer(job.task, job.config, folder), job.stack)
    if job.make is not None and job.ray:
        return RayWorkers(job.ray, job.make, job.config, folder, job.workers)
    if job.make is not None and job.workers > 1:
        return Workers(job.make, job.config, folder, job.workers)
    return Alone(job.task, job.config, folder)


def _origin(work: Work) -> tuple[object, ...]:
    return work.version, work.names, work.pool, work.first_step
