"""Check every round of these tests against the transition table."""

from collections.abc import Iterator

import pytest

from tests.transitions import checked_transitions


@pytest.fixture(autouse=True, scope="session")
def _transitions() -> Iterator[None]:
    with checked_transitions():
        yield
