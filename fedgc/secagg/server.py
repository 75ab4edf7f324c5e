"""The server's state machine: forwards and checks packets, and removes the masks from the sum.

    SetUp     .admit(advert) ... .roster() ... .receive(deal) ... .close() -> Epoch
    Epoch     .begin(exchange, members, terms) -> Exchange and a packet for each member
    Exchange  .agree(survivors) ... .sign(member, signature) ... .unlock() ... .open(packet) ... .masks()
    RingSum   .add(vector) ... .remove(masks) ... .mean()

The server has no secrets. The first three are frozen values; each step returns the next one. `RingSum` owns
the only large array. Input is checked on arrival, and a refusal names its sender. These checks protect the
result; the sites' secrecy does not depend on them.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedgc.errors import BadMessage, BadVector, NotRecoverable
from fedgc.large_vectors import Readable, Scratch
from fedgc.secagg import packets, rules
from fedgc.secagg.federation import Federation
from fedgc.secagg.keys import KEY_BYTES, TAG_BYTES, digest, loaded, public_of, same, verify
from fedgc.secagg.keystream import RING_TYPES, Strand, Words, add_strands, tiles
from fedgc.secagg.packets import SHARE_BYTES, Parcel
from fedgc.secagg.quantizer import Quantizer
from fedgc.secagg.rules import PAIR_BYTES, Known
from fedgc.secagg.shamir import combine

Float = NDArray[np.float32]
_SEALED_BYTES: Final = 16  # added to a blob by sealing


@dataclass(frozen=True, slots=True)
class SetUp:
    """An epoch during set-up. `keys` are those of all adverts, in sets of falling size (`_with`)."""

    federation: Federation
    epoch: int
    adverts: Mapping[int, packets.Advert] = field(default_factory=dict)
    known: Known | None = None
    deals: Mapping[int, packets.Deal] = field(default_factory=dict)
    keys: tuple[frozenset[bytes], ...] = field(default=(), repr=False, compare=False)

    def packet(self) -> packets.Open:
        """Return the request for every site."""
        return packets.Open(self.federation.fid, self.epoch)

    def admit(self, advert: packets.Advert, now: float) -> "SetUp":
        """Admit a site to the epoch, or raise with the reason."""
        if self.known is not None:
            raise BadMessage(f"epoch {self.epoch}: saw an advert after the roster went out; needed the next")
        rules.check_advert(self.federation, advert, self.epoch, now)
        if self.adverts.get(advert.member, advert) != advert:
            raise BadMessage(f"{self.federation.name(advert.member)}: saw a second advert, needed the first")
        if advert.member in self.adverts:
            return self
        adverts, keys = {**self.adverts, advert.member: advert}, rules.keys_of(advert)
        if len(set(keys)) < len(keys) or not all(each.isdisjoint(keys) for each in self.keys):
            rules.check_keys_differ(list(adverts.values()))  # it names the members
        return replace(self, adverts=adverts, keys=_with(self.keys, frozenset(keys)))

    def roster(self) -> tuple["SetUp", packets.Roster]:
        """End admission and return the roster; raise if there are too few sites."""
        count, needed = len(self.adverts), self.federation.quorum
        if count < needed:
            raise NotRecoverable(f"epoch {self.epoch}: saw {count} sites, needed {needed}")
        adverts = tuple(self.adverts[member] for member in sorted(self.adverts))
        if self.federation.graph is None:
            roster = packets.Roster(self.epoch, adverts)
        else:
            roster = packets.Roster(self.epoch, tuple(advert.head for advert in adverts))
        return replace(self, known=Known.of(roster)), roster

    def receive(self, deal: packets.Deal) -> "SetUp":
        """Store a site's sealed shares."""
        who = self.federation.name(deal.member)
        if self.known is None or deal.epoch != self.epoch or deal.member not in self.known.members:
            raise BadMessage(f"{who}: saw a deal of epoch {deal.epoch}, needed one of a member of the roster")
        if self.deals.get(deal.member, deal) != deal:
            raise BadMessage(f"{who}: saw a second deal, needed the first")
        if not self._is_for_holders(deal):
            raise BadMessage(f"{who}: saw parcels for others, needed one for each of {self.known.members}")
        if not all(self._is_whole(parcel) for parcel in deal.parcels):
            raise BadMessage(f"{who}: saw parcels of other sizes, needed shares of every exchange")
        return replace(self, deals={**self.deals, deal.member: deal})

    def close(self) -> "Epoch":
        """Return the epoch of the sites whose shares arrived; raise if there are too few."""
        count, needed = len(self.deals), self.federation.quorum
        if self.known is None or count < needed:
            raise NotRecoverable(f"epoch {self.epoch}: saw the shares of {count}, needed those of {needed}")
        return Epoch(self.federation, self.known, self.adverts, self.deals)

    def _is_for_holders(self, deal: packets.Deal) -> bool:
        """Return whether the parcels are for all members, or for itself and as many as a graph has."""
        graph, members = self.federation.graph, self.known.members if self.known else ()
        if graph is None:
            return deal.holders == members and not deal.neighbors
        others = set(deal.holders) - {deal.member}
        numbers = len(deal.holders), len(others), len(deal.neighbors)
        wanted = graph.holders, graph.holders - 1, graph.neighbors
        return numbers == wanted and others <= set(members) and others >= set(deal.neighbors)

    def _is_whole(self, parcel: Parcel) -> bool:
        exchanges = self.federation.exchanges
        sealed = PAIR_BYTES * exchanges + _SEALED_BYTES if parcel.target != parcel.source else 0
        return len(parcel.blob) == sealed and len(parcel.tags) == 2 * TAG_BYTES * exchanges


