"""Test training scripts on real processes: partial work by the numbers, faults, personal layers, resume."""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from fedgc.deploy.local_federation import Node
from fedgc.errors import Unusable
from fedgc.history import ClientRow
from fedgc.store import checkpoint
from tests.contract.conftest import GATHER_S, WAIT_S, Federation, eventually

pytestmark = pytest.mark.contract

ADDING = Path(__file__).parents[1] / "scripts" / "adding.py"
NAMES = ("client-0", "client-1", "client-2")


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    folder: Path = tmp_path_factory.mktemp("scripts")
    environment = {"FEDGC_DB": str(folder / "fedgc.db"), "XDG_STATE_HOME": str(folder / "state")}
    nodes = [Node(name) for name in NAMES]
    with Federation(nodes, folder=folder / "processes", environment=environment) as started:
        yield started


def by_client(folder: Path, words: dict[str, str]) -> str:
    """Return a script that runs `adding.py` with words of its own on each client."""
    path = folder / "by_client.py"
    path.write_text(
        "import json, os, runpy, sys\n"
        f"words = {words!r}\n"
        "client = json.loads(os.environ['FEDGC_CLIENT'])['client']['name']\n"
        f"sys.argv = [{str(ADDING)!r}, *words[client].split()]\n"
        f"runpy.run_path({str(ADDING)!r}, run_name='__main__')\n"
    )
    return str(path)


def settings(run: str, script: str, folder: Path, **more: object) -> dict[str, object]:
    return {
        "run": run,
        "script": script,
        "min_clients": 3,
        "start_timeout_s": GATHER_S,
        "gate": "every",
        "checkpoint_dir": str(folder / "runs"),
        **more,
    }


def model_of(folder: Path, run: str) -> np.ndarray:
    return checkpoint.load(folder / "runs" / run).model


def clients_of(federation: Federation, run: str) -> list[tuple[ClientRow, ...]]:
    """The rows of the clients, round by round."""
    try:
        store = federation.store()
    except Unusable:  # the first run of all has not made it
        return []
    with store as opened:
        if not any(each.run == run for each in opened.runs()):
            return []
        return [opened.client_rows(run, each.row.round) for each in opened.rounds(run)]


def test_script_contributes_steps_that_are_done(three: Federation, tmp_path: Path):
    """Two clients do eight steps of 1, the third has done six of 10 when it is asked."""
    mark, six = tmp_path / "mark", tmp_path / "six"
    words = {
        "client-0": f"--add 1 --samples 30 --wait-at 7 --until {six} --mark {mark} --mark-at 8",
        "client-1": f"--add 1 --samples 20 --wait-at 7 --until {six}",
        "client-2": f"--add 10 --samples 10 --mark {six} --mark-at 6 --wait-at 6 --until {mark}",
    }
    run = three.submit(
        settings(
            "partial", by_client(tmp_path, words), tmp_path,
            rounds=1, local_steps=8, lockstep="on", quorum=0.6, patience=0.0, aggregator="weighted-mean",
        )
    )  # fmt: skip
    assert three.wait(run, WAIT_S) == "finished:completed", three.run_log(run)
    expected = (30 * 8 * 1 + 20 * 8 * 1 + 10 * 6 * 10) / 60
    np.testing.assert_allclose(model_of(tmp_path, "partial"), np.full(4, expected), rtol=1e-6)
    (clients,) = clients_of(three, "partial")
    assert sorted(each.finished for each in clients) == [6, 8, 8]


@pytest.mark.slow
def test_faulty_script_costs_its_client_one_round(three: Federation, tmp_path: Path):
    """One script raises, one is killed, one prints 64 MB: each is started again, and the run completes."""
    words = {
        "client-0": f"--step-s 0.02 --fault raise --fault-at 20 --once {tmp_path / 'raised'}",
        "client-1": f"--step-s 0.02 --fault kill --fault-at 60 --once {tmp_path / 'killed'}",
        "client-2": f"--step-s 0.02 --fault print --fault-at 10 --once {tmp_path / 'printed'}",
    }
    script = by_client(tmp_path, words)
    run = three.submit(settings("faulty", script, tmp_path, rounds=400, local_steps=4, quorum=0.3))
    eventually(lambda: _contributes_again(three, "faulty"))
    three.stop(run)
    three.wait(run, WAIT_S)
    failures = [each.failure for row in clients_of(three, "faulty") for each in row if each.failure]
    assert any("exit status 1: ValueError: the data is gone" in each for each in failures)
    assert any("killed by SIGKILL" in each for each in failures)
    assert (tmp_path / "printed").exists()


def _contributes_again(federation: Federation, run: str) -> bool:
    """Whether all clients have done steps again after two of them failed."""
    rows = clients_of(federation, run)
    failed = {each.client: n for n, row in enumerate(rows) for each in row if each.failure}
    if len(failed) < 2:
        return False
    later = rows[max(failed.values()) + 1 :]
    return any(sum(each.finished > 0 for each in row) == len(NAMES) for row in later)


@pytest.mark.slow
def test_personal_script_keeps_its_head_across_resume(three: Federation, tmp_path: Path):
    """The run goes on from its checkpoint, and each client from its own head."""
    words = {name: f"--add {n + 1} --samples 10 --sizes 4 2 --private 1" for n, name in enumerate(NAMES)}
    script = by_client(tmp_path, words)
    more = {"local_steps": 5, "lockstep": "on", "quorum": 1.0}
    for rounds, resumed in ((2, {}), (3, {"resume": "personal"})):
        run = three.submit(settings("personal", script, tmp_path, rounds=rounds, **more, **resumed))
        assert three.wait(run, WAIT_S) == "finished:completed", three.run_log(run)
        np.testing.assert_allclose(model_of(tmp_path, "personal"), np.full(4, rounds * 5 * 2.0))
        assert heads(three) == [rounds * 5 * each for each in (1.0, 2.0, 3.0)]


def heads(federation: Federation) -> list[float]:
    """The first number of the private tensor of each client."""
    kept = [torch.load(each, weights_only=True)["private"] for each in federation.state.rglob("script.pt")]
    return sorted(float(each["1"][0]) for each in kept if "1" in each)


@pytest.mark.parametrize(
    ("run_name", "other", "says"),
    [
        ("other-model", "--sizes 5", "tensor 1: saw 0 float32[5], needed 0 float32[4]"),
        pytest.param("other-base", "--base 2", "frozen parameters: saw digest ", marks=pytest.mark.slow),
    ],
)
def test_client_with_other_model_is_refused_by_name(
    three: Federation, tmp_path: Path, run_name: str, other: str, says: str
):
    words = dict.fromkeys(NAMES, "--step-s 0.05 --base 1") | {"client-2": f"--delay-s 5 --base 1 {other}"}
    script = by_client(tmp_path, words)
    more = {"rounds": 10_000, "local_steps": 5, "min_clients": 2, "quorum": 1.0}
    run = three.submit(settings(run_name, script, tmp_path, **more))
    refused = (
        rf"client-2 is refused: its model differs from the run's, which client-[01] has: {re.escape(says)}"
    )
    eventually(lambda: re.search(refused, three.run_log(run)) is not None)
    three.stop(run)
    three.wait(run, WAIT_S)
    assert all(len(row) == 2 for row in clients_of(three, run_name))
