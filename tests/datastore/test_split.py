"""Test how data is split, and how records are removed."""

import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from fedgc.datastore import ChunkStore, read_arrays, remove_records, split
from fedgc.datastore.manifest import Chunk, read_manifest
from fedgc.errors import BadMessage, EdgeFailed, FedgcError, NotAdmitted, Unusable
from tests.datastore.conftest import CHUNKS, SAMPLES, Ward, arrays, site_of


def values(ward: Ward) -> list[int]:
    data = ward.data()
    return sorted(int(value) for name in data.chunks for value in data.load(name)[0][:, 0])


@pytest.mark.parametrize("kind", ["npz", "safetensors", "folder"])
def test_sources_are_read(tmp_path: Path, kind: str):
    columns = {name: each for name, each in arrays().items() if name != "patient"}
    source = tmp_path / f"data.{kind}"
    if kind == "npz":
        np.savez(source, **columns)
    elif kind == "safetensors":
        save_file(columns, source)
    else:
        source.mkdir()
        for name, each in columns.items():
            np.save(source / f"{name}.npy", each)
    found = read_arrays(source)
    assert {name: each.tolist() for name, each in found.items()} == {
        name: each.tolist() for name, each in columns.items()
    }


def test_unknown_column_of_names_is_refused_with_known_ones(tmp_path: Path):
    site, store = site_of(tmp_path / "site.key"), ChunkStore(str(tmp_path / "store"))
    columns = {"inputs": np.zeros(4), "patient": np.array(["p-1"] * 4)}
    with pytest.raises(Unusable, match="--ids: saw 'pat', needed one of the arrays inputs, patient"):
        split(columns, 2, store, site, ids="pat")


@pytest.mark.parametrize(
    ("change", "chunks", "sentence"),
    [
        ({"labels": np.arange(3)}, 2, "needed at least one, and one length for all"),
        ({"names": np.array(["a"] * SAMPLES)}, 2, "saw arrays of types .*names.*, needed numbers"),
        ({"dose": np.zeros(SAMPLES, np.longdouble)}, 2, "saw arrays of types .*dose.*, needed numbers of at"),
        ({}, SAMPLES + 1, "saw 41 chunks of 40 samples, needed 1 to 40 chunks"),
    ],
)
def test_unusable_data_is_refused(tmp_path: Path, change, chunks: int, sentence: str):
    site, store = site_of(tmp_path / "site.key"), ChunkStore(str(tmp_path / "store"))
    with pytest.raises(Unusable, match=sentence):
        split({**arrays(), **change}, chunks, store, site, ids="patient")
    store.must_be_empty()


def test_column_of_text_is_suggested_as_names(tmp_path: Path):
    site, store = site_of(tmp_path / "site.key"), ChunkStore(str(tmp_path / "store"))
    columns = {**arrays(), "patient": np.array(["p-1"] * SAMPLES)}
    with pytest.raises(
        Unusable, match=r"\{'patient': '<U3'\}, needed numbers of at most 64 bits; .*: --ids patient$"
    ):
        split(columns, 2, store, site)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("data.csv", b"1,2"),
        ("data.npz", b"1,2"),
        ("data.npz", b""),
        ("data.npz", b"PK\x03\x04 cut"),
        ("data.npz", b"\x93NUMPY"),
        ("data/inputs.npy", b""),
    ],
)
def test_unreadable_source_is_one_line(tmp_path: Path, name: str, content: bytes):
    (tmp_path / "data").mkdir()
    (tmp_path / name).write_bytes(content)
    source = tmp_path / name if "/" not in name else tmp_path / "data"
    with pytest.raises(Unusable, match=f"{source.name}: "):
        read_arrays(source)


def test_store_is_not_overwritten(ward: Ward):
    with pytest.raises(Unusable, match="saw a manifest, needed an empty store"):
        split(arrays(), CHUNKS, ward.store, ward.site, ids="patient")


@pytest.mark.parametrize("encrypts", [False, True])
def test_store_of_interrupted_split_is_refused(
    tmp_path: Path, encrypts: bool, monkeypatch: pytest.MonkeyPatch
):
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    site, store = site_of(tmp_path / "site.key"), ChunkStore(str(tmp_path / "store"))
    with monkeypatch.context() as patched:
        patched.setattr(ChunkStore, "put_manifest", killed)
        with pytest.raises(KeyboardInterrupt):
            split(arrays(), CHUNKS, store, site, ids="patient")
    with pytest.raises(Unusable, match=f"saw {CHUNKS} files in chunks and no manifest, needed an empty"):
        split(arrays(), CHUNKS, store, site, ids="patient", encrypts=encrypts)
    for digest in store.digests():
        store.remove(digest)
    split(arrays(), CHUNKS, store, site, ids="patient", encrypts=encrypts)
    assert store.digests() == {chunk.digest for chunk in store.manifest().chunks}


def test_store_may_be_in_memory(tmp_path: Path):
    store = ChunkStore(f"memory://{tmp_path.name}")
    manifest = split(arrays(), CHUNKS, store, site_of(tmp_path / "site.key"), ids="patient")
    assert store.manifest(manifest.site) == manifest
    assert store.digests() == {chunk.digest for chunk in manifest.chunks}