def _with(sets: tuple[frozenset[bytes], ...], keys: frozenset[bytes]) -> tuple[frozenset[bytes], ...]:
    """Return the sets with more keys; smaller ones are merged, so that n additions copy O(n log n) keys."""
    while sets and len(sets[-1]) <= len(keys):
        sets, keys = sets[:-1], sets[-1] | keys
    return (*sets, keys)


@dataclass(frozen=True, slots=True)
class Terms:
    """The parameters common to all members of an exchange."""

    size: int
    settings: bytes
    model: bytes

    def __post_init__(self) -> None:
        if len(self.model) != KEY_BYTES:
            raise BadMessage(f"model: saw a digest of {len(self.model)} bytes, needed {KEY_BYTES}")


@dataclass(frozen=True, slots=True)
class Epoch:
    """An epoch with complete keys; `supplied` are the members known to have the others' shares."""

    federation: Federation
    known: Known
    adverts: Mapping[int, packets.Advert]
    deals: Mapping[int, packets.Deal]
    supplied: frozenset[int] = frozenset()

    @property
    def members(self) -> tuple[int, ...]:
        """Return the members that can take part in exchanges."""
        return tuple(sorted(self.deals))

    def supply(self, member: int) -> "Epoch":
        """Record that a vector of this member arrived, so that it needs no more deliveries."""
        return replace(self, supplied=self.supplied | {member})

    def can_begin(self, members: Collection[int]) -> bool:
        """Return whether an exchange of these members has enough of them, and none cut off by absences."""
        here = frozenset(members) & self.deals.keys()
        if len(here) < self.federation.quorum:
            return False
        drew = ((member, self.deals[member].neighbors) for member in here)
        return not any(rules.absence(self.federation, member, neighbors, here) for member, neighbors in drew)

    def begin(
        self, exchange: int, members: Sequence[int], terms: Terms
    ) -> tuple["Exchange", dict[int, packets.Begin]]:
        """Return the exchange and the packet for each of its members; raise if there are too few."""
        taking = tuple(sorted(set(members)))
        if not set(taking) <= set(self.deals):
            raise BadMessage(f"begin: saw members {taking}, needed some of {self.members}")
        if len(taking) < self.federation.quorum:
            raise NotRecoverable(f"exchange: saw {len(taking)} sites, needed {self.federation.quorum}")
        if not 1 <= exchange <= self.federation.exchanges:
            raise BadMessage(f"exchange: saw {exchange}, needed 1 to {self.federation.exchanges}")
        plain = packets.Begin(self.known.roster.epoch, exchange, taking, terms.size, terms.settings)
        bound = rules.context(self.federation, self.known.rho, plain, terms.model)
        keys = {member: b"".join(self.adverts[member].masks) for member in self.members}
        out = self._begins(plain, taking, keys)
        holders = {member: self.deals[member].holders for member in taking}
        held: dict[int, list[int]] = {member: [] for member in self.known.members}
        for member in taking:
            for holder in holders[member]:
                held[holder].append(member)
        begun = Exchange(
            self.federation, self.known, self.adverts, self.deals, exchange, taking, bound, terms.size,
            holders, held, dict.fromkeys(taking, self.federation.shares),
        )  # fmt: skip
        return begun, out

    def _begins(
        self, plain: packets.Begin, taking: Sequence[int], keys: Mapping[int, bytes]
    ) -> dict[int, packets.Begin]:
        """Return the packet for each member, with the shares and keys that it lacks; deals are read once."""
        lacking: dict[int, list[packets.Delivery]] = {
            member: [] for member in taking if member not in self.supplied
        }
        for source, deal in sorted(self.deals.items()) if lacking else ():
            for parcel in deal.parcels:
                if parcel.target in lacking and parcel.target != source:
                    tags = digest("tags", parcel.tags)
                    delivery = packets.Delivery(source, parcel.blob, tags, deal.neighbors)
                    lacking[parcel.target].append(delivery)
        out = dict.fromkeys(taking, plain)
        for target, deliveries in lacking.items():
            near = set(self.deals[target].neighbors) & self.deals.keys()
            near |= {each.source for each in deliveries if target in each.neighbors}
            sent = tuple((member, keys[member]) for member in sorted(near))
            out[target] = replace(plain, deliveries=tuple(deliveries), keys=sent)
        return out


