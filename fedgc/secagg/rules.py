"""Computations and checks common to both sides: contexts, derived keys, commitments, adverts.

Everything is bound to the descriptor (fid), the epoch's roster (rho) and the exchange. The context of an
exchange is a hash over everything that its members must agree on, including the model; masks, self masks and
the signatures on the survivors derive from it. If a server sends two members different data, they derive
different masks, and the sum is noise.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedgc.errors import BadMessage, BadSetting, NotAdmitted
from fedgc.secagg.canonical import pack
from fedgc.secagg.federation import Federation
from fedgc.secagg.keys import KEY_BYTES, TAG_BYTES, agree, check_public, derive, digest, public_of, verify
from fedgc.secagg.keystream import Strand
from fedgc.secagg.packets import SHARE_BYTES, Advert, Begin, Head, Roster, keys_digest

NO_BUDGET: Final = "the agreed epsilon is spent"
CLOCK_S: Final = 600  # maximum difference of two members' clocks, and lifetime of an advert
PAIR_BYTES: Final = 2 * SHARE_BYTES  # mask key and self seed, or a share of both


@dataclass(frozen=True, slots=True)
class Known:
    """A roster with derived values that are used repeatedly."""

    roster: Roster
    packed: bytes
    rho: bytes
    by_member: Mapping[int, Advert | Head]

    @classmethod
    def of(cls, roster: Roster) -> "Known":
        """Return the roster with its encoding and hash."""
        by_member = {advert.member: advert for advert in roster.adverts}
        packed = roster.pack()
        return cls(roster, packed, digest("roster", packed), by_member)

    @property
    def members(self) -> tuple[int, ...]:
        """Return the members of the epoch."""
        return tuple(self.by_member)

    def advert(self, member: int) -> Advert | Head:
        """Return the advert of a member, or its head."""
        return self.by_member[member]


def check_advert(federation: Federation, advert: Advert | Head, epoch: int, now: float) -> None:
    """Raise unless an advert or head is this member's, for this descriptor and epoch, with usable keys."""
    _check_claim(federation, advert, now)
    who = federation.name(advert.member)
    signed = advert.head if isinstance(advert, Advert) and federation.graph else advert
    verify(federation.members[advert.member].public, advert.signature, signed.statement, who)
    masks = advert.masks if isinstance(advert, Advert) else ()
    count = len(masks) if isinstance(advert, Advert) else federation.exchanges
    if (advert.epoch, count) != (epoch, federation.exchanges):
        raise BadMessage(
            f"{who}: saw keys for epoch {advert.epoch}, {count} exchanges; "
            f"needed epoch {epoch}, {federation.exchanges}"
        )
    for key in (advert.channel, *masks):
        check_public(key, who)


def _check_claim(federation: Federation, advert: Advert | Head, now: float) -> None:
    """Raise unless an advert names a member and this descriptor, and is fresh."""
    who = federation.name(advert.member)
    if advert.member >= len(federation.members):
        raise NotAdmitted(f"advert: saw member {who}, needed one of {len(federation.members)}")
    if advert.fid != federation.fid:
        raise NotAdmitted(
            f"{who} holds the descriptor {advert.fid.hex()[:16]}, needed {federation.fid.hex()[:16]}: "
            "compare the files"
        )
    if abs(advert.made - now) > CLOCK_S:
        raise NotAdmitted(
            f"{who}: saw keys made at {advert.made}, the clock here says {now:.0f}; needed at most "
            f"{CLOCK_S} s between them: set the clocks, or open a new epoch"
        )


def check_keys(federation: Federation, head: Head, keys: bytes) -> None:
    """Raise unless these are the mask keys that a head names, all usable."""
    who = federation.name(head.member)
    if len(keys) != KEY_BYTES * federation.exchanges or keys_digest(keys) != head.keys_digest:
        raise BadMessage(f"{who}: saw {len(keys)} bytes of mask keys, needed those that its head names")
    for at in range(0, len(keys), KEY_BYTES):
        check_public(keys[at : at + KEY_BYTES], who)


def absence(federation: Federation, member: int, neighbors: Sequence[int], sites: frozenset[int]) -> str:
    """Return why a sum of these sites could cut this member off: too few neighbors that it drew."""
    count, needed = len(sites.intersection(neighbors)), federation.graph.present if federation.graph else 0
    if count >= needed:
        return ""
    return (
        f"{federation.name(member)}: saw {count} of {len(neighbors)} neighbors that it drew, needed {needed}"
    )


def point(federation: Federation, holders: Sequence[int], holder: int) -> int:
    """Return the point of a holder's share: its number, or its place among the holders with a graph."""
    return holders.index(holder) + 1 if federation.graph else holder + 1


def check_keys_differ(adverts: Sequence[Advert | Head]) -> None:
    """Raise if a public key or commitment occurs twice in an epoch."""
    seen: dict[bytes, int] = {}
    for advert in adverts:
        for key in keys_of(advert):
            if key in seen:
                raise BadMessage(
                    f"roster: saw one key of members {seen[key]} and {advert.member}, needed each key once"
                )
            seen[key] = advert.member


def keys_of(advert: Advert | Head) -> tuple[bytes, ...]:
    """Return the public keys and commitments of an advert, or their digests."""
    if isinstance(advert, Head):
        return (advert.channel, advert.keys_digest, advert.commitments_digest)
    return (advert.channel, *advert.masks, *advert.commitments)


