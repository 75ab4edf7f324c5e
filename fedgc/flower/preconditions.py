"""Checks before a run begins: its name is new or it resumes correctly, and its files can be written.

Both the command line and the ServerApp call them.
"""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from fedgc.config import RunConfig
from fedgc.errors import BadSetting, Unusable
from fedgc.files import make_folder, opener
from fedgc.messages import SUMMED
from fedgc.run.figure_names import is_lowest
from fedgc.store import checkpoint
from fedgc.store.database import Store
from fedgc.store.later_starts import later_starts
from fedgc.store.reading import LOST, RESTORE
from fedgc.store.views import Round, Run

OF_A_RESUME: Final = ("resume", "run")
NOT_KEPT: Final = "the other settings of this resume are not kept"  # in the reason for the end of one


def must_be_new(run: str, store: Store, runs: Path) -> None:
    """Refuse the name of a run that has made models; a run without models may start again.

    So may a run whose server ended before it had written the checkpoint of its first model.
    """
    folder = runs / run
    if checkpoint.versions(folder) or checkpoint.listed(folder) or _made_a_model(run, store):
        there = f"run {run}: there is one of that name already"
        if _is_stored(run, store):
            raise Unusable(f"{there}, needed a new name, or --resume {run}")
        raise Unusable(f"{there}: saw its checkpoints in {folder}, {LOST}, or a new name")


def must_go_on(config: RunConfig, reached: int) -> None:
    """Refuse to resume a run if the setting `rounds` is below the round it has reached.

    The run of a site has as many rounds as its consortium asks for.
    """
    if config.rounds < reached and not config.site_gateway:
        raise BadSetting(f"setting rounds: saw {config.rounds}, the run is at {reached}, needed more")


def must_have_model(run: str, runs: Path) -> None:
    """Refuse to resume a run without a checkpoint: its rounds were all skipped, or gave nothing."""
    if not checkpoint.versions(runs / run):
        raise Unusable(
            f"run {run}: saw no checkpoint in {runs / run}, needed one to go on from: start it again with "
            f"--set run={run}"
        )


def rounds_done(rounds: Sequence[Round]) -> int:
    """Return the newest round of these that was not stopped before its end, 0 if there is none."""
    return max((each.row.round for each in rounds if each.row.outcome != "stopped"), default=0)


def reached_in(store: Store, run: Run) -> int:
    """Return the round at which a run is: after its end, a restore may have taken it back."""
    for restored in store.decisions(run.run, limit=1, what=RESTORE):
        if run.ended is not None and restored.now >= run.ended:
            return restored.round
    return rounds_done(store.rounds(run.run))


def must_have_rounds_left(config: RunConfig, store: Store) -> None:
    """Refuse to resume a complete run without more rounds; it would only rewrite the run's last state.

    A start that its app has gone on from is not refused: it returns its model to the app.
    """
    run = store.run(config.resume)
    done = reached_in(store, run)
    ends = config.rounds <= done and not config.site_gateway and not later_starts(store, run)
    if run.state == "completed" and ends:
        raise Unusable(f"run {run.run} is complete at round {done}: --set rounds=N, above {done}, trains on")


def changed(config: RunConfig, before: Mapping[str, object]) -> str:
    """Describe the settings that a resume changes; empty if there are none.

    >>> changed(RunConfig(learning_rate=0.5), RunConfig(learning_rate=0.1, resume="demo").table())
    'learning-rate was 0.1, is 0.5'
    """
    named = ((name, before[name], now) for name, now in config.table().items() if name in before)
    return ", ".join(
        f"{name} was {was}, is {now}" for name, was, now in named if was != now and name not in OF_A_RESUME
    )


def reached(folder: Path) -> int:
    """Return the round of the checkpoint that a resume continues from, 0 if there is none."""
    return max(
        (each.round for each in checkpoint.listed(folder) if not (each.aside or each.pinned)),
        default=0,
    )


def must_know_best(config: RunConfig) -> None:
    """Refuse a figure for the best model if neither its name nor a setting says which values are better."""
    if config.best:
        is_lowest(config.best, config.best_is)


def must_be_kept(config: RunConfig, folder: Path) -> None:
    """Refuse a checkpoint folder or log file that cannot be written."""
    if config.keep_checkpoints:
        try:
            make_folder(folder)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            raise BadSetting(
                f"setting history.checkpoint-dir: saw {folder} ({error.strerror or error}), "
                "needed a folder to write"
            ) from error
    if config.log_file:
        try:
            with open(config.log_file, "a", opener=opener):
                pass
        except OSError as error:
            raise BadSetting(
                f"setting history.log-file: saw {config.log_file} ({error.strerror or error}), "
                "needed a file to write"
            ) from error


def _is_stored(run: str, store: Store) -> bool:
    try:
        store.run(run)
    except Unusable:
        return False
    return True


def _made_a_model(run: str, store: Store) -> bool:
    if not _is_stored(run, store):
        return False
    found = store.run(run)
    made = sum(each.row.outcome in SUMMED for each in store.rounds(run))
    return made > (0 if found.state == "completed" else 1)
