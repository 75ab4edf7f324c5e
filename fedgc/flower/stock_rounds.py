"""The state machine of rounds with stock clients: FedAvg with an adaptive deadline and late updates. No I/O.

A stock client answers a train message once, when it is done, with its arrays and its number of examples. A
round asks every free node and waits for all answers until a deadline:

    deadline = median + 4 * 1.4826 * MAD    of the last answers' times (MAD: median absolute deviation)

and at least 1.5 times the median. Of normally distributed times, one in some ten thousand is longer, and
stragglers do not move the deadline (Rousseeuw and Croux, "Alternatives to the median absolute deviation",
1993).

A late answer counts in the present round: its update from the model it started from has the weight
examples / sqrt(1 + staleness in versions) (FedBuff: Nguyen et al., "Federated learning with buffered
asynchronous aggregation", 2022). A node is not asked again until it has answered.
"""

import math
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from fedgc.config import AUTO, RunConfig
from fedgc.errors import BadMessage, numbered
from fedgc.history import ClientRow, RoundRow, median_and_spread
from fedgc.messages import LARGEST_COUNT, Outcome
from fedgc.run.outputs import Finished
from fedgc.run.rows import caused, fewer_would_do

FIRST_DEADLINE_S: Final = 600.0  # before `LEAST_ANSWERS` times are known
LEAST_ANSWERS: Final = 8  # needed to estimate the deviation
LEAST_DEADLINE_S: Final = 10.0
PATIENCE: Final = 4.0  # deviations of a normal distribution
TIMES_KEPT: Final = 64
FRUITLESS_DEADLINES: Final = 5  # a round without any answer ends after so many deadlines
GIVE_UP_AFTER: Final = 3  # rounds in a row in which no client answered


def deadline_s(times_s: Collection[float]) -> float:
    """Return the deadline of a round from the times of the last answers.

    >>> [deadline_s(times_s) for times_s in ([], [1.0] * 9, [40.0] * 9, [20.0, 20.0, 30.0, 900.0] * 2)]
    [600.0, 10.0, 60.0, 54.652]
    """
    if len(times_s) < LEAST_ANSWERS:
        return FIRST_DEADLINE_S
    middle, spread_s = median_and_spread(times_s)
    return max(LEAST_DEADLINE_S, 1.5 * middle, middle + PATIENCE * spread_s)


def staleness_weight(versions: int) -> float:
    """Return the weight of an answer that is `versions` model versions old (FedBuff).

    >>> staleness_weight(0), staleness_weight(3)
    (1.0, 0.5)
    """
    return 1 / math.sqrt(1 + versions)


# ---- outputs


@dataclass(frozen=True, slots=True)
class Ask:
    """Send this node the present model to train."""

    node: int
    round: int
    version: int


@dataclass(frozen=True, slots=True)
class Aggregate:
    """Add `weight` times this node's update from model `version` to the sum of the round."""

    node: int
    version: int
    weight: float


@dataclass(frozen=True, slots=True)
class Closed:
    """The round is over; if `weight` is above 0, the sum divided by it makes model `version`."""

    row: RoundRow
    version: int
    weight: float


Output = Ask | Aggregate | Closed | Finished


@dataclass(frozen=True, slots=True)
class StockState:
    """The state for a checkpoint."""

    round: int
    version: int
    times_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Trained:
    """The answer of a node, without its arrays."""

    examples: float
    loss: float | None = None
    size_bytes: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.examples <= LARGEST_COUNT:
            raise BadMessage(
                f"num-examples: saw {self.examples}, needed a number above 0, at most {LARGEST_COUNT:g}"
            )


@dataclass(slots=True)
class _Pending:
    """A train message that has no answer yet."""

    round: int
    version: int
    since: float


@dataclass(slots=True)
class _Open:
    """The present round."""

    started: float
    asked: set[int]
    weight: float = 0.0
    examples: float = 0.0
    losses: list[tuple[float, float]] = field(default_factory=list)  # (examples, loss)
    rows: dict[int, ClientRow] = field(default_factory=dict)


