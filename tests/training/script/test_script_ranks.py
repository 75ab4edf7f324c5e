"""Test scripts of two ranks: the sums of one process, a rank that dies, a signal to leave."""

import os
import shlex
import signal
import stat
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from fedgc.config import RunConfig
from fedgc.errors import TaskFailed
from fedgc.messages import Work
from fedgc.processes.supervision import descendants
from fedgc.training.flat import Vector
from fedgc.training.local_loop import Begin
from fedgc.training.script import connection, script_loop
from fedgc.training.script.connection import ScriptFacts
from fedgc.training.script.script_loop import ScriptLoop
from tests.contract.conftest import alive, eventually
from tests.scripts import srun, two_ranks

WAIT_S = 120.0
HANG_S = 30.0
SLOW = 100_000  # steps that no test waits for
TWO_RANKS = two_ranks.__file__
ADDING = Path(TWO_RANKS).with_name("adding.py")
SRUN = f"srun -n 2 {TWO_RANKS}"
TORCHRUN = f"torchrun --nproc-per-node 2 {TWO_RANKS}"

ACCELERATE = (
    "accelerate launch --multi_gpu --num_processes 2 --num_machines 1 --mixed_precision no "
    f"--dynamo_backend no --main_process_port 0 {TWO_RANKS}"
)


class Client:
    """A script's client, as the engine drives it."""

    def __init__(self, command: str, folder: Path) -> None:
        facts = ScriptFacts(RunConfig(script=command), "north", {"name": "north"}, folder)
        self.loop = ScriptLoop(facts, time.sleep)
        self.round = self.reached = 0
        eventually(lambda: self.loop.layout is not None, WAIT_S)
        self.initial = self.loop.initial()

    def begin(self, model: Vector, target: int, reached: int = 0) -> None:
        self.round += 1
        self.reached = reached
        work = Work("north", self.round, self.round, target, (0,), ((0, "north"),), 0, 60.0, kind="local")
        self.loop.begin(Begin(work, ("north",), model, None, None, reached))

    def train(self, goal: int) -> None:
        end = time.monotonic() + WAIT_S
        while self.reached < goal:
            assert time.monotonic() < end, "the script does not go on"
            advance = self.loop.advance(self.reached, goal)
            self.reached += advance.steps if advance else 0

    def hand_in(self) -> Vector:
        eventually(lambda: self.loop.hand_in() is not None, WAIT_S)
        return self.loop.hand_in().copy()

    def processes(self) -> tuple[int, ...]:
        return descendants(self.loop._script._process._process.pid)

    def rank(self, number: int) -> int:
        """The process of a rank."""
        for name in (f"RANK={number}", f"SLURM_PROCID={number}"):
            for pid in self.processes():
                environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                if name.encode() in environment:
                    return pid
        raise AssertionError(f"no rank {number}")

    def fails(self, goal: int) -> str:
        """Train until the script fails; return why."""
        with pytest.raises(TaskFailed) as caught:
            self.train(goal)
        return str(caught.value)


Make = Callable[[str], Client]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    program = tmp_path / "bin" / "srun"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, srun.__file__])} "$@"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    made: list[Client] = []

    def start(command: str) -> Client:
        made.append(Client(command, tmp_path / "state"))
        return made[-1]

    yield start
    for each in made:
        each.loop.close(complete=False)


def check_sums(client: Client) -> None:
    client.begin(client.initial, 5)
    client.train(5)
    np.testing.assert_allclose(client.hand_in(), two_ranks.trained_alone(5).numpy(), rtol=0, atol=1e-6)


def test_two_ranks_fail_together_and_start_again(make: Make, tmp_path: Path):
    """DDP under srun: the sums of one process, a rank that raises, a new start, a signal to leave."""
    once = tmp_path / "once"
    client = make(f"{SRUN} --step-s 0.01 --prints-steps --fault raise --at north:1:9 --once {once}")
    assert dict(client.loop.sizes) == {"north": two_ranks.SAMPLES}
    check_sums(client)
    before = client.processes()
    client.begin(client.initial, SLOW)
    reason = client.fails(SLOW)
    assert reason.startswith(
        "the script ended: exit status 1: ValueError: this rank has no data (its output: "
    )
    assert not any(map(alive, before))
    client.begin(client.initial, SLOW, reached=1000)
    client.train(1003)
    log = (tmp_path / "state" / "script.log").read_text()
    assert all(f"rank {rank}: step 1001 of the run\n" in log for rank in range(2))
    client.loop._script._process._process.terminate()
    eventually(lambda: client.loop.advance(client.reached, SLOW) is None and client.loop._left, HANG_S)
    handed = client.hand_in()
    assert np.isfinite(handed).all()
    assert not np.array_equal(handed, client.initial)
    assert torch.load(tmp_path / "state" / "script.pt")["optimizer"]["state"]


