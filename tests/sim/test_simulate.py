"""Test the request of a simulation: predictions and refusals."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedgc.config import RunConfig
from fedgc.errors import BadPlacement, BadSetting
from fedgc.sim import Request, simulate
from fedgc.sim.clock import MODELS
from fedgc.sim.simulate import SHORT, USUAL_CLIENTS

SMALL = {"clients": 12, "rounds": 3, "replicas": 3, "pieces": 2}


def test_default_prediction_is_of_fedgc_only():
    (only,) = simulate(Request(**SMALL))
    assert only.policy.startswith("fedgc steer, 3 replicas, 2 chunks each")
    assert len(only.results) == 3
    assert 0 < only.median_s <= only.p95_s


def test_links_follow_from_model_size():
    """4 s down, 2 s up at one block, and nothing straggles."""
    request = Request(
        clients=4,
        rounds=2,
        replicas=1,
        blocks=1,
        model="homogeneous",
        model_mb=8.0,
        uplink_mb_s=4.0,
        downlink_mb_s=2.0,
    )
    (only,) = simulate(request)
    assert [result.seconds for result in only.results] == pytest.approx([4.0 + 1.0 + 2.0] * 2)
    assert only.up_mb == pytest.approx(4 * 8.0)


def test_narrow_server_link_slows_round():
    wide, narrow = (
        simulate(Request(**SMALL, blocks=1, model="homogeneous", server_mb_s=speed))[0].median_s
        for speed in (0.0, 50.0)
    )
    assert narrow > wide + 12 * 1.0  # twelve models of a second each, down


def test_dead_client_is_lost_after_grace_as_on_server():
    """Another holder of its chunks does not wait for that."""
    grace_s = RunConfig().grace_s
    alone, replaced = (
        simulate(Request(clients=50, rounds=3, model="fail-stop", replicas=replicas))[0]
        for replicas in (1, 2)
    )
    assert min(result.working_s for result in alone.results) > grace_s
    assert max(result.working_s for result in replaced.results) < grace_s


def test_round_without_any_sum_lacks_all_data():
    (only,) = simulate(Request(clients=1, rounds=3, model="fail-stop", replicas=1))
    assert [(result.missing, result.exact) for result in only.results] == [(1.0, False)] * 3
    assert only.missing == 1.0


def test_several_uplinks_repeat_over_clients():
    (first, *_) = Request(clients=5, uplink_mb_s=(10.0, 2.0), downlink_mb_s=(50.0,), model_mb=20.0).scenario()
    assert first.up_s_w.tolist() == [2.0, 10.0, 2.0, 10.0, 2.0]
    assert first.down_s_w.tolist() == [0.4] * 5


def test_upload_slots_queue_uploads_and_not_downloads():
    """Four clients load for 1 s together, work for 1 s, and upload for 2 s each, one after the other."""
    links = {"model_mb": 8.0, "uplink_mb_s": 4.0, "downlink_mb_s": 8.0, "upload_slots": 1}
    request = Request(clients=4, rounds=2, replicas=1, blocks=1, model="homogeneous", **links)
    (only,) = simulate(request)
    assert [result.seconds for result in only.results] == pytest.approx([1.0 + 1.0 + 4 * 2.0] * 2)
    (free,) = simulate(replace(request, upload_slots=0))
    assert [result.seconds for result in free.results] == pytest.approx([1.0 + 1.0 + 2.0] * 2)


def test_policy_is_found_by_prefix_of_name():
    predictions = simulate(Request(**SMALL, policies=("uncoded", "fedgc steer, 3 replicas, 2")))
    assert [each.policy.split(",")[0] for each in predictions] == ["uncoded", "fedgc steer"]


def test_progress_counts_every_round_of_every_policy():
    heard: list[tuple[int, int]] = []
    simulate(
        Request(**SMALL, policies=("fedgc steer, 3 replicas, 2", "over-selection")),
        lambda *at: heard.append(at),
    )
    assert heard == [(1, 6), (2, 6), (3, 6), (6, 6)]


def test_trace_is_played_repeatedly_from_its_start(tmp_path: Path):
    rows = [f"{w},{number},0,{1 + w + number}" for w in range(3) for number in range(2)]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["client,round,chunk,seconds", *rows]))
    request = Request(clients=2, rounds=3, replicas=1, trace=path, policies=("uncoded",), model_mb=1e-9)
    plain = simulate(request)[0]
    assert [result.seconds for result in plain.results] == pytest.approx([2.0, 3.0, 2.0])
    with pytest.raises(BadSetting, match="saw 4, the trace has 3"):
        simulate(Request(clients=4, rounds=1, trace=path))
    assert {each.clients for each in Request(replicas=1, trace=path).scenario()} == {3}, "all that it has"
    assert simulate(Request(trace=path)) == simulate(Request(replicas=3, trace=path))
    with pytest.raises(BadPlacement, match="4 replicas on 3 clients"):
        simulate(Request(replicas=4, trace=path))
    assert {each.clients for each in Request(rounds=1).scenario()} == {USUAL_CLIENTS}


def test_timeline_has_names_of_trace(tmp_path: Path):
    trace = tmp_path / "t.csv"
    trace.write_text("client,round,chunk,seconds\nsouth,1,0,1\nnorth,1,0,2\n")
    (found,) = simulate(Request(trace=trace, rounds=1), watch=True)
    ends_s = {each.client: each.end_s for each in found.spans if each.finished}
    assert ends_s["south"] < ends_s["north"]
    assert set(ends_s) == {"south", "north"}


def test_same_seed_gives_same_prediction():
    assert simulate(Request(**SMALL)) == simulate(Request(**SMALL))
    assert simulate(Request(**SMALL, seed=1)) != simulate(Request(**SMALL))


def test_observer_does_not_change_prediction():
    (plain,), (watched,) = simulate(Request(**SMALL)), simulate(Request(**SMALL), watch=True)
    assert plain.results == watched.results
    assert not plain.spans
    assert len([span for span in watched.spans if span.finished]) >= 24


def test_processes_divide_rounds():
    heard: list[int] = []
    request = Request(clients=4, rounds=SHORT, replicas=2, processes=2)
    (only,) = simulate(request, lambda over, _: heard.append(over))
    assert len(only.results) == SHORT
    assert heard[-1] == SHORT
    half = Request(clients=4, rounds=SHORT, replicas=2).scenario()[: SHORT // 2]
    expected = request.chosen(4)[0].play(half, request.line)
    assert only.results[: SHORT // 2] == expected


def test_last_round_spans_use_learned_state_of_run():
    """A run of the last round alone would not know the clients' speeds."""
    request = Request(**SMALL, model="bimodal", model_mb=500)
    whole = request.chosen(12)[0].watched(request.scenario(), request.line)
    (watched,) = simulate(request, watch=True)
    assert watched.spans == whole[-1][1]
    assert watched.spans != request.chosen(12)[0].watched(request.scenario()[-1:], request.line)[-1][1]


