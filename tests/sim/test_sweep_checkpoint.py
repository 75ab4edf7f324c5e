"""Test checkpoints of sweeps: a sweep that was stopped goes on with the runs that are missing."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from zlib import crc32

import pytest
from typer.testing import CliRunner

from fedgc.cli.commands import app
from fedgc.errors import EdgeFailed, FedgcError, Unusable
from fedgc.sim.past_run import PastRun
from fedgc.sim.sweep import Swept, Trial, run_sweep
from fedgc.sim.sweep_checkpoint import SweepCheckpoint, description
from fedgc.sim.sweep_file import Sweep, SweepScenario, read_sweep
from tests.sim.test_like import CONFIG, seen_rows

FILE = """
rounds = 3
seeds = 2
model-mb = 8.0
[grid]
"links.codec" = ["float32", "int8"]
"timing.quorum" = [1.0, 0.5]
[scenarios.even]
clients = 4
model = "bimodal-persistent"
[scenarios.traced]
trace = "times.csv"
"""
TIMES = "client,round,chunk,seconds\na,0,0,1\nb,0,0,2\n"
KILLED = """
import os, signal, sys
from pathlib import Path
from tests.sim.test_sweep_checkpoint import made_up, opened
from fedgc.sim.sweep import run_sweep
from fedgc.sim.sweep_file import read_sweep

def trial(sweep, at, scenario, seed):
    if (at, scenario.name, seed) == (1, "traced", 0):
        os.kill(os.getpid(), signal.SIGKILL)
    return made_up(sweep, at, scenario, seed)

sweep = read_sweep(Path("sweep.toml"))
run_sweep(sweep, {}.__getitem__, trial=trial, checkpoint=opened(sweep))
"""
TASK = """
import os, pathlib, signal, numpy as np, torch, fedgc


def evaluate(model):
    with open("figures", "a") as figures:
        figures.write(".")
        if figures.tell() == 6:
            os.kill(os.getpid(), signal.SIGTERM)
    return {"bias": float(model.bias)}


def task(config):
    label = float(pathlib.Path("label").read_text())
    data = (np.eye(40, 2, dtype=np.float32), np.full((40, 1), label, np.float32))
    loss = lambda model, batch: torch.nn.functional.mse_loss(model(batch[0]), batch[1])
    return fedgc.over(data, config, model=lambda: torch.nn.Linear(2, 1), loss=loss, evaluate=evaluate)
"""
TRAINED = """
rounds = 2
seeds = 2
train = "sweep_task:task"
figure = "bias"
target = 0.1
[settings]
local-steps = 2
[grid]
"learning-rate" = [0.1, 0.2]
[scenarios.even]
clients = 2
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    Path("sweep.toml").write_text(FILE)
    Path("times.csv").write_text(TIMES)


@pytest.fixture
def sweep() -> Sweep:
    return read_sweep(Path("sweep.toml"))


@pytest.fixture
def whole(sweep) -> bytes:
    """The bytes of the checkpoint of a whole sweep."""
    play(sweep)
    return Path("sweep.ckpt").read_bytes()


def opened(sweep: Sweep, past: Mapping[str, PastRun] | None = None) -> SweepCheckpoint:
    return SweepCheckpoint(Path("sweep.ckpt"), description(sweep, past or {}))


def made_up(_: Sweep, at: int, scenario: SweepScenario, seed: int) -> Trial:
    """Figures that need all digits, or that JSON does not have."""
    share = (1 + at + seed / 3) / 7
    last = float("nan") if seed else None
    ended = f"no client after seed {seed}"
    return Trial(at, scenario.name, share if at else float("inf"), 1 / share, 0.1, share, 3, ended, last)


def play(sweep: Sweep, *, stop: Callable[[int], object] = lambda _: None, workers=1) -> tuple[Swept, int]:
    """Play made-up runs with the checkpoint; return the result, and how many runs were played."""
    played = list[int]()

    def trial(*job):
        stop(len(played))
        played.append(1)
        return made_up(*job)

    with closing(opened(sweep)) as checkpoint:
        swept = run_sweep(sweep, {}.__getitem__, workers=workers, trial=trial, checkpoint=checkpoint)
    return swept, len(played)


def interrupt(at: int) -> None:
    if at == 5:
        raise KeyboardInterrupt


def sim(*words: str):
    return CliRunner().invoke(app, ["sim", "--sweep", "sweep.toml", *words])


@pytest.mark.parametrize("workers", [1, 2])
def test_stopped_sweep_plays_missing_runs(sweep, monkeypatch, workers):
    monkeypatch.setattr("fedgc.sim.sweep.Processes", ThreadPoolExecutor)
    sweep = replace(sweep, seeds=3)
    never_stopped = repr(run_sweep(sweep, {}.__getitem__, trial=made_up))
    with pytest.raises(KeyboardInterrupt):
        play(sweep, stop=interrupt, workers=workers)
    with closing(opened(sweep)) as checkpoint:
        kept = len(checkpoint.trials)
    swept, played = play(sweep, workers=workers)
    assert repr(swept) == never_stopped
    assert played == 24 - kept
    assert kept == 5 or workers > 1
    assert play(sweep)[1] == 0, "the file stays"


def test_killed_sweep_plays_missing_runs(sweep):
    root = Path(__file__).parents[2]
    killed = subprocess.run([sys.executable, "-c", f"import sys; sys.path.append({str(root)!r}){KILLED}"])
    assert killed.returncode == -signal.SIGKILL
    assert play(sweep)[1] == 16 - 6


