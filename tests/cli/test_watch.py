"""Test `fedgc watch` and `fedgc export`."""

import json
import re
import signal
import socket
import subprocess
import sys
from http.client import HTTPConnection
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedgc.cli.commands import app
from fedgc.errors import EdgeFailed, Unusable
from fedgc.store.database import Store
from tests.web.run_of_four import tell_a_run

PROGRAM = "import sys; sys.argv[0] = 'fedgc'; from fedgc.cli import main; main()"


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "fedgc.db"
    monkeypatch.setenv("FEDGC_DB", str(path))
    with Store.open() as store:
        tell_a_run(store)
    return path


def fedgc(*words: str) -> str:
    return CliRunner().invoke(app, list(words), catch_exceptions=False).stdout


def test_check_prints_findings(told: Path):
    found = json.loads(fedgc("watch", "--json-check"))
    assert (found["run"], found["rounds"], found["clients"], found["faults"]) == ("spring", 12, 4, [])


def test_watch_serves_until_interrupted(told: Path):
    words = [sys.executable, "-c", PROGRAM, "watch", "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            said = process.stdout.readline()
            port = int(re.search(r"http://127\.0\.0\.1:(\d+)/ ", said).group(1))
            connection = HTTPConnection("127.0.0.1", port, timeout=30)
            connection.request("GET", "/stream")  # a page that is open does not hold up the end
            assert connection.getresponse().readline() == b"event: picture\n"
            process.send_signal(signal.SIGINT)
            assert process.wait(30) in (0, -signal.SIGINT, 130)
            connection.close()
            assert process.stderr is not None
            assert "Traceback" not in process.stderr.read()
        finally:
            process.kill()


def test_watch_does_not_modify_store(told: Path):
    def rows() -> list[tuple[object, ...]]:
        with Store.open(reads_only=True) as store:
            return [(store.runs(), store.rounds(), store.clients(), store.audited())]

    before = rows()
    fedgc("watch", "--json-check")
    assert rows() == before


@pytest.mark.parametrize(
    ("words", "unknown"),
    [
        (["watch"], ["sprung"]),
        (["watch", "--json-check"], ["sprung"]),
        (["export", "csv", "out"], ["--run", "sprung"]),
    ],
)
def test_missing_store_empty_store_and_unknown_run_are_named(
    told: Path, words, unknown, monkeypatch, tmp_path
):
    with pytest.raises(Unusable, match="did you mean spring"):
        fedgc(*words, *unknown)
    monkeypatch.setenv("FEDGC_DB", str(tmp_path / "none.db"))
    with pytest.raises(Unusable, match="saw nothing there"):
        fedgc(*words)
    with Store.open():
        pass
    with pytest.raises(Unusable, match="saw no run yet"):
        fedgc(*words)


def test_port_in_use_gives_one_line(told: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(EdgeFailed, match="already in use"):
        fedgc("watch", "--port", str(taken.getsockname()[1]))


def test_export_prints_output_path(told: Path, tmp_path: Path):
    said = fedgc("export", "csv", str(tmp_path / "out"))
    assert said.split() == [str(tmp_path / "out" / f"{name}.csv") for name in ("rounds", "clients")]
    with pytest.raises(Unusable, match="did you mean parquet"):
        fedgc("export", "parket", str(tmp_path))


@pytest.mark.parametrize("command", ["watch", "export"])
def test_help_loads_no_heavy_module(command: str):
    heavy = {
        "torch",
        "flwr",
        "sqlalchemy",
        "sklearn",
        "starlette",
        "uvicorn",
        "mlflow",
        "tensorboard",
        "pyarrow",
    }
    program = (
        f"import sys; sys.argv = ['fedgc', {command!r}, '--help']\nfrom fedgc.cli import main\n"
        f"try:\n    main()\nexcept SystemExit:\n    pass\nprint(sorted(set(sys.modules) & {heavy}))"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240)
    assert said.stdout.rstrip().endswith("[]")


@pytest.mark.parametrize("words", ["a-token-of-this-test", "env:NOWHERE"])
def test_token_on_command_line_is_refused_and_not_repeated(told: Path, words: str):
    with pytest.raises(Unusable, match="needed") as refused:
        fedgc("watch", "--token", words)
    assert "a-token" not in str(refused.value)
