"""Test the error tree against the one drawn in its module, and hints for misspelled names."""

import inspect
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgc import errors
from fedgc.errors import FedgcError, nearest


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
