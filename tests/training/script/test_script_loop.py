"""Test the loop of a training script with real scripts: steps, hand-in, failures, restarts."""

import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from fedgc.codecs.model_change import Changed
from fedgc.config import RunConfig
from fedgc.errors import BadSetting, TaskFailed
from fedgc.messages import Close, Report, Reveal, Scored, Validate, Work
from fedgc.training.cache import ClientCache
from fedgc.training.engine import Answer
from fedgc.training.local_engine import LocalEngine
from fedgc.training.local_loop import Begin
from fedgc.training.script import script_loop
from fedgc.training.script.connection import ScriptFacts
from fedgc.training.script.process import command_of
from fedgc.training.script.script_loop import ScriptLoop
from fedgc.training.trajectories import Trajectories

ADDING = Path(__file__).parents[2] / "scripts" / "adding.py"
WAIT_S = 60.0

Make = Callable[..., ScriptLoop]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[ScriptLoop] = []

    def start(command: str, **settings: object) -> ScriptLoop:
        config = RunConfig(script=command, **settings)
        facts = ScriptFacts(config, "north", {"name": "north", "data": "north.pt"}, tmp_path / "state")
        made.append(ScriptLoop(facts, time.sleep))
        return made[-1]

    yield start
    for each in made:
        each.close(complete=True)


def adding(*words: object) -> str:
    return " ".join(map(str, (ADDING, *words)))


def script(folder: Path, text: str) -> str:
    path = folder / "script.py"
    path.write_text(f"import torch, fedgc\n{text}\n")
    return str(path)


def ready(loop: ScriptLoop) -> ScriptLoop:
    end = time.monotonic() + WAIT_S
    while loop.layout is None:
        assert time.monotonic() < end, "the script has announced nothing"
        time.sleep(0.02)
    return loop


def work(target: int = 4, most: int = 0, round_: int = 1, version: int = 0) -> Work:
    names = ((0, "north"),)
    return Work(
        "north", round_, version, target, (0,), names, 0, 60.0, kind="local", most_steps=most, first_step=100
    )


def begin(loop: ScriptLoop, job: Work, fill: float = 0.0) -> None:
    size = loop.layout.size if loop.layout else 4
    loop.begin(Begin(job, ("north",), np.full(size, fill, np.float32), None, None, 0))


def advanced(loop: ScriptLoop, goal: int, reached: int = 0) -> int:
    end = time.monotonic() + WAIT_S
    while reached < goal:
        assert time.monotonic() < end, f"the script is at step {reached}"
        advance = loop.advance(reached, goal)
        reached += advance.steps if advance else 0
    return reached


def handed(loop: ScriptLoop) -> np.ndarray:
    end = time.monotonic() + WAIT_S
    while (vector := loop.hand_in()) is None:
        assert time.monotonic() < end, "the script hands nothing in"
    return vector


def test_script_trains_to_limit_and_hands_in(make: Make):
    loop = ready(make(adding("--samples", 12)))
    assert (loop.layout.size, dict(loop.sizes)) == (4, {"north": 12})
    np.testing.assert_array_equal(loop.initial(), np.zeros(4, np.float32))
    begin(loop, work(target=4), fill=5.0)
    assert advanced(loop, 4) == 4
    np.testing.assert_array_equal(handed(loop), np.full(4, 9.0, np.float32))


