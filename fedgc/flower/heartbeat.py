"""A client's pulse: a file that its engine touches between turns, so that a health check can hear it.

A process that exists may hang; a SuperNode that answers says nothing of the ClientApp that it started. So the
thread that trains writes down, at most once a second, that it has come round, and how many chunks it has
finished since its session began. While no session is open there is no engine and no pulse.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ENVIRONMENT: Final = "FEDGC_PULSE"  # the file; where it is not set nobody listens
EVERY_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Beat:
    """What was last heard."""

    process: int
    chunks: int
    at: float  # seconds since 1970

    @property
    def alive(self) -> bool:
        """Whether the process that wrote it is still there."""
        return Path(f"/proc/{self.process}").exists()


class Pulse:
    """Call `beat` often, `close` once the engine rests for good."""

    def __init__(self, path: str | None, clock: Callable[[], float]) -> None:
        self._path: Final = Path(path) if path else None
        self._clock = clock
        self._last = float("-inf")
        self._chunks = -1

    def beat(self, chunks: int) -> None:
        """Write that the engine turns; a disk that refuses is the health check's to notice."""
        now = self._clock()
        if self._path is None or (chunks == self._chunks and now < self._last + EVERY_S):
            return
        self._last, self._chunks = now, chunks
        with suppress(OSError):
            fresh = self._path.with_name(f"{self._path.name}.new")
            fresh.write_text(f"{os.getpid()} {chunks}\n")
            fresh.replace(self._path)

    def close(self) -> None:
        """The engine is gone, on purpose."""
        if self._path is not None:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)


def heard(path: Path) -> Beat | None:
    """Return the last beat, if there is one."""
    try:
        process, chunks = path.read_text().split()
        return Beat(int(process), int(chunks), path.stat().st_mtime)
    except (OSError, ValueError):
        return None
