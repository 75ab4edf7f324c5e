"""The site's state machine of secure aggregation: packets in; packets and records to persist out.

Every method returns the machine after the step and the outputs in this order: `Persist` first, then `Reply`.
The driver must write the record to disk before it sends the reply. A refused packet raises and changes
nothing. A repeated packet gets the same bytes as before, or a refusal; never a second answer. `now` and 32
fresh secret bytes (`entropy`) are arguments.

    enrol(...)                                    signed proof of this member's presence
    open(Open)     -> Persist, Reply(Advert)      keys of an epoch
    join(Roster)   -> Persist, Reply(Deal)        its secrets, shared among all members, or its holders
    begin(Begin)   -> Persist                     binds an exchange to one context
    upload(...)    -> Persist, Reply(vector)      uses the exchange; erases its own secrets
    agree(Agree)   -> Persist, Reply(signature)   one set of survivors for each exchange
    note(Unlock)   -> Persist                     one set of signatures for each exchange (sparse only)
    unlock(Unlock) -> Persist, Reply(Opened)      releases shares; erases all others of this exchange

After it has released shares for a sum, the machine masks no other update made from the same model, in any
exchange, epoch or run, since the difference of two such sums can reveal one site's update. The model's digest
is on disk before the shares leave.

Protocol: Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning" (2017), the
variant for a malicious server, with keys for many exchanges agreed at once. A mask key serves one exchange,
so rebuilding it after a dropout reveals nothing about other exchanges. In a large federation a member has a
few neighbors and holders, which it draws (`graph`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from fedgc.errors import BadMessage, BadVector, NotAdmitted
from fedgc.large_vectors import Readable
from fedgc.messages import Persist
from fedgc.secagg import packets, rules
from fedgc.secagg.federation import Federation
from fedgc.secagg.graph import draw, drawn
from fedgc.secagg.keys import KEY_BYTES, Identity, derive, digest, loaded, same, seal, unseal, verify
from fedgc.secagg.keystream import Strand, keystream
from fedgc.secagg.masked_vector import MaskedVector, Shield
from fedgc.secagg.packets import SHARE_BYTES
from fedgc.secagg.rules import PAIR_BYTES, Known
from fedgc.secagg.shamir import split
from fedgc.secagg.state import State, Turn, changes, restore

UNMASKED: Final = "of which this site helped to unmask a sum"
LONGEST_LEAP: Final = 2**20  # epochs skipped at once, so that a server cannot exhaust the counter


@dataclass(frozen=True, slots=True, eq=False)
class Reply:
    """An output to send: a packet's bytes, or the masked vector."""

    content: bytes | MaskedVector = field(repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class Client:
    """The state machine of one site in one federation."""

    federation: Federation
    identity: Identity
    number: int
    state: State

    @classmethod
    def start(cls, federation: Federation, identity: Identity, records: Mapping[str, bytes]) -> "Client":
        """Return the machine restored from its records; raise for an identity that is not a member."""
        return cls(federation, identity, federation.number(identity.public), restore(records))

    # ---- set-up

    def enrol(self, run: str, client: str) -> bytes:
        """Return the signature that proves to the server of a run that this member is at this client."""
        said = rules.enrolment(self.federation.fid, run, client, self.number, self.state.epoch)
        return self.identity.sign(said)

    def open(self, packet: packets.Open, now: float, entropy: bytes) -> "Step":
        """Make one-time keys for a new epoch, and reply with the public keys."""
        _check_entropy(entropy)
        state = self.state
        if packet.fid != self.federation.fid:
            raise NotAdmitted(
                f"server: saw the descriptor {packet.fid.hex()[:16]}, "
                f"needed {self.federation.fid.hex()[:16]}: compare the files"
            )
        if packet.epoch == state.epoch and state.advert:
            return self, (Reply(state.advert),)
        if not state.epoch < packet.epoch <= state.epoch + LONGEST_LEAP:
            raise BadMessage(f"epoch: saw {packet.epoch}, needed a later one than {state.epoch}, and near it")
        count = self.federation.exchanges
        stream = keystream(derive(entropy, packet.fid, "keys", packet.epoch), KEY_BYTES + PAIR_BYTES * count)
        secret, pairs = stream[:KEY_BYTES], _cut(stream[KEY_BYTES:], PAIR_BYTES)
        own = dict(enumerate(pairs, start=1))
        unsigned = rules.unsigned(packet.fid, packet.epoch, self.number, round(now), secret, own)
        signed = unsigned.head if self.federation.graph else unsigned
        advert = replace(unsigned, signature=self.identity.sign(signed.statement)).pack()
        after = State(packet.epoch, state.released, advert, secret, own, spent=state.spent)
        return self._keep(after, Reply(advert))

    def join(self, roster: packets.Roster, now: float, entropy: bytes) -> "Step":
        """Check the members of the epoch, and share this site's secrets among them.

        All checks come before the draw of a sparse graph. If a refusal depended on the draw, a server could
        repeat a roster with false members until none of them is drawn.
        """
        _check_entropy(entropy)
        state = self.state
        if roster.epoch != state.epoch:
            raise BadMessage(f"roster: saw epoch {roster.epoch}, needed the one opened, {state.epoch}")
        if state.known is not None:
            if roster != state.known.roster:
                raise BadMessage(f"roster: saw another one for epoch {roster.epoch}, needed the first")
            if not state.deal:
                raise BadMessage(f"roster: saw it for epoch {roster.epoch} after the exchanges began")
            return self, (Reply(state.deal),)
        self._check_roster(roster, now)
        known = Known.of(roster)
        holders, neighbors = known.members, tuple[int, ...]()
        if self.federation.graph is not None:
            others = [member for member in known.members if member != self.number]
            chosen, neighbors = draw(self.federation.graph, others, derive(entropy, known.rho, "graph"))
            holders = tuple(sorted((*chosen, self.number)))
        points = {member: rules.point(self.federation, holders, member) for member in holders}
        secret = b"".join(state.own[exchange] for exchange in sorted(state.own))
        chance = derive(entropy, known.rho, "shares")
        shares = split(secret, self.federation.shares, list(points.values()), chance)
        parcels = tuple(self._parcel(known, member, neighbors, shares[at]) for member, at in points.items())
        deal = packets.Deal(state.epoch, self.number, parcels, neighbors).pack()
        mine = dict(enumerate(_cut(shares[points[self.number]], PAIR_BYTES), start=1))
        after = replace(state, known=known, deal=deal, sources=(self.number,), drew=(neighbors,), held=mine)
        return self._keep(after, Reply(deal))

    # ---- an exchange

    def begin(self, packet: packets.Begin, model: bytes) -> "Step":
        """Bind the next exchange to its members, its settings and the model received.

        A model for which shares were already released is refused. `model` is the SHA-256 computed on this
        side. `packet.size` is the server's claim: the driver compares it with its model.
        """
        state = self.state
        known = self._check_epoch(packet.epoch)
        bound = rules.context(self.federation, known.rho, packet, model)
        if state.turn is not None and packet.exchange == state.turn.exchange:
            return self._begin_again(state.turn, bound)
        self._check_begin(known, packet)
        self._check_unspent(model)
        if state.sources == (self.number,):
            state = self._supplied(known, packet)
        self._check_supplied(state, packet.members)
        after = replace(
            state,
            channel=b"",  # all blobs are read, and cannot be read again
            deal=b"",
            own={at: pair for at, pair in state.own.items() if at >= packet.exchange},
            held={at: shares for at, shares in state.held.items() if at >= packet.exchange},
            start=rules.start(model, packet.settings),
            turn=Turn(packet.exchange, bound, packet.members, packet.size, model),
        )
        return self._keep(after)

    def upload(self, update: Readable, weight: int, start: bytes, entropy: bytes) -> "Step":
        """Mask the update, which is read as the vector is sent, and erase the secrets of the masks.

        `start` is the result of `rules.start` for the state that the update was made from: the server may
        have sent another model since the exchange was bound.
        """
        _check_entropy(entropy)
        turn = self._turn_unused()
        if not same(start, self.state.start):
            raise BadMessage(
                f"exchange {turn.exchange}: saw an update made from another model or other settings, needed "
                "those that the exchange is bound to"
            )
        if update.size != turn.size or update.dtype != np.float32:
            raise BadVector(f"update: saw {update.size} of {update.dtype}, needed {turn.size} of float32")
        vector = MaskedVector(
            self.federation.quantizer,
            update,
            weight,
            self._strands(turn),
            derive(entropy, turn.context, "rounding"),
            self._shield(update, weight, derive(entropy, turn.context, "noise")),
        )
        after = replace(
            self.state,
            released=self.state.released + 1,
            own={at: pair for at, pair in self.state.own.items() if at > turn.exchange},
            turn=replace(turn, used=True, vector=vector),
        )
        return self._keep(after, Reply(vector))

    def agree(self, packet: packets.Agree) -> "Step":
        """Sign the set of members whose vectors are in the sum."""
        turn = self._turn_used(packet.epoch, packet.exchange)
        if turn.survivors:
            if packet.survivors != turn.survivors:
                raise BadMessage(
                    f"survivors: saw {packet.survivors} after {turn.survivors}, needed one set an exchange"
                )
            return self, (Reply(turn.signature),)
        survivors = packet.survivors
        if not set(survivors) <= set(turn.members):
            raise BadMessage(f"survivors: saw {survivors}, needed some of {turn.members}")
        if self.number not in survivors:
            raise BadMessage(f"survivors: saw {survivors}, needed {self.number} (this site) in it")
        rules.check_quorum(self.federation, len(survivors), "survivors")
        if reason := self.state.absence(self.federation, survivors):
            raise BadMessage(f"survivors: {reason}")
        signature = self.identity.sign(rules.agreement(self.federation.fid, turn.context, survivors))
        agreed = replace(turn, survivors=survivors, signature=signature, vector=None)
        return self._keep(replace(self.state, turn=agreed), Reply(signature))

    def note(self, packet: packets.Unlock) -> "Step":
        """Take the only packet that may unlock this exchange, before some of its signatures are verified.

        Otherwise a server could repeat false signatures until only true ones happen to be verified.
        """
        turn = self._turn_used(packet.epoch, packet.exchange)
        name = packet.name
        if turn.unlocked_by and not same(name, turn.unlocked_by):
            raise BadMessage("unlock: saw a second one, needed one an exchange")
        if turn.unlocked_by or self.federation.graph is None:
            return self, ()
        return self._keep(replace(self.state, turn=replace(turn, unlocked_by=name)))

    def unlock(self, packet: packets.Unlock) -> "Step":
        """Release the shares that unmask the sum, once enough members signed the same survivors."""
        turn = self._turn_used(packet.epoch, packet.exchange)
        name = packet.name
        if (turn.opened or self.federation.graph) and not same(name, turn.unlocked_by):
            raise BadMessage("unlock: saw a second one, needed one an exchange")
        if turn.opened:
            return self, (Reply(turn.opened),)
        self._check_signatures(turn, packet.signatures, name)
        pairs = dict(zip(self.state.sources, _cut(self.state.held[turn.exchange], PAIR_BYTES), strict=True))
        given = tuple(
            (m, pairs[m][SHARE_BYTES:] if m in turn.survivors else pairs[m][:SHARE_BYTES])
            for m in turn.members
            if m in pairs
        )
        opened = packets.Opened(packet.epoch, turn.exchange, self.number, given).pack()
        after = replace(
            self.state,
            held={at: shares for at, shares in self.state.held.items() if at > turn.exchange},
            turn=replace(turn, unlocked_by=name, opened=opened),
            spent=self.state.spent | {turn.model},
        )
        return self._keep(after, Reply(opened))

    # ---- checks of each step

    def _check_roster(self, roster: packets.Roster, now: float) -> None:
        mine = packets.Advert.unpack(self.state.advert) if self.state.advert else None
        own = mine.head if mine and self.federation.graph else mine
        kind = packets.Head if self.federation.graph else packets.Advert
        for advert in roster.adverts:
            if not isinstance(advert, kind):
                raise BadMessage(
                    f"roster: saw {type(advert).__name__}, needed {kind.__name__} of each member"
                )
            rules.check_advert(self.federation, advert, roster.epoch, now)
        rules.check_keys_differ(roster.adverts)
        if own not in roster.adverts:
            raise BadMessage("roster: saw another advert of this site or none, needed its own")
        rules.check_quorum(self.federation, len(roster.adverts), "roster")

    def _check_epoch(self, epoch: int) -> Known:
        if epoch != self.state.epoch or self.state.known is None:
            raise BadMessage(f"exchange: saw epoch {epoch}, needed the one set up, {self.state.epoch}")
        return self.state.known

    def _check_begin(self, known: Known, packet: packets.Begin) -> None:
        last = self.state.turn.exchange if self.state.turn else 0
        if not last < packet.exchange <= self.federation.exchanges:
            raise BadMessage(
                f"exchange: saw {packet.exchange} after {last}, needed a later one, "
                f"at most {self.federation.exchanges}"
            )
        if strangers := sorted(set(packet.members) - set(known.members)):
            raise BadMessage(f"begin: saw members {strangers}, needed those of the epoch")
        if self.number not in packet.members:
            raise BadMessage(f"begin: saw members {packet.members}, needed {self.number} in it")
        rules.check_quorum(self.federation, len(packet.members), "begin")
        rules.check_noise(self.federation, self.state.released, packet.size)

    def _check_supplied(self, state: State, members: tuple[int, ...]) -> None:
        """Raise unless this site has what it needs of these members."""
        if self.federation.graph is None:
            missing = set(members) - set(state.sources)
        else:
            missing = state.near(self.number).intersection(members) - set(state.peers)
        if missing:
            raise BadMessage(
                f"begin: saw members {sorted(missing)} whose shares never came, needed them at first"
            )
        if reason := state.absence(self.federation, members, of=(self.number,)):
            raise BadMessage(f"begin: {reason}")

    def _check_unspent(self, model: bytes) -> None:
        if model in self.state.spent:
            raise BadMessage(
                f"begin: saw the model {model.hex()[:16]}, {UNMASKED} before, and two sums of "
                "one model tell single updates; needed another: go on from the newest model, or begin with "
                "another seed"
            )

    def _check_signatures(self, turn: Turn, signatures: Sequence[tuple[int, bytes]], name: bytes) -> None:
        """Verify all signatures, or a secret choice of those in the packet of this name."""
        if not turn.survivors:
            raise BadMessage("unlock: saw it before any survivors, needed them agreed on first")
        statement = rules.agreement(self.federation.fid, turn.context, turn.survivors)
        strangers = {member for member, _ in signatures} - set(turn.survivors)
        if strangers:
            raise BadMessage(f"unlock: saw a signature of {min(strangers)}, needed those of survivors")
        if len(signatures) < self.federation.threshold:
            raise BadMessage(f"unlock: saw {len(signatures)} signatures, needed {self.federation.threshold}")
        graph, chosen = self.federation.graph, tuple(range(len(signatures)))
        if graph is not None:
            chance = derive(self.identity.secret, turn.context, "checked", name)
            chosen = drawn(chosen, graph.checked, chance)
        for member, signature in (signatures[at] for at in chosen):
            who = self.federation.members[member]
            verify(who.public, signature, statement, f"unlock: {who.name}")

    def _turn_unused(self) -> Turn:
        turn = self.state.turn
        if turn is None or turn.used:
            raise BadMessage("upload: saw no exchange that waits for one, needed `begin` first")
        return turn

    def _turn_used(self, epoch: int, exchange: int) -> Turn:
        turn = self.state.turn
        if epoch != self.state.epoch or turn is None or exchange != turn.exchange:
            raise BadMessage(f"exchange: saw {exchange} of epoch {epoch}, needed the present one")
        if not turn.used:
            raise BadMessage(f"exchange {exchange}: saw it closed before the vector was sent")
        return turn

    # ---- details

    def _begin_again(self, turn: Turn, bound: bytes) -> "Step":
        if not same(bound, turn.context):
            raise BadMessage(
                f"exchange {turn.exchange}: saw it again with another model, members or settings, "
                "needed the same"
            )
        if not turn.used:
            return self, ()
        if turn.vector is None:
            raise BadMessage(
                f"exchange {turn.exchange}: saw it again, but its vector is gone; needed the next"
            )
        return self, (Reply(turn.vector),)

    def _parcel(self, known: Known, target: int, neighbors: tuple[int, ...], shares: bytes) -> packets.Parcel:
        tags = rules.tags(known.rho, self.number, target, list(enumerate(_cut(shares, PAIR_BYTES), 1)))
        if target == self.number:
            return packets.Parcel(self.number, target, b"", tags)
        key = rules.channel(
            loaded(self.state.channel), known.advert(target).channel, known.rho, self.number, target
        )
        bound = rules.blob_context(
            self.federation.fid, self.state.epoch, known.rho, self.number, target, neighbors
        )
        return packets.Parcel(self.number, target, seal(key, shares, bound), tags)

    def _supplied(self, known: Known, packet: packets.Begin) -> State:
        """Return the state with the shares of every source for this site, and the keys of its neighbors."""
        state = self.state
        found = {delivery.source: self._opened_parcel(known, delivery) for delivery in packet.deliveries}
        found[self.number] = [state.held[at] for at in sorted(state.held)]
        drew = {delivery.source: delivery.neighbors for delivery in packet.deliveries}
        drew[self.number] = state.drew[0]
        sources = tuple(sorted(found))
        together = zip(*(found[source] for source in sources), strict=True)
        held = {at: b"".join(pairs) for at, pairs in enumerate(together, start=1)}
        after = replace(state, sources=sources, held=held, drew=tuple(drew[source] for source in sources))
        near = after.near(self.number)
        for member, keys in packet.keys:
            head = known.advert(member) if member in near else None
            if not isinstance(head, packets.Head):
                raise BadMessage(
                    f"begin: saw keys of {self.federation.name(member)}, needed those of neighbors"
                )
            rules.check_keys(self.federation, head, keys)
        return replace(after, peers=dict(packet.keys))

    def _opened_parcel(self, known: Known, delivery: packets.Delivery) -> list[bytes]:
        source, who = delivery.source, self.federation.name(delivery.source)
        if source not in known.members or source == self.number:
            raise BadMessage(f"begin: saw shares of {who}, needed those of others in the epoch")
        key = rules.channel(
            loaded(self.state.channel), known.advert(source).channel, known.rho, source, self.number
        )
        bound = rules.blob_context(
            self.federation.fid, self.state.epoch, known.rho, source, self.number, delivery.neighbors
        )
        pairs = _cut(unseal(key, delivery.blob, bound, f"shares of {who}"), PAIR_BYTES)
        if [len(pair) for pair in pairs] != [PAIR_BYTES] * self.federation.exchanges:
            raise BadMessage(f"shares of {who}: saw {len(pairs)}, needed {self.federation.exchanges} whole")
        tags = rules.tags(known.rho, source, self.number, list(enumerate(pairs, 1)))
        if not same(digest("tags", tags), delivery.tags_digest):
            raise BadMessage(f"shares of {who}: saw others than it committed to")
        return pairs

    def _strands(self, turn: Turn) -> list[Strand]:
        known = self._check_epoch(self.state.epoch)
        pair = self.state.own[turn.exchange]
        secret, seed = loaded(pair[:KEY_BYTES]), pair[KEY_BYTES:]
        others = known.members if self.federation.graph is None else self.state.near(self.number)
        masks = [
            rules.pair_mask(secret, self._mask_key(known, m, turn.exchange), turn.context, self.number, m)
            for m in turn.members
            if m in others and m != self.number
        ]
        return [rules.self_mask(seed, turn.context, self.number), *masks]

    def _mask_key(self, known: Known, member: int, exchange: int) -> bytes:
        advert = known.advert(member)
        if isinstance(advert, packets.Advert):
            return advert.masks[exchange - 1]
        return self.state.peers[member][(exchange - 1) * KEY_BYTES : exchange * KEY_BYTES]

    def _shield(self, update: Readable, weight: int, key: bytes) -> Shield | None:
        privacy, w_max = self.federation.privacy, self.federation.quantizer.w_max
        if privacy is None:
            return None
        if weight != w_max:
            raise BadVector(f"weight: saw {weight}, needed w_max ({w_max}): another would tell of data")
        return Shield(privacy.shortening(update), self.federation.noise_steps(update.size), key)

    def _keep(self, after: State, *replies: Reply) -> "Step":
        exchange = after.turn.exchange if after.turn else 0
        record = changes(self.state, after).pack()
        name = self.federation.members[self.number].name
        return replace(self, state=after), (Persist(name, exchange, record), *replies)


Step = tuple[Client, tuple[Persist | Reply, ...]]


def _cut(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


def _check_entropy(entropy: bytes) -> None:
    if len(entropy) != KEY_BYTES:
        raise BadMessage(f"entropy: saw {len(entropy)} bytes, needed {KEY_BYTES} fresh secret ones")
