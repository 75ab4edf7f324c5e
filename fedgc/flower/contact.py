"""A SuperNode's contact with its SuperLink: a file for health checks, and an end once it has given up.

Flower's SuperNode tries again while nothing answers. But at an answer that it does not expect, such as a
certificate that has expired or a page of another web server, its main function returns, and the thread of its
own web server keeps the process alive: it answers health checks, and never asks the SuperLink again. An
answer of that kind to a heartbeat ends the thread that sends them, and the SuperLink then takes the SuperNode
for lost, though it goes on asking for messages. So the process is ended in both cases, and what supervises it
starts it again. A ClientApp that has something to do is waited for.

`followed` runs in the process `flower-supernode`, which `fedgc deploy client` and the federations of one
machine start by a program of fedgc (`fedgc.deploy.flower_programs`).
"""

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NoReturn

from fedgc.errors import EdgeFailed
from fedgc.processes import supervision

ENVIRONMENT: Final = "FEDGC_CONTACT"  # path of the file; unset: none is written
EVERY_S: Final = 1.0
# Flower's heartbeats come every 27 s at most, and tries 20 s after the last one at most.
LOST_S: Final = 120.0
GIVEN_UP: Final = 1  # exit code
_POLL_S: Final = 1.0
_HEARTBEATS: Final = "flwr.supercore.heartbeat"  # the module of Flower's that sends them
_FLEET: Final = "/v1/fleet/"  # begins the paths of a SuperNode's requests


def followed(supernode: Callable[[], object]) -> Callable[[], NoReturn]:
    """Return Flower's SuperNode as a function that notes each answer, and ends the process at its end."""

    def run() -> NoReturn:
        if path := os.environ.get(ENVIRONMENT):
            _note_answers(Path(path))
        threading.excepthook = _heard
        supernode()
        _end("its SuperLink given up")

    return run


def must_be_in_contact(path: Path, since: float, now: float) -> None:
    """Raise if the SuperLink has not answered for long; `since` is when the SuperNode was started."""
    with suppress(OSError):  # no file: it has not answered yet
        since = path.stat().st_mtime
    silent_s = abs(now - since)  # the clock may have been set back
    if silent_s > LOST_S:
        raise EdgeFailed(
            f"the SuperLink has not answered for {silent_s:.0f} s, needed {LOST_S:.0f} s or less"
        )


def _heard(error: threading.ExceptHookArgs) -> None:
    """Show the error that ends a thread; end the process too if it was the one of Flower's heartbeats."""
    threading.__excepthook__(error)
    frames = (frame.f_globals.get("__name__") for frame, _ in traceback.walk_tb(error.exc_traceback))
    if _HEARTBEATS in frames:
        _end("its heartbeats given up")


def _end(what: str) -> NoReturn:
    sys.stderr.write(
        f"SuperNode: saw {what} after the error above, needed a new start; it ends with exit code "
        f"{GIVEN_UP}\n"
    )
    while _has_app():
        time.sleep(_POLL_S)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(GIVEN_UP)  # the thread of Flower's web server would hold up a usual end for ever


def _note_answers(path: Path) -> None:
    """Touch a file with each answer of the SuperLink, once a second at most."""
    client: Any = import_module("httpx").Client
    send, last_s = client.send, float("-inf")

    def noted(self: object, request: Any, **options: Any) -> Any:  # noqa: ANN401  httpx's
        nonlocal last_s
        answer = send(self, request, **options)
        now_s = time.monotonic()
        if answer.is_success and request.url.path.startswith(_FLEET) and now_s >= last_s + EVERY_S:
            last_s = now_s
            with suppress(OSError):
                path.touch(mode=0o600)
        return answer

    client.send = noted


def _has_app() -> bool:
    below = supervision.descendants(os.getpid())
    return any(supervision.CLIENT_APP in supervision.command_of(pid) for pid in below)
