"""`fedgc model`: list the models that a run made, export one, restore an earlier one."""

from pathlib import Path
from typing import Annotated

import typer

from fedgc.cli.options import AsJson, Best, Run, RunName, Version

model = typer.Typer(help="The models that runs made: list, export, restore.", no_args_is_help=True)


@model.command("list")
def list_models(run: Run = None, as_json: AsJson = False) -> None:
    """Show the saved versions of a run's model: round, digest, size, figures.

    Example: fedgc model list run-20260101-120000-1
    """
    from fedgc.cli import model as models

    models.show(run, as_json=as_json)


@model.command("export")
def export_model(
    path: Annotated[
        Path, typer.Argument(help="A new file: .safetensors, or .pt for a state_dict; for peft a new folder.")
    ],
    run: RunName = None,
    version: Version = None,
    best: Best = False,
    form: Annotated[
        str, typer.Option("--format", help="file, or peft: the adapter alone, as PEFT reads it.")
    ] = "file",
) -> None:
    """Write a model for use without fedgc, with its round, digest and figures.

    Example: fedgc model export ward.safetensors
    """
    from fedgc.cli import model as models

    models.export(path, run, version, best=best, form=form)


@model.command("restore")
def restore_model(
    version: Annotated[int, typer.Argument(help="The version to restore.")], run: RunName = None
) -> None:
    """Make an earlier version the newest one, for `fedgc run --resume`. Nothing is deleted.

    Example: fedgc model restore 12 --run run-20260101-120000-1
    """
    from fedgc.cli import model as models

    models.restore(run, version)
