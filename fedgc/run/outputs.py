"""Outputs of a run to its driver besides the commands of a round, and the state for a resume."""

from collections.abc import Mapping
from dataclasses import dataclass

from fedgc.history import RoundRow
from fedgc.messages import Command
from fedgc.round.plan import Plan
from fedgc.run.chunk_table import Known
from fedgc.run.planner import Planner


@dataclass(frozen=True, slots=True)
class Apply:
    """Make model `version` from the running sum: divided by `weight`, it is the mean update."""

    round: int
    version: int
    weight: float


@dataclass(frozen=True, slots=True)
class Append:
    """Append this row to the history; the round waited for `awaited`, which gave nothing."""

    row: RoundRow
    awaited: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Chose:
    """A new plan holds from this round on: what it was made from, and why."""

    round: int
    basis: Mapping[str, object]
    reason: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The run is over; `complete` says whether all rounds were done, `lacks_clients` that too few came."""

    reason: str
    complete: bool
    lacks_clients: bool = False


Output = Command | Apply | Append | Chose | Finished


@dataclass(frozen=True, slots=True)
class RunState:
    """The state of a run in a checkpoint: the next round, its version, and what is known of the clients.

    `gate` is the gate's state as JSON. `first_step` and `common_steps` are those of `Work`. Chunks keep their
    numbers; `next_chunk` is the next free one. `clients` were present after the last exchange; `asked` were
    asked to train in the present turn (`fedgc.run.choice`).
    """

    round: int
    version: int
    gate: str
    chunks: tuple[Known, ...]
    next_chunk: int
    step_s: tuple[tuple[str, float], ...]
    first_step: int
    common_steps: float
    clients: tuple[str, ...]
    asked: tuple[str, ...] = ()


def basis_of(plan: Plan, planner: Planner | None, size: int) -> dict[str, object]:
    """Return the inputs and results of a plan as plain values."""
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
        "model_bytes": 4 * size,  # bytes of plain averaging per model, each way
    }


def kind_of(plan: Plan) -> tuple[object, ...]:
    """Return the kind of a plan's rounds; rounds of one kind share their measured replication costs."""
    return plan.clients, len(plan.chunks), plan.most_blocks
