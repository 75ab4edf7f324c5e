"""Test that a client that reports its steps and never sends its update holds up few rounds, over real TLS."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fedgc.links import frames as wire
from fedgc.links.frames import Numbered, Offer, Ping
from tests.contract import crooked

pytestmark = pytest.mark.contract

ROUNDS = 12


def no_offers(frames: Iterator[bytes]) -> Iterator[bytes]:
    """Each offer of an update is replaced by a ping."""
    for number, frame in enumerate(frames):
        line = (
            wire.decode(frame, wire.FROM_CLIENT, now=0.0, client="it")
            if number and frame[:1] == b"L"
            else None
        )
        if isinstance(line, Numbered) and isinstance(line.value, Offer):
            yield wire.encode(Ping(), line.sequence)
        else:
            yield frame


def test_hostile_mute_client_is_excluded_and_rounds_continue(tmp_path: Path) -> None:
    sink = crooked.Rows()
    _, rows, _ = crooked.run(
        tmp_path, no_offers, sink, work="local", rounds=ROUNDS, min_clients=4, upload_deadline_s="auto"
    )
    ((_, hostile, told),) = [each for each in sink.audits if each[0] == "excluded"]
    assert told.startswith("excluded for 5 s: in 3 rounds in a row the others waited for it")
    assert len(rows) == ROUNDS
    assert len(rows[-1].clients) == 3, "the hostile client is out of the plan"
    assert rows[-1].outcome == "synced"
    counted = [{each.client for each in row.clients if each.counted} for row in rows]
    assert min(map(len, counted)) >= 2, "on a busy machine an honest client may be late as well"
    assert len(counted[-1]) == 3
    assert hostile not in set().union(*counted)
