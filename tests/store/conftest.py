"""Fixtures of the store's tests: the databases of the suite, and rows to write."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedgc.history import ClientRow, RoundRow
from fedgc.store.database import Store
from tests.store.postgres import Postgres, running


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with running("postgres") as server:
        yield server


@pytest.fixture(params=["file", "memory", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty database of each kind."""
    if request.param == "postgresql":
        return request.getfixturevalue("postgres").fresh()
    return "sqlite://" if request.param == "memory" else str(tmp_path / "store.db")


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with Store.open(url) as opened:
        yield opened


@pytest.fixture
def file_store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(str(tmp_path / "store.db")) as opened:
        yield opened


@pytest.fixture
def a_client() -> Callable[..., ClientRow]:
    def make(client: str = "a", **changes: object) -> ClientRow:
        usual = {"finished": 4, "counted": 3, "steps": 16, "busy_s": 1.6, "step_s": 0.1, "spread_s": 0.01}
        moved = {"upload_s": 0.5, "download_s": 0.25, "up_bytes": 1000, "down_bytes": 2000, "link": "session"}
        return ClientRow(client, **{**usual, **moved, **changes})

    return make


@pytest.fixture
def a_row() -> Callable[..., RoundRow]:
    def make(number: int, *clients: ClientRow, **changes: object) -> RoundRow:
        values = {
            "round": number, "version": number, "started": 10.0 * number, "working_s": 2.0,
            "collecting_s": 0.5, "outcome": "synced", "chunks": 8, "covered": 8, "short": (), "replicas": 2,
            "blocks": 1, "needed": 2, "amplification": 1.5, "error": 1e-4, "loss": 0.7, "samples": 640,
            "skips": 3, "takes": 1, "pruned": 0, "repairs": 0, "reason": "covered", "clients": clients,
        }  # fmt: skip
        return RoundRow(**{**values, **changes})

    return make
