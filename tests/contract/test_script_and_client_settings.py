"""Test training scripts and the clients' own settings in real runs, as `fedgc run` starts them."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedgc.cli.new_app import write_new
from fedgc.deploy.local_federation import NAME, Node
from tests.contract.conftest import Federation

pytestmark = [pytest.mark.contract, pytest.mark.timeout(600)]
WAIT_S = 400.0
START_TIMEOUT_S = 300.0  # a run that waits for that long is no run that ends once all clients have failed

SCRIPT = """
import sys
from pathlib import Path

import torch

import fedgc

own = fedgc.client_settings()
rows = torch.tensor([[float(word)] * 4 for word in Path(own["data"]).read_text().split()])
model = torch.nn.Linear(rows.shape[1], 1)  # known from the data alone
fed = fedgc.join(model)
assert fed.client == own
for (batch,) in fed.steps(torch.utils.data.DataLoader(torch.utils.data.TensorDataset(rows), batch_size=2)):
    model(batch).pow(2).mean().backward()
    with torch.no_grad():  # torch.optim would import torch's compiler, a second for each client
        for each in model.parameters():
            each -= 0.1 * each.grad
    model.zero_grad()
"""
TASK = '''
"""A task that reads the file that the client's own settings name, from the caller's folder."""

from pathlib import Path

import torch

from fedgc import RunConfig, Task

FOLDER = Path("data")


def task(config: RunConfig, client) -> Task:
    rows = {name: torch.tensor([[float(word)] * 4 for word in (FOLDER / name).read_text().split()])
            for name in ([client["data"]] if client else [])}
    return Task(
        model=lambda: torch.nn.Linear(4, 1),
        chunks={name: len(each) for name, each in rows.items()},
        load=lambda name: (rows[name],),
        loss=lambda model, batch: model(batch[0]).pow(2).mean(),
    )
'''
WRONG_OPTIMIZER = TASK.replace(
    "loss=lambda", "optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),\n        loss=lambda"
)


def fedgc(folder: Path, *words: str, home: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command in this folder, with a store and state of its own; `home` knows a SuperLink."""
    own = {"FEDGC_DB": str(folder / "fedgc.db"), "XDG_STATE_HOME": str(folder / "state")}
    return subprocess.run(
        [sys.executable, "-m", "fedgc.cli", *words],
        cwd=folder,
        env={**os.environ, **own, **({} if home is None else {"FLWR_HOME": str(home)})},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "north").write_text("0.1 0.2 0.3 0.4 0.5 0.6")
    (tmp_path / "data" / "south").write_text("0.1 0.2 0.3 0.4")
    return tmp_path


def own(key: str = "data", before: str = "") -> list[str]:
    return [word for name in ("north", "south") for word in ("--client", f"{name}:{key}={before}{name}")]


def test_client_settings_and_relative_paths_reach_script(folder: Path) -> None:
    (folder / "train.py").write_text(SCRIPT)
    done = fedgc(folder, "run", "--script", "train.py", "--set", "rounds=2", *own(before="data/"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "starting the server and 2 clients: " in done.stdout
    assert "completed: 2 rounds" in done.stdout
    assert " north " in done.stdout
    assert " south " in done.stdout


@pytest.mark.slow  # quick tests give settings to a script, and to a task that fails
def test_client_settings_reach_task_and_not_server(folder: Path) -> None:
    (folder / "ward.py").write_text(TASK)
    done = fedgc(folder, "run", "--task", "ward:task", "--set", "rounds=2", *own())
    assert done.returncode == 0, done.stdout + done.stderr
    assert "completed: 2 rounds" in done.stdout


@pytest.mark.slow  # quick tests run a script without an app, an app without a script, and place a script
def test_script_in_app_folder_runs(folder: Path) -> None:
    write_new(folder / "ward")
    (folder / "ward" / "train.py").write_text(SCRIPT)
    done = fedgc(
        folder / "ward", "run", "--script", "train.py", "--set", "rounds=1", *own(before=f"{folder}/data/")
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Two clients for runs that fail; tasks are found in the folder of the processes."""
    folder = tmp_path_factory.mktemp("sites")
    (folder / "data").write_text("0.1 0.2 0.3 0.4")
    environment = {
        "FEDGC_DB": str(folder / "fedgc.db"),
        "XDG_STATE_HOME": str(folder / "state"),
        "PYTHONPATH": str(folder),
    }
    nodes = [Node(name, {"data": str(folder / "data")}) for name in ("north", "south")]
    with Federation(nodes, folder=folder / "processes", environment=environment) as started:
        yield started


@pytest.mark.parametrize(
    ("file", "text", "seen"),
    [
        (
            "train.py",
            "raise ValueError('no data here')",
            r"client (north|south): the script ended: exit status 1: ValueError: no data .*script\.log",
        ),
        pytest.param(
            "wrong.py",
            WRONG_OPTIMIZER,
            r"clients? (north|south)(, (north|south))?: task: optimizer\(\) raised TypeError",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "parsing.py",
            "import argparse\nargparse.ArgumentParser().parse_args()",
            r"importing parsing raised SystemExit",
            marks=pytest.mark.slow,
        ),
    ],
)  # fmt: skip
def test_run_ends_once_script_or_task_fails_everywhere(
    sites: Federation, file: str, text: str, seen: str
) -> None:
    folder = sites.database.parent
    (folder / file).write_text(text)
    what = ["--script", str(folder / file)] if file == "train.py" else ["--task", f"{file[:-3]}:task"]
    more = [f"timing.start-timeout-s={START_TIMEOUT_S}", "min-clients=2"]
    words = ["run", "--superlink", NAME, *what, *(word for each in more for word in ("--set", each))]
    began = time.monotonic()
    done = fedgc(folder, *words, home=sites.home)
    assert done.returncode == 1, done.stdout + done.stderr
    assert time.monotonic() - began < START_TIMEOUT_S
    assert re.search(seen, done.stderr), done.stderr  # the other may not have answered when the run ends
