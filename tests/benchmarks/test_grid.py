"""Test the scenarios of the benchmarks: traces found in a folder, and the rounds made from them."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest

from benchmarks.cells import compare
from benchmarks.grid import Linked, Modelled, Phones, Recorded, link_ratio, sources
from benchmarks.rounds import Job, Size, measure
from fedgc.errors import EdgeFailed
from fedgc.sim.clock import MODELS, NEVER

pytestmark = pytest.mark.usefixtures("few_futures")
LINKS = {
    "near": {"up_u": 5000.0, "up_sigma": 10.0, "down_u": 9000.0, "down_sigma": 10.0},
    "far": {"up_u": 500.0, "up_sigma": 10.0, "down_u": 900.0, "down_sigma": 10.0},
}
CLIENTS = {w: {"computation": 10.0 * w, "communication": 4000.0} for w in range(1, 7)}
TIMES = [{"active": [0, 5000], "inactive": [3000, 9000], "finish_time": 10_000}] * 6


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    rows = [f"{w},{r},0,{1 + w + r}" for w in range(4) for r in range(3)]
    (tmp_path / "times.csv").write_text("\n".join(["client,round,chunk,seconds", *rows]))
    (tmp_path / "flash_speed_distri.json").write_text(json.dumps(LINKS))
    (tmp_path / "client_device_capacity").write_bytes(pickle.dumps(CLIENTS))
    (tmp_path / "client_behave_trace").write_bytes(pickle.dumps(dict(enumerate(TIMES))))
    lambdas = [{"results": [{"started": 0.0, "finished": 1.0 + w} for w in range(3)]}] * 2
    (tmp_path / "lambda.pkl").write_bytes(pickle.dumps(lambdas))
    (tmp_path / "notes.txt").write_text("no trace")
    return tmp_path


def test_every_trace_in_folder_becomes_scenario(traces):
    found = [source.name for source in sources(traces)]
    assert found[: len(MODELS)] == list(MODELS)
    assert found[len(MODELS) :] == [
        "lambda", "times", "links of users x0.3", "links of users x3", "phones", "phones that come and go",
    ]  # fmt: skip
    assert [source.name for source in sources(None)] == list(MODELS)


def test_missing_folder_is_refused(tmp_path):
    with pytest.raises(EdgeFailed, match="saw no folder"):
        sources(tmp_path / "gone")


def test_scenarios_give_requested_rounds_and_repeat_with_seed(traces):
    for source in sources(traces):
        first, second = source.make(3, 4, 1), source.make(3, 4, 1)
        assert len(first) == 4
        assert {each.clients for each in first} == {3}
        for one, other in zip(first, second, strict=True):
            assert one.pace_wk.tolist() == other.pace_wk.tolist()
            assert one.up_s_w.tolist() == other.up_s_w.tolist()


def test_trace_starts_at_seeded_offset_and_wraps_around(traces):
    source = Recorded(traces / "times.csv")
    starts = [source.make(4, 2, seed)[0].pace_wk[0, 0] for seed in (0, 1, 2)]
    assert starts == [1.0, 3.0, 2.0]


def test_links_are_scaled_to_share_of_work_and_stay_uneven(traces):
    scenario = Linked(traces / "flash_speed_distri.json", 3.0).make(40, 3, 0)
    assert link_ratio(scenario) == pytest.approx(3.0, rel=0.01)
    assert scenario[0].up_s_w.max() > 5 * scenario[0].up_s_w.min()


def test_phones_join_and_leave_as_recorded(traces):
    capacity, behavior = traces / "client_device_capacity", traces / "client_behave_trace"
    still, moving = Phones(capacity).make(6, 2, 0), Phones(capacity, behavior).make(6, 2, 0)
    assert all(np.isinf(each.dies_s_w).all() for each in still)
    assert [each.dies_s_w[0] for each in moving] == [3000.0, 0.0]
    assert moving[1].returns_s_w[0] == 1400.0
    assert (moving[0].returns_s_w < NEVER).all()


def test_scenario_with_own_links_is_played_in_full(traces):
    size = Size(clients=6, rounds=2, seeds=1, blocks=(1, 2), claim_rounds=2)
    rows = measure(Job(Linked(traces / "flash_speed_distri.json", 3.0), 0, size))
    (cell,) = compare(rows)
    assert cell.upload == pytest.approx(3.0, rel=0.01)
    bound = min(each.median_s for each in rows if each.family == "bound")
    assert cell.bound_s == bound < cell.ours_s


def test_drawn_model_is_unchanged():
    exchange = Modelled("bimodal").make(5, 2, 7)
    again = MODELS["bimodal"](5, 2, np.random.default_rng(7))
    assert [each.pace_wk.tolist() for each in exchange] == [each.pace_wk.tolist() for each in again]
