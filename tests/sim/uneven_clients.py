"""Six simulated clients of uneven speed, one of which dies and comes back, and the settings of their runs."""

from dataclasses import replace

import numpy as np
from torch import nn

from fedgc.config import RunConfig
from fedgc.sim.clock import working

CLIENTS = 6
ROUNDS = 5


def loss(module, batch):
    return nn.functional.cross_entropy(module(batch[0]), batch[1])


def settings(**changes) -> RunConfig:
    values = {
        "work": "local", "rounds": ROUNDS, "local_steps": 4, "batch_size": 8, "min_clients": CLIENTS,
        "chunks": CLIENTS, "device": "cpu", "threads": 1, "gate": "every", "gate_period": 2,
    }  # fmt: skip
    return RunConfig(**{**values, **changes})


def data():
    rng = np.random.default_rng(0)
    return rng.normal(size=(180, 8)).astype(np.float32), rng.integers(0, 3, 180)


def uneven():
    """Two clients are slow, one of which dies in the third round and comes back."""
    calm = working([[1.0], [1.1], [1.2], [1.3], [7.7], [2.9]], control_s=0.01, up_s=0.1)
    dies_s_w, returns_s_w = np.full(CLIENTS, np.inf), np.full(CLIENTS, np.inf)
    dies_s_w[4], returns_s_w[4] = 0.6, 0.9
    gone = replace(calm, dies_s_w=dies_s_w, returns_s_w=returns_s_w)
    return tuple(gone if at == 2 else calm for at in range(ROUNDS))
