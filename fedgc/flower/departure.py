"""A client that is asked to leave: by SIGTERM or SIGHUP, by the folder of its supervisor, or by its hours.

A ClientApp process hears the signal itself. Over Flower messages there may be no process when the request
comes; the next one finds it in the folder that the supervisor of the SuperNode has made
(`fedgc.processes.supervision`). Without a supervisor only the signal counts. The hours of a site's policy end
like a request: `grace_s` before, the client begins to hand in what it has.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from fedgc.processes.supervision import ANSWERED, ASKED, LEAVE_FOLDER, OWES, SERVES

GRACE_S: Final = 20.0  # in which a client hands in what it has, by default
GRACE_KEY: Final = "leave-grace-s"  # of the node config, for another time
ClosesS = Callable[[], float | None]
ENDING: Final = (signal.SIGTERM, signal.SIGHUP)


class Departure:
    """Whether this client was asked to leave, and how long it may stay."""

    def __init__(
        self, grace_s: float = GRACE_S, folder: Path | None = None, closes_s: ClosesS = lambda: None
    ) -> None:
        """`folder` is the supervisor's; `closes_s` returns the seconds until the client's hours end."""
        self._grace_s, self._folder, self._closes_s = grace_s, folder, closes_s
        self._asked_at: float | None = None  # by a signal

    @classmethod
    def of(
        cls, grace_s: float, environment: Mapping[str, str], closes_s: ClosesS = lambda: None
    ) -> "Departure":
        """Return that of a process with this environment."""
        folder = environment.get(LEAVE_FOLDER)
        return cls(grace_s, Path(folder) if folder else None, closes_s)

    @property
    def left_s(self) -> float | None:
        """The seconds that are left to hand in what is there; None if nobody asked, or that is long ago."""
        asked_s, closes_s = self._asked_s(), self._closes_s()
        if closes_s is None or not self.hours_end:
            return asked_s
        return closes_s if asked_s is None else min(asked_s, closes_s)

    @property
    def hours_end(self) -> bool:
        """Whether this client has to leave because its hours end."""
        closes_s = self._closes_s()
        return closes_s is not None and closes_s <= self._grace_s

    def _asked_s(self) -> float | None:
        deadline = self._deadline()
        if deadline is not None and deadline > (now := time.monotonic()):
            return deadline - now
        if self._asked_at is not None:
            return max(0.0, self._asked_at + self._grace_s - time.monotonic())
        return None

    @property
    def asked(self) -> bool:
        """Whether this client has to leave."""
        return self._asked_at is not None or self.left_s is not None

    def ask(self) -> None:
        """Ask it now; safe in a signal handler."""
        if self._asked_at is None:
            self._asked_at = time.monotonic()

    def answered(self, *, owes: bool) -> None:
        """Tell the supervisor that a Flower message is answered, and whether the client still has work."""
        if self._folder is None:
            return
        with suppress(OSError):
            if owes:
                (self._folder / OWES).touch()
            else:
                (self._folder / OWES).unlink(missing_ok=True)
            (self._folder / ANSWERED).touch()

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Hear SIGTERM and SIGHUP while the block runs; only the main thread can.

        A repeated request changes nothing: the client ends by itself, at its grace time at the latest.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in ENDING}
        for number in ENDING:
            signal.signal(number, lambda *_: self.ask())
        self._serve(serves=True)
        try:
            yield
        finally:
            self._serve(serves=False)
            for number, handler in before.items():
                signal.signal(number, handler)

    def _serve(self, *, serves: bool) -> None:
        """Tell the supervisor whether this process hears its signals."""
        if self._folder is None:
            return
        mine = self._folder / f"{SERVES}{os.getpid()}"
        with suppress(OSError):
            (mine.touch if serves else mine.unlink)()

    def _deadline(self) -> float | None:
        if self._folder is None:
            return None
        with suppress(OSError, ValueError):
            return float((self._folder / ASKED).read_text())
        return None
