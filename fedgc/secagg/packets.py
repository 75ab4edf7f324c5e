"""The packets between server and site, in protocol order.

| | server to site | site to server |
|---|---|---|
| set-up 1 | `Open`: make keys for this epoch | `Advert`: its public keys, signed |
| set-up 2 | `Roster`: the adverts of all | `Deal`: shares of its secrets, sealed for each other site |
| round 1 | `Begin`: the exchange, and once an epoch the sealed shares | the masked vector |
| round 2 | `Agree`: the members whose vectors are in the sum | its signature on them |
| round 3 | `Unlock`: enough such signatures | `Opened`: its shares of the secrets that unmask the sum |

A packet has one encoding (`canonical`) and validates its own shape; the state machines check whether it is
expected. Sites are identified by their number in the descriptor.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeVar

from fedgc.errors import BadMessage
from fedgc.secagg.canonical import pack, read, rows, typed
from fedgc.secagg.keys import KEY_BYTES, SIGNATURE_BYTES, TAG_BYTES, digest

SHARE_BYTES: Final = 32
LARGEST_SIZE: Final = 2**40
_Item = TypeVar("_Item")


def _check(condition: bool, what: str, saw: object, needed: str) -> None:
    if not condition:
        raise BadMessage(f"{what}: saw {saw!r}, needed {needed}")


def _in_order(numbers: Iterable[int], what: str) -> None:
    seen = list(numbers)
    _check(seen == sorted(set(seen)), what, seen, "each site once, in order")


def _all_of(items: Iterable[bytes], size: int, what: str) -> None:
    _check({len(item) for item in items} <= {size}, what, "items of other lengths", f"{size} bytes each")


def _each(kind: type[_Item], values: tuple[object, ...], what: str) -> tuple[_Item, ...]:
    # mypy cannot follow that `typed` checks each value at run time
    typed(values, what, *[kind] * len(values))  # type: ignore[arg-type]
    return values  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class Open:
    """A request to make one-time keys for this epoch."""

    fid: bytes
    epoch: int

    def __post_init__(self) -> None:
        _check(len(self.fid) == KEY_BYTES, "open", len(self.fid), "a descriptor's hash")
        _check(self.epoch >= 1, "open", self.epoch, "an epoch of 1 or more")

    def pack(self) -> bytes:
        """Return the packet's bytes."""
        return pack("open", self.fid, self.epoch)

    @classmethod
    def unpack(cls, data: bytes) -> "Open":
        """Decode the output of `pack`."""
        return cls(*read(data, "open", bytes, int))


@dataclass(frozen=True, slots=True)
class Advert:
    """The public keys of one site for one epoch; `made` is the site's clock, in whole seconds."""

    fid: bytes
    epoch: int
    member: int
    made: int
    channel: bytes
    masks: tuple[bytes, ...]
    commitments: tuple[bytes, ...]
    signature: bytes = bytes(SIGNATURE_BYTES)

    def __post_init__(self) -> None:
        _check(len(self.masks) == len(self.commitments) >= 1, "advert", len(self.masks), "a pair an exchange")
        _all_of((self.fid, self.channel, *self.masks, *self.commitments), KEY_BYTES, "advert")
        _all_of((self.signature,), SIGNATURE_BYTES, "advert")

    @property
    def statement(self) -> bytes:
        """Return the signed fields: all but the signature."""
        return pack(
            "advert", self.fid, self.epoch, self.member, self.made, self.channel, self.masks,
            self.commitments,
        )  # fmt: skip

    def pack(self) -> bytes:
        """Return the packet's bytes."""
        return pack("signed", self.statement, self.signature)

    @classmethod
    def unpack(cls, data: bytes) -> "Advert":
        """Decode the output of `pack`."""
        statement, signature = read(data, "signed", bytes, bytes)
        fid, epoch, member, made, channel, masks, commitments = read(
            statement, "advert", bytes, int, int, int, bytes, tuple, tuple
        )
        keys, promised = _each(bytes, masks, "advert"), _each(bytes, commitments, "advert")
        return cls(fid, epoch, member, made, channel, keys, promised, signature)


@dataclass(frozen=True, slots=True)
class Roster:
    """The signed adverts of all members of the epoch."""

    epoch: int
    adverts: tuple[Advert, ...]

    def __post_init__(self) -> None:
        _in_order((advert.member for advert in self.adverts), "roster")

    @property
    def rho(self) -> bytes:
        """Return the hash of this roster, used in every derivation."""
        return digest("roster", self.pack())

    def pack(self) -> bytes:
        """Return the packet's bytes."""
        return pack("roster", self.epoch, tuple(advert.pack() for advert in self.adverts))

    @classmethod
    def unpack(cls, data: bytes) -> "Roster":
        """Decode the output of `pack`."""
        epoch, adverts = read(data, "roster", int, tuple)
        return cls(epoch, tuple(map(Advert.unpack, _each(bytes, adverts, "roster"))))


