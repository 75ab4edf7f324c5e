"""The picture says what the code says, and is drawn from it alone."""

import importlib.util
import re
import sys
from pathlib import Path
from types import MappingProxyType
from typing import get_args
from xml.etree import ElementTree as ET

import pytest

from fedgc import messages
from fedgc.messages import Outcome
from fedgc.round.machine import machine as round

ROOT = Path(__file__).parents[2]


def load():
    spec = importlib.util.spec_from_file_location("picture", ROOT / "docs" / "picture.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["picture"] = module
    spec.loader.exec_module(module)
    return module


picture = load()
SOURCE = (ROOT / "fedgc" / "round.py").read_text()
MANIFEST = (ROOT / "pyproject.toml").read_text()


def test_it_is_current():
    """Otherwise: python docs/picture.py."""
    assert picture.PICTURE.read_text() == picture.draw(SOURCE, MANIFEST)


def test_its_tables_are_those_that_the_round_goes_by():
    read = picture.tables(SOURCE)
    kept = {name: table for name, table in vars(round).items() if isinstance(table, MappingProxyType)}
    assert {name: [entry.event for entry in entries] for name, entries in read.items()} == {
        name: [event.__name__ for event in table] for name, table in kept.items()
    }
    assert all(hasattr(messages, entry.event) for entries in read.values() for entry in entries)


def test_every_state_can_end_and_every_end_is_an_outcome():
    read = picture.tables(SOURCE)
    for entries in read.values():
        ends = frozenset().union(*(entry.leads_to for entry in entries)) - read.keys()
        assert ends
        assert ends <= set(get_args(Outcome))
    said = picture.outcomes(SOURCE)
    assert set(said) == set(get_args(Outcome))


def test_where_an_entry_leads_follows_what_it_calls():
    source = """
class Round:
    def _a(self, event):
        return self._b()
    def _b(self):
        self._exchange = Exchange()
        return self._a() or self._close("left" if self else "right", 0)
    def _c(self, event):
        return []
WORKING: Final = MappingProxyType({
    Joined: Round._a,  # what is said
    Lost: Round._c,
})
"""
    joined, lost = picture.tables(source)["WORKING"]
    assert (joined.event, joined.says) == ("Joined", "what is said")
    assert joined.leads_to == {"COLLECTING", "left", "right"}
    assert (lost.says, lost.leads_to) == ("", frozenset())


def test_an_outcome_that_has_no_word_is_refused():
    source = (
        "class Round:\n    def _a(self, event):\n        self._close(event.outcome)\n"
        "WORKING: Final = MappingProxyType({Joined: Round._a})\n"
    )
    with pytest.raises(SystemExit, match="needed its words"):
        picture.tables(source)


def test_it_is_one_drawing_that_loads_nothing_and_says_itself_in_words():
    exchange = picture.PICTURE.read_text()
    ET.fromstring(exchange)  # noqa: S314  our own file
    assert not re.search(r"(href|url)\s*=?\s*[\"(](?!#)", exchange)
    assert "<desc" in exchange
    assert "While working, Stop can lead to stopped." in exchange
    for storey in picture.storeys(MANIFEST):
        assert storey.replace(" | ", " · ") in exchange
