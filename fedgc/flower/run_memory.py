"""What a run starts from and leaves behind: its history in the store, and its checkpoints."""

import fcntl
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import IO, Final

from fedgc.config import RunConfig
from fedgc.errors import EdgeFailed, Unusable
from fedgc.files import make_folder, opener
from fedgc.flower import preconditions
from fedgc.flower.job import Save
from fedgc.flower.recording import recorded, superlink_of
from fedgc.flower.sink import Sink
from fedgc.flower.store_sink import Past
from fedgc.flower.validation import Pin
from fedgc.history import KnownBest, Speeds
from fedgc.links.log import LOG
from fedgc.store import checkpoint
from fedgc.store.checkpoint import Checkpoint
from fedgc.store.database import Store
from fedgc.store.engine import runs_folder
from fedgc.store.later_starts import last_start, later_starts, name_of_start
from fedgc.store.liveness import alive, busy_with
from fedgc.store.records import Plain
from fedgc.store.writer import Keeper
from fedgc.training.private_mean import with_most_spent

END_S: Final = 60.0  # for the run to end that another server has under way
POLL_S: Final = 0.2
LOCK: Final = "server.lock"  # in the folder of a run
NO_MORE: Final[Mapping[str, Plain]] = MappingProxyType({})
FLUSH_S: Final = 10.0  # longest wait of a checkpoint for its round's row to be stored


@dataclass(frozen=True, slots=True)
class Memory:
    """The history that a run starts from, and where its checkpoints go.

    `run` is the run's name, shared by a resume; client caches use it. `others` describes other active runs,
    for the error of a run that finds no clients. `pin` keeps the checkpoint of the best model;
    `best` is the best one before a resume.
    """

    run: str = ""
    speeds: Speeds = field(default_factory=Speeds)
    save: Save | None = None
    resume: Checkpoint | None = None
    others: str = ""
    pin: Pin | None = None
    best: KnownBest | None = None


def of_start(config: RunConfig, first: str, number: int) -> RunConfig:
    """Return the settings of one `FedGC.start` of an app whose first one has this name.

    If the app is resumed, so is a later start that has made models.

    Raises:
        Unusable: The run to be resumed is that of a later start.
    """
    name = name_of_start(first, number)
    if not config.resume:
        return replace(config, run=name)
    with Store.open() as store:
        resumed = store.run(first)
        later = [each.run for each in later_starts(store, resumed)]
    if (app := resumed.first_start) != first:
        raise Unusable(f"run {first} is a later start of run {app}, with which it is resumed: --resume {app}")
    folder = runs_folder(config.checkpoint_dir, os.environ) / name
    goes_on = number == 1 or (name in later and checkpoint.versions(folder))
    return replace(config, run=name, resume=name if goes_on else "")


@contextmanager
def remembered(
    config: RunConfig, run: str, flower_run: int, more: Mapping[str, Plain] = NO_MORE
) -> Iterator[tuple[Sink, Memory]]:
    """Record a run in the store while the block runs; yield its sink, and what it starts from.

    The name in the settings is that of the app's first start. `more` is recorded with the settings. The run
    of a site whose gateway is started again goes on from its last checkpoint.

    Raises:
        Unusable: The run may not begin, or not go on.
        EdgeFailed: Another server has the run under way.
    """
    folder = runs_folder(config.checkpoint_dir, os.environ)
    with _alone(run, folder / run):
        if config.site_gateway:
            config = replace(config, resume=run if checkpoint.versions(folder / run) else "")
        resumed = _resumed(config, folder) if config.resume else None
        preconditions.must_know_best(config)
        preconditions.must_be_kept(config, folder / run)
        with Store.open() as store:
            past = replace(_past(config, run, store, folder), more=more)
            store.fold(config.keep_rounds)
            speeds = store.speeds(config.workload)
            others = busy_with(store.runs(), run, superlink_of(sys.argv), time.time())
            best = _known_best(store, run, resumed.round) if resumed else None
        _warn_of(others, past.changes)
        with recorded(config, run, flower_run, past) as recording:
            keep = sys.maxsize if config.keep_checkpoints == "all" else config.keep_checkpoints
            save = _save(folder / run, keep, recording.keeper) if keep else None
            pin = _pin(folder / run) if keep else None
            yield recording.sink, Memory(run, speeds, save, resumed, _at_beginning(others), pin, best)


