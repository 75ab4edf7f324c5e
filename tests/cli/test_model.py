"""Test `fedgc model`: list versions, export one, restore an earlier one."""

import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from typer.testing import CliRunner

from fedgc.cli.commands import app
from fedgc.config import RunConfig
from fedgc.errors import EdgeFailed, Unusable
from fedgc.flower.preconditions import reached_in
from fedgc.flower.stock_layout import Layout
from fedgc.messages import Layout as Tensors
from fedgc.messages import TensorSpec
from fedgc.store import checkpoint
from fedgc.store.checkpoint import Checkpoint
from fedgc.store.database import Store
from fedgc.store.records import Appended, Begun, Ended, Evaluated, Present
from fedgc.training import CommonModel, ServerOptimizer
from fedgc.training.tasks import named
from tests.cli.test_follow import ROW, tell

CONFIG = RunConfig(task="breast-cancer", chunks=3, work="coded")


def fedgc(*words: str) -> str:
    return CliRunner().invoke(app, ["model", *words], catch_exceptions=False, env={"COLUMNS": "200"}).stdout


def told(folder: Path, config: RunConfig, models, layout: str = "") -> None:
    """A run "r" with a version, a round and an accuracy for each of these vectors."""
    with Store.open() as store:
        store.write(Begun(1000.0, "r", config.table()))
        for version, model in enumerate(models, start=1):
            made = Checkpoint(version, version, model, b"", "{}", layout)
            checkpoint.save(folder / "runs" / "r", made, keep=9)
            tell(store, version)
            store.write(Evaluated(1000.0, "r", version, {"accuracy": version / 10}))
        store.write(Ended(1010.0, "r", "completed"))


