"""The exceptions of fedgc, in one tree.

FedgcError
├── Unusable           invalid input of the caller; a command line prints the message and exits 2
│   ├── BadSetting         a setting of the run: unknown name, wrong type, out of range
│   ├── BadTask            a task without a required part
│   └── BadPlacement       a placement or code that is impossible with these clients
├── Refused            a message or vector that is counted, logged and dropped; the round goes on
│   ├── BadMessage         a frame or message that is not of this protocol or not of this round
│   │   └── NotHere            it asks for chunks that are not here in that form
│   ├── BadVector          numbers of the wrong size or type, NaN, Inf
│   ├── NotAdmitted        a foreign token, certificate, identity or wire version
│   ├── NotAllowed         the policy of the client's site forbids it
│   └── Unexpected         an exception that the code did not foresee, at the edge of a peer or a file
├── NotRecoverable     these codewords do not determine the sum
├── TaskFailed         the user's task raised while it trained
│   └── ChunkFailed        the samples of a chunk cannot be loaded
├── ExtensionFailed    a rule or a gate raised, or returned no mean update or no decision
└── EdgeFailed         a disk, a network or another program failed
    └── NotNow             it is about to work again

A message says what was seen and what was needed. Errors are caught only at an edge: a link, the engine's
loop, the command line. A client's fault becomes an event there, never an exception.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from errno import EACCES, EEXIST, EISDIR, ENOENT, ENOTDIR
from os import PathLike, fsdecode, strerror
from os.path import normpath
from typing import Final

MISTYPED: Final = 0.85  # likeness above which a name is taken for a mistyped one
MOST_MEANT: Final = 4  # names in a hint
PARTS: Final = re.compile(r"[-_.:]")  # between the parts of a name
LONGEST_TEXT: Final = 200  # characters of foreign text in one line
LONGEST_LINE: Final = 400  # characters of an exception in one line
READ_FOR_EACH: Final = 16  # characters of foreign text that are read for each that is shown
_KINDS: Final = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
_OF_FILES: Final = {  # what such an exception says if it was raised without a number
    FileNotFoundError: ENOENT,
    PermissionError: EACCES,
    FileExistsError: EEXIST,
    IsADirectoryError: EISDIR,
    NotADirectoryError: ENOTDIR,
}


class FedgcError(Exception):
    """The base of all errors of fedgc; caught only at an edge."""


class Unusable(FedgcError):
    """The caller's input is invalid."""


class BadSetting(Unusable):
    """A setting of the run is unknown, ill-typed or out of range."""


class BadTask(Unusable):
    """A task does not hold what a task must hold."""


class BadPlacement(Unusable):
    """A placement or a code that cannot exist with these clients."""


class Refused(FedgcError):
    """An arriving message or vector is refused; the round goes on."""


class BadMessage(Refused):
    """A frame or a message is not of this protocol or not of this round."""


