"""The interface of a planner: the plan of the next round, from measurements.

`tuner.Tuner` is one. A run without a planner places chunks by speed with the replicas in the settings.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from fedgc.history import PastRound, Speeds
from fedgc.round.plan import Fleet, Plan


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """The round to plan. `present` is the plan of the round before.

    `anew`: the clients have changed since `present` was made, so that it is not valid any more.
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
        """Return the plan for this round: `request.present` itself if it still fits."""

    def weights(self, plan: Plan) -> tuple[float, ...]:
        """Return the weight of each chunk of a plan in a round that ends early."""

    def learn(self, past: PastRound) -> None:
        """Learn from an exchanged round of this run."""

    @property
    def basis(self) -> Mapping[str, object]:
        """The inputs and predictions of the last choice, as plain values."""
