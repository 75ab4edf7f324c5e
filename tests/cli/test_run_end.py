"""Test what is said at the end of a run: whether a resume can go on with it, and what its app has printed."""

import io

import pytest
from rich.console import Console

from fedgc.cli.follow import Seen
from fedgc.cli.run_end import MOST_PRINTED, AppStarts, Over
from fedgc.run.rows import SPENT
from fedgc.secagg.client import UNMASKED
from fedgc.secagg.rules import NO_BUDGET
from fedgc.store.database import Store


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


@pytest.mark.parametrize(
    ("count", "reason", "said"),
    [
        (2, None, "printed by the app, 2 lines:\nscore 0 of [red]\nscore 1 of [red]\n"),
        (MOST_PRINTED + 3, None, f"the last {MOST_PRINTED} of {MOST_PRINTED + 3} lines:\nscore 3 of"),
        (2, "it raised KeyError", ""),
    ],
)
def test_lines_printed_by_app_are_shown(count: int, reason: str | None, said: str):
    log = "Successfully installed app to /x\nINFO :      Start `flwr-serverapp` process\n"
    log += "".join(f"score {at} of [red]\n\x1b[92mINFO \x1b[0m:      round {at}\n" for at in range(count))
    with Store.open("sqlite://") as store:
        printed, none = (AppStarts(store, "r", own_app=own).printed(log) for own in (True, False))
    assert (len(printed), none) == (count, ())
    out = io.StringIO()
    over = Over(Seen(None), Seen(None), False, reason, 7, printed=printed)
    over.print(Console(file=out, width=40), 1.0, resumed=False)
    assert said in out.getvalue() if said else not out.getvalue()
