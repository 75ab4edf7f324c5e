"""`fedgc config`: the settings, each with its value, its default and the source of the value."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from fedgc.cli.settings import DEFAULT, GIVEN, Layer, Settled, settle
from fedgc.cli.view import terminal
from fedgc.config import BASIC, RunConfig, group_of, known
from fedgc.deploy.app_folder import MANIFEST, Setting, app_in


def show(given: Mapping[str, Setting], run: str | None, *, every: bool, as_json: bool) -> None:
    """Show the settings of a run in this folder with these options, or those of an earlier run.

    Without `every`, a table shows the main settings and those that were changed.
    """
    settled = settle([*_layers(run), (GIVEN, given)])
    if as_json:
        sys.stdout.write(json.dumps({"settings": _figures(settled)}, indent=1) + "\n")
        return
    figures = _figures(settled)
    shown = [each for each in figures if every or each["name"] in BASIC or each["origin"] != DEFAULT]
    terminal().print(_table(shown))
    if len(shown) < len(figures):
        more = (
            f"{len(figures) - len(shown)} more settings have their defaults; `fedgc config --all` shows them"
        )
        terminal().print(more, soft_wrap=True, highlight=False)


def _layers(run: str | None) -> list[Layer]:
    if run is None:
        app = app_in(Path.cwd())
        return [(MANIFEST, app.settings)] if app is not None else []
    from fedgc.store.database import Store  # only here: settings are shown without a store

    with Store.open(reads_only=True) as store:
        found = store.run(run)
    return [(f"run {found.run}", known(found.settings))]


def _figures(settled: Settled) -> list[dict[str, Any]]:
    table = settled.config.table()
    explained = {name: (default, says) for name, default, says in RunConfig.explained()}
    return [
        {
            "name": name,
            "value": value,
            "default": explained[name][0] if name in explained else None,
            "origin": settled.origins[name],
            "says": explained[name][1] if name in explained else "a setting of the task's own",
        }
        for name, value in table.items()
    ]


def _table(figures: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(title="Settings")
    for column in ("name", "value", "default", "origin"):
        table.add_column(column, no_wrap=True)
    table.add_column("meaning")
    group = ""
    for each in sorted(figures, key=lambda each: (group_of(each["name"]) != "", 0)):
        if group_of(each["name"]) != group:
            group = group_of(each["name"])
            table.add_section()
        value, default = _words(each["value"]), _words(each["default"])
        style = "" if each["origin"] == DEFAULT else "bold"
        cells = (each["name"], value, default, each["origin"], each["says"])
        table.add_row(*map(Text, cells), style=style)
    return table


def _words(value: object) -> str:
    """Return a value as it is typed after name=.

    >>> _words(0.1), _words("")
    ('0.1', '""')
    """
    if value is None:
        return "-"
    return str(value) if value != "" else '""'
