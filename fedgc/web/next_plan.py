"""What the next run of a task would be planned from: the same inputs as those of the run's own tuner."""

import math
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from fedgc.config import AUTO, RunConfig, known
from fedgc.errors import FedgcError, Unusable
from fedgc.history import Speed, Speeds
from fedgc.round.plan import Chunk, Fleet
from fedgc.sim.clock import Line
from fedgc.store.database import Store
from fedgc.store.reading import HOURS
from fedgc.store.views import Run
from fedgc.tuner import ClientHistory, Question, clients_wanted, recall
from fedgc.tuner.wanted import CLIENT_GAIN, check_gain
from fedgc.tuner.week import Windows

FRESH_S: Final = 60.0  # for which a computed number of clients is given again
RUNS_KEPT: Final = 16  # whose numbers are kept


@dataclass(frozen=True, slots=True)
class Planned:
    """The tuner's question, and its evidence."""

    question: Question
    speeds: Speeds
    history: ClientHistory
    windows: Windows = field(default_factory=dict)  # of clients with hours

    @property
    def rng(self) -> np.random.Generator:
        """The generator with which a run makes its first plan."""
        return np.random.default_rng([self.question.config.seed, 1])


def question_of(clients: Sequence[str], chunks: int, numbers: int, config: RunConfig) -> Question:
    """Return the question for clients that can load all chunks."""
    if config.work != "coded":
        raise Unusable(
            f"plan: saw work = {config.work} without a run of it in the store, needed one, or coded work"
        )
    table = tuple(Chunk(number, f"chunk {number}", 1) for number in range(chunks))
    fleet = Fleet(dict.fromkeys(clients, frozenset(range(chunks))), table, numbers)
    line = Line(slots=config.slots_for(config.update_bytes(numbers)))
    return Question(fleet, config, config.round_steps, line, rounds_left=config.rounds)


def planned(
    store: Store,
    run: Run,
    settings: Mapping[str, Any] | None = None,
    numbers: int = 0,
    *,
    with_closed: bool = False,
) -> Planned | None:
    """Return what a run after this one is planned from; None if no client has worked.

    `settings` override those of the run, `numbers` (if not 0) the size of its model. `with_closed` adds the
    clients that have hours and may not train now.
    """
    basis = _last_plan(store, run)
    speeds = store.speeds(run.task)
    windows = _hours(store, run) if with_closed else {}
    clients = list(dict.fromkeys([*(basis.get("loads") or speeds.known), *windows]))
    if not clients:
        return None
    given = settings or {}
    config = settings_of(run, given)
    if basis.get("free") is False and config.replicas == AUTO:
        config = replace(config, replicas=int(basis["replicas"]))
    chunks = config.chunks if "data.chunks" in given else int(basis.get("chunks", config.chunks))
    question = question_of(clients, chunks, numbers or int(basis.get("numbers", 0)), config)
    return Planned(question, speeds, recall(speeds.recent, question.clients), windows)


def settings_of(run: Run, settings: Mapping[str, Any]) -> RunConfig:
    """Return the settings of a run, overridden by these."""
    return RunConfig.read({**known(run.settings), "resume": "", **settings})


def local_clients(store: Store, run: Run, numbers: int = 0) -> tuple[list[Speed], int]:
    """Return the speeds of the clients of a run, and how many numbers its model has, if not so many."""
    basis, speeds = _last_plan(store, run), store.speeds(run.task)
    clients = basis.get("loads") or speeds.known
    measured = [speeds.known[client] for client in clients if client in speeds.known]
    return measured, numbers or int(basis.get("numbers", 0))


def _last_plan(store: Store, run: Run) -> Mapping[str, Any]:
    """Return the inputs and results of the run's last plan."""
    plans = store.decisions(run.run, limit=1, what="plan")
    return plans[-1].basis if plans else {}


def _hours(store: Store, run: Run) -> Windows:
    """Return the hours that each client has last announced, if it has any."""
    announced = {each.basis["client"]: each.basis[HOURS] for each in store.decisions(run.run, what=HOURS)}
    return {client: [tuple(window) for window in hours] for client, hours in announced.items() if hours}


@dataclass(slots=True)
class WantedClients:
    """Computes the wanted number of clients of a run, at most once a minute and once for each round."""

    share: float = CLIENT_GAIN
    _found: dict[str, tuple[float, int | None, int | None]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        check_gain(self.share)

    def of(self, store: Store, run: Run) -> int | None:
        """Return the number; None if the tuner cannot tell, as with local work."""
        with self._lock:
            at, round_, number = self._found.get(run.run, (-math.inf, None, None))
            if time.monotonic() - at >= FRESH_S and (round_ != run.last_round or math.isinf(at)):
                number = self._computed(store, run)
                self._found.pop(run.run, None)  # so that the first is the one computed longest ago
                self._found[run.run] = time.monotonic(), run.last_round, number
                if len(self._found) > RUNS_KEPT:
                    del self._found[next(iter(self._found))]
            return number

    def _computed(self, store: Store, run: Run) -> int | None:
        try:
            about = planned(store, run)
            if about is None:
                return None
            return clients_wanted(about.question, about.history, about.speeds, about.rng, self.share)
        except FedgcError:  # settings of another version, or local work: nothing can be planned
            return None
