"""`fedgc store`: check, backup, vacuum."""

import json
import sys
from dataclasses import asdict
from pathlib import Path

from fedgc.errors import EdgeFailed, Unusable
from fedgc.store.database import Store


def check(*, as_json: bool) -> None:
    """Print the content of the store; raise EdgeFailed if it is damaged."""
    with Store.open(makes=False) as store:
        health = store.check()
    if as_json:
        sys.stdout.write(json.dumps(asdict(health), indent=1) + "\n")
    else:
        sys.stdout.write(
            f"{health.name}: schema {health.schema}, {health.size_bytes / 1e6:.1f} MB, {health.runs} runs, "
            f"{health.rounds} rounds, {health.clients} clients, {health.client_rounds} client rows, "
            f"{health.folded} folded\n"
        )
    if health.faults:
        raise EdgeFailed(f"store {health.name}: {'; '.join(health.faults)}")


def backup(path: Path) -> None:
    """Copy the store."""
    with Store.open(reads_only=True) as store:
        store.backup(path)
    sys.stdout.write(f"copied to {path}\n")


def vacuum(keep: int | None) -> None:
    """Fold if requested, then return space to the disk."""
    if keep is not None and keep < 1:
        raise Unusable(f"--keep: saw {keep}, needed at least 1 round")
    with Store.open(makes=False) as store:
        folded = store.fold(keep) if keep is not None else 0
        store.vacuum()
    sys.stdout.write(f"{folded} client rows folded, unused space returned\n")
