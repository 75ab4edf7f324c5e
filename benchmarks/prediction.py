"""`python -m benchmarks prediction`: the second half of real runs, predicted from their first (`sim.like`).

Five runs, each of four clients as processes of this machine over sessions, for about a minute:

    uneven       the slowest client needs four times as long for a step as the quickest
    dying        every ten seconds or so the next client is killed, and started again a second or two later
    stopped      every few seconds the next client is suspended (SIGSTOP), and goes on a second or two later
    slow links   limited uplinks, of which the slowest takes as long for an update as a round's work
    gated        the drift gate exchanges less than half of the rounds, most of them near the end

    prediction_error_median   error of the time of a round, a share of what was seen: median over the runs
    prediction_error_worst    the largest
    bytes_error_worst         the same of the bytes of a round
    waste_error_worst         largest difference of the shares of work that were discarded
"""

import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Final

import numpy as np

from benchmarks.local_run import complete
from benchmarks.report import Report, Value, machine
from fedgc.deploy.app_folder import Setting
from fedgc.deploy.local_federation import LocalFederation, Node
from fedgc.errors import FedgcError
from fedgc.sim.like import Likeness, predict_like
from fedgc.sim.past_run import PastRun
from fedgc.store.database import Store

WAIT_S: Final = 300.0
POLL_S: Final = 0.2
AWAY_S: Final = (1.0, 2.0)
PACES_S: Final = (0.03, 0.04, 0.05, 0.12)
LIKE_S: Final = (0.03,) * 4
UPLINKS_KB_S: Final = (400.0, 260.0, 200.0, 130.0)  # a slower uplink than 125 gives up its slot to others
QUICK: Final = ("uneven",)
Fault = Callable[[LocalFederation, str, float], None]


@dataclass(frozen=True, slots=True)
class Scene:
    """One real run: settings, the least time of a step of each client, uplinks, and what befalls clients."""

    name: str
    paces_s: Sequence[float]
    settings: Mapping[str, Setting]
    uplinks_kb_s: Sequence[float] = ()
    fault: Fault | None = None
    apart_s: tuple[float, float] = (2.0, 4.0)  # between two faults

    @property
    def nodes(self) -> Sequence[Node]:
        """The clients."""
        configs: list[dict[str, Setting]] = [{"pace-s": pace_s} for pace_s in self.paces_s]
        for config, uplink in zip(configs, self.uplinks_kb_s, strict=False):
            config["uplink-kb-s"] = uplink
        return [Node(f"client-{at}", config) for at, config in enumerate(configs)]


def kill(federation: LocalFederation, name: str, away_s: float) -> None:
    """Kill a client's processes, and start it again."""
    federation.kill(name)
    time.sleep(away_s)
    federation.restart(name)


def suspend(federation: LocalFederation, name: str, away_s: float) -> None:
    """Suspend a client's processes for a while."""
    pids = federation.pids(name)
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        time.sleep(away_s if number == signal.SIGSTOP else 0.0)


EVERY: Final[Mapping[str, Setting]] = {"gate.name": "every", "rounds": 50}
SCENES: Final = (
    Scene("uneven", PACES_S, EVERY),
    Scene("dying", LIKE_S, {**EVERY, "rounds": 100}, fault=kill, apart_s=(9.0, 13.0)),
    Scene("stopped", LIKE_S, {**EVERY, "rounds": 80, "links.grace-s": 6.0}, fault=suspend),
    Scene("slow links", LIKE_S, {**EVERY, "local-steps": 8}, UPLINKS_KB_S),
    Scene("gated", PACES_S, {"gate.name": "drift", "gate.budget": 0.4, "rounds": 60}),
)


def bench_prediction(*, quick: bool) -> Report:
    """Run every scene, and predict it."""
    rows = [row_of(scene) for scene in SCENES if not quick or scene.name in QUICK]
    return Report(figures(rows), rows, machine(), [0])


def figures(rows: Sequence[Mapping[str, Value]]) -> dict[str, Value]:
    """Return the figures of these runs.

    >>> row = {"round_s_error": 0.1, "bytes_error": 0.0, "waste_error": 0.0}
    >>> figures([row, {**row, "round_s_error": 0.3}, row])["prediction_error_median"]
    0.1
    """
    errors = {name: [float(row[name] or 0.0) for row in rows] for name in ERRORS}
    return {
        "prediction_error_median": median(errors["round_s_error"]),
        "prediction_error_worst": max(errors["round_s_error"]),
        "bytes_error_worst": max(errors["bytes_error"]),
        "waste_error_worst": max(errors["waste_error"]),
    }


ERRORS: Final = ("round_s_error", "bytes_error", "waste_error")


def row_of(scene: Scene) -> dict[str, Value]:
    """Run a scene and predict its second half."""
    with tempfile.TemporaryDirectory(prefix="fedgc-bench-") as folder:
        past = played(scene, Path(folder))
    likeness = predict_like(past)
    return {"run": scene.name, **{name: getattr(likeness, name) for name in ERRORS}, **_seen(likeness)}


def _seen(likeness: Likeness) -> dict[str, Value]:
    found: dict[str, Value] = {"rounds_known": likeness.known, "rounds_predicted": likeness.seen.rounds}
    for name in ("round_s", "round_bytes", "waste", "exchanges"):
        found[f"{name}_predicted"] = getattr(likeness.predicted, name)
        found[f"{name}_seen"] = getattr(likeness.seen, name)
    return found


def played(scene: Scene, folder: Path) -> PastRun:
    """Run a scene in a folder; return what the store has of it."""
    database = str(folder / "fedgc.db")
    environment = {"FEDGC_DB": database, "XDG_STATE_HOME": str(folder / "state"), "OMP_NUM_THREADS": "1"}
    settings = {
        "task": "digits", "run": "past", "work": "local", "local-steps": 16,
        "min-clients": len(scene.paces_s), "links.kind": "session", "links.grace-s": 3.0,
        "client.threads": 1, **scene.settings,
    }  # fmt: skip
    with LocalFederation(scene.nodes, folder=folder / "processes", environment=environment) as federation:
        run = federation.submit(settings)
        rng, victims = np.random.default_rng(0), cycle(federation.nodes)
        with _begun(federation, run, database):
            while federation.running(run):
                time.sleep(float(rng.uniform(*scene.apart_s)) if scene.fault else POLL_S)
                if scene.fault is not None and federation.running(run):
                    scene.fault(federation, next(victims), float(rng.uniform(*AWAY_S)))
        complete(federation, run, scene.name, WAIT_S)
    with Store.open(database, reads_only=True) as store:
        return PastRun.read(store, "past")


@contextmanager
def _begun(federation: LocalFederation, run: int, database: str) -> Iterator[None]:
    """Wait until a run has had a round."""
    end = time.monotonic() + WAIT_S
    while federation.running(run) and time.monotonic() < end:
        with suppress(FedgcError), Store.open(database, reads_only=True) as store:
            if store.rounds("past"):
                break
        time.sleep(POLL_S)
    yield
