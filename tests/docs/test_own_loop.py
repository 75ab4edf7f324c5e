"""Test docs/how-to/own-loop.md: its diffs make plain scripts of the examples, and both train alike."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.scripts.driven import Driven

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "trainer"
PAGE = (ROOT / "docs" / "how-to" / "own-loop.md").read_text()
DIFF = re.compile(r"`(\w+\.py)`\s+differs\s+in\s+(\w+)\s+lines[^`]*```diff\n(.*?)```", re.DOTALL)
DIFFS = {name: (said, diff) for name, said, diff in DIFF.findall(PAGE)}
WORDS = {"four": 4, "five": 5}
MOST_CHANGED = 5


def side(hunk: str, without: str) -> str:
    return "".join(line[1:] or "\n" for line in hunk.splitlines(keepends=True) if line[:1] != without)


def before(name: str) -> str:
    """The script without the lines that the page adds, and with those that it takes away."""
    text = (EXAMPLES / name).read_text()
    for hunk in DIFFS[name][1].split("@@\n"):
        assert text.count(side(hunk, "-")) == 1, hunk
        text = text.replace(side(hunk, "-"), side(hunk, "+"))
    return text


RUNS = """
import os, pathlib, runpy, sys
scripts = sys.argv[1:]
sys.argv[1:] = ["--epochs", "3"]
for script in scripts:
    os.chdir(pathlib.Path(script).parent)
    sys.argv[0] = script
    runpy.run_path(script, run_name="__main__")
    print("over", flush=True)
"""


def last_lines(*scripts: Path) -> list[str]:
    """Run scripts one after the other in one process, which imports torch once; return their last lines."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{EXAMPLES}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", RUNS, *scripts], capture_output=True, text=True, timeout=200, env=environment
    )
    assert done.returncode == 0, done.stderr
    return [said.splitlines()[-1] for said in done.stdout.split("over\n")[:-1]]


PROXIMAL = """
import torch
import fedgc

class Sum(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(4))

    def forward(self, batch):
        return self.weight.sum() * batch

model = Sum()
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
fed = fedgc.join(model, samples=1)
loader = [(torch.ones(1), torch.zeros(1))]
"""


def test_proximal_term_is_from_newest_common_model(tmp_path: Path):
    """With a loss of minus the sum of the weights, the term holds them after the first step of a round."""
    block = re.search(r"## A proximal term.*?```python\n(.*?)```", PAGE, re.DOTALL)
    assert block is not None
    loop = block.group(1).replace("mu = 0.01", "mu = 1.0")
    loop = loop.replace("torch.nn.functional.mse_loss(model(batch), target)", "-model(batch).sum()")
    (tmp_path / "script.py").write_text(PROXIMAL + loop)
    with Driven(tmp_path / "script.py", tmp_path) as client:
        for fill in (5.0, 100.0):
            client.begin(fill)
            vector, steps = client.handed(client.steps(3))
            assert steps >= 3
            assert vector.tolist() == [fill + 1.0] * 4


SEVERAL = """
import torch
import fedgc

class Less(torch.nn.Linear):
    def forward(self, batch):
        return super().forward(batch).detach() - self.bias.sum() - self.weight.sum()

model = Less(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
fed = fedgc.join(model, samples=5)
torch.nn.functional.mse_loss = lambda out, target: out.mean()
loader = [(torch.ones(1, 2), torch.zeros(1, 1))] * 5
other = [torch.zeros(1)] * 3
"""


def test_step_of_several_loaders_counts_once_and_lasts(tmp_path: Path):
    """The page's loop goes on after both loaders have been passed over, and each step adds one."""
    block = re.search(r"\*\*Several loaders\.\*\*.*?```text\n(.*?)```", PAGE, re.DOTALL)
    assert block is not None
    (tmp_path / "script.py").write_text(SEVERAL + block.group(1))
    with Driven(tmp_path / "script.py", tmp_path) as client:
        client.begin(0.0)
        vector, steps = client.handed(client.steps(12))
    assert steps >= 12
    assert vector.tolist() == [float(steps)] * 3


STOPS = """
import torch
import fedgc

model = torch.nn.Linear(2, 1)
best = {name: torch.full_like(each, -9.0) for name, each in model.state_dict().items()}
fed = fedgc.join(model, samples=5)
"""


def test_weights_restored_after_hand_over_are_own_of_script(tmp_path: Path):
    block = re.search(r"```text\n(stops = False\n.*?)```", PAGE, re.DOTALL)
    assert block is not None
    loop = block.group(1).replace("    ...\n", "    stops = fed.global_step == 3\n")
    (tmp_path / "script.py").write_text(STOPS + loop)
    with Driven(tmp_path / "script.py", tmp_path) as client:
        client.begin(1.0)
        client.wait_for_leave()
        assert client.loop.hand_in().tolist() == [1.0] * 3


def test_page_shows_every_script():
    assert set(DIFFS) == {"plain.py", "huggingface.py", "lightning.py"}


@pytest.mark.parametrize("name", sorted(DIFFS))
def test_script_takes_part_by_few_changed_lines(name: str):
    said, diff = DIFFS[name]
    added = re.findall(r"^\+ *\S", diff, re.MULTILINE)
    assert len(added) == WORDS[said] <= MOST_CHANGED
    assert len(re.findall(r"^-", diff, re.MULTILINE)) <= len(added)


@pytest.mark.parametrize(
    "name",
    [
        "plain.py",
        *(pytest.param(each, marks=pytest.mark.slow) for each in sorted(DIFFS.keys() - {"plain.py"})),
    ],
)
def test_script_trains_alone_as_without_fedgc(name: str, tmp_path: Path):
    (tmp_path / name).write_text(before(name))
    assert not re.search(r"\bfed(gc)?\b", re.sub('""".*?"""', "", before(name)))
    without, with_fedgc = last_lines(tmp_path / name, EXAMPLES / name)
    assert float(without.removeprefix("accuracy ")) > 0.7
    assert with_fedgc == without
