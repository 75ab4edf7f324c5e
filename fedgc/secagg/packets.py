"""The packets between server and site, in protocol order.

| | server to site | site to server |
|---|---|---|
| set-up 1 | `Open`: make keys for this epoch | `Advert`: its public keys, signed |
| set-up 2 | `Roster`: the adverts of all | `Deal`: shares of its secrets, sealed for each holder |
| round 1 | `Begin`: the exchange, and once an epoch the sealed shares | the masked vector |
| round 2 | `Agree`: the members whose vectors are in the sum | its signature on them |
| round 3 | `Unlock`: enough such signatures | `Opened`: its shares of the secrets that unmask the sum |

In a sparse federation (`graph`) the roster holds a `Head` in place of each advert, a deal and a delivery name
the neighbors that the dealer drew, and the first `Begin` brings the mask keys of all neighbors.

A packet has one encoding (`canonical`) and validates its own shape; the state machines check whether it is
expected. Sites are identified by their number in the descriptor.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeVar

from fedgc.errors import BadMessage
from fedgc.secagg.canonical import Value, pack, read, rows, typed, with_rest
from fedgc.secagg.keys import KEY_BYTES, SIGNATURE_BYTES, TAG_BYTES, digest

SHARE_BYTES: Final = 32
_HEAD: Final = pack("signed head", *[0] * 8)[: len(pack("signed head"))]  # how a packed head begins
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
    typed(values, what, *[kind] * len(values))  # type: ignore[arg-type]  # kinds by position
    return values  # type: ignore[return-value]  # checked above


def _rest(values: tuple[Value, ...]) -> tuple[Value, ...]:
    """Return the last field of a packet, which is left out when it is empty."""
    return (values,) if values else ()


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
class Head:
    """An advert with digests in place of the keys and commitments of exchanges; its signature is of these."""

    fid: bytes
    epoch: int
    member: int
    made: int
    channel: bytes
    keys_digest: bytes
    commitments_digest: bytes
    signature: bytes = bytes(SIGNATURE_BYTES)

    def __post_init__(self) -> None:
        _all_of((self.fid, self.channel, self.keys_digest, self.commitments_digest), KEY_BYTES, "head")
        _all_of((self.signature,), SIGNATURE_BYTES, "head")

    @property
    def statement(self) -> bytes:
        """Return the signed fields: all but the signature."""
        return pack("head", *self._signed)

    @property
    def _signed(self) -> tuple[Value, ...]:
        return (
            self.fid, self.epoch, self.member, self.made, self.channel, self.keys_digest,
            self.commitments_digest,
        )  # fmt: skip

    def pack(self) -> bytes:
        """Return the packet's bytes."""
        return pack("signed head", *self._signed, self.signature)

    @classmethod
    def unpack(cls, data: bytes) -> "Head":
        """Decode the output of `pack`."""
        return cls(*read(data, "signed head", bytes, int, int, int, bytes, bytes, bytes, bytes))


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

    @property
    def head(self) -> Head:
        """Return the head, with the signature of this advert."""
        keys, promised = keys_digest(b"".join(self.masks)), digest("commitments", self.commitments)
        return Head(
            self.fid, self.epoch, self.member, self.made, self.channel, keys, promised, self.signature
        )

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


def keys_digest(keys: bytes) -> bytes:
    """Return the digest of a member's mask keys, joined, that its head names."""
    return digest("mask keys", keys)


