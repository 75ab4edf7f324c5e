"""Test the tuner's choice: with and without history, with reasons, and kept while it fits."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as searched
from hypothesis import strategies as st

from fedgc.errors import BadSetting
from fedgc.history import Speed, Speeds
from fedgc.round.plan import Chunk, Fleet
from fedgc.sim.clock import FLOAT_BYTES, MODELS, Line, working
from fedgc.tuner import (
    Choice,
    ClientHistory,
    Question,
    Setting,
    advise,
    choose,
    clients_wanted,
    due,
    nothing,
    remember,
    review,
)
from fedgc.tuner.advice import cut_finer
from fedgc.tuner.choose import settings
from fedgc.tuner.trial import (
    Futures,
    cover_s,
    fluid_s,
    replayed_s,
    thinned,
    uncoded_s,
)
from tests.config_of import config_of

STEADY = Futures(np.array([[1.0, 1.0, 2.0, 4.0]]), np.full((1, 4), np.inf))


def question(clients: int, pieces: int, **config: object) -> Question:
    chunks = tuple(Chunk(at, f"chunk {at}", 1) for at in range(clients * pieces))
    every = frozenset(range(len(chunks)))
    fleet = Fleet({f"client {w}": every for w in range(clients)}, chunks, 1000)
    return Question(fleet, config_of({"work": "coded", "replicas": "auto", **config}), 1)


def made(model: str, clients: int = 12, pieces: int = 4, **config: object) -> Choice:
    past, links = remember(MODELS[model](clients, 16, np.random.default_rng(3)), pieces=pieces)
    return choose(question(clients, pieces, **config), past, links, np.random.default_rng(0))


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.mark.parametrize("model", ["homogeneous", "bimodal-persistent"])
def test_conclusive_history_needs_no_replicas(model: str) -> None:
    assert made(model, grace_s=1e-6).setting.replicas == 1


def test_slow_death_detection_justifies_second_replica() -> None:
    assert made("homogeneous", grace_s=60.0).setting.replicas >= 2


@pytest.mark.parametrize("model", ["bimodal", "shifted-exponential", "fail-stop"])
def test_random_stalls_or_deaths_need_replicas(model: str) -> None:
    assert made(model).setting.replicas >= 3


def test_loads_follow_persistent_speeds_and_reason_names_rows() -> None:
    choice = made("bimodal-persistent")
    slowest = max(choice.speeds.known.values(), key=lambda speed: speed.step_s)
    loads = question(12, 4).planned(choice.setting, choice.speeds).placement.loads
    assert loads[int(slowest.client.split()[1])] == min(loads)
    assert slowest.client in choice.reason
    assert "over 16 rounds" in choice.reason


def test_transient_speeds_do_not_change_loads() -> None:
    choice = made("bimodal")
    assert not choice.trusted
    assert "history does not help" in choice.reason
    assert len({speed.step_s for speed in choice.speeds.known.values()}) == 1


def predicted(seed: int) -> tuple[Choice, np.ndarray]:
    """Choose by 20 rounds, without past predictions; return the times of the same plan in the next 20."""
    scenario = MODELS["shifted-exponential"](12, 40, np.random.default_rng(seed))
    past, links = remember(scenario[:20], pieces=4)
    choice = choose(question(12, 4), past, links, rng())
    plan = question(12, 4).planned(choice.setting, choice.speeds)
    paces = np.stack([each.pace_wk[:, 0] / 4 for each in scenario[20:]])
    none_dies = np.full(paces.shape, np.inf)
    return choice, replayed_s(question(12, 4), plan, Futures(paces, none_dies), np.zeros(12))


def test_first_predictions_cover_following_rounds() -> None:
    shares = []
    for choice, seconds in map(predicted, range(8)):
        shares.append(np.mean([choice.band.holds(each) for each in seconds]))
        assert choice.predicted_s == pytest.approx(seconds.mean(), rel=0.2)
        assert choice.deadline_s is not None
        assert choice.deadline_s > seconds.max()
    assert np.mean(shares) == pytest.approx(0.8, abs=0.1)


NOTHING_KNOWN = {
    "an empty store": (3, nothing([f"client {w}" for w in range(3)])),
    "one client": (1, ClientHistory(("client 0",), np.ones((9, 1)), np.zeros((9, 1), bool))),
    "one round": (2, ClientHistory(("client 0", "client 1"), np.ones((1, 2)), np.zeros((1, 2), bool))),
    "contradictory rows": (
        2,
        ClientHistory(("client 0", "client 1"), np.ones((4, 2)), np.zeros((4, 2), bool), 8),
    ),
}


@pytest.mark.parametrize("case", NOTHING_KNOWN)
def test_plan_without_history_has_wide_band_and_explanation(case: str) -> None:
    clients, past = NOTHING_KNOWN[case]
    choice = choose(question(clients, 2), past, Speeds(), rng())
    assert "no history" in choice.reason
    assert choice.band.high_s >= 9 * choice.band.low_s
    assert choice.deadline_s is None
    assert 1 <= choice.setting.replicas <= clients


def test_fixed_settings_are_not_chosen() -> None:
    choice = made("bimodal", replicas=2, blocks=2, deadline_s=5.0)
    assert choice.setting == Setting(2, 2)
    settled = choice.settled(config_of({"work": "coded", "replicas": 2, "blocks": 2, "deadline_s": 5.0}))
    assert (settled.replicas, settled.blocks, settled.deadline_s) == (2, 2, 5.0)


@pytest.mark.parametrize("model", ["homogeneous", "bimodal"])
@pytest.mark.parametrize(("clients", "blocks"), [(3, 4), (5, 5), (6, 2)])
def test_fixed_blocks_give_equal_number_of_replicas(model: str, clients: int, blocks: int) -> None:
    choice = made(model, clients, blocks=blocks)
    assert choice.setting.replicas >= choice.setting.blocks == min(blocks, clients)
    assert choice.settled(config_of({"work": "coded", "replicas": "auto", "blocks": blocks})).blocks == blocks


def test_candidates_include_no_redundancy_and_no_code() -> None:
    links = Speeds({f"client {w}": Speed(f"client {w}", 1.0, up_bytes_s=100.0) for w in range(4)})
    found = settings(question(4, 2), links)
    assert Setting(1, 1) in found
    assert {Setting(4, 1), Setting(4, None), Setting(4, 4)} <= set(found)


def test_slow_uplinks_favor_blocks() -> None:
    past, _ = remember(MODELS["homogeneous"](8, 8, rng()), pieces=4)
    slow = Speeds({name: Speed(name, 1.0, up_bytes_s=400.0) for name in past.clients})
    setting = choose(question(8, 4), past, slow, rng()).setting
    assert setting.blocks is None or setting.blocks >= 2


def test_bound_without_steering_equals_slow_reference() -> None:
    plan = question(4, 3).planned(Setting(2, None), Speeds())
    found = cover_s(plan, STEADY)[:, 0]
    for replicas in (1, 2):
        ends = []
        for chunk in range(12):
            times = [
                STEADY.step_bw[0, w] * (order.index(chunk) + 1)
                for w, order in enumerate(plan.placement.orders)
                if chunk in order
            ]
            ends.append(sorted(times)[replicas - 1])
        assert found[replicas - 1] == max(ends)


def test_replay_is_between_fluid_bound_and_unsteered_bound() -> None:
    asked = question(4, 5)
    plan = asked.planned(Setting(2, 1), Speeds())
    seconds = replayed_s(asked, plan, STEADY, np.zeros(4))
    longest = 4.0  # orders turn every round, and the last chunk of the slowest may have been begun
    assert fluid_s(asked, STEADY)[0] <= seconds[0] <= cover_s(plan, STEADY)[0, 0] + longest


@pytest.mark.parametrize(("clients", "known"), [(50, False), (1, False), (1, True)])
def test_guess_without_history_is_compared_at_equal_speeds(clients: int, known: bool) -> None:
    links = Speeds({"client 0": Speed("client 0", 1.0, 0.5, rounds=9)} if known else {})
    advice = advise(question(clients, 4), links, rng())
    assert advice.over_uncoded == pytest.approx(1.0)
    assert advice.over_fluid == pytest.approx(1.0)


@pytest.mark.parametrize("clients", [20, 44])
def test_uploads_that_queue_for_slots_are_cut_into_blocks(clients: int) -> None:
    """Equal uplinks of 2 s, of which two run at a time; with many clients not all are replayed."""
    asked = replace(question(clients, 4), line=Line(slots=2))
    step_rw = 0.1 * rng().lognormal(0.0, 0.1, (10, clients))
    past = ClientHistory(asked.clients, step_rw, np.zeros(step_rw.shape, bool))
    links = linked(asked, np.full(clients, 2.0))
    choice = choose(asked, past, links, rng())
    assert choice.setting.blocks == 4
    typical = Futures(np.full((1, clients), 0.1), np.full((1, clients), np.inf))
    plan = asked.planned(choice.setting, choice.speeds)
    (played_s,) = replayed_s(asked, plan, typical, np.full(clients, 2.0))
    assert choice.predicted_s == pytest.approx(played_s, rel=0.05)
    assert played_s < 0.6 * clients * 2.0 / 2, "half of the queue without blocks, and the work"


def test_large_fleet_is_thinned_to_same_mix_of_speeds() -> None:
    step_w = np.tile([1.0, 2.0, 4.0], 100)
    few, kept = thinned(question(300, 5), step_w, Speeds(), 16)
    assert len(few.fleet.chunks) == 5 * len(kept) <= 160
    assert np.mean(step_w[list(kept)]) == pytest.approx(step_w.mean(), rel=0.1)


def linked(asked: Question, upload_s: Sequence[float]) -> Speeds:
    size = FLOAT_BYTES * asked.fleet.size
    known = zip(asked.clients, upload_s, strict=True)
    return Speeds({c: Speed(c, 1.0, up_bytes_s=size / s) for c, s in known})


def test_fleet_with_uneven_uplinks_keeps_clients_in_larger_chunks() -> None:
    asked = question(100, 40)
    even, uneven = linked(asked, [5.0] * 100), linked(asked, [5.0, 5.0, 5.0, 50.0] * 25)
    few, kept = thinned(asked, np.ones(100), even, 16)
    coarse, every = thinned(asked, np.ones(100), uneven, 16)
    assert (len(kept), few.steps, len(few.fleet.chunks)) == (16, 1, 640)
    assert (len(every), coarse.steps, len(coarse.fleet.chunks)) == (100, 10, 400)
    whole, kept = thinned(asked, np.ones(100), uneven, 16, merges=False)
    assert (len(kept), whole.steps) == (16, 1)
    assert sum(uneven.known[client].up_bytes_s < 100 for client in whole.clients) == 4, "one in four is slow"


def test_fleets_of_any_size_are_merged_if_uplinks_are_uneven() -> None:
    sizes = []
    for clients in (15, 16, 17, 20):
        asked = question(clients, 40)
        uploads = [50.0, *[5.0] * (clients - 1)]
        few, kept = thinned(asked, np.ones(clients), linked(asked, uploads), 16)
        assert len(kept) == clients
        sizes.append((len(few.fleet.chunks), few.steps))
    assert sizes == [(300, 2), (320, 2), (340, 2), (400, 2)]


def test_finalists_have_every_number_of_blocks_if_uplinks_are_known() -> None:
    past, _ = remember(MODELS["shifted-exponential"](12, 16, np.random.default_rng(3)), pieces=4)
    choice = choose(question(12, 4), past, linked(question(12, 4), [3.0] * 11 + [30.0]), rng())
    words = " ".join(words for words, _ in choice.scores)
    assert all(cut in words for cut in ("no code", "2 blocks", "4 blocks", "blocks chosen at the stop"))


def test_choice_stays_while_rounds_stay_in_band() -> None:
    past, links = remember(MODELS["bimodal"](12, 16, np.random.default_rng(3)), pieces=4)
    choice = choose(question(12, 4), past, links, rng())
    kept = review(choice, question(12, 4), past, links, measured_s=[choice.predicted_s] * 3, rng=rng())
    assert kept is choice


def test_drift_changes_loads() -> None:
    pace_w = np.array([1.0, 1.0, 4.0, 4.0, 1.0, 1.0])
    before, after = working(pace_w[:, None]), working(pace_w[::-1, None].copy() ** 0.5 * 2.0)
    past, links = remember((before,) * 10, pieces=4)
    choice = choose(question(6, 4), past, links, rng())
    drifted, _ = remember((before,) * 10 + (after,) * 5, pieces=4)
    slow_s = choice.band.high_s * 2
    assert due(choice, drifted, links, [slow_s, slow_s])
    anew = review(choice, question(6, 4), drifted, links, measured_s=[slow_s, slow_s], rng=rng())
    assert anew.speeds != choice.speeds


def test_moving_chunks_must_pay_off_in_remaining_rounds() -> None:
    pace_w = np.array([1.0, 1.0, 4.0, 4.0, 1.0, 1.0])
    past, links = remember((working(pace_w[:, None]),) * 10, pieces=4)
    present = choose(question(6, 4), past, links, rng())
    turned, _ = remember(
        (working(pace_w[:, None]),) * 5 + (working(np.roll(pace_w, 2)[:, None]),) * 8, pieces=4
    )
    dear = replace(question(6, 4), load_s=dict.fromkeys(past.clients, 1e6), rounds_left=1)
    assert choose(dear, turned, links, rng(), present).speeds is present.speeds
    cheap = replace(question(6, 4), rounds_left=100)
    assert choose(cheap, turned, links, rng(), present).speeds is not present.speeds


def test_kept_plan_has_band_of_late_rounds() -> None:
    past, links = remember(MODELS["homogeneous"](6, 10, rng()), pieces=4)
    choice = choose(question(6, 4), past, links, rng())
    late_s = choice.band.high_s + 3.0
    assert choice.replay_s is not None
    told = replace(past, ratios=(late_s / choice.replay_s,) * 2)
    kept = review(choice, question(6, 4), told, links, measured_s=[late_s, late_s], rng=rng())
    assert kept.setting == choice.setting
    assert kept.band.high_s >= late_s


def test_past_ratios_correct_prediction_and_comparisons() -> None:
    """Rounds took 1.5 times as long as replayed: so does the predicted one, and what it is compared with."""
    past, links = remember(MODELS["bimodal"](8, 12, np.random.default_rng(1)), pieces=4)
    late = replace(past, ratios=(1.5,) * 20)
    before, after = (advise(question(8, 4), links, rng(), history=each) for each in (past, late))
    assert after.choice.setting == before.choice.setting
    assert after.choice.replay_s == before.choice.replay_s
    assert after.choice.predicted_s == pytest.approx(1.5 * after.choice.replay_s)
    assert after.choice.band.low_s == pytest.approx(after.choice.predicted_s, rel=0.01)
    assert after.over_fluid == pytest.approx(
        before.choice.replay_s / before.fluid_s * before.choice.correction
    )
    assert f"{after.choice.predicted_s:.3g} s predicted" in after.choice.reason


def test_fixed_data_is_not_copied() -> None:
    asked = question(2, 2)
    fleet = replace(asked.fleet, holds={"client 0": frozenset({0, 1}), "client 1": frozenset({2, 3})})
    past, links = remember(MODELS["homogeneous"](2, 8, rng()))
    assert choose(replace(asked, fleet=fleet), past, links, rng()).setting.replicas == 1


def test_history_of_other_clients_is_refused() -> None:
    with pytest.raises(BadSetting, match="needed that of the clients"):
        choose(question(2, 2), nothing(["x", "y"]), Speeds(), rng())


def test_advice_estimates_uncoded_work_and_additional_client() -> None:
    scenario = MODELS["bimodal"](8, 12, np.random.default_rng(1))
    history, links = remember(scenario, pieces=4)
    advice = advise(question(8, 4), links, rng(), history=history)
    assert advice.over_uncoded < 0.7
    assert advice.over_fluid >= 1.0
    assert min(round_s for _, round_s in advice.one_more) < advice.choice.predicted_s
    assert sum(advice.loads) == 32 * advice.choice.setting.replicas


def test_clients_are_wanted_until_they_gain_too_little() -> None:
    past, links = remember(MODELS["homogeneous"](4, 12, rng()), pieces=16)
    asked = question(4, 16, replicas=1)
    wanted = [clients_wanted(asked, past, links, rng(), share) for share in (0.3, 0.1, 0.01)]
    assert wanted == sorted(set(wanted))
    assert wanted[0] < 4 < wanted[1]
    assert wanted[2] == 15, "the largest size below four times the present one"


def test_nothing_is_wanted_without_history_or_free_data() -> None:
    past, links = remember(MODELS["homogeneous"](2, 8, rng()))
    asked = question(2, 2)
    assert clients_wanted(asked, nothing(asked.clients), Speeds(), rng()) is None
    fleet = replace(asked.fleet, holds={"client 0": frozenset({0, 1}), "client 1": frozenset({2, 3})})
    assert clients_wanted(replace(asked, fleet=fleet), past, links, rng()) is None


def test_finer_cut_is_same_work_on_same_data() -> None:
    asked = question(4, 2)
    finer = cut_finer(asked.fleet, 3)
    assert [chunk.number for chunk in finer.chunks] == list(range(24))
    assert finer.holds["client 0"] == frozenset(range(24))
    scenario = MODELS["bimodal"](4, 12, np.random.default_rng(1))
    history, links = remember(scenario, pieces=2)
    cuts = advise(replace(question(4, 2), steps=4), links, rng(), history=history).cuts
    assert [(cut.chunks, cut.steps) for cut in cuts] == [(8, 4), (16, 2), (32, 1)]
    assert cuts[-1].round_s < cuts[0].round_s


def test_data_of_one_client_is_continued_after_stop() -> None:
    asked = question(2, 2)
    assert "serpentine" in advise(asked, Speeds(), rng()).order
    lies = replace(asked.fleet, holds={"client 0": frozenset({0, 1}), "client 1": frozenset({2, 3})})
    advice = advise(replace(asked, fleet=lies), Speeds(), rng())
    assert "carries on where it stopped" in advice.order
    assert len(advice.cuts) == 1, "how the data is cut is its clients' business"


def test_client_with_delaying_link_is_named() -> None:
    known = {f"client {w}": Speed(f"client {w}", 1.0, 0.01, up_bytes_s=4e6, rounds=9) for w in range(4)}
    known["client 3"] = Speed("client 3", 1.0, 0.01, up_bytes_s=10.0, rounds=9)  # 400 s for the model
    advice = advise(question(4, 4, replicas=1), Speeds(known), rng())
    assert [client for client, _ in advice.costs] == ["client 3"]


@pytest.mark.parametrize("step_s", [0.0, -1.0, math.nan, 1e308])
def test_additional_client_needs_speed(step_s: float) -> None:
    with pytest.raises(BadSetting, match="one more client"):
        advise(question(2, 2), Speeds(), rng(), newcomers_s=[step_s])


def test_advice_without_history_is_given() -> None:
    advice = advise(question(2, 2), Speeds(), rng())
    assert "no history" in advice.choice.reason
    assert advice.uncoded_s > 0


@pytest.mark.parametrize(("slots", "rounds_s"), [(1, 3.0), (2, 2.0), (3, 1.0)])
def test_uncoded_uploads_queue_for_slots(slots: int, rounds_s: float) -> None:
    asked = question(3, 1)
    asked = replace(asked, line=replace(asked.line, slots=slots))
    up_bytes_s = FLOAT_BYTES * asked.fleet.size / 7.0
    speeds = Speeds({each: Speed(each, 1.0, up_bytes_s=up_bytes_s) for each in asked.clients})
    futures = Futures(np.ones((1, 3)), np.full((1, 3), np.inf))
    assert uncoded_s(asked, speeds, futures).tolist() == pytest.approx([asked.steps + rounds_s * 7.0])


def test_uncoded_round_with_death_waits_and_repeats_work() -> None:
    asked = question(2, 2, grace_s=7.0)
    speeds = Speeds({"client 0": Speed("client 0", 1.0), "client 1": Speed("client 1", 3.0)})
    lives, dies = np.full(2, np.inf), np.array([np.inf, 0.5])
    futures = Futures(np.array([[1.0, 3.0]] * 2), np.stack([lives, dies]))
    whole_s = 4 * asked.steps / (1.0 + 1.0 / 3.0)  # four chunks at the speed of both
    assert uncoded_s(asked, speeds, futures).tolist() == pytest.approx([whole_s, 1.5 * whole_s + 7.0])


def private(numbers: dict[str, list[int]], known: int) -> Question:
    """Return a fleet in which each client has chunks of its own, out of a table of so many."""
    chunks = tuple(Chunk(at, f"chunk {at}", 1) for at in range(known))
    fleet = Fleet({client: frozenset(held) for client, held in numbers.items()}, chunks, 1000)
    return Question(fleet, config_of({"work": "coded", "replicas": "auto"}), 1)


@pytest.mark.parametrize("first", [0, 3, 40])
def test_replay_takes_chunk_numbers_with_gaps(first: int) -> None:
    dense = private({"client 0": [0, 1], "client 1": [2, 3]}, 4)
    gaps = private({"client 0": [first, first + 1], "client 1": [first + 7, first + 9]}, first + 10)
    plans = [each.planned(Setting(1, 1), Speeds()) for each in (dense, gaps)]
    told = Futures(np.array([[1.0, 2.0]]), np.full((1, 2), np.inf))
    seconds = [
        replayed_s(each, plan, told, np.zeros(2)) for each, plan in zip((dense, gaps), plans, strict=True)
    ]
    assert seconds[0].tolist() == seconds[1].tolist() == [4.0]


def test_unloadable_chunks_are_no_work() -> None:
    every = list(range(4, 12))
    asked = private({"client 0": every, "client 1": every, "client 2": every}, 16)
    assert asked.free
    assert fluid_s(asked, Futures(np.ones((1, 3)), np.full((1, 3), np.inf))).tolist() == [8 / 3]
    assert max(each.replicas for each in settings(asked, Speeds())) == 3


def test_bound_with_unequal_holders_allows_death_of_first() -> None:
    asked = private({"client 0": [0], "client 1": [1, 2], "client 2": [0, 1]}, 3)
    plan = asked.planned(Setting(1, 1), Speeds())
    cover_kb = cover_s(plan, Futures(np.ones((1, 3)), np.array([[0.5, np.inf, np.inf]])))
    assert cover_kb.tolist() == [[2.0]]


@searched(max_examples=40)
@given(
    held=st.lists(st.sets(st.integers(0, 11), max_size=5), min_size=1, max_size=5).filter(any),
    shared=st.booleans(),
    config=st.fixed_dictionaries({}, optional={"blocks": st.integers(1, 3), "deadline_s": st.just(5.0)}),
    rounds=st.integers(0, 6),
    seed=st.integers(0, 99),
)
def test_any_data_layout_has_feasible_choice(held, shared, config, rounds, seed):
    """Private and mixed chunks, unheld numbers, failing clients, and clients without chunks."""
    all_of_them = frozenset().union(*held)
    chunks = tuple(Chunk(at, f"chunk {at}", 1) for at in range(12))
    holds = {f"client {w}": all_of_them if shared else frozenset(each) for w, each in enumerate(held)}
    of = Question(Fleet(holds, chunks, 1000), config_of({"work": "coded", "replicas": "auto", **config}), 2)
    chance = np.random.default_rng(seed)
    step_rw = chance.choice([0.1, 1.0, 9.0, np.nan], (rounds, len(of.clients)))
    past = ClientHistory(of.clients, step_rw, chance.random(step_rw.shape) < 0.3)
    links = Speeds({of.clients[0]: Speed(of.clients[0], 1.0, up_bytes_s=chance.choice([1.0, 1e9]))})
    choice = choose(of, past, links, rng())
    again = review(choice, of, past, links, measured_s=[choice.band.high_s * 2] * 2, rng=rng())
    for each in (choice, again):
        assert math.isfinite(each.band.high_s)
        made = of.planned(each.setting, each.speeds)
        assert {chunk.number for chunk in made.chunks} == all_of_them
        assert made.placement.holds.any(axis=0).all()


@pytest.mark.parametrize("clients", [2, 3])
def test_fleet_that_failed_in_all_rounds_gets_plan(clients: int) -> None:
    names = tuple(f"client {w}" for w in range(clients))
    past = ClientHistory(names, np.full((2, clients), 0.5), np.full((2, clients), fill_value=True))
    choice = choose(question(clients, 4), past, Speeds(), rng())
    assert math.isfinite(choice.predicted_s)
    assert all(math.isfinite(score_s) for _, score_s in choice.scores)
