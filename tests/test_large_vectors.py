"""Test arrays in files: their room, and what a full disk or a bad folder does."""

import gc
import math
from pathlib import Path

import numpy as np
import pytest

from fedgc import large_vectors
from fedgc.errors import EdgeFailed
from fedgc.large_vectors import MOST_SPARE, Scratch, in_tiles, squared_length


def mappings(folder: Path) -> int:
    return Path("/proc/self/maps").read_text().count(str(folder))


def test_small_array_is_in_memory(tmp_path: Path):
    array = Scratch(tmp_path / "new").empty(1000)
    assert array.shape == (1000,)
    assert not (tmp_path / "new").exists()


def test_large_array_is_in_file_without_name(tmp_path: Path):
    array = Scratch(tmp_path / "new", in_memory_bytes=1000).empty(1001)
    array[:] = np.arange(1001) % 251
    assert array.sum() == (np.arange(1001) % 251).sum()
    assert list((tmp_path / "new").iterdir()) == []
    assert mappings(tmp_path) == 1


@pytest.mark.parametrize(("available", "files"), [(4000, 0), (3999, 1), (None, 1)])
def test_array_is_in_memory_while_that_is_plentiful(available: int | None, files: int, tmp_path: Path):
    scratch = Scratch(tmp_path, in_memory_bytes=0, available=lambda: available)
    array = scratch.empty(1000)
    array[:] = 7
    assert (array.sum(), mappings(tmp_path)) == (7000, files)


def test_file_serves_again_when_no_view_is_left(tmp_path: Path):
    scratch = Scratch(tmp_path, in_memory_bytes=1000)
    first = scratch.empty(4000).view(np.float32)[10:20]
    first[:] = 7.0
    second = scratch.empty(4000)
    second[:] = 1
    assert (mappings(tmp_path), first.tolist()) == (2, [7.0] * 10)
    del first
    gc.collect()
    third = scratch.empty(4000)
    assert mappings(tmp_path) == 2
    third[:] = 2
    assert (second == 1).all()


def test_files_of_another_size_are_given_up(tmp_path: Path):
    scratch = Scratch(tmp_path, in_memory_bytes=1000)
    scratch.empty(2000)
    gc.collect()
    assert mappings(tmp_path) == 1
    array = scratch.empty(8000)
    gc.collect()
    assert (array.size, mappings(tmp_path)) == (8000, 1)


def test_few_spare_files_are_kept(tmp_path: Path):
    scratch = Scratch(tmp_path, in_memory_bytes=1000)
    arrays = [scratch.empty(5000) for _ in range(MOST_SPARE + 3)]
    assert mappings(tmp_path) == len(arrays)
    arrays.clear()
    gc.collect()
    assert mappings(tmp_path) == MOST_SPARE


def test_view_keeps_room_of_its_array(tmp_path: Path):
    view = Scratch(tmp_path, in_memory_bytes=0).empty(4000).view(np.float32)[10:20]
    view[:] = 7.0
    assert view.tolist() == [7.0] * 10


@pytest.mark.parametrize(("folder", "size"), [("file", 100), ("new", 2**60)], ids=["no folder", "no room"])
def test_array_without_room_is_refused(folder: str, size: int, tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(EdgeFailed, match=f"no room for a vector of {size} bytes in .*: "):
        Scratch(tmp_path / folder, in_memory_bytes=0).empty(size)


def test_array_beyond_all_systems_is_refused(tmp_path: Path):
    with pytest.raises(EdgeFailed, match=f"no room for a vector of {2**64} bytes, needed at most"):
        Scratch(tmp_path, available=lambda: 2**70).empty(2**64)


@pytest.mark.parametrize("threaded", [1, 10**9], ids=["threads", "one thread"])
def test_every_number_is_in_one_tile(threaded: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(large_vectors, "THREADED", threaded)
    counts = np.zeros(5 * large_vectors.TILE + 3, np.int64)

    def count(tile: slice) -> None:
        counts[tile] += 1

    in_tiles(counts.size, count)
    assert (counts == 1).all()


def test_error_in_thread_is_raised(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(large_vectors, "THREADED", 1)

    def fail(tile: slice) -> None:
        if tile.start:
            raise EdgeFailed("no tile")

    with pytest.raises(EdgeFailed, match="no tile"):
        in_tiles(3 * large_vectors.TILE, fail)


@pytest.mark.parametrize("at", [0, large_vectors.SUMMED, 100_000])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_squared_length_tells_number_that_is_not_finite(at: int, bad: float):
    vector = np.zeros(100_001, np.float32)
    vector[at] = bad
    assert not math.isfinite(squared_length(lambda part, _: vector[part], vector.size))


@pytest.mark.parametrize("scale", [1.0, 1e-18, 1e25])
@pytest.mark.parametrize("size", [0, 1, 100_001])
def test_squared_length_is_that_of_double_precision(size: int, scale: float):
    vector = (np.random.default_rng(size).standard_normal(size) * scale).astype(np.float32)
    wide = vector.astype(np.float64)
    assert squared_length(lambda part, _: vector[part], size) == pytest.approx(float(wide @ wide), rel=1e-5)
