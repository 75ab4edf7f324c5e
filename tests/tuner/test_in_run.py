"""Test the tuner inside a whole run, under the virtual clock."""

from typing import Any

import numpy as np
import pytest

from fedgc.history import WINDOW, Speed, Speeds
from fedgc.messages import Fetched, Held
from fedgc.round.plan import Plan
from fedgc.run.machine import Append, Chose
from fedgc.run.planner import PlanRequest
from fedgc.run.speeds import MeasuredSpeeds
from fedgc.sim.clock import MODELS, UNCONTENDED, ClientModel, Scenario, Terms, VirtualClock, working
from fedgc.sim.ours import CHOSEN, Fedgc
from fedgc.tuner.moving import chunk_bytes_of, load_s_of
from fedgc.tuner.planner import Tuner
from tests.config_of import config_of
from tests.tuned import tuned_run

CHUNKS = 24
NAMES = [f"client {w}" for w in range(6)]


def whole_run(
    scenario: Scenario, speeds: Speeds | None = None, *, fetch_s: float = 0.0, **settings: object
) -> list[Any]:
    """Simulate a run whose replicas the tuner chooses; return its outputs. Clients fetch chunks of a MB."""
    clients, names = scenario[0].clients, NAMES[: scenario[0].clients]
    config = config_of(
        {
            "work": "coded",
            "rounds": len(scenario),
            "local_steps": 1,
            "replicas": "auto",
            "min_clients": clients,
            **settings,
        }
    )
    held = tuple(Held(f"chunk {at}", 1, "same") for at in range(CHUNKS))
    client_model = ClientModel(lambda number: scenario[number - 1], [clients / CHUNKS] * CHUNKS)
    clock = VirtualClock(names, client_model, Terms(1, 4000), held)
    run = tuned_run(config, now=0.0, size=1000, speeds=speeds)
    said: list[Any] = []
    given = [command for w in range(clients) for command in run.handle(clock.joined(w, 0.0))]
    said += [each for each in given if isinstance(each, Chose)]
    for name in names if fetch_s else ():
        run.handle(Fetched(0.0, name, 2, 2_000_000, 2 * fetch_s))
    clock.run(run, given, lambda: run.finished, said.append)
    return [each for each in said if isinstance(each, Chose | Append)]


def chosen(said: list[Any]) -> list[Chose]:
    return [each for each in said if isinstance(each, Chose)]


def test_run_begins_without_history_and_replans_later() -> None:
    plans = chosen(whole_run(MODELS["homogeneous"](6, 8, np.random.default_rng(0)), grace_s=1e-6))
    assert "no history" in plans[0].reason
    assert "no history" not in plans[-1].reason
    assert plans[-1].basis["replicas"] == 1
    assert plans[-1].basis["predicted_s"] > 0


def test_slow_first_round_is_forgotten_after_window() -> None:
    """All clients are 100 times slower in the first round, as with a cold cache."""
    noise = np.random.default_rng(0).lognormal(0.0, 0.05, (2 * WINDOW, 6))
    noise[0] *= 100.0
    last = chosen(whole_run(tuple(working(0.4 * each[:, None]) for each in noise), grace_s=1e-6))[-1]
    assert last.round > WINDOW
    assert last.basis["predicted_s"] == pytest.approx(0.4, rel=0.1)
    assert last.basis["deadline_s"] == 10.0


@pytest.mark.parametrize("clients", [1, 6])
def test_deadline_follows_from_speeds_after_first_round(clients: int) -> None:
    """The 600 s of a round without history end only that one."""
    slow = working(np.full((clients, 1), 1500.0))
    said = whole_run((slow,) * 3, grace_s=1e-6)
    rows = [each.row for each in said if isinstance(each, Append)]
    assert [row.outcome for row in rows] == ["approximate", "synced", "synced"]
    assert chosen(said)[-1].basis["predicted_s"] == pytest.approx(1500.0, rel=0.1)


def test_single_client_that_changes_gets_new_plan() -> None:
    quick, slow = working(np.full((1, 1), 8.0)), working(np.full((1, 1), 80.0))
    plans = chosen(whole_run((*(quick,) * 3, *(slow,) * 9), grace_s=1e-6))
    predicted_s = [round(plan.basis["predicted_s"]) for plan in plans]
    assert 8 in predicted_s
    assert predicted_s[-1] == 80
    assert "one client does all the work" in plans[-1].reason
    assert plans[-1].basis["deadline_s"] > 80


