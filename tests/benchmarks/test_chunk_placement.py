"""Test the placement of chunks over HTTP, in little."""

from benchmarks.chunk_placement import CLIENTS, REPLICAS, bench_placement


def test_all_clients_get_their_chunks_over_http():
    report = bench_placement(0.002)
    (row,) = report.rows
    assert (row["clients"], row["replicas"]) == (CLIENTS, REPLICAS)
    assert set(report.figures) == {"placement_over_line", "placement_over_plain"}
    assert all(isinstance(figure, float) and figure > 0 for figure in report.figures.values())
