"""Test plans: placement fits the data, replicas limit the blocks, every deadline is finite."""

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedgc.codecs import make_codec
from fedgc.codes import adopt
from fedgc.config import RunConfig
from fedgc.errors import BadPlacement, numbered
from fedgc.history import Speed, Speeds
from fedgc.messages import Pool
from fedgc.round.limits import UNKNOWN_LINE, model_limit_s
from fedgc.round.plan import Chunk, Fleet, Plan, injected, make_plan
from tests.config_of import config_of


def table(chunks: int) -> tuple[Chunk, ...]:
    return tuple(Chunk(number, f"chunk {number}", 10 + number) for number in range(chunks))


def fleet(*held: set[int], chunks: int | None = None, size: int = 0) -> Fleet:
    known = 1 + max((number for each in held for number in each), default=0) if chunks is None else chunks
    holds = {f"client {w}": frozenset(each) for w, each in enumerate(held)}
    return Fleet(holds, table(known), size)


def everyone(clients: int, chunks: int, size: int = 0) -> Fleet:
    return fleet(*[set(range(chunks))] * clients, size=size)


def plan(of: Fleet, speeds: Speeds | None = None, steps: int = 4, **settings: object) -> Plan:
    return make_plan(of, speeds or Speeds(), config_of({"work": "coded", **settings}), steps=steps)


def measured(of: Fleet, *step_s: float, uplink: float | None = None) -> Speeds:
    return Speeds({d: Speed(d, s, up_bytes_s=uplink) for d, s in zip(of.holds, step_s, strict=False)})


speeds_of_all = st.lists(st.floats(1e-4, 1e3), min_size=6, max_size=6)


@given(clients=st.integers(1, 6), chunks=st.integers(1, 12), replicas=st.integers(1, 6), step_s=speeds_of_all)
def test_fully_shared_data_gives_each_chunk_its_replicas(clients, chunks, replicas, step_s):
    of = everyone(clients, chunks)
    made = plan(of, measured(of, *step_s), replicas=replicas, blocks="auto")
    wanted = min(replicas, clients)
    assert made.placement.holds.sum(axis=0).tolist() == [wanted] * chunks
    assert f"{numbered(wanted, 'replica')} each" in made.reason
    assert (f"({replicas} asked for)" in made.reason) == (clients < replicas)


def test_work_of_client_is_given_by_chunk_numbers():
    made = plan(fleet({1, 4}, {4}, {6}, chunks=8))
    assert made.shares == {"client 0": (1, 4), "client 1": (4,), "client 2": (6,)}


def with_links(of: Fleet, *upload_s: float) -> Speeds:
    known = {d: Speed(d, 1.0, up_bytes_s=4 * of.size / s) for d, s in zip(of.holds, upload_s, strict=True)}
    return Speeds(known)


@pytest.mark.parametrize(
    ("upload_s", "groups"),
    [
        ([40.0, 40.0, 40.0, 400.0], 4),  # the work of all clients takes 20 s
        ([2.0, 2.0, 2.0, 20.0], 16),
        ([40.0] * 4, 80),
        ([0.1, 0.1, 0.1, 1.0], 80),  # below late-s
    ],
)
def test_chunks_are_placed_in_groups_if_uplinks_are_uneven(upload_s, groups):
    of = everyone(4, 80, size=1000)
    made = plan(of, with_links(of, *upload_s), steps=1, replicas=2, late_s=2.0)
    kinds = {tuple(column) for column in made.placement.holds.T.tolist()}
    assert len(kinds) <= groups
    assert (f"in {groups} groups, as uplinks are uneven" in made.reason) == (groups < 80)


@st.composite
def partial_fleets(draw: st.DrawFn) -> Fleet:
    """Draw a fleet in which some client lacks most chunks of another."""
    chunks = draw(st.integers(4, 8))
    held = draw(st.lists(st.sets(st.integers(0, chunks - 1)), min_size=1, max_size=5))
    first = draw(st.integers(0, chunks - 1))
    others = {(first + further) % chunks for further in range(3)}
    return fleet({first}, others, *held, chunks=chunks)


