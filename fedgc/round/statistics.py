"""What is counted while a round runs: it decides nothing, and becomes the round's row."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class RoundStatistics:
    """What is counted while a round runs; index w is a client of the plan."""

    finished: list[int]  # chunks, or, at the end of local work, steps
    counted: list[int]
    steps: list[int]
    refused: list[int]
    busy_s: list[float]
    step_s: list[list[float]]
    failure: list[str]
    skips: int = 0
    takes: int = 0
    repairs: int = 0
    pruned: int = 0
    disputed: Mapping[int, tuple[int, ...]] = field(default_factory=dict)  # by chunk whose copies differ

    @classmethod
    def empty(cls, clients_w: int) -> "RoundStatistics":
        """Nothing has happened yet."""
        zeros = [0] * clients_w
        return cls(
            zeros[:], zeros[:], zeros[:], zeros[:], [0.0] * clients_w, [[] for _ in zeros], [""] * clients_w
        )

    def count(self, counted: Mapping[int, int]) -> None:
        """Take note of what is in the sum; that was finished, also where nobody was told so."""
        for w, count in counted.items():
            self.counted[w] = count
            self.finished[w] = max(self.finished[w], count)