def test_stop_of_run_is_one_line_of_each_rank(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(script_loop, "STOP_S", WAIT_S)  # also on a busy machine
    client = make(f"{SRUN} --step-s 0.01")
    client.begin(client.initial, SLOW)
    client.train(3)
    client.loop.close(complete=False)
    log = (tmp_path / "state" / "script.log").read_text()
    assert log.count("fedgc: the client has ended the training") == 2
    assert log.count("; this is no error of the script, which starts again when the run goes on\n") == 2
    assert "Traceback" not in log


@pytest.mark.gpu
@pytest.mark.parametrize("wrapper", ["ddp", "fsdp"])
@pytest.mark.parametrize(("backend", "count"), [("gloo", 2), ("nccl", 1), ("nccl", 2)])
def test_ranks_on_gpus_train_sums_of_one_process(make: Make, backend: str, count: int, wrapper: str):
    if backend == "nccl" and count > torch.cuda.device_count():
        pytest.skip(
            f"NCCL needs a GPU for each of {count} ranks, this machine has {torch.cuda.device_count()}"
        )
    if (backend, wrapper) == ("gloo", "fsdp"):
        pytest.skip("fully_shard on GPUs needs NCCL")
    words = f"--device cuda --backend {backend} --wrapper {wrapper}"
    client = make(f"torchrun --nproc-per-node {count} {TWO_RANKS} {words}")
    client.begin(client.initial, 5)
    client.train(5)
    np.testing.assert_allclose(client.hand_in(), two_ranks.trained_alone(5).numpy(), rtol=0, atol=1e-5)


@pytest.mark.slow
def test_script_that_ends_early_hands_in_its_steps(make: Make):
    client = make(f"{SRUN} --steps 4")
    client.begin(client.initial, SLOW)
    eventually(lambda: client.loop.advance(0, 0) is None and client.loop._left, WAIT_S)
    np.testing.assert_allclose(client.hand_in(), two_ranks.trained_alone(4).numpy(), rtol=0, atol=1e-6)


def test_launcher_may_start_its_ranks_again(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(connection, "LOST_S", WAIT_S)
    launcher = tmp_path / "launcher.py"
    launcher.write_text(
        "import subprocess, sys\nwhile subprocess.call([sys.executable, *sys.argv[1:]]): pass\n"
    )
    client = make(f"{launcher} {ADDING} --fault kill --fault-at 3 --once {tmp_path / 'once'}")
    before = client.processes()[0]
    client.begin(client.initial, SLOW)
    assert client.fails(SLOW) == "the launcher has started the script's processes again"
    client.begin(client.initial, 4)
    client.train(4)
    assert client.processes()[0] == before
    np.testing.assert_array_equal(client.hand_in(), client.initial + 4)


@pytest.mark.slow
@pytest.mark.parametrize("wrapper", ["ddp", "fsdp"])
def test_torchrun_gives_sums_of_one_process(make: Make, wrapper: str):
    check_sums(make(f"{TORCHRUN} --wrapper {wrapper}"))


@pytest.mark.slow
def test_accelerate_gives_sums_of_one_process(make: Make):
    pytest.importorskip("accelerate")
    client = make(f"{ACCELERATE} --wrapper accelerate")
    assert dict(client.loop.sizes) == {"north": two_ranks.SAMPLES}
    check_sums(client)


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1])
def test_stopped_rank_is_ended_with_its_client(make: Make, number: int):
    client = make(TORCHRUN)
    client.begin(client.initial, SLOW)
    client.train(2)
    processes = client.processes()
    os.kill(client.rank(number), signal.SIGSTOP)
    before = time.monotonic()
    assert client.loop.hand_in(wait=True) is None
    client.loop.close(complete=False)
    assert time.monotonic() - before < HANG_S
    assert not any(map(alive, processes))


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_run_survives_twenty_kills_of_ranks(make: Make):
    """Kill a rank at a random step, twenty times: no wait is longer than HANG_S, and training goes on."""
    chance = np.random.default_rng(0)
    client = make(f"{TORCHRUN} --step-s 0.005")
    for _ in range(20):
        client.begin(client.initial, SLOW)
        client.train(int(chance.integers(1, 60)))
        processes, before = client.processes(), time.monotonic()
        os.kill(client.rank(int(chance.integers(2))), signal.SIGKILL)
        assert "exit status 1" in client.fails(SLOW)
        assert time.monotonic() - before < HANG_S
        assert not any(map(alive, processes))
    check_sums(client)