@pytest.fixture
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    assert ROW.round == 1
    monkeypatch.setenv("FEDGC_DB", str(tmp_path / "fedgc.db"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def models(apart: Path):
    common = CommonModel(named(CONFIG.task, CONFIG), CONFIG)
    made = [common.first() + np.float32(version) for version in range(3)]
    told(apart / "fedgc", CONFIG, made)
    return made


def test_versions_are_listed_with_round_digest_size_and_figures(models, apart: Path):
    rows = json.loads(fedgc("list", "--json"))["versions"]
    files = sorted((apart / "fedgc" / "runs" / "r").glob("model-*"))
    assert [(row["version"], row["round"]) for row in rows] == [(1, 1), (2, 2), (3, 3)]
    assert [row["metrics"] for row in rows] == [{"accuracy": n / 10} for n in (1, 2, 3)]
    assert [row["digest"] for row in rows] == [file.read_bytes()[-32:].hex() for file in files]
    assert [row["size_bytes"] for row in rows] == [file.stat().st_size for file in files]
    assert "accuracy 0.2" in fedgc("list", "r")


def held(state, vector) -> bool:
    """Whether a module with this state is the one with this vector."""
    module = named(CONFIG.task, CONFIG).model()
    module.load_state_dict(state)
    return np.array_equal(
        torch.cat([each.detach().flatten() for each in module.parameters()]).numpy(), vector
    )


@pytest.mark.parametrize("name", ["model.safetensors", "model.pt"])
def test_written_model_is_readable_by_its_owner_only(models, name):
    fedgc("export", name)
    assert Path(name).stat().st_mode & 0o777 == 0o600


def test_model_is_written_as_safetensors_with_metadata(models):
    assert "version 3 of r, round 3" in fedgc("export", "model.safetensors")
    assert held(load_file("model.safetensors"), models[2])
    with safe_open("model.safetensors", "pt") as file:
        about = file.metadata()
    assert (about["run"], about["round"], about["task"]) == ("r", "3", "breast-cancer")
    assert json.loads(about["metrics"]) == {"accuracy": 0.3}
    assert about["digest"] == json.loads(fedgc("list", "--json"))["versions"][2]["digest"]


def test_earlier_version_is_written_as_state_dict(models):
    fedgc("export", "model.pt", "--run", "r", "--version", "1")
    read = torch.load("model.pt", weights_only=True)
    assert held(read["state_dict"], models[0])
    assert (read["about"]["version"], read["about"]["metrics"]) == (1, {"accuracy": 0.1})


def test_model_of_stock_app_is_exported_without_its_code(apart: Path):
    state = {
        "mask": np.array([0, -np.inf], np.float32),
        "weight": np.arange(6.0).reshape(2, 3),
        "steps": np.array((1 << 40) + 1),
        "bias": np.ones(2, np.float16),
    }
    changed = {**state, "weight": state["weight"] + 0.5, "bias": state["bias"] / 3}
    layout = Layout.of(state)
    told(apart / "fedgc", RunConfig(client_app="stock"), [layout.vector(changed)], layout.text())
    fedgc("export", "stock.safetensors")
    read = {name: each.numpy() for name, each in load_file("stock.safetensors").items()}
    assert read.keys() == changed.keys()
    assert all(np.array_equal(read[name], each) for name, each in changed.items())
    assert all(read[name].dtype == each.dtype for name, each in changed.items())


def test_checkpoint_of_stock_app_without_names_is_named(apart: Path):
    told(apart / "fedgc", RunConfig(client_app="stock"), [np.zeros(3, np.float32)])
    with pytest.raises(EdgeFailed, match="needed one with the names of its arrays"):
        fedgc("export", "stock.safetensors")


def test_restored_version_can_be_continued_and_nothing_is_lost(models, apart: Path):
    assert "fedgc run --resume r" in fedgc("restore", "1")
    folder = apart / "fedgc" / "runs" / "r"
    assert checkpoint.load(folder).version == 1
    rows = json.loads(fedgc("list", "--json"))["versions"]
    assert {(row["version"], row["aside"]) for row in rows} == {(1, False), (2, True), (3, True)}
    fedgc("export", "now.safetensors")
    assert held(load_file("now.safetensors"), models[0])
    fedgc("export", "later.safetensors", "--version", "3")
    assert held(load_file("later.safetensors"), models[2])
    fedgc("restore", "3")
    assert checkpoint.load(folder).version == 3
    with Store.open() as store:
        assert [each.what for each in store.decisions("r")] == ["restore", "restore"]


def test_restored_version_counts_when_clock_was_set_back(models):
    with Store.open() as store:
        store.write(Ended(time.time() + 3600.0, "r", "completed"))
    fedgc("restore", "1")
    with Store.open() as store:
        assert reached_in(store, store.run("r")) == 1


def test_model_put_aside_has_no_figures_of_its_replacement(models):
    fedgc("restore", "1")
    with Store.open() as store:
        store.write(Appended(time.time(), "r", replace(ROW, round=2, started=time.time())))
        store.write(Evaluated(time.time(), "r", 2, {"accuracy": 0.9}))
    rows = json.loads(fedgc("list", "--json"))["versions"]
    assert [(row["version"], row["metrics"]) for row in rows] == [(1, {"accuracy": 0.1}), (2, {}), (3, {})]


def test_running_run_is_not_changed(models):
    with Store.open() as store:
        store.write(Begun(time.time(), "r", CONFIG.table()))
        store.write(Present(time.time(), "r", {}))
    with pytest.raises(Unusable, match="saw it running"):
        fedgc("restore", "1")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("export", "model.onnx"), r"saw .onnx, needed .safetensors or .pt"),
        (("export", "there.pt"), "saw a file, needed a new one"),
        (("export", "nowhere/model.pt"), "saw no folder nowhere"),
        (
            ("export", "model.pt", "--version", "7"),
            "saw versions 1, 2, 3, needed 7; history.keep",
        ),
        (("restore", "7"), "saw versions 1, 2, 3, needed 7"),
        (("list", "q"), "saw no run 'q'"),
    ],
)
def test_invalid_request_gives_one_line(models, apart: Path, words, sentence: str):
    (apart / "there.pt").write_text("")
    checkpoint.pin(apart / "fedgc" / "runs" / "r", checkpoint.load(apart / "fedgc" / "runs" / "r", 3))
    with pytest.raises(Unusable, match=sentence):
        fedgc(*words)