def test_trained_sweep_goes_on_after_sigterm():
    Path("sweep.toml").write_text(TRAINED)
    Path("sweep_task.py").write_text(TASK)
    Path("label").write_text("1")
    stopped = sim("--checkpoint", "a b.ckpt")
    assert stopped.exit_code == 130
    command = "fedgc sim --sweep sweep.toml --checkpoint 'a b.ckpt'"
    assert stopped.stderr == f"fedgc: interrupted; `{command}` goes on after 2 runs\n"
    found = sim("--checkpoint", "a b.ckpt", "--html", "resumed.html", "--json")
    assert len(Path("figures").read_text()) == 6 + 2 * 2
    assert found.stdout == sim("--html", "whole.html", "--json").stdout
    assert [bool(row["seconds"]) for row in json.loads(found.stdout)["rows"]] == [False, True]
    assert Path("resumed.html").read_text() == Path("whole.html").read_text()
    Path("label").write_text("2")
    says = r"saw digest of the data=\w+, needed digest of the data=\w+ as when"
    with pytest.raises(Unusable, match=says):
        raise sim("--checkpoint", "a b.ckpt").exception


@pytest.mark.parametrize("cut", [1, 40, 100])
def test_last_line_that_was_cut_off_costs_its_run(whole, sweep, cut):
    Path("sweep.ckpt").write_bytes(whole[:-cut])
    assert play(sweep)[1] == 1
    assert Path("sweep.ckpt").read_bytes() == whole
    Path("sweep.ckpt").write_bytes(whole[:-cut] + bytes(9))
    said = sim("--checkpoint", "sweep.ckpt", "--json")
    assert (
        said.stderr == "fedgc: checkpoint sweep.ckpt: its last line was cut off; that run is played again\n"
    )


def test_description_that_was_cut_off_is_written_again(whole, sweep):
    for kept in (0, 30):
        Path("sweep.ckpt").write_bytes(whole[:kept])
        assert play(sweep)[1] == 16
        assert Path("sweep.ckpt").read_bytes() == whole


def with_line(line: int, new: bytes) -> Callable[[bytes], bytes]:
    def changed(data: bytes) -> bytes:
        lines = data.splitlines(keepends=True)
        return b"".join([*lines[:line], new, *lines[line + 1 :]])

    return changed


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda _: b"PK\3\4", "saw no sweep, needed a new file or that of a sweep"),
        (lambda data: b"x" + data, "saw no sweep, needed a new file or that of a sweep"),
        (with_line(2, b"x\n"), "saw ValueError: wrong bytes in line 3, needed a whole file"),
        (with_line(2, b"%08x [0, {}]\n" % crc32(b"[0, {}]\n")), "saw TypeError: .*, needed a whole file"),
    ],
    ids=["other file", "other beginning", "changed", "crafted"],
)
def test_file_that_holds_no_whole_sweep_is_refused(whole, sweep, change, says):
    Path("sweep.ckpt").write_bytes(change(whole))
    with pytest.raises(FedgcError, match=f"^checkpoint sweep.ckpt: {says}$"):
        play(sweep)
    assert Path("sweep.ckpt").read_bytes() == change(whole)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("rounds = 3", "rounds = 4", r"saw digest of the grid=\w+, digest of the scenarios=\w+, rounds=4"),
        ("1.0, 0.5", "1.0, 0.6", r"saw digest of the grid=\w+, needed"),
        ("seeds = 2", "seeds = 3", r"saw seeds=3, needed seeds=2 as when it was written"),
        ("b,0,0,2", "b,0,0,3", r"saw digest of the scenarios=\w+, needed"),
    ],
)
@pytest.mark.usefixtures("whole")
def test_file_of_other_sweep_is_refused(old, new, says):
    Path("sweep.toml").write_text(FILE.replace(old, new))
    Path("times.csv").write_text(TIMES.replace(old, new))
    with pytest.raises(Unusable, match=says):
        play(read_sweep(Path("sweep.toml")))


def test_other_recorded_run_is_refused():
    Path("sweep.toml").write_text('rounds = 3\n[scenarios.ward]\nlike = "latest"\n')
    for numbers in (1000, 1000, 1001):
        past = PastRun("r", CONFIG, numbers, 1, tuple(seen_rows(CONFIG, 8)))
        if numbers == 1000:
            opened(read_sweep(Path("sweep.toml")), {"latest": past}).close()
    with pytest.raises(Unusable, match=r"saw digest of the scenarios=\w+, needed"):
        opened(read_sweep(Path("sweep.toml")), {"latest": past})


@pytest.mark.usefixtures("whole")
def test_file_of_other_version_is_refused(sweep, monkeypatch):
    monkeypatch.setattr("fedgc.sim.sweep_checkpoint.version", lambda name: f"9 of {name}")
    with pytest.raises(Unusable, match=r"saw fedgc=9 of fedgc, numpy=9 of numpy, needed fedgc="):
        play(sweep)


def test_second_process_is_refused(sweep):
    with (
        closing(opened(sweep)),
        pytest.raises(Unusable, match="saw another process that writes to it, needed it to end first"),
    ):
        opened(sweep)


def test_folder_that_cannot_be_written_is_named(sweep):
    with pytest.raises(EdgeFailed, match=r"^checkpoint no/file: cannot be written: No such file"):
        SweepCheckpoint(Path("no/file"), description(sweep, {}))
