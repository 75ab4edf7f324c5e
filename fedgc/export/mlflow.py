"""A run for MLflow: settings as parameters, measures round by round, under the run's own name.

MLflow's telemetry is disabled.
"""

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import chain, count
from pathlib import Path
from posixpath import normpath
from typing import Any, Final

from fedgc.errors import EdgeFailed, Unusable, words_of
from fedgc.export.rows import measures
from fedgc.store.views import Round, Run

EXPERIMENT: Final = "fedgc"
TAG: Final = "fedgc.run.machine"
BATCH: Final = 1000  # measures in one request to a tracking server
RETRIES: Final = "2"  # the default is seven, which takes minutes without a server
REFUSED: Final = re.compile(r"[^\w.\- :/]")
_STATES: Final = {"completed": "FINISHED", "failed": "FAILED", "stopped": "KILLED", "running": "RUNNING"}


def log_run(
    run: Run, rounds: Iterable[Round], tracking: str, scored: Mapping[int, Mapping[str, float]] | None = None
) -> str:
    """Log a run to a tracking address (a path is an SQLite file), and return MLflow's id of it.

    `scored` are figures of clients by round.
    """
    tracking = tracking if "://" in tracking else f"sqlite:///{Path(tracking).absolute()}"
    os.environ |= {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_LOGGING_LEVEL": "WARNING"}
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", RETRIES)
    try:
        from mlflow import MlflowClient
    except ImportError as error:
        raise Unusable(
            f"export mlflow: saw no mlflow ({error}), needed it: pip install mlflow-skinny"
        ) from error
    try:
        return _logged(MlflowClient(tracking_uri=tracking), run, rounds, scored or {})
    except Unusable:
        raise
    except Exception as error:  # its own, a database's, a disk's: MLflow raises many types
        raise EdgeFailed(f"mlflow at {tracking}: {words_of(error)}") from error


def _logged(
    client: Any,  # noqa: ANN401  (its type is an extra's)
    run: Run,
    rounds: Iterable[Round],
    scored: Mapping[int, Mapping[str, float]],
) -> str:
    known = client.get_experiment_by_name(EXPERIMENT)
    experiment = known.experiment_id if known else client.create_experiment(EXPERIMENT)
    if client.search_runs([experiment], f"tags.`{TAG}` = '{run.run}'", max_results=1):
        raise Unusable(f"mlflow: saw run {run.run} there, needed a place without it")
    began = round(run.started * 1000)
    made = client.create_run(
        experiment, began, {TAG: run.run, "fedgc.training.tasks": run.task}, run.run
    ).info.run_id
    try:
        _log(client, made, run, rounds, scored)
    except BaseException:
        with suppress(Exception):  # the reason is the first error
            client.delete_run(made)
        raise
    return str(made)


def _log(
    client: Any,  # noqa: ANN401  (its type is an extra's)
    made: str,
    run: Run,
    rounds: Iterable[Round],
    scored: Mapping[int, Mapping[str, float]],
) -> None:
    from mlflow.entities import Metric, Param

    began = round(run.started * 1000)
    client.log_batch(made, params=[Param(name, str(value)) for name, value in run.settings.items()])
    names = Names()
    waiting = [Metric(names.of(name), value, began, 0) for name, value in scored.get(0, {}).items()]
    for each in rounds:
        row = each.row
        ended = round((row.started + row.working_s + row.collecting_s) * 1000)
        found = {**measures(each), **scored.get(row.round, {})}
        waiting += [Metric(names.of(name), value, ended, row.round) for name, value in found.items()]
        while len(waiting) >= BATCH:
            client.log_batch(made, metrics=waiting[:BATCH])
            del waiting[:BATCH]
    client.log_batch(made, metrics=waiting)
    if run.state != "running":
        client.set_terminated(made, _STATES.get(run.state, "FAILED"), round((run.ended or run.heard) * 1000))


class Names:
    """MLflow's names of the figures of a run, one for each.

    >>> names = Names()
    >>> [names.of(figure) for figure in ("recall@10", "recall_10", "recall@10")]
    ['recall_10', 'recall_10_2', 'recall_10']
    """

    def __init__(self) -> None:
        self._figures: dict[str, str] = {}  # by name

    def of(self, figure: str) -> str:
        """Return the name of a figure, with a number where another figure has its first name."""
        first = _name(figure)
        more = (f"{first}_{number}" for number in count(2))
        name = next(each for each in chain([first], more) if self._figures.get(each, figure) == figure)
        self._figures[name] = figure
        return name


def _name(figure: str) -> str:
    """Return a figure's name with `_` in place of each character that MLflow refuses.

    >>> _name("recall@10"), _name("client/north/acc"), _name("/tmp//acc")
    ('recall_10', 'client/north/acc', '_tmp__acc')
    """
    name = REFUSED.sub("_", figure)
    return name if normpath(name) == name and not name.startswith(("/", "..")) else name.replace("/", "_")
