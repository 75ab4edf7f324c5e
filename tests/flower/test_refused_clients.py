"""Test that a refused client is named, in the log, the history and the reason of a run."""

import logging
from types import SimpleNamespace

import pytest

from fedgc.flower.refused_clients import RefusedClients
from fedgc.flower.warn_once import WarnOnce
from fedgc.messages import Refuse

OTHER = Refuse("5e1f", 1, "saw descriptor 0a, needed 1b: compare the files\x1b[2J")


@pytest.mark.parametrize("federation", [None, object()], ids=["open", "masked"])
def test_refused_client_of_masked_run_is_warned_of_once(caplog, federation):
    audit: list[tuple[str, str, str]] = []
    sink = SimpleNamespace(audited=lambda *entry: audit.append(entry))
    clients = RefusedClients(
        SimpleNamespace(sink=sink, federation=federation), WarnOnce(logging.getLogger("test"))
    )
    for _ in range(3):
        clients.refused(OTHER, 4, "west")
    assert audit == [("refused", "5e1f", f"round 1: {OTHER.reason}")] * 3
    said = ["round 4: west is refused: saw descriptor 0a, needed 1b: compare the files[2J"]
    assert caplog.messages == (said if federation else [])
    assert clients.last.startswith("west was refused: saw descriptor 0a" if federation else "")
    assert bool(clients.last) is bool(federation)
