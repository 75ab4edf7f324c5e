"""Test cache files: complete, of the same model only, and continued by a later process."""

import errno
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedgc.errors import EdgeFailed
from fedgc.messages import Close, Mix
from fedgc.training import CacheFiles, Engine, new_engine
from fedgc.training.cache import Saved
from fedgc.training.cache_files import TrajectoryInfo
from fedgc.training.coded_engine import WORTH_S
from fedgc.training.local_update import Residual
from fedgc.training.pace import Pace

ALL = Mix((0, 1, 2), ((1.0,),) * 3)


@pytest.fixture
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


def cache_files(bench, small, folder, **how) -> Engine:
    return bench.engine(small, files=CacheFiles(folder), **how)


def later(bench, small, folder, *, seed=0, version=0):
    """An engine of another process: it reads the cached work before it has a model."""
    first = bench.engines[0]
    pace = Pace(first._pace.clock, lambda _: None)
    engine = new_engine(small, first._trainer.config, pace, bench.spill_dir, files=CacheFiles(folder))
    bench.engines.append(engine)
    engine.load(version, bench.vector(engine.size, seed))
    return engine


def test_later_process_continues_from_cache(bench, small, folder):
    whole = bench.engine(small)
    whole.handle(bench.work([0, 1, 2]))
    bench.drain(whole)
    first = cache_files(bench, small, folder)
    first.handle(bench.work([0, 1, 2]))
    for _ in range(4):  # one chunk and a step of the next
        first.step()
    assert first.keep() == ()
    second = later(bench, small, folder)
    assert [(kept.chunk, kept.reached) for kept in second.kept()] == [(0, 3), (1, 1)]
    second.handle(bench.work([0, 1, 2]))
    assert {each.chunk for each in bench.drain(second)} == {0, 1, 2}
    np.testing.assert_array_equal(second.codeword(ALL), whole.codeword(ALL))


def test_long_chunk_survives_killed_process(bench, small, folder):
    engine = cache_files(bench, small, folder)  # each reading of its clock is a second
    engine.handle(bench.work([0, 1, 2]))
    said = [engine.step() for _ in range(4)]
    (finished,) = [each for each in said if each is not None]
    assert finished.seconds > WORTH_S
    assert [kept.chunk for kept in later(bench, small, folder).kept()] == [0]


@pytest.mark.parametrize("changed", ["model", "seed", "version"])
def test_work_of_other_model_or_seed_is_not_continued(bench, small, folder, changed: str):
    first = cache_files(bench, small, folder)
    first.handle(bench.work([0]))
    bench.drain(first)
    first.keep()
    version = int(changed == "version")
    second = later(bench, small, folder, seed=int(changed == "model"), version=version)
    second.handle(bench.work([0, 1], seed=6 if changed == "seed" else 5, version=version))
    assert second.kept() == ()
    assert list(folder.glob("chunk-*")) == []


def test_close_also_frees_disk(bench, small, folder):
    engine = cache_files(bench, small, folder)
    engine.handle(bench.work([0, 1]))
    bench.drain(engine)
    engine.keep()
    assert len(list(folder.iterdir())) == 2
    engine.handle(Close("me", 1, "synced", True))
    assert list(folder.iterdir()) == []
    assert engine.kept() == ()


