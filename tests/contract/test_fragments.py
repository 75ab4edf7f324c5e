"""Test fragments on real processes: scripts train on while parts travel, and start again after a crash."""

from pathlib import Path

import pytest

from tests.contract.conftest import GATHER_S, Federation

pytestmark = [pytest.mark.contract, pytest.mark.slow]

ADDING = Path(__file__).parents[1] / "scripts" / "adding.py"
NUMBERS = 30_000
PARTS = 3
PART_BYTES = 4 * NUMBERS / PARTS
SETTINGS = {
    "run": "parts", "fragments": PARTS, "link": "session", "download_codec": "int8", "rounds": 9,
    "local_steps": 4, "min_clients": 4, "quorum": 1.0, "threads": 1, "start_timeout_s": GATHER_S,
    "deadline_s": 150.0, "evaluate_every": 0, "aggregator": "weighted-mean",
}  # fmt: skip


def test_crashed_script_goes_on_from_common_model(federation: Federation, tmp_path: Path) -> None:
    words = f"--sizes {NUMBERS} --step-s 0.05 --fault kill --fault-at 14 --once {tmp_path / 'once'}"
    run = federation.submit(SETTINGS | {"script": f"{ADDING} {words}"})
    assert federation.wait(run, 270) == "finished:completed", federation.run_log(run)
    with federation.store() as store:
        rounds = [each.row for each in store.rounds("parts")]
        rows = [store.client_rows("parts", row.round) for row in rounds]
    outcomes = [row.outcome for row in rounds]
    assert sorted(outcomes) == ["approximate", *["synced"] * 8], federation.run_log(run)
    sent = [row for of_round in rows for row in of_round if row.counted]
    assert len(sent) == 9 * 4 - 1, "the script that was killed is missing once"
    later = [row for of_round in rows[1:] for row in of_round]  # before, the first model travels
    assert all(PART_BYTES < row.up_bytes < 1.1 * PART_BYTES for row in later if row.counted)
    down = [row.down_bytes for row in later if row.down_bytes]
    assert all(0.25 * PART_BYTES < each < 0.35 * PART_BYTES for each in down), "sessions have the model"
