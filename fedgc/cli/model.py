"""`fedgc model`: list, export and restore the versions of a run's model."""

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from fedgc.cli.history import must_be_over
from fedgc.cli.signals import like_ctrl_c
from fedgc.cli.view import megabytes, terminal
from fedgc.config import RunConfig, known
from fedgc.errors import Unusable, nearest
from fedgc.messages import SUMMED
from fedgc.store import checkpoint
from fedgc.store.checkpoint import Saved
from fedgc.store.database import Store
from fedgc.store.engine import runs_folder
from fedgc.store.reading import LATEST, RESTORE
from fedgc.store.records import Decided
from fedgc.store.views import Run
from fedgc.web.json_values import printed_json

FORMS: Final = ("file", "peft")  # of an export
SHORT: Final = 12  # displayed digits of a digest
_Metrics = Mapping[int, tuple[float, Mapping[str, float]]]  # by round, with its begin


def show(run: str | None, *, as_json: bool) -> None:
    """Print the saved versions."""
    with Store.open(reads_only=True) as store:
        found = store.run(run or LATEST)
        metrics = _metrics(store, found)
        saved = _listed(store, found)
    best = checkpoint.pinned(_folder(found))
    unpinned = {each.digest for each in saved if not each.pinned}
    saved = tuple(each for each in saved if not (each.pinned and each.digest in unpinned))
    if as_json:
        rows = [_figures(each, metrics, best) for each in saved]
        sys.stdout.write(printed_json({"run": found.run, "versions": rows}) + "\n")
    else:
        terminal().print(_table(found, saved, metrics, best))


def chosen_version(store: Store, run: Run, version: int | None, *, best: bool) -> int:
    """Return the requested version of a run, the best or the newest one."""
    return _chosen(store, run, version, best=best).version


def export(
    path: Path, run: str | None, version: int | None, *, best: bool = False, form: str = FORMS[0]
) -> None:
    """Write a version for use without fedgc: as a file, or its adapter as a folder of PEFT."""
    if form not in FORMS:
        raise Unusable(f"--format: saw {form!r}, needed {' or '.join(FORMS)}{nearest(form, FORMS)}")
    with Store.open(reads_only=True) as store:
        found = store.run(run or LATEST)
        metrics = _metrics(store, found)
        chosen = _chosen(store, found, version, best=best)
    pinned = checkpoint.pinned(_folder(found))
    about = {**_figures(chosen, metrics, pinned), "run": found.run, "task": found.task}
    with like_ctrl_c():  # a file that is not whole is removed
        (_write_adapter if form == "peft" else _write)(path, found, chosen, about)
    sys.stdout.write(f"version {chosen.version} of {found.run}, round {chosen.round}, written to {path}\n")


def restore(run: str | None, version: int) -> None:
    """Make a version the newest one."""
    with Store.open(makes=False) as store:
        found = store.run(run or LATEST)
        must_be_over(found)
        saved = checkpoint.restore(_folder(found), version)
        reason = f"version {version}, of round {saved.round}, is the one to go on from"
        now = max(time.time(), found.ended or 0.0)  # the clock may be set back
        store.write(Decided(now, found.run, saved.round, RESTORE, {"version": version}, reason))
    sys.stdout.write(f"{reason}: `fedgc run --resume {found.first_start}`\n")


def _write(path: Path, run: Run, saved: Saved, about: Mapping[str, Any]) -> None:
    from fedgc.training import export as models
    from fedgc.training.server_optimizer import averaged
    from fedgc.training.tasks import named  # torch is imported only here, where a model is made

    models.check_path(path)
    config = _config(run)
    loaded = checkpoint.load(saved.path.parent, saved.version)
    vector = averaged(config, loaded.optimizer, loaded.model)
    if config.client_app == "stock":
        from fedgc.flower.stock_layout import Layout

        models.write_model(path, Layout.read(loaded.layout).arrays(vector), about)
        return
    if loaded.layout:  # of a training script, whose model has no code here
        from fedgc.messages import Layout as Announced
        from fedgc.training import AnnouncedModel

        models.write_model(path, AnnouncedModel(Announced.read(loaded.layout), vector).state(vector), about)
        return
    sys.path.insert(0, str(Path.cwd()))  # for tasks in the user's folder, as in the run itself
    task = named(config.task, config)
    models.write_model(path, models.state_of(task, config, vector), about)


