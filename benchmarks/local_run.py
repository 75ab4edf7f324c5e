"""A run of a local federation, to its end, and its rounds as the store has them."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from fedgc.deploy.local_federation import LocalFederation
from fedgc.errors import EdgeFailed
from fedgc.history import ClientRow
from fedgc.store.database import Store
from fedgc.store.views import Round


def complete(federation: LocalFederation, run: int, name: str, timeout_s: float) -> None:
    """Wait for the end of a run, stop one that takes too long; raise EdgeFailed unless it completed."""
    try:
        status = federation.wait(run, timeout_s)
    finally:
        if federation.running(run):
            federation.stop(run)  # frees the clients for the next part
    if status != "finished:completed":
        said = federation.log(f"run-{run}").read_text(errors="replace")[-400:]
        raise EdgeFailed(f"run {name}: saw {status}, needed finished:completed; it said: {said}")


def rounds_of(
    database: Path, name: str, practice: int
) -> Iterator[tuple[Round, float, tuple[ClientRow, ...]]]:
    """Yield each round after `practice` ones, the seconds until the next, and the rows of its clients."""
    with Store.open(str(database), reads_only=True) as store:
        for this, following in list(pairwise(store.rounds(name)))[practice:]:
            yield this, following.row.started - this.row.started, store.client_rows(name, this.row.round)
