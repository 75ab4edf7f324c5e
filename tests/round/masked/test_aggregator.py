"""Test the masked sum: every set of survivors, every loss, every vector once."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from fedgc.errors import NotRecoverable
from fedgc.messages import Add, Published, Reveal, Survivors, Unmask
from fedgc.round.masked.aggregator import MaskedAggregator
from fedgc.round.masked.key_agreement import KeyAgreement
from fedgc.round.scheduler import Holding
from fedgc.round.statistics import RoundStatistics
from fedgc.secagg import RingSum, Terms
from fedgc.secagg.keystream import Strand

SIZE, WEIGHTS = 9, (10, 40, 70, 100, 5)


class Exchange:
    """One exchange of a party, up to the step that a test continues."""

    def __init__(self, party, count, model_digest):
        self.party = party(count)
        self.key_agreement = KeyAgreement(
            self.party.federation, Terms(SIZE, b"", model_digest), 10.0, lambda: 0.0
        )
        self.key_agreement.noted(Published(0.0, 0, model_digest))
        for client in self.party.clients:
            self.key_agreement.enrol(self.party.enrolled(client))
        todo = list(self.key_agreement.open(0.0, 1))
        while todo:
            todo += self.key_agreement.heard(self.party.answer(todo.pop(0)))
        exchange = self.key_agreement.draw(self.party.clients)
        for client in self.party.clients:
            self.party.answer(exchange.begin(client, 1)[0])
        number = {client: w for w, client in enumerate(self.party.clients)}
        roster = SimpleNamespace(
            plan=SimpleNamespace(clients=self.party.clients, chunks=()),
            assignment=SimpleNamespace(number=1),
            w=number,
            statistics=RoundStatistics.empty(count),
        )
        scheduler = SimpleNamespace(holds={w: Holding(1, frozenset()) for w in number.values()})
        self.sum = MaskedAggregator(roster, scheduler, exchange)
        self.sum.collect()
        self.ring = RingSum(self.party.federation.quantizer, SIZE)
        rng = np.random.default_rng(count)
        self.updates = rng.uniform(-0.9, 0.9, (count, SIZE)).astype(np.float32)

    def upload(self, clients_w):
        for w in clients_w:
            client = self.party.clients[w]
            self.ring.add(self.party.vector(client, self.updates[w], WEIGHTS[w]))
            assert self.sum.accept(w, 0) == Add(client, 1, 0, (1.0,))
        self.sum.expire(final=True)

    def signed(self, by):
        told = {each.client: each for each in self.sum.agree()}
        for w in by:
            answer = self.party.answer(told[self.party.clients[w]])
            assert self.sum.sign(w, answer.signature) == ""

    def opened(self, by):
        told = {each.client: each for each in self.sum.unlock()}
        for w in by:
            answer = self.party.answer(told[self.party.clients[w]])
            assert self.sum.open(w, answer.packet) == ""

    def mean(self):
        self.ring.remove([Strand(*mask) for mask in self.sum.uncover().masks])
        return self.ring.mean()


@pytest.fixture
def exchange(party, model_digest):
    return lambda count: Exchange(party, count, model_digest)


@pytest.mark.parametrize(
    ("count", "survivors"),
    [
        (n, kept)
        for n, least in ((4, 3), (5, 4))
        for k in range(least, n + 1)
        for kept in itertools.combinations(range(n), k)
    ],
)
def test_any_quorum_of_survivors_gives_weighted_mean(exchange, count, survivors):
    one = exchange(count)
    assert [each.client for each in one.sum.ask()] == one.party.clients
    for w in set(range(count)) - set(survivors):
        one.sum.lost(w)
    one.upload(survivors)
    one.signed(survivors)
    assert one.sum.signed
    one.opened(survivors)
    assert one.sum.opened
    mean, weight = one.mean()
    weights = np.array([WEIGHTS[w] for w in survivors])
    assert weight == weights.sum()
    true = weights @ one.updates[list(survivors)] / weight
    assert np.abs(mean - true).max() <= one.party.federation.quantizer.bound(len(survivors), weight)


def test_client_lost_after_its_vector_is_in_mean(exchange):
    one = exchange(5)
    one.upload(range(5))
    one.signed([0, 1, 2, 4])
    one.opened([0, 1, 2, 4])
    _, weight = one.mean()
    assert weight == sum(WEIGHTS)


def test_masks_stay_on_until_enough_clients_answer(exchange):
    one = exchange(4)
    one.upload(range(4))
    one.signed([0, 1])
    assert not one.sum.signed
    with pytest.raises(NotRecoverable, match="saw 2 signatures, needed 3"):
        one.sum.unlock()
    one.sum.sign(2, one.party.answer(Survivors("client 2", 1, one.sum._agree)).signature)
    one.opened([0, 1])
    assert not one.sum.opened
    with pytest.raises(NotRecoverable, match="saw shares of 2, needed 3"):
        one.sum.uncover()


def test_no_signature_is_requested_below_quorum(exchange):
    one = exchange(5)
    one.upload([0, 1, 2])
    with pytest.raises(NotRecoverable, match="saw 3 vectors, needed 4; aborted"):
        one.sum.agree()


def test_vector_is_added_once_and_never_after_client_was_dropped(exchange):
    one = exchange(4)
    one.upload([0, 1])
    for w in (0, 2, 3):
        assert "not owed" in one.sum.accept(w, 0)
    assert one.sum.wait(1.0) is None
    assert one.sum.clients_w == [0, 1]


def test_repair_has_no_sender(exchange):
    assert "attempt 1 is not owed" in exchange(3).sum.accept(0, 1)


def test_giver_of_false_share_is_named_and_other_share_is_used(exchange):
    one = exchange(4)
    one.upload(range(4))
    one.signed(range(4))
    told = {each.client: each for each in one.sum.unlock()}
    answers = [one.party.answer(told[client]).packet for client in one.party.clients]
    false = bytearray(answers[0])
    false[-1] ^= 1
    assert "site 0: saw a false share" in one.sum.open(0, bytes(false))
    assert "saw those of member 1, needed 0" in one.sum.open(0, answers[1])
    assert "needed a known one" in one.sum.open(0, b"rubbish")
    for w in (1, 2, 3):
        assert one.sum.open(w, answers[w]) == ""
    assert one.sum.opened


def test_signature_of_other_statement_is_refused(exchange):
    one = exchange(3)
    one.upload(range(3))
    one.sum.agree()
    assert "not of this key" in one.sum.sign(0, bytes(64))
    assert one.sum.sign(7, bytes(64)) == "it is not in this exchange"


def test_returning_client_is_asked_for_missing_answers(exchange):
    one = exchange(4)
    assert [type(each) for each in one.sum.ask_again(3)] == [Reveal]
    one.upload(range(3))
    assert one.sum.ask_again(0) == one.sum.ask_again(3) == ()
    one.signed([1, 2])
    (again,) = one.sum.ask_again(0)
    assert isinstance(again, Survivors)
    assert one.sum.ask_again(3) == (), "it is not among the survivors"
    assert one.sum.sign(0, one.party.answer(again).signature) == ""
    one.opened([1, 2])
    (again,) = one.sum.ask_again(0)
    assert isinstance(again, Unmask)
    assert one.sum.open(0, one.party.answer(again).packet) == ""
    assert one.sum.ask_again(0) == ()


def test_too_few_remaining_answers_are_detected(exchange):
    one = exchange(4)
    one.upload(range(4))
    one.signed([0, 1])
    assert one.sum.can_still([2])
    assert not one.sum.can_still([])
    one.sum.sign(2, one.party.answer(one.sum.ask_again(2)[0]).signature)
    assert one.sum.can_open([0, 1, 3])
    assert not one.sum.can_open([0, 1]), "a signature is no share"
    one.opened([0])
    assert one.sum.can_still([]), "who is away may come back"
    one.sum.cannot(1)
    assert one.sum.can_still([])
    one.sum.cannot(2)
    assert not one.sum.can_still([0, 1, 2, 3])
