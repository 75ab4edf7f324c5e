"""The settings of a run: one frozen value, read once, the only home of defaults.

A setting is one field of `RunConfig`: its default, what it means and what is allowed stand together.
Flower hands settings over as a flat table with dashes (`local-steps = 4`); `RunConfig.read` takes that
table, names what it does not know, and is the only place in which a table of settings becomes a value.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

from fedgc.errors import BadSetting, nearest

Auto = Literal["auto"]
AUTO: Final = "auto"
All = Literal["all"]


def _setting(
    default: Any, says: str, allowed: Callable[[Any], bool] = lambda _: True, needs: str = ""
) -> Any:
    return field(default=default, metadata={"says": says, "allowed": allowed, "needs": needs})


def _positive(value: float | str) -> bool:
    return isinstance(value, str) or (math.isfinite(value) and value > 0)


def _count(value: int | str) -> bool:
    return isinstance(value, str) or value >= 1


def _not_negative(value: float | str) -> bool:
    return isinstance(value, str) or (math.isfinite(value) and value >= 0)


@dataclass(frozen=True, slots=True)
class RunConfig:
    """Every setting of one run.

    >>> RunConfig.read({"rounds": 3, "local-steps": 2}).rounds
    3
    >>> RunConfig.read({"round": 3})
    Traceback (most recent call last):
    ...
    fedgc.errors.BadSetting: unknown setting 'round'; did you mean rounds?
    """

    # What is trained
    run: str = _setting("", "the run's name in the store (empty: one is made up)")
    resume: str = _setting("", "the name of a run to go on with, from its last checkpoint")
    task: str = _setting("digits", "a shipped task's name, or module:attribute of your own")
    rounds: int = _setting(20, "rounds to run", _count, "at least 1")
    local_steps: int = _setting(
        4, "optimiser steps on each chunk before it counts as finished", _count, "at least 1"
    )
    batch_size: int = _setting(32, "samples in one local step", _count, "at least 1")
    learning_rate: float = _setting(0.1, "of the local steps", _positive, "above 0")
    server_optimiser: Literal["sgd", "adam", "adamw", "adagrad", "rmsprop"] = _setting(
        "sgd", "torch optimiser that applies the mean update"
    )
    server_learning_rate: float = _setting(
        1.0, "of the server's optimiser (sgd at 1.0 is averaging)", _positive, "above 0"
    )
    server_momentum: float = _setting(0.0, "of the server's sgd", lambda v: 0 <= v < 1, "0 or more, below 1")
    seed: int = _setting(0, "the root of every random choice", _not_negative, "0 or more")

    # How it is shared out
    chunks: int = _setting(
        16, "pieces the shared data is cut in, where the task lets us choose", _count, "at least 1"
    )
    replicas: int | Auto = _setting(
        AUTO,
        "devices that hold each chunk (fewer devices: all of them); auto: from what the devices did before",
        _count,
        "at least 1, or auto",
    )
    blocks: int | Auto = _setting(
        AUTO,
        "codeword = update / blocks; each chunk must be finished as often; auto: chosen when a round stops",
        _count,
        "at least 1, or auto",
    )
    min_devices: int = _setting(2, "devices to wait for before the first round", _count, "at least 1")
    start_timeout_s: float = _setting(120.0, "how long to wait for them", _positive, "above 0")

    # When a round ends
    deadline_s: float | Auto = _setting(
        AUTO,
        "longest time of the working phase; auto: from the measured speeds",
        _positive,
        "above 0, or auto",
    )
    upload_deadline_s: float | Auto = _setting(
        AUTO,
        "longest wait for codewords after the working phase; auto: from size and measured uplinks",
        _positive,
        "above 0, or auto",
    )
    gate_every: int = _setting(1, "sync every so many rounds (1: each)", _count, "at least 1")
    wire: Literal["float32", "short"] = _setting(
        "float32",
        "numbers of a codeword; short: float32, bf16 or int8, whatever makes the codewords of a round "
        "shortest within the error limit",
    )
    error_limit: float = _setting(
        1e-2,
        "largest relative error that the numbers on the wire may cause in a sum (int8 needs 0.011 and more)",
        lambda v: 1e-7 <= v <= 1,
        "at least 1e-7 (float32's own rounding), at most 1",
    )

    # Devices
    device: str = _setting(AUTO, "cpu, cuda, cuda:0, mps; auto: the best there is")
    precision: Literal["float32", "bf16"] = _setting("float32", "bf16: local steps under autocast")
    threads: int = _setting(
        0, "CPU threads of a device's engine (0: torch decides)", _not_negative, "0 or more"
    )
    memory_mb: int = _setting(
        1024, "finished updates a device keeps in memory before it spills to disk", _count, "at least 1"
    )

    # Links
    clients: Literal["fedgc", "stock"] = _setting(
        "fedgc",
        "stock: unmodified Flower ClientApps, which are sent Flower's own train and evaluate messages",
    )
    link: Literal["auto", "session", "messages"] = _setting(
        AUTO,
        "session: one lasting connection per device; messages: Flower messages alone; "
        "auto: sessions, and messages for each device whose session does not connect",
    )
    connect_s: float = _setting(
        10.0,
        "how long a device tries to connect its session before it goes on over messages",
        _positive,
        "above 0",
    )
    bind: str = _setting("127.0.0.1:0", "address the session listener binds to (port 0: any free one)")
    advertise: str = _setting("", "address devices are told (empty: the bound one)")
    authority: str = _setting(
        "",
        "file of the authority whose certificate devices find at that address, where a proxy stands before "
        "the listener (empty: the listener's own certificate)",
    )
    lease_s: float = _setting(3600.0, "a session's life before it is renewed", _positive, "above 0")
    grace_s: float = _setting(10.0, "how long a broken session may take to come back", _positive, "above 0")
    upload_slots: int = _setting(2, "devices that upload at the same time", _count, "at least 1")
    piece_kb: int = _setting(
        1024, "size of the pieces in which vectors travel", lambda v: 1 <= v <= 4096, "1 to 4096"
    )

    # Memory of the run
    evaluate_every: int = _setting(
        1, "rounds between evaluations on the server (0: never)", _not_negative, "0 or more"
    )
    checkpoint_dir: str = _setting(
        "", "folder of all runs' checkpoints (empty: runs/ beside the default store)"
    )
    keep_checkpoints: int | All = _setting(
        3, "how many of the newest are kept (0: none are written)", _not_negative, "0 or more, or all"
    )
    log_file: str = _setting("", "file of the server to add JSON lines to, one a round (empty: none)")
    keep_rounds: int = _setting(
        10_000,
        "rounds whose device rows the store keeps before it folds them into summaries",
        _count,
        "at least 1",
    )

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for each in fields(self):
            value = getattr(self, each.name)
            if not _is(value, hints[each.name]):
                raise BadSetting(f"setting {each.name}: saw {value!r}, needed {_wanted(hints[each.name])}")
            if not each.metadata["allowed"](value):
                raise BadSetting(f"setting {each.name}: saw {value!r}, needed {each.metadata['needs']}")
        both = isinstance(self.blocks, int) and isinstance(self.replicas, int)
        if both and int(self.blocks) > int(self.replicas):
            raise BadSetting(f"setting blocks: saw {self.blocks}, needed at most replicas ({self.replicas})")

    @classmethod
    def read(cls, table: Mapping[str, object]) -> "RunConfig":
        """Return the settings in `table` over the defaults; dashes and underscores are the same."""
        hints = get_type_hints(cls)
        values: dict[str, Any] = {}
        for key, value in table.items():
            name = key.replace("-", "_")
            if name not in hints:
                raise BadSetting(f"unknown setting {key!r}{nearest(name, hints)}")
            if name in values:
                raise BadSetting(f"setting {name}: saw it with dashes and with underscores, needed it once")
            values[name] = _as_float(value) if _takes_float(value, hints[name]) else value
        return cls(**values)

    def table(self) -> dict[str, str | int | float]:
        """Return the flat table that `read` takes back."""
        return {each.name.replace("_", "-"): getattr(self, each.name) for each in fields(self)}

    @classmethod
    def explained(cls) -> tuple[tuple[str, object, str], ...]:
        """Return (name, default, what it says) of every setting."""
        return tuple((each.name, each.default, each.metadata["says"]) for each in fields(cls))


def _choices(hint: Any) -> tuple[Any, ...]:
    if get_origin(hint) is Literal:
        return get_args(hint)
    return ()


def _members(hint: Any) -> tuple[Any, ...]:
    is_union = get_origin(hint) is not None and get_origin(hint) is not Literal
    return get_args(hint) if is_union else (hint,)


def _is(value: object, hint: Any) -> bool:
    for member in _members(hint):
        if _choices(member):
            if isinstance(value, str) and value in _choices(member):
                return True
        elif type(value) is member:
            return True
    return False


def _as_float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _takes_float(value: object, hint: Any) -> bool:
    return type(value) is int and float in _members(hint)


def _wanted(hint: Any) -> str:
    names = []
    for member in _members(hint):
        names += [repr(choice) for choice in _choices(member)] or [member.__name__]
    return " or ".join(names)
