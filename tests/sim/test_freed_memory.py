"""Test that worker processes of a simulation keep the memory that they free."""

import platform
import resource
from typing import Final

import numpy as np
import pytest

from fedgc.sim.freed_memory import keep_freed_memory
from fedgc.sim.owned import processes

BLOCK: Final = 40 << 20  # bytes: glibc chooses no threshold above 32 MiB by itself
TIMES: Final = 20


def faults_of_blocks() -> int:
    """Allocate, fill and free a block several times; return the page faults after the first one."""
    np.ones(BLOCK, np.uint8)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(TIMES):
        np.ones(BLOCK, np.uint8)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has mallopt")
def test_process_reuses_blocks_that_it_freed():
    with processes(1) as usual, processes(1, keep_freed_memory) as keeping:
        assert 10 * keeping.submit(faults_of_blocks).result() < usual.submit(faults_of_blocks).result()


def test_library_without_mallopt_is_left_alone(monkeypatch):
    monkeypatch.setattr("ctypes.CDLL", lambda _: object())
    assert not keep_freed_memory()
