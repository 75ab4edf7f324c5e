"""`fedgc config`: every setting, its value, its default, where the value comes from, one line each."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from fedgc.cli.settings import DEFAULT, GIVEN, Layer, Settled, settle
from fedgc.cli.view import terminal
from fedgc.config import RunConfig
from fedgc.deploy.app_folder import MANIFEST, Setting, app_in


def show(given: Mapping[str, Setting], run: str | None, *, as_json: bool) -> None:
    """Show what a run in this folder with these words would have, or what a run had."""
    settled = settle([*_layers(run), (GIVEN, given)])
    if as_json:
        sys.stdout.write(json.dumps({"settings": _figures(settled)}, indent=1) + "\n")
    else:
        terminal().print(_table(settled))


def _layers(run: str | None) -> list[Layer]:
    if run is None:
        app = app_in(Path.cwd())
        return [(MANIFEST, app.settings)] if app is not None else []
    from fedgc.store.database import Store  # only here: settings are shown without a store

    with Store.open(reads_only=True) as store:
        found = store.run(run)
    known = set(RunConfig().table())
    return [(f"run {found.run}", {name: value for name, value in found.settings.items() if name in known})]


def _figures(settled: Settled) -> list[dict[str, Any]]:
    table = settled.config.table()
    return [
        {
            "name": (dashed := name.replace("_", "-")),
            "value": table[dashed],
            "default": default,
            "origin": settled.origins[dashed],
            "says": says,
        }
        for name, default, says in RunConfig.explained()
    ]


def _table(settled: Settled) -> Table:
    table = Table(title="Settings")
    for column in ("name", "value", "default", "origin"):
        table.add_column(column, no_wrap=True)
    table.add_column("what it is")
    for each in _figures(settled):
        value, default = _words(each["value"]), _words(each["default"])
        style = "" if each["origin"] == DEFAULT else "bold"
        cells = (each["name"], value, default, each["origin"], each["says"])
        table.add_row(*map(Text, cells), style=style)
    return table


def _words(value: object) -> str:
    """Return a value as it is typed behind name=.

    >>> _words(0.1), _words("")
    ('0.1', '""')
    """
    return str(value) if value != "" else '""'
