"""Shared parts of `make docker-check`: hosts, output, waiting.

A case prints results with `report`, and ends the check with `require` if they are wrong.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from compose import service
from fleet import Container, Fleet
from images import Images
from network import PROXY, Network

from fedgc.deploy.key_files import Keyring

PORT = 8443
ADDRESS = f"{PROXY}:{PORT}"
CLIENTS = {"ward-1": 100.0, "ward-2": 50.0, "ward-3": 20.0}  # megabits a second, both ways
READY_S = 300.0
PACE_S = 0.1  # minimum time of a local step, so that a round has a middle


class Failed(Exception):
    """A result was wrong."""


class Stage:
    """Hosts and output."""

    def __init__(
        self, folder: Path, images: Images, network: Network, fleet: Fleet, repository: Path
    ) -> None:
        self.folder = folder
        self.images = images
        self.network = network
        self.fleet = fleet
        self.ring = Keyring(folder / "keys")
        self._repository = repository

    # ---- hosts

    @property
    def server(self) -> Container:
        """The server that clients know."""
        return self.fleet.containers["server"]

    @property
    def proxy(self) -> Container:
        """The proxy before it."""
        return self.fleet.containers["proxy"]

    def serve(self, host: str, name: str, keys: Path, at: str = "", **environment: str) -> Container:
        """Make one of the services of the server's file on a host."""
        given = {"FEDGC_ADVERTISE": ADDRESS, "FEDGC_KEYS_FOLDER": str(keys)}
        return self._add(host, "server", name, given, environment, at)

    def gateway(self, site: str, keys: Path) -> Container:
        """Make the gateway of a site, beside the server on the host with its name."""
        given = {"FEDGC_CONSORTIUM": ADDRESS, "FEDGC_SITE": site, "FEDGC_KEYS_FOLDER": str(keys)}
        plain = service(self._file("site"), "gateway", given).environment["FEDGC_NODE_CONFIG"]
        beside = {"FEDGC_NODE_CONFIG": plain.replace('"server"', '"local"')}  # no names on this network
        return self._add(f"{site}-gateway", "site", "gateway", given, beside, site)

    def client(
        self, host: str, address: str = ADDRESS, keys: Path | None = None, **environment: str
    ) -> Container:
        """Make a client on the host with its name."""
        given = {
            "FEDGC_SERVER": address,
            "FEDGC_NAME": host,
            "FEDGC_NODE_CONFIG": f"pace-s={PACE_S}",
            "FEDGC_KEYS_FOLDER": str((keys or self.ring.folder) / "clients" / host),
            "FEDGC_DATA_FOLDER": str(self.folder / "data"),
        }
        return self._add(host, "client", "client", given, environment)

    def _file(self, kind: str) -> Path:
        return self._repository / "docker" / f"compose.{kind}.yaml"

    def _add(
        self, host: str, kind: str, name: str, given: Mapping[str, str], more: Mapping[str, str], at: str = ""
    ) -> Container:
        given = {**given, "FEDGC_TASKS_FOLDER": str(self.folder / "tasks" / host)}
        return self.fleet.add(host, service(self._file(kind), name, given), more, at)

    def of(self, *hosts: str) -> list[Container]:
        """Return the containers of these hosts."""
        return [self.fleet.containers[host] for host in hosts]

    def fedgc(self, *words: str) -> None:
        """Run a command here, where the keys are made."""
        program = Path(sys.executable).with_name("fedgc")
        environment = {**os.environ, "PYTHONPATH": str(self._repository)}
        done = subprocess.run([program, *words], env=environment, capture_output=True, text=True, check=False)
        self.require(done.returncode == 0, f"fedgc {' '.join(words)}: {done.stderr.strip()}")

    def register(self, name: str, server: Container | None = None) -> None:
        """Register a client, by default with the server that clients know."""
        done = (server or self.server).ask("fedgc", "keys", "client", name, "--register")
        self.require(done.returncode == 0, f"{name} was not registered: {done.stderr.strip()}")
        self.report(f"{name} registered", done.stdout.strip().partition(", ")[2])

    @staticmethod
    def healthy(*containers: Container) -> bool:
        """Return whether all of them are healthy."""
        return all(each.ask(*each.service.health).returncode == 0 for each in containers)

    # ---- output

    def wait(
        self,
        what: str,
        limit_s: float,
        condition: Callable[[], bool],
        *,
        tends: bool = True,
        pause_s: float = 0.5,
    ) -> None:
        """Wait until a condition holds; ended containers are restarted meanwhile."""
        began = time.monotonic()
        while not condition():
            if time.monotonic() - began > limit_s:
                raise Failed(f"waited {limit_s:.0f} s: {what}")
            if tends:
                self.fleet.tend()
            time.sleep(pause_s)
        self.report(what, f"after {time.monotonic() - began:.0f} s")

    @staticmethod
    def require(so: bool, what: str) -> None:
        """End the check unless the condition holds."""
        if not so:
            raise Failed(what)

    @staticmethod
    def report(what: str, how: str) -> None:
        """Print a result."""
        print(f"    {what}: {how}", flush=True)

    def show_logs(self) -> None:
        """Show the ends of all logs."""
        for log in sorted(self.folder.glob("*.log")):
            print(f"\n---- the end of {log.name}", flush=True)
            print("\n".join(log.read_text(errors="replace").splitlines()[-25:]), flush=True)
