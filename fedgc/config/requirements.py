"""What local work needs for its model: memory and disk of the server and of a client, and bytes of a round.

The factors are counts of models, measured by `python -m benchmarks large` and rounded up. Memory is that
which the system cannot take back. A client's memory is what fedgc needs beside the training itself: its
parameters, gradients and optimizer.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from fedgc.aggregators import BOUNDED, PLAIN
from fedgc.aggregators.bounded_mean import most_held
from fedgc.codecs import EXACT, make_codec
from fedgc.config.receivers import receivers_of
from fedgc.config.run_config import RunConfig
from fedgc.errors import Unusable
from fedgc.fragments import largest_fragment

NUMBER_BYTES: Final = 4
SERVER_MODELS: Final = 3.3  # the model, the one before while it is still sent or saved, the sum; buffers
CLIENT_MODELS: Final = 0.5  # buffers of pieces
LEAD_MODELS: Final = 1.0  # of shared momentum
CODEC_MODELS: Final = 3.0  # error feedback: two residuals, and the encoded update
SCRIPT_MODELS: Final = 2.0  # shared with the script
STATE_MODELS: Final[Mapping[str, int]] = MappingProxyType(
    {"sgd": 0, "nesterov": 1, "schedule-free": 1, "adagrad": 1, "rmsprop": 1, "adam": 2, "adamw": 2}
)
EVALUATION_MODELS: Final = 1.0  # the module in which the server evaluates
STATE_COPIES: Final = (
    3  # the state of the server's optimizer (and a residual), its checkpoint as it is written
)
CLIENT_FILES: Final = 3  # common models: the one that arrives, the present one, the one before
CACHE_MODELS: Final = 3  # the client cache: a trajectory, with the state of a local optimizer of its own


@dataclass(frozen=True, slots=True)
class Requirements:
    """Bytes that a run needs; `up` and `down` are those of one client in a round after its first."""

    model: int
    server_memory: int
    server_scratch: int
    checkpoints: int
    client_memory: int
    client_disk: int
    up: int
    down: int

    @property
    def server_disk(self) -> int:
        """The disk of the server."""
        return self.server_scratch + self.checkpoints


def requirements(config: RunConfig, numbers: int, clients: int) -> Requirements:
    """Return what local work on a model of so many numbers needs, with so many clients.

    Raises:
        Unusable: The work is of another kind, which was not measured.

    Example:
        >>> requirements(RunConfig(evaluate_every=0), 10**9, 8).server_memory
        13200000000
    """
    if config.work != "local" or config.secrecy != "open":
        raise Unusable(
            f"requirements: saw {config.secrecy} {config.work} work, needed open local work: others are "
            "not measured"
        )
    model, clients = NUMBER_BYTES * numbers, min(clients, config.clients_per_round or clients)
    momentum = int(config.server_optimizer == "sgd" and config.server_momentum > 0)
    shared = float(_others(config) > 0)  # the model that all receivers send
    state = STATE_MODELS[config.server_optimizer] + momentum + int(config.download_codec != EXACT)
    kept = 0 if config.keep_checkpoints == "all" else int(config.keep_checkpoints)
    return Requirements(
        model=model,
        server_memory=int(
            model * (SERVER_MODELS + shared + _evaluation_models(config) + STATE_COPIES * state)
        ),
        server_scratch=model
        * (_scratch_models(config, model, clients) + _earlier_models(config) * (1 + state)),
        checkpoints=model * (1 + state) * (kept + 2) if config.keep_checkpoints else 0,
        client_memory=int(model * _client_models(config)),
        client_disk=model * (CLIENT_FILES + CACHE_MODELS),
        up=make_codec(config.codec).expected(largest_fragment(config.fragments, numbers)),
        down=make_codec(config.download_codec).expected(largest_fragment(config.fragments, numbers)),
    )


def gigabytes(size_bytes: float) -> str:
    """Return a size as text.

    >>> gigabytes(4_000_000_000), gigabytes(20_000_000)
    ('4 GB', '0.02 GB')
    """
    return f"{size_bytes / 1e9:.3g} GB"


def _scratch_models(config: RunConfig, model: int, clients: int) -> int:
    """Return how many vectors the server has in files: uploads, held updates, and the last mean."""
    rule = config.chosen_rule
    held = 0 if rule == PLAIN else min(clients, most_held(model) + 1) if rule == BOUNDED else clients
    kinds = 1 if config.late_updates == "wait" else 2  # late updates have as many slots
    slots = kinds * (config.slots_for(model) or clients)
    return min(clients, slots + _others(config)) + held + (rule == BOUNDED)


def _others(config: RunConfig) -> int:
    """Return how many processes receive beside the first; each has an upload slot of its own."""
    return receivers_of(config, cores=sys.maxsize) - 1


def _earlier_models(config: RunConfig) -> int:
    """Return how many earlier models the server keeps to go back to: the best, and one under evaluation."""
    goes_back = config.rollback == "auto" and config.evaluate_every and not config.is_private
    return 2 if goes_back else 0


def _evaluation_models(config: RunConfig) -> float:
    if config.script or not config.evaluate_every:
        return 0.0
    return EVALUATION_MODELS + float(config.server_optimizer == "schedule-free")  # whose average is made


def _client_models(config: RunConfig) -> float:
    lead = LEAD_MODELS if config.alpha < 1 else 0.0
    encoded = CODEC_MODELS if config.codec != EXACT else 0.0
    return CLIENT_MODELS + lead + encoded + (SCRIPT_MODELS if config.script else 0.0)
