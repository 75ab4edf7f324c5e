"""Test refusals and joins: counted, logged once, recorded, and bounded in number."""

import logging
from collections import Counter

import pytest

from fedgc.config import RunConfig
from fedgc.errors import LONGEST_TEXT, BadVector, NotAdmitted
from fedgc.flower import store_sink as keeping
from fedgc.flower.json_lines import Lines
from fedgc.flower.store_sink import StoreSink
from fedgc.links.refusals import Refusals
from fedgc.store.records import Audited
from fedgc.store.writer import Keeper


def test_refusals_are_counted_and_first_of_each_kind_is_logged(caplog) -> None:
    heard: list[tuple[str, str, str]] = []
    refusals = Refusals(logging.getLogger("test"), lambda *what: heard.append(what))
    for who in ("a", "b"):
        refusals.count(BadVector("too long " + "x" * 1000), who)
    refusals.count(NotAdmitted("a foreign token"))
    refusals.count(TimeoutError("no hello"))
    assert refusals.counts == {"BadVector": 2, "NotAdmitted": 1, "TimeoutError": 1}
    assert [who for _, who, _ in heard] == ["a", "b", "", ""]
    assert [what for _, _, what in heard[2:]] == ["a foreign token", "TimeoutError: no hello"]
    assert all(len(what) <= LONGEST_TEXT for _, _, what in heard)
    assert len(caplog.records) == 3


class Kept(Keeper):
    """A writer without a store."""

    def __init__(self) -> None:
        self.records: list[object] = []

    def put(self, record: object) -> None:
        self.records.append(record)

    def close(self, timeout_s: float = 10.0) -> None:
        """Nothing waits."""


def test_repeated_refusals_do_not_fill_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "AUDITED", 3)
    keeper = Kept()
    sink = StoreSink(keeper, "run", lambda: 5.0, lambda: 5.0, Lines("", lambda _: None))
    with sink.recorded(RunConfig(work="coded")):
        for _ in range(10):
            sink.audited("refused", "hog", "BadVector: no")
        sink.audited("refused", "other", "BadVector: no")
        sink.audited("joined", "hog", "with key")
    records = [each for each in keeper.records if isinstance(each, Audited)]
    assert Counter((each.kind, each.who) for each in records) == {
        ("refused", "hog"): 4, ("refused", "other"): 1, ("joined", "hog"): 1
    }  # fmt: skip
    assert records[-1] == Audited(5.0, "refused", "hog", "10 times in this run, 3 of them on record", "run")
