"""`fedgc task`: the statement of a task, which members of a federation or signers of a policy sign."""

from pathlib import Path
from typing import Annotated

import typer

from fedgc.cli.keys import KeyFile, VaultPath
from fedgc.cli.options import AsJson, Script, Settings, Task

task = typer.Typer(
    help="The statement of a task, its settings and fedgc's version: sign, verify.", no_args_is_help=True
)

Folder = Annotated[Path, typer.Argument(help="The folder of the app.")]
File = Annotated[
    Path | None, typer.Option("--statement", help="Its file; by default task.fedgc.json in that folder.")
]


@task.command("sign")
def sign(  # noqa: PLR0913, PLR0917  one for each option
    folder: Folder = Path(),
    task: Task = None,
    script: Script = None,
    settings: Settings = None,
    statement: File = None,
    vault: VaultPath = None,
    key_file: KeyFile = None,
) -> None:
    """Write the statement of what the app in a folder runs, or add a signature to the one that is there.

    Give the same --task, --script and --set as to `fedgc run`. A statement of other code or settings is not
    signed; delete its file to begin a new one.

    Example: fedgc task sign ward --vault /var/lib/fedgc/vault.db --key-file /etc/fedgc/vault.key
    """
    from fedgc.cli import task as tasks  # here, since help must not wait for numpy
    from fedgc.cli.federation import Opener

    tasks.sign(tasks.asked(folder, task, script, settings, statement), Opener(vault, key_file))


@task.command("verify")
def verify(  # noqa: PLR0913, PLR0917  one for each option
    folder: Folder = Path(),
    task: Task = None,
    script: Script = None,
    settings: Settings = None,
    statement: File = None,
    federation: Annotated[
        Path | None,
        typer.Option(help="Also check that this descriptor pins the statement, and that members signed it."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show who has signed a statement, and what in the folder differs from it; exit code 1 if anything does.

    Example: fedgc task verify ward --federation all.fed
    """
    from fedgc.cli import task as tasks

    tasks.verify(tasks.asked(folder, task, script, settings, statement), federation, as_json=as_json)
