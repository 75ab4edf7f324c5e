"""Test what memory and disk are found, by files as the system writes them."""

import ctypes
import os
import platform
from pathlib import Path

import numpy as np
import pytest

from benchmarks.memory_watch import resident_bytes
from fedgc.processes.available import (
    available_cores,
    available_memory,
    free_disk,
    keep_memory,
    release_memory,
)
from fedgc.sim.owned import Processes

MEMINFO = "MemTotal:       24684084 kB\nMemFree:         1000000 kB\nMemAvailable:    2000000 kB\n"


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    (tmp_path / "meminfo").write_text(MEMINFO)
    return tmp_path


def limited(folder: Path, limit: str) -> None:
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text("700000000\n")
    (folder / "memory.stat").write_text("anon 1\ninactive_file 100000000\nactive_file 50000000\nfile 9\n")


def test_memory_of_machine_is_known(machine: Path):
    assert available_memory(machine / "meminfo", machine) == 2_048_000_000


def test_limit_of_container_counts_without_files(machine: Path):
    limited(machine, "1000000000")
    assert available_memory(machine / "meminfo", machine) == 450_000_000


def test_container_without_limit_has_memory_of_machine(machine: Path):
    limited(machine, "max")
    assert available_memory(machine / "meminfo", machine) == 2_048_000_000


def test_memory_is_unknown_on_another_system(tmp_path: Path):
    assert available_memory(tmp_path / "none", tmp_path) is None


def test_disk_of_folder_that_is_not_there_is_that_of_its_parent(tmp_path: Path):
    assert (free_disk(tmp_path / "a" / "b") or 0) > 0


def test_freed_memory_goes_back_to_system():
    held = [bytearray(b"x" * 50_000) for _ in range(2000)]  # too small for mappings of their own
    last = bytearray(b"x" * 50_000)  # keeps the end of the heap
    before = resident_bytes(os.getpid())
    held.clear()
    release_memory()
    assert before - resident_bytes(os.getpid()) > 50_000_000
    assert len(last) == 50_000


@pytest.mark.parametrize("limit", ["100000 100000", "20000 100000"])
def test_cores_are_those_of_container(tmp_path: Path, limit: str):
    (tmp_path / "cpu.max").write_text(f"{limit}\n")
    assert available_cores(tmp_path) == 1


@pytest.mark.parametrize("limit", ["max 100000", "99900000 100000", ""])
def test_cores_without_limit_are_those_of_machine(tmp_path: Path, limit: str):
    (tmp_path / "cpu.max").write_text(f"{limit}\n")
    assert available_cores(tmp_path) == available_cores(tmp_path / "none")


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs the cores of a process")
def test_cores_are_those_that_process_may_use(tmp_path: Path):
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert available_cores(tmp_path) == 1
    finally:
        os.sched_setaffinity(0, before)


def bytes_kept_of_block() -> int:
    """Return how much more memory this process holds after it has filled and freed a block."""
    before = resident_bytes(os.getpid())
    np.ones(40 << 20, np.uint8)
    return resident_bytes(os.getpid()) - before


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has mallopt")
def test_process_keeps_memory_that_it_frees():
    with Processes(1) as usual, Processes(1, keep_memory) as keeping:
        assert keeping.submit(bytes_kept_of_block).result() > 30 << 20
        assert usual.submit(bytes_kept_of_block).result() < 10 << 20


def test_library_without_mallopt_is_left_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    keep_memory()