def test_end_of_session_waits_for_long_step(make: Make, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(script_loop, "HAND_IN_S", 0.0)
    loop = ready(make(adding("--step-s", 1.0)))
    begin(loop, work(target=1000, most=1000))
    reached = advanced(loop, 1)
    vector = loop.hand_in(wait=True)
    assert vector is not None
    assert (vector > reached).all()


def test_hand_in_interrupts_between_steps(make: Make):
    loop = ready(make(adding("--step-s", 0.05)))
    begin(loop, work(target=1000, most=1000))
    reached = advanced(loop, 3)
    vector = handed(loop)
    rest = loop.advance(reached, reached)
    steps = reached + (rest.steps if rest else 0)
    assert 3 <= steps < 1000
    np.testing.assert_array_equal(vector, np.full(4, steps, np.float32))


def test_target_can_be_raised_while_training(make: Make):
    loop = ready(make(adding()))
    begin(loop, work(target=3))
    assert advanced(loop, 3) == 3
    loop.go_on(work(target=5, round_=2))
    assert advanced(loop, 5, reached=3) == 5
    np.testing.assert_array_equal(handed(loop), np.full(4, 5.0, np.float32))


def test_next_model_replaces_unrequested_steps(make: Make):
    loop = ready(make(adding("--step-s", 0.02)))
    begin(loop, work(target=500, most=500))
    advanced(loop, 2)
    begin(loop, work(target=3, round_=2, version=1), fill=100.0)
    assert advanced(loop, 3) == 3
    np.testing.assert_array_equal(handed(loop), np.full(4, 103.0, np.float32))


def test_model_is_readable_at_target_without_stopping(make: Make):
    loop = ready(make(adding("--step-s", 0.02), gate="drift"))
    begin(loop, work(target=2, most=400))
    advanced(loop, 2)
    np.testing.assert_array_equal(loop.vector(), np.full(4, 2.0, np.float32))
    assert advanced(loop, 4, reached=2) >= 4


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("raise", "exit status 1: ValueError: the data is gone"),
        ("exit", "exit status 3"),
        ("kill", "killed by SIGKILL"),
    ],
)
def test_script_that_ends_fails_and_is_started_again(make: Make, tmp_path: Path, fault: str, says: str):
    loop = ready(make(adding("--fault", fault, "--once", tmp_path / "once")))
    begin(loop, work(target=8))
    with pytest.raises(TaskFailed, match=f"the script ended: {says}"):
        advanced(loop, 8)
    begin(loop, work(target=8, round_=2), fill=1.0)
    assert advanced(loop, 8) == 8
    np.testing.assert_array_equal(handed(loop), np.full(4, 9.0, np.float32))


@pytest.mark.parametrize("fault", ["term", "leave"])
def test_leaving_script_hands_in_its_steps(make: Make, fault: str):
    loop = ready(make(adding("--fault", fault, "--fault-at", 3)))
    begin(loop, work(target=8))
    assert advanced(loop, 3) == 3
    np.testing.assert_array_equal(handed(loop), np.full(4, 3.0, np.float32))
    with pytest.raises(TaskFailed, match="has left the run"):
        begin(loop, work(target=8, round_=2))


@pytest.mark.parametrize("fault", ["leave", "end"])
def test_steps_of_leaving_script_are_reported_without_waiting(make: Make, tmp_path: Path, fault: str):
    """The client says that it leaves, so that the round does not wait for steps that cannot come."""
    if fault == "end":
        text = "m = torch.nn.Linear(2, 1)\nfed = fedgc.join(m, samples=3)\nfor _ in range(4): fed.step()"
        loop = ready(make(script(tmp_path, text)))
    else:
        loop = ready(make(adding("--fault", "leave", "--fault-at", 3)))
    engine = LocalEngine(
        loop, RunConfig(script="script.py"), Trajectories(ClientCache(1_000_000, tmp_path), None)
    )
    engine.load(0, np.zeros(engine.size, np.float32))
    engine.handle(work(target=8))
    assert not engine.has_left
    end = time.monotonic() + WAIT_S
    while not isinstance(report := engine.step(), Report):
        assert time.monotonic() < end, "the engine reports nothing"
    assert (report.steps, engine.has_left, engine.idle) == (3, True, True)
    assert answered(engine, Reveal("north", 1, 0, "local", None)).report.steps == 3