@given(partial_fleets())
def test_fixed_data_layout_is_adopted(of):
    made = plan(of)
    assert "placed where the data lies" in made.reason
    numbers = [chunk.number for chunk in made.chunks]
    for client, order in zip(made.clients, made.placement.orders, strict=True):
        assert {numbers[c] for c in order} == of.holds[client]
    index = {number: c for c, number in enumerate(numbers)}
    twin = adopt([[index[number] for number in of.holds[d]] for d in made.clients], len(numbers))
    assert made.placement.holds.tolist() == twin.holds.tolist()


@pytest.mark.parametrize(("settings", "replicas"), [({"work": "local"}, 1), ({"replicas": 3}, 3)])
def test_one_client_without_one_chunk_changes_only_its_holders(settings, replicas):
    every = set(range(64))
    made = plan(fleet(every - {7}, *[every] * 7), **settings)
    assert made.placement.holds.sum(axis=0).tolist() == [replicas] * 64
    assert max(made.placement.loads) <= max(plan(everyone(8, 64), **settings).placement.loads) + 1
    assert not made.placement.holds[0, 7]
    assert made.reason.endswith("; 1 chunk placed where the data lies")
    assert not made.alone_c.any()


@given(chunks=st.integers(4, 12), lacks=st.lists(st.sets(st.integers(0, 11), max_size=2), max_size=4))
def test_chunks_are_given_only_to_clients_that_hold_them(chunks, lacks):
    of = fleet(set(range(chunks)), *[set(range(chunks)) - each for each in lacks])
    for settings in ({"work": "local"}, {"replicas": 2}):
        made = plan(of, **settings)
        assert len(made.chunks) == chunks
        assert all(set(made.shares[client]) <= of.holds[client] for client in made.clients)
        assert made.placement.holds.any(axis=0).all()


@given(partial_fleets())
def test_plan_omits_empty_clients_and_unheld_chunks(of):
    made = plan(of)
    assert made.clients == tuple(client for client, held in of.holds.items() if held)
    reachable = set().union(*of.holds.values())
    assert [chunk.number for chunk in made.chunks] == sorted(reachable)
    assert made.samples == sum(10 + number for number in reachable)
    assert dict(made.held) == {client: held for client, held in of.holds.items() if held}


@given(of=partial_fleets(), blocks=st.sampled_from(["auto", 1, 2, 3]))
def test_blocks_are_limited_by_replicas_of_rarest_chunk(of, blocks):
    made = plan(of, blocks=blocks, replicas=3)
    reachable = set().union(*of.holds.values())
    rarest = min(sum(number in held for held in of.holds.values()) for number in reachable)
    assert made.most_blocks == (rarest if blocks == "auto" else min(blocks, rarest))
    assert made.blocks_fixed == (blocks != "auto")


@pytest.mark.parametrize("of", [Fleet({}, table(2)), fleet(set(), set(), chunks=2)])
def test_fleet_without_data_cannot_be_planned(of):
    with pytest.raises(BadPlacement, match=f"saw {len(of.holds)} clients that hold nothing"):
        plan(of)


def test_fast_client_holds_more_than_slow_client():
    of = everyone(2, 12)
    even, uneven = plan(of, replicas=1), plan(of, measured(of, 0.1, 0.3), replicas=1)
    assert even.placement.loads == (6, 6)
    assert uneven.placement.loads == (9, 3)


@given(clients=st.integers(1, 6), more=st.integers(0, 30), step_s=speeds_of_all, replicas=st.integers(1, 6))
@example(clients=4, more=0, step_s=[1.0, 1.0, 3.0, 3.0, 1.0, 1.0], replicas=1)
def test_masked_run_gives_every_site_work_and_rest_by_speed(clients, more, step_s, replicas):
    of = everyone(clients, clients + more)
    made = plan(of, measured(of, *step_s), replicas=replicas, secrecy="masked", federation="all.fed")
    loads = made.placement.loads
    assert made.placement.holds.sum(axis=0).tolist() == [1] * (clients + more)
    assert min(loads) >= 1
    pairs = sorted(zip(step_s, loads, strict=False))
    for (quick_s, large), (slow_s, small) in itertools.pairwise(pairs):
        if small > 1:  # those with one chunk alone may have more than speed gives them
            assert abs(large * quick_s - small * slow_s) <= quick_s + slow_s + 1e-3 * large * quick_s


