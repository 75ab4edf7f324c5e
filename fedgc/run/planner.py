"""What a run asks of a planner: the plan of the next round, from what was measured.

`tuner.Tuner` is one. A run without a planner places chunks by speed with the replicas that the settings name.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from fedgc.history import PastRound, Speeds
from fedgc.round.plan import Fleet, Plan


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """The round that a plan is wanted for. `present` is the plan of the round before.

    `anew`: other clients are there than `present` was made for, so that it does not serve any more.
    """

    round: int
    rounds_left: int
    fleet: Fleet
    speeds: Speeds
    present: Plan | None
    anew: bool


class Planner(Protocol):
    """Chooses replicas, blocks, loads and deadline between the rounds of one run."""

    def plan(self, request: PlanRequest) -> Plan:
        """Return the plan for this round: `request.present` itself where it still fits."""

    def weights(self, plan: Plan) -> tuple[float, ...]:
        """Return the weight of each chunk of a plan in a round that is cut short."""

    def learn(self, past: PastRound) -> None:
        """Take in an exchanged round of this run."""

    @property
    def basis(self) -> Mapping[str, object]:
        """What the last choice was made from and predicts, as plain values."""
