"""`fedgc sim`: predict the rounds of simulated clients, without a network."""

import json
import math
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import fedgc.web
from fedgc.cli.image_files import drawable, keep
from fedgc.cli.view import terminal
from fedgc.errors import BadSetting, Unusable
from fedgc.sim import Prediction, Request, page, png, simulate
from fedgc.sim.simulate import shown_s


@dataclass(frozen=True, slots=True)
class Wanted:
    """The requested output formats."""

    as_json: bool
    html: Path | None
    png: Path | None


def speeds(option: str, words: str) -> tuple[float, ...]:
    """Return the speeds that an option lists.

    >>> speeds("--uplink-mb-s", "12.5, 1")
    (12.5, 1.0)
    """
    try:
        return tuple(float(each) for each in words.split(","))
    except ValueError:
        raise BadSetting(f"{option}: saw {words!r}, needed one speed or several, as in 12.5,1") from None


def run_sim(request: Request, wanted: Wanted) -> None:
    """Simulate, show the prediction, and write the requested images."""
    drawable(wanted.html, wanted.png)
    if wanted.html is not None and not request.policies:
        request = replace(request, beside=True)
    watch = wanted.html is not None or wanted.png is not None
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("rounds", total=None)
        predictions = simulate(
            request, lambda done, total: bar.update(task, completed=done, total=total), watch=watch
        )
    if wanted.html is not None:
        style = Path(fedgc.web.__file__).with_name("page") / "page.css"
        keep(wanted.html, page(predictions, style.read_text()).encode())
    if wanted.png is not None:
        first = next((each for each in predictions if each.spans), None)
        if first is None:
            raise Unusable(f"--png: saw {predictions[0].policy}, needed a policy of fedgc: it has a timeline")
        keep(wanted.png, png(first.spans, first.working_s))
    if wanted.as_json:
        figures = {"predictions": [_figures(each) for each in predictions]}
        sys.stdout.write(json.dumps(figures, allow_nan=False) + "\n")
    else:
        terminal().print(_table(predictions))


def _figures(each: Prediction) -> dict[str, object]:
    return {
        "policy": each.policy,
        "rounds": len(each.results),
        "median_s": finite(each.median_s),
        "p95_s": finite(each.p95_s),
        "up_mb": each.up_mb,
        "discarded": each.discarded,
        "missing": each.missing,
    }


def finite(number: float | None) -> float | None:
    """Return a number, or None in place of NaN and infinity, which JSON does not have.

    >>> finite(0.5), finite(float("nan")), finite(None)
    (0.5, None, None)
    """
    return number if number is not None and math.isfinite(number) else None


def _table(predictions: tuple[Prediction, ...]) -> Table:
    table = Table(title="Predicted, a round")
    table.add_column("policy")
    for column in ("median", "95th percentile", "up", "work discarded", "data missing"):
        table.add_column(column, justify="right", no_wrap=True)
    for each in sorted(predictions, key=lambda one: one.median_s):
        table.add_row(
            each.policy,
            shown_s(each.median_s, "{:.2f} s"),
            shown_s(each.p95_s, "{:.2f} s"),
            f"{each.up_mb:.1f} MB",
            f"{each.discarded:.1%}",
            f"{each.missing:.1%}",
        )
    return table
