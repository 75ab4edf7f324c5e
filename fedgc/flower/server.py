"""The ServerApp: runs the strategy with the settings of a run, keeps history and checkpoints.

A run has its own name, because Flower starts a new run for each attempt: a resume continues under the same
name from the last checkpoint, and the store shows one history.
"""

import gc
import os
from dataclasses import replace
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedgc.config import RunConfig
from fedgc.flower.app_config import placed
from fedgc.flower.recording import name_of_run
from fedgc.flower.run_memory import Memory, remembered
from fedgc.flower.sink import Sink
from fedgc.flower.strategy import FedGC
from fedgc.links.log import log_errors_in_one_line
from fedgc.store import checkpoint
from fedgc.store.engine import runs_folder
from fedgc.training.server_optimizer import averaged
from fedgc.training.tasks import Task, named


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
        config = replace(config, run=run)
        if config.validate_only != "off":
            saved = _scored(config, folder / run, config.validate_only)
            FedGC(chosen, config, Sink(), Memory(run, resume=saved)).score(grid)
            return
        with remembered(config, run, context.run_id) as (sink, memory):
            strategy = FedGC(chosen, config, sink, memory)
            strategy.summary()
            gc.freeze()  # excludes imported objects: a collection over them would pause a round
            strategy.run(grid, sink)

    return app


def _scored(config: RunConfig, folder: Path, version: int) -> checkpoint.Checkpoint:
    """Return the version to be scored, with the model that is exported."""
    saved = checkpoint.version_of(folder, version)
    return replace(saved, model=averaged(config, saved.optimizer, saved.model))
