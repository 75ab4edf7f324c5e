"""The options that several commands share, and how a shell completes them."""

import os
from collections.abc import Iterator
from typing import Annotated, Final

import typer
from click.core import Parameter, ParameterSource

from fedgc.errors import Unusable


def settings_like(incomplete: str) -> Iterator[str]:
    """Complete the name of a setting."""
    from fedgc.config import KEYS  # here, since help must not wait for numpy

    return (f"{name}=" for name in KEYS.values() if name.startswith(incomplete))


def runs_like(incomplete: str) -> Iterator[str]:
    """Complete the name of a run in the store, if there is a store."""
    from fedgc.errors import FedgcError
    from fedgc.store.database import Store

    try:
        with Store.open(reads_only=True) as store:
            names = [each.run for each in store.runs(100)]
    except FedgcError:
        names = []
    return (name for name in names if name.startswith(incomplete))


Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        "-s",
        help="A setting of the run, as name=value; may be repeated.",
        autocompletion=settings_like,
    ),
]


Client = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME:KEY=VALUE",
        help="A client's own setting, such as client-0:pace-s=0.2 or north:data=/data/north; repeatable. "
        "Without --clients, exactly the named clients are started.",
    ),
]
Task = Annotated[str | None, typer.Option(help="A shipped task, or module:attribute of your own.")]
Script = Annotated[
    str | None,
    typer.Option(help="A training script in place of a task: a Python file, or a launcher's command line."),
]
Clients = Annotated[int | None, typer.Option(help="Clients to start on this machine; 4 by default.")]
OnSuperlink = Annotated[
    str | None,
    typer.Option(help="Train on this SuperLink: a name in Flower's configuration, or up for `fedgc up`."),
]
Resume = Annotated[
    str | None,
    typer.Option(
        help="Resume this run from its last checkpoint, where it was unless another place is given.",
        autocompletion=runs_like,
    ),
]
RunName = Annotated[
    str | None,
    typer.Option(
        "--run",
        help="The run to show; by default the newest.",
        autocompletion=runs_like,
    ),
]
Run = Annotated[
    str | None,
    typer.Argument(help="The run to show; by default the newest.", autocompletion=runs_like),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Watch = Annotated[bool, typer.Option("--watch", help="Refresh every second, until Ctrl-C.")]

Best = Annotated[bool, typer.Option("--best", help="The best version by the figure of validate.best.")]
Version = Annotated[int | None, typer.Option(help="Which version; by default the newest.")]

SETTINGS: Final = "FEDGC_SETTINGS"

KeptSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        "-s",
        envvar=SETTINGS,
        help="A setting of the run, as name=value; may be repeated. The variable separates them by spaces, "
        "and the option replaces single ones of them.",
        autocompletion=settings_like,
    ),
]
KeptOn = Annotated[
    str | None,
    typer.Option(
        envvar="FEDGC_SUPERLINK",
        help="Train on this SuperLink: a name in Flower's configuration, or up for `fedgc up`. --clients and "
        "--client replace the variable.",
    ),
]


def is_given(context: typer.Context, name: str) -> bool:
    """Return whether a parameter is on the command line."""
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE


def must_be_alone(context: typer.Context, *allowed: str) -> None:
    """Refuse parameters, and variables of them, beside the first of the allowed ones."""
    shown = {each.name or "": _shown(each) for each in context.command.params}
    for each in context.command.params:
        source = context.get_parameter_source(each.name or "")
        if each.name in allowed or source not in (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT):
            continue
        seen = each.envvar if source is ParameterSource.ENVIRONMENT else shown[each.name or ""]
        others = ", ".join(shown[name] for name in allowed[1:])
        raise Unusable(f"{shown[allowed[0]]}: saw {seen} beside it, needed no option but {others}")


def _shown(parameter: Parameter) -> str:
    """Return an option with its dashes, or an argument in capitals."""
    return parameter.opts[0] if parameter.param_type_name == "option" else parameter.opts[0].upper()


def with_variable(settings: list[str] | None) -> list[str]:
    """Return the settings of `--set` after those of the variable, which it replaces one by one.

    A script is trained in place of a task, so a task of `--set` takes the place of a script of the variable.
    """
    given = settings or []
    kept = os.environ.get(SETTINGS, "").split()
    if any(each.startswith("task=") for each in given):
        kept = [each for each in kept if not each.startswith("script=")]
    return [*kept, *given]


def unless_replaced(context: typer.Context, superlink: str | None) -> str | None:
    """Return the SuperLink, but none from the variable where clients of this machine are given."""
    source = context.get_parameter_source("superlink")
    kept = source is not None and source.name == "ENVIRONMENT"
    return None if kept and (context.params["clients"] or context.params["client"]) else superlink
