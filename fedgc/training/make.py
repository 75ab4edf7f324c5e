"""Makes the engine of a client, for the kind of work that the settings name."""

from pathlib import Path
from typing import Final

from fedgc.config import RunConfig
from fedgc.training.cache import ClientCache
from fedgc.training.cache_files import CacheFiles
from fedgc.training.coded_engine import CodedEngine
from fedgc.training.engine import Engine
from fedgc.training.local_engine import LocalEngine
from fedgc.training.pace import Pace
from fedgc.training.tasks import Task
from fedgc.training.trainer import Trainer
from fedgc.training.trajectories import Trajectories

MEGABYTE: Final = 1_000_000


def new_engine(
    task: Task,
    config: RunConfig,
    pace: Pace,
    spill_dir: Path,
    *,
    files: CacheFiles | None = None,
    reach: float | None = None,
) -> Engine:
    """Return the engine of a client.

    Args:
        task: What is trained.
        config: The settings of the run.
        pace: Times the steps, and rests between them.
        spill_dir: The folder for vectors that do not fit into memory.
        files: Where trajectories outlive the process, and what an earlier process left.
        reach: How far one record may move an update, if that is bounded (differential privacy).
    """
    trainer = Trainer(task, config)
    if reach is not None:
        trainer.clip_records(reach)
    cache = ClientCache(config.memory_mb * MEGABYTE, spill_dir)
    trajectories = Trajectories(cache, files, trainer.flat.size)
    kind = LocalEngine if config.work == "local" else CodedEngine
    return kind(trainer, trajectories, pace)
