"""The ServerApp: from a run's settings to a strategy whose history is kept in the store."""

import os
import time
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedgc.config import RunConfig
from fedgc.flower.driver import Save
from fedgc.flower.keeping import KeptSink
from fedgc.flower.log import LOG, keep_to_the_point
from fedgc.flower.strategy import FedGC
from fedgc.store import checkpoint
from fedgc.store.database import Store
from fedgc.store.engine import default_path
from fedgc.store.keeper import Keeper
from fedgc.task import Task, named


def server_app(task: Task | None = None) -> ServerApp:
    """Return the app that runs FedGC; without a task the run's settings name it."""
    keep_to_the_point()
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        config = RunConfig.read(context.run_config)
        chosen = task or named(config.task, config)
        with Store.open() as store:
            speeds = store.speeds(config.task)
        aside = default_path(os.environ).with_name(f"aside-{context.run_id}.jsonl")
        keeper = Keeper(Store.open, aside, LOG.warning)
        sink = KeptSink(keeper, _name(config, context.run_id), time.time, time.time() - time.monotonic())
        with sink.recorded(config):
            strategy = FedGC(chosen, config, sink, speeds=speeds, save=_save(config))
            strategy.summary()
            strategy.start(grid)

    return app


def _name(config: RunConfig, flower_run: int) -> str:
    """Return what the run is called in the store."""
    return config.run or f"{config.task}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{flower_run}"


def _save(config: RunConfig) -> Save | None:
    if not config.checkpoint_dir:
        return None
    folder = Path(config.checkpoint_dir)

    def save(made: checkpoint.Checkpoint) -> None:
        checkpoint.save(folder, made, config.keep_checkpoints)

    return save
