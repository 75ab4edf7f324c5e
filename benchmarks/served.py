"""A run on a real federation of this machine that `fedgc serve` keeps alive, and its processes.

`fedgc serve` runs in a process of its own; the SuperLink, the SuperNodes, the ServerApp and the ClientApps
are below it. All its files are in one folder.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

from fedgc.cli.clients import ClientSettings
from fedgc.deploy.app_folder import Setting
from fedgc.errors import EdgeFailed, FedgcError
from fedgc.processes import supervision
from fedgc.store.database import Store
from fedgc.store.views import Round, Run

SERVER: Final = "flwr-serverapp"
SUPERLINK: Final = "flower-superlink"
SUPERNODE: Final = "flower-supernode"
CLIENT: Final = "flwr-clientapp"
WAIT_S: Final = 400.0  # a slow and busy machine takes twenty times as long as a quick one
LOOK_S: Final = 0.2  # between two looks at what is waited for: each reads the store


def command(pid: int) -> str:
    """Return the command line of a process, its words separated by NUL; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def alive(pid: int) -> bool:
    """Whether a process has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def eventually(condition: Callable[[], object], within_s: float = WAIT_S) -> None:
    """Wait until the condition holds."""
    end = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > end:
            raise EdgeFailed(f"waited {within_s:g} s for what did not happen")
        time.sleep(LOOK_S)


@dataclass
class Served:
    """A run that `fedgc serve` keeps alive."""

    folder: Path
    settings: Mapping[str, Setting]  # with the name of the run
    clients: ClientSettings
    environment: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        self.name = str(self.settings["run"])
        self.process = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        """Start `fedgc serve`."""
        settings = [f"{name}:{key}={each}" for name, own in self.clients.items() for key, each in own.items()]
        words = [sys.executable, "-m", "fedgc.cli", "serve"]
        words += [word for setting in settings for word in ("--client", setting)]
        words += [word for name, value in self.settings.items() for word in ("--set", f"{name}={value}")]
        state = {"FEDGC_DB": str(self.folder / "fedgc.db"), "XDG_STATE_HOME": str(self.folder / "state")}
        with (self.folder / "serve.out").open("ab") as out:
            return subprocess.Popen(  # noqa: S603  our own command line
                words,
                cwd=self.folder,
                env={**os.environ, **state, **self.environment},
                stdout=out,
                stderr=out,
            )

    def said(self) -> str:
        """Return what `fedgc serve` has printed."""
        return (self.folder / "serve.out").read_text(errors="replace")

    def end(self) -> None:
        """Ask `fedgc serve` to end, and wait until it has."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(WAIT_S)

    # ---- the run

    @contextmanager
    def store(self) -> Iterator[Store]:
        """Open the store for reading."""
        with Store.open(str(self.folder / "fedgc.db"), reads_only=True) as store:
            yield store

    def run(self) -> Run | None:
        """Return the run as the store knows it."""
        with suppress(FedgcError), self.store() as store:
            return store.run(self.name)
        return None

    def last(self) -> int:
        """Return the number of the last completed round."""
        run = self.run()
        return (run.last_round or 0) if run else 0

    def phase(self) -> str:
        """Return the phase of the present round."""
        run = self.run()
        return str(run.present.get("phase")) if run else ""

    def history(self) -> tuple[Round, ...]:
        """Return all rounds."""
        with self.store() as store:
            return store.rounds(self.name)

    def goes_on(self, rounds: int = 2) -> None:
        """Wait until there are so many more rounds."""
        last = self.last()
        eventually(lambda: self.last() >= last + rounds or self.process.poll() is not None)
        if self.last() < last + rounds:
            raise EdgeFailed(f"fedgc serve ended; it said: {self.said()[-400:]}")

    # ---- its processes

    def programs(self, name: str, below: int | None = None) -> list[int]:
        """Return the living processes that run a program of Flower's, without their supervisors."""
        found = supervision.descendants(below or self.process.pid)
        return [
            pid for pid in found if f"/{name}\0" in command(pid) and supervision.__file__ not in command(pid)
        ]

    def supervisor(self, name: str) -> int | None:
        """Return the supervisor of a client's SuperNode, or of the SuperLink (SUPERLINK)."""
        mark = SUPERLINK if name == SUPERLINK else f'name="{name}"'
        every = supervision.descendants(self.process.pid)
        return next(
            (pid for pid in every if supervision.__file__ in (words := command(pid)) and mark in words), None
        )
