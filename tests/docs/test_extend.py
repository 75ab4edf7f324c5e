"""Test docs/how-to/extend.md: its extensions work in a run, and its table of values is complete."""

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgc import aggregators, errors, gates
from fedgc.config import RunConfig
from fedgc.errors import BadSetting
from fedgc.history import RoundRow
from fedgc.sim.clock import MODELS
from fedgc.sim.training import Job, Trained, train
from tests.outside_package import install
from tests.six_chunks import TASK

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "extend.md").read_text()
RULE, GATE, CODE, SINK = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
ROUNDS = 6


def trained(**changes: object) -> Trained:
    values: dict[str, Any] = {
        "rounds": ROUNDS, "work": "local", "gate": "every",
        "local_steps": 8, "batch_size": 4, "min_clients": 3,
        "device": "cpu", "learning_rate": 0.5,
    }  # fmt: skip
    scenario = MODELS["homogeneous"](3, ROUNDS, np.random.default_rng(0))
    return train(Job(TASK, RunConfig(**{**values, **changes}), scenario))


def test_page_rule_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    install(tmp_path, monkeypatch, "ward_rules", RULE, {"fedgc.aggregators:alike": "Alike"})
    metrics = trained(aggregator="alike").points[-1].metrics
    assert metrics["accuracy"] > 0.8
    assert "left out" not in caplog.text
    trained(aggregator="alike", aggregator_options="least=4")
    assert "the mean update is left out: aggregator alike: saw 3 updates, needed at least 4" in caplog.text
    with pytest.raises(BadSetting, match="saw least=0, needed at least 1"):
        trained(aggregator="alike", aggregator_options="least=0")


def test_page_gate_skips_by_distance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    install(tmp_path, monkeypatch, "ward_gates", GATE, {"fedgc.gates:far": "Far"})
    near, late = (
        [point.row.outcome for point in trained(gate="far", gate_options=options, max_gap=3).points]
        for options in ("far=0.0001", "far=1000")
    )
    assert near == ["synced"] * ROUNDS
    assert late == ["skipped", "skipped", "synced"] * 2


def test_sum_by_page_code_is_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    install(tmp_path, monkeypatch, "ward_codes", CODE, {"fedgc.codes:uniform": "Uniform"})
    shape: dict[str, Any] = {"work": "coded", "replicas": 2, "blocks": 2}
    own, plain = (trained(code=name, **shape) for name in ("uniform", "frame"))
    assert {point.row.outcome for point in own.points} == {"synced"}
    np.testing.assert_allclose(own.model, plain.model, atol=1e-4)


def test_page_sink_writes_line_for_each_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(SINK, "extend.md", "exec"), names)  # noqa: S102  our own page
    zero: dict[str, Any] = {each.name: 0 for each in fields(RoundRow)}
    sink = names["Lines"]("ward", RunConfig())
    sink.append(RoundRow(**{**zero, "round": 3, "outcome": "synced", "working_s": 1.25}))
    sink.close()
    assert (tmp_path / "ward.txt").read_text() == "3 synced 1.2 s\n"


@pytest.mark.parametrize(
    "kind",
    [aggregators.Update, gates.GateSettings, gates.Reports, gates.Report, gates.Decision],
)
def test_page_names_fields_of_each_value(kind: type):
    (where, meaning) = re.findall(rf"^\| `{kind.__name__}`: .*? \| `(.*?)` \| (.*) \|$", PAGE, re.MULTILINE)[
        0
    ]
    assert where == kind.__module__.rpartition(".")[0]
    assert [each.name for each in fields(kind) if f"`{each.name}`" not in meaning] == []


def test_page_names_errors_and_their_module():
    for kind in (errors.BadSetting, errors.Refused):
        assert re.search(rf"^\| `{kind.__name__}`: .* \| `{kind.__module__}` \|", PAGE, re.MULTILINE)
