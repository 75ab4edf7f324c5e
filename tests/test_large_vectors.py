"""Test arrays in files: their room, and what a full disk or a bad folder does."""

import gc
from pathlib import Path

import numpy as np
import pytest

from fedgc.errors import EdgeFailed
from fedgc.large_vectors import Scratch


def mappings(folder: Path) -> int:
    return Path("/proc/self/maps").read_text().count(str(folder))


def test_small_array_is_in_memory(tmp_path: Path):
    array = Scratch(tmp_path / "new").empty(1000)
    assert array.shape == (1000,)
    assert not (tmp_path / "new").exists()


def test_large_array_is_in_a_file_that_goes_with_it(tmp_path: Path):
    array = Scratch(tmp_path / "new", in_memory_bytes=1000).empty(1001)
    array[:] = np.arange(1001) % 251
    assert array.sum() == (np.arange(1001) % 251).sum()
    assert list((tmp_path / "new").iterdir()) == []
    assert mappings(tmp_path) == 1
    del array
    gc.collect()
    assert mappings(tmp_path) == 0


def test_view_keeps_the_room_of_its_array(tmp_path: Path):
    view = Scratch(tmp_path, in_memory_bytes=0).empty(4000).view(np.float32)[10:20]
    view[:] = 7.0
    assert view.tolist() == [7.0] * 10


@pytest.mark.parametrize(("folder", "size"), [("file", 100), ("new", 2**60)], ids=["no folder", "no room"])
def test_array_without_room_is_refused(folder: str, size: int, tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(EdgeFailed, match=f"no room for a vector of {size} bytes in .*: "):
        Scratch(tmp_path / folder, in_memory_bytes=0).empty(size)
