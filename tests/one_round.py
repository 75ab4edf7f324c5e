"""One round with modelled clients given by name, small enough to verify by hand.

done = replay(Round(...), {"a": Modelled(chunk_s=1.0), "b": Modelled(chunk_s=4.0)})
done.seconds, done.spans
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fedgc.errors import BadSetting
from fedgc.round.machine import Round
from fedgc.sim.clock.clock import VirtualClock
from fedgc.sim.clock.conditions import NEVER
from fedgc.sim.clock.interfaces import Failure, Span, Terms
from fedgc.sim.clock.server_link import UNCONTENDED, Line


@dataclass(frozen=True, slots=True)
class Modelled:
    """The behavior of one client: seconds for a chunk (or by chunk number), an upload, a command.

    It may die and return; `keeps`: whether it then still has its work.
    """

    chunk_s: float | Mapping[int, float]
    upload_s: float = 0.0
    control_s: float = 0.0
    dies_s: float | None = None
    returns_s: float | None = None
    keeps: bool = False
    download_s: float = 0.0
    live: bool = True

    def __post_init__(self) -> None:
        each = self.chunk_s.values() if isinstance(self.chunk_s, Mapping) else (self.chunk_s,)
        times = (
            *each,
            self.upload_s,
            self.control_s,
            self.download_s,
            self.dies_s or 0.0,
            self.returns_s or 0.0,
        )
        if not all(math.isfinite(time) and time >= 0 for time in times):
            raise BadSetting(f"{self!r}: needed finite times of 0 or more")
        if self.returns_s is not None and (self.dies_s is None or self.returns_s < self.dies_s):
            raise BadSetting(f"{self!r}: needed a return after a death")

    def seconds(self, chunk: int) -> float:
        """Return the time that this client needs for a chunk."""
        return self.chunk_s[chunk] if isinstance(self.chunk_s, Mapping) else self.chunk_s


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result: `computed` chunks were finished; `sent` whole updates were uploaded in `uploads` parts."""

    round: Round
    seconds: float
    spans: tuple[Span, ...]
    uploads: int
    sent: float = 0.0
    computed: int = 0


class OneByOne:
    """A client model from a list of modelled clients."""

    def __init__(self, models: Sequence[Modelled]) -> None:
        self._models = models

    def seconds(self, w: int, chunk: int, share: float, worked: float) -> float:
        """Return the time of the share of a chunk, independent of earlier work."""
        return share * self._models[w].seconds(chunk)

    def up_s(self, w: int) -> float:
        """Return the time of a whole update."""
        return self._models[w].upload_s

    def down_s(self, w: int) -> float:
        """Return the time of a model."""
        return self._models[w].download_s

    def control_s(self, w: int) -> float:
        """Return the latency."""
        return self._models[w].control_s

    def begin(self, number: int) -> Iterable[tuple[int, Failure]]:
        """Return the failures and their times."""
        for w, model in enumerate(self._models):
            if model.dies_s is not None:
                returns_s = NEVER if model.returns_s is None else model.returns_s
                yield w, Failure(model.dies_s, returns_s, model.keeps)


def replay(
    machine: Round,
    models: Mapping[str, Modelled],
    *,
    now: float = 0.0,
    grace_s: float = 0.0,
    line: Line = UNCONTENDED,
) -> Replayed:
    """Run a round that has not begun to its end; a failure is detected `grace_s` later."""
    clients = machine.plan.clients
    missing = [client for client in clients if client not in models]
    if missing:
        raise BadSetting(f"saw no model of {missing[:8]}, needed one for each client of the plan")
    own = [models[client] for client in clients]
    terms = Terms(machine.assignment.target, grace_s=grace_s, line=line, watch=True)
    clock = VirtualClock(clients, OneByOne(own), terms)
    clock.play(machine, [model.live for model in own], now)
    seconds = machine.closed_at - now
    return Replayed(
        machine, seconds, clock.watched.spans(), clock.uploads.count, clock.uploads.sent, clock.computed
    )


def discarded(replayed: Replayed) -> int:
    """Return how many finished replicas of chunks are in no sum."""
    return replayed.computed - sum(replayed.round.statistics.counted)


def timeline(replayed: Replayed) -> Sequence[Span]:
    """Return the spans sorted by client and time."""
    return sorted(replayed.spans, key=lambda span: (span.client, span.begin_s))
