"""`python -m examples.hospitals.deployed`: fedgc and FedAvg of other frameworks as processes, by the clock.

Each trains the same model on the same samples of the eight sites, as processes on this machine, one framework
after the other: fedgc as in `federation`, without faults; Flower's own FedAvg on a SuperLink and eight
SuperNodes; NVFlare's FedAvg in its simulator, one process for each site, in a Python of its own that has
nvflare (`--nvflare`). The arms of FedAvg wait for all, with the length of rounds and the rate that were tuned
for that in the comparison. Each server evaluates its models on the same held-out images; an arm ends at the
target.

Figures:

    deployed_time_over_flower   seconds of fedgc to the target over those of Flower's FedAvg
    deployed_time_over_nvflare  the same over NVFlare's FedAvg
    start_s                     seconds from the submission of the run to its first round, by arm

Seconds to the target count from the first round, and `total_s` of a row from the submission. Clients of fedgc
start before its first round; sites of NVFlare load torch within theirs, and Flower starts a process for
each message. An arm that never reaches the target counts with all of its seconds, fedgc with infinity.
Processes share the cores of one machine, with whatever else runs there, so that figures are rough.
"""

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import numpy as np
import typer

from benchmarks.kills_arms import lacks
from benchmarks.printing import show
from benchmarks.report import Report, Value, machine, number
from examples.hospitals.federation import NAMES, PACE_S, nodes, settings
from examples.hospitals.rivals import MARKS
from examples.hospitals.scene import BIG, SITES, SLOWER, Sites, sites_of
from fedgc.cli import run_program
from fedgc.cli.follow import Follower
from fedgc.deploy.local_federation import LocalFederation, Node, Wiring
from fedgc.deploy.superlink import tail
from fedgc.errors import EdgeFailed, FedgcError, words_of
from fedgc.processes import supervision
from fedgc.store.database import Store

ROOT: Final = Path(__file__).parents[2]
TARGET: Final = 0.954  # accuracy: the comparison's target
ROUNDS: Final = 1000
LIMIT_S: Final = 600.0  # of an arm, from its submission
POLL_S: Final = 0.1
SEED: Final = 0
OURS, FLOWER, NVFLARE = "fedgc", "Flower FedAvg", "NVFlare FedAvg"
NEEDS: Final = "not run: needs nvflare"
APP: Final = "from examples.hospitals.rivals.flower import {0}\n\napp = {0}\n"

app = typer.Typer(help="Eight hospitals as processes: fedgc, Flower's FedAvg and NVFlare's FedAvg.")


@dataclass(frozen=True, slots=True)
class Ends:
    """When an arm ends, whichever comes first."""

    target: float = TARGET
    rounds: int = ROUNDS
    limit_s: float = LIMIT_S


@dataclass(frozen=True, slots=True)
class Mark:
    """An evaluated model: when that was, in seconds since 1970, and its accuracy."""

    round: int
    at: float
    accuracy: float
    slow_site: float  # accuracy on the slow site's data


@dataclass(frozen=True, slots=True)
class ArmProgress:
    """What is known of an arm: when it was submitted, when its first round began, and its models."""

    arm: str
    submitted: float = 0.0
    began: float | None = None
    marks: Sequence[Mark] = ()
    failed: str = ""

    @property
    def start_s(self) -> float | None:
        """Return the seconds before the first round."""
        return None if self.began is None else self.began - self.submitted

    def reach(self, target: float) -> Mark | None:
        """Return the first mark with this accuracy."""
        return next((mark for mark in self.marks if mark.accuracy >= target), None)

    def seconds(self, target: float) -> float | None:
        """Return the seconds from the first round to the target, or to the end if it was never reached."""
        mark = self.reach(target) or (self.marks[-1] if self.marks else None)
        return None if mark is None or self.began is None else mark.at - self.began

    def row(self, target: float) -> dict[str, Value]:
        """Return a row of the report."""
        reached, last = self.reach(target), self.marks[-1] if self.marks else None
        seconds = self.seconds(target)
        return {
            "arm": self.arm,
            "reached": reached is not None,
            "seconds": seconds,
            "rounds": reached.round if reached else last.round if last else None,
            "start_s": self.start_s,
            "total_s": None if seconds is None else number(self.start_s) + seconds,
            "points": 100 * last.accuracy if last else None,
            "slow_site_points": 100 * last.slow_site if last else None,
            "failed": self.failed,
        }


