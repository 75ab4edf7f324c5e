"""The durable state of a site as one frozen value, and the difference between two states.

`records` writes a state as named records, `restore` reads them, and `changes` is the difference of two
states: records to put and to erase. All writes are made this way, so the disk always matches the machine's
state. Only the masked vector is not on the disk: it is computed as it is read, and after a restart the site
refuses instead of repeating it.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from operator import is_
from typing import Any, Final

from fedgc.errors import BadMessage
from fedgc.secagg.canonical import pack, read, rows, typed
from fedgc.secagg.federation import Federation
from fedgc.secagg.masked_vector import MaskedVector
from fedgc.secagg.packets import Roster
from fedgc.secagg.rules import Known, absence

_OWN: Final = "own/"
_HELD: Final = "held/"
_SPENT: Final = "spent/"
_GIVEN: Final = pack("given")


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """The present or last exchange of a site."""

    exchange: int
    context: bytes
    members: tuple[int, ...]
    size: int
    model: bytes
    used: bool = False
    survivors: tuple[int, ...] = ()
    signature: bytes = b""
    unlocked_by: bytes = b""
    opened: bytes = field(default=b"", repr=False)
    vector: MaskedVector | None = field(default=None, repr=False)

    def pack(self) -> bytes:
        """Return the record, without the vector."""
        return pack(
            "turn", self.exchange, self.context, self.members, self.size, self.model, int(self.used),
            self.survivors, self.signature, self.unlocked_by, self.opened,
        )  # fmt: skip

    @classmethod
    def unpack(cls, data: bytes) -> "Turn":
        """Decode the output of `pack`."""
        exchange, bound, members, size, model, used, *rest = read(
            data, "turn", int, bytes, tuple, int, bytes, int, tuple, bytes, bytes, bytes
        )
        return cls(exchange, bound, members, size, model, bool(used), *rest)


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """The state of a site in a federation.

    `own` holds mask key and self seed of each exchange to come; `held` the shares, in the order of `sources`,
    and `drew` the neighbors that each of these drew (none without a graph). `peers` are their mask keys.
    `released` counts masked vectors over all epochs. `start` identifies the state that the update of the
    present exchange must be made from. `spent` are the digests of the models for which this site released
    shares: it masks no second update of them, and they are kept forever.
    """

    epoch: int = 0
    released: int = 0
    advert: bytes = b""
    channel: bytes = field(default=b"", repr=False)
    own: Mapping[int, bytes] = field(default_factory=dict, repr=False)
    known: Known | None = field(default=None, repr=False)
    deal: bytes = field(default=b"", repr=False)
    sources: tuple[int, ...] = ()
    drew: tuple[tuple[int, ...], ...] = ()
    peers: Mapping[int, bytes] = field(default_factory=dict)
    held: Mapping[int, bytes] = field(default_factory=dict, repr=False)
    start: bytes = b""
    turn: Turn | None = None
    spent: frozenset[bytes] = frozenset()

    def near(self, member: int) -> set[int]:
        """Return the members that this site (`member`) drew as neighbors, or that drew it."""
        found = set(self.drew[self.sources.index(member)])
        return found.union(s for s, drew in zip(self.sources, self.drew, strict=True) if member in drew)

    def absence(self, federation: Federation, sites: Collection[int], of: Collection[int] = ()) -> str:
        """Return which of these sites a sum of them could cut off, of those whose shares are held here.

        Only those in `of` are looked at, if there are any.
        """
        there, asked = frozenset(sites), frozenset(of or sites)
        drew = ((s, each) for s, each in zip(self.sources, self.drew, strict=True) if s in asked)
        return next(filter(None, (absence(federation, s, each, there) for s, each in drew)), "")

    def records(self) -> dict[str, bytes]:
        """Return the state as named records; empty fields have none."""
        return {name: _packed(name, *fields) for name, fields in self.fields().items()}

    def fields(self) -> dict[str, tuple[object, ...]]:
        """Return the fields of each record, by its name."""
        found: dict[str, tuple[object, ...]] = {
            "epoch": (self.epoch, self.released, self.sources),
            "graph": (self.drew, self.peers) if any(self.drew) else (),
            "advert": (self.advert,),
            "channel": (self.channel,),
            "roster": (self.known.packed,) if self.known else (),
            "deal": (self.deal,),
            "start": (self.start,),
            "turn": (self.turn,),
        }
        found |= {f"{_OWN}{exchange}": (pair,) for exchange, pair in self.own.items()}
        found |= {f"{_HELD}{exchange}": (shares,) for exchange, shares in self.held.items()}
        found |= {f"{_SPENT}{model.hex()}": (_GIVEN,) for model in self.spent}
        return {name: fields for name, fields in found.items() if any(fields)}


def _packed(name: str, *fields: Any) -> bytes:  # noqa: ANN401  of `State.fields`
    match name:
        case "epoch":
            return pack("epoch", *fields)
        case "graph":
            drew, peers = fields
            return pack("graph", drew, tuple(peers.items()))
        case "turn":
            (turn,) = fields
            packed: bytes = turn.pack()
            return packed
    (record,) = fields
    return bytes(record)


def restore(records: Mapping[str, bytes]) -> State:
    """Return the state of these records; without any, the state before the first epoch."""
    if not records:
        return State()
    if "epoch" not in records:
        raise BadMessage(f"vault: saw records {sorted(records)}, needed the one of the epoch")
    epoch, released, sources = read(records["epoch"], "epoch", int, int, tuple)
    roster, turn, graph = records.get("roster"), records.get("turn"), records.get("graph")
    drew, peers = read(graph, "graph", tuple, tuple) if graph else (((),) * len(sources), ())
    return State(
        epoch,
        released,
        records.get("advert", b""),
        records.get("channel", b""),
        _numbered(records, _OWN),
        Known.of(Roster.unpack(roster)) if roster else None,
        records.get("deal", b""),
        sources,
        drew,
        dict(peers),
        _numbered(records, _HELD),
        records.get("start", b""),
        Turn.unpack(turn) if turn else None,
        frozenset(bytes.fromhex(name.removeprefix(_SPENT)) for name in records if name.startswith(_SPENT)),
    )


def _numbered(records: Mapping[str, bytes], prefix: str) -> dict[int, bytes]:
    return {
        int(name.removeprefix(prefix)): record for name, record in records.items() if name.startswith(prefix)
    }


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes that must be on disk before the next message is sent."""

    puts: tuple[tuple[str, bytes], ...] = field(repr=False)
    erases: tuple[str, ...]

    def pack(self) -> bytes:
        """Return the bytes that `messages.Persist` carries."""
        return pack("changes", self.puts, self.erases)

    @classmethod
    def unpack(cls, data: bytes) -> "Changes":
        """Decode the output of `pack`."""
        puts, erases = read(data, "changes", tuple, tuple)
        names = typed(erases, "changes", *[str] * len(erases))
        return cls(rows(puts, "changes", str, bytes), names)


def changes(before: State, after: State) -> Changes:
    """Return the difference of two states; only fields that were replaced are packed."""
    old, new = before.fields(), after.fields()
    puts = tuple(
        (name, _packed(name, *fields)) for name, fields in new.items() if not _are(fields, old.get(name, ()))
    )
    return Changes(puts, tuple(name for name in old if name not in new))


def _are(fields: tuple[object, ...], others: tuple[object, ...]) -> bool:
    """Return whether these are the same objects, not only equal ones."""
    return len(fields) == len(others) and all(map(is_, fields, others))