def test_masked_run_needs_one_chunk_per_site():
    with pytest.raises(BadPlacement, match="saw 3 chunks, needed one for each of 4 sites"):
        plan(everyone(4, 3), secrecy="masked", federation="all.fed")


def test_unknown_client_is_treated_as_typical():
    of = everyone(4, 4)
    assert plan(of, measured(of, 1.0, 5.0, 9.0)).step_s == (1.0, 5.0, 9.0, 5.0)
    alike = plan(of).step_s
    assert len(set(alike)) == 1, "only the ratio matters where nothing is known"
    assert alike[0] > 0


def test_fleet_counts_as_measured_only_if_every_client_is_known():
    of = everyone(2, 4)
    assert not plan(of).measured
    assert not plan(of, measured(of, 1.0)).measured
    assert plan(of, measured(of, 1.0, 1.0)).measured


@given(
    of=st.one_of(
        partial_fleets(), st.builds(everyone, st.integers(1, 5), st.integers(1, 9), st.integers(0, 10**9))
    ),
    step_s=speeds_of_all,
    known=st.integers(0, 6),
    uplink=st.none() | st.floats(1.0, 1e10),
    slots=st.integers(1, 9),
    steps=st.integers(1, 1000),
)
def test_every_deadline_is_finite_and_in_future(of, step_s, known, uplink, slots, steps):
    speeds = measured(of, *step_s[:known], uplink=uplink)
    made = plan(of, speeds, steps, **{"upload_slots": slots})
    for seconds in (made.deadline_s, made.upload_deadline_s):
        assert 0 < seconds < math.inf
    assert all(0 <= seconds < math.inf for seconds in made.upload_s)


def test_configured_deadlines_are_kept():
    made = plan(everyone(2, 4, 10**9), **{"deadline_s": 7, "upload_deadline_s": 8.5})
    assert (made.deadline_s, made.upload_deadline_s) == (7.0, 8.5)


@given(
    clients=st.integers(1, 5),
    chunks=st.integers(1, 12),
    replicas=st.integers(1, 4),
    step_s=speeds_of_all,
    steps=st.integers(1, 50),
)
def test_history_gives_every_client_time_for_all_its_chunks(clients, chunks, replicas, step_s, steps):
    of = everyone(clients, chunks)
    made = plan(of, measured(of, *step_s), steps, replicas=replicas, blocks="auto")
    loads = made.placement.loads
    assert made.deadline_s > max(
        load * steps * seconds for load, seconds in zip(loads, made.step_s, strict=True)
    )


@given(
    clients=st.integers(1, 6), size=st.integers(0, 10**8), uplink=st.floats(1e3, 1e9), slots=st.integers(1, 6)
)
@example(clients=6, size=10**9, uplink=1e6, slots=1)
def test_sequential_uploads_fit_in_upload_deadline(clients, size, uplink, slots):
    of = everyone(clients, 6, size)
    made = plan(of, measured(of, *[0.1] * clients, uplink=uplink), **{"upload_slots": slots})
    one_after_another = math.ceil(clients / slots) * max(made.upload_s)
    assert made.upload_deadline_s > one_after_another


def test_slowest_uplink_sets_deadline_and_unknown_uplink_is_slow():
    of = everyone(2, 4, 10**8)
    quick = measured(of, 0.1, 0.1, uplink=1e9)
    mixed = Speeds({**quick.known, "client 1": Speed("client 1", 0.1, up_bytes_s=1e6)})
    unknown = Speeds({**quick.known, "client 1": Speed("client 1", 0.1)})
    seconds = [plan(of, speeds).upload_deadline_s for speeds in (quick, mixed, unknown)]
    assert seconds == sorted(set(seconds))


@given(
    clients=st.integers(1, 5), size=st.integers(0, 10**9), downlinks=st.lists(st.floats(1e3, 1e9), max_size=5)
)
def test_models_arrive_within_limit_and_unknown_downlink_is_slow(clients, size, downlinks):
    rates = [*downlinks, *[None] * clients][:clients]
    limit_s = model_limit_s(rates, size)
    assert math.isfinite(limit_s)
    for rate in rates:
        assert limit_s >= 4 * size / (rate or UNKNOWN_LINE)


