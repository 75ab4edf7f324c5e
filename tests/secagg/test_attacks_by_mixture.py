"""Test sites against a server that mixes well-formed packets of all states, exchanges, epochs and members."""

import hashlib
import random
from collections import Counter, defaultdict
from dataclasses import fields, replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgc.errors import BadMessage, Refused
from fedgc.secagg import SetUp, Terms, rules
from fedgc.secagg.packets import SHARE_BYTES, Advert, Agree, Begin, Deal, Open, Opened, Roster, Unlock

NOW = 1_800_000_000.0
SEED, KEY = "self seed", "mask key"


class MixingServer:
    """Leads all sites through two epochs, and sends some of them wrong packets in between.

    The last members collude: they sign any survivors, and give all of their shares.
    """

    def __init__(self, kit, count, chance):
        self.kit, self.chance = kit, chance
        self.group = kit.make(count, exchanges=2)
        self.federation = self.group.federation
        self.honest = range(count - self.federation.colluders)
        self.sent = defaultdict(list)  # the packets of each kind, which may be sent again
        self.adverts, self.deals = {}, {}
        self.signed = defaultdict(dict)  # context and survivors -> the signature of each member
        self.given = defaultdict(Counter)  # of exchange and dealer: shares given, by kind
        self.vectors = Counter()  # of each site and exchange

    def play(self):
        """Lead the sites, as far as they follow."""
        members = range(len(self.group.sites))
        for epoch in (1, 2):
            setup = SetUp(self.federation, epoch)
            self.ask_all(dict.fromkeys(members, setup.packet()))
            for advert in self.adverts.get(epoch, {}).values():
                setup = setup.admit(advert, NOW)
            if len(setup.adverts) < self.federation.quorum:
                return
            setup, roster = setup.roster()
            self.ask_all(dict.fromkeys(setup.adverts, roster))
            for deal in self.deals.get(rules.Known.of(roster).rho, {}).values():
                setup = setup.receive(deal)
            if len(setup.deals) < self.federation.quorum:
                return
            self.lead(setup.close(), epoch)

    def lead(self, epoch, number):
        for exchange in (1, 2):
            self.model = hashlib.sha256(bytes([number, exchange])).digest()
            terms = Terms(self.kit.size, b"settings", self.model)
            begun, packets = epoch.begin(exchange, epoch.members, terms)
            self.ask_all(packets)
            absent = self.chance.sample(epoch.members, len(epoch.members) - self.federation.quorum)
            survivors = tuple(member for member in epoch.members if member not in absent)
            self.ask_all(dict.fromkeys(epoch.members, Agree(number, exchange, survivors)))
            self.ask_all(dict.fromkeys(survivors, self.unlock(begun, survivors)))

    def unlock(self, begun, survivors):
        said = rules.agreement(self.federation.fid, begun.context, survivors)
        of_colluders = {
            member: self.group.sites[member].identity.sign(said)
            for member in survivors
            if member not in self.honest
        }
        signed = {**self.signed[begun.context, survivors], **of_colluders}
        return Unlock(begun.epoch, begun.number, tuple(sorted(signed.items())))

    def ask_all(self, packets):
        for member, packet in self.chance.sample([*packets.items()], len(packets)):
            if self.chance.random() < 0.2:
                self.group.sites[member].restart()
            while self.chance.random() < 0.4:
                self.ask(member, self.wrong(packet))
            self.ask(member, packet)
            self.sent[type(packet)].append(packet)

    def wrong(self, packet):
        """Return a packet that was sent before, or one with a field of another."""
        kinds = [each for each in self.sent.values() if each] or [[packet]]
        alike = [*self.sent[type(packet)], packet]
        if self.chance.random() < 0.3:
            packet = self.chance.choice(self.chance.choice(kinds))
            alike = self.sent[type(packet)] or alike
        name = self.chance.choice(fields(packet)).name
        value = getattr(packet, name)
        values = [getattr(each, name) for each in alike]
        if isinstance(value, int):
            values += [value - 1, value + 1]
        if isinstance(value, tuple):
            at = self.chance.randrange(len(value) + 1)
            values += [value[:at] + each[at:] for each in values] + [value[:at] + value[at + 1 :]]
        try:
            return replace(packet, **{name: self.chance.choice(values)})
        except BadMessage:  # not well-formed
            return packet

    # ---- the answers of a site

    def ask(self, member, packet):
        """Send a packet to a site; a refused one changes nothing."""
        site = self.group.sites[member]
        before = site.client.state.records()
        try:
            self.answered(member, site, packet)
        except Refused:
            assert site.client.state.records() == before

    def answered(self, member, site, packet):
        match packet:
            case Open():
                advert = Advert.unpack(site.take(site.client.open(packet, NOW, next(site.entropy))))
                self.adverts.setdefault(advert.epoch, {})[member] = advert
            case Roster():
                deal = Deal.unpack(site.take(site.client.join(packet, NOW, next(site.entropy))))
                self.deals.setdefault(site.client.state.known.rho, {})[member] = deal
            case Begin() if packet.size == self.kit.size:  # a site's driver knows the size of its model
                model = self.model if self.chance.random() < 0.9 else self.kit.model
                site.take(site.client.begin(packet, model))
                if self.chance.random() < 0.9:
                    self.upload(member, site)
            case Agree():
                signature = site.take(site.client.agree(packet))
                self.signed[site.client.state.turn.context, packet.survivors][member] = signature
            case Unlock():
                self.opened(member, site, packet)

    def upload(self, member, site):
        try:
            site.upload(np.zeros(self.kit.size, np.float32), 1)
        except Refused:
            return
        self.vectors[member, site.client.state.epoch, site.client.state.turn.exchange] += 1

    def opened(self, member, site, packet):
        state = site.client.state
        is_first = state.turn is not None and not state.turn.opened
        content = site.take(site.client.unlock(packet))
        if not is_first or member not in self.honest:
            return
        turn = site.client.state.turn
        signed = set(self.signed[turn.context, turn.survivors]) | set(turn.survivors).difference(self.honest)
        assert len(signed) >= self.federation.threshold, "shares for survivors that too few have signed"
        held = dict(zip(state.sources, cut(state.held[state.turn.exchange]), strict=True))
        for source, share in Opened.unpack(content).shares:
            kinds = {KEY: held[source][:SHARE_BYTES], SEED: held[source][SHARE_BYTES:]}
            (kind,) = (kind for kind, value in kinds.items() if value == share)
            self.given[state.known.rho, state.turn.exchange, source][member, kind] += 1


def cut(shares):
    return [shares[at : at + rules.PAIR_BYTES] for at in range(0, len(shares), rules.PAIR_BYTES)]


@given(count=st.integers(4, 6), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=settings.default.max_examples // 4)
def test_mixed_packets_never_release_both_secrets_of_member(kit, count, seed):
    server = MixingServer(kit, count, random.Random(seed))  # noqa: S311  packets, not keys
    server.play()
    assert set(server.vectors.values()) <= {1}, "a site has masked an exchange twice"
    needed = server.federation.shares - server.federation.colluders
    for given_ in server.given.values():
        assert len({member for member, _ in given_}) == len(given_), "a site gave both shares"
        kinds = Counter(kind for _, kind in given_)
        assert min(kinds[SEED], kinds[KEY]) < needed, "both secrets of a member can be rebuilt"
