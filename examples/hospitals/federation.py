"""The same shape on real processes: a SuperLink and eight SuperNodes on this machine, in a few minutes.

    python -m examples.hospitals.federation --folder build/hospitals

Site 0 holds half of the data, and its steps take 20 times as long; uplinks carry 20 Mbit/s. One site is
killed and started again at once, another one is away for a third of the run. All that is printed comes from
the store in the folder, which `fedgc watch` shows as a page.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Annotated, Final

import typer

from examples.hospitals.scene import BIG, SHARES, SITES, SLOWER, UPLINK_MBIT_S
from fedgc.cli import run_program, view
from fedgc.cli.follow import POLL_S, Follower, Seen, check_complete, print_tables, show_on
from fedgc.config import RunConfig
from fedgc.deploy.local_federation import LocalFederation, Node
from fedgc.errors import EdgeFailed
from fedgc.store.database import Store

PACE_S: Final = 0.05  # of a local step at the quick sites
ROUNDS: Final = 60
RATE: Final = 6.4
AWAY, RESTARTED = "site-4", "site-6"
NAMES: Final = tuple(f"site-{site}" for site in range(SITES))

app = typer.Typer(help="Eight hospitals as processes on this machine.")


@dataclass(slots=True)
class Faults:
    """Kills two sites; one is started again in the next round, the other after a quarter of the run."""

    rounds: int
    notes: list[str] = field(default_factory=list)
    _down: dict[str, int] = field(default_factory=dict)  # the round after which it is started again

    def act(self, federation: LocalFederation, last: int) -> None:
        """Do what is due after this round."""
        plan = ((RESTARTED, self.rounds // 12, 1), (AWAY, self.rounds // 8, self.rounds // 4))
        for name, after, length in plan:
            if name not in self._down and last >= after:
                federation.kill(name)
                self._down[name] = last + length
                self.notes.append(f"round {last + 1}: SIGKILL to {name}")
        for name, until in self._down.items():
            if 0 < until <= last:
                federation.restart(name)
                self._down[name] = 0
                self.notes.append(f"round {last + 1}: {name} is started again")


def nodes(keys: Path) -> Sequence[Node]:
    """Return the eight sites; their keys are in a folder, so that a site is known when it comes back."""
    uplink_kb_s = UPLINK_MBIT_S * 1e3 / 8
    made = []
    for site, name in enumerate(NAMES):
        pace_s = PACE_S * (SLOWER if site == BIG else 1.0)
        key = str(keys / f"{name}.key")
        made.append(Node(name, {"site": site, "pace-s": pace_s, "uplink-kb-s": uplink_kb_s, "identity": key}))
    return made


def settings(rounds: int) -> RunConfig:
    """Return the settings of the run, those of the comparison's arm."""
    return RunConfig(
        task="examples.hospitals.hospital:task", run="hospitals", rounds=rounds,
        learning_rate=RATE, gate="every", codec="int8", download_codec="int8", min_clients=SITES,
        grace_s=2.0, threads=1, start_timeout_s=600.0,
    )  # fmt: skip


def play(folder: Path, rounds: int = ROUNDS) -> Seen:
    """Run the federation to the end and print what the store knows; return that."""
    console, config, faults = view.terminal(), settings(rounds), Faults(rounds)
    apart = {"XDG_STATE_HOME": str(folder.absolute()), "FEDGC_DB": str(folder.absolute() / "fedgc.db")}
    folder.mkdir(parents=True, exist_ok=True)
    with (
        Store.open(apart["FEDGC_DB"]) as store,
        LocalFederation(nodes(folder.absolute() / "keys"), environment=apart) as federation,
    ):
        follower, began = Follower(store, config.run), time.monotonic()
        run = federation.submit(config.table())
        with show_on(console, rounds) as show:
            while federation.running(run):
                seen = follower.look()
                faults.act(federation, seen.last)
                show.update(seen, faults.notes)
                time.sleep(POLL_S)
            seen = follower.whole()
        print_tables(console, seen, time.monotonic() - began)
        for line in (*faults.notes, *coverage(seen)):
            console.print(line, highlight=False, markup=False)
        check_complete(seen, federation.log(f"run-{run}"))
    console.print(
        f"FEDGC_DB={apart['FEDGC_DB']} fedgc watch {config.run} shows the run as a page", markup=False
    )
    return seen


def coverage(seen: Seen) -> Sequence[str]:
    """Return how much of the data and of the sites was in the mean models of the rounds."""
    names = {name: client for client, name in seen.names.items()}
    counted = {
        name: {at for at, row in seen.rows.get(names.get(name, ""), ()) if row.counted} for name in NAMES
    }
    data = fmean(each.row.coverage or 0.0 for each in seen.rounds)
    sites = fmean(len(rounds) for rounds in counted.values()) / len(seen.rounds)
    slow = len(counted[NAMES[BIG]]) / len(seen.rounds)
    return (
        f"in the mean model of a round: {data:.0%} of the data, {sites:.0%} of the sites",
        f"{NAMES[BIG]}, with {SHARES[BIG]:.0%} of the data, counted in {slow:.0%} of the rounds",
    )


@app.command()
def federation(
    folder: Annotated[Path, typer.Option(help="A new folder for the store, keys and logs.")] = Path(
        "build/hospitals"
    ),
    rounds: Annotated[int, typer.Option(help="Rounds to run.", min=8)] = ROUNDS,
) -> None:
    """Train with eight local clients of which one is slow, one restarts and one is away for a while."""
    if (folder / "fedgc.db").exists():
        raise EdgeFailed(f"--folder {folder}: saw the store of an earlier run, needed a new folder")
    play(folder, rounds)


if __name__ == "__main__":
    run_program(lambda: app)