def test_upload_time_follows_measured_uplink():
    of = everyone(2, 4, size=1000)
    speeds = Speeds({"client 0": Speed("client 0", 0.1, up_bytes_s=500.0)})
    assert plan(of, speeds).upload_s == (8.0, 0.0), "four bytes a number; nothing is known of client 1"


@pytest.mark.parametrize("fragments", [1, 2])
def test_buffers_are_planned_as_float32(fragments):
    of = replace(everyone(2, 2, 10**6), buffers=10**5)
    made = plan(of, work="local", codec="int4", fragments=fragments, link="session")
    coded = 10**6 // fragments - 10**5
    expected = make_codec("int4").expected(coded) + 4 * 10**5
    assert made.update_bytes == pytest.approx(expected, abs=100)


def test_plan_is_deterministic_and_depends_on_seed():
    of = everyone(4, 12)
    assert plan(of) == plan(of)
    assert plan(of).placement.orders != plan(of, seed=1).placement.orders


def test_placement_of_wrong_shape_is_refused():
    made = plan(everyone(2, 4))
    with pytest.raises(BadPlacement, match="plan: saw a placement of"):
        replace(made, clients=made.clients[:1])


def test_clients_sharing_samples_know_chunks_of_all():
    settings = {"work": "local", "placement": "cyclic", "replicas": 1, "batch_size": 8}
    assert plan(everyone(2, 4), **settings).pool is None
    made = plan(everyone(2, 4), **settings, **{"inject_clients": 0.5})
    names = [chunk.name for chunk in made.chunks]
    holders = (("client 0", tuple(names[:2])), ("client 1", tuple(names[2:])))
    assert made.pool == Pool(1, 2, holders)


def injecting(alpha: float, beta: float, batch: int) -> RunConfig:
    return RunConfig(
        work="local",
        placement="cyclic",
        replicas=1,
        inject_clients=alpha,
        inject_share=beta,
        batch_size=batch,
    )


@given(st.floats(0.01, 1), st.floats(0.01, 1), st.integers(1, 64), st.integers(65, 512))
def test_own_sample_count_matches_selsync(alpha, beta, clients, batch):
    givers, given_ = injected(injecting(alpha, beta, batch), clients)
    own, exact = batch - givers * given_, batch / (1 + beta * givers)
    assert givers == max(1, round(alpha * clients))
    assert own >= 1
    if given_ > 1:
        assert exact - 1e-9 <= own < exact + givers
        assert given_ <= own


def test_batch_too_small_for_shared_samples_is_refused():
    with pytest.raises(BadPlacement) as caught:
        injected(injecting(1.0, 0.5, 8), 8)
    assert str(caught.value) == (
        "setting batch-size: saw 8 with 8 clients that give samples at each step, needed at least 9"
    )


@pytest.mark.parametrize("placement", ["private", "scattered", "cyclic", "shuffled-once"])
def test_local_work_with_few_chunks_omits_last_clients(placement):
    made = plan(everyone(4, 2), work="local", placement=placement, replicas=1, min_clients=2)
    assert made.clients == ("client 0", "client 1")
    assert made.placement.holds.sum(axis=0).tolist() == [1, 1]
    assert set(made.held) == {f"client {w}" for w in range(4)}, "nobody else has come while these are here"


def test_dealt_data_is_held_by_most_clients():
    of = fleet({0, 1, 2}, {0, 1, 2}, {0, 1, 2, 3}, {3}, chunks=4)
    made = plan(of, work="local", placement="shuffled-once")
    assert made.clients == ("client 0", "client 1", "client 2")
    assert [chunk.number for chunk in made.chunks] == [0, 1, 2]


def test_data_is_not_dealt_where_most_clients_hold_other_data():
    with pytest.raises(BadPlacement, match="2 clients of which 1 can load the same chunks, needed more than"):
        plan(fleet({0, 1}, {2}, chunks=3), work="local", placement="cyclic", replicas=1)
