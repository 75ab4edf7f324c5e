"""Test the examples on real processes: each ends well, with its figures within the stated bands."""

import json
import os
import subprocess
from importlib import import_module
from pathlib import Path

import pytest

from examples import federation
from examples.__main__ import command_of, names

pytestmark = [pytest.mark.contract, pytest.mark.slow, pytest.mark.timeout(1500)]

ROOT = Path(__file__).parents[2]
TESTED_APART = ("hospitals",)  # a benchmark: it has figures with reaches, and no bands


@pytest.mark.parametrize("name", [name for name in names() if name not in TESTED_APART])
def test_example_has_figures_within_its_bands(name: str):
    done = subprocess.run(
        command_of(name),
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=1400,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    said = json.loads(done.stdout)
    assert {"figures", "rows", "machine"} <= set(said)
    bands = import_module(f"examples.{name}.__main__").BANDS
    assert bands
    assert federation.outside(said["figures"], bands) == []
