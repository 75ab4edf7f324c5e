"""Test `fedgc sim --train`: what it shows, and what it refuses."""

import json
import os
import re
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from fedgc.cli import commands
from fedgc.cli.sim_train import Training
from fedgc.errors import FedgcError
from fedgc.secagg import Descriptor, Federation, Identity, Quantizer
from fedgc.secagg.federation import least_threshold, member_list
from fedgc.sim import Request
from fedgc.sim.masks import Masks
from fedgc.store.descriptor import write_descriptor

LITTLE = ("--clients", "4", "--processes", "1", "--set", "local-steps=2", "--set", "gate.lockstep=on")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*os.sys.path])


def sim(*words: str):
    return CliRunner().invoke(commands.app, ["sim", *words], env={"COLUMNS": "200"})


def test_training_is_shown_as_table_and_json_and_page(tmp_path):
    words = ("--train", "digits", "--rounds", "3", "--partition", "shards:2", *LITTLE)
    table = sim(*words, "--html", "out.html").stdout
    found = json.loads(sim(*words, "--json").stdout)["training"]
    assert "digits on 4 simulated clients, data shards:2" in table
    assert f"model {found['model']}" in table, "the same seed gives the same model"
    assert [each["round"] for each in found["rounds"]] == [1, 2, 3]
    assert all(4 <= each["counted"] <= each["steps"] <= 8 for each in found["rounds"])
    assert found["metrics"] == found["rounds"][-1]["metrics"]
    assert found["metrics"].keys() == {"loss", "accuracy"}
    assert found["up_mb"] == pytest.approx(3 * 4 * 4 * 9994 / 1e6)
    page = (tmp_path / "out.html").read_text()
    assert page.count("<svg") == 5, "two figures over time and bytes, and the loss"
    assert "src=" not in page


def test_script_is_refused_as_no_task():
    said = sim("--train", "train.py", *LITTLE).exception
    assert str(said) == "--train: saw train.py, needed a task, module:attribute: scripts are not simulated"


def test_threads_of_training_are_one_unless_set():
    given = ({}, {"client.threads": 3})
    made = [Training("digits", Request(), each).config(4).threads for each in given]
    assert made == [1, 3]


def test_own_task_is_trained_from_working_folder(tmp_path):
    (tmp_path / "simulated_task.py").write_text(
        "import numpy as np, torch, fedgc\n\n\n"
        "def task(config):\n"
        "    data = (np.ones((40, 2), np.float32), np.ones((40, 1), np.float32))\n"
        "    loss = lambda model, batch: torch.nn.functional.mse_loss(model(batch[0]), batch[1])\n"
        "    return fedgc.over(data, config, model=lambda: torch.nn.Linear(2, 1), loss=loss)\n"
    )
    coded = ("--set", "work=coded", "--set", "data.chunks=8")
    for more in ((), coded):
        said = sim("--train", "simulated_task:task", "--rounds", "2", "--json", *LITTLE[:-2], *more)
        assert [each["outcome"] for each in json.loads(said.stdout)["training"]["rounds"]] == ["synced"] * 2


@pytest.mark.parametrize(
    "more", [("--set", "work=local"), ("--set", "work=coded"), ("--stack", "4")], ids=" ".join
)
def test_simulation_goes_on_after_sigterm(tmp_path, more):
    (tmp_path / "stopping_task.py").write_text(
        "import os, signal, numpy as np, torch, fedgc\n\n\n"
        "def evaluate(model):\n"
        "    with open('figures', 'a') as figures:\n"
        "        figures.write('.')\n"
        "        if figures.tell() == 9:\n"
        "            os.kill(os.getpid(), signal.SIGTERM)\n"
        "    return {'bias': float(model.bias)}\n\n\n"
        "def task(config):\n"
        "    data = (np.eye(40, 2, dtype=np.float32), np.ones((40, 1), np.float32))\n"
        "    loss = lambda model, batch: torch.nn.functional.mse_loss(model(batch[0]), batch[1])\n"
        "    model = lambda: torch.nn.Linear(2, 1)\n"
        "    return fedgc.over(data, config, model=model, loss=loss, evaluate=evaluate)\n"
    )
    times = "".join(f"{n},0,0,{n + 1}\n" for n in range(4))
    (tmp_path / "times.csv").write_text(f"client,round,chunk,seconds\n{times}")
    begun = ("--train", "stopping_task:task", "--rounds", "6", "--trace", "times.csv", *LITTLE[:-2])
    words = (*begun, *more)
    whole = json.loads(sim(*words, "--json").stdout)["training"]
    stopped = sim(*words, "--checkpoint", "run.ckpt")
    assert stopped.exit_code == 130
    assert re.fullmatch(
        r"fedgc: interrupted; `fedgc sim --resume run.ckpt` goes on after round [12]\n", stopped.stderr
    )
    again = sim(*words, "--checkpoint", "run.ckpt").exception
    assert str(again) == "--checkpoint run.ckpt: saw a file, needed a new name, or --resume run.ckpt"
    found = json.loads(sim("--resume", "run.ckpt", "--json", "--processes", "1").stdout)["training"]
    if more[0] == "--stack":
        assert found["metrics"] == pytest.approx(whole["metrics"])
        assert found["seconds"] == whole["seconds"]
    else:
        assert found | {"wall_s": 0} == whole | {"wall_s": 0}
    assert not (tmp_path / "run.ckpt").exists(), "it is over"


