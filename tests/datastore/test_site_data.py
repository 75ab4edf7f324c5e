"""Test what a client fetches, keeps and refuses."""

import fcntl
import os
from multiprocessing import get_context
from pathlib import Path
from threading import Event, Thread

import numpy as np
import pytest
from torch import nn

import fedgc
from fedgc.config import RunConfig
from fedgc.datastore import ChunkStore, split
from fedgc.datastore.keys import client_key, unwrapped, wrapped
from fedgc.errors import BadSetting, EdgeFailed, NotAdmitted, Refused, Unusable
from fedgc.training.trainer import LocalStep, Trainer
from tests.datastore.conftest import CHUNKS, MARK, SAMPLES, WAIT_S, Ward, arrays, site_of


def test_chunks_hold_each_sample_once(ward: Ward):
    data = ward.data()
    loaded = [data.load(name) for name in data.chunks]
    inputs = np.concatenate([inputs for inputs, _ in loaded])
    assert sorted(inputs[:, 0].tolist()) == list(range(SAMPLES))
    assert all(np.array_equal(inputs[:, 0] % 2, labels) for inputs, labels in loaded)
    assert [len(labels) for _, labels in loaded] == list(data.chunks.values())


def test_no_plaintext_lies_on_disk_of_client(ward: Ward):
    data = ward.data()
    data.hold(list(data.chunks))
    for name in data.chunks:
        data.load(name)
    assert len(ward.cached) == CHUNKS
    assert plain_files(ward.folder) == []
    split(arrays(), CHUNKS, ChunkStore(str(ward.folder / "plain")), ward.site, ids="patient")
    assert len(plain_files(ward.folder)) == CHUNKS  # the search finds what is there


def plain_files(folder: Path) -> list[Path]:
    """The files in which bytes of a sample stand."""
    mark = MARK.to_bytes(8, "little")
    return [path for path in folder.rglob("*") if path.is_file() and mark in path.read_bytes()]


def test_key_file_is_of_its_owner_alone(ward: Ward):
    assert (ward.folder / "site.key").stat().st_mode & 0o777 == 0o600
    assert ward.site.key.secret not in (ward.folder / "store" / "manifest").read_bytes()


def damaged(ward: Ward, how: str) -> str:
    """Damage a chunk in the store; return its name."""
    chunk, other = ward.chunks[:2]
    content = ward.file(chunk).read_bytes()
    changed = {
        "corrupted": content[:-1] + bytes([content[-1] ^ 1]),
        "truncated": content[:-1],
        "too long": content + b"x",
        "another chunk": ward.file(other).read_bytes(),
    }
    if how == "missing":
        ward.file(chunk).unlink()
    else:
        ward.file(chunk).write_bytes(changed[how])
    return chunk.name


@pytest.mark.parametrize("how", ["corrupted", "truncated", "too long", "another chunk"])
def test_damaged_chunk_is_refused_by_name(ward: Ward, how: str):
    name, data = damaged(ward, how), ward.data()
    with pytest.raises(Refused, match=rf"{name}: .*(corrupted|{how})"):
        data.load(name)
    assert ward.cached == {}
    assert data.fetched() == (0, 0, 0.0)


def test_missing_chunk_is_named(ward: Ward):
    name = damaged(ward, "missing")
    with pytest.raises(EdgeFailed, match=r"no file .*chunks/"):
        ward.data().load(name)


def test_unknown_chunk_is_refused(ward: Ward):
    with pytest.raises(Refused, match="chunk-9: it is not in the manifest of this site"):
        ward.data().load("chunk-9")


def test_chunk_damaged_on_disk_is_fetched_again(ward: Ward):
    data = ward.data()
    name = next(iter(data.chunks))
    data.load(name)
    (path,) = (path for path in (ward.folder / "cache").rglob("*") if path.is_file())
    path.write_bytes(b"x" * path.stat().st_size)
    assert len(data.load(name)[0]) == data.chunks[name]


