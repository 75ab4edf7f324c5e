"""Names clients whose samples do not count in full (`aggregation.largest-share`)."""

from bisect import bisect_left, insort
from collections.abc import Callable

from fedgc.config import RunConfig
from fedgc.messages import Event, Joined, Lost
from fedgc.round.local.weights import MANY, bounded_weights
from fedgc.run.sample_pins import SamplePins


class SampleShares:
    """What each present client announced."""

    def __init__(self, config: RunConfig, pins: SamplePins) -> None:
        self._largest = config.largest_share if config.work == "local" and not config.is_private else 1.0
        self._samples: dict[str, int] = {}
        self._sorted: list[int] = []  # the same numbers, the smallest first
        self._pins = pins

    def handle(self, event: Event, name_of: Callable[[str], str]) -> str:
        """Take in an event; return a warning if the largest client does not count in full.

        >>> from fedgc.messages import Held
        >>> shares, claims = SampleShares(RunConfig(), SamplePins()), (("a", 9), ("b", 9), ("c", 999))
        >>> [shares.handle(Joined(0.0, who, True, (Held("x", n),)), str.upper) for who, n in claims][-1]
        'C announces 999 samples, far more than the others: it counts as 18 (aggregation.largest-share)'
        """
        if isinstance(event, Lost | Joined):
            self._forget(event.client)
        if not isinstance(event, Joined):
            return ""
        announced = sum(held.samples for held in event.holds)
        if not announced:  # no data: its number says nothing of the others'
            return ""
        self._samples[event.client] = announced
        insort(self._sorted, announced)
        return self._warning(name_of) if self._some_are_large or not self._pins.is_empty else ""

    @property
    def _some_are_large(self) -> bool:
        """Whether a client announces so much that it may not count in full."""
        return self._sorted[-1] > MANY * self._sorted[(len(self._sorted) - 1) // 2]

    def _forget(self, client: str) -> None:
        samples = self._samples.pop(client, None)
        if samples is not None:
            del self._sorted[bisect_left(self._sorted, samples)]

    def _warning(self, name_of: Callable[[str], str]) -> str:
        clients = sorted(self._samples, key=lambda each: self._samples[each])
        samples = {w: self._samples[each] for w, each in enumerate(clients)}
        pins = {w: pin for w, each in enumerate(clients) if (pin := self._pins.of(each)) is not None}
        weights = bounded_weights({**samples, **pins}, self._largest, pins)
        largest, announced = weights[len(clients) - 1], self._samples[clients[-1]]
        if largest >= announced or len(clients) - 1 in pins:
            return ""
        return (
            f"{name_of(clients[-1]) or clients[-1]} announces {announced} samples, far more than the others: "
            f"it counts as {largest:.0f} (aggregation.largest-share)"
        )
