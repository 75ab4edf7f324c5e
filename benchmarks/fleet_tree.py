"""A tree in the fleet benchmark: a server with three clients, the gateways of sites with 300 clients each.

A gateway is the product's client: a session, and the engine of `site-fleet`. Its command is this module in
place of `fedgc gateway`: it makes the site's settings with the code of that command, and then is the site's
server itself, where `fedgc gateway` has the site's SuperLink start one. So the part below Flower is whole:
from each light client through the server of its site, the gateway's local socket and the gateway's session
to the server above. Beside it one server has all 900 clients. All share the cores of one machine.

    tree_round_s, flat_round_s    time of a round, median
    tree_over_flat_round_s        the one over the other
    tree_top_ms_per_round         processor time of the server above in a round, median; over its gateways:
    tree_top_ms_per_gateway
    tree_site_ms_per_round        the same of a site's server and its gateway, mean of the sites
    tree_gateway_ms_per_round     of this, what the gateway took, mean of the rounds
    tree_ms_per_client            tree_site_ms_per_round over the clients of a site
    flat_ms_per_client            processor time of the one server for a client in a round, median
    tree_mb_per_site              memory of a site's server and its gateway, mean of the sites
    tree_rounds_lost              rounds that made no model, or did not count all clients, on any server
    tree_model_error              largest relative difference of the model of the server above from a plain
                                  mean over all clients
"""

import os
import random
import secrets
import shlex
import socket
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from multiprocessing import get_context
from multiprocessing.connection import Client, Connection
from pathlib import Path
from statistics import fmean, median
from typing import Final

from benchmarks.fleet_clients import mean_update
from benchmarks.fleet_processes import (
    FIRST,
    GRACE_S,
    SPARE,
    WAIT_S,
    Fleet,
    Rows,
    config_of,
    environment,
    fleet_of,
    of,
    served,
)
from benchmarks.fleet_server import Place, serve
from benchmarks.memory_watch import processor_s, resident_bytes
from benchmarks.report import Figure, Value, number
from fedgc.cli.gateway import SETTINGS, site_settings, write_place
from fedgc.config import RunConfig
from fedgc.errors import EdgeFailed
from fedgc.flower.client_loop import ClientLoop
from fedgc.links.frames import Invitation
from fedgc.links.identity import Identity
from fedgc.links.session.client import Session, Terms
from fedgc.messages import SUMMED
from fedgc.sim.owned import end_with_the_parent
from fedgc.training import CacheFiles, new_script_engine
from fedgc.training.loop.environment import ScriptEnvironment
from fedgc.training.script.connection import ScriptFacts

SITES: Final = 3
LOCKSTEP: Final = "on"  # a site that waits for the others begins no further round, like the light clients
ROOT: Final = Path(__file__).parents[1]
TELLS: Final = "tells"  # in the gateway's node config: where the site's server tells the benchmark


def measured(site_clients: int, rounds: int) -> Rows:
    """Return the rows of a tree, and of one server with as many clients."""
    rows: Rows = []
    with tempfile.TemporaryDirectory(prefix="fedgc-bench-") as folder:
        top = replace(config_of(SITES), lockstep=LOCKSTEP)
        with served("tree", top, SITES, Path(folder)) as fleet:
            tree = _Tree(fleet, site_clients, Path(folder))
            try:
                tree.run(FIRST + rounds)
            except EdgeFailed as error:
                rows.append({"what": "failed", "clients": SITES * site_clients, "reason": str(error)})
            rows += tree.rows
    with fleet_of("flat", SITES * site_clients) as flat:
        try:
            flat.rounds(FIRST + rounds)
        except EdgeFailed as error:
            rows.append({"what": "failed", "clients": flat.clients, "reason": str(error)})
        rows += flat.rows
    return rows


# ---- the tree