@contextmanager
def _alone(run: str, folder: Path) -> Iterator[None]:
    """Keep other servers out of a run while the block runs, once one that has it has ended.

    On this machine a server is seen by its lock, also before it has recorded its begin; elsewhere by its
    records alone.

    Raises:
        EdgeFailed: The other server goes on.
    """
    with ExitStack() as until_over:
        lock = None
        with suppress(OSError):  # a folder that cannot be written is refused later
            make_folder(folder)
            lock = until_over.enter_context(open(folder / LOCK, "ab", opener=opener))
        _await_end(run, lock)
        yield


def _await_end(run: str, lock: IO[bytes] | None) -> None:
    """Wait for the end of a run that another server may still be ending; raise EdgeFailed if it goes on."""
    begun, said = time.monotonic(), False
    with Store.open() as store:
        while not _has_lock(lock) or _is_under_way(store, run):
            if time.monotonic() > begun + END_S:
                raise EdgeFailed(f"run {run}: saw it under way for {END_S:g} s, needed the end of it")
            if not said:
                LOG.warning("run %s is under way; its end is awaited, for at most %g s", run, END_S)
            said = True
            time.sleep(POLL_S)


def _has_lock(lock: IO[bytes] | None) -> bool:
    try:
        if lock is not None:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        pass
    return True


def _is_under_way(store: Store, run: str) -> bool:
    with suppress(Unusable):  # the store knows no such run
        return alive(last_start(store, run), time.time())
    return False


def _past(config: RunConfig, run: str, store: Store, folder: Path) -> Past:
    """Return the settings before a resume; raise Unusable if the run may not begin or go on."""
    if not config.resume:
        preconditions.must_be_new(run, store, folder)
        return Past()
    preconditions.must_have_rounds_left(config, store)
    before = store.run(run).settings
    return Past(before, preconditions.changed(config, before))


def _warn_of(others: Sequence[str], changes: str) -> None:
    if changes:
        LOG.warning("the run goes on with other settings than before: %s", changes)
    if others:
        LOG.warning(
            "busy with run %s: a SuperNode serves one run at a time, so this run waits for its clients",
            ", ".join(others),
        )


def _at_beginning(others: Sequence[str]) -> str:
    return f"under way at its beginning: {', '.join(others)}" if others else ""


def _resumed(config: RunConfig, folder: Path) -> Checkpoint:
    skipped: list[str] = []
    found = checkpoint.load(folder / config.resume, tell=skipped.append)
    preconditions.must_go_on(config, found.round)
    for line in skipped:
        LOG.warning("%s", line)
    return _with_all_spent(found, folder / config.resume, skipped) if found.privacy else found


def _known_best(store: Store, run: str, resumed: int) -> KnownBest | None:
    """Return the best model of a run; the model of the round that is resumed is evaluated again."""
    best = store.best(run)
    if best is None:
        return None
    later = store.rounds(run, after=best.round)
    since = sum(each.row.round < resumed and best.figure in each.row.metrics for each in later)
    return KnownBest(**asdict(best), since=since)


def _with_all_spent(found: Checkpoint, folder: Path, skipped: Sequence[str]) -> Checkpoint:
    """Return the checkpoint with the privacy that all released models have spent."""
    if skipped:
        raise Unusable(
            f"resume: {skipped[0]}, needed the newest, as the privacy of its model is spent; "
            f"`fedgc model restore {found.version}` takes this one and keeps count"
        )
    every = [each.privacy for each in checkpoint.listed(folder, every=True)]
    return replace(found, privacy=with_most_spent(found.privacy, every))


def _pin(folder: Path) -> Pin:
    def pin(best: Checkpoint) -> None:
        checkpoint.pin(folder, best)

    return pin


def _save(folder: Path, keep: int, keeper: Keeper) -> Save:
    def save(made: Checkpoint) -> None:
        keeper.flush(FLUSH_S)  # a resume does not repeat this round, so it must be in the history
        checkpoint.save(folder, made, keep)

    return save
