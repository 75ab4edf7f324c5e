"""Test that the settings which the documentation calls exactly FedAvg give FedAvg."""

import re
import tomllib

import numpy as np
import pytest

from fedgc.config import RunConfig
from fedgc.config.names import flat
from fedgc.sim.clock import working
from fedgc.sim.training import Job, train
from tests.docs.test_pages import PAGES
from tests.sim.test_local_training import BATCH, by_hand
from tests.six_chunks import TASK

BLOCK = re.search(r"\*\*Exactly FedAvg\.\*\*.*?```toml\n(.*?)```", PAGES["docs/concepts.md"], re.DOTALL)
ROUNDS, STEPS = 3, 4
SLOWEST = 100.0  # seconds of a round's steps: longer than a round counts on a client without progress


def listed() -> dict[str, object]:
    assert BLOCK is not None
    return dict(flat(tomllib.loads(BLOCK.group(1))["tool"]["flwr"]["app"]["config"]))


def config(settings: dict[str, object]) -> RunConfig:
    own = {"rounds": ROUNDS, "local-steps": STEPS, "batch-size": BATCH, "learning-rate": 0.3}
    return RunConfig.read({**own, "min-clients": 3, "client.device": "cpu", **settings})


def trained(settings: dict[str, object]) -> np.ndarray:
    scenario = (working([[1.0], [1.0], [SLOWEST]]),) * ROUNDS
    return train(Job(TASK, config(settings), scenario)).model


def fedavg() -> np.ndarray:
    return by_hand(config(listed()), [STEPS] * ROUNDS)


def test_listed_settings_are_exactly_fedavg():
    assert trained(listed()) == pytest.approx(fedavg(), abs=1e-6)


@pytest.mark.parametrize(
    "without", ["timing.deadline-s", "timing.quorum", "gate.lockstep", "optimizer.shared-momentum"]
)
def test_run_without_listed_setting_is_not_fedavg(without: str):
    settings = listed()
    del settings[without]  # three clients: without the setting, the quorum is all of them
    model = trained({"timing.quorum": 0.6, **settings} if without == "timing.quorum" else settings)
    assert model != pytest.approx(fedavg(), abs=1e-6)
