"""Test that a client survives whatever its training script sends, and says in one line what was wrong."""

import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from fedgc.config import RunConfig
from fedgc.errors import TaskFailed
from fedgc.messages import Work
from fedgc.training.local_loop import Begin
from fedgc.training.loop.shared_vectors import SharedVectors
from fedgc.training.script import script_loop
from fedgc.training.script.connection import HELLO_S, ScriptFacts
from fedgc.training.script.script_loop import ScriptLoop

CONNECTED = """
import json, os, socket, time
told = json.loads(os.environ["FEDGC_CLIENT"])
client = socket.socket(socket.AF_UNIX)
client.connect(told["socket"])
def say(kind, **fields):
    client.sendall(json.dumps({"kind": kind, **fields}).encode() + b"\\n")
def announce(sides=(4,), names=("w",), samples=3):
    tensors = [[name, "float32", sides] for name in names]
    say("announce", tensors=tensors, parameters=1, samples=samples, validates=True)
def score(version=0, samples=1, figures={}, problem=""):
    say("scored", version=version, samples=samples, figures=figures, problem=problem)
"""
HELLO = 'say("hello", secret=told["secret"])\n'
CLAIMS = """
import mmap
import numpy as np
_, (descriptor, *_), *_ = socket.recv_fds(client, 9999, 1)
memory = mmap.mmap(descriptor, 0)
np.frombuffer(memory, np.float64, 16)[8] = {seconds}
np.frombuffer(memory, np.int64, 3)[:] = {steps}, 0, 1
"""
WAIT_S = 20.0

Start = Callable[[str], ScriptLoop]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    made: list[ScriptLoop] = []

    def started(text: str) -> ScriptLoop:
        path = tmp_path / "script.py"
        path.write_text(CONNECTED + text + "\ntime.sleep(30)\n")
        facts = ScriptFacts(RunConfig(script=str(path)), "north", {}, tmp_path / "state")
        made.append(ScriptLoop(facts, time.sleep))
        return made[-1]

    yield started
    for each in made:
        each.close()


def heard(loop: ScriptLoop) -> None:
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        if loop.layout is not None:
            loop.scores(wait=True)
        time.sleep(0.01)


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def announced(loop: ScriptLoop) -> ScriptLoop:
    end = time.monotonic() + WAIT_S
    while loop.layout is None:
        assert time.monotonic() < end, "the script has announced nothing"
        time.sleep(0.01)
    return loop


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('announce(); say("ready"); score(figures=[1])', "scored: saw"),
        ('announce(); say("ready"); score(version=float("inf"))', "scored: saw"),
        ('announce(); say("ready"); score(figures={"loss": float("nan")})', "needed finite figures"),
        ('announce(); say("ready"); score(version=-1)', "needed version of 0 or more"),
        ('announce(samples=float("inf"))', "announce: saw"),
        ("announce(samples=10**30)", "needed at least one sample, at most"),
        ('announce(names=[f"weight{number % 5000}" for number in range(5001)])', "Layout"),
        ('say("ready")', "ready: saw no model before it"),
        ('say("left", at_exit=False)', "left: saw no model before it"),
        ('client.sendall(b"[]" + bytes([10]))', "needed an object with a kind"),
    ],
)
def test_bad_line_is_told_in_one_short_line(start: Start, text: str, says: str):
    loop = start(HELLO + text)
    with pytest.raises(TaskFailed, match=says) as caught:
        heard(loop)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) <= 400


@pytest.mark.parametrize("sides", [(1 << 40, 1 << 40), (10**12,), (0,)])
def test_model_that_no_memory_holds_is_refused(start: Start, sides: tuple[int, ...]):
    raises = 'raise SystemExit(json.loads(client.recv(9999))["reason"])'
    loop = start(f"{HELLO}announce({sides})\n{raises}")
    with pytest.raises(TaskFailed, match=r"saw a model of \d+ numbers, needed 1 to"):
        announced(loop)


def test_secret_that_is_not_ascii_is_turned_away(start: Start):
    loop = start('say("hello", secret="é"); raise SystemExit(client.recv(1) and 1 or 4)')
    with pytest.raises(TaskFailed, match="exit status 4"):
        announced(loop)


def test_lines_without_end_leave_client_its_turn(start: Start):
    flood = 'announce(); say("ready")\nwhile True: score()'
    loop = announced(start(HELLO + flood))
    time.sleep(0.5)
    assert 0 < len(loop.scores(wait=True)) <= 64


