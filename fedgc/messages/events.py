"""Events: what happened, and when (`now`, in seconds of the driver's clock)."""

import json
from dataclasses import field

from fedgc.errors import BadMessage
from fedgc.messages.fields import (
    CHUNK_BYTES,
    HASH_BYTES,
    LARGEST_HOLDINGS,
    LONGEST_REASON,
    SIGNATURE_BYTES,
    Amount,
    Client,
    Count,
    Loss,
    check,
    check_distinct,
    check_packet,
    check_sketch,
)
from fedgc.messages.values import Held, Kept
from fedgc.values import value


@value
class Joined:
    """A client is there: what it can load, and what it still has of earlier work.

    `live` clients hear commands while they work; others (the messages link) only between messages.
    """

    now: Amount
    client: Client
    live: bool
    holds: tuple[Held, ...]
    kept: tuple[Kept, ...] = ()

    def __post_init__(self) -> None:
        check(len({held.name for held in self.holds}) == len(self.holds), self, "each chunk once")
        check_distinct(self, [kept.chunk for kept in self.kept], "kept")
        names = json.dumps([held.name for held in self.holds], separators=(",", ":"))
        size = len(names) + CHUNK_BYTES * len(self.holds) + sum(len(held.digest) for held in self.holds)
        if size > LARGEST_HOLDINGS:  # the names are not repeated: they are as long
            seen = f"{len(self.holds)} chunks whose names and numbers take {size} bytes of a line"
            raise BadMessage(f"Joined: saw {seen}, needed at most {LARGEST_HOLDINGS}")


@value
class Lost:
    """A client is gone and did not come back within its grace time.

    Said before any later `Joined` of that client: it never tells of a connection that another replaced.
    """

    now: Amount
    client: Client


@value
class Loaded:
    """The model of this version has come to a client whole, in `seconds`: from here on it can work.

    Only a link that hears of it says so; a report of work tells as much.
    """

    now: Amount
    client: Client
    version: Count
    seconds: Amount = 0.0
    size_bytes: Count = 0


@value
class Failed:
    """A client could not do what it was told; it lives on. Chunks named cannot be had from it."""

    now: Amount
    client: Client
    round: Count
    reason: str
    chunks: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check(len(self.reason) <= LONGEST_REASON, self, f"a reason of at most {LONGEST_REASON} characters")
        check_distinct(self, self.chunks, "chunks")


@value
class Progress:
    """A client has taken a chunk to `reached` steps since the last common model, in `seconds` all told."""

    now: Amount
    client: Client
    round: Count
    chunk: Count
    reached: Count
    seconds: Amount
    samples: Count
    squared_norm: Amount
    loss: Loss
    sketch: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.sketch:
            check_sketch(self, self.sketch)


@value
class Report:
    """Local work: a client is so many steps beyond the last common model, in `seconds` all told.

    `samples` are those that it trains on. `squared_norm` is what the gate weighs; a gate leaves out one that
    is no length, and names its client, so that it is not checked here.
    """

    now: Amount
    client: Client
    round: Count
    steps: Count
    samples: Count
    seconds: Amount
    squared_norm: float
    loss: Loss


@value
class Codeword:
    """A client's codeword for this attempt lies whole and checked with the driver."""

    now: Amount
    client: Client
    round: Count
    attempt: Count
    seconds: Amount = 0.0
    size_bytes: Count = 0


@value
class Enrolled:
    """Masked: a site is there, with this descriptor, as this member, with keys up to this epoch.

    The member signs that, for this run and this client (`secagg.rules.enrolment`).
    """

    now: Amount
    client: Client
    descriptor: bytes
    member: Count
    epoch: Count
    signature: bytes

    def __post_init__(self) -> None:
        check(len(self.descriptor) == HASH_BYTES, self, f"a descriptor's hash of {HASH_BYTES} bytes")
        check(len(self.signature) == SIGNATURE_BYTES, self, f"a signature of {SIGNATURE_BYTES} bytes")


@value
class Advert:
    """Masked: a site's public keys for an epoch."""

    now: Amount
    client: Client
    round: Count
    packet: bytes = field(repr=False)

    def __post_init__(self) -> None:
        check_packet(self, self.packet)


@value
class Deal:
    """Masked: a site's secrets, shared and sealed for each of the others."""

    now: Amount
    client: Client
    round: Count
    packet: bytes = field(repr=False)

    def __post_init__(self) -> None:
        check_packet(self, self.packet)


@value
class Signed:
    """Masked: a client signed the set of survivors."""

    now: Amount
    client: Client
    round: Count
    signature: bytes

    def __post_init__(self) -> None:
        check(len(self.signature) == SIGNATURE_BYTES, self, f"a signature of {SIGNATURE_BYTES} bytes")


@value
class Shares:
    """Masked: a client gave its shares of the secrets that unmask the sum."""

    now: Amount
    client: Client
    round: Count
    packet: bytes = field(repr=False)

    def __post_init__(self) -> None:
        check_packet(self, self.packet)


@value
class Published:
    """Masked: the driver has made this version of the model known; its digest binds the next exchange."""

    now: Amount
    version: Count
    digest: bytes

    def __post_init__(self) -> None:
        check(len(self.digest) == HASH_BYTES, self, f"a digest of {HASH_BYTES} bytes")


@value
class Tick:
    """Time has passed; the machine said when it wants to hear that."""

    now: Amount


@value
class Stop:
    """Somebody wants the run to end."""

    now: Amount
    reason: str


Masking = Enrolled | Advert | Deal | Signed | Shares
Event = Joined | Lost | Loaded | Failed | Progress | Report | Codeword | Masking | Published | Tick | Stop
