"""`python -m benchmarks link`: the overhead of a round on real Flower processes on this machine.

The overhead of a round is the time from its beginning to the next one's, less the time that the slowest
needed client spent in local steps. It is measured for sessions, for the message link, and for Flower's own
FedAvg with the same models, local step, SuperLink and SuperNodes.

    session_overhead_s         with a model of 4 kB, 4 clients: median over rounds
    messages_overhead_s        the same over Flower's messages
    fedavg_overhead_s          the same of Flower's FedAvg, training alone
    fedavg_over_session        ratio of the two
    session_100mb_over_stream  overhead at 100 MB / time of a plain TLS stream that moves as many bytes
    stop_heard_ms              from the server's decision until a busy client receives it, median
    peak_models_above_blocks   peak of the ServerApp's memory above its idle one, in models, less blocks;
                               8 clients, 100 MB

A part that fails or runs out of time leaves a row with the reason, and its figures are null. Parts without
figures are measured last.
"""

import os
import queue
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from threading import BrokenBarrierError
from typing import Final

from benchmarks.local_run import complete, rounds_of
from benchmarks.memory_watch import looking, processor_s
from benchmarks.report import Report, Value, machine, number
from benchmarks.stock import MODELS, Quickstart, fedavg_overheads_s, plain_stream_s
from benchmarks.stop import stops_heard_s
from fedgc.deploy.app_folder import Setting
from fedgc.deploy.local_federation import LocalFederation
from fedgc.errors import EdgeFailed, FedgcError, words_of

Rows = list[dict[str, Value]]

CLIENTS: Final = 4
MANY: Final = 8
BLOCKS: Final = 1
BUDGET_S: Final = 560.0  # seconds for the whole benchmark on two cores, process starts included
KEPT_BACK_S: Final = 170.0  # of that for the parts after the four clients
MODEL_BYTES: Final = {"tiny": 4_000, "mb10": 10_000_000, "mb100": 100_000_000}
WAIT_S: Final = 240.0
WATCH_S: Final = 0.02
STREAMS: Final = 5  # transfers of a plain stream; the median counts
FIRST: Final = 1  # practice rounds: chunks are loaded, pages are touched
SETTINGS: Final[Mapping[str, Setting]] = {
    "work": "coded",
    "local-steps": 1,
    "code.replicas": 1,
    "code.blocks": BLOCKS,
    "history.evaluate-every": 0,
    "history.keep-checkpoints": 0,
    "client.threads": 1,
}


@dataclass(frozen=True, slots=True)
class Size:
    """The size of the benchmark: rounds of each model, and the number of stops."""

    session: Mapping[str, int]
    messages: Mapping[str, int]
    fedavg: Mapping[str, int]
    memory_rounds: int
    stops: int


USUAL: Final = Size(
    session={"tiny": 40, "mb10": 15, "mb100": 11},
    messages={"tiny": 3, "mb10": 2, "mb100": 2},
    fedavg={"tiny": 3, "mb10": 1, "mb100": 1},
    memory_rounds=3,
    stops=40,
)
QUICK: Final = Size(session={"tiny": 10}, messages={}, fedavg={"tiny": 1}, memory_rounds=0, stops=10)


class Parts:
    """The rows of all parts; each part gets the remaining time and may fail independently."""

    def __init__(self, clock: Callable[[], float], budget_s: float) -> None:
        self._clock = clock
        self._end = clock() + budget_s
        self.rows: list[dict[str, Value]] = []

    def add(self, name: str, measure: Callable[[float], Rows], *, keep_s: float = 0.0) -> None:
        """Run a part in the remaining time less `keep_s`; record the reason of a failure."""
        left_s = min(WAIT_S, self._end - keep_s - self._clock())
        try:
            if left_s <= 0:
                raise EdgeFailed("no time was left")
            self.rows += measure(left_s)
        except (FedgcError, OSError, queue.Empty, BrokenBarrierError) as error:  # processes of all kinds
            self.rows.append({"what": "failed", "part": name, "reason": words_of(error)})


