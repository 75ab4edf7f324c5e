"""One real federation for all contract tests: a SuperLink and four SuperNodes on loopback.

Starting its processes takes most of the time, so they start once per xdist worker: all tests of a file run on
the same one, and so do those of files that share it. A session occupies its SuperNode: runs that need
clients take turns, and every test leaves the nodes free."""

import re
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from benchmarks.served import WAIT_S as WAIT_S
from benchmarks.served import alive as alive
from benchmarks.served import command as command
from benchmarks.served import eventually as eventually
from fedgc.deploy.app_folder import App, Setting
from fedgc.deploy.local_federation import LocalFederation, Node, Wiring
from fedgc.store.database import Store
from tests.config_of import table_of

GATHER_S = 600.0  # a run that does not have all its clients by then ends
PACE_S = 0.15  # of a step: engines that rest leave room on a small machine for processes that start
NODES = [Node(f"client-{number}", {"pace-s": PACE_S}) for number in range(4)]
NODE_ID = re.compile(r"SuperNode ID: (\d+)")
PROGRAM = re.compile(r"\b(?:flwr|flower)-\w+")
LAST_LINES = 6  # of a log, for a failed test
SHARING = ("test_federation", "test_local_work", "test_private", "test_stock")  # one federation is enough


class Federation(LocalFederation):
    """A federation with the queries that tests need."""

    _store: Store | None = None

    @property
    def database(self) -> Path:
        return self.folder.parent / "fedgc.db"

    @property
    def state(self) -> Path:
        return self.folder.parent / "state"

    def store(self) -> AbstractContextManager[Store]:
        """The store, opened once: waiting tests poll it."""
        if self._store is None:
            self._store = Store.open(str(self.database), reads_only=True)
        return nullcontext(self._store)

    def close(self) -> None:
        super().close()
        if self._store is not None:
            self._store.close()

    def submit(self, settings: Mapping[str, Setting], app: Wiring | App | None = None) -> int:
        """Submit a run; settings have the names of fields."""
        return super().submit(table_of(settings), app)

    def restart(self, name: str) -> None:
        """Restart a SuperNode, and wait until the SuperLink has registered it."""
        before = len(self.node_ids(name))
        super().restart(name)
        eventually(lambda: len(self.node_ids(name)) > before)

    def node_ids(self, name: str) -> list[str]:
        """The numbers that Flower has given this SuperNode, one for each start."""
        return NODE_ID.findall(self.log(name).read_text(errors="replace"))

    def run_log(self, run: int) -> str:
        return self.log(f"run-{run}").read_text(errors="replace")

    def clients(self, name: str) -> list[int]:
        """The ClientApp processes of a node."""
        return [pid for pid in self.pids(name) if "flwr-clientapp" in command(pid)]

    def server(self) -> int | None:
        """The process of the ServerApp, where there is one."""
        return next((pid for pid in self.pids("superlink") if "flwr-serverapp" in command(pid)), None)


class Together(LoadFileScheduling):
    """Keep the tests of a file, and of files that share a federation, in one xdist worker, in order."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return "sharing" if Path(file).stem in SHARING else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Together | None:
    return Together(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add to a failed test what the processes of its federations said last."""
    report = yield
    if report.failed:
        report.sections += [each for found in federations(item) for each in last_words(found)]
    return report


def federations(item: pytest.Item) -> list[Federation]:
    found = getattr(item, "funcargs", {}).values()
    return [each for value in found if isinstance(each := getattr(value, "federation", value), Federation)]


def last_words(federation: Federation) -> list[tuple[str, str]]:
    """Return, for each node and the SuperLink, its programs and the last lines of its log."""
    return [
        (
            f"{name}: {' '.join(PROGRAM.findall(' '.join(map(command, federation.pids(name)))))}",
            "\n".join(federation.log(name).read_text(errors="replace").splitlines()[-LAST_LINES:]),
        )
        for name in ("superlink", *federation.nodes)
    ]


@pytest.fixture(scope="session")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    folder: Path = tmp_path_factory.mktemp("federation")
    environment = {
        "FEDGC_DB": str(folder / "fedgc.db"),
        "XDG_STATE_HOME": str(folder / "state"),
    }
    with Federation(NODES, folder=folder / "processes", environment=environment) as started:
        yield started


@pytest.fixture(scope="session")
def contract_wait() -> Callable[[Callable[[], object]], None]:
    return eventually
