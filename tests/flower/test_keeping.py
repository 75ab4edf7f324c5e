"""What is kept of a run's end: a run that did not count all data does not read as complete."""

from pathlib import Path

import pytest

from fedgc.config import RunConfig
from fedgc.flower.keeping import KeptSink
from fedgc.flower.lines import Lines
from fedgc.history import RoundRow
from fedgc.store.database import Store
from fedgc.store.keeper import Keeper

ROW = {
    "round": 1, "version": 0, "started": 1.0, "working_s": 1.0, "collecting_s": 1.0, "outcome": "synced",
    "chunks": 4, "covered": 4, "short": (), "replicas": 1, "blocks": 1, "needed": 1, "amplification": None,
    "error": None, "loss": None, "samples": 40, "skips": 0, "takes": 0, "pruned": 0, "repairs": 0,
    "reason": "",
}  # fmt: skip
REFUSED = "1 device was refused data: c: why"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, ""),
        ({"known_samples": 40, "counted_samples": 40}, ""),
        ({"known_samples": 40, "counted_samples": 30}, "75% of the samples in the last round"),
        (
            {"known_samples": 80, "counted_samples": 40, "left_out": REFUSED},
            f"50% of the samples in the last round ({REFUSED})",
        ),
        ({"outcome": "empty", "known_samples": 40}, "0% of the samples in the last round"),
    ],
)
def test_completed_run_says_what_share_of_the_samples_counted(tmp_path: Path, changes: dict, reason: str):
    def opened() -> Store:
        return Store.open(str(tmp_path / "fedgc.db"))

    keeper = Keeper(opened, tmp_path / "aside", print)
    sink = KeptSink(keeper, "run", lambda: 5.0, 0.0, Lines("", print))
    with sink.recorded(RunConfig()):
        sink.append(RoundRow(**{**ROW, **changes}))
    with opened() as store:
        assert (store.run("run").state, store.run("run").reason) == ("completed", reason)
