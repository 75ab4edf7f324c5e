"""Computations and checks common to both sides: contexts, derived keys, commitments, adverts.

Everything is bound to the descriptor (fid), the epoch's roster (rho) and the exchange. The context of an
exchange is a hash over everything that its members must agree on, including the model; masks, self masks and
the signatures on the survivors derive from it. If a server sends two members different data, they derive
different masks, and the sum is noise.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedgc.errors import BadMessage, NotAdmitted
from fedgc.secagg.canonical import pack
from fedgc.secagg.federation import Federation
from fedgc.secagg.keys import KEY_BYTES, TAG_BYTES, agree, check_public, derive, digest, verify
from fedgc.secagg.keystream import Strand
from fedgc.secagg.packets import SHARE_BYTES, Advert, Begin, Roster

CLOCK_S: Final = 600  # maximum difference of two members' clocks, and lifetime of an advert
PAIR_BYTES: Final = 2 * SHARE_BYTES  # mask key and self seed, or a share of both


@dataclass(frozen=True, slots=True)
class Known:
    """A roster with derived values that are used repeatedly."""

    roster: Roster
    packed: bytes
    rho: bytes

    @classmethod
    def of(cls, roster: Roster) -> "Known":
        """Return the roster with its encoding and hash."""
        return cls(roster, roster.pack(), roster.rho)

    @property
    def members(self) -> tuple[int, ...]:
        """Return the members of the epoch."""
        return tuple(advert.member for advert in self.roster.adverts)

    def advert(self, member: int) -> Advert:
        """Return the advert of a member."""
        return self.roster.adverts[self.members.index(member)]


def check_advert(federation: Federation, advert: Advert, epoch: int, now: float) -> None:
    """Raise unless the advert is this member's, for this descriptor and epoch, fresh, with usable keys."""
    who = federation.name(advert.member)
    if advert.member >= len(federation.members):
        raise NotAdmitted(f"advert: saw member {who}, needed one of {len(federation.members)}")
    if advert.fid != federation.fid:
        raise NotAdmitted(
            f"{who} holds the descriptor {advert.fid.hex()[:16]}, needed {federation.fid.hex()[:16]}: "
            "compare the files"
        )
    verify(federation.members[advert.member].public, advert.signature, advert.statement, who)
    if advert.epoch != epoch or len(advert.masks) != federation.exchanges:
        raise BadMessage(
            f"{who}: saw keys for epoch {advert.epoch}, {len(advert.masks)} exchanges; "
            f"needed epoch {epoch}, {federation.exchanges}"
        )
    for key in (advert.channel, *advert.masks):
        check_public(key, who)
    if abs(advert.made - now) > CLOCK_S:
        raise NotAdmitted(
            f"{who}: saw keys made at {advert.made}, the clock here says {now:.0f}; needed at most "
            f"{CLOCK_S} s between them: set the clocks, or open a new epoch"
        )


def check_keys_differ(adverts: Sequence[Advert]) -> None:
    """Raise if a public key or commitment occurs twice in an epoch."""
    seen: dict[bytes, int] = {}
    for advert in adverts:
        for key in (advert.channel, *advert.masks, *advert.commitments):
            if key in seen:
                raise BadMessage(
                    f"roster: saw one key of members {seen[key]} and {advert.member}, needed each key once"
                )
            seen[key] = advert.member


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


def blob_context(fid: bytes, epoch: int, rho: bytes, source: int, target: int) -> bytes:
    """Return the context that a blob is bound to."""
    return pack("blob", fid, epoch, rho, source, target)


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