def test_announcements_without_end_never_block_client(start: Start):
    loop = start(HELLO + "while True: announce()")
    with pytest.raises(TaskFailed, match="saw lines unread, needed a reader of the shared memory"):
        announced(loop)


def given_work(loop: ScriptLoop) -> ScriptLoop:
    job = Work("north", 1, 0, 5, (0,), ((0, "north"),), 0, 60.0, kind="local", most_steps=5)
    loop.begin(Begin(job, ("north",), np.zeros(4, np.float32), None, None, 0))
    return loop


def advanced(loop: ScriptLoop) -> None:
    end = time.monotonic() + WAIT_S
    while loop.advance(0, 5) is None:
        assert time.monotonic() < end, "the script has counted nothing"


def test_claimed_seconds_do_not_lengthen_wait(start: Start, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(script_loop, "HAND_IN_S", 0.0)
    claims = CLAIMS.format(steps=3, seconds=1e29)
    loop = announced(start(HELLO + f"announce(); say('ready'); {claims}"))
    began = time.monotonic()
    given_work(loop)
    advanced(loop)
    passed_s = time.monotonic() - began
    assert loop.hand_in(wait=True) is None
    assert time.monotonic() - began < 4 * passed_s + 1.0


@pytest.mark.parametrize(("steps", "seconds"), [(2**62, "1"), (3, "1e300"), (3, "np.nan"), (3, "np.inf")])
def test_counters_no_message_can_hold_fail_script(start: Start, steps: int, seconds: str):
    claims = CLAIMS.format(steps=steps, seconds=seconds)
    loop = given_work(announced(start(HELLO + f"announce(); say('ready'); {claims}")))
    with pytest.raises(TaskFailed, match=r"saw \d+ steps in \S+ s in its counters, needed at most"):
        advanced(loop)


def test_unproven_connections_do_not_delay_client(start: Start):
    loop = start("time.sleep(1.0)\n" + HELLO + "announce(); say('ready')")
    strangers = [socket.socket(socket.AF_UNIX) for _ in range(4)]
    assert loop.layout is None
    for each in strangers:
        each.connect(str(loop._script._folder / "client"))
        each.sendall(b"x")
    began = time.monotonic()
    assert loop.layout is None
    assert time.monotonic() - began < HELLO_S / 2
    assert announced(loop).layout is not None
    for each in strangers:
        each.close()


def test_line_without_end_is_refused_soon(start: Start):
    loop = start(HELLO + "client.sendall(bytes(1 << 25))")
    began = time.process_time()
    with pytest.raises(TaskFailed, match="saw a line over"):
        announced(loop)
    assert time.process_time() - began < 1.0


def test_descriptors_of_script_are_closed(start: Start):
    sends = "announce(); [socket.send_fds(client, [b' '], [0]) for _ in range(200)]; say('ready')"
    before = open_files()
    announced(start(HELLO + sends))
    assert open_files() < before + 50


def test_script_that_reads_nothing_never_blocks_its_client(start: Start):
    loop = announced(start(HELLO + "announce(); say('ready')"))
    names = ((0, "north"),)
    for version in range(2000):
        job = Work("north", version + 1, version, 1, (0,), names, 0, 60.0, kind="local", most_steps=1)
        loop.begin(Begin(job, ("north",), np.zeros(4, np.float32), None, None, 0))
    assert loop.advance(0, 1) is None


def test_script_that_reads_nothing_fails(start: Start):
    loop = announced(start(HELLO + "announce(); say('ready')"))
    for _ in range(100_000):
        loop.rest()
        loop._resting = False
    with pytest.raises(TaskFailed, match="bytes unread, needed a reader"):
        loop.advance(0, 1)


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="only Linux can fix the size of shared memory")
@pytest.mark.parametrize("size_bytes", [0, 1 << 20])
def test_script_cannot_change_size_of_shared_memory(size_bytes: int) -> None:
    """A client that reads what was cut off would be ended by SIGBUS."""
    shared = SharedVectors.create(3)
    with pytest.raises(PermissionError):
        os.ftruncate(shared.descriptor, size_bytes)
    shared.trained[:] = 1.0
    assert shared.trained.tolist() == [1.0, 1.0, 1.0]
    shared.close()