@pytest.mark.parametrize("again", [False, True])
def test_model_after_break_is_own_of_script(make: Make, tmp_path: Path, again: bool):
    """Best weights are restored after the loop; another loop goes on with the model as it is."""
    text = f"""
model = torch.nn.Linear(2, 1)
fed = fedgc.join(model)
loader = torch.utils.data.DataLoader(torch.ones(64, 1))
def train(steps):
    for at, _ in enumerate(fed.steps(loader), 1):
        with torch.no_grad():
            for each in model.parameters():
                each.add_(1.0)
        if at == steps:
            break
train(4)
with torch.no_grad():
    for each in model.parameters():
        each.zero_()
if {again}:
    train(2)
"""
    loop = ready(make(script(tmp_path, text)))
    begin(loop, work(target=8))
    taken = 5 if again else 3  # a loop that goes on counts the step that was left
    assert advanced(loop, taken) == taken
    np.testing.assert_array_equal(handed(loop), np.full(3, 2.0 if again else 4.0, np.float32))


def test_script_that_holds_batches_ends_in_its_own_words(make: Make, tmp_path: Path):
    """Python closes the iterator last, when the modules that fedgc would need are gone."""
    text = """
model = torch.nn.Linear(2, 1)
loader = torch.utils.data.DataLoader(torch.ones(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
fed = fedgc.join(model)
batches = iter(fed.steps(loader))
def fit(): return fed, batches
for _ in range(4):
    batch = next(batches)
    model(batch.expand(1, 2)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
print("the end")
raise SystemExit(3)
"""
    loop = ready(make(script(tmp_path, text)))
    begin(loop, work(target=8))
    with pytest.raises(TaskFailed, match="exit status 3: the end"):
        advanced(loop, 8)
    (log,) = tmp_path.rglob("script.log")
    assert log.read_text().splitlines()[-1] == "the end"


@pytest.mark.parametrize("status", [0, 3])
def test_exit_status_of_slowly_ending_script_decides(make: Make, tmp_path: Path, status: int):
    """Also if the next round begins before the process has ended."""
    text = "import atexit, time\natexit.register(time.sleep, 1)\nm = torch.nn.Linear(2, 1)\n"
    end = f"for _ in range(4): fed.step()\nraise SystemExit({status})"
    loop = ready(make(script(tmp_path, f"{text}fed = fedgc.join(m, samples=3)\n{end}")))
    begin(loop, work(target=3, most=10))
    assert advanced(loop, 3) == 3
    handed(loop)
    begin(loop, work(target=3, round_=2))
    assert loop.hand_in() is None
    with pytest.raises(TaskFailed, match="exit status 3" if status else "has left the run"):
        advanced(loop, 3)
    assert loop.has_left == (not status)


def test_samples_may_be_number_of_torch(make: Make, tmp_path: Path):
    text = "fed = fedgc.join(torch.nn.Linear(2, 1), samples=torch.tensor(3))\nfed.step()"
    assert dict(ready(make(script(tmp_path, text))).sizes) == {"north": 3}


def test_output_never_blocks_script_and_its_log_is_bounded(make: Make, tmp_path: Path):
    loop = ready(make(adding("--fault", "print")))
    begin(loop, work(target=5))
    assert advanced(loop, 5) == 5
    logs = list((tmp_path / "state").glob("script*.log"))
    assert sum(path.stat().st_size for path in logs) < 40 << 20


def test_changed_model_is_refused_with_first_difference(make: Make, tmp_path: Path):
    once = tmp_path / "once"
    text = f"""
from pathlib import Path
size = 5 if Path({str(once)!r}).exists() else 4
fed = fedgc.join(torch.nn.Linear(size, 1), samples=3)
while fed.step():
    Path({str(once)!r}).touch()
    raise SystemExit(1)
"""
    loop = ready(make(script(tmp_path, text)))
    begin(loop, work())
    with pytest.raises(TaskFailed, match="exit status 1"):
        advanced(loop, 4)
    begin(loop, work(round_=2))
    with pytest.raises(
        TaskFailed, match=r"tensor 1: saw weight float32\[1, 5\], needed weight float32\[1, 4\]"
    ):
        advanced(loop, 4)


