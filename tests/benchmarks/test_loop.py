"""Test the benchmark of training scripts: it measures what it names."""

import pytest

from benchmarks.loop import bench_loop


@pytest.mark.slow
def test_loop_report_has_its_figures():
    report = bench_loop(quick=True)
    assert set(report.figures) == {
        "step_overhead_percent",
        "step_ms_10m",
        "take_1gb_over_memcpy",
        "interrupt_ms",
        "ddp_sum_error",
    }
    assert 0 < report.figures["ddp_sum_error"] < 1e-5
    assert report.figures["take_1gb_over_memcpy"] > 0
