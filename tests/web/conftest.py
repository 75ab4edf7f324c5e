"""Stores for tests of the page: one with a run, and an empty one."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fedgc.store.database import Store
from tests.web.run_of_four import tell_a_run


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "fedgc.db"


@pytest.fixture
def empty(path: Path) -> Iterator[Store]:
    with Store.open(str(path)) as store:
        yield store


@pytest.fixture
def told(empty: Store) -> Store:
    tell_a_run(empty)
    return empty
