"""Test the store sink: it records how a run ended."""

import time
from pathlib import Path

import pytest

from fedgc.config import RunConfig
from fedgc.errors import EdgeFailed
from fedgc.flower import store_sink
from fedgc.flower.announced_hours import AnnouncedHours
from fedgc.flower.json_lines import Lines
from fedgc.flower.sink import Live
from fedgc.flower.store_sink import AUDITED, Past, StoreSink
from fedgc.history import BestModel, RoundRow, Score
from fedgc.messages import Closing, Joined, Outcome
from fedgc.store.database import Store
from fedgc.store.liveness import SERVER, lost, this_process
from fedgc.store.reading import HOURS
from fedgc.store.records import Begun
from fedgc.store.writer import Keeper
from tests.interrupting import at_line


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "fedgc.db")


@pytest.fixture
def sink(path: str, tmp_path: Path) -> StoreSink:
    keeper = Keeper(lambda: Store.open(path), tmp_path / "aside.jsonl", lambda _: None)
    return StoreSink(keeper, "r", time.time, time.time, Lines("", lambda _: None))


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (EdgeFailed("the run did not complete: no client came"), "the run did not complete: no client came"),
        (IndexError("list index out of range\nand more"),
         "the server ended in mid-run: IndexError: list index out of range and more"),
        (SystemExit(1), "the server ended in mid-run"),
    ],
)  # fmt: skip
def test_run_end_reason_is_stored(sink: StoreSink, path: str, error: BaseException, reason: str):
    with pytest.raises(type(error)), sink.recorded(RunConfig(work="coded")):
        raise error
    with Store.open(path) as store:
        run = store.run("r")
    assert (run.state, run.reason) == ("failed", reason)


def test_run_status_names_serving_process(sink: StoreSink, path: str):
    with sink.recorded(RunConfig(work="coded")):
        sink.present(Live(1, 3, 0, "working", 1.0, 0, 4, 1, ()))
    with Store.open(path) as store:
        run = store.run("r")
    assert run.present[SERVER] == this_process().words()
    assert run.present["phase"] == "working"
    assert not lost(run)


def test_signal_handler_may_stop_run_inside_any_call(sink: StoreSink, path: str):
    number, more = 0, True
    with sink.recorded(RunConfig(work="coded")):
        while more:
            with at_line(number, store_sink, lambda: sink.stopped("a signal")) as lines:
                sink.audited("joined", "north", "")
            more = len(lines) > number
            number += 1
            sink._ended = False
        sink._ended = True
    with Store.open(path) as store:
        assert (store.run("r").state, store.run("r").reason) == ("stopped", "a signal")
    assert number > 5


def test_times_of_live_state_are_stored_as_wall_clock(path: str, tmp_path: Path):
    keeper = Keeper(lambda: Store.open(path), tmp_path / "aside.jsonl", lambda _: None)
    slept_s = 0.0
    sink = StoreSink(keeper, "r", lambda: 1009.0 + slept_s, lambda: 9.0, Lines("", lambda _: None))
    with sink.recorded(RunConfig(work="coded")):
        slept_s = 600.0  # the driver's clock stands still while the machine is suspended
        sink.present(Live(1, 3, 0, "working", 1.0, 0, 4, 1, (), since=5.0, until=9.0))
    with Store.open(path) as store:
        present = store.run("r").present
    assert (present["since"], present["until"]) == (1605.0, 1609.0)


def test_hours_of_client_are_stored_as_wall_clock(path: str, tmp_path: Path):
    keeper = Keeper(lambda: Store.open(path), tmp_path / "aside.jsonl", lambda _: None)
    sink = StoreSink(keeper, "r", lambda: 1009.0, lambda: 9.0, Lines("", lambda _: None))
    with sink.recorded(RunConfig(work="coded")):
        for _ in range(AUDITED + 5):
            sink.has_hours(1, "a", ((5.0, 3605.0),))
    with Store.open(path) as store:
        found = store.decisions("r", what=HOURS)
    assert len(found) == AUDITED, "no client floods the store"
    assert found[0].basis == {"client": "a", HOURS: [[1005.0, 4605.0]]}
    assert found[0].reason == "client a may train 1 h a week"


