"""The descriptor of a federation: the parameters that its members agree on before training.

Sites exchange it out of band, and each pins it. Its hash, `fid`, is part of every signature and key
derivation, so a server cannot change it: members with different descriptors cannot set up keys with each
other.

Threshold. T shares unmask; every sum has at least max(T, n_min) survivors. With c sites colluding with the
server, two different sets of survivors can both obtain T signatures if 2T <= n + c (the c sign both, the
honest sites split), which can reveal a single update. T >= floor(2n/3) + 1 excludes that for every c < n / 3
(Bonawitz et al. 2017, theorem 6.5). With two survivors each could compute the other's update from the sum, so
the minimum is three.
"""

from collections.abc import Sequence
from dataclasses import astuple, dataclass, field, fields, replace
from typing import Final

from fedgc.errors import BadMessage, BadSetting, NotAdmitted
from fedgc.messages import LARGEST_PACKET
from fedgc.secagg.canonical import Value, pack, read, rows, typed
from fedgc.secagg.graph import MOST_EXCHANGES, RISK_BITS, Graph
from fedgc.secagg.keys import KEY_BYTES, SIGNATURE_BYTES, Identity, digest, verify
from fedgc.secagg.privacy import Privacy
from fedgc.secagg.quantizer import LEAST_NOISE, Quantizer, fits, fits_with_noise
from fedgc.secagg.shamir import POINTS

PROTOCOL: Final = 1
FEWEST: Final = 3
_HEAD_BYTES: Final = 320
_LABEL: Final = "fedgc federation"
_SIGNED: Final = "fedgc endorsement"
_UNIT: Final = "site"  # what the noise of a descriptor protects
_DIGEST_BYTES: Final = 32


