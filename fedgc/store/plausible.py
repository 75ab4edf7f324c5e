"""Plausibility checks of the values that clients report about themselves.

A client's values decide how much work it gets, so a wrong one must never bring it more. An impossible value
is removed and counted: a removed time is not used, and its round counts as failed for the client. The bounds
are those that the server can verify with its own clock: no optimizer step takes less than a microsecond, and
none has taken longer than the run has lasted. A client may carry a chunk over many rounds, so the length of
a round is no bound. It shows that the server's clock was set back, where the run seems to be shorter: then no
time of a client is a false claim.
"""

import math
from dataclasses import replace
from operator import attrgetter
from typing import Any, Final

from fedgc.history import ClientRow, RoundRow

FASTEST_STEP_S: Final = 1e-6
FASTEST_LINK: Final = 1e11  # bytes a second; a faster transfer is a clock error
SLACK_S: Final = 1.0  # between readings of the server's clock
LONGEST_S: Final = 1e9  # 30 years: for claims that the clock cannot bound
LONGEST_TEXT: Final = 200
LONGEST_FAILURE: Final = 400  # it ends with the path of the client's log
LARGEST_WHOLE: Final = (1 << 63) - 1
_LARGEST: Final = (1 << 31) - 1
_LARGEST_SIZE: Final = 1 << 53  # a thousand of them still fit a database integer
_NAMES: Final = (
    "finished", "counted", "steps", "refused", "busy_s", "upload_s", "download_s", "up_bytes", "down_bytes",
    "control_bytes", "step_s", "spread_s", "failure", "link",
)  # fmt: skip
_claims: Final = attrgetter(*_NAMES)


def text(words: object, longest: int = LONGEST_TEXT) -> str:
    r"""Return text that every database accepts: no NUL, no surrogates, limited length.

    >>> text("bad\x00\ud800 end")
    'bad? end'
    """
    shown = str(words)
    if shown.isascii() and "\x00" not in shown:
        return shown[:longest]
    return shown.replace("\x00", "")[:longest].encode("utf-8", "replace").decode("utf-8")


def number(value: float | None) -> float | None:
    """Return a finite number, or None: databases disagree on NaN."""
    return float(value) if value is not None and math.isfinite(value) else None


def whole(value: int) -> int:
    """Return a count that every database can hold: clients report their own counts.

    >>> whole(10**30) < 2**63
    True
    """
    return _within(value, LARGEST_WHOLE)


def bound_s(row: RoundRow, elapsed_s: float) -> float:
    """Return how long a run can have lasted at the end of a round, by the server's clock and the round."""
    lasted_s = row.working_s + row.collecting_s
    return elapsed_s if elapsed_s + SLACK_S >= lasted_s else LONGEST_S


def checked(row: ClientRow, elapsed_s: float) -> tuple[ClientRow, int]:
    """Return the row without implausible claims, and the number of those.

    `elapsed_s` is how long the run can have lasted.

    >>> row, struck = checked(ClientRow("a", finished=1, counted=1, step_s=-3.0), elapsed_s=60.0)
    >>> row.step_s, struck
    (None, 1)

    The time of steps that no exchange has counted yet, as in a skipped round, is left out and no false claim.

    >>> row, struck = checked(ClientRow("a", steps=16, step_s=0.5, spread_s=0.0), elapsed_s=60.0)
    >>> row.step_s, struck
    (None, 0)
    """
    if row.finished == 0 and row.steps > 0:
        row = replace(row, step_s=None, spread_s=None)
    longest = max(elapsed_s, 0.0) + SLACK_S
    finished = _within(row.finished, _LARGEST)
    step_s = _step(row, longest)
    sound = (
        *(finished, _within(row.counted, finished), _within(row.steps, _LARGEST)),
        _within(row.refused, _LARGEST),
        *(_time(row.busy_s, longest), _time(row.upload_s, longest), _time(row.download_s, longest)),
        *(_within(row.up_bytes, _LARGEST_SIZE), _within(row.down_bytes, _LARGEST_SIZE)),
        _within(row.control_bytes, _LARGEST_SIZE),
        *(step_s, _spread(row.spread_s, step_s, longest), text(row.failure, LONGEST_FAILURE), text(row.link)),
    )
    claims = _claims(row)
    if sound == claims:
        return row, 0
    struck = sum(now != then for now, then in zip(sound[:-2], claims[:-2], strict=True))
    repaired: dict[str, Any] = dict(zip(_NAMES, sound, strict=True))
    return replace(row, **repaired), struck


def _within(value: int, largest: int) -> int:
    return value if 0 <= value <= largest else min(max(value, 0), largest)


def _time(value: float, longest: float) -> float:
    return float(value) if 0 <= value <= longest else 0.0  # false for NaN


def _step(row: ClientRow, longest: float) -> float | None:
    """Return the time of a step; a time without finished work is no measurement."""
    if row.step_s is None or row.finished <= 0:
        return None
    return float(row.step_s) if FASTEST_STEP_S <= row.step_s <= longest else None


def _spread(value: float | None, step_s: float | None, longest: float) -> float | None:
    if value is None or step_s is None:
        return None
    return float(value) if 0 <= value <= longest else None
