"""A recorded run, rebuilt for the virtual clock: speeds, links and absences of its clients, round by round.

Only the rows of the history are read. For each client and round they give the time of a step, the times of
its vectors, and whether it took part:

    away   no row; or no work, with a failure or without any traffic. The client is gone until the next round
           in which it takes part. It goes in the middle of the work of the first such round, or of a usual
           one if that is shorter. It is noticed when a row says that it was lost, and not before it is back
           if no row says so.
    lost   and back within the round: it has work, and was away for the rest of the round's work.
    mute   other failures and work, but nothing in the sum: its uplink takes forever in this round.

A value that a round lacks is that of the round before. Rounds after the known ones repeat them, without the
first, in which processes start. A client that is away at the end of the known rounds returns after the mean
time of the absences that have ended by then, and never if there are none.

Shape letters: r rounds, w clients.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Final, Self

import numpy as np

from fedgc.config import RunConfig, known
from fedgc.errors import Unusable
from fedgc.history import ClientRow, RoundRow
from fedgc.round.departures import LEFT
from fedgc.run.client_notes import LOST
from fedgc.sim.clock import FLOAT_BYTES, NEVER, ClientModel, Conditions, Failure, working
from fedgc.sim.clock.conditions import Float
from fedgc.sim.play import seconds_of
from fedgc.store.database import Store
from fedgc.store.parts import client_parts

LATER: Final = 2.0  # times an absence that was not noticed: when it would have been
Failures = Mapping[int, Sequence[tuple[int, Failure]]]  # by index of the round


@dataclass(frozen=True, slots=True)
class PastRun:
    """A run from the store: its settings, its size, and its rounds with the rows of their clients."""

    name: str
    config: RunConfig
    numbers: int  # of the model
    chunks: int
    rounds: tuple[RoundRow, ...]

    @classmethod
    def read(cls, store: Store, key: str) -> Self:
        """Return a run of the store; raise Unusable for one that the clock cannot play."""
        run, clients = store.run(key), defaultdict[int, list[ClientRow]](list)
        config = RunConfig.read({**known(run.settings), "resume": ""})
        plans = store.decisions(run.run, limit=1, what="plan")
        basis = plans[-1].basis if plans else {}
        rounds = store.rounds(run.run)
        for part in client_parts(store, run.run, rounds):
            for number, row in part:
                clients[number].append(row)
        rows = tuple(replace(each.row, clients=tuple(clients[each.row.round])) for each in rounds)
        folded = any(len(row.clients) < each.clients for row, each in zip(rows, rounds, strict=True))
        numbers, chunks = (_count(basis.get(name)) for name in ("numbers", "chunks"))
        free = bool(basis.get("free")) and chunks > 0
        if not rounds:
            raise Unusable(f"run {run.run}: saw no round, needed one with rounds")
        if why := _unplayable(config, numbers, free=free, folded=folded):
            raise Unusable(f"run {run.run}: saw {why}")
        return cls(run.run, config, numbers, chunks, rows)


def _count(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _unplayable(config: RunConfig, numbers: int, *, free: bool, folded: bool) -> str:
    """Return what is against playing a run, and what was needed instead."""
    if config.secrecy == "masked":
        return "masked exchanges, needed open ones: the agreement on keys is not simulated"
    if config.client_app == "stock":
        return "clients of plain Flower, needed those of fedgc: their steps are not recorded"
    if config.site_gateway:
        return "the fleet of a site, needed a run of its own: this one waits for its consortium"
    if config.clients_per_round:
        return (
            "a sample of the clients in each round, needed all: whether the others were there is not recorded"
        )
    if config.work == "coded" and not free:
        return "coded work on data that only some clients can load, needed data for all"
    if not numbers:
        return "no plan with the size of its model, needed one"
    return "rounds whose client rows were folded, needed all rows" if folded else ""


@dataclass(frozen=True, slots=True)
class PastClients:
    """The clients in the known rounds; `arrives_s_w` is 0 for those that were there at the beginning."""

    names: tuple[str, ...]
    step_s_rw: Float
    up_s_rw: Float
    down_s_rw: Float
    arrives_s_w: Float
    failures: Failures

    def model(self, steps: int, chunks: int) -> "RepeatedRounds":
        """Return these clients for the clock; a unit of work is so many steps, and so is each chunk."""
        conditions = [
            working(steps * step_s_w[:, None], up_s=up_s_w, down_s=down_s_w)
            for step_s_w, up_s_w, down_s_w in zip(self.step_s_rw, self.up_s_rw, self.down_s_rw, strict=True)
        ]
        return RepeatedRounds(conditions, self.failures, chunks)


class RepeatedRounds(ClientModel):
    """Clients under the conditions of known rounds, which repeat without the first."""

    def __init__(self, conditions: Sequence[Conditions], failures: Failures, chunks: int) -> None:
        self._failures, self._known = failures, len(conditions)
        super().__init__(lambda number: conditions[self._at(number)], [1.0] * max(1, chunks))

    def begin(self, number: int) -> Iterable[tuple[int, Failure]]:
        """Apply the conditions of this round; return the failures in it."""
        super().begin(number)
        return self._failures.get(self._at(number), ())

    def _at(self, number: int) -> int:
        at, repeated = number - 1, max(1, self._known - 1)
        return at if at < self._known else self._known - repeated + (at - self._known) % repeated


def rebuilt(rounds: Sequence[RoundRow], numbers: int, grace_s: float) -> PastClients:
    """Return the clients as these rounds show them; those that never took part are left out."""
    by_client: dict[str, dict[int, ClientRow]] = {}
    for r, row in enumerate(rounds):
        for each in row.clients:
            by_client.setdefault(each.client, {})[r] = each
    there = {client: _there(rows, len(rounds)) for client, rows in by_client.items()}
    names = tuple(client for client, there_r in there.items() if any(there_r))
    begins_s = np.cumsum([0.0, *map(seconds_of, rounds)])
    absences = [
        (r, w, failure)
        for w, client in enumerate(names)
        for r, failure in _absences(rounds, by_client[client], there[client], begins_s, grace_s)
    ]

    def table(value: Callable[[ClientRow], float | None], unknown: float) -> Float:
        columns = [_filled(by_client[client], value, len(rounds), unknown) for client in names]
        return np.asarray(columns, np.float64).T

    update_bytes = FLOAT_BYTES * numbers
    up_s_rw = table(lambda row: _link_s(row.upload_s, row.up_bytes, update_bytes), 0.0)
    for w, client in enumerate(names):
        up_s_rw[[r for r, row in by_client[client].items() if _mute(row)], w] = NEVER
    return PastClients(
        names,
        table(_step_s, float(begins_s[-1])),
        up_s_rw,
        table(lambda row: _link_s(row.download_s, row.down_bytes, update_bytes), 0.0),
        np.asarray([begins_s[there[client].index(True)] for client in names]),
        _returning(absences),
    )


def _returning(absences: Sequence[tuple[int, int, Failure]]) -> Failures:
    """Return the absences by the round of their begin; one whose end is unknown takes the mean time."""
    lasted_s = [each.returns_s - each.dies_s for _, _, each in absences if each.returns_s < NEVER]
    usual_s = fmean(lasted_s) if lasted_s else NEVER
    found = defaultdict[int, list[tuple[int, Failure]]](list)
    for r, w, failure in absences:
        if failure.returns_s == NEVER:
            failure = replace(failure, returns_s=failure.dies_s + usual_s)
        found[r].append((w, failure))
    return found


def _there(rows: Mapping[int, ClientRow], rounds: int) -> list[bool]:
    return [(row := rows.get(r)) is not None and not _away(row) for r in range(rounds)]


def _away(row: ClientRow) -> bool:
    if row.finished or row.steps:
        return False
    return bool(row.failure) or not row.up_bytes + row.down_bytes + row.control_bytes


def _was_lost(row: ClientRow) -> bool:
    return row.failure in {LOST, LEFT}


def _mute(row: ClientRow) -> bool:
    return bool(row.failure) and not _was_lost(row) and row.finished > 0 and not row.counted


def _absences(
    rounds: Sequence[RoundRow],
    rows: Mapping[int, ClientRow],
    there_r: Sequence[bool],
    begins_s: Float,
    grace_s: float,
) -> Iterator[tuple[int, Failure]]:
    """Yield each absence after the first round in which a client takes part, with the round of its begin."""
    begun = there_r.index(True)
    usual_s = median(row.working_s for row in rounds)
    for r in range(begun + 1, len(rounds)):
        if there_r[r]:
            if _was_lost(rows[r]):
                back_s = max(0.0, rounds[r].working_s - rows[r].busy_s)
                yield r, Failure(max(0.0, back_s - grace_s) / 2, back_s)
            continue
        if not there_r[r - 1]:
            continue
        back = next((later for later in range(r, len(rounds)) if there_r[later]), None)
        gone = [rows.get(each) for each in range(r, len(rounds) if back is None else back)]
        dies_s = min(rounds[r].working_s, usual_s) / 2 if gone[0] and gone[0].failure else 0.0
        returns_s = NEVER if back is None else max(dies_s, float(begins_s[back] - begins_s[r]))
        lost = next((r + at for at, row in enumerate(gone) if row and row.failure == LOST), None)
        if gone[0] is None or gone[0].failure == LEFT:  # it said so
            noticed_s = 0.0
        elif lost is not None:
            share = 1.0 if lost == r else 0.5  # of the round's work: the round waited for it, or not
            noticed_s = float(begins_s[lost] - begins_s[r]) + share * rounds[lost].working_s - dies_s
        else:  # not before it was back, if it was
            noticed_s = grace_s if back is None else max(grace_s, LATER * (returns_s - dies_s))
        yield r, Failure(dies_s, returns_s, noticed_s=noticed_s)


def _filled(
    rows: Mapping[int, ClientRow], value: Callable[[ClientRow], float | None], rounds: int, unknown: float
) -> list[float]:
    """Return a value in each round: where it is missing, that of the round before, or the first one."""
    found = {r: each for r, row in rows.items() if (each := value(row)) is not None}
    last = found[min(found)] if found else unknown
    return [last := found.get(r, last) for r in range(rounds)]


def _step_s(row: ClientRow) -> float | None:
    if row.steps and row.busy_s > 0:
        return row.busy_s / row.steps
    return row.step_s or None


def _link_s(seconds: float, size_bytes: int, update_bytes: int) -> float | None:
    """Return the time of a whole update on a link over which so many bytes went, if any did."""
    return seconds / size_bytes * update_bytes if size_bytes and seconds > 0 else None