def test_recorded_links_keep_latency(tmp_path: Path):
    path = tmp_path / "l.json"
    path.write_text('{"u": {"up_u": 1000, "up_sigma": 0, "down_u": 1000, "down_sigma": 0}}')
    scenario = Request(**SMALL, links=path, latency_s=0.25).scenario()
    assert [set(each.control_s_w.tolist()) for each in scenario] == [{0.25}] * 3


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"clients": 0}, BadSetting, "clients: saw 0, needed at least 1"),
        ({"clients": 10**9}, BadSetting, r"clients: saw 1000000000 in \d+ rounds, needed at most"),
        ({"rounds": 0}, BadSetting, "rounds"),
        ({"model_mb": 0.0}, BadSetting, "model_mb: saw 0.0"),
        ({"uplink_mb_s": float("inf")}, BadSetting, "uplink_mb_s"),
        ({"uplink_mb_s": (1.0, 0.0)}, BadSetting, r"uplink_mb_s: saw \(1.0, 0.0\), needed more than 0"),
        ({"uplink_mb_s": ()}, BadSetting, "uplink_mb_s"),
        ({"upload_slots": -1}, BadSetting, "upload_slots: saw -1, needed at least 0"),
        ({"latency_s": float("nan")}, BadSetting, "latency_s"),
        ({"model": "bimodel"}, BadSetting, "did you mean bimodal"),
        ({"replicas": 13}, BadPlacement, "13 replicas on 12 clients"),
        ({"blocks": 4}, BadPlacement, "4 blocks of 3 replicas"),
        ({"policies": ("magic",)}, BadSetting, "policy 'magic': unknown"),
    ],
)
def test_invalid_request_is_refused_in_one_line(change, error, says):
    with pytest.raises(error, match=says) as refused:
        simulate(Request(**{**SMALL, **change}))
    assert "\n" not in str(refused.value)


def test_every_model_is_available_by_name():
    for model in MODELS:
        (only,) = simulate(Request(**SMALL, model=model))
        assert np.isfinite(only.median_s)
