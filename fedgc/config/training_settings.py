"""The settings of a run and its training: those without a table, and `[optimizer]`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from fedgc.config.fields import (
    AUTO,
    NAME_NEEDS,
    TASK,
    Auto,
    Value,
    count,
    is_name,
    not_negative,
    positive,
    setting,
    share,
)
from fedgc.config.task_settings import TaskSettings

LOCAL_STEPS = 16
CODED_STEPS = 4
SHARED = 0.1  # weight of a client's own gradient beside the shared momentum: no effect from 0.05 to 0.2


@dataclass(frozen=True)
class TrainingSettings:
    """What is trained, for how long, and with which steps."""

    __slots__ = ()

    run: str = setting("run", "", "the run's name in the store (empty: generated)", is_name, NAME_NEEDS)
    resume: str = setting(
        "resume",
        "",
        "the name of a run to resume from its last checkpoint",
        lambda v: not v.startswith(".") and "/" not in v,
        "a run's name, not a path",
    )
    task: str = setting("task", "digits", "a shipped task's name, or module:attribute of your own")
    script: str = setting(
        "script",
        "",
        "a training script of your own in place of a task: a Python file, a notebook or a launcher's command "
        "line, started by each client (empty: the task is trained)",
    )
    rounds: int = setting("rounds", 20, "rounds to run", count, "at least 1")
    work: Literal["local", "coded"] = setting(
        "work",
        "local",
        "local: each client trains one model on all of its data, and any number of steps counts; "
        "coded: each chunk of shared data is trained by itself, and any client that holds it may send it",
    )
    local_steps: int | Auto = setting(
        "local-steps",
        AUTO,
        "local work: the optimizer steps after which a client is done with a round; a slower client counts "
        "with fewer, and a client that waits for others goes on to more, unless gate.lockstep is on. Coded "
        f"work: the optimizer steps on each chunk, exactly. auto: {LOCAL_STEPS} in local work, {CODED_STEPS} "
        "in coded",
        count,
        "at least 1, or auto",
    )
    batch_size: int = setting("batch-size", 32, "samples in one local step", count, "at least 1")
    learning_rate: float = setting("learning-rate", 0.1, "of the local steps", positive, "above 0")
    schedule: Literal["constant", "cosine"] = setting(
        "optimizer.schedule",
        "constant",
        "schedule of the learning rate over the local steps of the whole run, rounds times local-steps; "
        "cosine: falls to 0 at their end",
    )
    warmup_steps: int = setting(
        "optimizer.warmup-steps",
        0,
        "local steps in which the learning rate rises to its full height",
        not_negative,
        "0 or more",
    )
    shared_momentum: float | Literal["off", "auto"] = setting(
        "optimizer.shared-momentum",
        AUTO,
        f"weight of a client's own gradient in a local step, the rest is the last common step; auto: {SHARED}"
        " for local work with a task; off with a script, fragments, a sample of clients; coded work has none",
        share,
        "above 0 and at most 1, off or auto",
    )
    server_optimizer: Literal["sgd", "nesterov", "schedule-free", "adam", "adamw", "adagrad", "rmsprop"] = (
        setting("optimizer.server", "sgd", "torch optimizer that applies the mean update")
    )
    server_learning_rate: float = setting(
        "optimizer.server-learning-rate",
        1.0,
        "of the server's optimizer (sgd at 1.0 is averaging)",
        positive,
        "above 0",
    )
    server_momentum: float = setting(
        "optimizer.server-momentum",
        0.0,
        "of the server's sgd, nesterov or schedule-free (0: for the last two 0.9)",
        lambda v: 0 <= v < 1,
        "0 or more, below 1",
    )
    seed: int = setting("seed", 0, "the root of every random choice", not_negative, "0 or more")
    task_settings: Mapping[str, Value] = field(
        default_factory=TaskSettings, metadata={"key": TASK, "says": "settings of the task's own"}
    )
