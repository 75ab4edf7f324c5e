"""Records a run in the store: its rounds, metrics, audits and how it ended."""

import fcntl
import hashlib
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fedgc.config import RunConfig
from fedgc.files import make_folder, opener
from fedgc.flower.json_lines import Lines
from fedgc.flower.sinks import Sinks, opened
from fedgc.flower.store_sink import Past, StoreSink
from fedgc.links.log import LOG
from fedgc.processes.state_folder import state_folder
from fedgc.store.database import Store
from fedgc.store.engine import address
from fedgc.store.liveness import this_process
from fedgc.store.writer import Keeper

LONGEST_TASK: Final = 24  # characters of the task in a generated name
DIALS: Final = "--runtime-api-address"  # Flower's option of a ServerApp's process: its SuperLink


@dataclass(frozen=True, slots=True)
class Recording:
    """The sink for a run's events, and the writer of the store."""

    sink: Sinks
    keeper: Keeper


@contextmanager
def recorded(config: RunConfig, run: str, flower_run: int, past: Past | None = None) -> Iterator[Recording]:
    """Record a run while the block runs; an exception is recorded as the reason of failure.

    `past` is that of a run that is resumed.
    """
    with _aside(run, flower_run) as aside:
        keeper = Keeper(Store.open, aside, LOG.warning)
        lines = Lines(config.log_file, LOG.warning)
        sink = StoreSink(keeper, run, time.time, time.monotonic, lines, superlink_of(sys.argv))
        with sink.recorded(config, past), closing(Sinks(sink, opened(config, run))) as sinks:
            yield Recording(sinks, keeper)


@contextmanager
def _aside(run: str, flower_run: int) -> Iterator[Path]:
    """Yield the file in which records of this run wait while the store cannot be written.

    It is named after the run and the store, so that the process that resumes the run finds it. While another
    process of the run has it, as one that is ending, this one has a file of its own.
    """
    folder = state_folder(os.environ)
    name = hashlib.sha256(f"{run} {address(None, os.environ)}".encode()).hexdigest()[:16]
    with ExitStack() as stack:
        try:
            make_folder(folder)
            lock = stack.enter_context(open(folder / "aside.lock", "ab", opener=opener))
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, int(name, 16) // 4)  # one byte for each name
        except OSError:
            name = f"{name}-{flower_run}"
        yield folder / f"aside-{name}.jsonl"


def superlink_of(words: Sequence[str]) -> str:
    """Return which SuperLink has started a ServerApp with this command line; empty if that is not visible.

    >>> superlink_of(["flwr-serverapp", "--token", "x"])
    ''
    """
    address = words[words.index(DIALS) + 1 :][:1] if DIALS in words else []
    return " ".join((this_process().where, *address)) if address else ""


def name_of_run(config: RunConfig, flower_run: int) -> str:
    """Return the name of the run in the store.

    >>> name_of_run(RunConfig(task="ward.task:task"), 7).startswith("ward.task-task-20")
    True
    """
    about = "stock" if config.client_app == "stock" else config.task
    task = re.sub(r"[^A-Za-z0-9_.-]", "-", about)[:LONGEST_TASK].lstrip(".")
    generated = f"{task}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{flower_run}"
    return config.resume or config.run or generated
