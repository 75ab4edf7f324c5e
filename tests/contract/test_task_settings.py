"""Test a task's own settings in a real run: the manifest lists them and `--set` changes one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedgc.cli.new_app import write_new

pytestmark = [pytest.mark.contract, pytest.mark.timeout(600)]
WAIT_S = 400.0
OWN = """
[tool.fedgc.task]
width = 8
bias = true

[tool.fedgc.task.lora]
rank = 2
"""
TASK = '''
"""A task whose model, data and evaluation write down the settings that they see."""

import json
import os
from pathlib import Path

import torch
from torch import nn

from fedgc import RunConfig, Task


def task(config: RunConfig) -> Task:
    own = config.task_settings

    def saw(place: str) -> None:
        Path(os.environ["SEEN"], f"{place}-{os.getpid()}").write_text(json.dumps(dict(own)))

    def model() -> nn.Module:
        return nn.Linear(4, own["width"], bias=own["bias"])

    def load(name: str) -> list[tuple[torch.Tensor, torch.Tensor]]:
        saw("client")
        return [(torch.ones(4), torch.zeros(own["width"]))] * 8

    def loss(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        return nn.functional.mse_loss(model(batch[0]), batch[1])

    def evaluate(model: nn.Module) -> dict[str, float]:
        saw("server")
        return {"width": float(model.weight.shape[0])}

    return Task(model=model, chunks={"all": 8}, load=load, loss=loss, evaluate=evaluate)
'''


def test_task_settings_reach_tasks_of_server_and_clients(tmp_path: Path) -> None:
    app, seen = tmp_path / "ward", tmp_path / "seen"
    seen.mkdir()
    write_new(app)
    (app / "ward" / "task.py").write_text(TASK)
    with (app / "pyproject.toml").open("a") as manifest:
        manifest.write(OWN)
    words = ["run", "--clients", "2", "--set", "rounds=1", "--set", "local-steps=1", "--set", "task.width=3"]
    done = subprocess.run(
        [sys.executable, "-m", "fedgc.cli", *words],
        cwd=app,
        env={
            **os.environ,
            "FEDGC_DB": str(tmp_path / "fedgc.db"),
            "XDG_STATE_HOME": str(tmp_path),
            "SEEN": str(seen),
        },
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = {path.name: json.loads(path.read_text()) for path in seen.iterdir()}
    assert sorted(name.partition("-")[0] for name in found) == ["client", "client", "server"]
    assert list(found.values()) == [{"width": 3, "bias": True, "lora.rank": 2}] * 3
    assert "width 3" in done.stdout
