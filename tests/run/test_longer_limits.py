"""Test runs whose clients are much slower than is known: time limits grow until something is finished."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedgc.history import RoundRow, Speed, Speeds
from fedgc.messages import Held
from fedgc.run.machine import Append, Finished
from fedgc.sim.clock import ClientModel, Line, Terms, VirtualClock, working
from tests.config_of import config_of
from tests.tuned import tuned_run

NAMES = [f"client {w}" for w in range(4)]
STEPS = 4
NUMBERS = 1_000_000


def played(
    *,
    known_step_s: float | None,
    step_s: float,
    known_bytes_s: float | None = None,
    up_s: float = 0.5,
    down_s: float | NDArray[np.float64] = 0.5,
    **settings: object,
) -> tuple[list[RoundRow], str]:
    """Simulate a run; return its rows, and why it ended. All clients are known to be alike."""
    coded = settings["work"] == "coded"
    config = config_of({"rounds": 8, "local_steps": STEPS, "min_clients": 4, "gate": "every", **settings})
    work = working(np.full((4, 1), STEPS * step_s), up_s=up_s, down_s=down_s)
    held = [Held(f"chunk {c}", 1, "shared") for c in range(8)] if coded else [Held("data", 1)]
    clock = VirtualClock(
        NAMES,
        ClientModel(lambda _: work, [1.0] * len(held)),
        Terms(config.round_steps, 4 * NUMBERS, Line(slots=config.upload_slots), config.grace_s),
        held,
    )
    known = [
        Speed(name, known_step_s, rounds=5, up_bytes_s=known_bytes_s, down_bytes_s=known_bytes_s)
        for name in (NAMES if known_step_s else ())
    ]
    speeds = Speeds({each.client: each for each in known})
    run = tuned_run(config, now=0.0, size=NUMBERS, speeds=speeds)
    said: list[Any] = []
    given = [command for w in range(4) for command in run.handle(clock.joined(w, 0.0))]
    clock.run(run, given, lambda: run.finished, said.append)
    rows = [each.row for each in said if isinstance(each, Append)]
    return rows, next(each.reason for each in said if isinstance(each, Finished))


def outcomes(rows: list[RoundRow]) -> list[str]:
    return [row.outcome for row in rows]


@pytest.mark.parametrize("replicas", ["auto", 2])
@pytest.mark.parametrize(("known_step_s", "step_s"), [(0.01, 25.0), (None, 500.0)])
def test_deadline_grows_until_chunk_is_finished(known_step_s, step_s, replicas):
    rows, reason = played(work="coded", known_step_s=known_step_s, step_s=step_s, replicas=replicas)
    assert outcomes(rows)[0] == "empty"
    deadline_s = 10 if known_step_s else 600
    assert rows[0].reason == f"nothing was finished within {deadline_s} s; the next round waits longer"
    assert set(outcomes(rows)[-2:]) == {"synced"}
    assert reason == "8 rounds done"


@pytest.mark.parametrize(("step_s", "first"), [(45.0, "every round"), (600.0, "no update came within 316 s")])
def test_limits_grow_until_local_steps_are_done(step_s, first):
    rows, reason = played(work="local", placement="private", known_step_s=0.01, step_s=step_s)
    assert rows[0].reason.removesuffix("; the next round waits longer") == first
    assert outcomes(rows)[1:] == ["synced"] * 7
    assert rows[-1].working_s == pytest.approx(STEPS * step_s, rel=0.01), "all steps are awaited again"
    assert reason == "8 rounds done"


@pytest.mark.parametrize("work", ["local", "coded"])
@pytest.mark.parametrize(
    ("link", "reason"),
    [
        ({"up_s": 300.0}, "no update came within 68 s; the next round waits longer"),
        ({"down_s": 100.0}, "clients did not get the model within 4 s; the next round waits longer"),
    ],
    ids=["updates", "models"],
)
def test_limit_of_transfers_grows_until_they_arrive(work, link, reason):
    placed = {"placement": "private"} if work == "local" else {}
    rows, ended = played(work=work, known_step_s=0.5, step_s=0.5, known_bytes_s=4e6, **link, **placed)
    assert (outcomes(rows)[0], rows[0].reason) == ("empty", reason)
    assert outcomes(rows)[-1] == "synced"
    assert {each.failure for each in rows[-1].clients} == {""}
    assert ended == "8 rounds done"


def test_limits_of_user_stay_and_are_named():
    rows, reason = played(work="coded", known_step_s=0.01, step_s=50.0, deadline_s=10)
    assert outcomes(rows) == ["empty"] * 3
    assert reason == "nothing was finished within 10 s (timing.deadline-s); 3 rounds in a row gave nothing"


def test_run_of_hanging_clients_ends():
    rows, reason = played(work="coded", known_step_s=None, step_s=1e6)
    assert [round(row.working_s / 600) for row in rows] == [1, 4, 6]
    assert reason.endswith("3 rounds in a row gave nothing")


def test_client_whose_model_takes_longer_than_rounds_is_named():
    down_s = np.array([0.5, 0.5, 0.5, 20.0])
    rows, _ = played(
        work="local", placement="private", quorum=0.5, known_step_s=None, step_s=0.1, down_s=down_s
    )
    assert len(rows) == 8
    for row in rows:
        assert [bool(each.counted) for each in row.clients] == [True, True, True, False]
        assert row.reason.endswith("; the model was still on its way to client 3")
        assert {each.failure for each in row.clients} == {""}, "it is asked behind its model"
