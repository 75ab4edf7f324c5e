"""`fedgc sim --like`: the second half of a past run, predicted from its first, beside what was seen."""

import json
import sys

from rich.table import Table

from fedgc.cli.view import megabytes, terminal
from fedgc.sim.like import Likeness, predict_like
from fedgc.sim.past_run import PastRun
from fedgc.store.database import Store
from fedgc.tuner import Tuner


def run_like(run: str, *, as_json: bool) -> None:
    """Predict, and show the errors."""
    with Store.open(reads_only=True) as store:
        past = PastRun.read(store, run)
    likeness = predict_like(past, lambda each: Tuner(each.config))
    if as_json:
        sys.stdout.write(json.dumps({"figures": figures(likeness)}) + "\n")
    else:
        terminal().print(_table(likeness))


def figures(likeness: Likeness) -> dict[str, str | float]:
    """Return the figures: the errors first."""
    found: dict[str, str | float] = {
        "run": likeness.run,
        "round_s_error": likeness.round_s_error,
        "bytes_error": likeness.bytes_error,
        "waste_error": likeness.waste_error,
        "clients": likeness.clients,
        "rounds_known": likeness.known,
        "rounds_predicted": likeness.seen.rounds,
    }
    for name in ("exchanges", "round_s", "round_bytes", "waste"):
        found[f"{name}_predicted"] = getattr(likeness.predicted, name)
        found[f"{name}_seen"] = getattr(likeness.seen, name)
    return found


def _table(likeness: Likeness) -> Table:
    first, last = likeness.known + 1, likeness.known + likeness.seen.rounds
    predicted, seen = likeness.predicted, likeness.seen
    about = f"{likeness.run}: rounds {first} to {last}, predicted from those before"
    table = Table(title=about)
    table.add_column("", no_wrap=True)
    for column in ("predicted", "seen", "error"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_row(
        "round", f"{predicted.round_s:.3g} s", f"{seen.round_s:.3g} s", f"{likeness.round_s_error:.1%}"
    )
    table.add_row(
        "bytes a round",
        megabytes(predicted.round_bytes),
        megabytes(seen.round_bytes),
        f"{likeness.bytes_error:.1%}",
    )
    waste = f"{100 * likeness.waste_error:.1f} points"
    table.add_row("work discarded", f"{predicted.waste:.1%}", f"{seen.waste:.1%}", waste)
    table.add_row("exchanges", str(predicted.exchanges), str(seen.exchanges), "")
    return table
