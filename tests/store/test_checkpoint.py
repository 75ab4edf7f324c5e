import contextlib
import hashlib
import json
import os
import stat
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from safetensors.numpy import load_file

from fedgc.errors import EdgeFailed, Unusable
from fedgc.store import checkpoint, shards
from fedgc.store.checkpoint import (
    _LENGTH,
    MAGIC,
    Checkpoint,
    listed,
    load,
    pin,
    pinned,
    restore,
    save,
    version_of,
    versions,
)


def make(version=1, round_number=1, size=5):
    model = np.arange(size, dtype=np.float32) + version
    return Checkpoint(round_number, version, model, b"optimizer", json.dumps({"gap": version}))


def large(version=1, round_number=1):
    """A checkpoint of three shards, with the limits of `few`; the last tensor is longer than a shard."""
    shapes = (("a", (2,)), ("b", ()), ("c", (3, 1)), ("d", (0,)), ("e", (2, 3)))
    made = make(version, round_number, size=12)
    return Checkpoint(round_number, version, made.model, made.optimizer, made.state, shapes=shapes)


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(checkpoint, "INLINE_BYTES", 40)
    monkeypatch.setattr(shards, "SHARD_BYTES", 12)


def same(one, two):
    return (one.round, one.version, one.optimizer, one.state, one.model.tobytes(), one.shapes) == (
        two.round, two.version, two.optimizer, two.state, two.model.tobytes(), two.shapes
    )  # fmt: skip


@given(
    model=arrays(np.float32, st.integers(0, 50)),
    optimizer=st.binary(max_size=200),
    state=st.dictionaries(st.text(), st.integers()),
    number=st.integers(0, 10**9),
)
def test_saved_checkpoint_is_loaded_equal(tmp_path_factory, model, optimizer, state, number):
    folder = tmp_path_factory.mktemp("checkpoints")
    saved = Checkpoint(number, number, model, optimizer, json.dumps(state))
    save(folder, saved, keep=1)
    assert same(load(folder), saved)
    assert load(folder).model.flags.writeable


def test_checkpoint_without_names_of_tensors_is_read(tmp_path):
    """Earlier versions of fedgc wrote none."""
    path = save(tmp_path, large(), keep=1)
    begins, content = len(MAGIC) + 8, path.read_bytes()
    ends = begins + int.from_bytes(content[len(MAGIC) : begins], "little")
    header = json.loads(content[begins:ends])
    del header["shapes"]
    text = json.dumps(header).encode()
    earlier = MAGIC + len(text).to_bytes(8, "little") + text + content[ends:-32]
    path.write_bytes(earlier + hashlib.sha256(earlier).digest())
    assert same(load(tmp_path), replace(large(), shapes=()))


def test_newest_checkpoints_are_kept_and_newest_is_loaded(tmp_path):
    for version in range(1, 6):
        save(tmp_path, make(version), keep=3)
    assert versions(tmp_path) == (3, 4, 5)
    assert load(tmp_path).version == 5
    assert load(tmp_path, version=3).version == 3


def test_version_above_saved_one_is_from_abandoned_future(tmp_path):
    for version in (1, 2, 3, 4):
        save(tmp_path, make(version), keep=10)
    save(tmp_path, make(3, round_number=9), keep=10)
    assert versions(tmp_path) == (1, 2, 3)
    assert load(tmp_path).round == 9


