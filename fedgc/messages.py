"""All that is said during a round: events go into the machine, commands come out of it.

An event tells what happened and when (`now`, seconds on the driver's clock); a command tells one
client, or the driver itself, what to do. `fedgc/round/machine.py` holds the table that turns events into
commands. Values are frozen and check themselves when made, so that whatever reaches the machine has the
right shape; whether it is *expected* there is for the machine to say.

Clients are named by their identity, chunks by their number in the run's table. Vectors never travel in
these messages: a client keeps them until a `Reveal`, the driver until an `Add`.
"""

import json
import math
from collections.abc import Collection, Iterable
from dataclasses import field
from itertools import chain
from typing import Annotated, Final, Literal

from fedgc.errors import BadMessage
from fedgc.values import Filled, Within, value

WIRE_VERSION: Final = 2  # both sides refuse another at the first hello
SKETCH_NUMBERS: Final = 16  # length of the seeded projection by which copies are compared
LARGEST_SKETCH: Final = 1e60  # far above any update, and its square times any number of samples is finite
LONGEST_REASON: Final = 1000
LARGEST_COUNT: Final = 10**15  # of steps, samples, bytes: more is nobody's, and sums stay exact
LARGEST_PACKET: Final = 700_000  # bytes of a masked exchange's packet: as base64 it still fits a line
LARGEST_HOLDINGS: Final = 800_000  # bytes of a line that the chunks of one client may take in its work
CHUNK_BYTES: Final = 17  # of them for each chunk beside its name: its number, twice, and what stands between
LONGEST_DIGEST: Final = 16  # characters of a shared chunk's content digest
UNREAD: Final = "?"  # in place of a digest: the chunk is shared, but could not be read when it was announced
SIGNATURE_BYTES: Final = 64
HASH_BYTES: Final = 32
RING_BITS: Final = (8, 16, 32)
LARGEST_AMOUNT: Final = 1e30  # of seconds, of a squared norm: more is no measurement, and squares stay finite

Kind = Literal["coded", "local", "masked"]
Wire = Literal["float32", "bf16", "int8", "int4"]  # how the numbers of a vector travel
Outcome = Literal["synced", "approximate", "skipped", "empty", "aborted", "stopped"]


Count = Annotated[int, Within(0, LARGEST_COUNT, f"{{name}} of 0 or more, at most {LARGEST_COUNT:g}")]
Samples = Annotated[int, Within(1, LARGEST_COUNT, f"at least one sample, at most {LARGEST_COUNT:g}")]
Steps = Annotated[int, Within(1, LARGEST_COUNT, f"a target of at least one step, at most {LARGEST_COUNT:g}")]
Again = Annotated[int, Within(1, LARGEST_COUNT, f"an attempt after the first, at most {LARGEST_COUNT:g}")]
Amount = Annotated[
    float, Within(0, LARGEST_AMOUNT, f"a finite {{name}} of 0 or more, at most {LARGEST_AMOUNT:g}")
]
Loss = Annotated[float, Within(-LARGEST_AMOUNT, LARGEST_AMOUNT, f"a loss up to {LARGEST_AMOUNT:g}")]
Client = Annotated[str, Filled("a client")]


def _check(condition: bool, message: object, needed: str) -> None:
    if not condition:
        raise BadMessage(f"{message!r}: needed {needed}")


def _distinct(message: object, chunks: Collection[int], what: str) -> None:
    if len(set(chunks)) != len(chunks):
        raise BadMessage(f"{message!r}: needed each chunk once in {what}")
    if chunks and min(chunks) < 0:
        raise BadMessage(f"{message!r}: needed chunks of 0 or more in {what}")


def _sketched(message: object, sketch: tuple[float, ...]) -> None:
    if len(sketch) not in (0, SKETCH_NUMBERS):
        raise BadMessage(f"{message!r}: needed {SKETCH_NUMBERS} sketch numbers, or none")
    within = math.hypot(*sketch) <= LARGEST_SKETCH  # and so is each of them; quick, as every report has one
    if not (within or all(abs(each) <= LARGEST_SKETCH for each in sketch)):
        raise BadMessage(f"{message!r}: needed a sketch up to {LARGEST_SKETCH:g}")


def _lettered(message: object, packet: bytes) -> None:
    """Refuse by its size alone: what is in a packet is for `secagg` to read."""
    if not 1 <= len(packet) <= LARGEST_PACKET:
        name = type(message).__name__
        raise BadMessage(f"{name}: saw a packet of {len(packet)} bytes, needed 1 to {LARGEST_PACKET}")


def _finite(message: object, values: Iterable[float], what: str) -> None:
    _check(all(map(math.isfinite, values)), message, f"finite {what}")


# ---- values inside messages