def test_file_that_cannot_be_removed_costs_no_work(bench, small, folder, monkeypatch):
    engine = cache_files(bench, small, folder)
    engine.handle(bench.work([0, 1]))
    bench.drain(engine)
    engine.keep()

    def refuse(path: Path, **_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr(Path, "unlink", refuse)
    engine.handle(Close("me", 1, "synced", True))
    assert engine.kept() == ()


@pytest.mark.parametrize("spoilt", [b"", b"spoilt", None], ids=["empty", "other bytes", "half"])
def test_damaged_file_counts_as_missing(bench, small, folder, spoilt: bytes | None):
    engine = cache_files(bench, small, folder)
    engine.handle(bench.work([0, 1]))
    bench.drain(engine)
    engine.keep()
    (path,) = folder.glob("chunk-0-*.pt")
    path.write_bytes(path.read_bytes()[:200] if spoilt is None else spoilt)
    second = later(bench, small, folder)
    assert [kept.chunk for kept in second.kept()] == [1]
    assert not path.exists()


def test_full_disk_is_reported_and_leaves_no_partial_file(bench, small, folder, monkeypatch):
    engine = cache_files(bench, small, folder)

    def full(_, path):
        path.write_bytes(b"half")
        raise RuntimeError("disk full")

    monkeypatch.setattr(torch, "save", full)
    engine.handle(bench.work([0, 1]))
    assert len(bench.drain(engine)) == 2, "it lies in memory as well"
    assert [failed.chunks for failed in engine.keep()] == [(0,), (1,)]
    assert list(folder.iterdir()) == []
    with pytest.raises(EdgeFailed, match="disk full"):
        CacheFiles(folder).put_model(0, bench.vector(3))


def test_partial_files_of_killed_process_are_removed(bench, small, folder):
    (folder / "chunk-0.4711.part").write_bytes(b"half")
    (folder / "model-0-digest.4711.part").write_bytes(b"half")
    cache_files(bench, small, folder)
    assert list(folder.iterdir()) == []


def test_models_are_named_by_digest_and_only_newest_stay(folder, bench):
    cache = CacheFiles(folder)
    for version in range(4):
        cache.put_model(version, bench.vector(5, version))
    assert sorted(cache.models()) == [2, 3]
    before = cache.models()[3]
    cache.put_model(3, bench.vector(5, 99))
    assert cache.models()[3] != before
    np.testing.assert_array_equal(cache.model(3), bench.vector(5, 99))
    (path,) = folder.glob("model-2-*")
    path.write_bytes(b"spoilt")
    assert cache.model(2) is None
    assert 2 not in cache.models()
    assert cache.model(7) is None


def test_earlier_model_replaces_those_of_abandoned_run(folder, bench):
    cache = CacheFiles(folder)
    for version in (2, 6, 7, 4):  # the server has gone back
        cache.put_model(version, bench.vector(5, version))
        assert version in cache.models()
    assert sorted(cache.models()) == [4]
    cache.put_model(5, bench.vector(5, 5))
    assert sorted(cache.models()) == [4, 5]


def test_models_of_abandoned_run_are_dropped_at_work_from_earlier_one(folder, bench):
    cache = CacheFiles(folder)
    for version in (3, 4):
        cache.put_model(version, bench.vector(5, version))
    cache.drop_models_after(3)
    assert sorted(cache.models()) == [3]
    cache.drop_models_after(3)
    np.testing.assert_array_equal(cache.model(3), bench.vector(5, 3))


def changed(data: bytes, how: int, at: int) -> bytes:
    """Return these bytes with one bit flipped, cut short, or followed by one more."""
    at %= len(data)
    if how == 0:
        return data[:at]
    if how == 1:
        return data + bytes([at % 256])
    return data[:at] + bytes([data[at] ^ (1 << how % 8)]) + data[at + 1 :]


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(how=st.integers(0, 9), at=st.integers(0, 10**6))
def test_changed_file_is_never_used(tmp_path_factory, how: int, at: int):
    folder = tmp_path_factory.mktemp("cache")
    cache_files, vector = CacheFiles(folder), np.arange(20, dtype=np.float32)
    about = TrajectoryInfo(3, "m", 0, 5, "chunk-5", 8, 2, 1.0, 0.5, 0.0, 0, 0.0, "")
    cache_files.put(about, Saved(vector, [], {}))
    cache_files.put_model(3, vector)
    cache_files.put_residual(Residual((1, 0, "me"), vector, vector))
    for path in folder.iterdir():
        path.write_bytes(changed(path.read_bytes(), how, at))
    later = CacheFiles(folder)
    assert later.found() == {}
    assert later.model(3) is None or np.array_equal(later.model(3), vector)
    assert later.residual() is None


def test_newest_of_two_chunk_files_is_used(tmp_path):
    one, other = CacheFiles(tmp_path), CacheFiles(tmp_path / "other")
    about = TrajectoryInfo(3, "m", 0, 5, "chunk-5", 8, 2, 1.0, 0.5, 0.0, 0, 0.0, "")
    one.put(about, Saved(np.zeros(4, np.float32), [], {}))
    other.put(replace(about, reached=4), Saved(np.ones(4, np.float32), [], {}))
    (newer,) = (tmp_path / "other").iterdir()
    newer.rename(tmp_path / newer.name)
    ((found, saved),) = CacheFiles(tmp_path).found().values()
    assert found.reached == 4
    assert saved.vector.tolist() == [1.0] * 4
    assert [path.name for path in tmp_path.glob("chunk-*")] == [newer.name]