def test_clients_draw_different_data(tmp_path):
    (tmp_path / "drawn_task.py").write_text(
        "import numpy as np, torch\nfrom fedgc import Task\n\n\n"
        "def load(name):\n"
        "    inputs = np.random.rand(40, 2).astype(np.float32)\n"
        "    with open('draws', 'a') as draws:\n"
        "        draws.write(f'{inputs[0, 0]}\\n')\n"
        "    return torch.from_numpy(inputs), torch.ones(40, 1)\n\n\n"
        "def task(config):\n"
        "    loss = lambda model, batch: torch.nn.functional.mse_loss(model(batch[0]), batch[1])\n"
        "    chunks = {f'c{n}': 40 for n in range(4)}\n"
        "    return Task(model=lambda: torch.nn.Linear(2, 1), chunks=chunks, load=load, loss=loss)\n"
    )
    sim("--train", "drawn_task:task", "--rounds", "1", *LITTLE)
    draws = (tmp_path / "draws").read_text().split()
    assert len(draws) >= 4
    assert len(set(draws)) == len(draws)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--train", "digit"), "did you mean digits?"),
        (("--train", "digits", "--clients", "2000"), "saw 2000 for 1433 samples"),
        (("--train", "digits", "--set", "data.chunks=9"), "saw 9 chunks, needed one for each of 200 clients"),
        (("--train", "digits", "--partition", "dirichlet:0.001"), "of 200 clients or chunks without samples"),
        (("--train", "digits", "--partition", "owner"), "task digits has labels and no other column"),
        (("--train", "digits", "--partition", "even"), "needed iid, owner, dirichlet:ALPHA"),
        (("--train", "digits", "--policy", "uncoded"), "--train: saw --policy beside it"),
        (("--train", "digits", "--png", "x.png"), "--train: saw --png beside it"),
        (("--train", "digits", "--set", "links.download-codec=bf16"), "links.download-codec"),
        (("--train", "digits", "--set", "client.app=stock"), "client.app: saw stock in a simulation"),
        (("--train", "digits", "--set", "script=x.py"), "script: saw x.py in a simulation, needed none"),
        (
            ("--train", "digits", "--set", "site.gateway=g", "--set", "gate.name=every"),
            "site.gateway: saw g in a simulation, needed none",
        ),
        (
            ("--train", "digits", "--set", "min-clients=2"),
            "min-clients: saw it with --train, needed",
        ),
        (("--train", "digits", "--set", "task=cifar10"), "setting task: saw it with --train"),
        (("--partition", "iid"), "saw --partition, needed --train with it"),
        (
            ("--train", "digits", "--partition", "iid", "--set", "data.partition=shards:2"),
            "--partition: saw the setting data.partition = shards:2 beside it, needed one",
        ),
        (("--stack", "4"), "saw --stack, needed --train with it"),
        (
            ("--train", "digits", "--stack", "4", "--processes", "2"),
            "--stack 4: saw --processes 2 beside it, needed one process",
        ),
        (
            ("--train", "digits", "--stack", "4", "--set", "work=coded"),
            "a stack of 4 clients with coded work, needed local work in this process",
        ),
        (("--checkpoint", "x", "--set", "seed=1"), "saw --checkpoint, --set, needed --train with it"),
        (("--checkpoint", "x"), "saw --checkpoint, needed --train or --sweep with it"),
        (
            ("--train", "digits", "--rounds", "2", "--set", "rounds=9"),
            "--rounds: saw the setting rounds = 9 beside it, needed one of them",
        ),
        (("--train", "digits", "--checkpoint", "."), "saw a folder, needed the name of a file"),
        (
            ("--resume", "none.ckpt"),
            "--resume none.ckpt: saw no such checkpoint, needed one of fedgc sim --ch",
        ),
        (
            ("--resume", "none.ckpt", "--rounds", "9"),
            "--resume: saw --rounds beside it, needed no option but",
        ),
    ],
)
def test_training_that_cannot_begin_is_refused_in_one_line(words, sentence):
    error = sim(*words).exception
    assert isinstance(error, FedgcError)
    assert sentence in str(error)
    assert "\n" not in str(error)


