"""Test that a run goes on well from the best model once it has gone back to it."""

from pathlib import Path

import pytest

from tests.flower.test_driver import run
from tests.outside_package import install

RULE = '''
import numpy as np
from fedgc.aggregators.bounded_mean import BoundedMean


class Spoiled(BoundedMean):
    """The bounded mean, and noise from the ninth round on."""

    rounds = 0

    def result(self):
        mean = super().result()
        self.rounds += 1
        noise = 3.0 * np.random.default_rng(0).normal(size=mean.size)
        return mean + noise.astype(np.float32) if self.rounds >= 9 else mean
'''


@pytest.mark.parametrize(("momentum", "codec"), [("auto", "float32"), ("off", "int8")])
def test_run_learns_on_after_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, momentum: str, codec: str
) -> None:
    install(tmp_path / "site", monkeypatch, "spoiled", RULE, {"fedgc.aggregators:spoiled": "Spoiled"})
    _, sink, _ = run(
        tmp_path, work="local", replicas="auto", aggregator="spoiled", codec=codec, shared_momentum=momentum,
        rounds=15, local_steps=4, gate="every", deadline_s=60.0,
    )  # fmt: skip
    assert [kind for kind, _, _ in sink.audit if kind != "outlier"] == ["rollback"]
    assert sink.metrics[15]["accuracy"] > 0.6