@dataclass(frozen=True, slots=True)
class Exchange:
    """One exchange, from its beginning to the masks of its sum.

    `holders` are those of each member's shares, `held` the members whose shares each holds, and `lacking`
    how many shares of each member's secret have not arrived.
    """

    federation: Federation
    known: Known
    adverts: Mapping[int, packets.Advert]
    deals: Mapping[int, packets.Deal]
    number: int
    members: tuple[int, ...]
    context: bytes
    size: int
    holders: Mapping[int, tuple[int, ...]]
    held: Mapping[int, Sequence[int]]
    lacking: Mapping[int, int]
    survivors: tuple[int, ...] = ()
    signatures: Mapping[int, bytes] = field(default_factory=dict)
    opened: Mapping[int, Mapping[int, bytes]] = field(default_factory=dict)

    @property
    def epoch(self) -> int:
        """Return the epoch whose keys it uses."""
        return self.known.roster.epoch

    def agree(self, survivors: Sequence[int]) -> tuple["Exchange", packets.Agree]:
        """Fix the survivors; if there are too few, the exchange is aborted."""
        chosen = tuple(sorted(set(survivors)))
        if self.survivors or not set(chosen) <= set(self.members):
            raise BadMessage(f"survivors: saw {chosen}, needed some of {self.members}, once an exchange")
        if len(chosen) < self.federation.quorum:
            raise NotRecoverable(
                f"exchange {self.number}: saw {len(chosen)} vectors, needed {self.federation.quorum}; aborted"
            )
        for member in chosen if self.federation.graph else ():
            if reason := rules.absence(
                self.federation, member, self.deals[member].neighbors, frozenset(chosen)
            ):
                raise NotRecoverable(f"exchange {self.number}: {reason}; aborted")
        return replace(self, survivors=chosen), packets.Agree(self.epoch, self.number, chosen)

    def sign(self, member: int, signature: bytes) -> "Exchange":
        """Store a survivor's signature."""
        who = self.federation.name(member)
        if member not in self.survivors:
            raise BadMessage(f"{who}: saw a signature of no survivor, needed one of {self.survivors}")
        statement = rules.agreement(self.federation.fid, self.context, self.survivors)
        verify(self.federation.members[member].public, signature, statement, who)
        return replace(self, signatures={**self.signatures, member: signature})

    def unlock(self) -> packets.Unlock:
        """Return the packet that requests shares; all survivors must get the same one."""
        count, needed = len(self.signatures), self.federation.threshold
        if count < needed:
            raise NotRecoverable(f"exchange {self.number}: saw {count} signatures, needed {needed}; aborted")
        enough = tuple(sorted(self.signatures.items())[:needed])  # more would only cost verification
        return packets.Unlock(self.epoch, self.number, enough)

    def open(self, packet: packets.Opened) -> "Exchange":
        """Store a survivor's shares; raise for a false share, naming its sender."""
        who = self.federation.name(packet.member)
        if (packet.epoch, packet.exchange) != (self.epoch, self.number):
            raise BadMessage(f"{who}: saw shares of another exchange, needed those of {self.number}")
        held = self.held.get(packet.member, ())
        if packet.member not in self.survivors or [m for m, _ in packet.shares] != held:
            raise BadMessage(f"{who}: saw shares of others, needed a survivor's for each of {held}")
        for source, share in packet.shares:
            if not same(self._tag(source, packet.member, share), self._promised(source, packet.member)):
                dealer = self.federation.name(source)
                raise BadMessage(f"{who}: saw a false share of what {dealer} dealt, needed the true one")
        if packet.member in self.opened:
            return self
        lacking = dict(self.lacking)
        for source in held:
            lacking[source] -= 1
        return replace(self, opened={**self.opened, packet.member: dict(packet.shares)}, lacking=lacking)

    def can_open(self, able: Collection[int]) -> bool:
        """Return whether enough members could sign, and every secret be rebuilt, if these answer."""
        there, needed = frozenset(able).intersection(self.survivors), self.federation.shares
        if len(there) < self.federation.threshold:
            return False
        return self.federation.graph is None or all(
            len(there.intersection(self.holders[member])) >= needed for member in self.members
        )

    @property
    def is_open(self) -> bool:
        """Return whether enough shares of every secret have arrived."""
        return max(self.lacking.values()) <= 0

    def masks(self) -> tuple[Strand, ...]:
        """Return the masks left in the survivors' sum, rebuilt from enough shares of each secret."""
        if not self.is_open:
            member, needed = max(self.lacking, key=self.lacking.__getitem__), self.federation.shares
            raise NotRecoverable(
                f"exchange {self.number}: saw shares of {needed - self.lacking[member]}, needed {needed} of "
                f"what {self.federation.name(member)} dealt; aborted"
            )
        secrets = self._secrets()
        survivors = set(self.survivors)
        found: list[Strand] = []
        for member in self.members:
            unmasked = self._self_mask if member in survivors else self._lost
            found += unmasked(member, secrets[member])
        return tuple(found)

    # ---- details

    def _secrets(self) -> dict[int, bytes]:
        """Return the secret of each member; those whose shares have the same points are rebuilt together."""
        together: dict[tuple[tuple[int, int], ...], list[int]] = {}
        for member in self.members:
            holders = self.holders[member]
            given = [holder for holder in holders if holder in self.opened][: self.federation.shares]
            points = tuple((rules.point(self.federation, holders, holder), holder) for holder in given)
            together.setdefault(points, []).append(member)
        found: dict[int, bytes] = {}
        for points, members in together.items():
            joined = {at: b"".join(self.opened[holder][m] for m in members) for at, holder in points}
            secrets = combine(joined, self.federation.shares)
            found |= {m: secrets[at * SHARE_BYTES : (at + 1) * SHARE_BYTES] for at, m in enumerate(members)}
        return found

    def _self_mask(self, member: int, seed: bytes) -> list[Strand]:
        promised = self.adverts[member].commitments[self.number - 1]
        mine = rules.commitment(self.federation.fid, self.epoch, member, self.number, seed)
        self._check_secret(member, same(mine, promised))
        return [rules.self_mask(seed, self.context, member)]

    def _lost(self, member: int, secret: bytes) -> list[Strand]:
        """Return the masks that survivors added for a lost member: the opposites of its own."""
        self._check_secret(member, same(public_of(secret), self.adverts[member].masks[self.number - 1]))
        publics = {m: self.adverts[m].masks[self.number - 1] for m in self._near(member)}
        key = loaded(secret)
        own = [rules.pair_mask(key, public, self.context, member, m) for m, public in publics.items()]
        return [strand.opposite() for strand in own]

    def _near(self, member: int) -> list[int]:
        """Return the survivors that share a mask with a member."""
        if self.federation.graph is None:
            return list(self.survivors)
        drew = set(self.deals[member].neighbors)
        return [m for m in self.survivors if m in drew or member in self.deals[m].neighbors]

    def _check_secret(self, member: int, is_right: bool) -> None:
        if not is_right:
            raise NotRecoverable(
                f"exchange {self.number}: {self.federation.name(member)} dealt shares of another secret than "
                "it committed to; aborted"
            )

    def _tag(self, source: int, target: int, share: bytes) -> bytes:
        kind = SHARE_BYTES if source in self.survivors else 0
        pair = bytes(kind) + share + bytes(SHARE_BYTES - kind)
        both = rules.tags(self.known.rho, source, target, [(self.number, pair)])
        return both[TAG_BYTES:] if kind else both[:TAG_BYTES]

    def _promised(self, source: int, target: int) -> bytes:
        tags = self.deals[source].parcels[self.holders[source].index(target)].tags
        at = 2 * (self.number - 1) + (source in self.survivors)
        return tags[at * TAG_BYTES : (at + 1) * TAG_BYTES]