def test_script_with_more_data_after_failure_trains_on(make: Make, tmp_path: Path):
    once = tmp_path / "once"
    text = f"""
from pathlib import Path
again = Path({str(once)!r}).exists()
fed = fedgc.join(torch.nn.Linear(2, 1), samples=5 if again else 3)
while fed.step():
    Path({str(once)!r}).touch()
    if not again:
        raise SystemExit(1)
"""
    loop = ready(make(script(tmp_path, text)))
    begin(loop, work())
    with pytest.raises(TaskFailed, match="exit status 1"):
        advanced(loop, 4)
    begin(loop, work(round_=2))
    assert advanced(loop, 4) == 4
    assert dict(loop.sizes) == {"north": 3}, "the weight that the server knows"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("fedgc.join('model')", "needed a torch module"),
        ("print('done')", r"^the script ended without a step: it has not called fedgc.join \(its output: "),
        (
            "fedgc.join(torch.nn.Linear(2, 1))",
            "^the script ended without a step: it took no batch of fed.steps, nor called fed.step",
        ),
        ("import not_a_module", "ModuleNotFoundError: No module named 'not_a_module'"),
        (
            "raise ValueError('x' * 1000)",
            r"^the script ended: exit status 1: ValueError: x{80,} \(its output: .*script.log\)$",
        ),
    ],
)
def test_misuse_is_told_in_one_line(make: Make, tmp_path: Path, text: str, says: str):
    loop = make(script(tmp_path, text))
    with pytest.raises(TaskFailed, match=says) as caught:
        ready(loop)
    assert "\n" not in str(caught.value)


def test_every_misuse_of_loop_is_refused_in_one_line(make: Make, tmp_path: Path):
    """One process makes all mistakes, since importing torch takes longer than they do."""
    text = f"""
from pathlib import Path
said = []
def tried(misuse):
    try:
        misuse()
    except fedgc.errors.BadTask as error:
        said.append(str(error))
linear = torch.nn.Linear(2, 1)
tried(lambda: fedgc.join(linear, private=["tail"]))
fed = fedgc.join(linear)
tried(lambda: next(iter(fed.steps([]))))
tried(lambda: next(iter(fed.steps(iter([1])))))
tried(fed.step)
tried(lambda: fedgc.join(linear))
Path({str(tmp_path / "said")!r}).write_text("\\0".join(said))
"""
    loop = make(script(tmp_path, text))
    with pytest.raises(TaskFailed, match="the script ended without a step"):
        ready(loop)
    said = (tmp_path / "said").read_text().split("\0")
    for needed, seen in zip(
        (
            "which matches no tensor of the model", "a loader without a batch", "of known length",
            "needed samples=", "saw a second call in this process",
        ),
        said,
        strict=True,
    ):  # fmt: skip
        assert needed in seen
        assert "\n" not in seen


def test_tiny_steps_of_half_precision_script_are_handed_in(make: Make, tmp_path: Path):
    text = """
model = torch.nn.Linear(2, 1, bias=False).bfloat16()
fed = fedgc.join(model, samples=3)
optimizer = torch.optim.SGD(model.parameters(), lr=2.0**-14)
while fed.step():
    model(torch.ones(1, 2, dtype=torch.bfloat16)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    loop = ready(make(script(tmp_path, text)))
    begin(loop, work(target=8), fill=1.0)  # half a unit of the last place is 2**-9
    assert advanced(loop, 8) == 8
    np.testing.assert_array_equal(handed(loop), np.full(2, 1 - 8 * 2.0**-14, np.float32))


WITH_MOMENTUM = """
model = torch.nn.Linear(2, 1, bias=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.5)
fed = fedgc.join(model, samples=3, optimizer=optimizer)
while fed.step():
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
LOGGED = """
    fed.log(loss=optimizer.state[model.weight]["momentum_buffer"].max())
"""


def test_optimizer_state_outlives_end_of_client(make: Make, tmp_path: Path):
    momenta = []
    for _ in range(2):
        loop = ready(make(script(tmp_path, WITH_MOMENTUM + LOGGED)))
        begin(loop, work(target=1))
        while (advance := loop.advance(0, 1)) is None:
            pass
        momenta.append(advance.losses)
        loop.close(complete=False)
    assert momenta == [1.0, 1.5]


