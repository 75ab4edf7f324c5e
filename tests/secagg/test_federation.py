import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgc.errors import BadMessage, BadSetting, NotAdmitted
from fedgc.secagg import (
    Descriptor,
    Federation,
    Identity,
    Member,
    Privacy,
    SetUp,
    TaskPin,
    Terms,
    guarantees,
    limits,
)
from fedgc.secagg.canonical import pack, unpack
from fedgc.secagg.federation import least_threshold, member_list
from fedgc.secagg.packets import Deal

PRIVACY = Privacy(clip=1.0, noise=4.0, exchanges=100, delta=1e-6)


@given(st.integers(3, 255))
def test_least_threshold_holds_against_one_third(count):
    threshold = least_threshold(count)
    assert 3 <= threshold <= count
    colluders = -(-count // 3) - 1  # the most that are fewer than a third
    assert 2 * threshold > count + colluders


@pytest.mark.parametrize(
    ("count", "threshold", "spare", "colluders"), [(3, 3, 0, 1), (5, 4, 1, 2), (10, 7, 3, 3)]
)
def test_federation_size_determines_tolerated_losses(kit, count, threshold, spare, colluders):
    federation = kit.federation(count)
    assert federation.threshold == threshold
    assert count - federation.quorum == spare
    assert federation.colluders == colluders


@pytest.mark.parametrize("task", [None, TaskPin(bytes(32), 2)])
@pytest.mark.parametrize("privacy", [None, PRIVACY])
def test_descriptor_is_decoded_equal(kit, privacy, task):
    federation = kit.replace(kit.federation(4, privacy=privacy), task=task)
    descriptor = Descriptor(federation).endorse(kit.identities(4)[2]).endorse(kit.identities(4)[0])
    assert Descriptor.unpack(descriptor.pack()) == descriptor
    assert [number for number, _ in descriptor.endorsements] == [0, 2]


def test_every_pinned_value_changes_hash(kit):
    base = kit.federation(5)
    others = [
        kit.federation(4), kit.federation(5, threshold=5), kit.federation(5, n_min=4),
        kit.federation(5, exchanges=4), kit.federation(5, privacy=PRIVACY),
        *(kit.federation(5, quantizer=kit.replace(kit.quantizer, **{name: value}))
          for name, value in [("clip", 2.0), ("bits", 19), ("w_max", 7)]),
        kit.federation(5, quantizer=kit.replace(kit.quantizer, bits=8, ring=16)),
        *(kit.replace(base, task=TaskPin(*pin)) for pin in ((bytes(32), 5), (b"1" * 32, 5), (bytes(32), 4))),
    ]  # fmt: skip
    assert len({federation.fid for federation in (base, *others)}) == len(others) + 1


@pytest.mark.parametrize(
    ("pinned", "reason"),
    [
        ({"count": 2, "threshold": 3}, "saw 2 members, needed 3"),
        ({"count": 5, "threshold": 3}, "threshold: saw 3 of 5, needed 4 to 5"),
        ({"count": 5, "threshold": 6}, "threshold: saw 6 of 5"),
        ({"count": 5, "n_min": 2}, "n_min: saw 2 of 5"),
        ({"count": 5, "n_min": 6}, "n_min: saw 6 of 5"),
        ({"count": 5, "exchanges": 65}, "saw 65 an epoch, needed 1 to 64"),
        ({"count": 5, "exchanges": 0}, "saw 0 an epoch"),
    ],
)
def test_invalid_federation_is_refused(kit, pinned, reason):
    with pytest.raises(BadSetting, match=reason):
        kit.federation(**pinned)


@pytest.mark.parametrize("pin", [(bytes(31), 3), (bytes(32), 0), (bytes(32), 6)])
def test_task_that_cannot_be_signed_is_refused(kit, pin):
    with pytest.raises(BadSetting, match=r"task: saw (a digest of 31 bytes|0|6)"):
        kit.replace(kit.federation(5), task=TaskPin(*pin))


def test_members_are_unique_and_ordered(kit):
    members = kit.federation(3).members
    for wrong, reason in [
        (members[::-1], "out of order"),
        ((*members, members[2]), "two members with one name"),
        ((*members, Member("site 9", members[0].public)), "two members with one public"),
    ]:
        with pytest.raises(BadSetting, match=reason):
            Federation(wrong, 3, 3, 3, kit.quantizer)
    assert member_list([("b", bytes(32)), ("a", bytes([1] * 32))])[0].name == "a"
    for name, key in (("", bytes(32)), ("a\nb", bytes(32)), ("a", bytes(31))):
        with pytest.raises(BadSetting, match="member"):
            Member(name, key)


def test_endorsement_is_checked(kit):
    federation, identities = kit.federation(3), kit.identities(3)
    good = Descriptor(federation).endorse(identities[0])
    other = Descriptor(kit.federation(3, exchanges=9)).endorse(identities[0])
    with pytest.raises(NotAdmitted, match="site 000"):
        Descriptor(federation, other.endorsements)
    with pytest.raises(NotAdmitted, match="needed a member's"):
        good.endorse(Identity(bytes(32)))
    with pytest.raises(NotAdmitted, match="saw no signature"):
        Descriptor.unpack(Descriptor(federation).pack())
    with pytest.raises(BadMessage, match="in order"):
        Descriptor(federation, (*good.endorsements, *good.endorsements))
    with pytest.raises(BadMessage, match="number 7"):
        Descriptor(federation, ((7, bytes(64)),))


def test_descriptor_of_other_protocol_or_shape_is_refused(kit):
    label, version, *rest = unpack(kit.federation(3).pack())
    with pytest.raises(BadMessage, match="saw protocol 2, needed 1"):
        Federation.unpack(pack(label, version + 1, *rest))
    with pytest.raises(BadMessage):
        Federation.unpack(pack(label, version, (("a", "b"),), *rest[1:]))
    with pytest.raises(BadMessage, match="saw privacy of"):
        Federation.unpack(pack(label, version, *rest[:-1], (1.0, 4.0, 100, 1e-6)))


def test_text_names_promised_and_unpromised_properties(kit):
    said = " ".join(guarantees(kit.federation(10, privacy=PRIVACY)))
    assert "for each site, if every site clips its update" in " ".join(
        guarantees(kit.federation(4, privacy=PRIVACY))
    )
    for part in ("at least 7", "at most 3 of them", "Up to 3 of them", "(15.329, 1e-06)"):
        assert part in said
    assert "Every site must stay" in " ".join(guarantees(kit.federation(3)))
    assert "differentially private" not in " ".join(guarantees(kit.federation(3)))
    unsaid = " ".join(limits(kit.federation(10)))
    for part in ("does not hide the sum", "against 4 or more", "wrong update"):
        assert part in unsaid
    assert "up to 1000 times as much" in unsaid
    alike = kit.federation(10, quantizer=kit.replace(kit.quantizer, w_max=1))
    assert "all weigh the same" in " ".join(limits(alike))
    assert "all weigh the same" in " ".join(limits(kit.federation(4, privacy=PRIVACY)))
    assert "against 1 colluding sites 67% of the noise" in " ".join(
        limits(kit.federation(4, privacy=PRIVACY))
    )


@pytest.mark.parametrize(("count", "exchanges"), [(3, 1), (7, 16), (12, 64)])
def test_packets_fit_in_size_stated_for_descriptor(kit, count, exchanges):
    party = kit.make(count, exchanges=exchanges)
    adverts = party.adverts()
    setup = SetUp(party.federation, 1)
    for advert in adverts:
        setup = setup.admit(advert, kit.now)
    setup, roster = setup.roster()
    sizes = [len(roster.pack()), *(len(advert.pack()) for advert in adverts)]
    for site in party.sites:
        deal = site.take(site.client.join(roster, kit.now, next(party.entropy)))
        sizes.append(len(deal))
        setup = setup.receive(Deal.unpack(deal))
    _, begun = setup.close().begin(1, range(count), Terms(10, bytes(32), kit.model))
    sizes += [len(packet.pack()) for packet in begun.values()]
    assert max(sizes) <= party.federation.largest_packet <= 1.25 * max(sizes) + 600


def test_federation_with_oversized_packets_is_refused(kit):
    with pytest.raises(BadSetting, match="needed at most 700000: fewer exchanges"):
        kit.federation(200, exchanges=64)
