"""Counters of a round; they become its row in the history and decide nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class RoundStatistics:
    """The counters of a round; index w is a client of the plan."""

    finished: list[int]  # chunks, or, at the end of local work, steps
    counted: list[int]
    steps: list[int]
    refused: list[int]
    busy_s: list[float]
    step_s: list[list[float]]
    failure: list[str]
    open: list[int]  # local steps since the last exchange that are in no sum yet
    discarded: list[int]  # local steps that no sum can count any more
    skips: int = 0
    takes: int = 0
    repairs: int = 0
    pruned: int = 0
    awaited: set[int] = field(default_factory=set)  # clients that the round waited for and that gave nothing
    counted_in_part: Sequence[int] = ()  # chunks whose update is far longer than usual
    disputed: Mapping[int, tuple[int, ...]] = field(default_factory=dict)  # by chunk whose replicas differ

    @classmethod
    def empty(cls, clients_w: int) -> "RoundStatistics":
        """Return counters at zero."""
        zeros = [0] * clients_w
        return cls(
            zeros[:], zeros[:], zeros[:], zeros[:], [0.0] * clients_w, [[] for _ in zeros], [""] * clients_w,
            zeros[:], zeros[:],
        )  # fmt: skip

    def moved(self, w: int, steps: int) -> None:
        """Note that a client is so many local steps beyond the common model; it has discarded any others."""
        self.discarded[w] += max(0, self.open[w] - steps)
        self.open[w] = steps

    def came_late(self, w: int, steps: int, seconds: float) -> None:
        """Enter the local steps of an update of an earlier round."""
        self.finished[w], self.steps[w], self.open[w] = steps, max(0, steps - self.open[w]), 0
        self.busy_s[w], self.step_s[w] = seconds, [seconds / steps]

    def comes_later(self, w: int, counted: int) -> None:
        """Leave the present work of a client to a later round; `counted` of it are in this sum already."""
        self.finished[w] = counted
        if not counted:
            self.steps[w], self.busy_s[w] = 0, 0.0

    def count(self, counted: Mapping[int, int]) -> None:
        """Enter the work in the sum; it is also finished, even if no report said so."""
        for w, count in counted.items():
            self.counted[w] = count
            self.finished[w] = max(self.finished[w], count)
