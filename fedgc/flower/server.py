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
from fedgc.flower import preconditions as beginning
from fedgc.flower.driver import Save
from fedgc.flower.recording import name_of_run, recorded
from fedgc.flower.strategy import FedGC, Memory
from fedgc.links.log import LOG, keep_to_the_point
from fedgc.store import checkpoint, standing
from fedgc.store.database import Store
from fedgc.store.engine import runs_folder
from fedgc.store.views import Run
from fedgc.store.writer import Keeper
from fedgc.training.tasks import Task, named

PLACE: Final = ("bind", "advertise", "authority")  # a deployment sets FEDGC_BIND and so on for them
FLUSH_S = 10.0  # a checkpoint waits so long for its round's row to be in the store


def server_app(task: Task | None = None) -> ServerApp:
    """Make the ServerApp of a Flower app: it runs `FedGC` with the run's settings.

    The app records the run's history in the store, writes checkpoints, and resumes a run that the setting
    `resume` names.

    Args:
        task: What is trained; by default the task that the setting `task` names.

    Returns:
        The ServerApp, to be named as `serverapp` in the app's `pyproject.toml`.

    Example:
        app = fedgc.server_app(task)
    """
    keep_to_the_point()
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        config = placed(RunConfig.read(context.run_config), os.environ)
        chosen = task or named(config.task, config)
        run, folder = name_of_run(config, context.run_id), runs_folder(config.checkpoint_dir, os.environ)
        resumed = _resumed(config, folder) if config.resume else None
        beginning.must_be_kept(config, folder / run)
        with Store.open() as store:
            if resumed is None:
                beginning.must_be_new(run, store, folder)
            store.fold(config.keep_rounds)
            speeds = store.speeds(config.task)
            others = under_way(store.runs(), run, time.time())
            changes = beginning.changed(config, store.run(run).settings) if resumed else ""
        _warn_of(others, changes)
        with recorded(config, run, context.run_id) as recording:
            keep = sys.maxsize if config.keep_checkpoints == "all" else config.keep_checkpoints
            save = _save(folder / run, keep, recording.keeper) if keep else None
            strategy = FedGC(chosen, config, recording.sink, Memory(run, speeds, save, resumed, others))
            strategy.summary()
            gc.freeze()  # what was imported stays: a collection that walks through it stops a round for long
            strategy.start(grid)

    return app


def placed(config: RunConfig, environment: Mapping[str, str]) -> RunConfig:
    """Return the settings with what the deployment knows of its own place, where the run leaves it open.

    Who starts a run need not know where the server's listener is and what stands before it.

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


def under_way(runs: Sequence[Run], own: str, now: float) -> str:
    """Return which other runs of this store go on, in a sentence; nothing where none does."""
    others = [each.run for each in runs if each.run != own and standing.alive(each, now)]
    return f"under way at its beginning: {', '.join(others)}" if others else ""


def _warn_of(others: str, changes: str) -> None:
    if changes:
        LOG.warning("the run goes on with other settings than before: %s", changes)
    if others:
        LOG.warning("%s; a SuperNode serves one run at a time, so this one waits for its clients", others)


def _resumed(config: RunConfig, folder: Path) -> checkpoint.Checkpoint:
    found = checkpoint.load(folder / config.resume, tell=LOG.warning)
    beginning.must_go_on(config, found.round)
    return found


def _save(folder: Path, keep: int, keeper: Keeper) -> Save:
    def save(made: checkpoint.Checkpoint) -> None:
        keeper.flush(FLUSH_S)  # a round that a resume does not run again must be in the history
        checkpoint.save(folder, made, keep)

    return save
