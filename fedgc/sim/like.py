"""A prediction held against what happened: the second half of a recorded run, predicted from its first.

The clients of the first half (`past_run`) play the whole run on the virtual clock, through the `Run` that
serves real clients, with the settings of the run; in the second half they repeat what they did in the first.
What the simulation of the first half lacks beside what was seen there (evaluation, checkpoints, a busy disk)
is added to the second, separately for rounds with and without an exchange. An update, a model and the other
messages of a round have as many bytes as in the first half. Nothing of the second half enters its prediction
but the number of its rounds.

A gate is asked as in a run, and sees a drift that grows with the steps since the exchange, at a constant
loss. A gate that looks at anything else (`relative-change`, and gates of other packages) is replaced by a
fixed period, that of the first half.

    round_s    mean time of a round: work and collecting
    bytes      of a round, all clients in both directions
    waste      share of the finished work that is in no sum
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Final, Self

from fedgc.errors import Unusable
from fedgc.history import RoundRow
from fedgc.messages import SUMMED
from fedgc.run.machine import RunParts
from fedgc.run.planner import Planner
from fedgc.sim.past_run import PastClients, PastRun, rebuilt
from fedgc.sim.play import TimedClients, play, seconds_of, waste_of

LEAST_ROUNDS: Final = 8
PLAYED_GATES: Final = ("every", "drift", "pace", "loss-change", "qsr")


@dataclass(frozen=True, slots=True)
class Totals:
    """The figures of some rounds; `round_s` and `round_bytes` are means."""

    rounds: int
    exchanges: int
    round_s: float
    round_bytes: float
    waste: float


@dataclass(frozen=True, slots=True)
class Likeness:
    """What was predicted for the second half of a run, and what was seen."""

    run: str
    clients: int
    known: int  # rounds that the prediction was made from
    predicted: Totals
    seen: Totals

    @property
    def round_s_error(self) -> float:
        """The error of the time of a round, as a share of what was seen."""
        return _error(self.predicted.round_s, self.seen.round_s)

    @property
    def bytes_error(self) -> float:
        """The error of the bytes of a round, as a share of what was seen."""
        return _error(self.predicted.round_bytes, self.seen.round_bytes)

    @property
    def waste_error(self) -> float:
        """The difference of the shares of work that were wasted."""
        return abs(self.predicted.waste - self.seen.waste)


def _error(predicted: float, seen: float) -> float:
    return abs(predicted / seen - 1.0) if seen else float(predicted != seen)


def predict_like(past: PastRun, planner: Callable[[PastRun], Planner] | None = None) -> Likeness:
    """Predict the second half of a run; `planner` makes the planner of coded work with open settings."""
    rounds, half = past.rounds, len(past.rounds) // 2
    if len(rounds) < LEAST_ROUNDS:
        raise Unusable(f"run {past.name}: saw {len(rounds)} rounds, needed at least {LEAST_ROUNDS}")
    first, second = rounds[:half], rounds[half:]
    if not any(row.outcome in SUMMED for row in first):
        raise Unusable(f"run {past.name}: saw no exchange in its first half, needed one")
    clients = rebuilt(first, past.numbers, past.config.grace_s)
    played, local = _played(past, clients, planner), past.config.work == "local"
    return Likeness(
        past.name,
        len(clients.names),
        half,
        _corrected(played[half:], played[:half], first, local=local),
        _totals(second, sum(map(seconds_of, second)), sum(map(_bytes, second)), local=local),
    )


def _corrected(
    played: Sequence[RoundRow], fitted: Sequence[RoundRow], seen: Sequence[RoundRow], *, local: bool
) -> Totals:
    """Return the totals of played rounds, corrected by what was seen where others were played."""
    seconds = 0.0
    for exchanged in (True, False):
        of_kind = [row for row in played if (row.outcome in SUMMED) == exchanged]
        there = [row for row in fitted if (row.outcome in SUMMED) == exchanged]
        real = [row for row in seen if (row.outcome in SUMMED) == exchanged]
        if of_kind:
            lacks_s = _mean_s(real) - _mean_s(there) if real and there else 0.0
            seconds += len(of_kind) * max(0.0, _mean_s(of_kind) + lacks_s)
    totals = _totals(played, seconds, _Traffic.of(seen).bytes_of(played), local=local)
    lacks = waste_of(seen, local=local) - waste_of(fitted, local=local)
    return replace(totals, waste=min(1.0, max(0.0, totals.waste + lacks)))


@dataclass(frozen=True, slots=True)
class _Traffic:
    """Bytes of an update, of a model, and of all other messages of a client in a round."""

    up_bytes: float
    down_bytes: float
    control_bytes: float

    @classmethod
    def of(cls, rows: Sequence[RoundRow]) -> Self:
        """Return the means of these rounds."""
        names, counts = ("up_bytes", "down_bytes", "control_bytes"), _vectors(rows)
        totals = [sum(getattr(each, name) for row in rows for each in row.clients) for name in names]
        return cls(*(total / count if count else 0.0 for total, count in zip(totals, counts, strict=True)))

    def bytes_of(self, rows: Sequence[RoundRow]) -> float:
        """Return the bytes of these rounds."""
        up, down, others = _vectors(rows)
        return up * self.up_bytes + down * self.down_bytes + others * self.control_bytes


def _vectors(rows: Sequence[RoundRow]) -> tuple[int, int, int]:
    """Return how many updates and models were sent, and the rounds of all clients that took part.

    A client gets a model before the first round in which it works on it.
    """
    parts = [(row, each) for row in rows for each in row.clients if each.steps or each.counted]
    models = {(each.client, row.version) for row, each in parts}
    return sum(bool(each.counted) for _, each in parts), len(models), len(parts)


def _totals(rows: Sequence[RoundRow], seconds: float, size_bytes: float, *, local: bool) -> Totals:
    exchanges = sum(row.outcome in SUMMED for row in rows)
    waste = waste_of(rows, local=local)
    return Totals(len(rows), exchanges, seconds / len(rows), size_bytes / len(rows), waste)


def _mean_s(rows: Iterable[RoundRow]) -> float:
    return fmean(map(seconds_of, rows))


def _bytes(row: RoundRow) -> int:
    return sum(each.up_bytes + each.down_bytes + each.control_bytes for each in row.clients)


def _played(
    past: PastRun, clients: PastClients, planner: Callable[[PastRun], Planner] | None
) -> Sequence[RoundRow]:
    """Play as many rounds as the run has."""
    config, first, wanted = past.config, past.rounds[: len(clients.step_s_rw)], len(past.rounds)
    config = replace(config, min_clients=max(1, int((clients.arrives_s_w == 0).sum())))
    if config.chosen_gate not in PLAYED_GATES:
        exchanges = sum(row.outcome in SUMMED for row in first)
        config = replace(config, gate="every", gate_period=max(1, round(len(first) / exchanges)))
    model = clients.model(config.round_steps, past.chunks)
    timed = TimedClients(clients.names, model, past.numbers, past.chunks, tuple(clients.arrives_s_w.tolist()))
    played = play(config, timed, wanted, RunParts(planner(past) if planner else None))
    if len(played.rows) < wanted:
        ended = f"its simulation ended in round {len(played.rows) + 1} ({played.ended})"
        raise Unusable(f"run {past.name}: {ended}, needed {wanted} rounds")
    return played.rows
