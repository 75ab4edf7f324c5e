"""Makes the engine of a client for the run's kind of work."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from fedgc.config import RunConfig
from fedgc.errors import BadTask
from fedgc.training.account_file import AccountFile
from fedgc.training.cache import ClientCache
from fedgc.training.cache_files import CacheFiles
from fedgc.training.coded_engine import CodedEngine
from fedgc.training.engine import Engine
from fedgc.training.local_engine import LocalEngine
from fedgc.training.pace import Pace
from fedgc.training.script.connection import ScriptFacts
from fedgc.training.script.script_loop import ScriptLoop
from fedgc.training.task_loop import TaskLoop
from fedgc.training.tasks import Task
from fedgc.training.trainer import Trainer
from fedgc.training.trajectories import Trajectories

MEGABYTE: Final = 1_000_000


def new_engine(  # noqa: PLR0913  what a client has
    task: Task,
    config: RunConfig,
    pace: Pace,
    spill_dir: Path,
    *,
    files: CacheFiles | None = None,
    account: AccountFile | None = None,
    leave: Callable[[str], None] = lambda _: None,
) -> Engine:
    """Return the engine of a client.

    Args:
        task: The training task.
        config: The settings of the run.
        pace: Times the steps and enforces their least time.
        spill_dir: The folder for vectors that do not fit into memory.
        files: The client cache, which keeps trajectories between processes.
        account: What is spent of the privacy of records.
        leave: Called, with the reason, once the privacy of records allows no further step.

    Raises:
        BadTask: The model does not fit the kind of work, or the privacy of records.
        EdgeFailed: What is spent of the privacy of records cannot be read.
    """
    trainer = Trainer(task, config)
    if config.protects_records:
        trainer.protect(os.urandom, account)
    cache = ClientCache(config.memory_mb * MEGABYTE, spill_dir)
    trajectories = Trajectories(cache, files)
    trajectories.open(trainer.flat.size)
    if config.work == "local":
        return LocalEngine(TaskLoop(trainer, pace, files, leave), config, trajectories)
    if task.private:
        raise BadTask("task: saw private tensors, needed work = local with them")
    return CodedEngine(trainer, trajectories, pace)


def new_script_engine(
    facts: ScriptFacts, wait: Callable[[float], object], spill_dir: Path, files: CacheFiles
) -> Engine:
    """Return the engine of a client whose training is a script.

    Args:
        facts: What the client knows of its script.
        wait: Waits for so many seconds, or less if a command comes.
        spill_dir: The folder for vectors that do not fit into memory.
        files: Where trajectories outlive the process, and what an earlier process left.
    """
    cache = ClientCache(facts.config.memory_mb * MEGABYTE, spill_dir)
    return LocalEngine(ScriptLoop(facts, wait), facts.config, Trajectories(cache, files))
