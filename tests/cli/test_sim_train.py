"""Test `fedgc sim --train`: what it shows, and what it refuses."""

import json
import os

import pytest
from typer.testing import CliRunner

from fedgc.cli import commands
from fedgc.errors import FedgcError

LITTLE = ("--clients", "4", "--processes", "1", "--set", "local-steps=2", "--set", "gate.lockstep=on")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*os.sys.path])


def sim(*words: str):
    return CliRunner().invoke(commands.app, ["sim", *words], env={"COLUMNS": "200"})


def test_training_is_shown_as_table_and_json_and_page(tmp_path):
    words = ("--train", "digits", "--rounds", "3", "--partition", "shards:2", *LITTLE)
    table = sim(*words, "--html", "out.html").stdout
    found = json.loads(sim(*words, "--json").stdout)["training"]
    assert "digits on 4 simulated clients, data shards:2" in table
    assert f"model {found['model']}" in table, "the same seed gives the same model"
    assert [each["round"] for each in found["rounds"]] == [1, 2, 3]
    assert all(4 <= each["counted"] <= each["steps"] <= 8 for each in found["rounds"])
    assert found["metrics"] == found["rounds"][-1]["metrics"]
    assert found["metrics"].keys() == {"loss", "accuracy"}
    assert found["up_mb"] == pytest.approx(3 * 4 * 4 * 9994 / 1e6)
    page = (tmp_path / "out.html").read_text()
    assert page.count("<svg") == 5, "two figures over time and bytes, and the loss"
    assert "src=" not in page


def test_own_task_is_trained_from_working_folder(tmp_path):
    (tmp_path / "simulated_task.py").write_text(
        "import numpy as np, torch, fedgc\n\n\n"
        "def task(config):\n"
        "    data = (np.ones((40, 2), np.float32), np.ones((40, 1), np.float32))\n"
        "    loss = lambda model, batch: torch.nn.functional.mse_loss(model(batch[0]), batch[1])\n"
        "    return fedgc.over(data, config, model=lambda: torch.nn.Linear(2, 1), loss=loss)\n"
    )
    coded = ("--set", "work=coded", "--set", "data.chunks=8")
    for more in ((), coded):
        said = sim("--train", "simulated_task:task", "--rounds", "2", "--json", *LITTLE[:-2], *more)
        assert [each["outcome"] for each in json.loads(said.stdout)["training"]["rounds"]] == ["synced"] * 2


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--train", "digit"), "did you mean digits?"),
        (("--train", "digits", "--clients", "2000"), "saw 2000 chunks of 1433 samples"),
        (("--train", "digits", "--set", "data.chunks=9"), "saw 9 chunks, needed one for each of 200 clients"),
        (("--train", "digits", "--partition", "dirichlet:0.001"), "of 200 clients or chunks without samples"),
        (("--train", "digits", "--partition", "owner"), "task digits has labels and no other column"),
        (("--train", "digits", "--partition", "even"), "needed iid, owner, dirichlet:ALPHA"),
        (("--train", "digits", "--policy", "uncoded"), "--train: saw --policy beside it"),
        (("--train", "digits", "--png", "x.png"), "--train: saw --png beside it"),
        (("--train", "digits", "--set", "links.download-codec=bf16"), "links.download-codec"),
        (("--partition", "iid"), "--ray, --set: saw one, needed --train"),
    ],
)
def test_training_that_cannot_begin_is_refused_in_one_line(words, sentence):
    error = sim(*words).exception
    assert isinstance(error, FedgcError)
    assert sentence in str(error)
    assert "\n" not in str(error)


def test_trace_with_fewer_clients_is_refused(tmp_path):
    (tmp_path / "trace.csv").write_text("worker,round,chunk,seconds\na,0,0,1\nb,0,0,2\n")
    with_trace = ("--train", "digits", "--trace", "trace.csv", "--rounds", "1")
    error = sim(*with_trace, "--clients", "3").exception
    assert str(error) == "clients: saw 3, the trace has 2"
    found = json.loads(sim(*with_trace, *LITTLE[2:], "--json").stdout)["training"]
    assert (found["clients"], found["rounds"][0]["clients"]) == (2, 2)
