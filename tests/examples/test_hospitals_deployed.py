"""Test how the deployed hospitals' results are read, without processes: from marks written by hand."""

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest

import fedgc
from examples.hospitals.deployed import (
    FLOWER,
    LIMIT_S,
    NEEDS,
    NVFLARE,
    OURS,
    ArmProgress,
    Ends,
    Mark,
    Stored,
    follow,
    read_marks,
    report,
    text_lines,
    write_work,
)
from examples.hospitals.federation import PACE_S
from examples.hospitals.hospital import by_class
from examples.hospitals.rivals import MARKS
from examples.hospitals.scene import BIG, SITES, SLOWER, sites_of
from fedgc.errors import EdgeFailed

TARGET = 0.9


def progress(arm: str, seconds: float, *, reached: bool = True) -> ArmProgress:
    """An arm that starts after 10 s; its third model is at the target after these seconds, if at all."""
    last = 0.95 if reached else 0.5
    marks = [Mark(1, 15.0, 0.3, 0.2), Mark(2, 18.0, 0.4, 0.3), Mark(3, 20.0 + seconds, last, 0.85)]
    return ArmProgress(arm, 10.0, 20.0, marks)


def test_ratios_are_of_seconds_after_start():
    found = report([progress(OURS, 20.0), progress(FLOWER, 200.0), progress(NVFLARE, 80.0)], TARGET)
    assert found.figures["deployed_time_over_flower"] == pytest.approx(0.1)
    assert found.figures["deployed_time_over_nvflare"] == pytest.approx(0.25)
    assert found.figures["start_s"] == {OURS: 10.0, FLOWER: 10.0, NVFLARE: 10.0}
    assert [row["arm"] for row in found.rows] == [FLOWER, NVFLARE, OURS], "the slowest first"
    assert found.rows[0]["rounds"] == 3
    assert found.rows[0]["total_s"] == pytest.approx(210.0)
    assert found.rows[0]["slow_site_points"] == pytest.approx(85.0)


def test_rival_without_target_counts_with_all_its_time():
    found = report(
        [progress(OURS, 20.0), progress(FLOWER, 100.0, reached=False), progress(NVFLARE, 400.0)], TARGET
    )
    assert found.figures["deployed_time_over_flower"] == pytest.approx(0.2)
    assert found.rows[0]["arm"] == FLOWER
    assert not found.rows[0]["reached"]
    assert "target not reached" in text_lines(found)[1]


def test_fedgc_without_target_is_infinite():
    found = report(
        [progress(OURS, 20.0, reached=False), progress(FLOWER, 100.0), ArmProgress(NVFLARE)], TARGET
    )
    assert found.figures["deployed_time_over_flower"] == math.inf


def test_arm_that_was_not_run_is_named():
    found = report(
        [progress(OURS, 20.0), progress(FLOWER, 100.0), ArmProgress(NVFLARE, failed=NEEDS)], TARGET
    )
    assert found.figures["deployed_time_over_nvflare"] is None
    assert found.rows[-1]["failed"] == NEEDS
    assert text_lines(found)[-1].split("  ", 1)[0] == NVFLARE
    assert NEEDS in text_lines(found)[-1]
    assert json.loads(found.json())["rows"][-1]["seconds"] is None


def test_half_written_mark_is_not_read(tmp_path):
    assert read_marks(FLOWER, 5.0, tmp_path) == ArmProgress(FLOWER, 5.0, None, [])
    lines = [
        {"round": 0, "at": 7.0},
        {"round": 1, "accuracy": 0.5, "slow_site": 0.25, "at": 9.0},
        {"round": 2, "accuracy": 0.95, "slow_site": 0.75, "at": 11.0},
    ]
    text = "\n".join(json.dumps(line) for line in lines)
    (tmp_path / MARKS).write_text(text)
    assert read_marks(FLOWER, 5.0, tmp_path) == ArmProgress(FLOWER, 5.0, 7.0, [Mark(1, 9.0, 0.5, 0.25)])
    (tmp_path / MARKS).write_text(text + "\n")
    found = read_marks(FLOWER, 5.0, tmp_path)
    assert (found.start_s, found.seconds(TARGET)) == (2.0, 4.0)


def test_stored_rounds_count_when_first_seen():
    sites = sites_of(0)
    metrics = {"accuracy": 0.5, **{f"accuracy of class {label}": 0.25 for label in range(10)}}
    rows = [SimpleNamespace(round=1, started=100.0, metrics=metrics)]
    seen = SimpleNamespace(look=lambda: SimpleNamespace(rounds=[SimpleNamespace(row=row) for row in rows]))
    stored = Stored(seen, sites, 90.0)
    first = stored.look()
    rows.append(SimpleNamespace(round=2, started=101.0, metrics={}))
    second = stored.look()
    assert first.start_s == 10.0
    assert second.marks == first.marks, "a round without its evaluation is no mark, and the first one stays"
    assert first.marks[0].slow_site == pytest.approx(0.25)


def test_server_alone_evaluates_deployed_models():
    found, sites = by_class(fedgc.RunConfig(), {"site": 1}), sites_of(0)
    assert found.validate is None
    model = found.model()
    assert found.evaluate(model) == sites.evaluate(model)


def test_arm_ends_at_target_rounds_or_limit(tmp_path):
    found = progress(FLOWER, 50.0)
    for ends in (Ends(0.9, 100, math.inf), Ends(0.99, 3, math.inf), Ends(0.99, 100, LIMIT_S)):
        assert follow(lambda: found, lambda: True, ends, tmp_path / "log") is found
    (tmp_path / "log").write_text("out of memory\n")
    with pytest.raises(EdgeFailed, match=r"ended after round 3; its log ends with: .*out of memory"):
        follow(lambda: found, lambda: False, Ends(0.99, 100, math.inf), tmp_path / "log")


def test_files_of_rivals_hold_samples_and_paces_of_sites(tmp_path):
    sites = sites_of(0)
    write_work(tmp_path, sites)
    for site in range(SITES):
        with np.load(tmp_path / f"site-{site}.npz") as table:
            assert table["labels"].tolist() == sites.images.labels[sites.rows[site]].tolist()
            assert float(table["pace_s"]) == PACE_S * (SLOWER if site == BIG else 1.0)
    with np.load(tmp_path / "test.npz") as table:
        right = table["labels"] == 3
        blind = {f"accuracy of class {label}": float(label == 3) for label in range(10)}
        assert 100 * float(right @ table["weights"]) == pytest.approx(sites.points(blind)[BIG])