class _Tree:
    """A server, its gateways, and the fleets of their sites."""

    def __init__(self, top: Fleet, site_clients: int, folder: Path) -> None:
        self._top, self._clients, self._folder = top, site_clients, folder
        self._sites: list[Fleet] = []
        self._gateways: list[int] = []  # their process ids
        self._rows: Rows = []

    @property
    def rows(self) -> Rows:
        """What all servers have told, and what was seen of the gateways."""
        return [row for each in (self._top, *self._sites) for row in each.rows] + self._rows

    def run(self, rounds: int) -> None:
        """Start the sites one after the other; end all after some rounds of the server above."""
        for n in range(SITES):
            self._start(n)
        for _ in range(rounds):
            self._top.rounds(1)
            for name, pid in zip((each.name for each in self._sites), self._gateways, strict=True):
                seen = {"at_s": time.monotonic(), "cpu_s": processor_s(pid), "memory": resident_bytes(pid)}
                self._rows.append({"fleet": name, "clients": self._clients, "what": "gateway", **seen})
        self._top.end()
        for site in self._sites:
            site.hear_all()  # its gateway ends it

    def _start(self, n: int) -> None:
        """Start a gateway, which starts its site's server, and the clients of the site."""
        folder = self._folder / f"site-{n + 1}"
        folder.mkdir()
        with socket.socket(socket.AF_UNIX) as told:
            told.bind(str(folder / TELLS))
            told.listen()
            told.settimeout(WAIT_S)
            gateway = _Gateway(self._top.config, folder, self._clients)
            process = get_context("spawn").Process(target=lead, args=(gateway, self._top.invitations[n]))
            process.start()
            self._top.processes.append(process)
            self._gateways.append(int(process.pid or 0))
            pipe = _accepted(told)
        site = Fleet(folder.name, config_of(self._clients), 0, pipe, processes=self._top.processes)
        self._sites.append(site)
        site.invitations = site.hear()
        site.next()
        site.bring(range(n * self._clients, (n + 1) * self._clients))


def _accepted(told: socket.socket) -> Connection:
    try:
        accepted, _ = told.accept()
    except TimeoutError as error:
        raise EdgeFailed(f"saw no server of a site within {WAIT_S:g} s") from error
    accepted.setblocking(True)
    return Connection(accepted.detach())


@dataclass(frozen=True, slots=True)
class _Gateway:
    """What the process of a gateway needs."""

    config: RunConfig
    folder: Path
    clients: int

    @property
    def own(self) -> Mapping[str, str]:
        """Its node config."""
        about = f"min-clients={self.clients} links.grace-s={GRACE_S:g} timing.start-timeout-s={WAIT_S:g}"
        return {"name": self.folder.name, SETTINGS: about, TELLS: str(self.folder / TELLS)}


def lead(gateway: _Gateway, invitation: Invitation) -> None:
    """Be a gateway until the run is over, as `fedgc.flower.client` is one."""
    end_with_the_parent()
    os.environ.update({**environment(gateway.folder), "PYTHONPATH": str(ROOT)})
    config, who = gateway.config, Identity(secrets.token_bytes(32))
    files, command = CacheFiles(gateway.folder / "cache"), shlex.join([sys.executable, "-m", __name__])
    facts = ScriptFacts(config, who.client, gateway.own, files.folder, pinned=command, is_site=True)
    loop = ClientLoop(lambda rest: new_script_engine(facts, rest, gateway.folder / "spill", files))
    loop.prepare()
    terms = Terms(
        config.grace_s, config.piece_kb * 1024, 0, time.monotonic, random.random, gateway.own["name"]
    )
    opened = Session(invitation, who, terms)
    with opened as session:
        loop.serve(session, who.client)
    loop.engine.close(complete=opened.complete)


def serve_site() -> None:
    """Be the server of a site for the gateway that has started this process."""
    gateway = ScriptEnvironment.read(os.environ)
    if gateway is None:
        raise EdgeFailed("saw no gateway, needed python -m benchmarks fleet")
    config = RunConfig.read(site_settings(gateway, write_place(gateway), 0))
    with Client(str(gateway.client[TELLS]), "AF_UNIX") as pipe:
        serve(Place(config, config.min_clients * (1 + SPARE)), pipe)


