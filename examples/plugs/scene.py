"""The processes of the run: server, SuperLink, three clients, and the gateway of a site with two clients.

`fedgc serve` keeps the run alive: it starts again what has ended, and resumes the run if its server has. The
site has a SuperLink of its own. Sessions pass a relay, which can cut off a client.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.served import Served
from examples.federation import ROOT
from examples.plugs.relay import LOOPBACK, Relay
from examples.sites import SITES, STEPS
from fedgc.deploy.app_folder import Setting
from fedgc.deploy.local_federation import NAME, LocalFederation, Node, free_port
from fedgc.processes import supervision

PACE_S = 0.03  # least time of a step: the machine has room for processes that start
GATEWAY = "gateway"
NAMES = (*(f"site-{number}" for number in range(SITES - 1)), GATEWAY)
OF_SITE = 2  # clients behind the gateway
SETTINGS: Mapping[str, Setting] = {
    "task": "examples.sites:task",
    "work": "local",
    "local-steps": 20,
    "learning-rate": 0.2,
    "optimizer.shared-momentum": "off",
    "gate.name": "every",
    "min-clients": SITES,
    "timing.start-timeout-s": 600.0,
    "client.threads": 1,
    "links.kind": "session",
    "links.grace-s": 4.0,
}


@dataclass(frozen=True)
class Scene:
    """A run that is served, and the relay of its sessions."""

    served: Served
    relay: Relay


@contextmanager
def started(folder: Path, run: str, rounds: int) -> Iterator[Scene]:
    """Start all processes, with all files in a new folder; end them with the block."""
    for each in ("tmp", "steps"):
        (folder / each).mkdir(parents=True)
    environment = {
        "TMPDIR": str(folder / "tmp"),
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", "")))),
        "OMP_NUM_THREADS": "1",
        STEPS: str(folder / "steps"),
    }
    last = SITES - 1
    members = [
        Node(f"client-{part}", {"site": last, "part": f"{part}/{OF_SITE}", "pace-s": PACE_S})
        for part in range(1, OF_SITE + 1)
    ]
    of_site = {"FEDGC_DB": str(folder / "fedgc.db"), "XDG_STATE_HOME": str(folder / "state")}
    with LocalFederation(members, environment={**environment, **of_site}) as site:
        clients: dict[str, dict[str, Setting]] = {
            name: {"site": number, "pace-s": PACE_S} for number, name in enumerate(NAMES[:last])
        }
        clients[NAMES[last]] = {
            "site-fleet": NAME,
            "site-home": str(site.home),
            "site-settings": f"min-clients={OF_SITE}",
        }
        server, relayed = free_port(), free_port()
        ports = {"links.bind": f"{LOOPBACK}:{server}", "links.advertise": f"{LOOPBACK}:{relayed}"}
        served = Served(folder, {**SETTINGS, **ports, "run": run, "rounds": rounds}, clients, environment)
        try:
            with Relay(relayed, server, {name: _pids(served, name) for name in clients}) as relay:
                yield Scene(served, relay)
        finally:
            served.end()


def _pids(served: Served, name: str) -> Callable[[], Sequence[int]]:
    def pids() -> Sequence[int]:
        supervisor = served.supervisor(name)
        return supervision.descendants(supervisor) if supervisor else ()

    return pids
