"""`fedgc sim --sweep`: settings, scenarios and seeds of a file, as a table, a page, and a recommendation."""

import json
import math
import sys
from collections.abc import Mapping
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from shlex import quote

from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

import fedgc.web
from fedgc.cli.image_files import drawable, keep
from fedgc.cli.signals import after_ctrl_c, like_ctrl_c
from fedgc.cli.sim import finite
from fedgc.cli.view import megabytes, terminal
from fedgc.processes.temporary_folder import temporary_folder
from fedgc.sim.owned import CORES
from fedgc.sim.past_run import PastRun
from fedgc.sim.simulate import MEGABYTE
from fedgc.sim.sweep import Swept, Trial, run_sweep
from fedgc.sim.sweep_checkpoint import SweepCheckpoint, description
from fedgc.sim.sweep_file import Sweep, read_sweep
from fedgc.sim.sweep_page import sweep_page, toml_of, words_of
from fedgc.store.database import Store


def run_sim_sweep(path: Path, html: Path | None, checkpoint: Path | None, *, as_json: bool) -> None:
    """Play the sweep, go on from a checkpoint or keep one, show the sweep, and write the page."""
    drawable(html, checkpoint)
    sweep, console = read_sweep(path), Console(stderr=True)
    past = {each.like: _past(each.like) for each in sweep.scenarios if each.like}
    with ExitStack() as stack:
        kept = None
        if checkpoint is not None:
            kept = stack.enter_context(closing(_kept(checkpoint, sweep, past)))
            command = f"fedgc sim --sweep {quote(str(path))} --checkpoint {quote(str(checkpoint))}"
            stack.enter_context(after_ctrl_c(partial(_goes_on, kept, command)))
        stack.enter_context(like_ctrl_c())
        folder = stack.enter_context(temporary_folder("fedgc-sweep-"))
        bar = stack.enter_context(Progress(console=console, transient=True, disable=not console.is_terminal))
        trial = None
        if sweep.goal is not None:
            from fedgc.cli.sim_sweep_train import trained  # here, since other sweeps need no torch

            trial = partial(trained, folder, sweep.goal)
        task = bar.add_task("runs", total=None)
        swept = run_sweep(
            sweep,
            past.__getitem__,
            lambda done, total: bar.update(task, completed=done, total=total),
            workers=CORES,
            trial=trial,
            checkpoint=kept,
        )
    if html is not None:
        style = Path(fedgc.web.__file__).with_name("page") / "page.css"
        keep(html, sweep_page(swept, style.read_text()).encode())
    if as_json:
        sys.stdout.write(json.dumps(_figures(swept), allow_nan=False) + "\n")
        return
    terminal().print(_table(swept))
    if swept.recommended is None:
        terminal().print(swept.unadvised)
    else:
        terminal().print(Text(f"Recommended:\n{toml_of(swept.settings(swept.recommended))}"))


def _kept(path: Path, sweep: Sweep, past: Mapping[str, PastRun]) -> SweepCheckpoint:
    first = None
    if sweep.goal is not None:
        from fedgc.cli.sim_sweep_train import first_run

        first = first_run(sweep.goal, sweep)
    kept = SweepCheckpoint(path, description(sweep, past, first))
    if kept.cut_off:
        sys.stderr.write(f"fedgc: checkpoint {path}: its last line was cut off; that run is played again\n")
    return kept


def _goes_on(kept: SweepCheckpoint, command: str) -> str:
    return f"`{command}` goes on after {len(kept.trials)} runs" if kept.trials else ""


def _past(run: str) -> PastRun:
    with Store.open(reads_only=True) as store:
        return PastRun.read(store, run)


def _figures(swept: Swept) -> dict[str, object]:
    best, frontiers = swept.recommended, swept.frontiers
    return {
        "figures": {"recommended": None if best is None else swept.settings(best), "for": swept.what},
        "rows": [_row(swept, each, frontiers[each.scenario]) for each in swept.trials],
    }


def _row(swept: Swept, trial: Trial, frontier: frozenset[int]) -> dict[str, object]:
    counted = trial.seconds < math.inf
    return {
        "scenario": trial.scenario,
        "settings": dict(swept.sweep.combinations[trial.combination]),
        "seconds": trial.seconds if counted else None,
        "megabytes": trial.megabytes if counted else None,
        "exchanges": trial.exchanges,
        "waste": trial.waste,
        "rounds": trial.rounds,
        "last": finite(trial.last),
        "frontier": trial.combination in frontier,
        "ended": trial.ended,
    }


def _table(swept: Swept) -> Table:
    table = Table(title=f"To {swept.what}; * on the frontier of time and bytes")
    table.add_column("scenario", no_wrap=True)
    table.add_column("settings")
    frontiers = swept.frontiers
    for column in ("time", "bytes", "exchanges", swept.last_name):
        table.add_column(column, justify="right", no_wrap=True)
    for each in sorted(swept.trials, key=lambda each: (each.scenario, each.seconds)):
        star = "* " if each.combination in frontiers[each.scenario] else ""
        table.add_row(
            Text(each.scenario),
            Text(f"{star}{words_of(swept.sweep.combinations[each.combination])}{_ended(each)}"),
            f"{each.seconds:.3g} s" if each.seconds < math.inf else "-",
            megabytes(MEGABYTE * each.megabytes) if each.seconds < math.inf else "-",
            f"{each.exchanges:.0%}",
            swept.last_words(each),
        )
    return table


def _ended(trial: Trial) -> str:
    return f" (ended after {trial.rounds:g} rounds: {trial.ended})" if trial.ended else ""