def check_noise(federation: Federation, released: int, numbers: int) -> None:
    """Raise BadMessage if the privacy of a descriptor allows no further exchange of so many numbers."""
    privacy = federation.privacy
    if privacy is not None and released >= privacy.exchanges:
        raise BadMessage(
            f"privacy: saw {released} exchanges done, needed fewer than {privacy.exchanges}: {NO_BUDGET}"
        )
    try:
        federation.check_noise(numbers)
    except BadSetting as error:
        raise BadMessage(f"begin: {error}") from error


def check_quorum(federation: Federation, count: int, what: str) -> None:
    """Raise if too few sites would be in a sum."""
    if count < federation.quorum:
        raise BadMessage(f"{what}: saw {count} sites, needed {federation.quorum}")


def enrolment(fid: bytes, run: str, client: str, member: int, epoch: int) -> bytes:
    """Return the statement that proves a member's presence at this client, with keys up to this epoch.

    No other client can reuse it: the client authenticates itself in each session and with each packet.
    """
    return pack("enrolment", fid, run, client, member, epoch)


def check_enrolment(federation: Federation, statement: bytes, member: int, signature: bytes) -> None:
    """Raise unless this member of the federation signed the statement."""
    if member >= len(federation.members):
        raise NotAdmitted(f"enrolment: saw member {member}, needed one of {len(federation.members)}")
    verify(federation.members[member].public, signature, statement, federation.name(member))


def unsigned(
    fid: bytes, epoch: int, member: int, made: int, secret: bytes, own: Mapping[int, bytes]
) -> Advert:
    """Return the advert of a channel key and of the mask keys and self seeds of exchanges, to be signed."""
    keys = tuple(public_of(pair[:KEY_BYTES]) for pair in own.values())
    promised = tuple(commitment(fid, epoch, member, at, pair[KEY_BYTES:]) for at, pair in own.items())
    return Advert(fid, epoch, member, made, public_of(secret), keys, promised)


def commitment(fid: bytes, epoch: int, member: int, exchange: int, seed: bytes) -> bytes:
    """Return the commitment against which a rebuilt self seed is checked."""
    return digest("self seed", fid, epoch, member, exchange, seed)


def tags(rho: bytes, source: int, target: int, shares: Sequence[tuple[int, bytes]]) -> bytes:
    """Return two tags for each exchange: of the share of the mask key and of that of the self seed.

    A share is uniform, so its hash reveals nothing; it lets the server identify the sender of a false share.
    """
    prefix = digest("share", rho, source, target)
    parts = []
    for exchange, pair in shares:
        for kind, share in enumerate((pair[:SHARE_BYTES], pair[SHARE_BYTES:])):
            marked = prefix + exchange.to_bytes(8, "big") + bytes([kind]) + share
            parts.append(hashlib.sha256(marked).digest()[:TAG_BYTES])
    return b"".join(parts)


def channel(secret: X25519PrivateKey, public: bytes, rho: bytes, source: int, target: int) -> bytes:
    """Return the key of the one blob from `source` to `target`."""
    return derive(agree(secret, public, f"channel {source}->{target}"), rho, "channel", source, target)


def blob_context(
    fid: bytes, epoch: int, rho: bytes, source: int, target: int, neighbors: tuple[int, ...] = ()
) -> bytes:
    """Return the context that a blob is bound to: its place, and the neighbors that its source drew."""
    return pack("blob", fid, epoch, rho, source, target, *((neighbors,) if neighbors else ()))


def context(federation: Federation, rho: bytes, begin: Begin, model: bytes) -> bytes:
    """Return the hash of all that the members of an exchange agree on; `model` is SHA-256 of the model."""
    if len(model) != KEY_BYTES:
        raise BadMessage(f"model: saw a digest of {len(model)} bytes, needed {KEY_BYTES}")
    return digest(
        "exchange", federation.fid, rho, begin.epoch, begin.exchange, begin.members, model, begin.size,
        begin.settings,
    )  # fmt: skip


def footing(shape: bytes, first_step: int, common_steps: float, before: bytes) -> bytes:
    """Return the settings of an exchange: everything that shapes its updates besides the model.

    `shape` is the hash of the run's settings. The rest affects a client's steps as well: their position in
    the learning-rate schedule, and the two models whose difference is the shared momentum (`before` is the
    digest of the earlier one, empty without momentum). A server that could choose these per member could make
    all updates but one vanish, so that the sum would be that one update (Pasquini, Francati, Ateniese,
    "Eluding secure aggregation in federated learning via model inconsistency", 2022).
    """
    return pack("footing", shape, first_step, float(common_steps), before)


def start(model: bytes, settings: bytes) -> bytes:
    """Return the hash of everything that an update starts from; `model` is SHA-256 of the model."""
    return digest("start", model, settings)


def agreement(fid: bytes, bound: bytes, survivors: tuple[int, ...]) -> bytes:
    """Return the statement that a survivor signs."""
    return pack("survivors", fid, bound, survivors)


def self_mask(seed: bytes, bound: bytes, member: int) -> Strand:
    """Return the self mask, which only its owner or T shares can remove."""
    return Strand(derive(seed, bound, "self", member), minus=False)


def pair_mask(secret: X25519PrivateKey, public: bytes, bound: bytes, owner: int, other: int) -> Strand:
    """Return the mask that `owner` adds for `other`: the lower number adds it, the higher subtracts it."""
    low, high = sorted((owner, other))
    shared = agree(secret, public, f"mask {owner}, {other}")
    return Strand(derive(shared, bound, "pair", low, high), minus=owner == high)
