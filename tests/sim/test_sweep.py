"""Test sweeps: the figures of equal work, the frontier, the recommendation, the page, and what is refused."""

import json
import math
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fedgc.cli.commands import app
from fedgc.config import RunConfig
from fedgc.errors import BadSetting, Unusable
from fedgc.sim.clock import ClientModel, working
from fedgc.sim.past_run import PastRun
from fedgc.sim.play import TimedClients, play
from fedgc.sim.sweep import Swept, Trial, run_sweep
from fedgc.sim.sweep_file import Sweep, read_sweep

FILE = """
rounds = 6
model-mb = 8.0
[settings]
local-steps = 16
gate.name = "every"
[grid]
"links.codec" = ["float32", "int8"]
"timing.quorum" = [1.0]
[scenarios.even]
clients = 4
model = "homogeneous"
uplink-mb-s = 4.0
downlink-mb-s = 8.0
[scenarios.uneven]
clients = 4
model = "bimodal-persistent"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "sweep.toml"
    path.write_text(FILE)
    return path


def unknown(run: str):
    raise AssertionError(f"no run {run} was asked for")


def test_times_and_bytes_are_those_of_equal_work(file: Path):
    """1 s down, 1 s of work, 2 s up for each of two slots: 64 steps in a round, 8 MB for each model."""
    swept = run_sweep(read_sweep(file), unknown)
    plain, short = swept.trials[:2]
    assert plain.seconds == pytest.approx((1.0 + 1.0 + 2 * 2.0) / 64 * 1000)
    assert plain.megabytes == pytest.approx(4 * (8.0 + 8.0) / 64 * 1000)
    assert short.seconds < plain.seconds
    assert short.megabytes == pytest.approx(4 * (8.0 + 8.0 * 0.251) / 64 * 1000, rel=0.01)
    assert swept.frontier("even") == {1}
    assert swept.recommended == 1
    assert swept.settings(1) == {
        "local-steps": 16, "gate.name": "every", "links.codec": "int8", "timing.quorum": 1.0
    }  # fmt: skip


def trial(combination: int, seconds: float, megabytes: float, scenario: str = "a", ended: str = "") -> Trial:
    return Trial(combination, scenario, seconds, megabytes, 1.0, 0.0, 6, ended)


def test_frontier_leaves_out_beaten_settings(file: Path):
    sweep = read_sweep(file)
    three = Sweep(1, 1, 1.0, {}, ({}, {}, {}, {}), (sweep.scenarios[0],))
    points = [(1.0, 9.0), (2.0, 2.0), (3.0, 2.0), (math.inf, math.inf)]
    swept = Swept(three, tuple(trial(at, *each, scenario="even") for at, each in enumerate(points)))
    assert swept.frontier("even") == {0, 1}
    assert swept.recommended == 1


def test_missing_sweep_is_refused_without_error_number(tmp_path: Path):
    with pytest.raises(BadSetting, match=r"^sweep none\.toml: cannot be read: No such file or directory$"):
        read_sweep(tmp_path / "none.toml")


def test_run_that_ends_early_is_not_recommended(file: Path):
    sweep = read_sweep(file)
    one = Sweep(1, 1, 1.0, {}, ({},), (sweep.scenarios[0],))
    assert Swept(one, (trial(0, 1.0, 1.0, "even", ended="no client"),)).recommended is None


def test_failing_run_does_not_wait_for_queued_runs(file: Path, tmp_path: Path):
    many = replace(read_sweep(file), seeds=50)
    with pytest.raises(BadSetting, match="no such luck"):
        run_sweep(many, unknown, workers=2, trial=partial(failing, tmp_path / "begun"))
    assert (tmp_path / "begun").stat().st_size < 4 * many.seeds


def failing(begun: Path, *_: object) -> Trial:
    with begun.open("a") as file:
        file.write("1")
    time.sleep(0.01)
    raise BadSetting("no such luck")


def test_command_takes_frontier_once_and_unknown_figures_as_null(file: Path, monkeypatch):
    taken, frontier = [], Swept.frontier

    def counted(swept: Swept, scenario: str) -> frozenset[int]:
        taken.append(scenario)
        return frontier(swept, scenario)

    def played(sweep: Sweep, *_: object, **__: object) -> Swept:
        of = [(at, each.name) for each in sweep.scenarios for at in (0, 1)]
        return Swept(sweep, tuple(replace(trial(at, 1.0, 1.0, name), last=math.nan) for at, name in of))

    monkeypatch.setattr(Swept, "frontier", counted)
    monkeypatch.setattr("fedgc.cli.sim_sweep.run_sweep", played)
    said = CliRunner().invoke(app, ["sim", "--sweep", str(file), "--json"], catch_exceptions=False)
    assert [row["last"] for row in json.loads(said.stdout)["rows"]] == [None] * 4
    assert taken == ["even", "uneven"]


def test_command_prints_settings_and_writes_page(file: Path):
    page = file.with_name("out.html")
    done = CliRunner().invoke(
        app, ["sim", "--sweep", str(file), "--html", str(page), "--json"], catch_exceptions=False
    )
    said = json.loads(done.stdout)
    assert RunConfig.read(said["figures"]["recommended"]).codec == "int8"
    assert {(row["scenario"], row["frontier"]) for row in said["rows"]} >= {("even", True), ("uneven", True)}
    text = page.read_text()
    assert "[tool.flwr.app.config]" in text
    assert text.count("<circle") == 4
    assert text.count("<svg") == text.count("<div class=scroll><svg"), "as wide as its words need"
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")


@pytest.mark.parametrize("stack", ["", "stack = 2\n"])
def test_sweep_with_task_gives_time_to_target(file: Path, stack: str):
    file.write_text(
        f'rounds = 5\ntrain = "digits"\ntarget = 0.3\n{stack}[settings]\nlocal-steps = 4\n[grid]\n'
        '"learning-rate" = [0.0001, 0.2]\n[scenarios.even]\nclients = 2\nmodel = "homogeneous"\n'
    )
    page = file.with_name("out.html")
    words = ["sim", "--sweep", str(file), "--html", str(page), "--json"]
    said = json.loads(CliRunner().invoke(app, words, catch_exceptions=False).stdout)
    slow, quick = said["rows"]
    assert said["figures"]["for"] == "accuracy 0.3"
    assert (slow["seconds"], slow["frontier"]) == (None, False)
    assert slow["last"] < 0.3 <= quick["last"]
    assert 0 < quick["seconds"] < 10
    assert said["figures"]["recommended"]["learning-rate"] == 0.2
    assert "To accuracy 0.3" in page.read_text()


def test_run_that_ends_before_it_is_evaluated_is_shown(file: Path):
    """Its only client dies in the first round; the other scenario goes on."""
    file.write_text(
        'rounds = 2\ntrain = "digits"\ntarget = 0.1\n[settings]\nlocal-steps = 16\nlinks.grace-s = 1.0\n'
        '[scenarios.even]\nclients = 2\nmodel = "homogeneous"\n'
        '[scenarios.dies]\nclients = 1\nmodel = "fail-stop"\nreturns-s = 1000000\n'
    )
    page = file.with_name("out.html")
    words = ["sim", "--sweep", str(file), "--html", str(page)]
    said = CliRunner().invoke(app, words, catch_exceptions=False).stdout
    assert "none reached the target on every scenario" in said
    dies, even = (line for line in said.splitlines() if line.startswith(("│ dies", "│ even")))
    assert "ended after 1 rounds" in dies
    assert dies.split("│")[-2].strip() == "-"
    assert "159.90 kB" in even
    assert "<td>-<td>-<td>0%<td>-<td>waited" in page.read_text()


def test_figure_that_task_lacks_is_refused_with_those_it_has(file: Path):
    file.write_text(
        'rounds = 1\ntrain = "digits"\nfigure = "acuracy"\ntarget = 0.1\n[scenarios.a]\nclients = 2\n'
    )
    with pytest.raises(Unusable, match="saw figures loss, accuracy of task digits, needed the figure acur"):
        CliRunner().invoke(app, ["sim", "--sweep", str(file)], catch_exceptions=False)


@pytest.mark.parametrize(
    ("rounds", "seen"), [(0, "no rounds"), (2, "2 rounds, none of them with an exchange")]
)
def test_recorded_run_without_exchange_is_refused(file: Path, rounds: int, seen: str):
    file.write_text('rounds = 5\n[grid]\n"timing.quorum" = [1.0]\n[scenarios.a]\nlike = "r"\n')
    config = RunConfig(work="local", rounds=2, min_clients=1, deadline_s=1.0)
    slow = ClientModel(lambda _: working(np.full((1, 1), 1e6)), [1.0])
    rows = play(config, TimedClients(("a",), slow, 1000, 0), 2).rows[:rounds]
    with pytest.raises(Unusable, match=f"run r: saw {seen}, needed one exchange"):
        run_sweep(read_sweep(file), lambda run: PastRun(run, config, 1000, 1, rows))


def test_trained_run_with_spent_privacy_says_why_it_ended(tmp_path: Path):
    path = tmp_path / "sweep.toml"
    path.write_text(
        'rounds = 5\ntrain = "digits"\ntarget = 1.0\n[settings]\nlocal-steps = 1\ngate.name = "every"\n'
        "privacy.noise = 2.0\nprivacy.epsilon = 2.5\n[scenarios.a]\nclients = 2\n"
    )
    said = CliRunner().invoke(app, ["sim", "--sweep", str(path), "--json"], catch_exceptions=False).stdout
    (run,) = json.loads(said)["rows"]
    assert run["ended"].startswith("the privacy budget is spent: ")


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("rounds = 6", "round = 6", "unknown key 'round'; did you mean rounds?"),
        ("rounds = 6", "rounds = 2.5", "saw rounds = 2.5, needed a whole number"),
        ("rounds = 6", "rounds = 0", "saw rounds = 0, needed a number of at least 1"),
        ("rounds = 6", "seeds = 1001", "saw 4004 runs, needed at most 2000"),
        ('["float32", "int8"]', '"int8"', "grid: saw links.codec = 'int8', needed a list of values"),
        ('["float32", "int8"]', '["int9"]', "sweep sweep.toml: setting links.codec: saw 'int9'"),
        ("clients = 4", 'clients = "4"', "scenario even: saw clients = '4', needed a number"),
        ('"homogeneous"', '"equal"', "scenario even: model 'equal': unknown"),
        ("clients = 4", "unit-steps = 1.5", "scenario even: saw unit-steps = 1.5, needed a whole number"),
        ("clients = 4", 'trace = "t.csv"', "scenario even: saw trace and model, needed one of them"),
        ("clients = 4", 'links = "l.csv"', "scenario even: saw links and uplink-mb-s, needed one of them"),
        ("clients = 4", 'like = "r"', "scenario even: saw like = 'r' and 3 more, needed one run alone"),
        ("local-steps = 16", "rounds = 3", "saw the setting rounds, needed rounds at the top of the file"),
        ("local-steps = 16", "min_clients = 3", "saw the setting min-clients, needed clients in a scenario"),
        ("local-steps = 16", 'secrecy = "masked"\nfederation = "f"', "saw secrecy = masked, needed open"),
        (
            "local-steps = 16",
            "links.kind = 'session'\nlinks.fragments = 2",
            "saw links.fragments = 2, needed 1: whole models are simulated",
        ),
        ("rounds = 6", "rounds = ", "cannot be read"),
        ("rounds = 6", "stack = 4", "saw stack without train, needed a task to train"),
        ("rounds = 6", "target = 0.9", "saw target without train, needed a task to train"),
        ("rounds = 6", 'train = "digits"', "saw model-mb and train, needed one: the task has the model"),
        ("model-mb = 8.0", 'train = "digits"', "saw train without target, needed the value that runs are"),
        ("local-steps = 16", 'client.app = "stock"', "client.app: saw stock in a simulation, needed fedgc"),
    ],
)
def test_bad_file_is_refused_in_one_line(file: Path, old: str, new: str, why: str):
    file.write_text(FILE.replace(old, new, 1))
    with pytest.raises(BadSetting) as refused:
        read_sweep(file)
    assert why in str(refused.value)
    assert "\n" not in str(refused.value)