@value
class Held:
    """A chunk that a client can load, by the task's name for it.

    Without a `digest` it is the client's own: no other client has it, whatever the name. With one the task
    declares its data as shared: it is the same chunk on all clients that announce this name and digest.
    """

    name: Annotated[str, Filled("a chunk's name")]
    samples: Samples
    digest: str = ""

    def __post_init__(self) -> None:
        if len(self.digest) > LONGEST_DIGEST:
            seen = f"a digest of {len(self.digest)} characters"
            raise BadMessage(f"Held: saw {seen}, needed at most {LONGEST_DIGEST}")


@value
class Kept:
    """A trajectory that a returning client still has: steps reached from model `version`."""

    version: Count
    chunk: Count
    reached: Count
    sketch: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        _sketched(self, self.sketch)


@value
class Mix:
    """What a client mixes into one codeword: a row of `blocks` factors for each chunk."""

    chunks: tuple[int, ...]
    matrix: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        _check(len(self.chunks) == len(self.matrix) >= 1, self, "one row for each of at least one chunk")
        _check(len(set(self.chunks)) == len(self.chunks), self, "each chunk once")
        _check(min(self.chunks) >= 0, self, "chunks of 0 or more")
        _check(set(map(len, self.matrix)) == {self.blocks} != {0}, self, "rows of one length")
        _finite(self, chain.from_iterable(self.matrix), "factors")

    @property
    def blocks(self) -> int:
        """Into how many blocks each update is cut."""
        return len(self.matrix[0])


@value
class Ring:
    """How a masked vector travels: so many words of so many bits."""

    words: Annotated[int, Within(1, LARGEST_COUNT, f"at least one word, at most {LARGEST_COUNT:g}")]
    bits: int

    def __post_init__(self) -> None:
        _check(self.bits in RING_BITS, self, f"words of {RING_BITS} bits")


@value
class Pool:
    """What clients of one site share at each local step: `givers` of them give `given` samples to all.

    `holders` are the clients, each with the names of its chunks, in the order of their numbers.
    """

    givers: int
    given: Samples
    holders: tuple[tuple[str, tuple[str, ...]], ...]

    def __post_init__(self) -> None:
        clients = [client for client, _ in self.holders]
        _check(len(set(clients)) == len(clients), self, "each client once")
        _check(all(names for _, names in self.holders), self, "a chunk for every client")
        _check(1 <= self.givers <= len(clients), self, "one client that gives at least, and no more than all")


# ---- events


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
        _check(len({held.name for held in self.holds}) == len(self.holds), self, "each chunk once")
        _distinct(self, [kept.chunk for kept in self.kept], "kept")
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
        _check(len(self.reason) <= LONGEST_REASON, self, f"a reason of at most {LONGEST_REASON} characters")
        _distinct(self, self.chunks, "chunks")


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
            _sketched(self, self.sketch)


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
        _check(len(self.descriptor) == HASH_BYTES, self, f"a descriptor's hash of {HASH_BYTES} bytes")
        _check(len(self.signature) == SIGNATURE_BYTES, self, f"a signature of {SIGNATURE_BYTES} bytes")


@value
class Advert:
    """Masked: a site's public keys for an epoch."""

    now: Amount
    client: Client
    round: Count
    packet: bytes = field(repr=False)

    def __post_init__(self) -> None:
        _lettered(self, self.packet)


@value
class Deal:
    """Masked: a site's secrets, shared and sealed for each of the others."""

    now: Amount
    client: Client
    round: Count
    packet: bytes = field(repr=False)

    def __post_init__(self) -> None:
        _lettered(self, self.packet)


@value
class Signed:
    """Masked: a client signed the set of survivors."""

    now: Amount
    client: Client
    round: Count
    signature: bytes

    def __post_init__(self) -> None:
        _check(len(self.signature) == SIGNATURE_BYTES, self, f"a signature of {SIGNATURE_BYTES} bytes")


@value
class Shares:
    """Masked: a client gave its shares of the secrets that unmask the sum."""

    now: Amount
    client: Client
    round: Count
    packet: bytes = field(repr=False)

    def __post_init__(self) -> None:
        _lettered(self, self.packet)


@value
class Published:
    """Masked: the driver has made this version of the model known; its digest binds the next exchange."""

    now: Amount
    version: Count
    digest: bytes

    def __post_init__(self) -> None:
        _check(len(self.digest) == HASH_BYTES, self, f"a digest of {HASH_BYTES} bytes")


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


# ---- commands to a client


