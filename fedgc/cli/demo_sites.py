"""The demo of sites: fleets with a server of their own, and one single client, train digits under masks.

Each site is a SuperLink with its SuperNodes; its gateway is a SuperNode of the consortium's SuperLink, as is
the single client. The data is divided evenly among all clients. The same clients then train in one pooled
fleet, to compare the accuracy, and what the consortium's server receives.
"""

import itertools
import math
import os
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from rich.console import Console

from fedgc.cli import view
from fedgc.cli.demo import NUMBERS, SEEDS
from fedgc.cli.follow import POLL_S, Follower, Seen, check_complete, print_tables, show_on
from fedgc.cli.signals import like_ctrl_c
from fedgc.config import RunConfig
from fedgc.deploy.app_folder import Setting
from fedgc.deploy.local_consortium import make_consortium
from fedgc.deploy.local_federation import NAME, LocalFederation, Node, exposure
from fedgc.errors import BadSetting
from fedgc.store.database import Store
from fedgc.store.engine import ENVIRONMENT, default_path

SETTINGS: Final[Mapping[str, Setting]] = {
    "task": "fedgc.training.tasks.digits:digits_part",
    "learning-rate": 0.2,
    "optimizer.shared-momentum": "off",
    "gate.name": "every",
    "client.threads": 1,
}
ROUNDS: Final = 12
LEAST_SITES, LEAST_CLIENTS = 2, 1  # a masked sum is of three or more
SINGLE: Final = "single"


@dataclass(frozen=True, slots=True)
class Sites:
    """How many sites, and how many clients each has."""

    sites: int
    clients: int

    def __post_init__(self) -> None:
        for option, seen, least in (
            ("--sites", self.sites, LEAST_SITES),
            ("--clients", self.clients, LEAST_CLIENTS),
        ):
            if seen < least:
                raise BadSetting(f"{option}: saw {seen}, needed at least {least}")

    @property
    def parts(self) -> int:
        """The number of clients in all sites, and the single one."""
        return self.sites * self.clients + 1

    @property
    def fleets(self) -> Sequence[Sequence[Node]]:
        """The clients of each site; their parts of the data are theirs alone."""
        numbers = range(1, self.parts)
        nodes = [Node(f"client-{number}", self.part(number)) for number in numbers]
        return [nodes[first : first + self.clients] for first in range(0, len(nodes), self.clients)]

    def members(self, fleets: Sequence[LocalFederation]) -> dict[str, dict[str, Setting]]:
        """Return the node configs of the gateways of these fleets and of the single client, by name."""
        settings = f"min-clients={self.clients}"
        gateways: dict[str, dict[str, Setting]] = {
            f"site-{number}": {"site-fleet": NAME, "site-home": str(fleet.home), "site-settings": settings}
            for number, fleet in enumerate(fleets, start=1)
        }
        return {**gateways, SINGLE: self.part(self.parts)}

    def part(self, number: int) -> dict[str, Setting]:
        """Return the node config of the client with this part of the data."""
        return {"part": f"{number}/{self.parts}"}


def run_sites(sites: Sites, rounds: int | None, settings: Mapping[str, Setting], folder: Path) -> None:
    """Run the demo and print its tables; all its processes have ended when this returns."""
    apart = {"XDG_STATE_HOME": str(folder.absolute())}
    name = f"demo-{datetime.now(UTC):%Y%m%d-%H%M%S}-{os.getpid()}"
    chosen = {**SETTINGS, **settings, "rounds": rounds or ROUNDS, "seed": secrets.randbelow(SEEDS)}
    with like_ctrl_c(), Store.open(os.environ.get(ENVIRONMENT) or str(default_path(apart))) as store:
        show = Showing(view.terminal(), store)
        show.print(f"store {store.name}")
        with ExitStack() as stack:
            fleets = [stack.enter_context(LocalFederation(each, environment=apart)) for each in sites.fleets]
            consortium = make_consortium(
                folder.absolute() / "keys" / f"sites-{sites.sites}", sites.members(fleets), NUMBERS
            )
            federation = stack.enter_context(LocalFederation(consortium.nodes, environment=apart))
            stack.enter_context(federation.stopping())
            show.print(exposure(federation.address))
            masked = RunConfig.read({**chosen, **consortium.settings(), "run": f"{name}-sites"})
            apart_seen = show.run(federation, masked)
        everyone = [*itertools.chain(*sites.fleets), Node(SINGLE, sites.part(sites.parts))]
        with LocalFederation(everyone, environment=apart) as federation, federation.stopping():
            pooled = RunConfig.read({**chosen, "min-clients": sites.parts, "run": f"{name}-pooled"})
            pooled_seen = show.run(federation, pooled)
        for line in compared(apart_seen, pooled_seen):
            show.print(line)


@dataclass(frozen=True, slots=True)
class Showing:
    """Runs, and where they are recorded and shown."""

    console: Console
    store: Store

    def print(self, line: str) -> None:
        """Print one line."""
        self.console.print(line, soft_wrap=True, highlight=False)

    def run(self, federation: LocalFederation, config: RunConfig) -> Seen:
        """Do one run and print its tables; return what the store knows of it."""
        follower, began = Follower(self.store, config.run), time.monotonic()
        self.print(f"run {config.run}")
        run = federation.submit(config.table())
        with show_on(self.console, config.rounds) as show:
            while federation.running(run):
                show.update(follower.look(), ())
                time.sleep(POLL_S)
            seen = follower.whole()
            show.update(seen, ())
        print_tables(self.console, seen, time.monotonic() - began)
        check_complete(seen, federation.log(f"run-{run}"))
        return seen


def compared(sites: Seen, pooled: Seen) -> Iterator[str]:
    """Compare the last accuracies, and the bytes that the server received in the last round."""
    for what, seen in (("sites, under masks", sites), ("one pooled fleet", pooled)):
        row = seen.rounds[-1].row
        up = [each.up_bytes for own in seen.rows.values() for number, each in own if number == row.round]
        accuracy = row.metrics.get("accuracy", math.nan)
        yield f"{what}: accuracy {accuracy:.3f}; {sum(up) / 1e6:.2f} MB from {len(up)} clients in a round"