def _tear(path: Path, how: str) -> None:
    data = path.read_bytes()
    torn = {
        "cut": data[:-7], "half": data[: len(data) // 2], "empty": b"", "longer": data + b"x",
        "other": b"PK\x03\x04" * 50, "first bytes": data[:20], "length": data[:19] + b"\xff" * 8 + data[27:],
        "flipped": data[:-40] + bytes([data[-40] ^ 1]) + data[-39:],
        "header": data.replace(b'"round": ', b'"ruond": '),
        "negative": data.replace(b'"numbers": 5', b'"numbers":-5'),
    }  # fmt: skip
    path.write_bytes(torn[how])


@pytest.mark.parametrize(
    "how",
    ["cut", "half", "empty", "longer", "other", "first bytes", "length", "flipped", "header", "negative"],
)
def test_damaged_file_is_skipped_with_reason(tmp_path, how):
    save(tmp_path, make(1), keep=3)
    _tear(save(tmp_path, make(2), keep=3), how)
    told = []
    assert same(load(tmp_path, tell=told.append), make(1))
    (line,) = told
    assert "model-0000000002.fedgc: skipped: saw" in line
    assert "needed" in line
    assert line.endswith("; model-0000000001.fedgc, of round 1, is used in its place")


def test_all_skipped_files_are_named_before_used_one(tmp_path):
    for version in (1, 2, 3):
        path = save(tmp_path, make(version), keep=3)
        if version > 1:
            _tear(path, "cut")
    told = []
    assert load(tmp_path, tell=told.append).version == 1
    (line,) = told
    assert line.index("model-0000000003") < line.index("model-0000000002") < line.index("model-0000000001")


def test_unreadable_file_is_skipped(tmp_path):
    save(tmp_path, make(1), keep=3)
    path = save(tmp_path, make(2), keep=3)
    path.unlink()
    path.mkdir()
    assert load(tmp_path).version == 1


def test_every_flipped_bit_is_detected(tmp_path):
    path = save(tmp_path, make(1, size=2), keep=1)
    whole = path.read_bytes()
    for at in range(0, len(whole), 3):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        with pytest.raises(Unusable, match="needed a whole one"):
            load(tmp_path)


def test_folder_without_whole_checkpoint_is_refused_in_one_line(tmp_path):
    with pytest.raises(Unusable, match="saw none, needed a whole one"):
        load(tmp_path / "nowhere")
    path = save(tmp_path, make(1), keep=1)
    path.write_bytes(b"")
    with pytest.raises(Unusable, match="skipped: saw other first bytes") as refusal:
        load(tmp_path)
    assert "\n" not in str(refusal.value)


def test_files_of_dead_writer_are_removed_and_never_read(tmp_path):
    (tmp_path / "model-0000000009.77.part").write_bytes(b"half")
    (tmp_path / "model-old.fedgc").write_bytes(b"of somebody else")
    save(tmp_path, make(1), keep=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model-0000000001.fedgc", "model-old.fedgc"]
    assert load(tmp_path).version == 1


def test_unwritable_folder_is_reported(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    with pytest.raises(EdgeFailed, match="could not be written"):
        save(blocked, make(1), keep=1)


def test_failed_write_keeps_last_checkpoint_and_leaves_no_file(tmp_path, monkeypatch):
    save(tmp_path, make(1), keep=3)

    def full(_handle):
        raise OSError(28, "No space left on client")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(EdgeFailed, match="No space left on client"):
        save(tmp_path, make(2), keep=3)
    assert [path.name for path in tmp_path.iterdir()] == ["model-0000000001.fedgc"]
    assert same(load(tmp_path), make(1))


def test_file_is_synced_before_and_after_rename(tmp_path, monkeypatch):
    forced = []

    def note(handle):
        named = (tmp_path / "model-0000000001.fedgc").exists()
        forced.append(("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file", named))

    monkeypatch.setattr(os, "fsync", note)
    save(tmp_path, make(1), keep=1)
    assert forced == [("file", False), ("folder", True)]


@pytest.mark.parametrize(
    ("changes", "needed"),
    [
        ({"round": -1}, "0 or more"),
        ({"version": -1}, "0 or more"),
        ({"model": np.zeros(3)}, "float32 vector"),
        ({"model": np.zeros((3, 1), np.float32)}, "float32 vector"),
        ({"state": "{no"}, "JSON text"),
    ],
)
def test_invalid_checkpoint_is_refused(changes, needed):
    values = {"round": 1, "version": 1, "model": np.zeros(3, np.float32), "optimizer": b"", "state": "{}"}
    with pytest.raises(Unusable, match=needed):
        Checkpoint(**{**values, **changes})


def test_at_least_one_checkpoint_is_kept(tmp_path):
    with pytest.raises(Unusable, match="needed at least 1"):
        save(tmp_path, make(1), keep=0)


def test_checkpoints_need_no_database_library():
    seen = "import sys, fedgc.store.checkpoint; print('sqlalchemy' in sys.modules, 'alembic' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", seen], capture_output=True, text=True, check=True, timeout=60)
    assert out.stdout.split() == ["False", "False"]


def contents(folder):
    return sorted((path.name, path.read_bytes()) for path in folder.rglob("*.fedgc"))


@given(st.lists(st.integers(1, 5), max_size=6))
def test_repeated_restore_loses_nothing_and_last_one_is_newest(tmp_path_factory, wanted):
    folder = tmp_path_factory.mktemp("checkpoints")
    for version in range(1, 6):
        save(folder, make(version), keep=9)
    before = contents(folder)
    for version in wanted:
        assert restore(folder, version).version == version
        assert load(folder).version == version
        assert contents(folder) == before
    assert {each.version for each in listed(folder)} == {1, 2, 3, 4, 5}
    assert all(each.aside == (each.path.parent != folder) for each in listed(folder))


def test_newest_of_two_futures_is_restored_and_both_are_kept(tmp_path):
    for version in (1, 2):
        save(tmp_path, make(version), keep=9)
    restore(tmp_path, 1)
    save(tmp_path, make(2, round_number=7), keep=9)
    restore(tmp_path, 1)
    assert sorted(each.round for each in listed(tmp_path) if each.version == 2) == [1, 7]
    assert restore(tmp_path, 2).round == 7


def test_listing_describes_files_and_omits_torn_ones(tmp_path):
    paths = [save(tmp_path, make(version, round_number=version + 3), keep=9) for version in (1, 2)]
    (found, _) = listed(tmp_path)
    assert (found.version, found.round, found.size_bytes) == (1, 4, paths[0].stat().st_size)
    assert bytes.fromhex(found.digest) == paths[0].read_bytes()[-32:]
    paths[0].write_bytes(b"x")
    assert [each.version for each in listed(tmp_path)] == [2]
    with pytest.raises(Unusable, match="saw versions 2, needed 1"):
        restore(tmp_path, 1)


def test_damaged_version_is_not_restored(tmp_path):
    for version in (1, 2):
        save(tmp_path, make(version), keep=9)
    path = tmp_path / "model-0000000001.fedgc"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(EdgeFailed, match="SHA-256"):
        restore(tmp_path, 1)
    assert versions(tmp_path) == (1, 2)


def test_deeply_nested_header_is_refused(tmp_path):
    save(tmp_path, make(), keep=1)
    (path,) = tmp_path.iterdir()
    header = b"[" * 100_000
    path.write_bytes(MAGIC + _LENGTH.pack(len(header)) + header)
    with pytest.raises(Unusable, match="saw a header that cannot be read"):
        load(tmp_path)


def test_deeply_nested_state_is_refused():
    with pytest.raises(Unusable, match="a state that is not JSON"):
        Checkpoint(1, 1, np.zeros(1, np.float32), b"", "[" * 100_000)


def test_pinned_version_is_kept_while_others_are_removed(tmp_path):
    for version in range(1, 6):
        save(tmp_path, make(version), keep=2)
        if version == 2:
            pin(tmp_path, make(2))
    assert versions(tmp_path) == (4, 5)
    assert same(load(pinned(tmp_path).path.parent, 2), make(2))
    assert [(each.version, each.pinned) for each in listed(tmp_path)] == [(4, False), (5, False), (2, True)]
    assert same(load(tmp_path), make(5))


@pytest.mark.parametrize("damaged", [False, True])
def test_file_of_abandoned_version_is_not_pinned(tmp_path, damaged):
    path = save(tmp_path, make(2), keep=2)
    if damaged:
        path.write_bytes(b"damaged")
    again = replace(make(2), model=make(7).model, state=json.dumps({"gap": 7}))
    pin(tmp_path, again)
    assert same(load(tmp_path / "best", 2), again)


def test_pinned_version_is_linked_to_its_file(tmp_path):
    path = save(tmp_path, make(2), keep=2)
    assert pin(tmp_path, make(2)).samefile(path)


def test_better_version_replaces_pinned_one(tmp_path):
    pin(tmp_path, make(1))
    pin(tmp_path, make(3))
    assert pinned(tmp_path).version == 3
    assert [path.name for path in (tmp_path / "best").iterdir()] == ["model-0000000003.fedgc"]


def test_restored_pinned_version_stays_pinned(tmp_path):
    pin(tmp_path, make(2))
    for version in (4, 5):
        save(tmp_path, make(version), keep=2)
    restore(tmp_path, 2)
    assert versions(tmp_path) == (2,)
    assert pinned(tmp_path).version == 2
    assert same(load(tmp_path), make(2))


def test_nothing_is_pinned_at_first(tmp_path):
    assert pinned(tmp_path) is None


def test_large_model_is_written_in_shards_that_others_read(tmp_path, few):
    saved = large()
    save(tmp_path, saved, keep=1)
    assert same(load(tmp_path), saved)
    assert load(tmp_path).model.flags.writeable
    folder = tmp_path / "model-0000000001"
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert index["metadata"] == {"total_size": saved.model.nbytes}
    assert {name: place.split("-")[1] for name, place in index["weight_map"].items()} == {
        "a": "00001", "b": "00001", "c": "00002", "d": "00002", "e": "00003"
    }  # fmt: skip
    read = {name: load_file(folder / place)[name] for name, place in index["weight_map"].items()}
    assert {name: each.shape for name, each in read.items()} == dict(saved.shapes)
    assert (
        np.concatenate([read[name].reshape(-1) for name, _ in saved.shapes]).tolist() == saved.model.tolist()
    )


def test_large_model_without_names_is_one_tensor(tmp_path, few):
    save(tmp_path, make(size=30), keep=1)
    assert same(load(tmp_path), make(size=30))
    (path,) = (tmp_path / "model-0000000001").iterdir()
    assert load_file(path)["model"].tolist() == make(size=30).model.tolist()


def test_names_of_tensors_must_fit_model():
    with pytest.raises(Unusable, match="saw tensors of 4 numbers, needed 5"):
        Checkpoint(1, 1, np.zeros(5, np.float32), b"", "{}", shapes=(("a", (4,)),))


@pytest.mark.parametrize("how", ["missing", "cut", "flipped", "longer", "empty"])
@pytest.mark.parametrize("name", ["model-00002-of-00003.safetensors", "model.safetensors.index.json"])
def test_damaged_shard_is_reported_and_older_used(tmp_path, few, how, name):
    save(tmp_path, large(1), keep=2)
    save(tmp_path, large(2), keep=2)
    path = tmp_path / "model-0000000002" / name
    data = path.read_bytes()
    flipped = data[:-3] + bytes([data[-3] ^ 4]) + data[-2:]
    path.write_bytes({"cut": data[:-1], "flipped": flipped, "longer": data + b"x"}.get(how, b""))
    if how == "missing":
        path.unlink()
    told = []
    assert same(load(tmp_path, tell=told.append), large(1))
    (line,) = told
    assert line.startswith("checkpoint model-0000000002.fedgc: skipped: ")
    assert line.endswith("; model-0000000001.fedgc, of round 1, is used in its place")


@pytest.mark.parametrize(
    "fields", [7, [7], [["m", 1, 1]], [["../m", 1, 1, "x"]], [["m", -1, 1, "x"]], [["m", 9, 4, "x"]]]
)
def test_header_with_bad_shards_is_skipped(tmp_path, few, fields, monkeypatch):
    monkeypatch.setattr(shards, "fields_of", lambda _: fields)
    save(tmp_path, large(1), keep=1)
    (tmp_path / "model-0000000001" / "m").write_bytes(b"four")
    with pytest.raises(Unusable, match="needed a whole one"):
        load(tmp_path)


def test_shards_are_removed_moved_and_pinned_with_checkpoint(tmp_path, few):
    for version in (1, 2, 3):
        save(tmp_path, large(version), keep=2)
    pin(tmp_path, large(3))
    assert {each.name for each in tmp_path.iterdir() if each.is_dir()} == {
        "best", "model-0000000002", "model-0000000003"
    }  # fmt: skip
    assert restore(tmp_path, 2).size_bytes > large(2).model.nbytes
    assert same(load(tmp_path), large(2))
    save(tmp_path, large(3, round_number=9), keep=1)
    assert same(load(tmp_path), large(3, round_number=9))
    assert same(load(pinned(tmp_path).path.parent, 3), large(3))
    assert same(load(tmp_path / "aside-0001", 3), large(3))
    assert restore(tmp_path, 3).round == 9
    (tmp_path / "model-0000000003.fedgc").unlink()
    restore(tmp_path, 3)
    assert same(load(tmp_path), large(3))


@pytest.mark.parametrize("step", range(8))
def test_restore_that_is_killed_loses_no_version(tmp_path, few, monkeypatch, step):
    for version in (1, 2):
        save(tmp_path, large(version), keep=2)
    left = iter(range(step))

    def counted(act):
        def acted(*places):
            if next(left, None) is None:
                raise KeyboardInterrupt
            return act(*places)

        return acted

    for name in ("replace", "hardlink_to"):
        monkeypatch.setattr(Path, name, counted(getattr(Path, name)))
    with contextlib.suppress(KeyboardInterrupt):
        restore(tmp_path, 1)
    for version in (1, 2):
        assert same(version_of(tmp_path, version), large(version))


def test_failed_write_of_same_version_keeps_it(tmp_path, few, monkeypatch):
    save(tmp_path, large(1), keep=1)
    pin(tmp_path, large(1))

    def full(_handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    for write in (pin, partial(save, keep=1)):
        with pytest.raises(EdgeFailed, match="No space left on device"):
            write(tmp_path, large(1, round_number=9))
    for folder in (tmp_path, tmp_path / "best"):
        assert same(load(folder), large(1))


def test_shards_of_dead_writer_are_removed(tmp_path, few):
    (tmp_path / "model-0000000009").mkdir()
    (tmp_path / "model-0000000009.7.shards").mkdir()
    (tmp_path / "model-0000000001").mkdir()
    save(tmp_path, large(1), keep=1)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["model-0000000001", "model-0000000001.fedgc"]
    assert same(load(tmp_path), large(1))


def test_failed_write_of_shards_leaves_nothing(tmp_path, few, monkeypatch):
    save(tmp_path, large(1), keep=3)

    def full(_handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(EdgeFailed, match="No space left on device"):
        save(tmp_path, large(2), keep=3)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["model-0000000001", "model-0000000001.fedgc"]


def test_checkpoint_of_first_format_is_read(tmp_path):
    header = {"round": 3, "version": 2, "numbers": 2, "optimizer_bytes": 1, "state": "{}"}
    text = json.dumps(header).encode()
    content = MAGIC + _LENGTH.pack(len(text)) + text + np.float32([1, 2]).tobytes() + b"o"
    (tmp_path / "model-0000000002.fedgc").write_bytes(content + hashlib.sha256(content).digest())
    assert (load(tmp_path).model.tolist(), listed(tmp_path)[0].round) == ([1.0, 2.0], 3)