@value
class Work:
    """Take these chunks to `target` steps from model `version`, in this order.

    `names` tells the task's name of every chunk that the client may be asked for.
    `lease_s` is how long the client may work without hearing anything; `lockstep` clients wait for a
    verdict after each chunk.
    In local work all named chunks are trained on together, by one model. `first_step` local steps of the
    run lie before the common model; the last `common_steps` of them, by the mean over all clients, led to
    it from the model before (0: nobody knows). Where `most_steps` is beyond the target, the client reports
    at the target and goes on, up to so many steps from the common model, until it hears what comes next.
    With a `pool`, its batches hold samples of others.
    """

    client: str
    round: Count
    version: Count
    target: Steps
    order: tuple[int, ...]
    names: tuple[tuple[int, str], ...]
    seed: Count
    lease_s: Amount
    lockstep: bool = False
    kind: Kind = "coded"
    first_step: Count = 0
    common_steps: Amount = 0.0
    most_steps: Count = 0
    pool: Pool | None = None

    def __post_init__(self) -> None:
        _distinct(self, self.order, "order")
        _check(dict(self.names).keys() >= set(self.order), self, "a name for every chunk")
        _check(self.pool is None or self.client in dict(self.pool.holders), self, "the client in its pool")


@value
class Skip:
    """There are enough copies of this chunk for now: leave it, keep what there is of it."""

    client: str
    round: Count
    chunk: Count


@value
class Take:
    """Work on these chunks next, in this order, whether or not they were skipped before."""

    client: str
    round: Count
    chunks: tuple[int, ...]

    def __post_init__(self) -> None:
        _distinct(self, self.chunks, "chunks")


@value
class Continue:
    """The round was not exchanged: carry on to `target` steps from the same model."""

    client: str
    round: Count
    target: Steps
    order: tuple[int, ...]
    lease_s: Amount

    def __post_init__(self) -> None:
        _distinct(self, self.order, "order")


@value
class Reveal:
    """Mix and send one codeword; without a mix (local, masked work) send the update itself.

    `wire` is the format of its numbers on the wire, `ring` that of a masked vector. Before an update of
    local work its client reports how many steps it holds; one that has none sends none.
    """

    client: str
    round: Count
    attempt: Count
    kind: Kind
    mix: Mix | None
    wire: Wire = "float32"
    ring: Ring | None = None

    def __post_init__(self) -> None:
        _check((self.mix is None) == (self.kind != "coded"), self, "a mix exactly for coded work")
        _check((self.ring is None) == (self.kind != "masked"), self, "a ring exactly for a masked vector")


@value
class Repair:
    """Send this part of a codeword that was lost: the terms of `column` (a client) for these chunks."""

    client: str
    round: Count
    attempt: Annotated[
        int, Within(1, LARGEST_COUNT, f"an attempt after the first, at most {LARGEST_COUNT:g}")
    ]
    column: str
    mix: Mix
    wire: Wire = "float32"


@value
class Refuse:
    """Something that the client sent was left out, and why."""

    client: str
    round: Count
    reason: str


@value
class Open:
    """Masked: make one-time keys for an epoch."""

    client: str
    round: Count
    packet: bytes = field(repr=False)

    def __post_init__(self) -> None:
        _lettered(self, self.packet)


@value
class Roster:
    """Masked: these sites are in the epoch; share your secrets among them."""

    client: str
    round: Count
    packet: bytes = field(repr=False)

    def __post_init__(self) -> None:
        _lettered(self, self.packet)


@value
class Begin:
    """Masked: an exchange of the model that the work of this round starts from; expand its masks."""

    client: str
    round: Count
    packet: bytes = field(repr=False)

    def __post_init__(self) -> None:
        _lettered(self, self.packet)


@value
class Survivors:
    """Masked: sign that these sites' vectors are in the sum."""

    client: str
    round: Count
    packet: bytes = field(repr=False)

    def __post_init__(self) -> None:
        _lettered(self, self.packet)


@value
class Unmask:
    """Masked: so many have signed; give the shares."""

    client: str
    round: Count
    packet: bytes = field(repr=False)

    def __post_init__(self) -> None:
        _lettered(self, self.packet)


@value
class Close:
    """The round is over; `frees` says that what was kept for it may go."""

    client: str
    round: Count
    outcome: Outcome
    frees: bool


# ---- what a round says to its driver


@value
class Add:
    """Add this codeword to the running sum: block k of the sum gets weights[k] times the codeword."""

    client: str
    round: Count
    attempt: Count
    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        _check(bool(self.weights), self, "a weight for each block")
        _finite(self, self.weights, "weights")


@value
class Uncover:
    """Masked: take these masks off the sum; each is a key, and whether it was subtracted."""

    round: Count
    masks: tuple[tuple[bytes, bool], ...] = field(repr=False)

    def __post_init__(self) -> None:
        _check(bool(self.masks), self, "at least one mask")


# ---- the one word of a masked site's machine to its own disk


@value
class Persist:
    """Masked: write this down durably before anything else is said; it never travels."""

    client: str
    round: Count
    record: bytes = field(repr=False)


ToMember = Open | Roster | Begin | Survivors | Unmask
ToClient = Work | Skip | Take | Continue | Reveal | Repair | Refuse | ToMember | Close  # of a link
Command = ToClient | Add | Uncover
