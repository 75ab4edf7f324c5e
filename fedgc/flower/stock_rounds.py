"""Rounds with clients that know nothing of fedgc: who is asked, and how much each answer counts. No I/O.

A stock client answers a train message with its arrays and how many examples it saw, once, when it is done.
So a round asks every free node, and waits for all of them, but no longer than a deadline made from the past:

    deadline = median + 4 * 1.4826 * MAD    of the last answers' times (MAD: median absolute deviation)

and never less than half as long again as the median. Times that scatter normally are longer in one of some
ten thousand answers, and the deadline is not moved by the stragglers that it is there for (Rousseeuw and
Croux, "Alternatives to the median absolute deviation", 1993).

An answer that comes after its round is not lost: it joins the round under way, as its own step from the
model that it started from, with weight 1 / sqrt(1 + versions between) times its examples (Nguyen et al.,
"Federated learning with buffered asynchronous aggregation", 2022). A node that has not answered is not
asked again until it has.
"""

import math
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from fedgc.config import AUTO, RunConfig
from fedgc.errors import BadMessage
from fedgc.history import ClientRow, RoundRow
from fedgc.messages import Outcome
from fedgc.run.machine import fewer_would_do

FIRST_DEADLINE_S: Final = 600.0  # too little is known of these nodes yet
LEAST_ANSWERS: Final = 8  # from which a scatter can be told
LEAST_DEADLINE_S: Final = 10.0
PATIENCE: Final = 4.0 * 1.4826  # deviations of a normal distribution, by its MAD
TIMES_KEPT: Final = 64
FRUITLESS_DEADLINES: Final = 5  # a round in which nobody answers ends after so many
GIVE_UP_AFTER: Final = 3  # rounds in a row in which no client answered


def deadline_s(times_s: Collection[float]) -> float:
    """Return how long a round waits, by how long answers took.

    >>> [deadline_s(times_s) for times_s in ([], [1.0] * 9, [40.0] * 9, [20.0, 20.0, 30.0, 900.0] * 2)]
    [600.0, 10.0, 60.0, 54.652]
    """
    if len(times_s) < LEAST_ANSWERS:
        return FIRST_DEADLINE_S
    middle = median(times_s)
    scatter = median(abs(each - middle) for each in times_s)
    return max(LEAST_DEADLINE_S, 1.5 * middle, middle + PATIENCE * scatter)


def staleness_weight(versions: int) -> float:
    """Return the weight of an answer whose model is so many versions old.

    >>> staleness_weight(0), staleness_weight(3)
    (1.0, 0.5)
    """
    return 1 / math.sqrt(1 + versions)


# ---- what is said


@dataclass(frozen=True, slots=True)
class Ask:
    """Send this node the present model to train."""

    node: int
    round: int
    version: int


@dataclass(frozen=True, slots=True)
class Use:
    """Add `weight` times this node's step from model `version` to the sum of the round."""

    node: int
    version: int
    weight: float


@dataclass(frozen=True, slots=True)
class Closed:
    """The round is over: where `weight` is above 0, the sum over it makes model `version`."""

    row: RoundRow
    version: int
    weight: float


@dataclass(frozen=True, slots=True)
class Over:
    """Nothing more will come."""

    reason: str
    complete: bool


Output = Ask | Use | Closed | Over


@dataclass(frozen=True, slots=True)
class StockState:
    """What a resumed run needs."""

    round: int
    version: int
    times_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Trained:
    """What a node answered, as far as it decides anything."""

    examples: float
    loss: float | None = None
    size_bytes: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.examples) and self.examples > 0):
            raise BadMessage(f"num-examples: saw {self.examples}, needed a number above 0")


@dataclass(slots=True)
class _Out:
    """A node that has been asked."""

    round: int
    version: int
    since: float


@dataclass(slots=True)
class _Open:
    """The round under way."""

    started: float
    asked: set[int]
    weight: float = 0.0
    examples: float = 0.0
    losses: list[tuple[float, float]] = field(default_factory=list)  # (examples, loss)
    rows: dict[int, ClientRow] = field(default_factory=dict)


