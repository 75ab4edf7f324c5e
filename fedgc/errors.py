"""Everything that fedgc refuses, in one tree.

FedgcError
├── Unusable           the caller's input; a command line prints the sentence and exits 2
│   ├── BadSetting         a setting of the run: unknown name, wrong type, out of range
│   ├── BadTask            a task that does not hold what a task must hold
│   └── BadPlacement       a placement or code that cannot exist with these clients
├── Refused            something that arrived; it is counted, named and left out, the round goes on
│   ├── BadMessage         a frame or message that is not of this protocol or not of this round
│   │   └── NotHere            it asks for chunks that are not here as they are asked for
│   ├── BadVector          numbers of the wrong size or type, NaN, Inf
│   └── NotAdmitted        a foreign token, certificate, identity or wire version
├── NotRecoverable     the sum cannot be had from these codewords
├── TaskFailed         the user's task raised while it trained
└── EdgeFailed         disk, network or another program did not do its part

A message says what was seen and what was needed. Errors are caught at an edge only: a link, the
engine's loop, the command line. What a client does wrong is an event there, never an exception.
"""

from collections.abc import Iterable
from difflib import get_close_matches


class FedgcError(Exception):
    """The root: `except FedgcError` stands only at an edge."""


class Unusable(FedgcError):
    """The caller asked for something that cannot be."""


class BadSetting(Unusable):
    """A setting of the run is unknown, ill-typed or out of range."""


class BadTask(Unusable):
    """A task does not hold what a task must hold."""


class BadPlacement(Unusable):
    """A placement or a code that cannot exist with these clients."""


class Refused(FedgcError):
    """Something that arrived is left out; the round goes on."""


class BadMessage(Refused):
    """A frame or a message is not of this protocol or not of this round."""


class NotHere(BadMessage):
    """A message asks for chunks that are not here as they are asked for; `chunks` are these."""

    def __init__(self, said: str, chunks: tuple[int, ...] = ()) -> None:
        super().__init__(said)
        self.chunks = chunks


class BadVector(Refused):
    """A vector has the wrong size or type, or holds NaN or Inf."""


class NotAdmitted(Refused):
    """A token, certificate, identity or wire version is foreign."""


class NotRecoverable(FedgcError):
    """The sum cannot be had from these codewords."""


class TaskFailed(FedgcError):
    """The user's task raised while it trained."""


class EdgeFailed(FedgcError):
    """Disk, network or another program did not do its part."""


def nearest(name: str, known: Iterable[str], few: Iterable[str] = ()) -> str:
    """Return a hint that names the closest known name, else all of the few that there are.

    >>> nearest("round", ["rounds", "replicas"])
    '; did you mean rounds?'
    >>> nearest("xyzzy", ["rounds"]), nearest("xyzzy", ["mild", "drift"], ["mild", "drift"])
    ('', '; needed mild or drift')
    """
    close, needed = get_close_matches(name, list(known), n=1), " or ".join(few)
    if close:
        return f"; did you mean {close[0]}?"
    return f"; needed {needed}" if needed else ""
