"""The demo: a real federation on this machine in which one client is slow and one dies and comes back.

Every client is slowed down (`pace-s`, the least time of a step) and gets a limited uplink (`uplink-kb-s`), so
that the demo is the same on fast machines; the slow client is four times slower in both. The dying one gets
SIGKILL while codewords are collected, so that others must repair its codeword. With one run for each kind of
work, that happens in the last run. If that run is over before the client is counted again, as on a loaded
machine, the demo resumes it with more rounds: a resumed run waits for all clients.

Replicas and blocks are left to the tuner: the measurements of the first run decide its choice for the second.
All output is read from the store that every run writes. Store, checkpoints, caches and keys are in the demo's
folder (`--folder`), not in the user's state folder; FEDGC_DB names another store.

With masks each client is a site with its own vault; the one that dies loses its update, and the others unmask
the sum of theirs.
"""

import os
import secrets
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from rich.console import Console

from fedgc.cli import view
from fedgc.cli.follow import POLL_S, Follower, Seen, check_complete, print_tables, show_on, why_incomplete
from fedgc.cli.signals import like_ctrl_c
from fedgc.config import RunConfig
from fedgc.deploy.app_folder import Setting
from fedgc.deploy.local_consortium import make_consortium
from fedgc.deploy.local_federation import LocalFederation, Node, exposure
from fedgc.errors import BadSetting, EdgeFailed
from fedgc.messages import SUMMED
from fedgc.secagg import Quantizer
from fedgc.store.database import Store
from fedgc.store.engine import ENVIRONMENT, default_path
from fedgc.store.records import Decided

SETTINGS: Final[Mapping[str, Setting]] = {
    "task": "digits",
    "data.chunks": 16,
    "links.grace-s": 2.0,
    "client.threads": 1,
}
KINDS: Final[Mapping[str, Mapping[str, Setting]]] = {
    "local": {"learning-rate": 0.5, "gate.budget": 0.25},  # a client's own part of a step is a tenth
    "coded": {},
}
ROUNDS: Final = 12  # of each of two runs: together they take less than a minute
ROUNDS_ALONE: Final = 24  # of a single run, in which a client can also miss some
MORE_ROUNDS: Final = 4  # by which a run is prolonged in which the killed client was not counted again
MOST_RESUMES: Final = 3  # a resumed run waits for all clients, so that one is enough after the kill
SLOW, KILLED = "slow-client", "killed-client"
PACE_S: Final = 0.02  # minimum seconds of a local step
UPLINK_KB_S: Final = 200.0  # a fifth of a second for an update of this model
COLLECTING: Final = "collecting"  # the phase in which a codeword can be lost
LATEST: Final = 3  # after so many rounds the kill does not wait for that phase
SLOWER: Final = 4
SEEDS: Final = 2**31
LEAST: Final = 3  # clients: a usual one, a slow one and one that dies
NUMBERS: Final = Quantizer(clip=0.5, bits=20, ring=32, w_max=2000)  # updates of this model are far smaller


@dataclass(slots=True)
class ClientKill:
    """The kill and the restart: their times, and their effects."""

    kill_after: int
    return_after_s: float
    killed_in: int | None = None
    killed_at: float = 0.0
    returned: bool = False
    notes: list[str] = field(default_factory=list)

    def act(self, federation: LocalFederation, last: int, phase: object) -> None:
        """Do what is due after this round, while the next one is in this phase."""
        due = last >= self.kill_after and (phase == COLLECTING or last >= self.kill_after + LATEST)
        if self.killed_in is None and due:
            pids = federation.kill(KILLED)
            self.killed_in, self.killed_at = last + 1, time.monotonic()
            self.notes.append(f"round {last + 1}: SIGKILL to {KILLED}, processes {', '.join(map(str, pids))}")
        elif self.killed_in and time.monotonic() > self.killed_at + self.return_after_s:
            self.bring_back(federation, last)

    def bring_back(self, federation: LocalFederation, last: int) -> None:
        """Start the client again if it was killed."""
        if self.killed_in and not self.returned:
            federation.restart(KILLED)
            self.returned = True
            self.notes.append(f"round {last + 1}: {KILLED} is started again")


@dataclass(frozen=True, slots=True)
class DemoFleet:
    """The number of clients, and whether updates are masked."""

    sites: int = 4
    secrecy: str = "open"

    def __post_init__(self) -> None:
        if self.secrecy not in ("open", "masked"):
            raise BadSetting(f"--secrecy: saw {self.secrecy!r}, needed open or masked")
        if self.sites < LEAST:
            raise BadSetting(
                f"--sites: saw {self.sites}, needed at least {LEAST}, or --clients for sites that are fleets"
            )

    def nodes(self, keys: Path) -> tuple[Sequence[Node], Mapping[str, Setting]]:
        """Return the nodes, whose keys are kept for the next demo, and their settings."""
        usual = [f"client-{number}" for number in range(1, self.sites - 1)]
        configs = {name: _config(keys, name) for name in (*usual, SLOW, KILLED)}
        if self.secrecy == "open":
            nodes = [Node(name, config) for name, config in configs.items()]
            return nodes, {"min-clients": self.sites}
        consortium = make_consortium(keys / f"consortium-{self.sites}", configs, NUMBERS)
        seed = secrets.randbelow(SEEDS)  # a site never masks the same model twice, also in another demo
        return consortium.nodes, {**consortium.settings(), "seed": seed}