def test_uploads_failures_and_chances_are_those_of_settings():
    request = Request(clients=4, rounds=2, replicas=1, server_mb_s=1.0)
    settings = {"links.upload-slots": 3, "links.grace-s": 7.0, "seed": 5}
    job, model_mb = Training("digits", request, settings).job()
    assert (job.line.slots, job.grace_s, job.line.update_s) == (None, 7.0, model_mb)  # updates are short
    same, _ = Training("digits", replace(request, seed=5, upload_slots=1), {}).job()
    assert same.line.slots == 1, "--upload-slots wins"
    for one, other in zip(job.scenario, same.scenario, strict=True):
        assert (one.pace_wk == other.pace_wk).all(), "--set seed=5 is --seed 5"


def test_figures_that_are_not_finite_are_null_in_json(tmp_path):
    (tmp_path / "broken_figures.py").write_text(
        "import numpy as np, torch, fedgc\n\n\n"
        "def task(config):\n"
        "    data = (np.ones((40, 2), np.float32), np.ones((40, 1), np.float32))\n"
        "    loss = lambda model, batch: torch.nn.functional.mse_loss(model(batch[0]), batch[1])\n"
        "    evaluate = lambda model: {'perplexity': float('inf')}\n"
        "    model = lambda: torch.nn.Linear(2, 1)\n"
        "    return fedgc.over(data, config, model=model, loss=loss, evaluate=evaluate)\n"
    )
    said = sim("--train", "broken_figures:task", "--rounds", "1", "--json", *LITTLE)
    found = json.loads(said.stdout, parse_constant=pytest.fail)["training"]
    assert found["metrics"] == found["rounds"][0]["metrics"] == {"perplexity": None}


def test_figures_may_be_many_and_lack_in_some_rounds(tmp_path):
    (tmp_path / "changing_figures.py").write_text(
        "import numpy as np, torch, fedgc\n\n\n"
        "made = []\n\n\n"
        "def evaluate(model):\n"
        "    made.append(1)\n"
        "    many = {f'figure number {at}': 0.5 for at in range(20)}\n"
        "    return {'[/b] first': 1.0} if len(made) == 1 else many\n\n\n"
        "def task(config):\n"
        "    data = (np.ones((40, 2), np.float32), np.ones((40, 1), np.float32))\n"
        "    loss = lambda model, batch: torch.nn.functional.mse_loss(model(batch[0]), batch[1])\n"
        "    model = lambda: torch.nn.Linear(2, 1)\n"
        "    return fedgc.over(data, config, model=model, loss=loss, evaluate=evaluate)\n"
    )
    coded = ("--set", "work=coded", "--set", "data.chunks=8")
    words = ("--train", "changing_figures:task", "--rounds", "3", *LITTLE[:-2], *coded)
    said = sim(*words, "--html", "out.html", "--json")
    rounds = json.loads(said.stdout)["training"]["rounds"]
    assert [each["counted"] for each in rounds] == [16, 16, 16], "steps, not chunks"
    page = (tmp_path / "out.html").read_text()
    assert re.search(r"figure number 19 over megabytes sent: 0.5 to 0.5, megabytes sent [1-9]", page)
    table = sim(*words).stdout
    assert "│     3 │ synced " in table, "no figure takes the room of other columns"
    assert re.search(r"0\.\d\d kB │ figure number 0 ", table)


@pytest.mark.usefixtures("signals")
def test_simulation_ended_by_signal_removes_its_files(tmp_path, monkeypatch):
    (tmp_path / "ended_task.py").write_text(
        "import os, signal\nfrom dataclasses import replace\nfrom fedgc.training.tasks import named\n\n\n"
        "def task(config):\n"
        "    end = lambda model: os.kill(os.getpid(), signal.SIGTERM)\n"
        "    return replace(named('digits', config), evaluate=end)\n"
    )
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert sim("--train", "ended_task:task", "--rounds", "2", *LITTLE).exit_code != 0
    assert [each.name for each in tmp_path.glob("fedgc-simulation-*")] == []
    sweep = 'rounds = 2\ntrain = "ended_task:task"\ntarget = 0.9\n[grid]\n'
    (tmp_path / "sweep.toml").write_text(sweep + "local-steps = [1, 2]\n[scenarios.even]\nclients = 4\n")
    assert sim("--sweep", "sweep.toml").exit_code == 130
    assert [each.name for each in tmp_path.glob("fedgc-*")] == []


def test_trace_with_fewer_clients_is_refused(tmp_path):

    (tmp_path / "trace.csv").write_text("client,round,chunk,seconds\na,0,0,1\nb,0,0,2\n")
    with_trace = ("--train", "digits", "--trace", "trace.csv", "--rounds", "1")
    error = sim(*with_trace, "--clients", "3").exception
    assert str(error) == "clients: saw 3, the trace has 2"
    found = json.loads(sim(*with_trace, *LITTLE[2:], "--json").stdout)["training"]
    assert (found["clients"], found["rounds"][0]["clients"]) == (2, 2)