def follow(look: Callable[[], ArmProgress], runs: Callable[[], bool], ends: Ends, log: Path) -> ArmProgress:
    """Look at an arm until it ends.

    Raises:
        EdgeFailed: Its processes ended by themselves before that.
    """
    while True:
        running, progress = runs(), look()
        done = progress.marks[-1].round if progress.marks else 0
        if done >= ends.rounds or progress.reach(ends.target):
            return progress
        if time.time() - progress.submitted > ends.limit_s:
            return progress
        if not running:
            raise EdgeFailed(f"{progress.arm} ended after round {done}; its log ends with: {tail(log)}")
        time.sleep(POLL_S)


# ---- fedgc


@dataclass(slots=True)
class Stored:
    """Reads the marks of fedgc's run from its store."""

    follower: Follower
    sites: Sites
    submitted: float
    _marks: dict[int, Mark] = field(default_factory=dict)

    def look(self) -> ArmProgress:
        """Return what is there now; a model counts from when its evaluation was first seen."""
        rounds, now = self.follower.look().rounds, time.time()
        for row in (each.row for each in rounds if each.row.metrics):
            slow = float(self.sites.points(row.metrics)[BIG]) / 100
            self._marks.setdefault(row.round, Mark(row.round, now, row.metrics["accuracy"], slow))
        began = rounds[0].row.started if rounds else None
        return ArmProgress(OURS, self.submitted, began, [self._marks[each] for each in sorted(self._marks)])


def train_fedgc(folder: Path, sites: Sites, ends: Ends) -> ArmProgress:
    """Train with fedgc."""
    config = replace(settings(ends.rounds), task="examples.hospitals.hospital:by_class", seed=SEED)
    around = _around(folder) | {"FEDGC_DB": str(folder / "fedgc.db")}
    with (
        Store.open(around["FEDGC_DB"]) as store,
        LocalFederation(nodes(folder / "keys"), environment=around) as federation,
    ):
        stored = Stored(Follower(store, config.run), sites, time.time())
        run = federation.submit(config.table())
        return follow(stored.look, lambda: federation.running(run), ends, federation.log(f"run-{run}"))


# ---- FedAvg of others


def write_work(folder: Path, sites: Sites) -> None:
    """Write what sites and servers of other frameworks read: the model, samples, paces, held-out images."""
    import torch

    table, shares_c = sites.images, sites.shares_wc[BIG]
    torch.manual_seed(SEED)
    torch.save(sites.task().model(), folder / "model.pt")
    for site, rows in enumerate(sites.rows):
        pace_s = PACE_S * (SLOWER if site == BIG else 1.0)
        path = folder / f"site-{site}.npz"
        np.savez(path, inputs=table.inputs[rows], labels=table.labels[rows], pace_s=pace_s)
    labels = table.test_labels
    weights = (shares_c / np.bincount(labels, minlength=len(shares_c)))[labels]
    np.savez(folder / "test.npz", inputs=table.test_inputs, labels=labels, weights=weights)


def read_marks(arm: str, submitted: float, folder: Path) -> ArmProgress:
    """Return what a server has marked so far."""
    path = folder / MARKS
    text = path.read_text() if path.exists() else ""
    found = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
    began = next((each["at"] for each in found if each["round"] == 0), None)
    return ArmProgress(arm, submitted, began, [Mark(**each) for each in found if each["round"]])


def train_flower(folder: Path, sites: Sites, ends: Ends) -> ArmProgress:
    """Train with Flower's own FedAvg."""
    write_work(folder, sites)
    members = [Node(name, {"site": site, "folder": str(folder)}) for site, name in enumerate(NAMES)]
    with LocalFederation(members, environment=_around(folder)) as federation:
        submitted = time.time()
        run = federation.submit(
            {"folder": str(folder), "sites": SITES, "flower-rounds": ends.rounds},
            Wiring(APP.format("server_app"), APP.format("client_app")),
        )
        return follow(
            lambda: read_marks(FLOWER, submitted, folder),
            lambda: federation.running(run),
            ends,
            federation.log(f"run-{run}"),
        )


