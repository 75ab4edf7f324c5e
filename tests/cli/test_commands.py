"""Test the command line, where a process matters in a separate one."""

import io
import json
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout

import click
import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from fedgc import cli
from fedgc.cli import commands
from fedgc.cli.new_app import write_new
from fedgc.cli.settings import parse
from fedgc.config import BASIC, RunConfig
from fedgc.errors import BadSetting, EdgeFailed
from fedgc.sim.catalogue import baselines, ours
from fedgc.sim.clock import MODELS
from fedgc.store.database import Store
from fedgc.store.records import Begun


def fedgc(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a command in this process, which has imported already what a new one takes seconds for."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["fedgc", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
    assert isinstance(ended.value.code, int)
    return subprocess.CompletedProcess(words, ended.value.code, out.getvalue(), err.getvalue())


def fedgc_apart(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own."""
    program = "import sys; sys.argv[0] = 'fedgc'; from fedgc.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, timeout=240
    )


def test_help_of_any_command_loads_no_heavy_module():
    """Help is quick because it imports neither torch nor Flower nor the database."""
    program = (
        "import sys\nfrom typer.main import get_command\nfrom fedgc.cli.commands import app\n"
        "def show(command, path):\n"
        "    try:\n        command.main(['--help'], prog_name=path)\n"
        "    except SystemExit:\n        pass\n"
        "    for name, each in getattr(command, 'commands', {}).items():\n"
        "        show(each, f'{path} {name}')\n"
        "show(get_command(app), 'fedgc')\n"
        "heavy = 'torch flwr sqlalchemy alembic sklearn numpy scipy grpc starlette uvicorn cryptography'\n"
        "print(sorted(set(sys.modules) & set(heavy.split())))"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=200)
    assert said.stdout.count("Usage: fedgc") > 20
    assert said.stdout.rstrip().endswith("[]")


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("round=3", "unknown setting 'round'; did you mean rounds?"),
        ("code.replicas=three", "setting code.replicas: saw 'three', needed a whole number or 'auto'"),
        ("learning-rate=-1", "setting learning-rate: saw -1.0, needed above 0"),
        ("blocks", "setting 'blocks': needed name=value"),
    ],
)
def test_bad_setting_gives_one_line_and_exit_code_2(word: str, sentence: str):
    said = fedgc("demo", "--set", word)
    assert said.returncode == 2
    assert said.stdout == ""
    assert said.stderr.strip() == f"fedgc: {sentence}"


def test_error_of_separate_process_is_on_its_stderr():
    said = fedgc_apart("demo", "--set", "round=3")
    assert (said.returncode, said.stdout) == (2, "")
    assert said.stderr == "fedgc: unknown setting 'round'; did you mean rounds?\n"


def test_debug_flag_shows_traceback():
    said = fedgc_apart("demo", "--set", "round=3", "--debug")
    assert said.returncode == 1
    assert "Traceback" in said.stderr
    assert "BadSetting" in said.stderr


def test_text_values_are_parsed_to_matching_types():
    assert parse(["code.blocks=auto", "rounds=3", "learning_rate=1", "task=my.module:task"]) == {
        "code.blocks": "auto",
        "rounds": 3,
        "learning-rate": 1,
        "task": "my.module:task",
    }
    with pytest.raises(BadSetting, match="needed name=value"):
        parse(["rounds"])


def test_help_lists_exit_codes_and_names_debug():
    said = fedgc_apart("--help")
    assert said.returncode == 0
    assert "130 Ctrl-C" in " ".join(said.stdout.split())
    assert "--debug" in said.stdout


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nex"], "No such command 'nex'. Did you mean 'new'?"),
        (["run", "--client", "2"], "--client: saw '2', needed NAME:key=value"),
        (["run", "--clients", "many"], "'many' is not a valid"),
        (["run", "--clients", "0"], "--clients: saw 0, needed at least 1"),
        (["run", "--clients", "2", "--superlink", "x"], "--clients and --superlink: saw both"),
        (["run", "--attach", "r", "--resume", "r"], "--attach: saw other words with it"),
        (["run", "--attach", "r"], "saw nothing there, needed the store of an earlier run"),
        (["run", "--set", "min-clients=5"], "--clients: saw 4, needed min-clients, 5"),
        (
            ["run", "--task", "digit"],
            "saw 'digit', needed digits, breast-cancer or module:attribute; did you",
        ),
        (["run", "--superlink", "nowhere"], "SuperLink 'nowhere': saw none"),
        (["run", "--superlink", "up"], "saw no federation up, needed one"),
        (["down"], "saw no federation up, needed one"),
        (["up", "--clients", "0"], "--clients: saw 0, needed at least 1"),
        (["config", "--set", "rouns=3"], "did you mean rounds?"),
        (["model", "list"], "saw nothing there, needed the store of an earlier run"),
        (["status"], "saw nothing there, needed the store of an earlier run"),
        (["plan", "--model-gb", "1", "--uplink-mb-s", "-1"], "-1.0 is not in the range x>=0"),
        (["queue", "remove", str(10**20)], f"{10**20} is not in the range"),
    ],
)
def test_user_error_gives_one_line_and_exit_code_2(words, sentence, tmp_path, monkeypatch):
    for name in ("XDG_STATE_HOME", "FLWR_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.delenv("FEDGC_DB", raising=False)
    monkeypatch.chdir(tmp_path)
    said = fedgc(*words)
    assert (said.returncode, said.stdout) == (2, "")
    assert said.stderr.startswith("fedgc: ")
    assert sentence in said.stderr
    assert len(said.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("variables", "words", "sentence"),
    [
        ({"FEDGC_SETTINGS": "run=ward roundz=9"}, ["--set", "rounds=5"], "unknown setting 'roundz'"),
        (
            {"FEDGC_SETTINGS": "rounds=-1 min-clients=5"},
            ["--clients", "4", "--set", "rounds=5"],
            "--clients: saw 4, needed min-clients, 5",
        ),
        ({"FEDGC_SETTINGS": "script=none.py"}, [], "none.py"),
        ({"FEDGC_SETTINGS": "script=none.py"}, ["--set", "task=none"], "setting task: saw 'none'"),
        ({"FEDGC_SUPERLINK": "ward"}, [], "SuperLink 'ward': saw none"),
        ({"FEDGC_SUPERLINK": "ward"}, ["--clients", "4", "--set", "min-clients=5"], "needed min-clients, 5"),
        ({}, ["--superlink", "ward", "--clients", "4"], "--clients and --superlink: saw both, needed one"),
    ],
)
def test_options_of_serve_replace_variables_one_by_one(variables, words, sentence, tmp_path, monkeypatch):
    for name in ("XDG_STATE_HOME", "FLWR_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("FEDGC_DB", raising=False)
    monkeypatch.chdir(tmp_path)
    said = fedgc("serve", *words)
    assert said.returncode == 2
    assert sentence in said.stderr


@pytest.mark.parametrize(
    ("output", "sentence"),
    [
        ("> /dev/full", "fedgc: No space left on device\n"),
        (">&-", "fedgc: standard output is closed, needed one to write to\n"),
    ],
)
def test_output_that_cannot_be_written_gives_one_line(output: str, sentence: str):
    shell = ["sh", "-c", f'"$0" -m fedgc.cli config --json {output}', sys.executable]
    said = subprocess.run(shell, capture_output=True, text=True, check=False)
    assert (said.returncode, said.stderr) == (1, sentence)


def test_group_without_command_shows_its_help():
    said = fedgc_apart("model")
    assert said.returncode == 2
    assert "restore" in said.stderr + said.stdout


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (EdgeFailed("the disk\nis full"), 1, "fedgc: the disk is full\n"),
        (BadSetting("no such setting"), 2, "fedgc: no such setting\n"),
        (OSError(28, "No space left on device"), 1, "fedgc: No space left on device\n"),
        (click.Abort(), 130, "fedgc: interrupted\n"),
        (
            ZeroDivisionError("of ours"),
            1,
            "fedgc: a bug in fedgc: ZeroDivisionError: of ours; --debug",
        ),
    ],
)
def test_every_error_has_one_line_and_exit_code(error, code, line, monkeypatch, capsys):
    def raising(**_):
        raise error

    monkeypatch.setattr(commands, "app", raising)
    monkeypatch.setattr(sys, "argv", ["fedgc"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == code
    assert capsys.readouterr().err.startswith(line)


def test_debug_flag_raises_original_error(monkeypatch):
    def raising(**_):
        raise EdgeFailed("the disk")

    monkeypatch.setattr(commands, "app", raising)
    monkeypatch.setattr(sys, "argv", ["fedgc", "--debug"])
    monkeypatch.setenv("FEDGC_DEBUG", "")  # which the option sets
    with pytest.raises(EdgeFailed):
        cli.main()


def completed(words: str, tmp_path) -> set[str]:
    """The completions offered to bash after these words."""
    env = {
        **os.environ,
        "_FEDGC_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
        "FEDGC_DB": str(tmp_path / "fedgc.db"),
    }
    program = "import sys; sys.argv[0] = 'fedgc'; from fedgc.cli import main; main()"
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=240, env=env
    )
    return set(said.stdout.split())


def test_shell_completion_lists_commands_settings_and_runs(tmp_path):
    assert completed("fedgc mo", tmp_path) == {"model"}
    assert completed("fedgc run --set history.keep", tmp_path) == {
        "history.keep-checkpoints=",
        "history.keep-rounds=",
    }
    assert completed("fedgc status wa", tmp_path) == set()  # no store is no run
    with Store.open(str(tmp_path / "fedgc.db")) as store:
        for run in ("ward-1", "ward-2", "other"):
            store.write(Begun(1000.0, run, RunConfig(work="coded").table()))
    assert completed("fedgc status wa", tmp_path) == {"ward-1", "ward-2"}


def shown(*words: str) -> dict[str, dict[str, object]]:
    said = CliRunner().invoke(commands.app, ["config", "--json", *words], catch_exceptions=False)
    return {each["name"]: each for each in json.loads(said.stdout)["settings"]}


def test_config_shows_value_default_and_origin_of_every_setting(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDGC_DB", str(tmp_path / "fedgc.db"))
    monkeypatch.chdir(tmp_path)
    plain = shown()
    assert plain.keys() == RunConfig(work="coded").table().keys()
    assert all(each["value"] == each["default"] and each["origin"] == "default" for each in plain.values())
    assert all(each["says"] for each in plain.values())
    write_new(tmp_path / "ward")
    monkeypatch.chdir(tmp_path / "ward")
    found = shown("--set", "rounds=50", "--set", "seed=0")
    assert (found["rounds"]["value"], found["rounds"]["origin"]) == (50, "--set")
    assert found["seed"]["origin"] == "--set"
    assert (found["data.chunks"]["value"], found["data.chunks"]["origin"]) == (8, "pyproject.toml")
    assert found["batch-size"]["origin"] == "default"  # the app lists what is the default anyway
    with Store.open() as store:
        store.write(Begun(1000.0, "r", RunConfig(rounds=4, work="coded").table()))
    assert (shown("r")["rounds"]["value"], shown("r")["rounds"]["origin"]) == (4, "run r")
    words = CliRunner().invoke(commands.app, ["config", "--all"], env={"COLUMNS": "200"}).stdout
    assert all(name in words for name in plain)
    few = CliRunner().invoke(commands.app, ["config"], env={"COLUMNS": "200"}).stdout
    shown_names = {name for name in plain if f"│ {name} " in few}
    assert shown_names == {*BASIC, "data.chunks"}, "and what the app has changed"
    assert f"{len(plain) - len(shown_names)} more settings have their defaults" in few


def test_help_of_simulation_names_models_and_policies():
    said = {each.name: each.help for each in get_command(commands.app).commands["sim"].params}
    assert [name for name in MODELS if name not in said["model"]] == []
    kinds = {each.name for each in (*baselines(2), *ours(2, 2))}
    named = said["policy"].partition(": ")[2].partition(";")[0].replace(" or ", ", ").split(", ")
    assert [kind for kind in kinds if not kind.startswith(tuple(named))] == []
    assert [name for name in named if not any(kind.startswith(name) for kind in kinds)] == []


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("--html", "."), 2, ".: saw a folder, needed the name of a file"),
        (("--png", "/no/such/x.png"), 2, "saw no folder /no/such, needed one that is there"),
        (("--policy", "nope"), 2, "policy 'nope': unknown; needed fedgc steer or"),
        (("--model", "nope"), 2, "model 'nope': unknown; needed shifted-exponential or"),
        (("--uplink-mb-s", "12,fast"), 2, "--uplink-mb-s: saw '12,fast', needed one speed or several"),
        (("--links", "/no/such"), 2, "trace /no/such: saw no such file, needed a table of times or links"),
        (("--trace", "/no/such.csv"), 2, "trace /no/such.csv: saw no such file, needed a table of"),
        (("--trace", "."), 1, "trace .: Is a directory"),
        (("--policy", "uncoded", "--png", "x.png"), 2, "--png: saw uncoded, needed a policy of fedgc"),
        (("--trace", "t.csv", "--model", "mild"), 2, "--trace: saw --model beside it, needed one of them"),
        (("--links", "l.csv", "--uplink-mb-s", "9"), 2, "--links: saw --uplink-mb-s beside it, needed one"),
        (
            ("--policy", "fedgc static", "--chunks-each", "5"),
            2,
            "policies: saw 5 chunks each and 0 blocks for fedgc static, 4 replicas, 1 chunk each, needed "
            "fedgc steer, or neither of both",
        ),
    ],
)
def test_simulation_that_cannot_begin_is_reported_in_one_line(words, code: int, sentence: str):
    """The progress bar is for terminals only: elsewhere it leaves no empty line."""
    said = fedgc("sim", "--clients", "4", "--rounds", "1", *words)
    assert (said.returncode, said.stdout) == (code, "")
    assert sentence in said.stderr
    assert said.stderr.count("\n") == 1


def test_simulation_follows_command_line_options():
    words = ("--clients", "3", "--replicas", "2", "--chunks-each", "5", "--blocks", "2", "--json")
    slow, quick = (
        json.loads(fedgc("sim", *words, "--rounds", "2", "--uplink-mb-s", speed).stdout)["predictions"][0]
        for speed in ("1", "1000")
    )
    assert slow["policy"] == quick["policy"] == "fedgc steer, 2 replicas, 5 chunks each, blocks 2"
    assert slow["median_s"] > quick["median_s"] + 24, "half of 50 MB take 25 s"


def test_uneven_links_and_slots_are_options_of_simulation(tmp_path):
    words = ("--clients", "3", "--replicas", "1", "--blocks", "1", "--rounds", "1", "--model", "homogeneous")
    table = tmp_path / "links.csv"
    table.write_text("client,up_mb_s,down_mb_s\na,50,50\nb,50,50\nc,5,50\n")

    def median_s(*more: str) -> float:
        said = fedgc("sim", *words, "--json", *more)
        return float(json.loads(said.stdout)["predictions"][0]["median_s"])

    uneven = pytest.approx(1.0 + 1.0 + 10.0)
    assert median_s("--links", str(table)) == median_s("--uplink-mb-s", "50,50,5") == uneven
    assert median_s("--uplink-mb-s", "50", "--upload-slots", "1") == pytest.approx(1.0 + 1.0 + 3.0)
    assert median_s("--uplink-mb-s", "50", "--server-mb-s", "50") == pytest.approx(3.0 + 1.0 + 3.0)


def test_endless_round_is_null_in_simulation_json():
    words = ("--clients", "200", "--rounds", "4", "--model", "fail-stop", "--policy", "uncoded", "--json")
    said = fedgc("sim", *words)
    assert said.returncode == 0

    def refuse(word: str) -> None:
        pytest.fail(f"saw {word}, which is no JSON")

    first = json.loads(said.stdout, parse_constant=refuse)["predictions"][0]
    assert first["p95_s"] is None
    shown = fedgc(*("sim", *words[:-1])).stdout
    assert "never" in shown
    assert "inf" not in shown


def test_simulation_names_data_that_policy_leaves_out():
    words = ("sim", "--clients", "20", "--rounds", "2", "--policy", "drop slowest")
    (first,) = json.loads(fedgc(*words, "--json").stdout)["predictions"]
    assert first["missing"] == pytest.approx(0.1)
    assert fedgc(*words).stdout.splitlines()[-2].split()[-2] == "10.0%"


def test_simulation_shows_whole_figures_beside_long_policy():
    said = fedgc("sim", "--clients", "5", "--rounds", "1").stdout
    assert "95th percentile" in said
    assert "…" not in said


def test_ctrl_c_in_command_gives_one_line(monkeypatch, capsys):
    def interrupted() -> None:
        raise KeyboardInterrupt

    app = typer.Typer()
    app.command()(interrupted)
    monkeypatch.setattr(commands, "app", app)
    monkeypatch.setattr(sys, "argv", ["fedgc"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert (ended.value.code, capsys.readouterr().err) == (130, "fedgc: interrupted\n")


def test_ctrl_c_during_import_gives_one_line() -> None:
    script = (
        "import sys\n"
        "class Interrupted:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'fedgc.cli.commands':\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupted())\n"
        "from fedgc.cli import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "fedgc: interrupted\n")