def test_simulation_that_ends_early_fails_and_says_why():
    said = sim("--train", "digits", "--rounds", "3", "--clients", "1", "--model", "fail-stop", *LITTLE[2:])
    assert said.stdout.count("empty") == 1
    assert said.exit_code == 1
    assert str(said.exception).startswith("its simulation ended after 1 of 3 rounds: ")


SCORED = (
    "import numpy as np, torch, fedgc\n\n\n"
    "scores = iter((0.3, 0.5, 0.5, 0.4, 0.9, 0.9, 0.9))\n\n\n"
    "def task(config):\n"
    "    data = (np.ones((40, 2), np.float32), np.ones((40, 1), np.float32))\n"
    "    loss = lambda model, batch: torch.nn.functional.mse_loss(model(batch[0]), batch[1])\n"
    "    model = lambda: torch.nn.Linear(2, 1)\n"
    "    evaluate = lambda model: {'accuracy': next(scores)}\n"
    "    return fedgc.over(data, config, model=model, loss=loss, evaluate=evaluate)\n"
)


@pytest.mark.parametrize(
    ("name", "patience", "rounds", "says"),
    [
        (
            "stopped",
            2,
            4,
            "ended early: accuracy has not improved for 2 evaluations; best is version 2, round 2",
        ),
        ("patient", 3, 6, "best model: version 5, round 5, accuracy 0.9"),
    ],
)
def test_simulation_stops_early_as_run_does(tmp_path, name: str, patience: int, rounds: int, says: str):
    (tmp_path / f"{name}.py").write_text(SCORED)
    best = ("--set", "validate.best=accuracy", "--set", f"validate.patience={patience}")
    words = ("--train", f"{name}:task", "--rounds", "6", "--set", "gate.name=every", *LITTLE, *best)
    assert says in " ".join(sim(*words).stdout.split())
    (tmp_path / f"{name}_2.py").write_text(SCORED)
    found = json.loads(sim(*words[:1], f"{name}_2:task", *words[2:], "--json").stdout)["training"]
    assert len(found["rounds"]) == rounds
    assert found["best"]["round"] == (2 if patience == 2 else 5)


def test_simulation_without_figure_of_best_model_fails():
    best = ("--set", "validate.best=f1", "--set", "validate.best-is=highest")
    said = sim("--train", "digits", "--rounds", "2", *LITTLE, *best)
    assert str(said.exception) == "setting validate.best: needed the figure f1, saw figures accuracy, loss"


def test_too_many_clients_for_data_are_named():
    said = str(sim("--train", "digits", "--clients", "3000").exception)
    assert said.startswith(
        "setting data.chunks: saw 3000 for 1433 samples, needed 1 to 1433; it is --clients"
    )


def descriptor(tmp_path, members: int) -> str:
    identities = [Identity(bytes([number]) * 32) for number in range(1, members + 1)]
    listed = member_list([(f"site {at}", each.public) for at, each in enumerate(identities)])
    federation = Federation(listed, least_threshold(members), 3, 8, Quantizer(0.5, 20, 32, 2000))
    write_descriptor(tmp_path / "all.fed", Descriptor(federation).endorse(identities[0]))
    return "federation=all.fed"


def test_masked_run_trains_as_open_one_and_takes_longer(tmp_path):
    masks = ("--set", "secrecy=masked", "--set", descriptor(tmp_path, 4))
    words = ("--train", "digits", "--rounds", "2", "--model", "homogeneous", "--upload-slots", "4", "--json")
    words = (*words, *LITTLE[:-2], "--set", "timing.quorum=1.0")
    opened = ("--set", "gate.lockstep=on", "--set", "aggregation.rule=weighted-mean")
    masked, plain = (json.loads(sim(*words, *more).stdout)["training"] for more in (masks, opened))
    assert masked["metrics"] == pytest.approx(plain["metrics"], rel=1e-4)
    packets = 2 * 4 * (133 + 4 * 148) / 1e6
    assert masked["up_mb"] == pytest.approx(plain["up_mb"] + packets)
    cost = Masks(4, 3, 32, 9994)
    upload_s = (cost.share - 1) * 4 * 9994 / 12.5e6
    assert masked["seconds"] == pytest.approx(
        plain["seconds"] + 2 * (cost.client_s + cost.server_s + upload_s)
    )


def test_masked_run_of_other_clients_is_refused(tmp_path):
    words = ("--train", "digits", "--set", "secrecy=masked", "--set", descriptor(tmp_path, 5))
    assert "saw 5 members, needed one for each of 4 clients" in str(sim(*words, "--clients", "4").exception)
