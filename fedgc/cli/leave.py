"""`fedgc leave`: clients on this machine hand in what they have, before their machine ends.

Every SuperNode of this user that has a supervisor of fedgc is found by its process, in /proc. Its client is
asked by the folder that the supervisor has made, so the command works from any shell, also as a hook.
"""

import math
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from fedgc.errors import EdgeFailed, Unusable
from fedgc.processes import supervision

PROGRAM: Final = "flower-supernode"
NAME: Final = re.compile(r'(?:^|\s)name="([^"]*)"')  # in the node config
PROCESSES: Final = Path("/proc")
POLL_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class LocalClient:
    """The SuperNode of a client on this machine."""

    name: str
    pid: int
    folder: Path

    @property
    def leaves(self) -> bool:
        """Whether it still has something to hand in."""
        return supervision.is_leaving(self.folder, self.pid)


def leave(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Clients to ask.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Every client on this machine.")] = False,
    grace_s: Annotated[
        float, typer.Option("--grace", help="Seconds in which they may hand in what they have.")
    ] = 20.0,
) -> None:
    """Have clients on this machine hand in what they have, and wait until they have left their run.

    Exit code 1 if one of them has not left in time.

    Example: fedgc leave --all
    """
    names = names or []
    if every == bool(names):
        seen = "names and --all" if every else "neither a name nor --all"
        raise Unusable(f"fedgc leave: saw {seen}, needed one of them")
    if not 0 <= grace_s < math.inf:
        raise Unusable(f"--grace: saw {grace_s}, needed seconds, 0 or more")
    clients = _chosen(tuple(local_clients()), names, every=every)
    for client in clients:
        supervision.ask_to_leave(client.folder, client.pid, grace_s)
    end = time.monotonic() + grace_s
    while any(client.leaves for client in clients) and time.monotonic() < end:
        time.sleep(POLL_S)
    late = []
    for client in clients:
        if client.leaves:
            late.append(client.name)
        else:
            sys.stdout.write(f"{client.name} has left\n")
    if late:
        raise EdgeFailed(
            f"after {grace_s:g} s: saw {', '.join(late)} still in a run, needed a longer --grace"
        )


def local_clients() -> Iterator[LocalClient]:
    """Yield the clients of this user on this machine that fedgc can ask to leave."""
    for process in sorted(PROCESSES.glob("[0-9]*")):
        with suppress(OSError):
            words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if not _is_supernode(words) or process.stat().st_uid != os.getuid():
                continue
            variables = (process / "environ").read_bytes().decode(errors="replace").split("\0")
            folders = [
                each.partition("=")[2]
                for each in variables
                if each.startswith(f"{supervision.LEAVE_FOLDER}=")
            ]
            named = NAME.search(words[words.index("--node-config") + 1]) if "--node-config" in words else None
            if folders:
                yield LocalClient(named[1] if named else "", int(process.name), Path(folders[0]))


def _is_supernode(words: Sequence[str]) -> bool:
    """Whether this is the command line of a SuperNode itself, not that of its supervisor."""
    return any(Path(word).name == PROGRAM for word in words[:2])


def _chosen(clients: Sequence[LocalClient], names: Sequence[str], *, every: bool) -> Sequence[LocalClient]:
    missing = set(names) - {client.name for client in clients}
    if missing or not clients:
        seen = ", ".join(sorted(client.name for client in clients)) or "none"
        wanted = ", ".join(sorted(missing)) or "one"
        raise Unusable(f"clients on this machine: saw {seen}, needed {wanted}")
    return clients if every else [client for client in clients if client.name in names]
