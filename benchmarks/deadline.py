"""The error of the sum at a deadline: fedgc compared with codes that use complete clients only.

A round ends at 0.9 of fedgc's own median time. Chunk updates are drawn: a unit of data contributes a common
part and an independent part of the same size, so half of a unit's update is shared. The codes and fedgc scale
the received part up to the whole; dropping does not.

The error is ||estimate - sum||^2 / ||sum||^2, the mean over rounds.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from benchmarks.codewords import codeword_of, decode
from fedgc.config import RunConfig
from fedgc.gates import Decision, Reports
from fedgc.history import Speeds
from fedgc.round.machine import Assignment, Round
from fedgc.round.plan import Chunk, Fleet, Plan, make_plan
from fedgc.sim.clock import UNCONTENDED, ClientModel, Conditions, Scenario, Terms, VirtualClock
from fedgc.sim.clock.conditions import Float
from fedgc.sim.ours import PATIENT_S, Fedgc

SHARE: Final = 0.9
NUMBERS: Final = 32  # of an update; enough for a mean over its coordinates


@dataclass(frozen=True, slots=True)
class Errors:
    """Mean squared errors at the same deadline."""

    deadline_s: float
    ours: float
    dropping: float
    full_workers: dict[int, float]  # by load


def errors_at_deadline(scenario: Scenario, policy: Fedgc, rng: np.random.Generator) -> Errors:
    """Measure the errors at 0.9 of the policy's own median time."""
    times = [result.seconds for result in policy.play(scenario, UNCONTENDED)]
    deadline_s = SHARE * float(np.median(times))
    clients = scenario[0].clients
    loads = [load for load in (1, 2, 4, 8) if load <= policy.replicas]
    plan = coded_plan(
        clients,
        clients * policy.pieces,
        replicas=policy.replicas,
        blocks=policy.blocks,
        deadline_s=deadline_s,
        upload_deadline_s=PATIENT_S,
    )
    kinds: dict[str, list[float]] = {"ours": [], "dropping": []}
    full: dict[int, list[float]] = {load: [] for load in loads}
    for number, conditions in enumerate(scenario, start=1):
        updates_cd = _updates(clients, policy.pieces, rng)
        over = _cut_off(plan, conditions, number)
        kinds["ours"].append(_error(_estimate(over, updates_cd), updates_cd))
        kinds["dropping"].append(_error(_dropped(over, updates_cd), updates_cd))
        for load in loads:
            full[load].append(_error(_of_full_workers(conditions, load, deadline_s, updates_cd), updates_cd))
    by_load = {load: float(np.mean(values)) for load, values in full.items()}
    return Errors(deadline_s, float(np.mean(kinds["ours"])), float(np.mean(kinds["dropping"])), by_load)


def coded_plan(clients: int, chunks: int, **settings: Any) -> Plan:  # noqa: ANN401  fields of a RunConfig
    """Return the plan of a round of coded work in which every client may have every chunk."""
    table = tuple(Chunk(number, f"chunk {number}", 1) for number in range(chunks))
    every = frozenset(range(chunks))
    fleet = Fleet({f"client {w}": every for w in range(clients)}, table)
    config = RunConfig(chunks=chunks, local_steps=1, work="coded", **settings)
    return make_plan(fleet, Speeds(), config, steps=1)


def _updates(clients: int, pieces: int, rng: np.random.Generator) -> Float:
    """Return a chunk's update in each row; smaller chunks have the same mean and are noisier."""
    shared_d = rng.standard_normal(NUMBERS)
    own_cd = rng.standard_normal((clients * pieces, NUMBERS))
    updates_cd: Float = shared_d / pieces + own_cd / np.sqrt(pieces)
    return updates_cd


def _cut_off(plan: Plan, conditions: Conditions, number: int) -> Round:
    machine = Round(plan, Assignment(number, number - 1, 1, 0), always)
    pieces = len(plan.chunks) // conditions.clients
    client_model = ClientModel(lambda _: conditions, [1.0 / pieces] * len(plan.chunks))
    VirtualClock(plan.clients, client_model, Terms()).play(machine, [True] * conditions.clients, 0.0)
    return machine


def always(_: Reports) -> Decision:
    """Exchange every round."""
    return Decision(sync=True, reason="every round")


def _estimate(over: Round, updates_cd: Float) -> Float:
    """Return the sum of the codewords of this round."""
    solution = over.result.solution if over.result else None
    if solution is None:
        return np.zeros(NUMBERS)
    updates = dict(enumerate(updates_cd))
    words = {w: codeword_of(solution, w, updates) for w in solution.needed}
    return np.asarray(decode(solution, words, NUMBERS), np.float64)


def _dropped(over: Round, updates_cd: Float) -> Float:
    kept_c = np.ones(len(updates_cd), np.bool_)
    kept_c[list(over.short)] = False
    total: Float = updates_cd[kept_c].sum(axis=0)
    return total


def _of_full_workers(conditions: Conditions, load: int, deadline_s: float, updates_cd: Float) -> Float:
    """Return the scaled sum of the units held by a client that finished all of its chunks (cyclic code)."""
    clients = conditions.clients
    full_w = conditions.after_s(np.full(clients, float(load))) <= deadline_s
    covered = np.zeros(clients, np.bool_)
    for shift in range(load):
        covered |= np.roll(full_w, shift)
    if not covered.any():
        return np.zeros(NUMBERS)
    units_wd = updates_cd.reshape(clients, -1, NUMBERS).sum(axis=1)
    total: Float = units_wd[covered].sum(axis=0) * clients / int(covered.sum())
    return total


def _error(estimate_d: Float, updates_cd: Float) -> float:
    sum_d = updates_cd.sum(axis=0)
    return float(((estimate_d - sum_d) ** 2).sum() / (sum_d**2).sum())


def ratios(errors: Errors, load: int) -> Iterator[tuple[str, float]]:
    """Yield the ratios of the others' errors to ours."""
    least = max(errors.ours, 1e-30)  # an exact sum has only rounding errors
    yield "full clients", errors.full_workers[load] / least
    yield "full clients, best load", min(errors.full_workers.values()) / least
    yield "dropping", errors.dropping / least
