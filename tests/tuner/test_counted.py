"""Test chunk weights of slow sole holders: estimated from cut rounds, and unbiased."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from fedgc.config import RunConfig
from fedgc.history import ClientRow, RoundRow, Speeds
from fedgc.messages import Add, Held, Joined
from fedgc.round.plan import Chunk, Fleet, Plan, make_plan
from fedgc.run.machine import Append
from fedgc.sim.clock import ClientModel, Terms, VirtualClock, working
from fedgc.tuner import chances, chunk_weights
from tests.config_of import config_of
from tests.tuned import tuned_run

CHUNKS = 12
MINE = {"quick": range(6), "slow": range(6, 12)}


def planned(holds: dict[str, Sequence[int]]) -> Plan:
    chunks = tuple(Chunk(at, f"chunk {at}", 1) for at in range(1 + max(map(max, holds.values()))))
    fleet = Fleet({client: frozenset(held) for client, held in holds.items()}, chunks, 10)
    return make_plan(fleet, Speeds(), RunConfig(replicas=1, work="coded"), steps=1)


def row(short: tuple[int, ...], clients: Sequence[str] = ("quick", "slow")) -> RoundRow:
    return RoundRow(
        *(1, 0, 0.0, 8.0, 0.0, "approximate" if short else "synced", CHUNKS, CHUNKS, short, 1, 1, 2),
        *(None, None, None, 40, 0, 0, 0, 0, ""),
        clients=tuple(ClientRow(client) for client in clients),
    )


def test_slow_sole_holder_is_weighted_up() -> None:
    plan = planned(MINE)
    rows = [row((6, 7, 8)), row((9, 10, 11)), row(())] * 5
    sure, unsure = chances(rows, plan)
    assert sure == 1.0
    assert unsure == pytest.approx(0.5, abs=0.02), "a whole round says nothing of those that were cut short"
    assert chunk_weights(rows, plan) == (1.0,) * 6 + (pytest.approx(1 / unsure),) * 6


def test_round_without_client_gives_no_evidence() -> None:
    plan = planned(MINE)
    assert chances([row((0,), ["quick"])], plan)[1] == 1.0


def test_chunk_with_second_holder_is_not_weighted() -> None:
    plan = planned({"a": [0, 1], "b": [1, 2]})
    weights = chunk_weights([row((0, 1), ["a", "b"])] * 5, plan)
    assert weights[1:] == (1.0, 1.0)
    assert weights[0] == 4.0, "no weight is larger, however seldom it comes"


def test_fully_shared_data_lets_others_replace_client() -> None:
    plan = planned({"a": [0, 1], "b": [0, 1]})
    assert plan.placement.replicas == 1
    assert chunk_weights([row((0,), ["a", "b"])] * 5, plan) == (1.0, 1.0)


def counted_in(rounds: int, **settings: object) -> np.ndarray:
    """Play a run in which a slow sole holder does 0 to 6 of its chunks; return the counted weights."""
    rng = np.random.default_rng(5)
    pace_s = rng.choice([1.2, 1.9, 3.0, 6.0, 14.0], size=rounds)  # of a chunk: of 12 s, 6 to none
    scenario = [working([[0.5 * 6], [each * 6]]) for each in pace_s]
    names = {client: tuple(Held(f"chunk {c}", 1) for c in mine) for client, mine in MINE.items()}
    config = config_of({"work": "coded", "rounds": rounds, "local_steps": 1, "deadline_s": 12.0, **settings})
    run = tuned_run(config, now=0.0, size=10)
    client_model = ClientModel(lambda number: scenario[number - 1], [1 / 6] * CHUNKS)
    clock = VirtualClock(list(MINE), client_model, Terms(1, 40), names["quick"] + names["slow"])
    counted = np.zeros((rounds, CHUNKS))

    def heed(said: Any) -> None:
        if isinstance(said, Add):
            mix = clock.asked[said.client][said.attempt].mix
            assert mix is not None
            for chunk, (factor,) in zip(mix.chunks, mix.matrix, strict=True):
                counted[said.round - 1, chunk] += said.weights[0] * factor
        elif isinstance(said, Append):
            assert said.row.outcome == ("approximate" if said.row.short else "synced")

    hello = [Joined(0.0, client, live=True, holds=held) for client, held in names.items()]
    clock.run(run, [command for each in hello for command in run.handle(each)], lambda: run.finished, heed)
    return counted


def test_every_chunk_counts_equally_over_many_rounds() -> None:
    counted = counted_in(200)
    whole = counted.min(axis=1) > 0
    assert 0 < whole.mean() < 0.5, "some rounds are whole, most are cut short"
    np.testing.assert_array_equal(counted[whole], 1.0)
    mean_c = counted[40:].mean(axis=0)
    np.testing.assert_allclose(mean_c[:6], 1.0)
    np.testing.assert_allclose(mean_c[6:], 1.0, atol=0.12)
    plain_c = (counted[40:] > 0).mean(axis=0)
    assert plain_c[6:].max() < 0.65, "without weights a slow client's data would count little more than half"
    assert plain_c[6:].min() > 0.35, "none of its chunks is always the last"


def test_slow_client_rotates_through_its_chunks() -> None:
    pace = 12.0 / 2.5  # two of six in each round
    always = working([[0.5 * 6], [pace * 6]])
    client_model = ClientModel(lambda _: always, [1 / 6] * CHUNKS)
    names = {client: tuple(Held(f"chunk {c}", 1) for c in mine) for client, mine in MINE.items()}
    run = tuned_run(RunConfig(rounds=6, local_steps=1, deadline_s=12.0, work="coded"), now=0.0, size=10)
    clock = VirtualClock(list(MINE), client_model, Terms(1, 40), names["quick"] + names["slow"])
    shorts: list[set[int]] = []
    hello = [Joined(0.0, client, live=True, holds=held) for client, held in names.items()]
    clock.run(
        run,
        [command for each in hello for command in run.handle(each)],
        lambda: run.finished,
        lambda said: shorts.append(set(said.row.short)) if isinstance(said, Append) else None,
    )
    brought = [set(MINE["slow"]) - short for short in shorts]
    assert [len(each) for each in brought] == [2] * 6
    assert set().union(*brought[:3]) == set().union(*brought[3:]) == set(MINE["slow"])