def bench_link(*, quick: bool) -> Report:
    """Run the benchmark; the quick one uses the smallest model only."""
    size = QUICK if quick else USUAL
    parts = Parts(time.monotonic, BUDGET_S)
    parts.rows.append({"what": "load", "load_1m": os.getloadavg()[0]})
    with tempfile.TemporaryDirectory(prefix="fedgc-bench-") as name:
        folder = Path(name)
        (folder / "bench_models.py").write_text(MODELS)
        parts.add("four clients", lambda _: _on_four(parts, folder, size))
        parts.add("stops", lambda _: _stops(folder, size.stops))
        if size.memory_rounds:
            parts.add("eight clients", lambda _: _on_eight(parts, folder, size.memory_rounds))
    return Report(figures(parts.rows), parts.rows, machine())


# ---- federations


@contextmanager
def _federation(folder: Path, clients: int) -> Iterator[LocalFederation]:
    place = folder / f"federation-{clients}"
    environment = {
        "FEDGC_DB": str(folder / "fedgc.db"),
        "XDG_STATE_HOME": str(folder / "state"),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")])),
    }
    with LocalFederation(clients, folder=place, environment=environment) as federation:
        yield federation


def _on_four(parts: Parts, folder: Path, size: Size) -> Rows:
    with _federation(folder, CLIENTS) as federation:

        def link(plan: Plan) -> None:
            parts.add(plan.name, lambda left_s: _run(federation, folder, plan, left_s), keep_s=KEPT_BACK_S)

        def fedavg(run: Quickstart) -> None:
            name = f"fedavg-{run.size}"
            parts.add(
                name, lambda left_s: _fedavg(federation, folder / name, run, left_s), keep_s=KEPT_BACK_S
            )

        for model, rounds in size.session.items():
            link(Plan("session", model, rounds, CLIENTS))
        if "mb100" in size.session:
            parts.add("stream", lambda _: [_plain(parts.rows)])
        for model in size.fedavg:  # the smallest first: the figures use it
            fedavg(Quickstart(model, size.fedavg[model], CLIENTS))
            if model in size.messages:
                link(Plan("messages", model, size.messages[model], CLIENTS))
    return []


def _fedavg(federation: LocalFederation, folder: Path, run: Quickstart, timeout_s: float) -> Rows:
    overheads = fedavg_overheads_s(federation, folder, run, timeout_s)
    return [
        {"what": "fedavg", "model": run.size, "clients": run.clients, "overhead_s": overhead}
        for overhead in overheads
    ]


def _on_eight(parts: Parts, folder: Path, rounds: int) -> Rows:
    with _federation(folder, MANY) as federation:

        def link(plan: Plan) -> None:
            parts.add(plan.name, lambda left_s: _run(federation, folder, plan, left_s))

        link(Plan("session", "tiny", rounds, MANY))
        link(Plan("session", "mb100", rounds, MANY))
    return []


# ---- one run


@dataclass(frozen=True, slots=True)
class Plan:
    """One run: its link, model, duration and number of clients."""

    link: str
    model: str
    rounds: int
    clients: int

    @property
    def name(self) -> str:
        """Return its name in the store."""
        return f"{self.link}-{self.model}-{self.clients}"

    def settings(self) -> dict[str, Setting]:
        """Return its settings that differ from the defaults."""
        chosen: dict[str, Setting] = {
            **SETTINGS,
            "run": self.name,
            "task": f"bench_models:{self.model}",
            "rounds": self.rounds + FIRST,
            "data.chunks": self.clients,
            "min-clients": self.clients,
        }
        return chosen | {"links.kind": self.link}


def _run(federation: LocalFederation, folder: Path, plan: Plan, timeout_s: float) -> Rows:
    run = federation.submit(plan.settings())
    watch = Watch()
    with looking(lambda: watch.look(federation, run), WATCH_S):
        complete(federation, run, plan.name, timeout_s)
    rounds = _rounds(folder / "fedgc.db", plan)
    server: dict[str, Value] = {
        "what": "server",
        "link": plan.link,
        "model": plan.model,
        "clients": plan.clients,
        "idle_bytes": watch.idle_bytes,
        "peak_bytes": watch.peak_bytes,
        "cpu_s_per_round": watch.cpu_s / (plan.rounds + FIRST),
    }
    return [*rounds, server]


def _rounds(database: Path, plan: Plan) -> Rows:
    rows: Rows = []
    for this, seconds, of_clients in rounds_of(database, plan.name, FIRST):
        work_s = max((row.busy_s for row in of_clients if row.counted), default=0.0)
        rows.append(
            {
                "what": plan.link,
                "model": plan.model,
                "clients": plan.clients,
                "outcome": this.row.outcome,
                "overhead_s": seconds - work_s,
                "work_s": work_s,
                "collecting_s": this.row.collecting_s,
                "up_bytes": this.up_bytes,
                "down_bytes": this.down_bytes,
                "control_bytes": this.control_bytes,
            }
        )
    return rows


