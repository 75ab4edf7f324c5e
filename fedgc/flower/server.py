"""The ServerApp: runs the strategy with the settings of a run, keeps history and checkpoints.

A run has its own name, because Flower starts a new run for each attempt: a resume continues under the same
name from the last checkpoint, and the store shows one history.
"""

import gc
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedgc.config import RunConfig
from fedgc.errors import Unusable
from fedgc.flower import preconditions
from fedgc.flower.job import Save
from fedgc.flower.recording import name_of_run, recorded, superlink_of
from fedgc.flower.sink import Sink
from fedgc.flower.store_sink import Past
from fedgc.flower.strategy import FedGC, Memory
from fedgc.flower.validation import Pin
from fedgc.links.log import LOG, log_errors_in_one_line
from fedgc.store import checkpoint
from fedgc.store.database import Store
from fedgc.store.engine import runs_folder
from fedgc.store.liveness import busy_with
from fedgc.store.writer import Keeper
from fedgc.training.private_mean import with_most_spent
from fedgc.training.server_optimizer import averaged
from fedgc.training.tasks import Task, named

PLACE: Final = ("bind", "advertise", "authority")  # settings that a deployment sets as FEDGC_BIND, ...
FLUSH_S = 10.0  # longest wait of a checkpoint for its round's row to be stored


def server_app(task: Task | None = None) -> ServerApp:
    """Make the ServerApp of a Flower app: it runs `FedGC` with the run's settings.

    The app records the run's history in the store, writes checkpoints, and resumes a run that the setting
    `resume` names.

    Args:
        task: The training task; by default the one named by the setting `task`.

    Returns:
        The ServerApp, to be named as `serverapp` in the app's `pyproject.toml`.

    Example:
        app = fedgc.server_app(task)
    """
    log_errors_in_one_line()
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        config = placed(RunConfig.read(context.run_config), os.environ)
        chosen = None if config.script else task or named(config.task, config)
        run, folder = name_of_run(config, context.run_id), runs_folder(config.checkpoint_dir, os.environ)
        if config.validate_only != "off":
            saved = _scored(config, folder / run, config.validate_only)
            FedGC(chosen, config, Sink(), Memory(run, resume=saved)).score(grid)
            return
        resumed = _resumed(config, folder) if config.resume else None
        preconditions.must_know_best(config)
        preconditions.must_be_kept(config, folder / run)
        with Store.open() as store:
            past = _past(config, run, store, folder)
            store.fold(config.keep_rounds)
            speeds = store.speeds(config.workload)
            others = busy_with(store.runs(), run, superlink_of(sys.argv), time.time())
            best = store.best(run) if resumed else None
        _warn_of(others, past.changes)
        with recorded(config, run, context.run_id, past) as recording:
            keep = sys.maxsize if config.keep_checkpoints == "all" else config.keep_checkpoints
            save = _save(folder / run, keep, recording.keeper) if keep else None
            pin = _pin(folder / run) if keep else None
            memory = Memory(run, speeds, save, resumed, _at_beginning(others), pin, best)
            strategy = FedGC(chosen, config, recording.sink, memory)
            strategy.summary()
            gc.freeze()  # excludes imported objects: a collection over them would pause a round
            strategy.run(grid, recording.sink)

    return app


def _past(config: RunConfig, run: str, store: Store, folder: Path) -> Past:
    """Return the settings before a resume; raise Unusable if the run may not begin or go on."""
    if not config.resume:
        preconditions.must_be_new(run, store, folder)
        return Past()
    preconditions.must_have_rounds_left(config, store)
    before = store.run(run).settings
    return Past(before, preconditions.changed(config, before))


def placed(config: RunConfig, environment: Mapping[str, str]) -> RunConfig:
    """Fill in the listener's addresses from the deployment's environment, where they have their defaults.

    >>> placed(RunConfig(), {"FEDGC_ADVERTISE": "fl.example.org:443"}).advertise
    'fl.example.org:443'
    """
    usual = RunConfig()
    known: dict[str, Any] = {
        name: environment[f"FEDGC_{name.upper()}"]
        for name in PLACE
        if environment.get(f"FEDGC_{name.upper()}") and getattr(config, name) == getattr(usual, name)
    }
    return replace(config, **known)


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


def _resumed(config: RunConfig, folder: Path) -> checkpoint.Checkpoint:
    skipped: list[str] = []
    found = checkpoint.load(folder / config.resume, tell=skipped.append)
    preconditions.must_go_on(config, found.round)
    for line in skipped:
        LOG.warning("%s", line)
    return _with_all_spent(found, folder / config.resume, skipped) if found.privacy else found


def _with_all_spent(
    found: checkpoint.Checkpoint, folder: Path, skipped: Sequence[str]
) -> checkpoint.Checkpoint:
    """Return the checkpoint with the privacy that all released models have spent."""
    if skipped:
        raise Unusable(
            f"resume: {skipped[0]}, needed the newest, as the privacy of its model is spent; "
            f"`fedgc model restore {found.version}` takes this one and keeps count"
        )
    every = [each.privacy for each in checkpoint.listed(folder, every=True)]
    return replace(found, privacy=with_most_spent(found.privacy, every))


def _scored(config: RunConfig, folder: Path, version: int) -> checkpoint.Checkpoint:
    """Return the version to be scored, with the model that is exported."""
    saved = checkpoint.version_of(folder, version)
    return replace(saved, model=averaged(config, saved.optimizer, saved.model))


def _pin(folder: Path) -> Pin:
    def pin(best: checkpoint.Checkpoint) -> None:
        checkpoint.pin(folder, best)

    return pin


def _save(folder: Path, keep: int, keeper: Keeper) -> Save:
    def save(made: checkpoint.Checkpoint) -> None:
        keeper.flush(FLUSH_S)  # a resume does not repeat this round, so it must be in the history
        checkpoint.save(folder, made, keep)

    return save
