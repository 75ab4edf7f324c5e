"""One run of a sweep that trains: time and bytes until a figure of the task has reached its target."""

import math
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from fedgc.cli.sim_train import Training
from fedgc.errors import Unusable
from fedgc.history import RoundRow
from fedgc.messages import SUMMED
from fedgc.sim.sweep import Trial, scaled
from fedgc.sim.sweep_file import Goal, Sweep, SweepScenario
from fedgc.sim.training import Job, Point, train
from fedgc.training import CommonModel


def trained(within: Path, goal: Goal, sweep: Sweep, at: int, scenario: SweepScenario, seed: int) -> Trial:
    """Train one run with files in a folder; return the time and the bytes until the goal was reached.

    A run that ends before that says why, and may lack an evaluated model.
    """
    job, model_mb = _job(goal, sweep, at, scenario, seed)
    rows, marks = list[RoundRow](), list[tuple[float, float, float]]()
    others = dict[str, None]()

    def heard(point: Point) -> None:
        row = point.row
        rows.append(replace(row, clients=()))
        others.update(dict.fromkeys(point.metrics))
        if goal.figure in point.metrics:
            sent_mb = model_mb * (point.sent + point.down)
            marks.append((point.seconds, sent_mb, point.metrics[goal.figure]))

    done = train(job, heard, within=within)
    if not marks and (others or job.task.evaluate is None):
        seen = f"figures {', '.join(others)}" if others else "no evaluation"
        raise Unusable(f"--sweep: saw {seen} of task {goal.task}, needed the figure {goal.figure}")
    reached = next((mark for mark in marks if goal.is_reached(mark[2])), None)
    exchanges = fmean(row.outcome in SUMMED for row in rows) if rows else 0.0
    return Trial(
        at,
        scenario.name,
        *((math.inf, math.inf) if reached is None else reached[:2]),
        exchanges,
        0.0,
        len(rows),
        ended="" if reached is not None else done.ended or done.spent,
        last=marks[-1][2] if marks else None,
    )


def first_run(goal: Goal, sweep: Sweep) -> Mapping[str, object]:
    """Describe the first run: its settings, model and data."""
    job, _ = _job(goal, sweep, 0, sweep.scenarios[0], 0)
    return job.description(CommonModel(job.task, job.config))


def _job(goal: Goal, sweep: Sweep, at: int, scenario: SweepScenario, seed: int) -> tuple[Job, float]:
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)  # for tasks in the user's folder
    settings = {**sweep.common, **sweep.combinations[at]}
    request = replace(scenario.request, seed=seed)
    job, model_mb = Training(goal.task, request, settings, stack=goal.stack).job()
    return replace(job, scenario=scaled(job.scenario, scenario, job.config)), model_mb
