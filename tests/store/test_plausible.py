import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgc.history import ClientRow
from fedgc.store.plausible import FASTEST_STEP_S, LONGEST_TEXT, SLACK_S, checked, number, text
from fedgc.training.script.connection import LONGEST_WHY

ANY_TIME = st.floats(allow_nan=True, allow_infinity=True)
ANY_COUNT = st.integers(-(1 << 70), 1 << 70)
ROWS = st.builds(
    ClientRow,
    st.just("a"),
    **dict.fromkeys(("finished", "counted", "steps", "refused", "up_bytes", "down_bytes"), ANY_COUNT),
    **dict.fromkeys(("busy_s", "upload_s", "download_s"), ANY_TIME),
    **dict.fromkeys(("step_s", "spread_s"), st.none() | ANY_TIME),
    failure=st.text(),
)
ELAPSED = st.floats(0, 1e9)


@given(ROWS, ELAPSED)
def test_kept_values_are_plausible(row, elapsed_s):
    kept, _ = checked(row, elapsed_s)
    assert 0 <= kept.counted <= kept.finished < 1 << 31
    assert 0 <= kept.up_bytes < 1 << 54
    for seconds in (kept.busy_s, kept.upload_s, kept.download_s):
        assert 0 <= seconds <= elapsed_s + SLACK_S
    if kept.step_s is not None:
        assert kept.finished > 0
        assert FASTEST_STEP_S <= kept.step_s <= elapsed_s + SLACK_S
    assert kept.spread_s is None or kept.step_s is not None


@given(ROWS, ELAPSED)
def test_checked_row_passes_check_unchanged(row, elapsed_s):
    kept, _ = checked(row, elapsed_s)
    assert checked(kept, elapsed_s) == (kept, 0)


@given(ROWS, ELAPSED)
def test_dropped_claim_never_counts_as_faster(row, elapsed_s):
    kept, struck = checked(row, elapsed_s)
    if kept.step_s is not None:
        assert kept.step_s == row.step_s
    elif row.step_s is not None:
        assert struck > 0


def test_plausible_row_is_unchanged():
    row = ClientRow("a", 4, 3, 16, 1.6, 0.1, 0.01, 0.5, 0.25, 1000, 2000, 30, 1, "late", "session")
    assert checked(row, 60.0) == (row, 0)


def test_failure_of_script_keeps_path_of_its_log():
    why = "local work, step 14: the script ended: exit status 1: ".ljust(LONGEST_WHY, "x") + "/script.log)"
    assert checked(ClientRow("a", failure=why), 60.0)[0].failure == why


@pytest.mark.parametrize("step_s", [0.0, -0.1, math.nan, math.inf, 1e-9, 62.0])
def test_impossible_time_is_dropped_and_counted(step_s):
    row, struck = checked(ClientRow("a", finished=1, counted=1, step_s=step_s), elapsed_s=60.0)
    assert (row.step_s, struck) == (None, 1)


def test_clock_jump_gives_no_speed():
    row = ClientRow("a", finished=1, counted=1, busy_s=3600.0, step_s=0.1, upload_s=-3600.0)
    kept, struck = checked(row, elapsed_s=30.0)
    assert (kept.busy_s, kept.upload_s, kept.step_s, struck) == (0.0, 0.0, 0.1, 2)


@given(st.text(), st.integers(0, 50))
def test_text_fits_every_database(words, longest):
    kept = text(words, longest)
    assert len(kept) <= longest <= LONGEST_TEXT
    assert "\x00" not in kept
    assert kept.encode("utf-8").decode("utf-8") == kept


@given(st.none() | ANY_TIME)
def test_numbers_are_finite_or_null(value):
    kept = number(value)
    assert kept is None or kept == value
