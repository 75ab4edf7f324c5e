"""Test what ranks do together: agreement, and the model under DDP and under FSDP2."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.scripts import srun

TOGETHER = Path(__file__).with_name("together.py")
SIZE = 15 + 5 + 5 + 5 + 5 + 5  # the layer, and scale, shift, mean and variance of the normalization
NAMES = ["0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var"]


@pytest.fixture(scope="module")
def told() -> dict:
    done = subprocess.run(
        [sys.executable, srun.__file__, "-n", "2", str(TOGETHER)],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_all_ranks_take_numbers_of_rank_0(told):
    assert told["agreed"] == [5, 2]
    assert told["gathered"] == [[0, 3], [1, 3]]
    assert told["shared"] == {"of": 0}


@pytest.mark.parametrize("wrapper", ["ddp", "fsdp"])
def test_wrapped_model_is_written_and_read_as_one_vector(told, wrapper):
    assert told[wrapper]["names"] == NAMES
    assert told[wrapper]["read"] == [float(number) for number in range(SIZE)]


@pytest.mark.parametrize("wrapper", ["ddp", "fsdp"])
def test_private_tensors_of_rank_0_reach_all_ranks(told, wrapper):
    assert told[wrapper]["bias"] == [7.0, 8.0]
    assert told[wrapper]["private"] == ["2.bias", "2.weight"]


def test_ddp_ranks_hold_same_model_and_fsdp_ranks_hold_parts(told):
    assert (told["ddp"]["sharded"], told["fsdp"]["sharded"]) == (False, True)
    assert len(set(told["ddp"]["sums"])) == 1
    assert len(set(told["fsdp"]["sums"])) == 2
