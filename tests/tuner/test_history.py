"""Test the history that is read from a trace."""

import numpy as np
import pytest

from fedgc.sim.clock import NEVER, working
from fedgc.tuner import remember


def test_links_of_trace_are_those_of_rounds_with_uploads() -> None:
    """A client that sends nothing in a round shows nothing of its uplink; one that never sends has none."""
    rounds = [working([[1.0], [1.0]], up_s=np.array([seconds, NEVER])) for seconds in (2.0, NEVER, 8.0)]
    _, links = remember(tuple(rounds), update_bytes=100)
    known = [links.known[f"client {w}"] for w in range(2)]
    assert [each.up_bytes_s for each in known] == [pytest.approx(31.25), None]
