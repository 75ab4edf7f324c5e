"""Test what is said of a run that no resume can go on with."""

import pytest

from fedgc.cli.follow import Seen
from fedgc.cli.run_end import Over
from fedgc.run.rows import SPENT
from fedgc.secagg.client import UNMASKED
from fedgc.secagg.rules import NO_BUDGET


class Made(Seen):
    """A run that has made a model."""

    has_model = True
    last = 3


class Before(Made):
    """The same before this start."""

    last = 1


@pytest.mark.parametrize(
    ("reason", "goes_on"),
    [
        ("the task failed", True),
        (f"round 3: {SPENT}", False),
        (f"north: begin: saw the model 0a1b, {UNMASKED} before", False),
        (f"privacy: saw 4 exchanges done, needed fewer than 4: {NO_BUDGET}", False),
    ],
)
def test_run_whose_model_is_spent_is_not_resumable(reason: str, goes_on: bool):
    over = Over(Before(None), Made(None), False, reason, 7)
    assert (over.resumable, over.is_final) == (goes_on, not goes_on)