def _write_adapter(path: Path, run: Run, saved: Saved, about: Mapping[str, Any]) -> None:
    from fedgc.messages import Layout
    from fedgc.training import CommonModel
    from fedgc.training import export as models
    from fedgc.training.server_optimizer import averaged
    from fedgc.training.tasks import named

    models.check_folder(path)
    config, loaded = _config(run), checkpoint.load(saved.path.parent, saved.version)
    if config.client_app == "stock":
        raise Unusable("--format peft: saw a run of stock clients, needed one with clients of fedgc")
    if loaded.layout:
        layout = Layout.read(loaded.layout)
    else:
        sys.path.insert(0, str(Path.cwd()))  # for tasks in the user's folder, as in the run itself
        layout = CommonModel(named(config.task, config), config).layout
    models.write_adapter(path, layout, averaged(config, loaded.optimizer, loaded.model), about)


def _config(run: Run) -> RunConfig:
    """Return the run's settings, with the CPU as device."""
    return RunConfig.read({**known(run.settings), "client.device": "cpu"})


def _folder(run: Run) -> Path:
    return runs_folder(str(run.settings.get("history.checkpoint-dir", "")), os.environ) / run.run


def _listed(store: Store, run: Run) -> tuple[Saved, ...]:
    saved = checkpoint.listed(_folder(run))
    if not saved:
        made = any(each.row.outcome in SUMMED for each in store.rounds(run.run))
        why = "history.keep-checkpoints says why" if made else "no round of it has made a model"
        raise Unusable(f"run {run.run}: saw no version in {_folder(run)}, needed one; {why}")
    return saved


def _chosen(store: Store, run: Run, version: int | None, *, best: bool = False) -> Saved:
    """Return the requested version, the best one, or the newest that was not moved aside."""
    if best:
        return _best(run, version)
    saved = _listed(store, run)
    if version is None:
        present = [each for each in saved if not (each.aside or each.pinned)]
        return max(present or saved, key=lambda each: each.version)
    for each in saved:
        if each.version == version:
            return each
    kept = ", ".join(dict.fromkeys(str(each.version) for each in saved))
    raise Unusable(
        f"run {run.run}: saw versions {kept}, needed {version}; "
        "history.keep-checkpoints = all keeps every one"
    )


def _best(run: Run, version: int | None) -> Saved:
    """Return the pinned version of the best model."""
    if version is not None:
        raise Unusable(f"--best and --version: saw both (version {version}), needed one")
    found = checkpoint.pinned(_folder(run))
    if found is None:
        raise Unusable(
            f"run {run.run}: saw no best model in {_folder(run)}, needed one; the setting validate.best "
            "names the figure by which it is chosen"
        )
    return found


def _metrics(store: Store, run: Run) -> _Metrics:
    rows = [each.row for each in store.rounds(run.run)]
    return {0: (run.started, run.initial_metrics), **{row.round: (row.started, row.metrics) for row in rows}}


def _measured(saved: Saved, metrics: _Metrics) -> Mapping[str, float]:
    """Return the figures of a version; those of a round that began later are of another model."""
    began, found = metrics.get(saved.round, (0.0, {}))
    return found if began <= saved.written else {}


def _figures(saved: Saved, metrics: _Metrics, best: Saved | None) -> dict[str, Any]:
    return {
        "version": saved.version,
        "round": saved.round,
        "digest": saved.digest,
        "size_bytes": saved.size_bytes,
        "metrics": dict(_measured(saved, metrics)),
        "aside": saved.aside,
        "best": _is_best(saved, best),
    }


def _is_best(saved: Saved, best: Saved | None) -> bool:
    return best is not None and saved.digest == best.digest


def _table(run: Run, saved: tuple[Saved, ...], metrics: _Metrics, best: Saved | None) -> Table:
    table = Table(title=f"Versions of {run.run}")
    for column in ("version", "round", "digest", "size", "figures", ""):
        table.add_column(column, no_wrap=True)
    for each in saved:
        figures = ", ".join(f"{name} {value:.4g}" for name, value in _measured(each, metrics).items())
        table.add_row(
            str(each.version),
            str(each.round),
            each.digest[:SHORT],
            megabytes(each.size_bytes),
            Text(figures or "not measured"),
            "best" if _is_best(each, best) else "put aside" if each.aside else "",
        )
    return table
