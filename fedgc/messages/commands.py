"""Commands for a client or for the driver."""

from dataclasses import field
from typing import Annotated

from fedgc.messages.fields import (
    LARGEST_COUNT,
    Amount,
    Count,
    Kind,
    Outcome,
    Steps,
    Wire,
    check,
    check_distinct,
    check_finite,
    check_packet,
)
from fedgc.messages.values import Mix, Pool, Ring
from fedgc.values import Within, value


@value
class Work:
    """Train these chunks to `target` steps from model `version`, in this order.

    `names` holds the task's name of every chunk that the client may be asked for. `lease_s` is how long the
    client may work without a message; `lockstep` clients wait for a verdict after each chunk.
    In local work all named chunks are trained together, by one model. `first_step` counts the local steps of
    the run before the common model; the last `common_steps` of them, a mean over all clients, led to it from
    model `before`, which this client had (0 steps: unknown). If `most_steps` is beyond the target, the client
    reports at the target and goes on, up to `most_steps` from the common model, until the next command. With
    a `pool`, its batches include samples of other clients.
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
    before: Count = 0
    most_steps: Count = 0
    pool: Pool | None = None

    def __post_init__(self) -> None:
        check_distinct(self, self.order, "order")
        named = dict(self.names)
        check(named.keys() >= set(self.order), self, "a name for every chunk")
        once = len(named) == len(set(named.values())) == len(self.names)
        check(once, self, "each chunk once in names")  # twice it would count double, also against its privacy
        check(self.pool is None or self.client in dict(self.pool.holders), self, "the client in its pool")


@value
class Skip:
    """There are enough replicas of this chunk for now: leave it, keep the partial work."""

    client: str
    round: Count
    chunk: Count


@value
class Take:
    """Work on these chunks next, in this order, even if they were skipped before."""

    client: str
    round: Count
    chunks: tuple[int, ...]

    def __post_init__(self) -> None:
        check_distinct(self, self.chunks, "chunks")


@value
class Continue:
    """The round was not exchanged: continue to `target` steps from the same model."""

    client: str
    round: Count
    target: Steps
    order: tuple[int, ...]
    lease_s: Amount

    def __post_init__(self) -> None:
        check_distinct(self, self.order, "order")


@value
class Reveal:
    """Mix and send one codeword; without a mix (local, masked work) send the update itself.

    `wire` is the format of its numbers on the wire, `ring` that of a masked vector. Before an update of local
    work its client reports how many steps it holds; one without steps sends no update.
    """

    client: str
    round: Count
    attempt: Count
    kind: Kind
    mix: Mix | None
    wire: Wire = "float32"
    ring: Ring | None = None

    def __post_init__(self) -> None:
        check((self.mix is None) == (self.kind != "coded"), self, "a mix exactly for coded work")
        check((self.ring is None) == (self.kind != "masked"), self, "a ring exactly for a masked vector")


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
class Initialize:
    """Send the model as you made it: the run starts from it. It comes as the codeword of round 0."""

    client: str
    round: Count = 0
    attempt: Count = 0


@value
class Validate:
    """Score the model of this version on your own data, without training."""

    client: str
    round: Count
    version: Count


@value
class Refuse:
    """Something that the client sent was dropped, and why."""

    client: str
    round: Count
    reason: str


@value
class _Packet:
    """A command of a masked exchange: a packet of `secagg`."""

    client: str
    round: Count
    packet: bytes = field(repr=False)

    def __post_init__(self) -> None:
        check_packet(self, self.packet)


@value
class Open(_Packet):
    """Masked: make one-time keys for an epoch."""


@value
class Roster(_Packet):
    """Masked: these sites are in the epoch; share your secrets among them."""


@value
class Begin(_Packet):
    """Masked: begin the exchange of this round's model; expand its masks."""


@value
class Survivors(_Packet):
    """Masked: sign that these sites' vectors are in the sum."""


@value
class Unmask(_Packet):
    """Masked: enough sites have signed; send the shares."""


@value
class Close:
    """The round is over; `frees` says that its kept work may be deleted.

    A round that is aborted and frees the work makes no model: the run goes back to an earlier one.
    """

    client: str
    round: Count
    outcome: Outcome
    frees: bool


@value
class Add:
    """Add this codeword to the running sum: block k of the sum gets weights[k] times the codeword.

    `late_from` is the version of the model that a late update was trained from; None for the newest one.
    """

    client: str
    round: Count
    attempt: Count
    weights: tuple[float, ...]
    late_from: int | None = None

    def __post_init__(self) -> None:
        check(bool(self.weights), self, "a weight for each block")
        check_finite(self, self.weights, "weights")


@value
class Uncover:
    """Masked: remove these masks from the sum; each is a key, and whether it was subtracted."""

    round: Count
    masks: tuple[tuple[bytes, bool], ...] = field(repr=False)

    def __post_init__(self) -> None:
        check(bool(self.masks), self, "at least one mask")


@value
class Persist:
    """Masked: store this durably before any other command; never sent over a link."""

    client: str
    round: Count
    record: bytes = field(repr=False)


ToMember = Open | Roster | Begin | Survivors | Unmask
ToClient = (  # over a link
    Work | Skip | Take | Continue | Reveal | Repair | Initialize | Validate | Refuse | ToMember | Close
)
Command = ToClient | Add | Uncover
