"""Test an engine whose memory and disk are full."""

import subprocess
from pathlib import Path

import pytest

from fedgc.config import RunConfig
from fedgc.messages import Failed, Mix, Progress, Take
from fedgc.training import new_engine
from fedgc.training.pace import Pace


@pytest.fixture(params=["mounted and filled", "no folder"])
def full_disk(request, tmp_path_factory):
    """Return an unwritable folder: on a full file system if one can be mounted, else below a file."""
    folder = tmp_path_factory.mktemp("full")
    if request.param == "no folder":
        (folder / "file").touch()
        yield folder / "file" / "below"
        return
    mounted = ["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", str(folder)]
    if subprocess.run(mounted, capture_output=True, check=False).returncode:
        pytest.skip("this user may mount nothing")
    try:
        (folder / "filler").write_bytes(bytes(4096))
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture
def cramped(bench, small, full_disk, monkeypatch):
    """Return an engine whose memory holds two trajectories and whose disk holds none."""
    bench.spill_dir, own = full_disk, bench.spill_dir
    monkeypatch.setattr("fedgc.training.make.MEGABYTE", 2 * room_of(small, own))
    engine = bench.engine(small, RunConfig(batch_size=10, memory_mb=1, work="coded"))
    yield engine
    engine.close()
    bench.spill_dir = own


def room_of(task, folder: Path) -> int:
    """Return the bytes of one trajectory of this task."""
    engine = new_engine(task, RunConfig(batch_size=10, work="coded"), Pace(float, lambda _: None), folder)
    numbers = engine.size
    engine.close()
    return 8 * numbers + 200  # its vector and its momentum, and what stays with it


def test_full_disk_drops_oldest_trajectory(bench, cramped):
    cramped.handle(bench.work(range(4)))
    said = bench.drain(cramped)
    failed = [event for event in said if isinstance(event, Failed)]
    assert [event.chunks for event in failed] == [(0,), (1,)]
    assert all("writing to disk failed" in event.reason for event in failed)
    assert [event.chunk for event in said if isinstance(event, Progress)] == [0, 1, 2, 3]
    assert [kept.chunk for kept in cramped.kept()] == [2, 3]


def test_dropped_chunk_is_trained_again(bench, cramped):
    cramped.handle(bench.work((0,)))
    bench.drain(cramped)
    before = cramped.codeword(Mix((0,), ((1.0,),)))
    cramped.handle(Take("me", 1, (1, 2)))
    bench.drain(cramped)
    assert 0 not in [kept.chunk for kept in cramped.kept()]
    cramped.handle(Take("me", 1, (0,)))
    bench.drain(cramped)
    assert cramped.codeword(Mix((0,), ((1.0,),))).tobytes() == before.tobytes()