def test_optimizer_begins_anew_after_crash(make: Make, tmp_path: Path):
    """What an earlier end has kept is old by then."""
    crash = tmp_path / "crash"
    crashes = f"""
    crash = pathlib.Path({str(crash)!r})
    if crash.exists():
        crash.unlink()
        raise ValueError("a crash")
"""
    text = "import pathlib\n" + WITH_MOMENTUM + crashes + LOGGED
    loop = ready(make(script(tmp_path, text)))
    begin(loop, work(target=2))
    advanced(loop, 2)
    loop.close(complete=False)
    loop = ready(make(script(tmp_path, text)))
    crash.touch()
    begin(loop, work(target=2))
    with pytest.raises(TaskFailed, match="a crash"):
        advanced(loop, 2)
    begin(loop, work(target=1))
    while (advance := loop.advance(0, 1)) is None:
        pass
    assert advance.losses == 1.0


def test_client_settings_and_places_reach_script(make: Make, tmp_path: Path):
    text = f"""
fed = fedgc.join(torch.nn.Linear(2, 1), samples=3)
while fed.step():
    told = (fed.round, fed.version, fed.global_step, fed.settings.rounds, fed.client["data"], fed.joined)
    open({str(tmp_path / "told")!r}, "w").write(repr(told))
"""
    loop = ready(make(script(tmp_path, text), rounds=7))
    begin(loop, work(target=1, round_=4, version=2))
    advanced(loop, 1)
    assert (tmp_path / "told").read_text() == "(4, 2, 100, 7, 'north.pt', True)"


def test_steps_of_run_are_known_after_last_model(make: Make, tmp_path: Path):
    """The last model is scored after the last exchange, which counts the steps of its round."""
    text = f"""
model = torch.nn.Linear(2, 1)
fed = fedgc.join(model, samples=3, validate=lambda m: {{"sum": float(m.weight.sum())}})
while fed.step():
    pass
open({str(tmp_path / "told")!r}, "w").write(repr((fed.version, fed.global_step, model.weight.tolist())))
"""
    loop = ready(make(script(tmp_path, text)))
    begin(loop, work(target=2, round_=4, version=2))
    advanced(loop, 2)
    assert loop.validate(3, np.full(3, 7.0, np.float32))
    while not loop.scores(wait=True):
        pass
    loop.close(complete=True)
    assert (tmp_path / "told").read_text() == "(3, 102, [[7.0, 7.0]])"


def test_validate_scores_model_before_training(make: Make, tmp_path: Path):
    text = """
model = torch.nn.Linear(2, 1)
fed = fedgc.join(model, samples=3, validate=lambda m: {"sum": float(m.weight.sum()), "samples": 2})
assert model.training
while fed.step():
    assert model.training
"""
    loop = ready(make(script(tmp_path, text)))
    assert loop.validate(0, np.zeros(3, np.float32))
    begin(loop, work(target=1), fill=2.0)
    advanced(loop, 1)
    (scored,) = loop.scores(wait=True)
    assert (scored.version, scored.samples, dict(scored.figures)) == (0, 2, {"sum": 4.0})


def test_private_tensors_stay_and_outlive_script(make: Make, tmp_path: Path):
    words = ("--sizes", 4, 2, "--private", 1, "--fault", "kill", "--fault-at", 6, "--once", tmp_path / "once")
    loop = ready(make(adding(*words)))
    assert [each.name for each in loop.layout.tensors] == ["0"]
    begin(loop, work(target=3))
    advanced(loop, 3)
    np.testing.assert_array_equal(handed(loop), np.full(4, 3.0, np.float32))
    begin(loop, work(target=9, round_=2, version=1))
    with pytest.raises(TaskFailed, match="killed by SIGKILL"):
        advanced(loop, 9)
    begin(loop, work(target=1, round_=3, version=1))
    advanced(loop, 1)
    handed(loop)
    import torch

    kept = torch.load(tmp_path / "state" / "script.pt", weights_only=True)["private"]
    assert kept["1"].tolist() == [4.0, 4.0]  # three steps, lost three, and one


def test_process_without_secret_is_turned_away(make: Make, tmp_path: Path):
    import socket

    loop = make(adding())
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(str(loop._script._folder / "client"))
        stranger.sendall(b'{"kind":"hello","secret":"guess"}\n')
        loop._turn()
        assert stranger.recv(1) == b""
    ready(loop)


