"""What a run says to its driver beside the commands of a round, and what a resumed run needs."""

from collections.abc import Mapping
from dataclasses import dataclass

from fedgc.history import RoundRow
from fedgc.messages import Command, Outcome
from fedgc.round.plan import Plan
from fedgc.run.chunk_table import Known
from fedgc.run.planner import Planner


@dataclass(frozen=True, slots=True)
class Apply:
    """Make model `version` out of the running sum: divided by `weight`, it is the mean update."""

    round: int
    version: int
    weight: float
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Append:
    """Keep this row."""

    row: RoundRow


@dataclass(frozen=True, slots=True)
class Chose:
    """From this round on another plan holds: what it was made from, and why."""

    round: int
    basis: Mapping[str, object]
    reason: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The run is over; `complete` says whether it did all its rounds."""

    reason: str
    complete: bool


Output = Command | Apply | Append | Chose | Finished


@dataclass(frozen=True, slots=True)
class RunState:
    """What a resumed run needs: the round to go on with, its version, and what is known of the clients.

    `gate` is the gate's state as JSON. `first_step` and `common_steps` are those of `Work`. Chunks keep
    their numbers, and the next one that is new gets `next_chunk`.
    """

    round: int
    version: int
    gate: str
    chunks: tuple[Known, ...]
    next_chunk: int
    step_s: tuple[tuple[str, float], ...]
    first_step: int
    common_steps: float


def basis_of(plan: Plan, planner: Planner | None, size: int) -> dict[str, object]:
    """Return what a plan was made from, and what it came to, as plain values."""
    return {
        **(planner.basis if planner else {}),
        "chunks": len(plan.chunks),
        "numbers": size,
        "free": all(len(held) == len(plan.chunks) for held in plan.held.values()),
        "replicas": plan.placement.replicas,
        "most_blocks": plan.most_blocks,
        "deadline_s": plan.deadline_s,
        "loads": dict(zip(plan.clients, plan.placement.loads, strict=True)),
        "step_s": dict(zip(plan.clients, plan.step_s, strict=True)),
        "measured": plan.measured,
        "model_bytes": 4 * size,  # what plain averaging would send of a model, each way
    }


def kind_of(plan: Plan) -> tuple[object, ...]:
    """Return the kind of a plan's rounds: rounds of one kind show the cost of replicas to each other."""
    return plan.clients, len(plan.chunks), plan.most_blocks