class StockRounds:
    """The state machine: takes nodes, answers, failures and ticks; returns outputs to carry out in order."""

    def __init__(self, config: RunConfig, now: float, resume: StockState | None = None) -> None:
        self._config = config
        self.number = resume.round if resume else 1
        self.version = resume.version if resume else 0
        self.finished: Finished | None = None
        self._times_s = deque(resume.times_s if resume else (), TIMES_KEPT)
        self._pending: dict[int, _Pending] = {}
        self.present: tuple[int, ...] = ()  # the connected nodes
        self._open: _Open | None = None
        self._gather_until = now + config.start_timeout_s
        self._fruitless = 0
        self._pauses_until = now  # after a round in which no client answered
        self._begun = False

    # ---- events

    def nodes_seen(self, now: float, nodes: Sequence[int]) -> tuple[Output, ...]:
        """Set the connected nodes; pending answers of others are dropped."""
        self.present = tuple(nodes)
        for gone in self._pending.keys() - set(nodes):
            self._miss(gone, "lost")
        return self._go_on(now)

    def answered(self, now: float, node: int, round_: int, trained: Trained) -> tuple[Output, ...]:
        """A node has answered the message of this round with valid arrays."""
        if self.finished or not self._is_pending(node, round_):
            return ()
        outputs: tuple[Output, ...] = ()
        if self._open is None:  # it ends the pause after a round in which no client answered
            self._pauses_until = now
            outputs = self._begin(now)
        pending = self._pending.pop(node)
        self._times_s.append(now - pending.since)
        if self._open is None:
            return outputs
        current, staleness = self._open, self.version - pending.version
        weight = trained.examples * staleness_weight(staleness)
        current.weight += weight
        current.examples += trained.examples
        current.asked.discard(node)
        if trained.loss is not None:
            current.losses.append((trained.examples, trained.loss))
        took_s = now - pending.since
        late = "" if pending.round == self.number else f"late: trained from version {pending.version}"
        current.rows[node] = _row_of(
            node, finished=1, counted=1, busy_s=took_s, up_bytes=trained.size_bytes, failure=late
        )
        return (*outputs, Aggregate(node, pending.version, weight), *self._go_on(now))

    def failed(self, now: float, node: int, round_: int, reason: str) -> tuple[Output, ...]:
        """A node has failed in this round, or its answer was refused; it can be asked again."""
        if self._is_pending(node, round_):
            self._miss(node, reason)
        return self._go_on(now)

    def tick(self, now: float) -> tuple[Output, ...]:
        """Check the deadlines."""
        return self._go_on(now)

    def carried_out(self, now: float) -> None:
        """A round is closed or nodes are asked, which may take long: the server evaluates, messages are sent.

        The time of the round, or of the wait for clients, begins now.
        """
        self._gather_until = now + self._config.start_timeout_s
        if self._open is None:
            return
        self._open.started = now
        for node in self._open.asked:
            self._pending[node].since = now

    def stop(self, reason: str) -> tuple[Output, ...]:
        """End the run early."""
        return self._finish(reason, complete=False)

    # ---- state

    @property
    def versions(self) -> frozenset[int]:
        """The versions that pending nodes train from, and the present one."""
        return frozenset({self.version, *(pending.version for pending in self._pending.values())})

    @property
    def free(self) -> tuple[int, ...]:
        """The connected nodes that owe no answer of an earlier round."""
        return tuple(node for node in self.present if not self._is_late(node))

    @property
    def limit_s(self) -> float:
        """The deadline of a round."""
        fixed = self._config.deadline_s
        return deadline_s(self._times_s) if fixed == AUTO else float(fixed)

    @property
    def progress(self) -> tuple[int, int]:
        """The numbers of answers and of asked nodes in this round."""
        if self._open is None:
            return 0, 0
        answered = sum(row.finished for row in self._open.rows.values())
        return answered, answered + len(self._open.asked)

    @property
    def awaited(self) -> Collection[int]:
        """The nodes whose answer is awaited in this round."""
        return self._open.asked if self._open is not None else ()

    @property
    def since(self) -> float:
        """When the round began, or the wait for clients."""
        waits = self._gather_until - self._config.start_timeout_s
        return self._open.started if self._open is not None else waits

    @property
    def needed(self) -> int:
        """How many more nodes a round waits for before it begins."""
        wanted = 1 if self._begun else self._config.min_clients
        return 0 if self._open is not None else max(0, wanted - len(self.present))

    def state(self) -> StockState:
        """Return the state for a checkpoint between two rounds."""
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
        if self.number > self._config.rounds:  # a resume of a run that was stopped after its last round
            return self._finish(f"{numbered(self._config.rounds, 'round')} done", complete=True)
        wanted = len(self.present) + self.needed
        late = now >= self._gather_until
        if (seen := len(self.present)) < wanted:
            reason = f"waited {self._config.start_timeout_s:g} s for {wanted} clients, saw {seen}"
            reason += fewer_would_do(seen, 1, wanted)
            return self._finish(reason, complete=False) if late else ()
        if now < self._pauses_until:
            return ()
        free = tuple(node for node in self.present if node not in self._pending)
        self._begun = True
        self._open = _Open(now, set(free))
        for node in free:
            self._pending[node] = _Pending(self.number, self.version, now)
        return tuple(Ask(node, self.number, self.version) for node in free)

    def _settle(self, current: _Open, now: float) -> tuple[Output, ...]:
        """Close the round if all answers are here or its deadline has passed."""
        waited_s, limit_s = now - current.started, self.limit_s
        if current.weight > 0:
            over = not current.asked or waited_s >= limit_s
        else:
            over = not self._pending or waited_s >= FRUITLESS_DEADLINES * limit_s
        return self._close(current, now) if over else ()

    def _close(self, current: _Open, now: float) -> tuple[Output, ...]:
        for node in current.asked:
            current.rows[node] = _row_of(node, failure="not in time")
        row = self._row(current, now)
        self._open = None
        self.number += 1
        self.version += current.weight > 0
        self._fruitless = 0 if current.weight > 0 else self._fruitless + 1
        self._pauses_until = now if current.weight > 0 else now + LEAST_DEADLINE_S
        self._gather_until = now + self._config.start_timeout_s
        closed = Closed(row, self.version, current.weight)
        if self._fruitless == GIVE_UP_AFTER:
            reason = caused(_fault_of(row), f"{GIVE_UP_AFTER} rounds in a row gave nothing")
            return (closed, *self._finish(reason, complete=False))
        if self.number > self._config.rounds:
            return (closed, *self._done(row))
        return (closed,)

    def _done(self, last: RoundRow) -> tuple[Output, ...]:
        done = f"{numbered(self._config.rounds, 'round')} done"
        if self.version:
            return self._finish(done, complete=True)
        reason = caused(_fault_of(last), f"{done}, and no work was ever counted")
        return self._finish(reason, complete=False)

    def _is_pending(self, node: int, round_: int) -> bool:
        """Whether a node owes the answer of this round; a node that was lost owes only what it got since."""
        return node in self._pending and self._pending[node].round == round_

    def _is_late(self, node: int) -> bool:
        return node in self._pending and self._pending[node].round < self.number

    def _miss(self, node: int, reason: str) -> None:
        self._pending.pop(node, None)
        if self._open is not None and node in self._open.asked:
            self._open.asked.discard(node)
            self._open.rows[node] = _row_of(node, failure=reason)

    def _finish(self, reason: str, *, complete: bool) -> tuple[Output, ...]:
        self.finished = Finished(reason, complete)
        return (self.finished,)

    def _row(self, current: _Open, now: float) -> RoundRow:
        rows = tuple(current.rows[node] for node in sorted(current.rows))
        counted = sum(row.counted for row in rows)
        complete = counted == len(rows)
        outcome: Outcome = "empty" if not counted else "synced" if complete else "approximate"
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
            replicas=0,
            blocks=0,
            needed=counted,
            amplification=None,
            error=None,
            loss=loss,
            samples=round(current.examples),
            skips=0,
            takes=0,
            pruned=0,
            repairs=0,
            reason="every answer is here" if complete else "some answers are not here in time",
            clients=rows,
        )


def _fault_of(row: RoundRow) -> str:
    failed = [each for each in row.clients if each.failure]
    if not failed:
        return "no client answered"
    first = failed[0]
    more = sum(each.failure == first.failure for each in failed) - 1
    return f"{first.client}{f' and {more} more' if more else ''}: {first.failure}"


def name_of(node: int) -> str:
    """Return a node's name in the history.

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
