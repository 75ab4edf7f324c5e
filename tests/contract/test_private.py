"""Test private data on real processes: a lost client's chunks are lost with it."""

import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from benchmarks import counting
from fedgc.deploy.local_federation import Node
from fedgc.errors import FedgcError
from fedgc.history import RoundRow
from tests.contract.conftest import GATHER_S, WAIT_S, Federation, eventually

pytestmark = pytest.mark.contract

RUN = "own-data"
ROUNDS = 8
LOST = "client-0"
SEEDS = 20
LONGER = 16  # rounds, so that a kill at a random moment is likely to come before the last
MOMENTS_S = 10.0  # from the first round on


@pytest.mark.slow
def test_private_run_completes_on_default_settings(federation: Federation, tmp_path: Path) -> None:
    run = federation.submit(
        {
            "work": "coded",
            "task": "benchmarks.counting:private",
            "run": RUN,
            "rounds": ROUNDS,
            "min_clients": 4,
            "start_timeout_s": GATHER_S,
            "learning_rate": counting.CHUNKS / counting.STEPS,
            "local_steps": counting.STEPS,
            "grace_s": 2.0,
            "threads": 1,
            "checkpoint_dir": str(tmp_path),
        }
    )
    eventually(lambda: len(rounds_of(federation, RUN)) >= ROUNDS // 2)
    federation.kill(LOST)
    try:
        assert federation.wait(run, WAIT_S) == "finished:completed", federation.run_log(run)
        rows = rounds_of(federation, RUN)
        with federation.store() as store:
            reason = store.run(RUN).reason
    finally:
        federation.restart(LOST)
    assert {rows[0].chunks, rows[-1].chunks} == {4 * counting.CHUNKS, 3 * counting.CHUNKS}
    assert [row.round for row in rows] == list(range(1, ROUNDS + 1))
    assert rows[-1].outcome == "synced"
    assert rows[-1].metrics["off"] == 0.0
    assert (rows[0].coverage, rows[-1].coverage) == (1.0, 0.75)
    assert reason == "75% of the samples in the last round"


@pytest.fixture(scope="module")
def five(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    folder: Path = tmp_path_factory.mktemp("five")
    environment = {"FEDGC_DB": str(folder / "fedgc.db"), "XDG_STATE_HOME": str(folder / "state")}
    nodes = [Node(f"site-{number}", {"pace-s": 0.05}) for number in range(5)]
    with Federation(nodes, folder=folder / "processes", environment=environment) as started:
        yield started


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
def test_private_chunk_run_completes_despite_random_losses(
    five: Federation, tmp_path: Path, seed: int
) -> None:
    """3 to 5 clients on default settings, of which one or two are killed and do not come back."""
    chance = np.random.default_rng(seed)
    names = chance.permutation(sorted(five.nodes)).tolist()
    here, absent = names[: 3 + seed % 3], names[3 + seed % 3 :]
    lost, name = here[: int(chance.integers(1, 3))], f"lost-{seed}"
    for each in absent:
        five.kill(each)
    killed = list(absent)
    try:
        run = five.submit(
            {
                "work": "coded",
                "task": "benchmarks.counting:private",
                "run": name,
                "rounds": LONGER,
                "min_clients": len(here),
                "start_timeout_s": GATHER_S,
                "learning_rate": counting.CHUNKS / counting.STEPS,
                "local_steps": counting.STEPS,
                "checkpoint_dir": str(tmp_path),
            }
        )
        eventually(lambda: rounds_of(five, name))
        for each in lost:
            time.sleep(chance.uniform(0.0, MOMENTS_S))
            five.kill(each)
            killed.append(each)
        assert five.wait(run, WAIT_S) == "finished:completed", five.run_log(run)
        rows = rounds_of(five, name)
    finally:
        for each in killed:
            five.restart(each)
    assert [row.round for row in rows] == list(range(1, LONGER + 1))
    assert {row.outcome for row in rows} <= {"synced", "approximate"}
    check_counts(rows)


def rounds_of(federation: Federation, run: str) -> list[RoundRow]:
    """The rounds so far, none where the run or even the store is not there yet."""
    if federation.database.exists():
        with suppress(FedgcError), federation.store() as store:
            return [each.row for each in store.rounds(run)]
    return []


def check_counts(rows: list[RoundRow]) -> None:
    """Check that a sum reported as exact counts each chunk once."""
    for before, this in pairwise(rows):
        if this.outcome == "synced" and before.metrics and this.metrics:
            gained = {part: count - before.metrics[part] for part, count in this.metrics.items()}
            once = {part: float(part != "off") for part in gained}
            assert gained == pytest.approx(once, abs=1e-4), this.round  # a fifth is no number of bits
