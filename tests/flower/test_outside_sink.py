"""Test a sink from another package: one class and one entry point."""

import pytest

from fedgc.config import RunConfig
from fedgc.errors import BadSetting
from fedgc.flower.sink import Sink
from fedgc.flower.sinks import Sinks, opened
from fedgc.history import BestModel
from fedgc.links.log import LOG
from tests.flower.test_driver import UNMEASURED, run
from tests.outside_package import install

SINK = """
from fedgc.flower.sink import Sink

class Rounds(Sink):
    def __init__(self, run, config):
        self.run, self.rounds, self.of, self.closed = run, [], config.rounds, False
        self.scores = []

    def append(self, row):
        self.rounds.append((row.round, row.outcome))

    def scored(self, round_, client, samples, metrics):
        self.scores.append((round_, samples, dict(metrics)))

    def improved(self, best):
        self.best = best

    def ended_early(self, reason):
        self.early = reason

    def close(self):
        self.closed = True

class Full(Sink):
    def __init__(self, run, config):
        self.calls = 0

    def append(self, row):
        self.calls += 1
        raise OSError("no space left")

class Broken(Sink):
    def __init__(self, run, config):
        raise RuntimeError("no account")

thing = 7
"""
NAMES = {f"fedgc.sinks:{name.lower()}": name for name in ("Rounds", "Full", "Broken", "thing")}


@pytest.fixture(autouse=True)
def outside(tmp_path, monkeypatch):
    install(tmp_path / "site", monkeypatch, "ward_sinks", SINK, NAMES)


def test_run_reports_to_outside_sinks(tmp_path, caplog):
    full, rounds = outside = opened(RunConfig(rounds=2, sinks="full, rounds", work="coded"), "ward")
    LOG.addHandler(caplog.handler)
    try:
        _, own, _ = run(tmp_path, wrapped=lambda sink: Sinks(sink, outside), **UNMEASURED)
    finally:
        LOG.removeHandler(caplog.handler)
    both = Sinks(own, outside)
    both.scored(1, "a", 10, {"accuracy": 0.5})
    both.improved(BestModel("accuracy", 1, 1, 0.5))
    both.ended_early("no better model")
    both.close()
    assert (rounds.scores, rounds.best.value, rounds.early) == (
        [(1, 10, {"accuracy": 0.5})], 0.5, "no better model",
    )  # fmt: skip
    assert rounds.run == "ward"
    assert rounds.rounds == [(row.round, row.outcome) for row in own.rows]
    assert len(rounds.rounds) == rounds.of == 2
    assert rounds.closed
    assert full.calls == 1
    assert "sink Full raised OSError: no space left; it is left out from now on" in caplog.text


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("broken", "setting history.sinks: making 'broken' raised RuntimeError: no account"),
        ("thing", "setting history.sinks: 'thing' is 7, needed a subclass of fedgc.flower.sink.Sink"),
        ("nowhere", "setting history.sinks: saw 'nowhere', needed one of broken, full, rounds, thing"),
    ],
)
def test_invalid_sink_is_refused(name, says):
    with pytest.raises(BadSetting, match=says):
        opened(RunConfig(sinks=name, work="coded"), "ward")


def test_default_sink_does_nothing():
    assert Sink().evaluated(1, {"loss": 0.0}) is None
    assert opened(RunConfig(work="coded"), "ward") == ()
