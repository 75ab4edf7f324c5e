"""Client models: rounds of `Conditions` drawn at random.

One unit takes about one second. Each model is a function (clients, rounds, generator) -> conditions:

    shifted-exponential   1 + Exp(1) for each client and round, as in most papers on coded computing
    bimodal               a fifth is 3 to 10 times slower, drawn anew each round
    bimodal-persistent    the same fifth is slower in every round, so that history helps
    mild                  one in fifty is 1.5 to 2.5 times slower
    fail-stop             one in fifty, at least one, dies in the middle of the round and does not return
    drift                 half of the clients slow down by a factor of 3 over the rounds
    homogeneous           no stragglers, so that no code can help
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

import numpy as np

from fedgc.sim.clock.conditions import Conditions, Float, working

Scenario = tuple[Conditions, ...]
Model = Callable[[int, int, np.random.Generator], Scenario]


def shifted_exponential(clients: int, rounds: int, rng: np.random.Generator) -> Scenario:
    """Draw 1 + Exp(1) seconds for each client and round."""
    return tuple(working(1.0 + rng.exponential(size=(clients, 1))) for _ in range(rounds))


def bimodal(clients: int, rounds: int, rng: np.random.Generator) -> Scenario:
    """Slow down a fifth of the clients 3 to 10 times, others in every round."""
    return tuple(working(_slowed(clients, 0.2, (3.0, 10.0), rng)) for _ in range(rounds))


def bimodal_persistent(clients: int, rounds: int, rng: np.random.Generator) -> Scenario:
    """Slow down a fifth of the clients 3 to 10 times, the same ones in every round."""
    return (working(_slowed(clients, 0.2, (3.0, 10.0), rng)),) * rounds


def mild(clients: int, rounds: int, rng: np.random.Generator) -> Scenario:
    """Slow down one client in fifty 1.5 to 2.5 times."""
    return tuple(working(_slowed(clients, 0.02, (1.5, 2.5), rng)) for _ in range(rounds))


def fail_stop(clients: int, rounds: int, rng: np.random.Generator) -> Scenario:
    """Let one client in fifty, at least one, die during the round; paces differ by a tenth."""
    scenario = []
    for _ in range(rounds):
        there = working(rng.normal(1.0, 0.1, size=(clients, 1)).clip(0.7, 1.3))
        dies_s_w = there.dies_s_w.copy()
        gone = rng.choice(clients, max(1, clients // 50), replace=False)
        dies_s_w[gone] = rng.uniform(0.0, 1.0, len(gone))
        scenario.append(replace(there, dies_s_w=dies_s_w))
    return tuple(scenario)


def drift(clients: int, rounds: int, rng: np.random.Generator) -> Scenario:
    """Slow half of the clients down gradually, up to 3 times."""
    slows_w1 = (np.arange(clients) % 2)[:, None]
    return tuple(
        working(rng.normal(1.0, 0.05, size=(clients, 1)).clip(0.8, 1.2) * (1.0 + slows_w1 * 2.0 * part))
        for part in np.linspace(0.0, 1.0, rounds)
    )


def homogeneous(clients: int, rounds: int, rng: np.random.Generator) -> Scenario:  # noqa: ARG001 - nothing is random here
    """Give every client the same constant pace."""
    return (working(np.ones((clients, 1))),) * rounds


MODELS: Final[Mapping[str, Model]] = MappingProxyType(
    {
        "shifted-exponential": shifted_exponential,
        "bimodal": bimodal,
        "bimodal-persistent": bimodal_persistent,
        "mild": mild,
        "fail-stop": fail_stop,
        "drift": drift,
        "homogeneous": homogeneous,
    }
)


def _slowed(clients: int, share: float, factors: tuple[float, float], rng: np.random.Generator) -> Float:
    pace_wk = np.ones((clients, 1))
    slow = rng.choice(clients, round(share * clients), replace=False)
    pace_wk[slow, 0] = rng.uniform(*factors, len(slow))
    return pace_wk
