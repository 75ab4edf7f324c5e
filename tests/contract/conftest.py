"""One real federation for all contract tests: a SuperLink and three SuperNodes on loopback."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedgc.flower.local import LocalFederation, Node

WAIT_S = 120.0
# Engines that rest leave room on a small machine for the processes that start meanwhile.
NODES = [Node(f"device-{number}", {"pace-s": 0.01}) for number in range(3)]
SETTINGS = {"min-devices": 3, "threads": 1, "grace-s": 2.0, "chunks": 8, "evaluate-every": 1}


class Federation(LocalFederation):
    """A federation with the few questions that tests ask."""

    def run_log(self, run: int) -> str:
        return self.log(f"run-{run}").read_text(errors="replace")

    @staticmethod
    def eventually(condition: Callable[[], object], within_s: float = WAIT_S) -> float:
        """Wait until the condition holds; return the seconds it took."""
        began = time.monotonic()
        while not condition():
            assert time.monotonic() < began + within_s, "it did not happen"
            time.sleep(0.05)
        return time.monotonic() - began


@pytest.fixture(scope="session")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    folder: Path = tmp_path_factory.mktemp("federation")
    environment = {"FEDGC_DB": str(folder / "fedgc.db"), "XDG_STATE_HOME": str(folder / "state")}
    with Federation(NODES, folder=folder / "processes", environment=environment) as started:
        yield started


@pytest.fixture
def settings() -> dict[str, str | int | float]:
    return dict(SETTINGS)