def test_run_learns_from_how_predictions_came_out() -> None:
    """All clients are four times slower in every other round, which no replay of independent errors tells."""
    rng = np.random.default_rng(0)
    rounds = [working(np.full((6, 1), 4.0 ** (at % 2)) * rng.lognormal(0.0, 0.1, (6, 1))) for at in range(30)]
    said = whole_run(tuple(rounds), grace_s=1e-6)
    last = chosen(said)[-1].basis
    times = [each.row.working_s + each.row.collecting_s for each in said if isinstance(each, Append)]
    low_s, high_s = last["band_s"]
    assert last["replay_s"] != last["predicted_s"]
    assert np.mean([low_s <= seconds <= high_s for seconds in times]) >= 0.7
    assert low_s < np.mean(times) < high_s


def test_second_run_chooses_differently_after_first() -> None:
    pace_w = np.array([1.0, 1.0, 1.0, 1.0, 1.0, 5.0])
    scenario = (working(pace_w[:, None]),) * 3
    shown = {name: Speed(name, pace / 4, 0.001, rounds=9) for name, pace in zip(NAMES, pace_w, strict=True)}
    first, second = chosen(whole_run(scenario))[0], chosen(whole_run(scenario, Speeds(shown)))[0]
    assert "no history" in first.reason
    assert "client 5" in second.reason
    assert second.basis["loads"] != first.basis["loads"]


def test_tuned_run_syncs_every_round_after_speeds_change() -> None:
    pace_w = np.array([1.0, 1.0, 1.0, 1.0, 4.0, 4.0])
    rounds = [working(pace_w[:, None])] * 8 + [working(pace_w[::-1, None].copy())] * 8
    said = whole_run(tuple(rounds))
    rows = [each.row for each in said if isinstance(each, Append)]
    assert [row.outcome for row in rows] == ["synced"] * 16
    times = [row.working_s for row in rows]
    assert np.mean(times[-3:]) <= 1.15 * np.mean(times[5:8])


@pytest.mark.parametrize(("fetch_s", "moves"), [(1e-3, True), (1e6, False)])
def test_chunks_move_only_if_fetching_them_pays(fetch_s: float, moves: bool) -> None:
    pace_w = np.array([1.0, 1.0, 1.0, 1.0, 4.0, 4.0])
    rounds = [working(pace_w[:, None])] * 8 + [working(pace_w[::-1, None].copy())] * 8
    plans = [each for each in chosen(whole_run(tuple(rounds), fetch_s=fetch_s)) if each.round > 8]
    moving = [each for each in plans if each.basis["moved"]["chunks"]]
    assert bool(moving) == moves
    for plan in moving:
        moved = plan.basis["moved"]
        assert moved["bytes"] == 1e6 * moved["chunks"]
        assert fetch_s <= moved["seconds"] <= fetch_s * moved["chunks"]
        assert f"moves {moved['chunks']} chunks, {moved['chunks']:.3g} MB in" in plan.reason


@pytest.mark.parametrize("reporters", [1, 6], ids=["alone", "among six"])
def test_one_wrong_report_of_fetching_stops_no_moves(reporters: int) -> None:
    measured = MeasuredSpeeds(Speeds())
    for at, name in enumerate(NAMES):
        measured.worked(name, 0.5)
        if at < reporters:
            size_bytes, seconds = (10**15, 1e30) if at == 0 else (2_000_000, 2e-3)
            measured.heard(Fetched(0.0, name, 1 if at == 0 else 2, size_bytes, seconds))
    speeds = measured.speeds()
    load_s = load_s_of(NAMES, speeds)
    honest_s, size = (0.5, None) if reporters == 1 else (1e-3, 1e6)
    assert [load_s[name] for name in NAMES[1:]] == pytest.approx([honest_s] * 5)
    assert load_s[NAMES[0]] <= 10 * honest_s * (1 + 1e-9)
    assert chunk_bytes_of(speeds) == size


def test_plan_is_kept_without_changes() -> None:
    numbers = [
        each.round for each in chosen(whole_run(MODELS["homogeneous"](6, 16, np.random.default_rng(0))))
    ]
    assert len(numbers) <= 6
    assert numbers == sorted(numbers)


def test_moving_is_free_where_modelled_clients_load_chunks_at_once():
    heard: list[PlanRequest] = []

    class Listening(Tuner):
        def plan(self, request: PlanRequest) -> Plan:
            heard.append(request)
            return super().plan(request)

    scenario = MODELS["bimodal"](6, 2, np.random.default_rng(0))
    Fedgc(1, 2, CHOSEN, planner=Listening).play(scenario, UNCONTENDED)
    last = heard[-1]
    assert 0 < max(load_s_of(last.fleet.able, last.speeds).values()) < 1e-6