def test_lost_store_is_named_where_checkpoints_are_there(models, apart: Path):
    for each in apart.glob("fedgc.db*"):
        each.unlink()
    with Store.open() as store:
        assert not store.runs()
    for words in (("list", "r"), ("export", "model.pt", "--run", "r"), ("restore", "1", "--run", "r")):
        with pytest.raises(Unusable, match=r"run r: saw its checkpoints in .*, needed a backup of the store"):
            fedgc(*words)


def test_run_without_versions_is_reported(apart: Path):
    told(apart / "fedgc", CONFIG, [])
    with pytest.raises(Unusable, match="saw no version in"):
        fedgc("list")


def test_run_without_versions_reports_whether_model_exists(apart: Path):
    with Store.open() as store:
        store.write(Begun(1000.0, "r", CONFIG.table()))
    with pytest.raises(Unusable, match=r"saw no version in .*; no round of it has made a model"):
        fedgc("list")
    with Store.open() as store:
        tell(store, 1)
    with pytest.raises(Unusable, match=r"saw no version in .*; history.keep-checkpoints says why"):
        fedgc("list")


def test_best_version_is_marked_and_exported(models, apart: Path):
    folder = apart / "fedgc" / "runs" / "r"
    checkpoint.pin(folder, checkpoint.load(folder, 2))
    rows = json.loads(fedgc("list", "--json"))["versions"]
    assert [(row["version"], row["best"]) for row in rows] == [(1, False), (2, True), (3, False)]
    assert "version 2 of r, round 2" in fedgc("export", "best.safetensors", "--best")
    assert held(load_file("best.safetensors"), models[1])
    assert "version 3 of r" in fedgc("export", "newest.safetensors")


def test_pruned_best_version_is_listed_and_exported(models, apart: Path):
    folder = apart / "fedgc" / "runs" / "r"
    checkpoint.pin(folder, checkpoint.load(folder, 1))
    (folder / "model-0000000001.fedgc").unlink()
    rows = json.loads(fedgc("list", "--json"))["versions"]
    assert [(row["version"], row["best"]) for row in rows] == [(2, False), (3, False), (1, True)]
    assert "version 3 of r" in fedgc("export", "newest.safetensors")
    assert "version 1 of r" in fedgc("export", "best.safetensors", "--best")


def test_best_version_needs_validate_best(models):
    with pytest.raises(Unusable, match=r"saw no best model in .*the setting validate.best names the figure"):
        fedgc("export", "best.safetensors", "--best")
    with pytest.raises(Unusable, match="--best and --version: saw both"):
        fedgc("export", "best.safetensors", "--best", "--version", "1")


def test_average_of_schedule_free_run_is_exported(apart: Path):
    config = RunConfig(server_optimizer="schedule-free", work="coded")
    told(apart / "fedgc", config, [])
    server, layout = ServerOptimizer(config, 2), Tensors((TensorSpec("weight", "float32", (1, 2)),), 1)
    model = server.apply(np.float32([3.0, 4.0]), np.float32([1.0, 2.0]))
    model = server.apply(model, np.float32([1.0, 2.0]))
    made = Checkpoint(2, 2, model, server.state(), "{}", layout.text())
    checkpoint.save(apart / "fedgc" / "runs" / "r", made, keep=1)
    fedgc("export", "model.safetensors")
    assert load_file("model.safetensors")["weight"].tolist() == [
        pytest.approx([1.5, 1.0])
    ]  # of z: 2, 2; 1, 0


def test_model_of_script_is_exported_by_its_layout(apart: Path):
    told(apart / "fedgc", CONFIG, [])
    layout = Tensors((TensorSpec("weight", "float32", (1, 2)),), 1)
    made = Checkpoint(1, 1, np.float32([3.0, 4.0]), b"", "{}", layout.text())
    checkpoint.save(apart / "fedgc" / "runs" / "r", made, keep=1)
    fedgc("export", "model.safetensors")
    assert load_file("model.safetensors")["weight"].tolist() == [[3.0, 4.0]]