def test_ended_script_leaves_no_process(make: Make):
    loop = ready(make(adding("--step-s", 0.05)))
    begin(loop, work(target=1000, most=1000))
    advanced(loop, 1)
    pid = loop._script._process._process.pid
    loop.close(complete=False)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, signal.SIG_DFL)


def test_stop_of_run_is_one_line_in_log_of_script(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(script_loop, "STOP_S", WAIT_S)  # also on a busy machine
    loop = ready(make(adding("--step-s", 0.05)))
    begin(loop, work(target=1000, most=1000))
    advanced(loop, 1)
    process = loop._script._process
    loop.close(complete=False)
    said = "fedgc: the client has ended the training: the session has ended; this is no error of the script"
    assert (tmp_path / "state" / "script.log").read_text() == (
        f"{said}, which starts again when the run goes on\n"
    )
    assert process.ended == 1


def test_error_of_script_keeps_its_traceback_in_log(make: Make, tmp_path: Path):
    loop = ready(make(adding("--fault", "raise")))
    begin(loop, work(target=8))
    with pytest.raises(TaskFailed, match="ValueError: the data is gone"):
        advanced(loop, 8)
    log = (tmp_path / "state" / "script.log").read_text()
    assert log.startswith("Traceback (most recent call last):\n")
    assert log.endswith("ValueError: the data is gone\n")


def test_launcher_that_is_missing_is_named():
    with pytest.raises(BadSetting, match="saw 'no-such-launcher', which is not installed here"):
        command_of("no-such-launcher --nproc 2 train.py")
    assert command_of("train.py --lr 1")[0] == sys.executable


def test_owner_can_pin_command(make: Make, tmp_path: Path):
    config = RunConfig(script="no-such-program")
    loop = ScriptLoop(
        ScriptFacts(config, "north", {}, tmp_path / "state", pinned=adding("--samples", 7)), time.sleep
    )
    try:
        assert dict(ready(loop).sizes) == {"north": 7}
    finally:
        loop.close(complete=True)


@pytest.mark.parametrize(
    "forks",
    [
        "if os.fork() == 0: sys.exit(0)\n    os.wait()",
        "p = multiprocessing.get_context('fork').Pool(2); p.map(abs, [1]); p.terminate(); p.join()",
    ],
    ids=["exit", "pool"],
)
def test_fork_of_script_neither_leaves_nor_ignores_sigterm(make: Make, tmp_path: Path, forks: str):
    text = f"""
import multiprocessing, os, sys
fed = fedgc.join(torch.nn.Linear(2, 1), samples=3)
while fed.step():
    {forks}
"""
    loop = ready(make(script(tmp_path, text)))
    begin(loop, work(target=2))
    advanced(loop, 2)
    handed(loop)
    assert not loop._left
    begin(loop, work(target=1, round_=2, version=1))
    advanced(loop, 1)


@pytest.mark.parametrize(
    ("guard", "says"),
    [
        ("True", "exit status 1: fedgc: saw a step of a process that imports the script anew, needed `if __"),
        ("__name__ == '__main__'", "exit status 7"),
    ],
)
def test_step_of_spawned_process_is_refused(make: Make, tmp_path: Path, guard: str, says: str):
    """It would wait for the client, which speaks with the script itself; `join` alone does no harm."""
    text = f"""
import multiprocessing, os
fed = fedgc.join(torch.nn.Linear(2, 1), samples=3)
if {guard}:
    fed.step()
    child = multiprocessing.get_context("spawn").Process(target=abs, args=(1,))
    child.start()
    child.join()
    os._exit(child.exitcode or 7)
"""
    loop = ready(make(script(tmp_path, text)))
    begin(loop, work())
    with pytest.raises(TaskFailed, match=says):
        advanced(loop, 4)


def test_program_started_by_script_trains_by_itself(make: Make, tmp_path: Path):
    """It would wait for the client, which speaks with the script, and the script for it."""
    text = """
import subprocess, sys
fed = fedgc.join(torch.nn.Linear(2, 1), samples=3)
if len(sys.argv) > 1:
    sys.exit(7 if fed.step() and not fed.joined and fedgc.client_settings()["name"] == "north" else 1)
fed.step()
sys.exit(subprocess.run([sys.executable, __file__, "again"]).returncode)
"""
    loop = ready(make(script(tmp_path, text)))
    begin(loop, work())
    with pytest.raises(TaskFailed, match="exit status 7"):
        advanced(loop, 4)


def test_script_that_dies_in_validation_without_work_is_reported(make: Make, tmp_path: Path):
    text = """
fed = fedgc.join(torch.nn.Linear(2, 1), samples=3, validate=lambda m: exit(3))
while fed.step(): pass
"""
    loop = ready(make(script(tmp_path, text)))
    cache = ClientCache(1_000_000, tmp_path)
    engine = LocalEngine(loop, RunConfig(script="script.py"), Trajectories(cache, None))
    engine.load(5, np.zeros(engine.size, np.float32))
    engine.handle(Validate("north", 1, 5))
    end = time.monotonic() + WAIT_S
    while (event := engine.step()) is None and time.monotonic() < end:
        pass
    assert isinstance(event, Scored)
    assert (event.version, event.figures) == (5, ())
    assert "exit status 3" in event.problem


def answered(engine: LocalEngine, command: Reveal) -> Answer:
    """Return what a command asks for, once the script has ended its step."""
    answer, end = engine.answer(command), time.monotonic() + WAIT_S
    while not isinstance(answer, Answer):
        assert time.monotonic() < end, "the engine answers nothing"
        answer = engine.step()
    return answer


def test_script_trains_on_while_fragments_travel(make: Make, tmp_path: Path):
    loop = ready(make(adding("--step-s", 0.01)))
    config = RunConfig(script="script.py", fragments=2, fragment_mixing=0.5, link="session")
    engine = LocalEngine(loop, config, Trajectories(ClientCache(1_000_000, tmp_path), None))
    assert engine.layout is not None
    engine.load(0, np.zeros(4, np.float32))
    engine.handle(work(target=2, most=10_000))
    end = time.monotonic() + WAIT_S
    while not isinstance(engine.step(), Report) and time.monotonic() < end:
        pass
    first = answered(engine, Reveal("north", 1, 0, "local", None))
    np.testing.assert_array_equal(first.vector[:], np.full(2, -first.report.steps, np.float32))
    while engine.kept()[0].reached < first.report.steps + 3 and time.monotonic() < end:
        engine.step()
    engine.handle(Close("north", 1, "synced", frees=True))
    engine.load(1, np.array([100, 100, 0, 0], np.float32), Changed(0, (slice(0, 2),)))
    engine.handle(work(target=2, most=10_000, round_=2, version=1))
    second = answered(engine, Reveal("north", 2, 0, "local", None))
    assert second.report.steps >= 3, "the steps while the fragment travelled count"
    total = first.report.steps + second.report.steps
    np.testing.assert_array_equal(second.vector[:], np.full(2, -total, np.float32))
    now = loop.hand_in(wait=True)
    assert (now[:2] > 50).all()
    assert (now[:2] < now[2:] + 50).all(), "half of its own values, and half of the new ones"


def test_loss_that_is_not_finite_is_left_out_of_mean(make: Make, tmp_path: Path):
    text = """
fed = fedgc.join(torch.nn.Linear(2, 1), samples=3)
while fed.step():
    fed.log(loss=2.0)
    fed.log(loss=float("nan"))
    fed.log(loss=float("inf"))
"""
    loop = ready(make(script(tmp_path, text)))
    begin(loop, work(target=2))
    reached, losses = 0, 0.0
    while reached < 2:
        if advance := loop.advance(reached, 2):
            reached, losses = reached + advance.steps, losses + advance.losses
    assert 0 < losses < float("inf")


def test_long_path_of_temporary_files_is_no_obstacle(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    long = tmp_path / ("x" * 120)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    assert ready(make(adding())).layout
