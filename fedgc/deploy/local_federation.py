"""A federation on this machine: a real SuperLink and real SuperNodes as processes on loopback.

Demo, benchmarks, `fedgc run` without an address and the contract tests all start their processes here. All
files are in one folder: private Flower homes, the clients' keys, one log file for each process. Every process
runs in the caller's folder, so that relative paths of tasks and scripts count from it, and under a supervisor
(supervision.py), so that none outlives this one.

The SuperLink keeps its state in a file, not in memory. After a restart it still knows its SuperNodes; a
SuperNode that is unknown to its SuperLink (HTTP 401) exits.

The app for Flower is always written here, from a table of settings: Flower refuses overrides of unlisted
keys, and a full list lets every setting be given, from a checkout and from an installation.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Final, Self

from fedgc.config import RunConfig
from fedgc.deploy.app_folder import App, Setting, toml_value
from fedgc.deploy.flower_programs import write_programs
from fedgc.deploy.flower_version import supported
from fedgc.deploy.superlink import KEEP_INSTALLED, Superlink, tail
from fedgc.errors import BadSetting, EdgeFailed
from fedgc.flower.departure import GRACE_KEY, GRACE_S
from fedgc.links.message.fleet_size import VARIABLE
from fedgc.processes import supervision
from fedgc.processes.available import available_cores
from fedgc.processes.temporary_folder import fresh_folder

NAME: Final = "local"  # the name of the federation's SuperLink in its own Flower configuration
SUPERLINK: Final = "superlink"  # the name of its process here
FOLDER: Final = "fedgc-federation-"  # of a temporary folder; the next one removes those of killed processes
START_S: Final = 60.0  # a SuperLink that does not listen by then never will
SERVER_APP: Final = "flwr-serverapp"
STOP_S: Final = 30.0  # for a server that is asked to end
SOON_S: Final = 2.0  # in which most clients have ended after a run
AFTER_S: Final = 75.0  # in which all have: longer than a script has for itself after the run
END_S: Final = 10.0  # for a SuperNode to end, once its client has left
POLL_S: Final = 0.05
EXEC_POLL_S: Final = 0.5  # between a SuperExec's polls for work: all of a fleet are on this machine

PORTS: Final = range(10_000, 32_768)  # below the ephemeral ports of Linux and other systems
PORTS_EACH: Final = 64
_tried: Final = count()

SERVER_WIRING: Final = '''"""The ServerApp that Flower starts."""

from fedgc import server_app

app = server_app()
'''
CLIENT_WIRING: Final = '''"""The ClientApp that Flower starts."""

from fedgc import client_app

app = client_app()
'''
_PROJECT: Final = """[project]
name = "fedgc-app"
version = "0.1.0"
dependencies = ["FLOWER", "fedgc"]

[tool.flwr.app]
publisher = "fedgc"

[tool.flwr.app.components]
serverapp = "server.app:app"
clientapp = "client.app:app"

[tool.flwr.app.config]
"""


@dataclass(frozen=True, slots=True)
class Node:
    """One SuperNode: its name here, and the node config of its ClientApp."""

    name: str
    config: Mapping[str, Setting] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_-]+", self.name):
            raise BadSetting(f"node name: saw {self.name!r}, needed letters, digits, - and _")


@dataclass(frozen=True, slots=True)
class Wiring:
    """The source of an app's two files: fedgc's own, or the user's."""

    server: str = SERVER_WIRING
    client: str = CLIENT_WIRING


def write_app(folder: Path, settings: Mapping[str, Setting], wiring: Wiring | None = None) -> Path:
    """Write the app for Flower: two wiring files and the settings over the defaults."""
    chosen = wiring or Wiring()
    table = {**RunConfig().table(), **settings}
    lines = [f"{toml_value(key)} = {toml_value(value)}\n" for key, value in table.items()]
    for name, text in (("server", chosen.server), ("client", chosen.client)):
        (folder / name).mkdir(parents=True)
        (folder / name / "app.py").write_text(text)
    (folder / "pyproject.toml").write_text(_PROJECT.replace("FLOWER", supported()) + "".join(lines))
    return folder


