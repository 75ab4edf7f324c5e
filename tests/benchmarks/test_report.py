"""Test the report of a benchmark: one JSON object that any parser reads."""

import json
import platform

import numpy as np
import pytest

from benchmarks import Report, machine


def test_report_is_one_object_with_four_parts():
    report = Report(
        {"ratio": 1.5, "missing": None, "by": {"8,4": 2.0}}, [{"a": 1, "b": "x"}], machine(), range(3)
    )
    table = json.loads(report.json())
    assert set(table) == {"figures", "rows", "machine", "seeds"}
    assert table["figures"] == {"ratio": 1.5, "missing": None, "by": {"8,4": 2.0}}
    assert table["rows"] == [{"a": 1, "b": "x"}]
    assert table["seeds"] == [0, 1, 2]
    assert table["machine"]["cores"] >= 1


def test_machine_is_described_without_names_and_folders():
    described = machine()
    assert set(described) == {
        "system", "processor", "cores", "memory_gb", "python", "numpy", "torch", "flwr",
    }  # fmt: skip
    assert platform.node() not in map(str, described.values())


def test_non_finite_numbers_become_text_in_json():
    table = json.loads(Report({"a": float("inf"), "b": float("nan")}, [{"c": float("inf")}], {}).json())
    assert table["figures"] == {"a": "inf", "b": "nan"}
    assert table["rows"] == [{"c": "inf"}]


def test_row_of_other_kind_is_refused():
    with pytest.raises(TypeError):
        Report({"a": np.zeros(2)}, [], {}).json()
