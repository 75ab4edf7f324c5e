import pytest

from fedgc.errors import BadMessage
from fedgc.messages import Persist
from fedgc.secagg import Changes, Reply, SetUp
from fedgc.secagg.state import State, changes, restore


def test_disk_equals_memory_after_every_step(kit):
    group = kit.make(4)
    updates, weights = kit.vectors(4, 20)

    def same():
        for site in group.sites:
            assert site.disk == site.client.state.records() == restore(site.disk).records()

    for number in (1, 2):
        epoch = group.set_up(number)
        same()
        for exchange in (1, 3):
            group.run(epoch, exchange, updates, weights, lost_early=[1], lost_last=[])
            same()


def test_every_answer_follows_its_record(kit):
    group = kit.make(3)
    site = group.sites[0]
    _, todo = site.client.open(
        SetUp(group.federation, 1).packet(),
        kit.now,
        bytes(32),
    )
    assert [type(each) for each in todo] == [Persist, Reply]


def test_changes_are_decoded_equal():
    before, after = State(channel=b"old"), State(epoch=3, own={1: b"secret"})
    found = changes(before, after)
    assert Changes.unpack(found.pack()) == found
    assert set(found.erases) == {"channel"}
    assert {name for name, _ in found.puts} == {"epoch", "own/1"}
    assert changes(after, after).puts == changes(after, after).erases == ()


def test_records_without_their_epoch_are_refused():
    with pytest.raises(BadMessage, match="needed the one of the epoch"):
        restore({"own/1": b"x"})
    assert restore({}).epoch == 0


def test_secrets_are_hidden_in_repr(kit):
    group = kit.make(3)
    group.set_up()
    printed = repr(group.sites[0].client)
    for secret in (*group.sites[0].client.state.own.values(), group.sites[0].identity.secret):
        assert repr(secret) not in printed
        assert repr(secret[:32]) not in printed
