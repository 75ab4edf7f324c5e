"""`fedgc serve --queue`: runs the entries of the queue one after another, each kept alive until it is over.

A run needs all clients and the one session port of its SuperLink, so one runs at a time. The SuperLink, or
the clients on this machine, stay the same for all of them. Whatever ends a run without success is recorded as
its reason, and the queue goes on; a run whose server was killed, or got a signal, is the first one again.
"""

import math
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from rich.console import Console

from fedgc.cli import view
from fedgc.cli.run import Host, Wanted, host_of, must_be_known
from fedgc.cli.run_end import Over
from fedgc.cli.run_place import claimed_queue, keys_of_queue
from fedgc.cli.serve import keep, restart_ended, say
from fedgc.cli.signals import like_ctrl_c
from fedgc.errors import EdgeFailed, FedgcError, Unusable
from fedgc.guards import guarded
from fedgc.store.database import Store
from fedgc.store.liveness import alive, this_process
from fedgc.store.run_queue import AGAIN, WAITING, Entry

T = TypeVar("T")

LOOK_S: Final = 1.0  # between looks at a queue in which no run can start, and at a store that fails


def serve_queue(wanted: Wanted, most: int) -> None:
    """Serve the queue until a signal; each run may be restarted `most` times in a row without a new round."""
    console = view.terminal()
    must_be_known(wanted)
    with like_ctrl_c(), Store.open() as store, claimed_queue(store.name):
        # also for runs that were elsewhere before
        wanted = replace(wanted, clients=wanted.here or None, keys=str(keys_of_queue(store.name)))
        with host_of(wanted, console, "") as host:
            say(console, f"queue of store {store.name}, until Ctrl-C")
            while True:
                entry = _until_done(lambda: _taken(store, host), host, console)
                say(console, f"entry {entry.id}, priority {entry.priority}: run {entry.run}")
                try:
                    state, reason = _run(entry, wanted, most, store, host, console)
                except (KeyboardInterrupt, click.Abort):
                    store.queue.interrupt(entry.id)
                    say(console, f"entry {entry.id}: run {entry.run} is interrupted, and {AGAIN}")
                    raise
                finished = partial(store.queue.finish, entry.id, state, reason, time.time())
                _until_done(finished, host, console)
                say(console, f"entry {entry.id}: run {entry.run} {state}{f': {reason}' if reason else ''}")


def _run(
    entry: Entry, wanted: Wanted, most: int, store: Store, host: Host, console: Console
) -> tuple[str, str]:
    """Keep the run of an entry alive until it is over; return its state, and why it did not complete."""
    over: Over | None = None
    try:
        with guarded("the queue", f"entry {entry.id}", EdgeFailed):
            given = replace(wanted, settings=_settings(entry), folder=_folder(entry))
            over = keep(given, most, store, console, lambda *_: nullcontext(host), math.inf)
    except FedgcError as error:
        return "failed", str(error)
    if over is not None and over.stopped:
        raise click.Abort
    if over is None:
        return "completed", "it was complete already"
    return ("completed", "") if over.reason is None else ("stopped", over.reason)


def _settings(entry: Entry) -> Mapping[str, Any]:
    if entry.damaged:
        raise Unusable(
            f"queue: saw damaged settings in entry {entry.id}, needed the run to be added again: "
            "by `fedgc queue add`"
        )
    return entry.settings


def _folder(entry: Entry) -> Path:
    folder = Path(entry.folder)
    if not folder.is_dir():
        raise Unusable(f"folder {folder}: saw none on this machine, needed the one that was added")
    return folder


def _until_done(act: Callable[[], T], host: Host, console: Console) -> T:
    """Return what an act returns, which is repeated while it fails at an edge; say what that waits for."""
    said = ""
    while True:
        try:
            return act()
        except EdgeFailed as error:
            if str(error) != said:
                said = str(error)
                say(console, f"waiting: {said}")
        restart_ended(host, console)
        time.sleep(LOOK_S)


def _taken(store: Store, host: Host) -> Entry:
    """Take the next run from the queue; raise EdgeFailed if none can start yet."""
    entries = store.queue.entries(finished=0)
    if not entries:
        raise EdgeFailed("no run is in the queue")
    own = entries[0].run if entries[0].state != WAITING else ""  # it is followed to its end
    for run in store.runs():
        if run.run != own and alive(run, time.time()):
            raise EdgeFailed(f"run {run.run} is under way")
    host.superlink.check()  # without it, each run of the queue would fail in turn
    entry = store.queue.take(this_process().words(), time.time())
    if entry is None:
        raise EdgeFailed("no run is in the queue")
    return entry
