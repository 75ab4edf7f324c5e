"""`fedgc queue`: add a run to the queue of `fedgc serve --queue`, list the queue, remove an entry."""

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from fedgc.cli.options import AsJson, Script, Settings, Task
from fedgc.errors import Unusable

queue = typer.Typer(help="The runs that `fedgc serve --queue` runs one after another.", no_args_is_help=True)


@queue.command()
def add(
    folder: Annotated[
        Path, typer.Argument(help="The folder of the app, on the machine of fedgc serve.")
    ] = Path(),
    priority: Annotated[
        int,
        typer.Option(help="The highest is next; of equal ones, the oldest.", min=-1_000_000, max=1_000_000),
    ] = 0,
    task: Task = None,
    script: Script = None,
    settings: Settings = None,
) -> None:
    """Add a run to the queue, and print its entry's number and its name.

    The folder is read when the run begins. A run of the given name (--set run=NAME) is resumed.

    Example: fedgc queue add ward --priority 5 --set rounds=50
    """
    from fedgc.cli.run import Wanted, settings_of  # here, since help must not wait for numpy
    from fedgc.cli.script import placed_script
    from fedgc.cli.settings import parse, trained
    from fedgc.deploy.app_folder import app_in
    from fedgc.store.database import Store

    if not folder.is_dir():
        raise Unusable(f"folder {folder}: saw none, needed the folder of an app")
    table, app = {**parse(settings or []), **trained(task, script)}, app_in(folder)
    if app is None and folder != Path() and not (task or script):
        raise Unusable(f"folder {folder}: saw no app, needed a pyproject.toml with [tool.flwr.app]")
    placed_script(script or "", folder, app, here=True)
    with Store.open() as store:
        # No clients of its own: those of `fedgc serve` are not known here.
        run = settings_of(store, Wanted(None, table, superlink=""), app).run
        number = store.queue.add(run, str(folder.absolute()), {**table, "run": run}, priority, time.time())
    sys.stdout.write(f"entry {number}: run {run}\n")


@queue.command("list")
def list_entries(as_json: AsJson = False) -> None:
    """List the queue: the run under way, those that wait in their order, then those that are over.

    Example: fedgc queue list --json
    """
    from fedgc.cli.history import print_answer, queued

    print_answer(queued, as_json=as_json, watch=False)


@queue.command()
def remove(number: Annotated[int, typer.Argument(help="The number of the entry.", max=2**63 - 1)]) -> None:
    """Remove an entry from the queue; one whose run is under way is refused.

    Example: fedgc queue remove 3
    """
    from fedgc.cli.history import must_be_over, must_have_begun
    from fedgc.store.database import Store

    with Store.open(makes=False) as store:
        for going in (each for each in store.queue.entries(finished=0) if each.id == number):
            must_have_begun(going, store.runs())
            for run in store.runs():
                if run.run == going.run:
                    must_be_over(run)
        entry = store.queue.remove(number)
    sys.stdout.write(f"entry {number}: run {entry.run} is removed\n")