@dataclass(frozen=True, slots=True)
class Parcel:
    """The sealed shares of `source` for `target`, and a tag of each share for the server's check."""

    source: int
    target: int
    blob: bytes
    tags: bytes

    def __post_init__(self) -> None:
        _check(len(self.tags) % (2 * TAG_BYTES) == 0, "parcel", len(self.tags), "two tags an exchange")


@dataclass(frozen=True, slots=True)
class Deal:
    """The parcels of one site, for the server to forward."""

    epoch: int
    member: int
    parcels: tuple[Parcel, ...]

    def __post_init__(self) -> None:
        _in_order((parcel.target for parcel in self.parcels), "deal")
        _check({parcel.source for parcel in self.parcels} <= {self.member}, "deal", self.member, "its own")

    def pack(self) -> bytes:
        """Return the packet's bytes."""
        return pack("deal", self.epoch, self.member, tuple((p.target, p.blob, p.tags) for p in self.parcels))

    @classmethod
    def unpack(cls, data: bytes) -> "Deal":
        """Decode the output of `pack`."""
        epoch, member, parcels = read(data, "deal", int, int, tuple)
        return cls(
            epoch, member, tuple(Parcel(member, *row) for row in rows(parcels, "deal", int, bytes, bytes))
        )


@dataclass(frozen=True, slots=True)
class Delivery:
    """A parcel as forwarded to its receiver, with only the hash of the tags."""

    source: int
    blob: bytes
    tags_digest: bytes

    def __post_init__(self) -> None:
        _all_of((self.tags_digest,), KEY_BYTES, "delivery")


@dataclass(frozen=True, slots=True)
class Begin:
    """Exchange number `exchange` of the epoch: its members, the size of the vector, and the settings."""

    epoch: int
    exchange: int
    members: tuple[int, ...]
    size: int
    settings: bytes
    deliveries: tuple[Delivery, ...] = ()

    def __post_init__(self) -> None:
        _in_order(self.members, "begin")
        _in_order((delivery.source for delivery in self.deliveries), "begin")
        _check(1 <= self.size <= LARGEST_SIZE, "begin", self.size, f"1 to {LARGEST_SIZE} numbers")

    def pack(self) -> bytes:
        """Return the packet's bytes."""
        deliveries = tuple((d.source, d.blob, d.tags_digest) for d in self.deliveries)
        return pack(
            "begin", self.epoch, self.exchange, self.members, self.size, self.settings, deliveries
        )  # fmt: skip

    @classmethod
    def unpack(cls, data: bytes) -> "Begin":
        """Decode the output of `pack`."""
        epoch, exchange, members, size, settings, parcels = read(
            data, "begin", int, int, tuple, int, bytes, tuple
        )
        deliveries = tuple(Delivery(*row) for row in rows(parcels, "begin", int, bytes, bytes))
        return cls(epoch, exchange, _each(int, members, "begin"), size, settings, deliveries)


@dataclass(frozen=True, slots=True)
class Agree:
    """The survivors, the members whose vectors are in the sum, to be signed."""

    epoch: int
    exchange: int
    survivors: tuple[int, ...]

    def __post_init__(self) -> None:
        _in_order(self.survivors, "agree")

    def pack(self) -> bytes:
        """Return the packet's bytes."""
        return pack("agree", self.epoch, self.exchange, self.survivors)

    @classmethod
    def unpack(cls, data: bytes) -> "Agree":
        """Decode the output of `pack`."""
        epoch, exchange, survivors = read(data, "agree", int, int, tuple)
        return cls(epoch, exchange, _each(int, survivors, "agree"))


@dataclass(frozen=True, slots=True)
class Unlock:
    """The signatures on the survivors, with the request for shares."""

    epoch: int
    exchange: int
    signatures: tuple[tuple[int, bytes], ...]

    def __post_init__(self) -> None:
        _in_order((number for number, _ in self.signatures), "unlock")
        _all_of((signature for _, signature in self.signatures), SIGNATURE_BYTES, "unlock")

    def pack(self) -> bytes:
        """Return the packet's bytes."""
        return pack("unlock", self.epoch, self.exchange, self.signatures)

    @classmethod
    def unpack(cls, data: bytes) -> "Unlock":
        """Decode the output of `pack`."""
        epoch, exchange, signatures = read(data, "unlock", int, int, tuple)
        return cls(epoch, exchange, rows(signatures, "unlock", int, bytes))


@dataclass(frozen=True, slots=True)
class Opened:
    """One site's shares: of a survivor's self mask, and of a lost member's mask key."""

    epoch: int
    exchange: int
    member: int
    shares: tuple[tuple[int, bytes], ...]

    def __post_init__(self) -> None:
        _in_order((number for number, _ in self.shares), "opened")
        _all_of((share for _, share in self.shares), SHARE_BYTES, "opened")

    def pack(self) -> bytes:
        """Return the packet's bytes."""
        return pack("opened", self.epoch, self.exchange, self.member, self.shares)

    @classmethod
    def unpack(cls, data: bytes) -> "Opened":
        """Decode the output of `pack`."""
        epoch, exchange, member, shares = read(data, "opened", int, int, int, tuple)
        return cls(epoch, exchange, member, rows(shares, "opened", int, bytes))
