"""Smaller plans for benchmarks that play fedgc's planner."""

from collections.abc import Iterator
from importlib import import_module

import pytest


@pytest.fixture(scope="module")
def few_futures() -> Iterator[None]:
    """Replay each plan in two futures: eight take four times as long."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(import_module("fedgc.tuner.choose"), "CONFIRMED", 2)
        yield
