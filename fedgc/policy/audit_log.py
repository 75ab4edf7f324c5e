"""The audit log of a site: append-only JSON lines, each of which holds the SHA-256 of the line before.

Beside the log lies its head (`.head`): how long the log is, the digest of its last line, and the totals that
limits need. So an edited, removed or inserted line is found, and so is a log that was cut at its end. A
person who can write both files can replace them together: note the head's digest elsewhere from time to time
(`fedgc audit verify --head`).

Several clients of a site may share a log: a lock makes each append whole.
"""

import fcntl
import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import IO, Any, Final
from zoneinfo import ZoneInfo

from fedgc.errors import EdgeFailed, FedgcError, system_errors, text_of
from fedgc.files import whole
from fedgc.policy.totals import Totals, day_of
from fedgc.secagg.renyi import Release

FIRST: Final = "0" * 64  # in place of the digest before the first line
LONGEST_LINE: Final = 65_536  # bytes
LONGEST_TEXT: Final = 2000  # characters of a text in an entry, and of all names of its figures


@dataclass(frozen=True, slots=True)
class Entry:
    """One decision or exchange. `what` is joined, refused, exchange, round, figures or withheld."""

    what: str
    client: str
    run: str
    round: int = 0
    rule: str = ""  # the rule that decided, as refusals name it
    bytes: int = 0  # of all that the site sent and received since the entry before
    exchanges: int = 0
    secrecy: str = ""
    noise: float = 0.0
    figures: tuple[str, ...] = ()  # names
    steps: tuple[Release, ...] = ()  # local steps with noise for records, since the entry before
    descriptor: str = ""  # of a masked run: the begin of its hash


@dataclass(frozen=True, slots=True)
class Head:
    """The end of a log: its lines, its bytes, the digest of its last line, and the site's totals."""

    lines: int = 0
    size_bytes: int = 0
    digest: str = FIRST
    totals: Totals = field(default_factory=Totals)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Head":
        """Return a head that was kept; raise TypeError, ValueError, KeyError or AttributeError for others."""
        found = cls(**{**values, "totals": Totals.of(values["totals"])})
        if not (isinstance(found.digest, str) and type(found.lines) is type(found.size_bytes) is int):
            raise TypeError("a head of another type")
        return found

    def after(self, line: bytes) -> "Head":
        """Return the head after one more line; raise EdgeFailed if it does not follow."""
        entry = _read(line, self.lines + 1)
        if entry.get("before") != self.digest:
            raise EdgeFailed(
                f"line {self.lines + 1}: saw {entry.get('before')!r} as the digest of the line before, "
                f"needed {self.digest}"
            )
        try:
            account = str(entry.get("descriptor") or entry["run"])
            spent = self.totals.spent(
                str(entry["day"]), account, int(entry["bytes"]), int(entry["exchanges"]),
                float(entry["noise"]), [(float(n), float(q), int(k)) for n, q, k in entry.get("steps", ())],
            )  # fmt: skip
        except (KeyError, TypeError, ValueError, ArithmeticError, OSError) as error:
            raise EdgeFailed(f"line {self.lines + 1}: saw no entry of this log ({error!r})") from error
        digest = hashlib.sha256(line).hexdigest()
        return Head(self.lines + 1, self.size_bytes + len(line), digest, spent)


