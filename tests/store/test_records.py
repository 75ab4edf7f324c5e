import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgc.errors import BadMessage
from fedgc.history import ClientRow, RoundRow
from fedgc.store.records import (
    Appended,
    Audited,
    Begun,
    Decided,
    Ended,
    Evaluated,
    Present,
    Scored,
    Seen,
    from_line,
    to_line,
)

WORDS = st.text(min_size=1)
NUMBERS = st.floats(allow_nan=False)
NOW = st.floats(0, 1e10)
COUNTS = st.integers(0, 1 << 40)
PLAIN = st.dictionaries(st.text(), st.integers() | st.text() | NUMBERS | st.booleans() | st.none())
CLIENTS = st.builds(
    ClientRow, WORDS, COUNTS, COUNTS, step_s=st.none() | NUMBERS, busy_s=NUMBERS, failure=st.text()
)
ROUNDS = st.builds(
    RoundRow,
    **dict.fromkeys(("round", "version", "chunks", "covered", "replicas", "blocks", "needed"), COUNTS),
    **dict.fromkeys(("samples", "skips", "takes", "pruned", "repairs"), COUNTS),
    **dict.fromkeys(("started", "working_s", "collecting_s"), NUMBERS),
    **dict.fromkeys(("amplification", "error", "loss"), st.none() | NUMBERS),
    outcome=st.sampled_from(["synced", "skipped", "stopped"]),
    short=st.lists(COUNTS).map(tuple),
    reason=st.text(),
    clients=st.lists(CLIENTS, max_size=3).map(tuple),
    metrics=st.dictionaries(st.text(), NUMBERS),
)
RECORDS = (
    st.builds(Begun, NOW, WORDS, PLAIN.map(lambda table: {**table, "task": "digits"}))
    | st.builds(Appended, NOW, WORDS, ROUNDS)
    | st.builds(Evaluated, NOW, WORDS, COUNTS, st.dictionaries(st.text(), NUMBERS))
    | st.builds(Scored, NOW, WORDS, COUNTS, WORDS, COUNTS, st.dictionaries(st.text(), NUMBERS))
    | st.builds(Present, NOW, WORDS, PLAIN)
    | st.builds(Seen, NOW, WORDS, st.text(), st.text(), st.text())
    | st.builds(Decided, NOW, WORDS, COUNTS, WORDS, PLAIN, st.text())
    | st.builds(Audited, NOW, WORDS, st.text(), st.text(), st.text())
    | st.builds(Ended, NOW, WORDS, WORDS, st.text())
)


@given(RECORDS, st.text())
def test_line_is_decoded_to_record(record, stamp):
    line = to_line(record, stamp)
    assert line.count("\n") == 1
    assert from_line(line) == (record, stamp)


@given(RECORDS, st.data())
def test_torn_line_is_refused(record, data):
    line = to_line(record, "s").rstrip("\n")
    with pytest.raises(BadMessage, match="needed a whole line"):
        from_line(line[: data.draw(st.integers(0, len(line) - 1))])


@pytest.mark.parametrize(
    "line",
    ["{}", "[]", "7", '{"kind": "Gone", "stamp": "", "says": {}}', '{"kind": "Seen", "stamp": "", "says": 7}',
     '{"kind": "Seen", "stamp": "", "says": {"color": 1}}'],
)  # fmt: skip
def test_line_of_other_content_is_refused(line):
    with pytest.raises(BadMessage, match="needed a whole line"):
        from_line(line)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Seen(math.nan, "a"),
        lambda: Seen(1.0, ""),
        lambda: Begun(1.0, "r", {"rounds": 3}),
        lambda: Begun(1.0, "", {"task": "digits"}),
        lambda: Decided(1.0, "r", 0, ""),
        lambda: Audited(1.0, "", "a", "joined"),
        lambda: Ended(math.inf, "r", "finished"),
    ],
)
def test_empty_record_is_refused(make):
    with pytest.raises(BadMessage):
        make()


def test_deeply_nested_line_is_refused():
    with pytest.raises(BadMessage, match="record kept aside"):
        from_line("[" * 100_000)