def train_nvflare(folder: Path, sites: Sites, ends: Ends, python: str) -> ArmProgress:
    """Train with NVFlare's FedAvg, in this Python."""
    write_work(folder, sites)
    program = (python, "-m", "examples.hospitals.rivals.nvflare_job", str(folder), str(SITES))
    log, submitted = folder / "log", time.time()
    with log.open("wb") as said:
        supervisor = subprocess.Popen(  # noqa: S603  our own command line
            [sys.executable, supervision.__file__, *program, str(ends.rounds)],
            stdin=subprocess.PIPE,
            stdout=said,
            stderr=subprocess.STDOUT,
            env={**os.environ, **_around(folder), "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
    try:
        return follow(
            lambda: read_marks(NVFLARE, submitted, folder), lambda: supervisor.poll() is None, ends, log
        )
    finally:
        supervisor.communicate()  # its input ends, and so do its processes


def _around(folder: Path) -> dict[str, str]:
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    return {"PYTHONPATH": path, "XDG_STATE_HOME": str(folder)}


# ---- the report


def compare(ends: Ends, python: str | None, say: Callable[[str], object]) -> Report:
    """Train with each framework that there is."""
    lacking = _why_not(python)
    arms = [
        _trained(OURS, train_fedgc, ends, say),
        _trained(FLOWER, train_flower, ends, say),
        ArmProgress(NVFLARE, failed=lacking)
        if lacking
        else _trained(NVFLARE, partial(train_nvflare, python=str(python)), ends, say),
    ]
    return report(arms, ends.target)


def _why_not(python: str | None) -> str:
    """Return why NVFlare cannot run, or nothing."""
    if python is None:
        return NEEDS
    reason = lacks(python, "nvflare")
    return f"{NEEDS}: {reason}" if reason else ""


def _trained(
    arm: str, train: Callable[[Path, Sites, Ends], ArmProgress], ends: Ends, say: Callable[[str], object]
) -> ArmProgress:
    say(arm)
    with tempfile.TemporaryDirectory(prefix="fedgc-hospitals-") as folder:
        try:
            return train(Path(folder), sites_of(SEED), ends)
        except FedgcError as error:
            return ArmProgress(arm, failed=words_of(error))


def report(arms: Sequence[ArmProgress], target: float) -> Report:
    """Return the figures, and a row for each arm: the slowest first, those without a time last."""
    by_arm = {progress.arm: progress for progress in arms}

    def over(rival: str) -> float | None:
        ours, theirs = by_arm[OURS].seconds(target), by_arm[rival].seconds(target)
        if ours is None or theirs is None:
            return None
        return ours / theirs if by_arm[OURS].reach(target) else math.inf

    figures = {
        "deployed_time_over_flower": over(FLOWER),
        "deployed_time_over_nvflare": over(NVFLARE),
        "start_s": {progress.arm: progress.start_s for progress in arms},
    }
    timed = [progress for progress in arms if progress.seconds(target) is not None]
    timed.sort(key=lambda progress: (progress.reach(target) is None, progress.seconds(target)), reverse=True)
    untimed = [progress for progress in arms if progress.seconds(target) is None]
    rows = [progress.row(target) for progress in (*timed, *untimed)]
    return Report(figures, rows, {**machine(), "load_1m": os.getloadavg()[0]}, (SEED,))


def text_lines(of: Report) -> list[str]:
    """Return a table: one line for each arm."""
    names = ("seconds", "rounds", "start_s", "total_s", "points", "slow_site_points")
    head = f"{'arm':16}" + "".join(f"{name:>{len(name) + 4}}" for name in names)
    return [head, *(f"{row['arm']:16}" + (_numbers(row, names) or f"    {row['failed']}") for row in of.rows)]


def _numbers(row: Mapping[str, Value], names: Sequence[str]) -> str:
    """Return an arm's cells; nothing if it has no time."""
    if row["seconds"] is None:
        return ""
    cells = (f"{number(row[name]):{len(name) + 4}.4g}" for name in names)
    return "".join(cells) + ("" if row["reached"] else "    target not reached")


@app.command()
def deployed(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    rounds: Annotated[int, typer.Option(help="Most rounds of an arm.", min=1)] = ROUNDS,
    nvflare: Annotated[
        str | None, typer.Option(metavar="PYTHON", help="A Python that has nvflare and torch.")
    ] = None,
) -> None:
    """Train with each framework, and print what each needed to reach the target."""
    found = compare(Ends(rounds=rounds), nvflare, lambda arm: sys.stderr.write(f"{arm} ...\n"))
    show(found, as_json=as_json, save=False, lines=text_lines(found), module="examples.hospitals.deployed")


if __name__ == "__main__":
    run_program(lambda: app)