def test_client_without_key_of_site_is_refused(ward: Ward):
    site_of(ward.folder / "stranger.key")
    with pytest.raises(NotAdmitted, match="it has given its key to 1 clients, and not to client"):
        ward.data("stranger")


def test_manifest_of_another_site_is_refused(ward: Ward):
    other = site_of(ward.folder / "other.key").key
    with pytest.raises(NotAdmitted, match=f"needed {other.public.hex()[:16]}"):
        ward.data(**{"data-site": other.public.hex()})
    ward.store.put_manifest(ward.store.manifest(), other)  # signed by another key than it names
    with pytest.raises(NotAdmitted, match="not signed by its site"):
        ward.data()


def test_wrapped_key_of_another_client_is_of_no_use(ward: Ward):
    first, second = (site_of(ward.folder / f"{name}.key").key for name in ("first", "second"))
    made = wrapped(bytes(32), client_key(first), ward.site.key.public).hex()
    assert unwrapped(made, first, ward.site.key.public) == bytes(32)
    for who, site in ((second, ward.site.key.public), (first, second.public)):
        with pytest.raises(NotAdmitted, match="wrapped for another client"):
            unwrapped(made, who, site)


def test_quota_is_never_exceeded(ward: Ward):
    size = max(chunk.size_bytes for chunk in ward.chunks)
    quota = 2.5 * size
    data = ward.data(**{"data-quota-mb": quota / 1e6})
    names = list(data.chunks)
    data.hold(names)
    for name in names:
        data.load(name)
        data.wait()
        assert sum(ward.cached.values()) <= quota
    first = ward.cached.keys()
    again = ward.data(**{"data-quota-mb": size / 1e6})
    assert len(ward.cached) == 1
    assert ward.cached.keys() < first
    assert len(again.load(names[0])[0]) == again.chunks[names[0]]


def test_quota_below_one_chunk_is_refused(ward: Ward):
    with pytest.raises(BadSetting, match=r"data-quota-mb: saw 1e-05, needed 0.0 for one chunk"):
        ward.data(**{"data-quota-mb": 1e-5})


def test_client_keeps_held_chunks_and_forgets_others(ward: Ward):
    data = ward.data()
    names, by_name = list(data.chunks), {chunk.name: chunk.digest for chunk in ward.chunks}
    data.hold(names[:3])
    data.wait()
    assert ward.cached.keys() == {by_name[name] for name in names[:3]}
    data.hold(names[2:4])
    data.wait()
    assert ward.cached.keys() == {by_name[name] for name in names[2:4]}


def test_chunk_on_disk_waits_for_no_other(ward: Ward, slow: tuple[Event, Event]):
    (begun, free), data = slow, ward.data()
    names, by_name = list(data.chunks), {chunk.name: chunk.digest for chunk in ward.chunks}
    data.load(names[1])
    data.hold(names[:2])
    assert begun.wait(WAIT_S)
    assert len(data.load(names[1])[0]) == data.chunks[names[1]]
    data.hold(names[1:3])
    assert any(name.startswith(by_name[names[0]]) for name in ward.cached), "it still arrives"
    free.set()
    data.wait()
    assert ward.cached.keys() == {by_name[name] for name in names[1:3]}


def test_chunk_that_is_being_fetched_is_awaited(ward: Ward, slow: tuple[Event, Event]):
    size = max(chunk.size_bytes for chunk in ward.chunks)
    (begun, free), data = slow, ward.data(**{"data-quota-mb": 1.5 * size / 1e6})
    names, loaded = list(data.chunks), []
    data.hold(names[:2])
    assert begun.wait(WAIT_S)
    threads = [Thread(target=lambda name=name: loaded.append(data.load(name))) for name in names[:2]]
    for each in threads:
        each.start()
    free.set()
    for each in threads:
        each.join()
    data.wait()
    assert len(loaded) == 2
    assert sum(ward.cached.values()) <= 1.5 * size