class Stock:
    """The machine: say who is there, who answered, what time it is; do what it says in its order."""

    def __init__(self, config: RunConfig, now: float, resume: StockState | None = None) -> None:
        self._config = config
        self.number = resume.round if resume else 1
        self.version = resume.version if resume else 0
        self.finished: Over | None = None
        self._times_s = deque(resume.times_s if resume else (), TIMES_KEPT)
        self._out: dict[int, _Out] = {}
        self._nodes: tuple[int, ...] = ()
        self._open: _Open | None = None
        self._gather_until = now + config.start_timeout_s
        self._fruitless = 0
        self._begun = False

    # ---- what happens

    def there(self, now: float, nodes: Sequence[int]) -> tuple[Output, ...]:
        """These nodes are there; what one that is not there owes is forgotten."""
        self._nodes = tuple(nodes)
        for gone in self._out.keys() - set(nodes):
            self._miss(gone, "lost")
        return self._go_on(now)

    def answered(self, now: float, node: int, trained: Trained) -> tuple[Output, ...]:
        """A node's arrays are here, whole and checked."""
        out = self._out.pop(node, None)
        if out is None or self.finished:
            return ()
        self._times_s.append(now - out.since)
        if self._open is None:
            return ()
        current, staleness = self._open, self.version - out.version
        weight = trained.examples * staleness_weight(staleness)
        current.weight += weight
        current.examples += trained.examples
        current.asked.discard(node)
        if trained.loss is not None:
            current.losses.append((trained.examples, trained.loss))
        took_s = now - out.since
        late = "" if out.round == self.number else f"late: trained from version {out.version}"
        current.rows[node] = _row_of(
            node, finished=1, counted=1, busy_s=took_s, up_bytes=trained.size_bytes, failure=late
        )
        return (Use(node, out.version, weight), *self._go_on(now))

    def failed(self, now: float, node: int, reason: str) -> tuple[Output, ...]:
        """A node could not, or its answer was refused; it is free again."""
        self._miss(node, reason)
        return self._go_on(now)

    def tick(self, now: float) -> tuple[Output, ...]:
        """Time has passed."""
        return self._go_on(now)

    def stop(self, reason: str) -> tuple[Output, ...]:
        """Somebody wants the run to end."""
        return self._finish(reason, complete=False)

    # ---- what is known

    @property
    def versions(self) -> frozenset[int]:
        """The models from which somebody still trains, and the present one."""
        return frozenset({self.version, *(out.version for out in self._out.values())})

    @property
    def present(self) -> tuple[int, ...]:
        """The nodes that are there."""
        return self._nodes

    @property
    def progress(self) -> tuple[int, int]:
        """How many have answered in this round, and how many were asked."""
        if self._open is None:
            return 0, 0
        answered = sum(row.finished for row in self._open.rows.values())
        return answered, answered + len(self._open.asked)

    def state(self) -> StockState:
        """Return what a checkpoint between two rounds needs."""
        return StockState(self.number, self.version, tuple(self._times_s))

    # ---- rounds

    def _go_on(self, now: float) -> tuple[Output, ...]:
        outputs: list[Output] = []
        while not self.finished:
            step = self._begin(now) if self._open is None else self._settle(self._open, now)
            outputs += step
            if not step:
                break
        return tuple(outputs)

    def _begin(self, now: float) -> tuple[Output, ...]:
        wanted = 1 if self._begun else self._config.min_clients
        late = now >= self._gather_until
        if (seen := len(self._nodes)) < wanted:
            reason = f"waited {self._config.start_timeout_s:g} s for {wanted} clients, saw {seen}"
            reason += fewer_would_do(seen, 1, wanted)
            return self._finish(reason, complete=False) if late else ()
        free = tuple(node for node in self._nodes if node not in self._out)
        self._begun = True
        self._open = _Open(now, set(free))
        for node in free:
            self._out[node] = _Out(self.number, self.version, now)
        return tuple(Ask(node, self.number, self.version) for node in free)

    def _settle(self, current: _Open, now: float) -> tuple[Output, ...]:
        """Close the round if nobody is waited for, or for longer than it should have taken."""
        waited_s, limit_s = now - current.started, self._limit_s()
        if current.weight > 0:
            over = not current.asked or waited_s >= limit_s
        else:
            over = not self._out or waited_s >= FRUITLESS_DEADLINES * limit_s
        return self._close(current, now) if over else ()

    def _limit_s(self) -> float:
        fixed = self._config.deadline_s
        return deadline_s(self._times_s) if fixed == AUTO else float(fixed)

    def _close(self, current: _Open, now: float) -> tuple[Output, ...]:
        for node in current.asked:
            current.rows[node] = _row_of(node, failure="not in time")
        row = self._row(current, now)
        self._open = None
        self.number += 1
        self.version += current.weight > 0
        self._fruitless = 0 if current.weight > 0 else self._fruitless + 1
        self._gather_until = now + self._config.start_timeout_s
        closed = Closed(row, self.version, current.weight)
        if self._fruitless == GIVE_UP_AFTER:
            reason = f"{GIVE_UP_AFTER} rounds in a row gave nothing; {_fault_of(row)}"
            return (closed, *self._finish(reason, complete=False))
        if self.number > self._config.rounds:
            return (closed, *self._done(row))
        return (closed,)

    def _done(self, last: RoundRow) -> tuple[Output, ...]:
        done = f"{self._config.rounds} rounds are done"
        if self.version:
            return self._finish(done, complete=True)
        return self._finish(f"{done}, and no work was ever counted; {_fault_of(last)}", complete=False)

    def _miss(self, node: int, reason: str) -> None:
        self._out.pop(node, None)
        if self._open is not None and node in self._open.asked:
            self._open.asked.discard(node)
            self._open.rows[node] = _row_of(node, failure=reason)

    def _finish(self, reason: str, *, complete: bool) -> tuple[Output, ...]:
        self.finished = Over(reason, complete)
        return (self.finished,)

    def _row(self, current: _Open, now: float) -> RoundRow:
        rows = tuple(current.rows[node] for node in sorted(current.rows))
        counted = sum(row.counted for row in rows)
        everybody = counted == len(rows)
        outcome: Outcome = "empty" if not counted else "synced" if everybody else "approximate"
        weights = sum(examples for examples, _ in current.losses)
        loss = sum(examples * loss for examples, loss in current.losses) / weights if weights else None
        return RoundRow(
            round=self.number,
            version=self.version,
            started=current.started,
            working_s=now - current.started,
            collecting_s=0.0,
            outcome=outcome,
            chunks=len(rows),
            covered=counted,
            short=tuple(at for at, row in enumerate(rows) if not row.counted),
            replicas=1,
            blocks=1,
            needed=counted,
            amplification=None,
            error=None,
            loss=loss,
            samples=round(current.examples),
            skips=0,
            takes=0,
            pruned=0,
            repairs=0,
            reason="every answer is here" if everybody else "some answers are not here in time",
            clients=rows,
        )


def _fault_of(row: RoundRow) -> str:
    return next((each.failure for each in row.clients if each.failure), "no client answered")


def name_of(node: int) -> str:
    """Return what a node is called in the history: it has no name of its own.

    >>> name_of(255)
    'node-ff'
    """
    return f"node-{node:x}"


def _row_of(
    node: int,
    *,
    finished: int = 0,
    counted: int = 0,
    busy_s: float = 0.0,
    up_bytes: int = 0,
    failure: str = "",
) -> ClientRow:
    return ClientRow(
        name_of(node),
        finished=finished,
        counted=counted,
        busy_s=busy_s,
        up_bytes=up_bytes,
        failure=failure,
        link="messages",
    )