class RingSum:
    """The running sum of masked vectors. The caller tracks its members."""

    def __init__(self, quantizer: Quantizer, size: int, scratch: Scratch | None = None) -> None:
        """The sum is one vector of the ring's words, in `scratch`."""
        self._quantizer = quantizer
        self._size = quantizer.words(size)
        self._scratch = scratch or Scratch()
        self._words: Words | None = None
        self._count = 0

    def check(self, vector: Readable) -> None:
        """Raise BadVector unless the vector has the size of this exchange."""
        kind = RING_TYPES[self._quantizer.ring]
        if vector.dtype != kind or vector.size != self._size:
            raise BadVector(
                f"masked vector: saw {vector.size} of {vector.dtype}, needed {self._size} of {kind}"
            )

    def add(self, vector: Readable) -> None:
        """Add one site's vector, tile by tile."""
        self.check(vector)
        self._count += 1
        if self._words is None:
            kind = RING_TYPES[self._quantizer.ring]
            self._words = self._scratch.empty(self._size * kind.itemsize).view(kind)
            for tile in tiles(self._size):
                self._words[tile] = vector[tile]
            return
        for tile in tiles(self._size):
            np.add(self._words[tile], vector[tile], out=self._words[tile])

    def remove(self, masks: Sequence[Strand]) -> None:
        """Subtract the masks."""
        add_strands(self._held(), [mask.opposite() for mask in masks])

    def mean(self) -> tuple[Float, int]:
        """Return the weighted mean and the sum of weights; overwrites the sum."""
        words, self._words = self._held(), None
        return self._quantizer.mean(words, self._count)

    def _held(self) -> Words:
        if self._words is None:
            raise NotRecoverable("sum: saw no vector, needed those of the survivors")
        return self._words
