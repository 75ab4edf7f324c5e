"""A store with the run of four clients."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fedgc.store.database import Store
from tests.web.run_of_four import tell_a_run


@pytest.fixture
def told(tmp_path: Path) -> Iterator[Store]:
    with Store.open(str(tmp_path / "fedgc.db")) as store:
        tell_a_run(store)
        yield store
