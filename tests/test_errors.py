"""Test the error tree against the one drawn in its module, and hints for misspelled names."""

import inspect
import re
import time
from collections.abc import Callable
from pathlib import Path

import fsspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

from fedgc import errors
from fedgc.errors import LONGEST_LINE, FedgcError, nearest, printable, text_of, words_of


def exchange() -> dict[str, str]:
    """Read the tree from the file's head: name -> parent."""
    parents: dict[str, str] = {}
    trail: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"(?P<lead>[│├└─ ]*)(?P<name>[A-Z][A-Za-z]+)(\s{2,}|$)", line)
        if not found:
            continue
        depth = len(found["lead"]) // 4
        trail = [*trail[:depth], found["name"]]
        parents[found["name"]] = trail[-2] if depth else "Exception"
    return parents


def defined() -> dict[str, str]:
    return {
        name: value.__mro__[1].__name__
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, Exception)
    }


def test_documented_error_tree_is_error_tree():
    assert len(defined()) > 5
    assert exchange() == defined()


def test_every_error_documents_its_cause():
    for name in defined():
        assert vars(errors)[name].__doc__


def test_base_error_catches_everything():
    for name in defined():
        with pytest.raises(FedgcError, match="seen, needed"):
            raise vars(errors)[name]("seen, needed")


@given(
    known=st.lists(st.text("abcdefgh", min_size=4, max_size=8), min_size=1, max_size=5, unique=True),
    data=st.data(),
)
def test_known_name_is_its_own_nearest(known, data):
    name = data.draw(st.sampled_from(known))
    assert nearest(name, known) == f"; did you mean {name}?"


@given(name=st.text(max_size=8), known=st.lists(st.text(min_size=1, max_size=8), max_size=5))
def test_hint_names_known_name_or_is_empty(name, known):
    assert nearest(name, iter(known)) in {"", *(f"; did you mean {each}?" for each in known)}


def test_misspelled_name_gets_hint():
    assert nearest("replicaz", ["rounds", "replicas", "blocks"]) == "; did you mean replicas?"
    assert nearest("zzz", ["rounds", "replicas"]) == ""
    assert nearest("anything", []) == ""


def raised(act: Callable[[], object]) -> Exception:
    try:
        act()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def test_words_of_error_hold_all_its_lines():
    model = torch.nn.Linear(1, 1)
    words = words_of(raised(lambda: model.load_state_dict({"weight": torch.zeros(1, 1)})))
    assert words.startswith("RuntimeError: Error(s) in loading state_dict for Linear: Missing key(s)")
    assert '"bias"' in words
    assert words_of(ValueError(" \n")) == "ValueError"
    assert words_of(AssertionError()) == "AssertionError"
    assert words_of(FedgcError()) == "FedgcError"


@pytest.mark.parametrize("text", ["x" * 50_000_000, "x " * 25_000_000, "\x1b" * 50_000_000])
def test_long_foreign_text_is_not_read_to_its_end(text):
    begun = time.process_time()
    assert printable(text, 64) in ("x" * 64, ("x " * 64)[:64], "")
    assert time.process_time() - begun < 0.5


def test_text_of_error_is_one_limited_printable_line():
    assert text_of(OSError("left\nERROR  the disk is full \x1b[31m")) == "left ERROR the disk is full [31m"
    assert len(text_of(ValueError("c" * 5000))) == LONGEST_LINE
    assert text_of(TimeoutError()) == "TimeoutError"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (FileNotFoundError("bucket/my file"), "No such file or directory: bucket/my file"),
        (FileNotFoundError("the bucket is gone"), "No such file or directory: the bucket is gone"),
        (PermissionError("bucket/key"), "Permission denied: bucket/key"),
        (PermissionError(), "Permission denied"),
        (IsADirectoryError("bucket"), "Is a directory: bucket"),
        (ConnectionRefusedError("host:1"), "ConnectionRefusedError: host:1"),
        (ConnectionError("TLS has ended"), "TLS has ended"),
        (OSError("the cluster is gone"), "the cluster is gone"),
    ],
)
def test_system_error_without_number_has_reason(error: OSError, text: str):
    assert text_of(error) == text


def test_missing_object_of_store_is_named():
    memory = fsspec.filesystem("memory")
    assert text_of(raised(lambda: memory.cat_file("/none/chunk"))) == "No such file or directory: /none/chunk"


def test_path_that_message_names_is_not_repeated(tmp_path: Path):
    missing = raised((tmp_path / "none").read_bytes)
    assert text_of(missing, f"{tmp_path}/./none") == "No such file or directory"
    assert text_of(missing, tmp_path / "other") == text_of(missing) == f"no file {tmp_path}/none"
    folder = raised(tmp_path.read_bytes)
    assert text_of(folder, tmp_path) == "Is a directory"
    assert text_of(folder, tmp_path / "other") == f"Is a directory: {tmp_path}"
    (tmp_path / "new").touch()
    (tmp_path / "full").mkdir()
    assert text_of(raised(lambda: (tmp_path / "new").replace(tmp_path / "full")), tmp_path / "full") == (
        "Is a directory"
    )
    assert text_of(raised(lambda: load_file(tmp_path / "none")), tmp_path / "none") == (
        "No such file or directory"
    )
