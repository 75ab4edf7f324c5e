"""Test validation on real processes: clients with a training script of their own score every model."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors import safe_open
from safetensors.torch import load_file

from fedgc.deploy.local_federation import NAME, Node
from fedgc.history import Score
from tests.contract.conftest import GATHER_S, WAIT_S, Federation

pytestmark = [pytest.mark.contract, pytest.mark.timeout(900)]

SAMPLES = {"site-0": 8, "site-1": 24, "site-2": 64}
SCRIPT = '''
import argparse

import torch

import fedgc

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=7)
parser.add_argument("--broken", default="", help="the site whose validation fails")
options = parser.parse_args()
torch.manual_seed(options.seed)
model = torch.nn.Linear(1, 1)
with torch.no_grad():
    model.weight.zero_()


def validate(model):
    """The score rises in the first round, and then no more; each site has a score of its own."""
    if fed.client["name"] == options.broken:
        raise ValueError("no test data")
    return {"score": min(model.weight.item(), 0.5) * samples, "own": samples / 100}


fed = fedgc.join(model, validate=validate)
samples = {"site-0": 8, "site-1": 24, "site-2": 64}[fed.client["name"]]
data = torch.utils.data.TensorDataset(torch.ones(samples, 1))
for _ in fed.steps(torch.utils.data.DataLoader(data, batch_size=8)):
    with torch.no_grad():
        model.weight += 0.5
'''
SETTINGS = {
    "work": "local",
    "gate": "every",
    "lockstep": "on",
    "local_steps": 4,
    "min_clients": 3,
    "start_timeout_s": GATHER_S,
}


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    folder: Path = tmp_path_factory.mktemp("sites")
    environment = {"FEDGC_DB": str(folder / "fedgc.db"), "XDG_STATE_HOME": str(folder / "state")}
    nodes = [Node(name, {"pace-s": 0.1, "name": name}) for name in SAMPLES]
    with Federation(nodes, folder=folder / "processes", environment=environment) as started:
        yield started


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return str(path)


def fedgc(sites: Federation, *words: str) -> str:
    """Run a command beside this federation; return its output."""
    environment = {
        **os.environ,
        "FEDGC_DB": str(sites.database),
        "XDG_STATE_HOME": str(sites.state),
        "FLWR_HOME": str(sites.home),
        "COLUMNS": "200",
    }
    done = subprocess.run(
        [sys.executable, "-m", "fedgc.cli", *words],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def by_round(scores: tuple[Score, ...]) -> dict[int, list[Score]]:
    return {each.round: [one for one in scores if one.round == each.round] for each in scores}


def mean(scores: list[Score], name: str) -> float:
    assert [each.samples for each in sorted(scores, key=lambda each: each.samples)] == [8, 24, 64]
    weights = {8: 8, 24: 24, 64: 48}  # at most half for those with more than twice the median, at least that
    return sum(weights[each.samples] * each.metrics[name] for each in scores) / sum(weights.values())


@pytest.mark.slow  # quick tests follow the best model, and score it, without processes
def test_best_model_is_kept_exported_and_scored_again(sites: Federation, script: str, tmp_path: Path) -> None:
    run, folder = "best", tmp_path / "runs"
    chosen = {"best": "score", "best_patience": 2, "rounds": 20, "keep_checkpoints": 1}
    settings = {
        **SETTINGS,
        **chosen,
        "script": f"{script} --seed 3",
        "run": run,
        "checkpoint_dir": str(folder),
    }
    number = sites.submit(settings)
    assert sites.wait(number, WAIT_S) == "finished:completed", sites.run_log(number)
    with sites.store() as store:
        ended, best, scores = store.run(run), store.best(run), by_round(store.scores(run))
        means = {each.row.round: each.row.metrics for each in store.rounds(run)}
        names, rounds = {each.client: each.name for each in store.clients()}, len(store.rounds(run))
    assert best is not None
    assert (best.figure, best.version, best.round) == ("score", 1, 1)
    assert ended.state == "completed"
    assert ended.reason == (
        f"score has not improved for 2 evaluations; best is version 1, round 1, {best.value:.4g}"
    )
    assert sorted(scores) == [0, 1, 2, 3]
    assert {names[each.client]: each.samples for each in scores[1]} == SAMPLES
    means[0] = ended.initial_metrics
    for round_, own in scores.items():
        assert means[round_]["score"] == pytest.approx(mean(own, "score"))
        assert means[round_]["own"] == pytest.approx(mean(own, "own"))
    assert best.value == pytest.approx(mean(scores[1], "score"))

    exported = tmp_path / "best.safetensors"
    fedgc(sites, "model", "export", str(exported), "--run", run, "--best")
    weight = load_file(exported)["weight"].item()
    with safe_open(exported, "pt") as file:
        assert file.metadata()["version"] == "1"
    assert {each.metrics["score"] for each in scores[1]} == {min(weight, 0.5) * n for n in SAMPLES.values()}
    listed = json.loads(fedgc(sites, "model", "list", run, "--json"))["versions"]
    assert [(each["version"], each["best"]) for each in listed] == [(3, False), (1, True)]

    before = sorted(path.name for path in folder.rglob("*"))
    again = json.loads(fedgc(sites, "evaluate", run, "--best", "--superlink", NAME, "--json"))
    assert (again["version"], again["round"], again["problems"]) == (1, 1, {})
    assert {each["name"]: each["metrics"]["score"] for each in again["clients"]} == {
        names[each.client]: pytest.approx(each.metrics["score"]) for each in scores[1]
    }
    assert again["mean"]["score"] == pytest.approx(best.value)
    assert sorted(path.name for path in folder.rglob("*")) == before
    with sites.store() as store:
        assert store.run(run).state == "completed"
        assert len(store.rounds(run)) == rounds


@pytest.mark.slow  # quick tests warn of bad validations without processes
def test_failed_validation_of_one_site_is_one_warning(sites: Federation, script: str, tmp_path: Path) -> None:
    settings = {**SETTINGS, "script": f"{script} --broken site-1", "run": "broken", "rounds": 2}
    number = sites.submit({**settings, "checkpoint_dir": str(tmp_path / "runs")})
    assert sites.wait(number, WAIT_S) == "finished:completed", sites.run_log(number)
    warned = re.findall(r"WARNING.*validate\(\).*", sites.run_log(number))
    assert len(warned) == 1
    assert "site-1: validate() raised ValueError: no test data" in warned[0]
    with sites.store() as store:
        scores = by_round(store.scores("broken"))
    assert {round_: len(own) for round_, own in scores.items()} == {0: 2, 1: 2, 2: 2}


@pytest.mark.slow  # quick tests end such a run without processes
def test_run_without_asked_figure_ends_in_one_line(sites: Federation, script: str, tmp_path: Path) -> None:
    settings = {**SETTINGS, "script": script, "run": "unknown", "rounds": 20, "best": "f1"}
    number = sites.submit({**settings, "checkpoint_dir": str(tmp_path / "runs")})
    assert sites.wait(number, WAIT_S) != "finished:completed"
    with sites.store() as store:
        run = store.run("unknown")
    assert run.state == "failed"
    assert run.reason.endswith("setting validate.best: needed the figure f1, saw figures own, score")
