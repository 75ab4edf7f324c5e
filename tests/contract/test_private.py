"""Private data on real processes: each device's chunks are its own, and a lost one takes them along."""

from contextlib import suppress
from pathlib import Path

import pytest

from fedgc.errors import FedgcError
from tests.contract import counting
from tests.contract.conftest import GATHER_S, WAIT_S, Federation, eventually

pytestmark = pytest.mark.contract

RUN = "own-data"
ROUNDS = 8
LOST = "device-0"


def rounds_of(federation: Federation) -> int:
    """How many rounds are over; the store and the run may not be there yet."""
    with suppress(FedgcError), federation.store() as store:
        return len(store.rounds(RUN))
    return 0


def test_private_and_lost_run_completes_on_default_settings(federation: Federation, tmp_path: Path) -> None:
    run = federation.submit(
        {
            "task": "tests.contract.counting:private",
            "run": RUN,
            "rounds": ROUNDS,
            "min-devices": 4,
            "start-timeout-s": GATHER_S,
            "learning-rate": counting.CHUNKS / counting.STEPS,
            "local-steps": counting.STEPS,
            "grace-s": 2.0,
            "threads": 1,
            "checkpoint-dir": str(tmp_path),
        }
    )
    eventually(lambda: rounds_of(federation) >= ROUNDS // 2)
    with federation.store() as store:
        federation.kill(LOST)
        try:
            assert federation.wait(run, WAIT_S) == "finished:completed", federation.run_log(run)
            rows, reason = [each.row for each in store.rounds(RUN)], store.run(RUN).reason
        finally:
            federation.restart(LOST)
    assert {rows[0].chunks, rows[-1].chunks} == {4 * counting.CHUNKS, 3 * counting.CHUNKS}
    assert [row.round for row in rows] == list(range(1, ROUNDS + 1))
    assert rows[-1].outcome == "synced"
    assert rows[-1].metrics["off"] == 0.0
    assert (rows[0].coverage, rows[-1].coverage) == (1.0, 0.75)
    assert reason == "75% of the samples in the last round"
