"""A consortium in one process: the real machines of both sides, and a disk for each site."""

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from fedgc.messages import Persist
from fedgc.secagg import (
    Changes,
    Client,
    Epoch,
    Exchange,
    Federation,
    Identity,
    MaskedVector,
    Member,
    Privacy,
    Quantizer,
    Reply,
    RingSum,
    SetUp,
    Step,
    Terms,
)  # fmt: skip
from fedgc.secagg.federation import least_threshold
from fedgc.secagg.graph import Graph
from fedgc.secagg.packets import Advert, Agree, Begin, Deal, Opened, Roster, Unlock

NOW = 1_800_000_000.0
SIZE = 40  # numbers of an update
MODEL = hashlib.sha256(b"model").digest()
PLAIN = Quantizer(clip=1.0, bits=20, ring=32, w_max=1000)


@dataclass
class Site:
    """One site: its machine and its disk."""

    federation: Federation
    identity: Identity
    entropy: Iterator[bytes]
    disk: dict[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.client = Client.start(self.federation, self.identity, self.disk)

    def restart(self) -> None:
        """Kill the process; only its disk is left."""
        self.client = Client.start(self.federation, self.identity, dict(self.disk))

    def take(self, step: Step) -> bytes | MaskedVector | None:
        """Execute the machine's outputs in order: write, then send."""
        self.client, todo = step
        sent = None
        for each in todo:
            if isinstance(each, Persist):
                assert sent is None, "a reply before its record"
                write(self.disk, each)
            else:
                assert isinstance(each, Reply)
                sent = each.content
        return sent

    def upload(self, update: np.ndarray, weight: int) -> np.ndarray:
        sent = self.take(self.client.upload(update, weight, self.client.state.start, next(self.entropy)))
        assert isinstance(sent, MaskedVector)
        return sent[:]


@dataclass
class Consortium:
    """Sites and the server's side, which a test may play by hand."""

    federation: Federation
    sites: list[Site]
    entropy: Iterator[bytes]

    def adverts(self, epoch: int = 1, now: float = NOW) -> list[Advert]:
        packet = SetUp(self.federation, epoch).packet()
        return [Advert.unpack(s.take(s.client.open(packet, now, next(self.entropy)))) for s in self.sites]

    def set_up(self, epoch: int = 1, absent: Collection[int] = (), silent: Collection[int] = ()) -> Epoch:
        """Run the set-up: `absent` members never come, `silent` ones leave before dealing."""
        setup = SetUp(self.federation, epoch)
        for number, advert in enumerate(self.adverts(epoch)):
            if number not in absent:
                setup = setup.admit(advert, NOW)
        setup, sent = setup.roster()
        roster = Roster.unpack(sent.pack())
        for number in set(setup.adverts) - set(silent):
            site = self.sites[number]
            deal = site.take(site.client.join(roster, NOW, next(self.entropy)))
            setup = setup.receive(Deal.unpack(deal))
        return setup.close()

    def begin(
        self, epoch: Epoch, number: int, members: Collection[int], size: int, model: bytes = MODEL
    ) -> tuple[Exchange, dict[int, Begin]]:
        """Start an exchange with every site."""
        exchange, out = epoch.begin(number, list(members), Terms(size, b"settings", model))
        for member, packet in out.items():
            site = self.sites[member]
            assert site.take(site.client.begin(Begin.unpack(packet.pack()), model)) is None
        return exchange, out

    def collect(self, exchange: Exchange, survivors: Collection[int]) -> tuple[Exchange, Agree]:
        exchange, packet = exchange.agree(list(survivors))
        return exchange, Agree.unpack(packet.pack())

    def sign(self, exchange: Exchange, packet: Agree, by: Collection[int]) -> Exchange:
        for member in by:
            exchange = exchange.sign(member, self.sites[member].take(self.sites[member].client.agree(packet)))
        return exchange

    def open(self, exchange: Exchange, by: Collection[int]) -> Exchange:
        packet = Unlock.unpack(exchange.unlock().pack())
        for member in by:
            site = self.sites[member]
            site.take(site.client.note(packet))
            exchange = exchange.open(Opened.unpack(site.take(site.client.unlock(packet))))
        return exchange

    def run(
        self,
        epoch: Epoch,
        number: int,
        updates: Mapping[int, np.ndarray],
        weights: Mapping[int, int],
        *,
        lost_early: Collection[int] = (),
        lost_late: Collection[int] = (),
        lost_last: Collection[int] = (),
        model: bytes = b"",
    ) -> tuple[np.ndarray, int, tuple[int, ...]]:
        """Run one exchange, by default of a new model; members are lost at each of its steps."""
        size = len(next(iter(updates.values())))
        model = model or hashlib.sha256(epoch.known.rho + bytes([number])).digest()
        exchange, _ = self.begin(epoch, number, list(updates), size, model)
        ring = RingSum(self.federation.quantizer, size)
        survivors = [m for m in updates if m not in lost_early]
        for member in survivors:
            ring.add(self.sites[member].upload(updates[member], weights[member]))
        exchange, packet = self.collect(exchange, survivors)
        signing = [m for m in survivors if m not in lost_late]
        exchange = self.sign(exchange, packet, signing)
        exchange = self.open(exchange, [m for m in signing if m not in lost_last])
        ring.remove(exchange.masks())
        mean, weight = ring.mean()
        return mean, weight, tuple(survivors)


def write(disk: dict[str, bytes], persist: Persist) -> None:
    changes = Changes.unpack(persist.record)
    for name in changes.erases:
        del disk[name]
    disk.update(changes.puts)


def entropy_of(seed: int) -> Iterator[bytes]:
    count = 0
    while True:
        yield hashlib.sha256(f"{seed} {count}".encode()).digest()
        count += 1


def identities(count: int) -> list[Identity]:
    return [Identity(hashlib.sha256(f"identity {at}".encode()).digest()) for at in range(count)]


def federation_of(
    count: int,
    *,
    threshold: int | None = None,
    n_min: int = 3,
    exchanges: int = 3,
    quantizer: Quantizer = PLAIN,
    privacy: Privacy | None = None,
    graph: Graph | None = None,
) -> Federation:
    members = tuple(Member(f"site {at:03}", each.public) for at, each in enumerate(identities(count)))
    signers = threshold or least_threshold(count)
    return Federation(members, signers, n_min, exchanges, quantizer, privacy, graph)


def make(count: int, seed: int = 0, **pinned: object) -> Consortium:
    federation = federation_of(count, **pinned)
    entropy = entropy_of(seed)
    return Consortium(federation, [Site(federation, each, entropy) for each in identities(count)], entropy)


def vectors(count: int, size: int, seed: int = 0) -> tuple[dict[int, np.ndarray], dict[int, int]]:
    rng = np.random.default_rng(seed)
    updates = {at: rng.normal(0, 0.2, size).astype(np.float32) for at in range(count)}
    return updates, {at: int(rng.integers(1, 1000)) for at in range(count)}


def true_mean(
    updates: Mapping[int, np.ndarray], weights: Mapping[int, int], who: Collection[int], clip: float = 1.0
) -> np.ndarray:
    """Slow reference: the expected masked mean."""
    total = sum(weights[m] for m in who)
    return sum(weights[m] * np.clip(updates[m].astype(np.float64), -clip, clip) for m in who) / total


def started(
    count: int = 5, number: int = 1, seed: int = 0, **pinned: object
) -> tuple[Consortium, Epoch, Exchange, dict[int, Begin], dict[int, np.ndarray], dict[int, int]]:
    """A consortium whose set-up is done and whose exchange has begun, and its updates."""
    group = make(count, seed=seed, **pinned)
    epoch = group.set_up()
    updates, weights = vectors(count, SIZE, seed)
    exchange, out = group.begin(epoch, number, range(count), SIZE)
    return group, epoch, exchange, out, updates, weights


def uploaded(
    count: int = 5, survivors: Collection[int] | None = None, **pinned: object
) -> tuple[Consortium, Exchange, Agree, dict[int, np.ndarray], dict[int, np.ndarray]]:
    """The same, after the vectors of the survivors came and were agreed on."""
    group, _epoch, exchange, _, updates, weights = started(count, **pinned)
    sent = {m: group.sites[m].upload(updates[m], weights[m]) for m in range(count)}
    exchange, packet = group.collect(exchange, range(count) if survivors is None else survivors)
    return group, exchange, packet, sent, updates


@dataclass(frozen=True)
class Kit:
    """The functions above, for tests that cannot import this file."""

    make: Callable[..., Consortium] = make
    federation: Callable[..., Federation] = federation_of
    identities: Callable[[int], list[Identity]] = identities
    vectors: Callable[..., tuple[dict[int, np.ndarray], dict[int, int]]] = vectors
    true_mean: Callable[..., np.ndarray] = true_mean
    started: Callable[..., tuple] = started
    uploaded: Callable[..., tuple] = uploaded
    replace: Callable[..., object] = replace
    now: float = NOW
    size: int = SIZE
    model: bytes = MODEL
    quantizer: Quantizer = PLAIN


@pytest.fixture(scope="session")
def kit() -> Kit:
    return Kit()
