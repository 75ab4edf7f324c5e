"""Test `fedgc data`: the commands in this process, with real stores and keys."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset
from typer.testing import CliRunner

from fedgc.cli.commands import app
from fedgc.config import RunConfig
from fedgc.datastore import ChunkStore, site_data
from fedgc.flower.json_lines import Lines
from fedgc.flower.store_sink import StoreSink
from fedgc.store.database import Store
from fedgc.store.writer import Keeper


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Call a command in a folder with a source; return what it printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDGC_DB", str(tmp_path / "runs.db"))
    np.savez("ward.npz", x=np.arange(20.0), y=np.arange(20))

    def called(*words: str, raises: str = "") -> str:
        result = CliRunner().invoke(app, ["data", *words])
        assert (raises in str(result.exception)) if raises else result.exit_code == 0, result.exception
        return result.stdout.strip()

    return called


def test_client_reads_data_split_by_its_site(data, tmp_path: Path):
    told = data("split", "ward.npz", "--chunks", "4", "--to", "store", "--encrypt")
    site = told.rpartition(" ")[2]
    assert told == f"4 chunks of 20 samples in store, of site {site}"
    assert data("admit", "store", data("key", "client.key")) == "clients with the key of store: 1"
    client = {"data-store": "store", "data-site": site, "identity": "client.key", "data-cache": "cache"}
    found = site_data(client)
    assert sorted(float(x) for name in found.chunks for x in found.load(name)[0]) == list(range(20))
    assert data("list", "store").startswith(
        f"site {site}, x, y, encrypted, clients with the key: 1\nchunk-0000-"
    )
    assert data("list", "store").count(" kB") == 4
    assert len(json.loads(data("list", "store", "--json"))["chunks"]) == 4


def test_key_says_when_it_makes_new_identity(data, tmp_path: Path):
    made = CliRunner().invoke(app, ["data", "key", "client.key"])
    assert made.stderr.startswith("client.key: there was no file, so a new identity was made: ")
    again = CliRunner().invoke(app, ["data", "key", "client.key"])
    assert (again.stderr, again.stdout) == ("", made.stdout)


def test_verify_names_damaged_and_unknown_chunks(data, tmp_path: Path):
    data("split", "ward.npz", "--chunks", "2", "--to", "store")
    assert data("verify", "store").startswith("2 chunks as site ")
    first = ChunkStore("store").manifest().chunks[0]
    (tmp_path / "store" / "chunks" / first.digest).write_bytes(b"")
    data("verify", "store", raises="1 fault in 2 chunks")
    (tmp_path / "store" / "chunks" / "other").write_bytes(b"")
    told = data("verify", "store", raises="2 faults in 2 chunks")
    assert f"{first.name}: truncated: saw 0 bytes" in told
    assert "chunks/other: it is not in the manifest" in told


def used_by(run: str, path: Path, chunks: list[str], **settings: str) -> None:
    """Record that a run has used these chunks."""
    keeper = Keeper(Store.open, path / "aside.jsonl", print)
    sink = StoreSink(keeper, run, lambda: 1.0, lambda: 1.0, Lines("", print))
    with sink.recorded(RunConfig(**settings)):
        sink.assigned(1, chunks)
        sink.assigned(2, chunks[:1])
        sink.assigned(2, ["north.pt"])


def test_remove_lists_runs_that_have_used_record(data, tmp_path: Path):
    data("split", "ward.npz", "--chunks", "2", "--to", "store")
    names = [chunk.name for chunk in ChunkStore("store").manifest().chunks]
    assert "not known which runs have used it" in data("remove", "7", "--from", "store")
    used_by("spring", tmp_path, names)
    told = [data("remove", str(record), "--from", "store") for record in (3, 4, 5)]
    assert all(line.endswith("runs that have used it: spring") for line in told)
    used_by("summer", tmp_path, [chunk.name for chunk in ChunkStore("store").manifest().chunks])
    assert data("remove", "6", "--from", "store").endswith("runs that have used it: spring, summer")
    assert sum(chunk.samples for chunk in ChunkStore("store").manifest().chunks) == 15


def test_remove_names_all_chunks_of_record_and_runs_of_any(data, tmp_path: Path):
    np.savez("ward.npz", x=np.arange(20.0), patient=np.array([7] * 19 + [8]))
    data("split", "ward.npz", "--chunks", "4", "--to", "store", "--ids", "patient")
    names = [chunk.name for chunk in ChunkStore("store").manifest().chunks]
    for run, name in zip(("spring", "summer"), names, strict=False):
        used_by(run, tmp_path, [name])
    told = data("remove", "7", "--from", "store")
    assert told == f"7: removed from {', '.join(names)}; runs that have used it: spring, summer"


def test_remove_names_runs_whose_chunks_are_not_known(data, tmp_path: Path):
    data("split", "ward.npz", "--chunks", "2", "--to", "store")
    used_by("loop", tmp_path, ["north"], script="train.py")
    used_by("plain", tmp_path, ["a"], client_app="stock")
    used_by("both", tmp_path, ["north.pt", *(chunk.name for chunk in ChunkStore("store").manifest().chunks)])
    told = data("remove", "3", "--from", "store").partition("; ")[2]
    unknown = "not known of runs with a script or a plain ClientApp: loop, plain"
    assert told == f"runs that have used it: both; {unknown}"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("split", "none.npz", "--to", "store"), "none.npz: saw "),
        (("split", "ward.npz", "--to", "store", "--chunks", "2", "--ids", "z"), "--ids: saw 'z', needed"),
        (("split", "ward.npz", "--to", "store"), "saw 64 chunks of 20 samples, needed 1 to 20 chunks"),
        (("admit", "store", "0a1b"), "client key: saw '0a1b', needed 64 hexadecimal digits"),
        (("admit", "store", "00" * 32), f"client key {'00' * 32}: saw a key of small order"),
        (("admit", "store", "00" * 31 + "01"), "key site.key: No such file"),
        (("verify", "none"), "chunk store none: no file "),
        (("remove", "1", "--from", "none"), "key site.key: No such file"),
    ],
)
def test_bad_input_is_refused_in_one_line(data, words: tuple[str, ...], sentence: str):
    data(*words, raises=sentence)
    assert not Path("site.key").exists()


@pytest.mark.parametrize("form", ["names", "tuple", "dataset"])
def test_saved_tensors_are_split(data, form: str):
    tensors = (torch.arange(6.0), torch.arange(6))
    saved = {
        "names": {"x": tensors[0], "y": tensors[1]},
        "tuple": tensors,
        "dataset": TensorDataset(*tensors),
    }
    torch.save(saved[form], "ward.pt")
    data("split", "ward.pt", "--chunks", "2", "--to", "store")
    assert ChunkStore("store").manifest().columns == (("x", "y") if form == "names" else ("0", "1"))


def test_other_saved_object_is_refused(data):
    torch.save({"x": "text"}, "ward.pt")
    data("split", "ward.pt", "--chunks", "2", "--to", "store", raises="saw a dict, needed tensors")
    torch.save({"x": print}, "ward.pt")
    data(
        "split", "ward.pt", "--chunks", "2", "--to", "store", raises="ward.pt: saw Unsupported global: GLOBAL"
    )
    for none in ("none.pt", "none.npz", "none.safetensors"):
        sentence = f"{none}: saw No such file or directory, needed"
        data("split", none, "--chunks", "2", "--to", "store", raises=sentence)
