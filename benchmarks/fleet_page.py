"""The page of a run, open in a process of its own while the fleet benchmark runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from typing import Final

from fedgc.sim.owned import end_with_the_parent
from fedgc.store.database import Store
from fedgc.web.serve import Place, Served

ANSWER_S: Final = 60.0
UPDATE: Final = b"event:"


@contextmanager
def open_page(database: Path) -> Iterator[Connection]:
    """Serve the page of this store, and read it as a browser does, while the block runs.

    The connection answers anything with the number of updates that have come.
    """
    ours, theirs = get_context("spawn").Pipe()
    process = get_context("spawn").Process(target=_show, args=(database, theirs), daemon=True)
    process.start()
    try:
        yield ours
    finally:
        process.kill()
        process.join()


def _show(database: Path, pipe: Connection) -> None:
    end_with_the_parent()
    updates: list[bytes] = []
    with Store.open(str(database), reads_only=True) as store, Served(store, Place(port=0)).beside() as served:
        Thread(target=_read, args=(served, updates), daemon=True).start()
        while True:
            pipe.recv()
            pipe.send(len(updates))


def _read(served: Served, updates: list[bytes]) -> None:
    page = HTTPConnection(*served.address, timeout=ANSWER_S)
    page.request("GET", "/stream", headers={"host": f"localhost:{served.address[1]}"})
    answer = page.getresponse()
    while line := answer.readline():
        if line.startswith(UPDATE):
            updates.append(line)
