"""A script that trains in a process of multiprocessing, or forks after it has joined."""

from pathlib import Path

import pytest

from fedgc.errors import TaskFailed
from tests.scripts.driven import Driven

IN_CHILD = """
import multiprocessing, sys, torch, fedgc

def train():
    model = torch.nn.Linear(1, 1)
    fed = fedgc.join(model, samples=3)
    for step, _ in enumerate(fed.steps([0])):
        with torch.no_grad():
            model.weight.add_(1.0), model.bias.add_(1.0)
        if step == 2:
            {end}

if __name__ == "__main__":
    child = multiprocessing.get_context("{method}").Process(target=train)
    child.start()
    child.join()
"""
FORKED = """
import os, torch, fedgc
model = torch.nn.Linear(1, 1)
fed = fedgc.join(model, samples=3)
child = 0
while fed.step():
    with torch.no_grad():
        model.weight.add_(1.0), model.bias.add_(1.0)
    if not child and not (child := os.fork()):
        fed.step()
        os._exit(0)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return tmp_path / "script.py"


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("end", ["break", "sys.exit(0)"])
def test_early_end_in_child_process_hands_in(script: Path, tmp_path: Path, method: str, end: str):
    script.write_text(IN_CHILD.format(method=method, end=end))
    with Driven(script, tmp_path) as client:
        client.begin(fill=5.0)
        client.wait_for_leave()
        vector, steps = client.handed(0)
    assert (vector.tolist(), steps) == ([8.0, 8.0], 2)


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("end", ["raise ValueError('no data')", "sys.exit(3)"])
def test_failed_child_process_hands_nothing_in(script: Path, tmp_path: Path, method: str, end: str):
    """Also if the script does not look at the exit status of its child."""
    script.write_text(IN_CHILD.format(method=method, end=end))
    with Driven(script, tmp_path) as client:
        client.begin(fill=5.0)
        with pytest.raises(TaskFailed, match="the script ended: exit status 0"):
            client.steps(3)
        assert not client.loop.has_left


def test_step_of_fork_is_refused_and_not_counted(script: Path, tmp_path: Path):
    """It would be counted for the process that has joined, whose model it does not change."""
    script.write_text(FORKED)
    with Driven(script, tmp_path) as client:
        client.begin(fill=5.0)
        vector, steps = client.handed(client.steps(20))
        words = client.words()
    assert vector.tolist() == [5.0 + steps] * 2
    assert "saw a step of a fork of the process that called fedgc.join, needed" in words