class AuditLog:
    """Appends entries to a log, and knows what the site has spent."""

    def __init__(self, path: Path, zone: ZoneInfo, wall: Callable[[], float]) -> None:
        """`wall` returns seconds since 1970; a day is one of `zone`."""
        self.path: Final = path
        self._zone, self._wall = zone, wall

    def totals(self) -> Totals:
        """Return what the site has spent; raise EdgeFailed if the log was cut or edited at its end."""
        with self._locked() as log:
            return self._head(log).totals

    def append(self, entry: Entry, allowed: Callable[[Totals], None] | None = None) -> None:
        """Append an entry, on the disk once this returns.

        `allowed` may raise, given what the site has spent; then nothing is appended. No other client of the
        site appends between the two.
        """
        with self._locked() as log:
            head = self._head(log)
            if allowed is not None:
                allowed(head.totals)
            if not head.lines:
                write_head(self.path, head)  # a log with lines and without a head was changed
            now = self._wall()
            stamped = {"at": now, "day": day_of(now, self._zone), "before": head.digest}
            about = {**stamped, **asdict(_shortened(entry))}
            line = json.dumps(about, ensure_ascii=False).encode(errors="replace") + b"\n"
            if len(line) >= LONGEST_LINE:  # it could not be read again
                raise EdgeFailed(
                    f"audit log {self.path}: saw {len(line)} bytes of an entry, needed below {LONGEST_LINE}"
                )
            log.seek(0, os.SEEK_END)
            log.write(line)
            log.flush()
            os.fsync(log.fileno())
            write_head(self.path, head.after(line))

    @contextmanager
    def _locked(self) -> Iterator[IO[bytes]]:
        with system_errors(f"audit log {self.path}"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            with os.fdopen(descriptor, "r+b") as log:
                fcntl.flock(log, fcntl.LOCK_EX)
                yield log

    def _head(self, log: IO[bytes]) -> Head:
        """Return the head; a line whose head could not be written any more is counted in."""
        head = read_head(self.path)
        size_bytes = os.fstat(log.fileno()).st_size
        if size_bytes < head.size_bytes:
            raise EdgeFailed(
                f"audit log {self.path}: saw {size_bytes} bytes, needed {head.size_bytes}: it was cut"
            )
        log.seek(head.size_bytes)
        for line in lines_of(log):
            if not line.endswith(b"\n"):  # the process ended in the middle of it: it never counted
                log.truncate(head.size_bytes)
                break
            head = _followed(self.path, head, line)
        return head


def _shortened(entry: Entry) -> Entry:
    """Return an entry whose texts, which may come from a server, fit into a line."""
    ends = accumulate(len(each) + 4 for each in entry.figures)  # with quotes, comma and space
    figures = tuple(name for name, end in zip(entry.figures, ends, strict=True) if end <= LONGEST_TEXT)
    client, run, rule = (each[:LONGEST_TEXT] for each in (entry.client, entry.run, entry.rule))
    return replace(entry, client=client, run=run, rule=rule, figures=figures)


def verify(path: Path, known: str = "") -> Head:
    """Return the head of a log whose lines all follow each other.

    Lines after those of its head follow too: a client could not write the head any more.

    Args:
        path: The log; its head lies beside it.
        known: A digest of a head that was noted before: its line must be in the log.

    Raises:
        EdgeFailed: A line was edited, inserted or removed, or the log was cut; it names the line.
    """
    head = noted = Head()
    seen = known in ("", FIRST)
    with system_errors(f"audit log {path}"), path.open("rb") as log:
        fcntl.flock(log, fcntl.LOCK_SH)
        kept = read_head(path)
        for line in lines_of(log):
            if not line.endswith(b"\n") and not log.read(1):
                break  # a process ended in the middle of it: it never counted
            head = _followed(path, head, line)
            seen = seen or head.digest == known
            if head.lines <= kept.lines:
                noted = head
    if (noted.lines, noted.digest) != (kept.lines, kept.digest):
        raise EdgeFailed(
            f"audit log {path}: saw {noted.lines} lines that end with {noted.digest}, needed {kept.lines} "
            f"that end with {kept.digest}, as its head says"
        )
    if not seen:
        raise EdgeFailed(
            f"audit log {path}: saw no line with the digest {known}, needed the one that was noted"
        )
    if noted.totals != kept.totals:
        raise EdgeFailed(f"audit log {path}: saw totals in its head that are not those of its lines")
    return head


def lines_of(log: IO[bytes]) -> Iterator[bytes]:
    """Yield the lines of a log; one that is too long comes in parts, which cannot be read."""
    while line := log.readline(LONGEST_LINE):
        yield line


def read_head(path: Path) -> Head:
    """Return the head beside a log; that of an empty log if there is neither."""
    try:
        return Head.of(json.loads(_head_of(path).read_bytes()))
    except FileNotFoundError as error:
        if path.exists() and path.stat().st_size:
            raise EdgeFailed(
                f"audit log {path}: saw no head beside it, needed {_head_of(path).name}"
            ) from error
        return Head()
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        reason = text_of(error, _head_of(path))
        raise EdgeFailed(
            f"audit log {path}: its head {_head_of(path).name} cannot be read: {reason}"
        ) from error


def write_head(path: Path, head: Head) -> None:
    """Write the head beside a log, whole or not at all, also if the power fails; with the mode of the log."""
    with whole(_head_of(path), synced=True) as part:
        part.write_text(json.dumps(asdict(head)))
        part.chmod(stat.S_IMODE(path.stat().st_mode))


def _head_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.head")


def _read(line: bytes, number: int) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise EdgeFailed(f"line {number}: saw no JSON ({error})") from error
    if not isinstance(entry, dict):
        raise EdgeFailed(f"line {number}: saw {type(entry).__name__}, needed an entry of this log")
    return entry


def _followed(path: Path, head: Head, line: bytes) -> Head:
    try:
        return head.after(line)
    except FedgcError as error:
        raise EdgeFailed(f"audit log {path}: {text_of(error)}") from error
