"""One round with modelled devices, named one by one: what can still be worked out by hand.

    done = replay(Round(...), {"a": Modelled(chunk_s=1.0), "b": Modelled(chunk_s=4.0)})
    done.seconds, done.spans

May import: round and below; setting, world.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fedgc.errors import BadSetting
from fedgc.replay.conditions import NEVER
from fedgc.replay.pipe import UNCONTENDED, Line
from fedgc.replay.setting import Fate, Span, Terms
from fedgc.replay.world import World
from fedgc.round import Round


@dataclass(frozen=True, slots=True)
class Modelled:
    """How one device behaves: seconds for a chunk (or by chunk number), an upload, a command.

    It may die and return; whether it then still has its work, `keeps` says.
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
        """Return the time that this device needs for a chunk."""
        return self.chunk_s[chunk] if isinstance(self.chunk_s, Mapping) else self.chunk_s


@dataclass(frozen=True, slots=True)
class Replayed:
    """What came out: `computed` chunks were finished, `sent` whole updates went up, in `uploads` parts."""

    round: Round
    seconds: float
    spans: tuple[Span, ...]
    uploads: int
    sent: float = 0.0
    computed: int = 0


class OneByOne:
    """Nature as a list of modelled devices."""

    def __init__(self, models: Sequence[Modelled]) -> None:
        self._models = models

    def seconds(self, worker: int, chunk: int, share: float, worked: float) -> float:  # noqa: ARG002  what was worked before changes nothing
        """A chunk takes what the model says, whatever was worked before."""
        return share * self._models[worker].seconds(chunk)

    def up_s(self, worker: int) -> float:
        """Return the time of a whole update."""
        return self._models[worker].upload_s

    def down_s(self, worker: int) -> float:
        """Return the time of a model."""
        return self._models[worker].download_s

    def control_s(self, worker: int) -> float:
        """Return the latency."""
        return self._models[worker].control_s

    def begin(self, number: int) -> Iterable[tuple[int, Fate]]:  # noqa: ARG002 - all rounds are the same
        """Return who dies, and when."""
        for worker, model in enumerate(self._models):
            if model.dies_s is not None:
                returns_s = NEVER if model.returns_s is None else model.returns_s
                yield worker, Fate(model.dies_s, returns_s, model.keeps)


def replay(
    machine: Round,
    models: Mapping[str, Modelled],
    *,
    now: float = 0.0,
    grace_s: float = 0.0,
    line: Line = UNCONTENDED,
) -> Replayed:
    """Run a round that has not begun to its end; a death is heard of `grace_s` later."""
    devices = machine.plan.devices
    missing = [device for device in devices if device not in models]
    if missing:
        raise BadSetting(f"saw no model of {missing[:8]}, needed one for each device of the plan")
    own = [models[device] for device in devices]
    terms = Terms(machine.assignment.target, grace_s=grace_s, line=line, watch=True)
    world = World(devices, OneByOne(own), terms)
    world.play(machine, [model.live for model in own], now)
    seconds = machine.closed_at - now
    return Replayed(machine, seconds, world.spans(), world.uploads, world.sent, world.computed)


def discarded(replayed: Replayed) -> int:
    """Return how many finished copies of chunks are in no sum."""
    return replayed.computed - sum(replayed.round.tally.counted)


def timeline(replayed: Replayed) -> Sequence[Span]:
    """Return the spans by device and time, as a person reads them."""
    return sorted(replayed.spans, key=lambda span: (span.device, span.begin_s))
