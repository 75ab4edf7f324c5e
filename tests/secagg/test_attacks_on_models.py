"""Test a hostile server that asks for two sums of one model; their difference would reveal one site."""

import hashlib
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgc.errors import BadMessage, Refused
from fedgc.secagg import Terms, rules
from fedgc.secagg.packets import Begin, Unlock

NEXT = hashlib.sha256(b"the next model").digest()


def summed(kit, count, **pinned):
    """A consortium after a sum over all members, and its epoch."""
    group = kit.make(count, **pinned)
    epoch = group.set_up()
    updates, weights = kit.vectors(count, kit.size)
    group.run(epoch, 1, updates, weights, model=kit.model)
    return group, epoch


def begin(group, epoch, number, members, model, words=b"settings"):
    """Each member's answer to the beginning of an exchange: nothing, or a refusal."""
    _, out = epoch.begin(number, list(members), Terms(40, words, model))
    said = {}
    for member, packet in out.items():
        try:
            group.sites[member].take(group.sites[member].client.begin(Begin.unpack(packet.pack()), model))
            said[member] = ""
        except BadMessage as error:
            said[member] = str(error)
    return said


@pytest.mark.parametrize("members", [(0, 1, 3), (0, 1, 2, 3)], ids=["one less", "the same, with other work"])
@pytest.mark.parametrize("words", [b"settings", b"another schedule"])
@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("next_epoch", [False, True])
def test_14_second_sum_of_model_is_refused(kit, members, words, restart, next_epoch):
    """Without one member, the difference is its update; with all, it is additional work of one."""
    group, epoch = summed(kit, 4, n_min=len(members))
    if restart:
        for site in group.sites:
            site.restart()
    if next_epoch:
        epoch = group.set_up(2)
    said = begin(group, epoch, 2, members, kit.model, words)
    assert all("two sums of one model tell single updates" in each for each in said.values())
    for site in group.sites:
        with pytest.raises(BadMessage, match="saw no exchange that waits"):
            site.upload(np.zeros(kit.size, np.float32), 1)
    assert begin(group, epoch, 3, members, NEXT) == dict.fromkeys(members, "")


def test_14_exchange_without_shares_reveals_nothing(kit):
    group = kit.make(4)
    epoch = group.set_up()
    updates, weights = kit.vectors(4, kit.size)
    exchange, _ = group.begin(epoch, 1, range(4), kit.size)
    for member, site in enumerate(group.sites):
        site.upload(updates[member], weights[member])
    exchange, packet = group.collect(exchange, range(4))
    group.sign(exchange, packet, range(4))
    mean, weight, _ = group.run(epoch, 2, updates, weights, model=kit.model)
    assert weight == sum(weights.values())
    bound = group.federation.quantizer.bound(4, weight)
    assert np.abs(mean - kit.true_mean(updates, weights, range(4))).max() <= bound


def test_14_model_is_on_disk_before_shares_leave(kit):
    group, exchange, packet, _, _ = kit.uploaded(4)
    exchange = group.sign(exchange, packet, range(4))
    site = group.sites[0]
    name = f"spent/{kit.model.hex()}"
    assert name not in site.disk
    site.take(site.client.unlock(exchange.unlock()))  # it fails where a reply stands before its record
    assert name in site.disk
    site.restart()
    assert kit.model in site.client.state.spent


class Server:
    """Three exchanges of one model among the same members, combined by a hostile server."""

    def __init__(self, kit, count, helpers):
        self.group = kit.make(count)
        self.federation = self.group.federation
        self.helpers = range(count - helpers, count)
        self.epoch = self.group.set_up()
        terms = Terms(kit.size, b"settings", kit.model)
        self.exchanges = {number: self.epoch.begin(number, range(count), terms) for number in (1, 2, 3)}
        self.packets = {n: exchange.agree(range(count))[1] for n, (exchange, _) in self.exchanges.items()}
        self.signatures = {n: self.of_helpers(n, range(count)) for n in self.exchanges}
        self.shares = {n: set(self.helpers) for n in self.exchanges}
        self.model = kit.model
        self.update = np.zeros(kit.size, np.float32)

    def of_helpers(self, number, survivors):
        bound = self.exchanges[number][0].context
        said = rules.agreement(self.federation.fid, bound, tuple(survivors))
        return {m: self.group.sites[m].identity.sign(said) for m in self.helpers}

    def ask(self, member, number, what):
        """Send one request to an honest member; a refused request changes nothing."""
        site = self.group.sites[member]
        try:
            if what == "begin":
                site.take(site.client.begin(self.exchanges[number][1][member], self.model))
            elif what == "upload":
                site.upload(self.update, 1)
            elif what == "agree":
                signature = site.take(site.client.agree(self.packets[number]))
                self.signatures[number][member] = signature
            else:
                site.take(
                    site.client.unlock(Unlock(1, number, tuple(sorted(self.signatures[number].items()))))
                )
                self.shares[number].add(member)
        except Refused:
            pass


ASK = ("begin", "upload", "agree", "unlock")


@given(data=st.data(), count=st.integers(3, 6))
@settings(max_examples=settings.default.max_examples // 4)
def test_14_any_request_order_opens_one_sum_of_model(kit, data, count):
    helpers = kit.federation(count).colluders
    server = Server(kit, count, helpers)
    honest = st.sets(st.integers(0, count - helpers - 1), min_size=1)
    asked = st.sampled_from([ASK, ASK[:3], ASK[3:], ASK[:2]])
    for members, number, what in data.draw(
        st.lists(st.tuples(honest, st.sampled_from([1, 2, 3]), asked), min_size=2, max_size=10)
    ):
        for each, member in itertools.product(what, members):
            server.ask(member, number, each)
    needed = server.federation.threshold
    assert sum(len(shares) >= needed for shares in server.shares.values()) <= 1