class LocalFederation:
    """Starts the processes on entry, ends every one of them on exit.

    with LocalFederation(nodes=4) as federation:
        run = federation.submit({"rounds": 3})
        federation.wait(run, timeout_s=60)   # "finished:completed"
    """

    def __init__(
        self,
        nodes: int | Sequence[Node] = 4,
        *,
        folder: Path | None = None,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        every = [Node(f"client-{n}") for n in range(nodes)] if isinstance(nodes, int) else nodes
        self.nodes: Final = {node.name: node for node in every}
        if len(self.nodes) != len(every):
            raise BadSetting(f"node names: saw {[node.name for node in every]}, needed each once")
        if SUPERLINK in self.nodes:
            raise BadSetting(f"node names: saw {SUPERLINK!r}, needed another: it is the SuperLink's process")
        self._temporary = folder is None
        there, self._lock = fresh_folder(FOLDER) if folder is None else (folder, None)
        self.folder: Final = there
        self._environment = dict(environment)
        self._port = 0
        self._supervisors: dict[str, subprocess.Popen[bytes]] = {}
        self._apps = 0
        self.superlink: Final = Superlink(
            NAME, self.folder, self._variables(SUPERLINK), self._programs / "flwr"
        )

    # ---- start and end

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End every process, and remove a temporary folder, also when this is interrupted."""
        try:
            self.superlink.close()
            self.superlink.end_question()  # it would write into the removed folder again
            for supervisor in self._supervisors.values():
                _let_go(supervisor)
            for supervisor in self._supervisors.values():
                supervisor.wait()
            self._supervisors.clear()
        finally:
            if self._temporary:
                shutil.rmtree(self.folder, ignore_errors=True)
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None

    def _start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        write_programs(self._programs)
        self._port = free_port()
        self.home.mkdir(parents=True, exist_ok=True)
        (self.home / "config.toml").write_text(
            f'[superlink]\ndefault = "{NAME}"\n\n[superlink.{NAME}]\naddress = "{self.address}"\n'
            "insecure = true\n"
        )
        self._launch_superlink()
        self._await_port()
        for name in self.nodes:
            self._launch_node(name)

    def _launch_superlink(self) -> None:
        self._launch(
            SUPERLINK,
            "flower-superlink",
            "--insecure",
            KEEP_INSTALLED,
            *("--database", str(self.folder / "superlink.db")),
            *("--host", "127.0.0.1"),
            *("--port", str(self._port)),
        )

    def _await_port(self) -> None:
        end = time.monotonic() + START_S
        while not _listens(self._port):
            if self._supervisors[SUPERLINK].poll() is not None or time.monotonic() > end:
                raise EdgeFailed(
                    f"flower-superlink did not start; its log ends with: {tail(self.log(SUPERLINK))}"
                )
            time.sleep(POLL_S)

    def _launch_node(self, name: str) -> None:
        config: dict[str, Setting] = {"name": name, "identity": str(self.folder / "keys" / f"{name}.key")}
        config |= self.nodes[name].config
        self._launch(
            name,
            *("--leave", str(self._grace_s(name))),
            "flower-supernode",
            "--insecure",
            *("--superlink", self.address),
            *("--port", str(free_port())),
            *("--node-config", " ".join(f"{key}={toml_value(value)}" for key, value in config.items())),
        )

    def _launch(self, name: str, *command: str) -> None:
        with self.log(name).open("ab") as log:
            self._supervisors[name] = subprocess.Popen(  # noqa: S603  our own command lines
                [sys.executable, supervision.__file__, *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._variables(name),
                start_new_session=True,
            )

    def _grace_s(self, name: str) -> float:
        """Return how long a node's client may take to hand in what it has when it is asked to leave."""
        return float(self.nodes[name].config.get(GRACE_KEY, GRACE_S))

    @property
    def _programs(self) -> Path:
        return self.folder / "programs"

    def _home(self, name: str) -> Path:
        return self.folder / "homes" / name

    def _variables(self, name: str) -> dict[str, str]:
        installed = str(Path(sys.executable).parent)
        fleet = {VARIABLE: str(len(self.nodes))} if name == SUPERLINK and self.nodes else {}
        share = str(threads_each(len(self.nodes), available_cores()))
        return {
            **os.environ,
            "FLWR_HOME": str(self._home(name)),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": str(EXEC_POLL_S),
            "PATH": os.pathsep.join([str(self._programs), installed, os.environ.get("PATH", "")]),
            "PYTHONPATH": python_path(),
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", share),
            **fleet,
            **self._environment,
        }

    # ---- addresses and files

    @property
    def address(self) -> str:
        """The SuperLink's address."""
        return f"127.0.0.1:{self._port}"

    @property
    def home(self) -> Path:
        """`FLWR_HOME` for Flower's own programs to find this federation."""
        return self._home(SUPERLINK)

    def log(self, name: str) -> Path:
        """Return the log file of the SuperLink ("superlink"), of a node, or of a run ("run-ID")."""
        return self.folder / f"{name}.log"

    def pids(self, name: str) -> tuple[int, ...]:
        """Return the process ids of a node (or of "superlink"): its own first, then what it started."""
        return supervision.descendants(self._supervisors[name].pid) if name in self._supervisors else ()

    # ---- departures and faults

    def leave(self, *names: str) -> None:
        """Ask nodes, by default all, to end, and wait: their clients hand in what they have (SIGTERM)."""
        leaving = [name for name in names or tuple(self.nodes) if name in self._supervisors]
        for name in leaving:
            self._supervisors[name].terminate()
        limit_s = max((self._grace_s(name) for name in leaving), default=0.0) + END_S
        end = time.monotonic() + limit_s
        for name in leaving:
            with suppress(subprocess.TimeoutExpired):
                self._supervisors[name].wait(max(0.0, end - time.monotonic()))
            _let_go(supervisor := self._supervisors.pop(name))
            supervisor.wait()

    def await_clients(self, said: Callable[[], object]) -> None:
        """Wait after a run for clients that have not ended: a script may test or save its model.

        `said` is called if that is not over within a moment. A client ends its script after its own limit.
        """
        soon, end = (time.monotonic() + each for each in (SOON_S, AFTER_S))
        while any(self._serves(name) for name in self.nodes) and time.monotonic() < end:
            if time.monotonic() >= soon:
                said()
                soon = end
            time.sleep(POLL_S)

    def _serves(self, name: str) -> bool:
        return any(supervision.CLIENT_APP in supervision.command_of(pid) for pid in self.pids(name))

    @contextmanager
    def stopping(self) -> Iterator[None]:
        """Record the runs under way as stopped if the block is interrupted."""
        try:
            yield
        except KeyboardInterrupt:
            self.stop_servers()
            raise

    def stop_servers(self) -> None:
        """Ask the servers of runs to end, and wait: they record that their runs are stopped (SIGTERM)."""
        servers = {pid for pid in self.pids(SUPERLINK) if SERVER_APP in supervision.command_of(pid)}
        for pid in servers:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        end = time.monotonic() + STOP_S
        while servers & set(self.pids(SUPERLINK)) and time.monotonic() < end:
            time.sleep(POLL_S)

    def kill(self, name: str) -> tuple[int, ...]:
        """SIGKILL a node (or "superlink") and every process that it started; return their ids."""
        supervisor = self._supervisors.pop(name)
        killed = supervision.kill_below(supervisor.pid)
        _let_go(supervisor)
        supervisor.wait()
        return killed

    def restart(self, name: str) -> None:
        """Restart a node (or "superlink") that was killed, with its old name, key and node config."""
        if name in self._supervisors:
            raise BadSetting(f"node {name!r}: it runs; needed one that was killed")
        if name == SUPERLINK:
            self._launch_superlink()
            self._await_port()
        else:
            self._launch_node(name)

    def restart_ended(self) -> Mapping[str, str]:
        """Restart every process that ended without `kill`; return how each ended."""
        codes = {name: supervisor.poll() for name, supervisor in self._supervisors.items()}
        ended = {name: how_ended(code) for name, code in codes.items() if code is not None}
        for name in ended:
            _let_go(self._supervisors.pop(name))
            self.restart(name)
        return ended

    # ---- runs

    def submit(self, settings: Mapping[str, Setting], app: Wiring | App | None = None) -> int:
        """Submit a run with these settings over the defaults; return Flower's id of the run."""
        self._apps += 1
        folder = self.folder / f"app-{self._apps}"
        if isinstance(app, App):
            return self.superlink.submit(app.write(folder, settings))
        return self.superlink.submit(write_app(folder, settings, app))

    def running(self, run: int) -> bool:
        """Return whether the run's log is still being written; cheap."""
        return self.superlink.running(run)

    def wait(self, run: int, timeout_s: float) -> str:
        """Wait for the end of a run and return its status, such as "finished:completed"."""
        return self.superlink.wait(run, timeout_s)

    def stop(self, run: int) -> None:
        """Ask Flower to stop a run."""
        self.superlink.stop(run)


def threads_each(clients: int, cores: int) -> int:
    """Return how many threads torch may use in each client of a machine with so many cores.

    Threads of several clients that wait for each other on one core take up to ten times as long as one each.

    >>> [threads_each(clients, 16) for clients in (1, 4, 100)]
    [16, 4, 1]
    """
    return max(1, cores // max(1, clients))


def python_path(folder: str = "") -> str:
    """Return PYTHONPATH of the nodes that were started in this folder, by default the current one.

    A task's module may be there.
    """
    return os.pathsep.join(filter(None, [folder or os.getcwd(), os.environ.get("PYTHONPATH", "")]))  # noqa: PTH109


def how_ended(code: int) -> str:
    """Return a supervisor's exit code in words: that of its program, or 128 and the signal.

    >>> how_ended(137), how_ended(1), how_ended(-9)
    ('was killed by SIGKILL', 'ended with exit code 1', 'was killed by SIGKILL')
    """
    number = -code if code < 0 else code - 128
    if number in set(signal.Signals):
        return f"was killed by {signal.Signals(number).name}"
    return f"ended with exit code {code}"


def exposure(address: str) -> str:
    """Return what a local federation leaves open, in one sentence; Flower has no means to close it.

    The accounts that its control API supports are not in the public Flower, and a certificate would
    authenticate the server, not its callers.
    """
    return (
        f"open: while this is up, every user and program of this machine can have code run as you through "
        f"{address}, where Flower asks for no login"
    )


def _let_go(supervisor: subprocess.Popen[bytes]) -> None:
    if supervisor.stdin is not None:
        supervisor.stdin.close()  # the end of its input tells a supervisor to end its processes


def free_port() -> int:
    """Return a free port of loopback for a program that will listen soon.

    A port chosen by the system could meanwhile become the local end of some connection. So the ports are
    below the ephemeral range, and each process begins its search at a different one.
    """
    while True:
        number = os.getpid() * PORTS_EACH + next(_tried) % PORTS_EACH
        port = PORTS[number % len(PORTS)]
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0