def _plain(rows: Sequence[Mapping[str, Value]]) -> dict[str, Value]:
    session = _of(rows, "session", "mb100")
    if not session:
        raise EdgeFailed("no round over a session to compare with")
    down, up = (
        int(median(int(number(row[way])) for row in session)) // CLIENTS for way in ("down_bytes", "up_bytes")
    )
    seconds = median(plain_stream_s(down, up, CLIENTS) for _ in range(STREAMS))
    return {
        "what": "stream",
        "model": "mb100",
        "clients": CLIENTS,
        "down_bytes": down,
        "up_bytes": up,
        "seconds": seconds,
    }


# ---- the ServerApp's process


@dataclass(slots=True)
class Watch:
    """The ServerApp's memory while clients gather, its peak, and its CPU seconds since then."""

    idle_bytes: int = 0
    peak_bytes: int = 0
    cpu_s: float = 0.0
    first_cpu_s: float | None = None

    def look(self, federation: LocalFederation, run: int) -> None:
        """Sample the present process, if there is one."""
        pid = next(filter(_is_server, federation.pids("superlink")), None)
        if pid is None or "sessions at" not in federation.log(f"run-{run}").read_text(errors="replace"):
            return
        with suppress(OSError, KeyError):
            status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
            cpu_s = processor_s(pid)
            self.idle_bytes = self.idle_bytes or _kilobytes(status["VmRSS"])
            self.peak_bytes = max(self.peak_bytes, _kilobytes(status["VmHWM"]))
            self.first_cpu_s = cpu_s if self.first_cpu_s is None else self.first_cpu_s
            self.cpu_s = cpu_s - self.first_cpu_s


def _is_server(pid: int) -> bool:
    with suppress(OSError):
        return b"flwr-serverapp" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def _kilobytes(text: str) -> int:
    return 1024 * int(text.split()[0])


# ---- stops


def _stops(folder: Path, count: int) -> Rows:
    return [{"what": "stop", "heard_s": seconds} for seconds in stops_heard_s(folder, count)]


# ---- figures


def figures(rows: Sequence[Mapping[str, Value]]) -> dict[str, float | None]:
    """Return the named figures, None if not measured."""
    session = _overhead_s(rows, "session", "tiny")
    fedavg = _overhead_s(rows, "fedavg", "tiny")
    large = _overhead_s(rows, "session", "mb100")
    stream = [number(row["seconds"]) for row in rows if row["what"] == "stream"]
    heard = [1000 * number(row["heard_s"]) for row in rows if row["what"] == "stop"]
    return {
        "session_overhead_s": session,
        "messages_overhead_s": _overhead_s(rows, "messages", "tiny"),
        "fedavg_overhead_s": fedavg,
        "fedavg_over_session": _ratio(fedavg, session),
        "session_100mb_over_stream": _ratio(large, median(stream) if stream else None),
        "stop_heard_ms": median(heard) if heard else None,
        "peak_models_above_blocks": _peak_models(rows),
    }


def _of(
    rows: Sequence[Mapping[str, Value]], what: str, model: str, clients: int = CLIENTS
) -> list[Mapping[str, Value]]:
    return [
        row for row in rows if (row["what"], row.get("model"), row.get("clients")) == (what, model, clients)
    ]


def _overhead_s(rows: Sequence[Mapping[str, Value]], what: str, model: str) -> float | None:
    overheads = [number(row["overhead_s"]) for row in _of(rows, what, model)]
    return median(overheads) if overheads else None


def _peak_models(rows: Sequence[Mapping[str, Value]]) -> float | None:
    """Return the peak memory; the baseline is the ServerApp waiting for clients of the smallest model."""
    idle, full = _of(rows, "server", "tiny", MANY), _of(rows, "server", "mb100", MANY)
    if not (idle and full):
        return None
    above = number(full[0]["peak_bytes"]) - number(idle[0]["idle_bytes"])
    return above / MODEL_BYTES["mb100"] - BLOCKS


def _ratio(top: float | None, bottom: float | None) -> float | None:
    return None if top is None or bottom is None else top / bottom
