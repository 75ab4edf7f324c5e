"""The output of `python -m benchmarks`: a report as JSON, or its figures as a table."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rich.table import Table

from benchmarks import saved
from benchmarks.frontier import frontier
from benchmarks.report import Figure, Report
from benchmarks.trial import Measured
from fedgc.cli.image_files import keep
from fedgc.cli.view import terminal


def show(
    report: Report,
    *,
    as_json: bool,
    save: bool,
    lines: Iterable[str] = (),
    module: str = saved.BENCHMARKS,
) -> None:
    """Print the one JSON object, or lines of text and figures; write the results file if it is wanted.

    `module` was called, as `python -m MODULE`.
    """
    if save:
        sys.stderr.write(f"{saved.save(report, [module, *sys.argv[1:]])}\n")
    if as_json:
        sys.stdout.write(report.json() + "\n")
        return
    for line in lines:
        sys.stdout.write(line + "\n")
    table = Table(title="Figures")
    table.add_column("figure", no_wrap=True)
    table.add_column("value", justify="right")
    for name, figure in report.figures.items():
        table.add_row(name, _words(figure))
    terminal().print(table)


def draw(measured: Sequence[Measured], path: Path) -> None:
    """Write the frontiers to a PNG file."""
    keep(path, frontier(measured))


def _words(figure: Figure) -> str:
    """Return a figure as text.

    >>> _words(0.123456), _words(None), _words({"4,2": 2.414, "8,2": None})
    ('0.1235', 'not measured', '4,2: 2.414, 8,2: not measured')
    """
    if figure is None:
        return "not measured"
    if isinstance(figure, Mapping):
        return ", ".join(f"{name}: {_words(value)}" for name, value in figure.items())
    return f"{figure:.4g}" if isinstance(figure, float) else str(figure)