# ---- figures


def figures(rows: Sequence[Mapping[str, Value]]) -> dict[str, Figure]:
    """Return the named figures, None where nothing was measured."""
    sites = sorted({str(row["fleet"]) for row in rows if row["what"] == "gateway"})
    clients = {str(row["fleet"]): int(number(row["clients"])) for row in rows if "fleet" in row}
    tree_s, flat_s = (_typical(rows, each, "at_s") for each in ("tree", "flat"))
    top_s, one_s = (_typical(rows, each, "cpu_s") for each in ("tree", "flat"))
    gateway_s = _mean([_average(rows, site) for site in sites])
    server_s = _mean([_typical(rows, site, "cpu_s") for site in sites])
    site_s = None if server_s is None or gateway_s is None else server_s + gateway_s
    return {
        "tree_round_s": tree_s,
        "flat_round_s": flat_s,
        "tree_over_flat_round_s": tree_s / flat_s if tree_s and flat_s else None,
        "tree_top_ms_per_round": _ms(top_s),
        "tree_top_ms_per_gateway": _ms(top_s, SITES),
        "tree_site_ms_per_round": _ms(site_s),
        "tree_gateway_ms_per_round": _ms(gateway_s),
        "tree_ms_per_client": _ms(site_s, clients[sites[0]] if sites else 1),
        "flat_ms_per_client": _ms(one_s, clients.get("flat", 1)),
        "tree_mb_per_site": _mb_per_site(rows, sites),
        "tree_rounds_lost": _lost(rows, ["tree", *sites]) if sites else None,
        "tree_model_error": _model_error(rows, sum(clients[site] for site in sites)),
    }


def _typical(rows: Sequence[Mapping[str, Value]], fleet: str, column: str) -> float | None:
    """Return the median of what a round adds to this column."""
    steady = of(rows, fleet, "round")[FIRST - 1 :]
    added = [number(after[column]) - number(before[column]) for before, after in pairwise(steady)]
    return median(added) if added else None


def _average(rows: Sequence[Mapping[str, Value]], site: str) -> float | None:
    """Return the mean processor time of a gateway in a round; the system counts it in steps of 10 ms."""
    steady = of(rows, site, "gateway")[FIRST - 1 :]
    rounds = len(steady) - 1
    return (number(steady[-1]["cpu_s"]) - number(steady[0]["cpu_s"])) / rounds if rounds > 0 else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [each for each in values if each is not None]
    return fmean(known) if known else None


def _ms(seconds: float | None, over: int = 1) -> float | None:
    return None if seconds is None else 1000.0 * seconds / over


def _mb_per_site(rows: Sequence[Mapping[str, Value]], sites: Sequence[str]) -> float | None:
    last = [each[-1] for site in sites for what in ("gateway", "round") if (each := of(rows, site, what))]
    return sum(number(row["memory"]) for row in last) / len(sites) / 1e6 if last else None


def _lost(rows: Sequence[Mapping[str, Value]], fleets: Sequence[str]) -> int:
    rounds = [row for fleet in fleets for row in of(rows, fleet, "round")]
    return sum(row["outcome"] not in SUMMED or row["counted"] != row["clients"] for row in rounds)


def _model_error(rows: Sequence[Mapping[str, Value]], clients: int) -> float | None:
    """Compare the model after all rounds with the same number of plain mean updates over all clients."""
    over, rounds = of(rows, "tree", "over"), of(rows, "tree", "round")
    if not over or not rounds:
        return None
    expected = -sum(row["outcome"] in SUMMED for row in rounds) * mean_update(
        range(clients)
    )  # updates descend
    return max(abs(number(over[0][each]) / expected - 1) for each in ("least", "most"))


if __name__ == "__main__":
    serve_site()
