"""A client's heartbeat: a file that the training thread rewrites, for health checks.

A process that exists may hang, and a running SuperNode does not prove that its ClientApp works. So the
training thread writes, at most once a second, its process id and the chunks finished in this session. Without
an open session there is no engine and no heartbeat.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fedgc.files import SHARED, whole

ENVIRONMENT: Final = "FEDGC_PULSE"  # path of the file; unset: no heartbeat
EVERY_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Beat:
    """The last heartbeat."""

    process: int
    chunks: int
    at: float  # seconds since 1970

    @property
    def alive(self) -> bool:
        """Whether the process that wrote it exists."""
        return Path(f"/proc/{self.process}").exists()


class HeartbeatWriter:
    """Writes heartbeats: call `beat` in every turn, and `close` at the end of the session."""

    def __init__(self, path: str | None, clock: Callable[[], float]) -> None:
        """`clock` is never set back."""
        self._path: Final = Path(path) if path else None
        self._clock = clock
        self._last = float("-inf")
        self._chunks = -1

    def beat(self, chunks: int) -> None:
        """Write a heartbeat; the health check notices if that fails."""
        now = self._clock()
        if self._path is None or (chunks == self._chunks and now < self._last + EVERY_S):
            return
        self._last, self._chunks = now, chunks
        with suppress(OSError), whole(self._path, SHARED) as part:
            part.write_text(f"{os.getpid()} {chunks}\n")

    def close(self) -> None:
        """Remove the file at the regular end of a session."""
        if self._path is not None:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)


def last_beat(path: Path) -> Beat | None:
    """Read the last heartbeat, if any."""
    try:
        process, chunks = path.read_text().split()
        return Beat(int(process), int(chunks), path.stat().st_mtime)
    except (OSError, ValueError):
        return None