def test_client_without_hours_any_more_is_stored_once_it_joins(path: str, tmp_path: Path):
    keeper = Keeper(lambda: Store.open(path), tmp_path / "aside.jsonl", lambda _: None)
    sink = StoreSink(keeper, "r", lambda: 1009.0, lambda: 9.0, Lines("", lambda _: None))
    hours = AnnouncedHours(sink)
    joins = [Joined(9.0, client, True, ()) for client in ("a", "b")]
    with sink.recorded(RunConfig(work="coded")):
        for event in (Closing(5.0, "a", 3600.0, ((0.0, 3600.0),)), *joins, joins[0]):
            hours.handle(event, 1)
    with Store.open(path) as store:
        found = store.decisions("r", what=HOURS)
    assert [each.basis for each in found] == [
        {"client": "a", HOURS: [[1005.0, 4605.0]]},
        {"client": "a", HOURS: []},
    ]
    assert found[1].reason == "client a may train at any time"


ROW = {
    "round": 1, "version": 0, "started": 1.0, "working_s": 1.0, "collecting_s": 1.0, "outcome": "synced",
    "chunks": 4, "covered": 4, "short": (), "replicas": 1, "blocks": 1, "needed": 1, "amplification": None,
    "error": None, "loss": None, "samples": 40, "skips": 0, "takes": 0, "pruned": 0, "repairs": 0,
    "reason": "",
}  # fmt: skip
REFUSED = "1 client was refused data: c: why"


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
        (
            {"outcome": "empty", "known_samples": 40, "reason": "a: saw NaN"},
            "0% of the samples in the last round (a: saw NaN)",
        ),
    ],
)
def test_completed_run_reports_share_of_samples(tmp_path: Path, changes: dict, reason: str):
    def opened() -> Store:
        return Store.open(str(tmp_path / "fedgc.db"))

    keeper = Keeper(opened, tmp_path / "aside", print)
    sink = StoreSink(keeper, "run", lambda: 5.0, lambda: 5.0, Lines("", print))
    with sink.recorded(RunConfig(work="coded")):
        sink.append(RoundRow(**{**ROW, **changes}))
    with opened() as store:
        assert (store.run("run").state, store.run("run").reason) == ("completed", reason)


def fail(sink: StoreSink, outcomes: list[Outcome], state: str) -> None:
    """Have rounds with these outcomes, then end in this state."""
    for outcome in outcomes:
        sink.append(RoundRow(**(ROW | {"outcome": outcome})))
    if state == "stopped":
        sink.stopped("by a user")
    raise EdgeFailed("no client came")


@pytest.mark.parametrize(
    ("outcomes", "state", "rounds"),
    [
        ([], "failed", 3),
        (["stopped"], "failed", 3),
        (["empty"], "failed", 9),
        ([], "stopped", 3),
        (["empty"], "stopped", 9),
    ],
)
def test_settings_of_resume_that_ends_at_once_are_not_kept(
    sink: StoreSink, path: str, outcomes: list[Outcome], state: str, rounds: int
):
    tables = {number: RunConfig(rounds=number, task=f"task-{number}", work="coded") for number in (3, 9)}
    with Store.open(path) as store:
        store.write(Begun(100.0, "r", tables[3].table()))
    with (
        pytest.raises(EdgeFailed),
        sink.recorded(tables[9], Past(tables[3].table(), "rounds was 3, is 9")),
    ):
        fail(sink, outcomes, state)
    with Store.open(path) as store:
        run, audited = store.run("r"), store.audited("r")
    assert (run.state, run.settings["rounds"], run.task) == (state, rounds, f"task-{rounds}")
    said = "; the other settings of this resume are not kept: rounds was 3, is 9"
    assert run.reason.endswith(said) == (rounds == 3)
    assert [each.what for each in audited if each.kind == "resumed"] == [
        "the run goes on from its last checkpoint with other settings: rounds was 3, is 9"
    ]


def test_scores_best_model_and_reason_are_stored(sink: StoreSink, path: str):
    best = BestModel("accuracy", 0, 0, 0.25)
    with sink.recorded(RunConfig(work="coded")):
        sink.scored(0, "a", 10, {"accuracy": 0.25})
        sink.evaluated(0, {"accuracy": 0.25})
        sink.improved(best)
        sink.append(RoundRow(**ROW))
        sink.ended_early("accuracy has not improved for 3 evaluations")
    with Store.open(path) as store:
        run = store.run("r")
        assert store.scores("r") == (Score(0, "a", 10, {"accuracy": 0.25}),)
        assert store.best("r") == best
    assert (run.state, run.reason) == ("completed", "accuracy has not improved for 3 evaluations")
    assert run.initial_metrics == {"accuracy": 0.25}