def least_threshold(members: int) -> int:
    """Return the smallest threshold allowed for this many members.

    >>> [least_threshold(n) for n in (3, 4, 5, 10)]
    [3, 3, 4, 7]
    """
    return max(FEWEST, 2 * members // 3 + 1)


@dataclass(frozen=True, slots=True, order=True)
class Member:
    """A site, by name and Ed25519 public key."""

    name: str
    public: bytes

    def __post_init__(self) -> None:
        if not (self.name and self.name.isprintable()):
            raise BadSetting(f"member: saw the name {self.name!r}, needed printable text")
        if len(self.public) != KEY_BYTES:
            raise BadSetting(f"member {self.name}: saw a key of {len(self.public)} bytes, needed {KEY_BYTES}")


@dataclass(frozen=True, slots=True)
class TaskPin:
    """The statement of the only task of a federation: its SHA-256, and how many members have to sign it."""

    digest: bytes
    signatures: int

    def check(self, members: int) -> None:
        """Raise unless so many members can sign it."""
        if len(self.digest) != _DIGEST_BYTES:
            raise BadSetting(f"task: saw a digest of {len(self.digest)} bytes, needed {_DIGEST_BYTES}")
        if not 1 <= self.signatures <= members:
            raise BadSetting(f"task: saw {self.signatures} signatures of {members}, needed 1 to {members}")


@dataclass(frozen=True, slots=True)
class Federation:
    """The pinned parameters. Members are numbered in the order of their names, from 0."""

    members: tuple[Member, ...]
    threshold: int
    n_min: int
    exchanges: int
    quantizer: Quantizer
    privacy: Privacy | None = None
    graph: Graph | None = None
    task: TaskPin | None = None
    fid: bytes = field(init=False, repr=False, compare=False)  # the hash that identifies this descriptor

    def __post_init__(self) -> None:
        count = len(self.members)
        if count < FEWEST or (count > POINTS and self.graph is None):
            graph = ", or a sparse graph (--colluders)" if count > POINTS else ""
            raise BadSetting(f"federation: saw {count} members, needed {FEWEST} to {POINTS}{graph}")
        if list(self.members) != sorted(self.members):
            raise BadSetting("federation: saw members out of order, needed them sorted by name")
        for what in ("name", "public"):
            if len({getattr(member, what) for member in self.members}) != count:
                raise BadSetting(f"federation: saw two members with one {what}, needed each once")
        self._check_quorum(count)
        self._check_sums(count)
        self.check_noise(1)
        if self.graph is not None:
            self.graph.check(count, self.threshold, self.quorum)
        if self.task is not None:
            self.task.check(count)
        if self.largest_packet > LARGEST_PACKET:
            raise BadSetting(
                f"exchanges: saw {self.exchanges} an epoch of {count} members, whose packets have up to "
                f"{self.largest_packet} bytes; needed at most {LARGEST_PACKET}: fewer exchanges"
            )
        object.__setattr__(self, "fid", digest(_LABEL, self.pack()))

    def _check_quorum(self, count: int) -> None:
        least = least_threshold(count)
        if not least <= self.threshold <= count:
            raise BadSetting(f"threshold: saw {self.threshold} of {count}, needed {least} to {count}")
        if not FEWEST <= self.n_min <= count:
            raise BadSetting(f"n_min: saw {self.n_min} of {count}, needed {FEWEST} to {count}")
        if not 1 <= self.exchanges <= MOST_EXCHANGES:
            raise BadSetting(f"exchanges: saw {self.exchanges} an epoch, needed 1 to {MOST_EXCHANGES}")

    def _check_sums(self, count: int) -> None:
        bits, ring = self.quantizer.bits, self.quantizer.ring
        if not fits(count, bits, ring):
            raise BadSetting(
                f"ring: saw {count} members with {bits} bits, whose sum needs more than {ring} bits; "
                "needed fewer bits or a larger ring"
            )

    def noise_steps(self, numbers: int) -> float:
        """Return the deviation of one site's noise for an update of so many numbers; 0 without privacy."""
        if self.privacy is None:
            return 0.0
        return self.privacy.own_noise(self.quorum, self.quantizer.step, numbers)

    def check_noise(self, numbers: int) -> None:
        """Raise if the noise for so many numbers is too small, or can wrap around in the ring.

        Raises:
            BadSetting: It is.
        """
        if self.privacy is None:
            return
        count, bits, ring = len(self.members), self.quantizer.bits, self.quantizer.ring
        steps = self.noise_steps(numbers)
        if not steps >= LEAST_NOISE:
            raise BadSetting(
                f"noise: saw a deviation of {steps:.3g} steps for each site, needed {LEAST_NOISE:g}: "
                "more bits, a smaller clip, or more noise"
            )
        if not fits_with_noise(count, bits, ring, steps):
            raise BadSetting(
                f"noise: saw a deviation of {steps:.3g} steps for each of {count} members with {bits} bits "
                f"for {numbers} numbers, whose sum needs more than {ring} bits; needed a larger ring, fewer "
                "bits, or less noise"
            )

    @property
    def quorum(self) -> int:
        """Return the minimum number of sites in a sum."""
        return max(self.threshold, self.n_min)

    @property
    def largest_packet(self) -> int:
        """Return the size limit of packets: a roster names all keys, a deal holds all shares."""
        count, keys, parcel = len(self.members), 74 * self.exchanges + 256, 96 * self.exchanges + 64
        if self.graph is None:
            return count * max(keys, parcel) + 256
        holders, neighbors = 3 * self.graph.holders, 3 * self.graph.neighbors  # others draw it as well
        begun = holders * (parcel + 3 * neighbors) + neighbors * (32 * self.exchanges + 32)
        return count * 9 + max(count * _HEAD_BYTES, begun) + 256

    @property
    def colluders(self) -> int:
        """Return how many sites may collude with the server while the other sites' updates stay hidden."""
        if self.graph is not None:
            return self.graph.colluders
        return min(2 * self.threshold - len(self.members) - 1, self.threshold - 1, self.quorum - 2)

    @property
    def shares(self) -> int:
        """Return how many shares rebuild a secret."""
        return self.threshold if self.graph is None else self.graph.shares

    def number(self, public: bytes) -> int:
        """Return the number of the member with this key."""
        for number, member in enumerate(self.members):
            if member.public == public:
                return number
        raise NotAdmitted(f"federation {self.fid.hex()[:16]}: saw the key {public.hex()}, needed a member's")

    def name(self, number: int) -> str:
        """Return a member's name, for messages."""
        return self.members[number].name if number < len(self.members) else f"number {number}"

    def pack(self) -> bytes:
        """Return the canonical bytes."""
        quantizer, privacy = self.quantizer, self.privacy
        pinned: tuple[Value, ...] = ()
        if privacy is not None:
            pinned = (privacy.clip, privacy.noise, privacy.exchanges, privacy.delta, _UNIT)
        return pack(
            _LABEL,
            PROTOCOL,
            tuple((member.name, member.public) for member in self.members),
            (self.threshold, self.n_min, self.exchanges, *(astuple(self.graph) if self.graph else ())),
            (float(quantizer.clip), quantizer.bits, quantizer.ring, quantizer.w_max),
            pinned,
            *(((self.task.digest, self.task.signatures),) if self.task else ()),
        )

    @classmethod
    def unpack(cls, data: bytes) -> "Federation":
        """Decode the output of `pack`."""
        kinds = (int, tuple, tuple, tuple, tuple, tuple)
        version, members, counts, numbers, pinned, task = read(data, _LABEL, *kinds, has_rest=True)
        if version != PROTOCOL:
            raise BadMessage(f"descriptor: saw protocol {version}, needed {PROTOCOL}")
        threshold, n_min, exchanges, *drawn = typed(counts, "descriptor", *[int] * max(3, len(counts)))
        if len(drawn) not in (0, len(fields(Graph))):
            raise BadMessage(f"descriptor: saw a graph of {len(drawn)} numbers, needed {len(fields(Graph))}")
        return cls(
            tuple(Member(*row) for row in rows(members, "descriptor", str, bytes)),
            threshold,
            n_min,
            exchanges,
            Quantizer(*typed(numbers, "descriptor", float, int, int, int)),
            _privacy_of(pinned) if pinned else None,
            Graph(*drawn) if drawn else None,
            TaskPin(*typed(task, "descriptor", bytes, int)) if task else None,
        )


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A federation with the signatures of members that endorse it: the content of the file."""

    federation: Federation
    endorsements: tuple[tuple[int, bytes], ...] = ()

    def __post_init__(self) -> None:
        numbers = [number for number, _ in self.endorsements]
        if numbers != sorted(set(numbers)):
            raise BadMessage(f"descriptor: saw endorsements of {numbers}, needed each member once, in order")
        for number, signature in self.endorsements:
            if number >= len(self.federation.members) or len(signature) != SIGNATURE_BYTES:
                raise BadMessage(f"descriptor: saw an endorsement of number {number}, needed a member's")
            member = self.federation.members[number]
            verify(member.public, signature, self._statement(), f"descriptor: {member.name}")

    def endorse(self, identity: Identity) -> "Descriptor":
        """Return the descriptor with this member's signature."""
        number = self.federation.number(identity.public)
        others = [each for each in self.endorsements if each[0] != number]
        signed = (number, identity.sign(self._statement()))
        return replace(self, endorsements=tuple(sorted([*others, signed])))

    def pack(self) -> bytes:
        """Return the bytes of the file."""
        return pack("fedgc descriptor", self.federation.pack(), tuple(self.endorsements))

    @classmethod
    def unpack(cls, data: bytes) -> "Descriptor":
        """Decode the output of `pack`; raise if no member signed it."""
        federation, endorsements = read(data, "fedgc descriptor", bytes, tuple)
        pairs = rows(endorsements, "descriptor", int, bytes)
        if not pairs:
            raise NotAdmitted("descriptor: saw no signature, needed that of at least one member")
        return cls(Federation.unpack(federation), pairs)

    def _statement(self) -> bytes:
        return pack(_SIGNED, self.federation.fid)


def guarantees(federation: Federation) -> tuple[str, ...]:
    """Return the guarantees of the descriptor as sentences."""
    count, quantizer = len(federation.members), federation.quantizer
    said = [
        f"{count} sites: {', '.join(member.name for member in federation.members)}.",
        f"The server learns weighted sums over at least {federation.quorum} of them, and the sum of their "
        "weights; no update of one site, and not its weight.",
        f"That holds while at most {federation.colluders} of them work with the server, even if the server "
        f"lies in its messages{_except(federation)}.",
        _drops(federation),
        _unmasking(federation),
        f"Keys serve one exchange each and are made anew every {federation.exchanges} exchanges; an attacker "
        f"who breaks into {federation.threshold} sites learns nothing of exchanges that are over.",
        f"Each site's own program clips its values to +-{quantizer.clip:g} and rounds them to steps "
        f"of {quantizer.step:.3g} without bias; sums of clipped values cannot overflow.",
        "No site helps to unmask two sums of one model.",
        f"A site uploads {quantizer.ring // 8} bytes for each parameter.",
    ]
    privacy = federation.privacy
    if privacy is not None:
        said.append(
            f"After {privacy.exchanges} exchanges the sums are "
            f"({privacy.spent(privacy.exchanges):.3f}, {privacy.delta:g})-differentially private for each "
            f"site, if every site clips its update to {privacy.clip:g} and adds its noise."
        )
    if federation.task is not None:
        said.append(
            f"A site trains the task of the statement {federation.task.digest.hex()} alone, if at least "
            f"{federation.task.signatures} members have signed it, and refuses other code, settings and "
            "versions of fedgc before it trains."
        )
    return tuple(said)


def limits(federation: Federation) -> tuple[str, ...]:
    """Return the limits of the descriptor's guarantees as sentences."""
    colluders = federation.colluders
    said = [
        "It does not hide the sum. What a sum over few sites, or a series of sums, reveals of their data "
        + ("is limited only by the noise." if federation.privacy else "is not limited."),
        f"It does not hold against {colluders + 1} or more sites that work with the server.",
        "It does not stop a site from sending a wrong update: it enters the sum undetected, "
        "and cannot be traced to a site.",
        "It does not enforce the clip or the largest weight: a program that ignores them "
        f"moves a value of the mean by up to {federation.quantizer.reach:.3g}.",
        "It does not hide the difference of two sums of nearly equal models: the server chooses the models.",
        "It does not make the server finish: it can always let an exchange fail.",
        _shares_of_a_sum(federation),
        "It does not hide which sites take part, when, and how long each takes.",
        "It does not protect a site's own machine: a program that reads its memory reads its update.",
    ]
    if federation.privacy is not None:
        share = max(0.0, 1 - max(1, colluders) / federation.quorum)
        said.append(
            "The privacy figure is for an observer who adds no noise: against "
            f"{max(1, colluders)} colluding sites {share:.0%} of the noise variance is left."
        )
    return tuple(said)


def _privacy_of(pinned: tuple[Value, ...]) -> Privacy:
    """Decode the privacy parameters."""
    if pinned[4:] != (_UNIT,):
        raise BadMessage(
            f"descriptor: saw privacy of {pinned[4:] or 'records'}, needed that of a site; records are "
            "protected by the setting privacy.unit = record"
        )
    return Privacy(*typed(pinned[:4], "descriptor", float, float, int, float))


def _shares_of_a_sum(federation: Federation) -> str:
    largest = 1 if federation.privacy else federation.quantizer.w_max
    if largest == 1:
        return "It does not keep the server from giving one site more work than others; all weigh the same."
    return (
        "It does not keep the server from giving one site much work and others little: weights follow the "
        f"work, and one site may count up to {largest} times as much in a sum as another."
    )


def _except(federation: Federation) -> str:
    return (
        "" if federation.graph is None else f", except with probability 2^-{RISK_BITS} for each set of keys"
    )


def _unmasking(federation: Federation) -> str:
    if federation.graph is None:
        return f"Any {federation.threshold} sites together can unmask; fewer can unmask nothing."
    return (
        f"The vector of a site is unmasked with any {federation.shares} of its {federation.graph.holders} "
        f"holders, which it draws in secret; {federation.threshold} sites sign who is in the sum."
    )


def _drops(federation: Federation) -> str:
    spare, graph = len(federation.members) - federation.quorum, federation.graph
    if graph is not None:
        return (
            f"Up to {spare} of them may drop out at any point of an exchange, and for each site up to "
            f"{graph.holders - graph.shares} of the {graph.holders} holders of its shares and "
            f"{graph.neighbors - graph.present} of the {graph.neighbors} neighbors that it drew; the sum is "
            "then that of the others."
        )
    if spare == 0:
        return "Every site must stay to the end of an exchange: one dropout ends it without a sum."
    return (
        f"Up to {spare} of them may drop out at any point of an exchange; the sum is then that of the others."
    )


def member_list(names_and_keys: Sequence[tuple[str, bytes]]) -> tuple[Member, ...]:
    """Return members in the order that a federation needs."""
    return tuple(sorted(Member(name, public) for name, public in names_and_keys))
