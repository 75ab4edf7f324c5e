"""The time limits of a round, from the speeds of its clients.

Time limits follow from measurements. A deadline makes sure that a round ends; it does not hurry clients:
without history it is generous, with history it is a multiple of the time that the slowest client needs for
all its chunks. It counts from when clients have the model. The model transfer has a limit of its own
(`model_limit_s`): work is alike from round to round, links may not be.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from fedgc.codes import Placement
from fedgc.config import AUTO, RunConfig
from fedgc.history import Speeds

FIRST_DEADLINE_S: Final = 600.0  # nothing is known of these clients yet
LEAST_DEADLINE_S: Final = 10.0
DEAF_DEADLINE_S: Final = 60.0  # each Flower message takes seconds, independent of its size
PATIENCE: Final = 4.0  # how many times the predicted time a phase may take
LEAST_UPLOAD_S: Final = 60.0
LEAST_LATE_S: Final = 2.0  # of an update that nobody can replace: a process that pauses is no slow link
UNKNOWN_LINE: Final = 125_000.0  # bytes a second: one megabit, the slowest link still worth waiting for


def upload_s(uplinks: Iterable[float | None], update_bytes: int) -> tuple[float, ...]:
    """Return the seconds for a whole update, 0 if the uplink was never measured: no reason to shorten it.

    >>> upload_s([2.0, None], 8)
    (4.0, 0.0)
    """
    return tuple(update_bytes / uplink if uplink else 0.0 for uplink in uplinks)


def deadline_s(
    config: RunConfig, placement: Placement, steps: int, step_s: Sequence[float], *, deaf: bool
) -> float:
    """Return the deadline for the work of a round, with the seconds of a step of each client, if known."""
    if config.deadline_s != AUTO:
        return float(config.deadline_s)
    if not step_s:
        return FIRST_DEADLINE_S
    loads = placement.loads if config.work == "coded" else [1] * len(step_s)
    slowest = max(float(load) * steps * seconds for load, seconds in zip(loads, step_s, strict=True))
    return max(DEAF_DEADLINE_S if deaf else LEAST_DEADLINE_S, PATIENCE * slowest)


def upload_deadline_s(config: RunConfig, clients: Sequence[str], speeds: Speeds, size_bytes: int) -> float:
    """Return the limit for the uploads of all clients, in turns; short ones share the server's line too."""
    if config.upload_deadline_s != AUTO:
        return float(config.upload_deadline_s)
    uplinks = [speeds.known[client].up_bytes_s if client in speeds.known else None for client in clients]
    slowest = min(uplink or UNKNOWN_LINE for uplink in uplinks)
    waves = -(-len(clients) // config.upload_slots)
    return LEAST_UPLOAD_S + PATIENCE * waves * size_bytes / slowest


def late_s(config: RunConfig) -> float:
    """Return the least seconds after which a codeword or an update may be late."""
    if config.late_s != AUTO:
        return float(config.late_s)
    return config.grace_s if config.work == "coded" else LEAST_LATE_S


def model_limit_s(downlinks: Iterable[float | None], size: int) -> float:
    """Return the limit for sending a model of `size` numbers to all clients with these downlinks.

    >>> model_limit_s([None], 1_000_000), model_limit_s([None, 50_000.0], 1_000_000)
    (128.0, 320.0)
    """
    slowest = min((downlink or UNKNOWN_LINE for downlink in downlinks), default=UNKNOWN_LINE)
    return PATIENCE * 4 * size / slowest