class NotHere(BadMessage):
    """A message asks for chunks that are not here in that form; `chunks` are their numbers."""

    def __init__(self, message: str, chunks: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.chunks = chunks


class BadVector(Refused):
    """A vector has the wrong size or type, or holds NaN or Inf."""


class NotAdmitted(Refused):
    """A token, certificate, identity or wire version is foreign."""


class NotAllowed(Refused):
    """The policy of the site of `client` forbids it, for `again_s` seconds (infinite: for good)."""

    def __init__(self, message: str, again_s: float = float("inf"), client: str = "") -> None:
        super().__init__(message)
        self.again_s, self.client = again_s, client


class Unexpected(Refused):
    """What arrived raised an exception that the code did not foresee; its cause is the `__cause__`."""


class NotRecoverable(FedgcError):
    """These codewords do not determine the sum."""


class TaskFailed(FedgcError):
    """The user's task raised while it trained."""


class ChunkFailed(TaskFailed):
    """The samples of a chunk, called `name`, cannot be loaded."""

    def __init__(self, message: str, name: str = "") -> None:
        super().__init__(message)
        self.name = name


class ExtensionFailed(FedgcError):
    """An aggregation rule or a gate raised, or returned something other than what it must."""


class EdgeFailed(FedgcError):
    """A disk, a network or another program failed."""


class NotNow(EdgeFailed):
    """Another program is about to work again: ask it later."""


def name_of(kind: type) -> str:
    """Return the type of a value in words.

    >>> name_of(int), name_of(float)
    ('a whole number', 'a number')
    """
    return _KINDS.get(kind, kind.__name__)


def nearest(name: str, known: Iterable[str], few: Iterable[str] = ()) -> str:
    """Return a hint with the name that was mistyped, those of which it is a part, or the closest.

    Without any, the hint has all names in `few`.

    >>> nearest("round", ["rounds", "clients-per-round"])
    '; did you mean rounds?'
    >>> nearest("mean", ["median", "trimmed-mean", "weighted-mean"])
    '; did you mean trimmed-mean or weighted-mean?'
    >>> nearest("xyzzy", ["rounds"]), nearest("xyzzy", ["mild", "drift"], ["mild", "drift"])
    ('', '; needed mild or drift')
    """
    every, needed = list(known), " or ".join(few)
    longer = [each for each in every if name in PARTS.split(each)]
    close = get_close_matches(name, every, n=1, cutoff=MISTYPED)
    close = close or (longer if len(longer) <= MOST_MEANT else [])
    close = close or get_close_matches(name, every, n=1)
    if close:
        return f"; did you mean {', '.join([*close[:-2], ' or '.join(close[-2:])])}?"
    return f"; needed {needed}" if needed else ""


@contextmanager
def system_errors(
    what: str,
    needed: str = "",
    kind: type[FedgcError] = EdgeFailed,
    kinds: type[Exception] | tuple[type[Exception], ...] = OSError,
) -> Iterator[None]:
    """Raise an error of fedgc in place of one of the operating system: of what, why, and what was needed.

    A path that `what` does not name is added. A package has errors of its own: `kinds` are all in whose
    place it is raised.
    """
    try:
        yield
    except kinds as error:
        path = str(getattr(error, "filename", None) or "")
        reason = text_of(error, path if f"{path}:" in f"{what}:" else None)
        end = f", needed {needed}" if needed else ""
        raise kind(f"{what}: {reason}{end}") from error


def text_of(error: BaseException, named: str | PathLike[str] | None = None) -> str:
    """Return the text of an exception in one line; one of the operating system without its number.

    `named` is the path that the message names already; any other path of the exception is added.

    >>> missing = FileNotFoundError(2, "No such file or directory", "site.toml")
    >>> text_of(missing, "site.toml"), text_of(missing, "site.key"), text_of(ValueError("not ASCII"))
    ('No such file or directory', 'no file site.toml', 'not ASCII')
    >>> text_of(PermissionError(13, "Permission denied", "keys/site.key"), "site.toml")
    'Permission denied: keys/site.key'
    """
    text = _of_system(error, named) if isinstance(error, OSError) else str(error)[: 4 * LONGEST_LINE]
    return printable(text, LONGEST_LINE) or type(error).__name__


def _of_system(error: OSError, named: str | PathLike[str] | None) -> str:
    """Return the reason and, unless it is `named`, the path; a package's exception may lack the reason."""
    known = fsdecode(named) if named else ""
    if error.strerror:
        paths = [
            fsdecode(each) for each in (error.filename, error.filename2) if isinstance(each, str | bytes)
        ]
        if not paths or (known and normpath(known) in map(normpath, paths)):
            return error.strerror
        reason = "no file " if isinstance(error, FileNotFoundError) else f"{error.strerror}: "
        return reason + paths[0]
    text = str(error).strip().removesuffix(f": {known}")
    reason = next((strerror(each) for kind, each in _OF_FILES.items() if isinstance(error, kind)), "")
    if text.startswith(reason) and (reason or len(text.split()) > 1):
        return text
    return f"{reason or type(error).__name__}: {text}" if text else reason


def words_of(error: BaseException, longest: int = LONGEST_LINE) -> str:
    r"""Return the text of an exception in one line, printable and at most `longest` long.

    The kind of a foreign exception stands before it.

    >>> words_of(ValueError("one\ntwo")), words_of(BadTask("task: saw no loss, needed one"))
    ('ValueError: one two', 'task: saw no loss, needed one')
    """
    kind, text = type(error).__name__, printable(str(error).strip()[: 4 * longest], longest)
    if not text:
        return kind[:longest]
    return text if isinstance(error, FedgcError) else f"{kind}: {text}"[:longest]


def numbered(count: int, word: str) -> str:
    """Return a count with its word.

    >>> numbered(1, "block"), numbered(2, "block")
    ('1 block', '2 blocks')
    """
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def printable(text: object, longest: int = LONGEST_TEXT) -> str:
    r"""Return foreign text made safe for a log or a terminal: one line, printable, at most `longest` long.

    >>> printable("left\nERROR  the disk is full \x1b[31m")
    'left ERROR the disk is full [31m'
    """
    words = " ".join(str(text)[: READ_FOR_EACH * longest].split())  # a peer may send any amount of it
    return "".join(each for each in words if each.isprintable())[:longest]
