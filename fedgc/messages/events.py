"""Events: what happened, and when (`now`, in seconds of the driver's clock)."""

import json
from dataclasses import field

from fedgc.errors import BadMessage
from fedgc.messages.fields import (
    CHUNK_BYTES,
    HASH_BYTES,
    LARGEST_HOLDINGS,
    LONGEST_FIGURE,
    LONGEST_REASON,
    MOST_FIGURES,
    MOST_WINDOWS,
    SIGNATURE_BYTES,
    WEEK_S,
    Amount,
    Client,
    Count,
    Loss,
    Samples,
    check,
    check_distinct,
    check_finite,
    check_packet,
    check_sketch,
)
from fedgc.messages.layout import Layout
from fedgc.messages.values import Held, Kept
from fedgc.values import value


@value
class Joined:
    """A client is present: what it can load, and what it still has of earlier work.

    `live` clients receive commands while they work; others (the message link) only between messages. From a
    client that is present it means that its process was started again.
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
        if size > LARGEST_HOLDINGS:  # without the names, which are as long
            seen = f"{len(self.holds)} chunks whose names and numbers take {size} bytes of a line"
            raise BadMessage(f"Joined: saw {seen}, needed at most {LARGEST_HOLDINGS}")


@value
class Lost:
    """A client did not come back within its grace time.

    A link sends it before any later `Joined` of that client, and never for a connection that another
    replaced.
    """

    now: Amount
    client: Client


@value
class Loaded:
    """The model of this version has arrived at a client, `seconds` after it was sent.

    Optional: a report of work implies it.
    """

    now: Amount
    client: Client
    version: Count
    seconds: Amount = 0.0
    size_bytes: Count = 0


@value
class Fetched:
    """A client has fetched `count` more chunks from the store of its site, in `seconds` in all."""

    now: Amount
    client: Client
    count: Count
    size_bytes: Count
    seconds: Amount


@value
class Failed:
    """A client could not execute a command; it stays live. The named chunks are not available from it.

    Local work: it was `steps` steps beyond the last common model, and has discarded them.
    """

    now: Amount
    client: Client
    round: Count
    reason: str
    chunks: tuple[int, ...] = ()
    steps: Count = 0

    def __post_init__(self) -> None:
        check(len(self.reason) <= LONGEST_REASON, self, f"a reason of at most {LONGEST_REASON} characters")
        check_distinct(self, self.chunks, "chunks")


@value
class Progress:
    """A client has trained a chunk to `reached` steps since the last common model, in `seconds` in total.

    `model_norm` is that of the common model: replicas may differ by the rounding of its numbers.
    """

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
    model_norm: Amount = 0.0

    def __post_init__(self) -> None:
        if self.sketch:
            check_sketch(self, self.sketch)


@value
class Report:
    """Local work: a client is `steps` steps beyond the last common model, after `seconds` in total.

    `samples` are those that it trains on. `squared_norm` is for the gate, which leaves out an invalid one and
    names its client; it is not checked here.
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
class Leaving:
    """A client was asked to end, and stays for `grace_s` seconds at most to hand in what it has.

    It has reported what it has, and takes no new work.
    """

    now: Amount
    client: Client
    grace_s: Amount


@value
class Closing:
    """The hours in which a client may train end in `closes_s` seconds; it leaves by then.

    `windows` are those of the next seven days, as seconds from now at which they open and close.
    """

    now: Amount
    client: Client
    closes_s: Amount
    windows: tuple[tuple[float, float], ...] = ()

    def __post_init__(self) -> None:
        times = [each for window in self.windows for each in window]
        ordered = times == sorted(times) and (not times or 0 <= times[0] <= times[-1] <= WEEK_S)
        check(
            len(self.windows) <= MOST_WINDOWS and ordered,
            self,
            f"up to {MOST_WINDOWS} windows of a week, in order",
        )


@value
class Announced:
    """A client has named the tensors of its model, and the digest of its base; said before it joins."""

    now: Amount
    client: Client
    layout: Layout


@value
class Scored:
    """What the common model of a version is worth on a client's own data, by `samples` samples of it."""

    now: Amount
    client: Client
    version: Count
    samples: Samples
    figures: tuple[tuple[str, float], ...]
    problem: str = ""  # why there are none

    def __post_init__(self) -> None:
        names = [name for name, _ in self.figures]
        check(len(set(names)) == len(names) <= MOST_FIGURES, self, f"up to {MOST_FIGURES} names, each once")
        fits = all(0 < len(name) <= LONGEST_FIGURE and name.isprintable() for name in names)
        check(fits, self, f"printable names of figures, of at most {LONGEST_FIGURE} characters")
        check_finite(self, [value for _, value in self.figures], "figures")
        check(len(self.problem) <= LONGEST_REASON, self, f"a problem of at most {LONGEST_REASON} characters")


@value
class Offered:
    """A client has offered the codeword of this attempt: its bytes come, or wait for their turn."""

    now: Amount
    client: Client
    round: Count
    attempt: Count


@value
class Codeword:
    """A client's codeword for this attempt has arrived at the driver, whole and checked.

    `norm` is measured for coded work, and 0 for an update.
    """

    now: Amount
    client: Client
    round: Count
    attempt: Count
    seconds: Amount = 0.0
    size_bytes: Count = 0
    norm: Amount = 0.0


@value
class Enrolled:
    """Masked: a site is present, with this descriptor, as this member, with keys up to this epoch.

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
class _Packet:
    """An event of a masked exchange: a packet of `secagg`."""

    now: Amount
    client: Client
    round: Count
    packet: bytes = field(repr=False)

    def __post_init__(self) -> None:
        check_packet(self, self.packet)


@value
class Advert(_Packet):
    """Masked: a site's public keys for an epoch."""


@value
class Deal(_Packet):
    """Masked: a site's secret shares, sealed for each of the others."""


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
class Shares(_Packet):
    """Masked: a client sent its shares of the secrets that unmask the sum."""


@value
class Published:
    """Masked: the driver has published this version of the model; its digest binds the next exchange."""

    now: Amount
    version: Count
    digest: bytes

    def __post_init__(self) -> None:
        check(len(self.digest) == HASH_BYTES, self, f"a digest of {HASH_BYTES} bytes")


@value
class Tick:
    """Time has passed; sent at the machine's `next_tick`."""

    now: Amount


@value
class Stop:
    """A user or the system ends the run; `complete` says that nothing more was to be gained by it."""

    now: Amount
    reason: str
    complete: bool = False


@value
class StepsGranted:
    """At the server of a site: the consortium asks for `limit` local steps from its model, in all.

    `origin` is the version and the digest of that model, whose first step is number `first_step` of the run.
    An origin that is new comes between two rounds, after the driver has taken the model.
    """

    now: Amount
    origin: str
    first_step: Count
    limit: Count


@value
class UpdateDue:
    """At the server of a site: the consortium asks for what the site's fleet has finished, now."""

    now: Amount


Masking = Enrolled | Advert | Deal | Signed | Shares
Asked = StepsGranted | UpdateDue
Worked = Progress | Report | Codeword
Event = (
    Joined
    | Leaving
    | Closing
    | Lost
    | Loaded
    | Fetched
    | Failed
    | Offered
    | Worked
    | Masking
    | Published
    | Tick
    | Stop
    | StepsGranted
    | UpdateDue
)
ModelEvent = Announced | Scored  # about the model: the driver handles them, not the run
LinkEvent = Event | ModelEvent  # what a link passes on