def test_file_being_fetched_is_left_by_other_process(ward: Ward, slow: tuple[Event, Event]):
    (begun, free), data = slow, ward.data()
    names = list(data.chunks)
    data.hold(names[:1])
    assert begun.wait(WAIT_S)
    (next((ward.folder / "cache").iterdir()) / "left.part").write_bytes(b"x")
    other = ward.data()  # it knows the folder alone, as in another process
    assert "left.part" not in ward.cached
    assert len(other.load(names[1])[0]) == data.chunks[names[1]]
    free.set()
    data.wait()
    assert ward.cached.keys() == {chunk.digest for chunk in ward.chunks[:2]}


def test_process_forked_while_file_begins_keeps_no_lock(ward: Ward):
    """As a worker of a DataLoader may be, while the next chunk is fetched."""
    cache, ended = ward.data()._cache, get_context("fork").Event()
    assert cache is not None
    with cache._alone():
        worker = get_context("fork").Process(target=ended.wait)
        worker.start()
    folder = os.open(cache._folder, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(folder)
        ended.set()
        worker.join()


def test_quota_is_that_of_all_processes(ward: Ward):
    size = max(chunk.size_bytes for chunk in ward.chunks)
    each = [ward.data(**{"data-quota-mb": 2.5 * size / 1e6}) for _ in range(3)]
    for at, name in enumerate(each[0].chunks):
        for data in each[at % 2 :]:
            assert len(data.load(name)[0]) == data.chunks[name]
        assert sum(ward.cached.values()) <= 2.5 * size


def test_next_chunk_is_fetched_ahead(ward: Ward):
    size = max(chunk.size_bytes for chunk in ward.chunks)
    data = ward.data(**{"data-quota-mb": 2 * size / 1e6})
    names = list(data.chunks)
    data.hold(names)
    data.wait()
    for at in (1, 2, 3):
        data.load(names[at])
        data.wait()
        assert next(chunk.digest for chunk in ward.chunks if chunk.name == names[at + 1]) in ward.cached


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"data-site": ""}, "saw data-store alone, needed data-site and identity beside it"),
        ({"data-quota-mb": "many"}, "data-quota-mb: saw 'many', needed megabytes"),
        ({"data-quota-mb": 0}, "data-quota-mb: saw 0, needed megabytes, more than 0"),
        ({"data-store": "nowhere://x"}, "chunk store nowhere://x: "),
    ],
)
def test_bad_setting_of_client_is_one_line(ward: Ward, settings, sentence: str):
    with pytest.raises(Exception, match=sentence) as caught:
        ward.data(**settings)
    assert isinstance(caught.value, Unusable)
    assert "\n" not in str(caught.value)


def test_missing_store_is_named(ward: Ward):
    with pytest.raises(EdgeFailed, match=r"chunk store .*/none: no file "):
        ward.data(**{"data-store": str(ward.folder / "none")})


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0].float() / MARK), batch[1])


def trainer_over(ward: Ward) -> Trainer:
    config = RunConfig(work="coded")
    made = fedgc.over(ward.data(), config, model=lambda: nn.Linear(2, 2), loss=loss)
    return Trainer(made, config)


def test_trainer_announces_chunks_without_fetching_them(ward: Ward):
    held = trainer_over(ward).holds()
    assert {each.digest for each in held} == {chunk.digest[:16] for chunk in ward.chunks}
    assert ward.cached == {}


def test_trainer_trains_on_chunks_that_it_holds(ward: Ward):
    trainer, names = trainer_over(ward), [chunk.name for chunk in ward.chunks]
    trainer.hold(names[:2])
    assert trainer.load((names[0],)) == 5
    trainer.begin(trainer.initial())
    assert np.isfinite(trainer.step((names[0],), LocalStep((0,), 0)))
    trainer.hold(names[1:2])
    with pytest.raises(KeyError):
        trainer.step((names[0],), LocalStep((0,), 0))


def test_server_without_settings_has_no_chunk():
    data = fedgc.site_data({})
    data.hold(["chunk-0"])
    assert dict(data.chunks) == {}