@dataclass(frozen=True, slots=True)
class Roster:
    """The signed adverts of all members of the epoch, or their heads in a sparse federation."""

    epoch: int
    adverts: tuple[Advert, ...] | tuple[Head, ...]

    def __post_init__(self) -> None:
        _in_order((advert.member for advert in self.adverts), "roster")

    def pack(self) -> bytes:
        """Return the packet's bytes."""
        return pack("roster", self.epoch, tuple(advert.pack() for advert in self.adverts))

    @classmethod
    def unpack(cls, data: bytes) -> "Roster":
        """Decode the output of `pack`."""
        epoch, adverts = read(data, "roster", int, tuple)
        packed = _each(bytes, adverts, "roster")
        if packed and packed[0].startswith(_HEAD):
            return cls(epoch, tuple(map(Head.unpack, packed)))
        return cls(epoch, tuple(map(Advert.unpack, packed)))


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
    """The parcels of one site, for the server to forward, and the neighbors that a sparse one drew."""

    epoch: int
    member: int
    parcels: tuple[Parcel, ...]
    neighbors: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        _in_order((parcel.target for parcel in self.parcels), "deal")
        _in_order(self.neighbors, "deal")
        _check({parcel.source for parcel in self.parcels} <= {self.member}, "deal", self.member, "its own")

    def pack(self) -> bytes:
        """Return the packet's bytes."""
        parcels = tuple((p.target, p.blob, p.tags) for p in self.parcels)
        return pack("deal", self.epoch, self.member, parcels, *_rest(self.neighbors))

    @classmethod
    def unpack(cls, data: bytes) -> "Deal":
        """Decode the output of `pack`."""
        epoch, member, packed, neighbors = read(data, "deal", int, int, tuple, tuple, has_rest=True)
        parcels = tuple(Parcel(member, *row) for row in rows(packed, "deal", int, bytes, bytes))
        return cls(epoch, member, parcels, _each(int, neighbors, "deal"))

    @property
    def holders(self) -> tuple[int, ...]:
        """Return the members that hold shares of this one's secrets."""
        return tuple(parcel.target for parcel in self.parcels)


@dataclass(frozen=True, slots=True)
class Delivery:
    """A parcel as forwarded to its receiver, with only the hash of the tags."""

    source: int
    blob: bytes
    tags_digest: bytes
    neighbors: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        _all_of((self.tags_digest,), KEY_BYTES, "delivery")
        _in_order(self.neighbors, "delivery")

    @property
    def row(self) -> tuple[Value, ...]:
        """Return the fields as `Begin` packs them."""
        return (self.source, self.blob, self.tags_digest, *_rest(self.neighbors))

    @classmethod
    def of(cls, row: Value) -> "Delivery":
        """Decode a row."""
        fields = with_rest(row, 4) if isinstance(row, tuple) else row
        source, blob, tags_digest, neighbors = typed(fields, "begin", int, bytes, bytes, tuple)
        return cls(source, blob, tags_digest, _each(int, neighbors, "begin"))


@dataclass(frozen=True, slots=True)
class Begin:
    """Exchange number `exchange` of the epoch: its members, the size of the vector, and the settings.

    `keys` are the mask keys of all exchanges of each neighbor, joined, in a sparse federation.
    """

    epoch: int
    exchange: int
    members: tuple[int, ...]
    size: int
    settings: bytes
    deliveries: tuple[Delivery, ...] = ()
    keys: tuple[tuple[int, bytes], ...] = ()

    def __post_init__(self) -> None:
        _in_order(self.members, "begin")
        _in_order((member for member, _ in self.keys), "begin")
        _in_order((delivery.source for delivery in self.deliveries), "begin")
        _check(1 <= self.size <= LARGEST_SIZE, "begin", self.size, f"1 to {LARGEST_SIZE} numbers")

    def pack(self) -> bytes:
        """Return the packet's bytes."""
        deliveries = tuple(delivery.row for delivery in self.deliveries)
        return pack(
            "begin", self.epoch, self.exchange, self.members, self.size, self.settings, deliveries,
            *_rest(self.keys),
        )  # fmt: skip

    @classmethod
    def unpack(cls, data: bytes) -> "Begin":
        """Decode the output of `pack`."""
        epoch, exchange, members, size, settings, parcels, keys = read(
            data, "begin", int, int, tuple, int, bytes, tuple, tuple, has_rest=True
        )
        numbers, deliveries = _each(int, members, "begin"), tuple(map(Delivery.of, parcels))
        return cls(epoch, exchange, numbers, size, settings, deliveries, rows(keys, "begin", int, bytes))


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

    @property
    def name(self) -> bytes:
        """Return the hash that identifies the packet."""
        members = tuple(number for number, _ in self.signatures)
        signatures = b"".join(signature for _, signature in self.signatures)
        return digest("unlock", self.epoch, self.exchange, members, signatures)

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