@pytest.mark.parametrize("scheme", ["http", "ftp", "none"])
def test_login_of_store_is_in_no_error(scheme: str):
    """An error of a client travels to the server, and into its history."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}/ward"
        with pytest.raises(FedgcError) as failed:
            ChunkStore(f"{scheme}://ward:pass@word@{address}").manifest()
    assert str(failed.value).startswith(f"chunk store {scheme}://{address}: ")
    assert "pass" not in str(failed.value)


def test_path_of_missing_file_is_without_login(monkeypatch: pytest.MonkeyPatch):
    def missing(*_: object, **__: object) -> bytes:
        raise FileNotFoundError(2, "No such file", "http://ward:word@here/manifest")

    store = ChunkStore("memory://ward")
    monkeypatch.setattr(store._files, "cat_file", missing)
    with pytest.raises(EdgeFailed, match="chunk store memory://ward: no file http://here/manifest"):
        store.manifest()


def test_removed_records_are_in_no_chunk(ward: Ward):
    before = ward.chunks
    found = remove_records(ward.store, ward.site, ["p003", "p017"])
    assert values(ward) == [value for value in range(SAMPLES) if value not in (3, 17)]
    after = {chunk.number: chunk for chunk in ward.chunks}
    for chunk in before:
        changed = any(chunk in chunks for chunks in found.values())
        assert (chunk.digest in ward.store.digests()) != changed
        assert after[chunk.number].former == ((chunk.digest,) if changed else ())
        assert chunk.name in after[chunk.number].names


def test_interrupted_removal_is_finished_by_next_one(ward: Ward, monkeypatch: pytest.MonkeyPatch):
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(ChunkStore, "remove", killed)
        with pytest.raises(KeyboardInterrupt):
            remove_records(ward.store, ward.site, ["p003"])
    assert len(ward.store.digests()) == CHUNKS + 1
    with pytest.raises(Unusable, match="saw them in no chunk"):
        remove_records(ward.store, ward.site, ["p003"])
    assert ward.store.digests() == {chunk.digest for chunk in ward.chunks}


def test_second_command_is_refused_while_store_changes(ward: Ward, monkeypatch: pytest.MonkeyPatch):
    turns, read = [lambda: ward.admit("other"), lambda: remove_records(ward.store, ward.site, ["p017"])], []

    def blocks(store: ChunkStore, chunk: Chunk) -> Iterator[bytes]:
        if turns:
            with pytest.raises(EdgeFailed, match="another command changes data of this site; try again"):
                turns.pop()()
        read.append(chunk)
        yield from blocks_of(store, chunk)

    blocks_of = ChunkStore.blocks
    monkeypatch.setattr(ChunkStore, "blocks", blocks)
    remove_records(ward.store, ward.site, ["p003"])
    assert (len(turns), len(set(read))) == (0, CHUNKS)
    remove_records(ward.store, ward.site, ["p017"])
    ward.admit("other")
    assert ward.store.digests() == {chunk.digest for chunk in ward.chunks}
    assert ward.store.manifest().samples == SAMPLES - 2


def test_names_of_bytes_are_those_of_text(tmp_path: Path):
    site, store = site_of(tmp_path / "site.key"), ChunkStore(str(tmp_path / "store"))
    columns = {**arrays(), "patient": arrays()["patient"].astype("S")}
    split(columns, 4, store, site, ids="patient")
    assert list(remove_records(store, site, ["p003"])) == ["p003"]
    other, columns["patient"] = ChunkStore(str(tmp_path / "other")), np.array([b"\xff"] * SAMPLES)
    with pytest.raises(Unusable, match="no UTF-8"):
        split(columns, 4, other, site, ids="patient")


def test_client_forgets_chunk_from_which_record_was_removed(ward: Ward):
    values(ward)
    (chunk,) = remove_records(ward.store, ward.site, ["p003"])["p003"]
    assert chunk.digest in ward.cached
    ward.data()
    assert chunk.digest not in ward.cached


def test_chunk_of_removed_records_alone_is_removed(ward: Ward):
    first = ward.data().load(ward.chunks[0].name)[0][:, 0]
    remove_records(ward.store, ward.site, [f"p{value:03}" for value in first])
    assert [chunk.number for chunk in ward.chunks] == list(range(1, CHUNKS))


def test_unknown_record_changes_nothing(ward: Ward):
    before = ward.chunks
    with pytest.raises(Unusable, match="records p999: saw them in no chunk"):
        remove_records(ward.store, ward.site, ["p003", "p999"])
    assert ward.chunks == before


def test_record_is_removed_by_its_site_alone(ward: Ward):
    with pytest.raises(NotAdmitted, match="manifest: saw site"):
        remove_records(ward.store, site_of(ward.folder / "other.key"), ["p003"])


@pytest.mark.parametrize("bad", [b"", b"{}", b"00\n{}", b"00\n[]", b'\xff\n{"site": 1}'])
def test_broken_manifest_is_refused(bad: bytes):
    with pytest.raises((BadMessage, NotAdmitted)):
        read_manifest(bad)


def test_changed_manifest_is_refused(ward: Ward):
    data = ward.store.manifest().signed(ward.site.key)
    with pytest.raises(NotAdmitted, match="not signed by its site"):
        read_manifest(data.replace(b'"samples":5', b'"samples":4', 1))
    with pytest.raises(NotAdmitted, match="not signed by its site"):
        read_manifest(data + b"0")
