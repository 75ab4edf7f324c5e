"""`fedgc export`: a run as files, or for TensorBoard or MLflow."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from fedgc.cli.signals import like_ctrl_c
from fedgc.errors import Unusable, nearest
from fedgc.export.files import write_csv, write_parquet
from fedgc.export.mlflow import log_run
from fedgc.export.rows import scored_measures, tables
from fedgc.export.tensorboard import write_events
from fedgc.store.database import Store
from fedgc.store.reading import LATEST
from fedgc.store.views import Run


def export(form: str, to: str, run: str | None) -> None:
    """Write a run in one of the formats, and print where it is."""
    write = FORMS.get(form)
    if write is None:
        raise Unusable(f"export: saw {form!r}, needed one of {', '.join(FORMS)}{nearest(form, FORMS)}")
    with like_ctrl_c(), Store.open(reads_only=True) as store:
        chosen = store.run(run or LATEST)
        for written in write(store, chosen, to):
            sys.stdout.write(f"{written}\n")


def _csv(store: Store, run: Run, to: str) -> list[str]:
    return [str(path) for path in write_csv(tables(store, run), Path(to))]


def _parquet(store: Store, run: Run, to: str) -> list[str]:
    return [str(path) for path in write_parquet(tables(store, run), Path(to))]


def _tensorboard(store: Store, run: Run, to: str) -> list[str]:
    return [str(write_events(run, store.rounds(run.run), Path(to), scored_measures(store, run)))]


def _mlflow(store: Store, run: Run, to: str) -> list[str]:
    return [log_run(run, store.rounds(run.run), to, scored_measures(store, run))]


FORMS: Final[Mapping[str, Callable[[Store, Run, str], list[str]]]] = {
    "csv": _csv,
    "parquet": _parquet,
    "tensorboard": _tensorboard,
    "mlflow": _mlflow,
}
