"""`fedgc store`: check, backup, vacuum."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from fedgc.errors import EdgeFailed, Unusable, numbered

store = typer.Typer(help="Check, back up and vacuum the store.", no_args_is_help=True)


@store.command()
def check(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check the store for damage and count its rows; exit code 1 if it is damaged.

    Example: fedgc store check
    """
    from fedgc.store.database import Store  # here, since help must not wait for sqlalchemy

    with Store.open(makes=False) as opened:
        health = opened.check()
    if as_json:
        sys.stdout.write(json.dumps(asdict(health), indent=1) + "\n")
    else:
        runs, rounds = numbered(health.runs, "run"), numbered(health.rounds, "round")
        clients, rows = numbered(health.clients, "client"), numbered(health.client_rounds, "client row")
        sys.stdout.write(
            f"{health.name}: schema {health.schema}, {health.size_bytes / 1e6:.1f} MB, {runs}, {rounds}, "
            f"{clients}, {rows}, {health.folded} folded\n"
        )
    if health.faults:
        raise EdgeFailed(f"store {health.name}: {'; '.join(health.faults)}; restore a backup")


@store.command()
def backup(path: Annotated[Path, typer.Argument(help="A file that does not exist yet.")]) -> None:
    """Copy the store to a new file, even while runs write to it; also one of an older version.

    Example: fedgc store backup /backups/fedgc-monday.db
    """
    from fedgc.store.database import Store

    with Store.open(reads_only=True, older=True) as opened:
        opened.backup(path)
    sys.stdout.write(f"copied to {path}\n")


@store.command()
def vacuum(
    keep: Annotated[
        int | None, typer.Option(help="First fold the client rows of all but the newest KEEP rounds.")
    ] = None,
) -> None:
    """Return unused space to the disk.

    Example: fedgc store vacuum --keep 10000
    """
    from fedgc.store.database import Store

    if keep is not None and keep < 1:
        raise Unusable(f"--keep: saw {keep}, needed at least 1 round")
    with Store.open(makes=False) as opened:
        if keep is not None:
            sys.stdout.write(f"{opened.fold(keep)} client rows folded\n")
            sys.stdout.flush()
        opened.vacuum()
    sys.stdout.write("unused space returned\n")