def run_demo(rounds: int | None, settings: Mapping[str, Setting], fleet: DemoFleet, folder: Path) -> None:
    """Run the demo and print its tables; all its processes have ended when this returns."""
    console, apart = view.terminal(), {"XDG_STATE_HOME": str(folder.absolute())}
    kinds = [str(settings["work"])] if "work" in settings else list(KINDS)
    if fleet.secrecy == "masked":
        kinds = kinds[:1]
    rounds = rounds or (ROUNDS if len(kinds) > 1 else ROUNDS_ALONE)
    nodes, needed = fleet.nodes(folder.absolute() / "keys")
    name = f"demo-{datetime.now(UTC):%Y%m%d-%H%M%S}-{os.getpid()}"
    configs = [
        RunConfig.read(
            {**SETTINGS, **needed, "work": kind, **KINDS.get(kind, {}), **settings}
            | {"rounds": rounds, "run": f"{name}-{kind}"}
        )
        for kind in kinds
    ]  # fmt: skip
    named = os.environ.get(ENVIRONMENT) or str(default_path(apart))
    with (
        like_ctrl_c(),
        Store.open(named) as store,
        LocalFederation(nodes, environment=apart) as federation,
        federation.stopping(),
    ):
        console.print(f"store {store.name}", soft_wrap=True)
        console.print(exposure(federation.address), soft_wrap=True, highlight=False)
        for config in configs:
            kills = config is configs[-1]
            _play(console, store, federation, config, masked=fleet.secrecy == "masked", kills=kills)


def _play(
    console: Console,
    store: Store,
    federation: LocalFederation,
    config: RunConfig,
    *,
    masked: bool,
    kills: bool,
) -> None:
    """Do one run, in which a client may be killed and come back, and print its results."""
    follower, client_kill = Follower(store, config.run), ClientKill(max(1, config.rounds // 5), 1.0)
    console.print(f"run {config.run}: {config.work} work", soft_wrap=True)
    began = time.monotonic()
    flower_run = _followed(console, federation, config, follower, client_kill if kills else None)
    seen = follower.whole()
    for _ in range(MOST_RESUMES if kills else 0):
        if why_incomplete(seen, "") is not None or _counted_again(seen, client_kill.killed_in) is not None:
            break
        config = replace(config, resume=config.run, rounds=seen.last + MORE_ROUNDS)
        message = f"{KILLED} is not counted again yet: the run goes on to round {config.rounds}"
        console.print(message, soft_wrap=True, highlight=False)
        flower_run = _followed(console, federation, config, follower, client_kill)
        seen = follower.whole()
    print_tables(console, seen, time.monotonic() - began)
    messages = [*failure(seen, client_kill), *(sums(seen) if masked else ())]
    for line in [*messages, *reasons(store.decisions(config.run) if seen.run else (), seen.names)]:
        console.print(line, highlight=False)
    check_complete(seen, federation.log(f"run-{flower_run}"))
    if kills and _counted_again(seen, client_kill.killed_in) is None:
        raise EdgeFailed(f"{KILLED} did not come back within {seen.last} rounds")


def _followed(
    console: Console,
    federation: LocalFederation,
    config: RunConfig,
    follower: Follower,
    client_kill: ClientKill | None,
) -> int:
    """Start a run or resume it, and show its rounds and notes to its end; return Flower's number of it.

    A killed client is started again before the run is resumed.
    """
    before, told = follower.look(), len(client_kill.notes) if client_kill else 0
    if config.resume and client_kill is not None:
        client_kill.bring_back(federation, before.last)
    flower_run = federation.submit(config.table())
    with show_on(console, config.rounds, before) as show:
        going = True
        while going:
            going = federation.running(flower_run)
            seen = follower.look()
            if going and client_kill is not None:
                client_kill.act(federation, seen.last, seen.run.present.get("phase") if seen.run else None)
            show.update(seen, client_kill.notes[told:] if client_kill else ())
            time.sleep(POLL_S)
    return flower_run


def _config(keys: Path, name: str) -> dict[str, Setting]:
    slower = SLOWER if name == SLOW else 1
    key = str(keys / f"{name}.key")
    return {"identity": key, "pace-s": PACE_S * slower, "uplink-kb-s": UPLINK_KB_S / slower}


def reasons(decisions: Sequence[Decided], names: Mapping[str, str]) -> Iterator[str]:
    """Return the reasons of the first and the last plan of a run, with the names of the clients."""
    plans = [each for each in decisions if each.what == "plan"]
    for plan in (*plans[:1], *plans[1:][-1:]):
        reason = plan.reason
        for client, name in names.items():
            reason = reason.replace(client, name)
        yield f"plan of round {plan.round}: {reason}"
    if plans:
        yield f"({len(plans)} plans in all; `fedgc plan` says what the next run would begin with, and why)"


def failure(seen: Seen, client_kill: ClientKill) -> Iterator[str]:
    """Describe the effect of the killed client."""
    if client_kill.killed_in is None:
        return
    back = _counted_again(seen, client_kill.killed_in)
    again = f"it was counted again from round {back} on" if back else "it was not counted again"
    yield f"{KILLED} was killed in round {client_kill.killed_in}; {again}"


def sums(seen: Seen) -> Iterator[str]:
    """Return the number of sites in each sum, the only values that the server saw."""
    among = Counter[int]()
    counted = Counter(number for own in seen.rows.values() for number, row in own if row.counted)
    for each in seen.rounds:
        if each.row.outcome in SUMMED:
            among[counted[each.row.round]] += 1
    counts = ", ".join(f"{times} over {count} sites" for count, times in sorted(among.items(), reverse=True))
    total = f"{sum(among.values())} sums ({counts})" if among else "no sum"
    yield f"under masks: the server saw {total}, and no update of one"


def _counted_again(seen: Seen, killed_in: int | None) -> int | None:
    if killed_in is None:
        return None
    rows = [row for client, own in seen.rows.items() if seen.names.get(client) == KILLED for row in own]
    return min((number for number, row in rows if number > killed_in and row.counted), default=None)
