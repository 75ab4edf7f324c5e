import itertools
from dataclasses import replace

import pytest

from fedgc.errors import BadMessage
from fedgc.secagg import rules
from fedgc.secagg.keys import loaded, public_of, seal, unseal
from fedgc.secagg.packets import Begin

SECRETS = [bytes([at] * 32) for at in (1, 2, 3)]
PUBLICS = [public_of(secret) for secret in SECRETS]
RHO, FID = b"\7" * 32, b"\6" * 32


def channel(owner, other, source, target, rho=RHO):
    return rules.channel(loaded(SECRETS[owner]), PUBLICS[other], rho, source, target)


def test_channel_ends_share_key_and_blob_keys_are_unique():
    """Each key seals one message with nonce zero: a second message would reveal both."""
    ways = list(itertools.permutations(range(3), 2))
    keys = [channel(source, target, source, target) for source, target in ways]
    assert keys == [channel(target, source, source, target) for source, target in ways]
    assert len({*keys, *(channel(s, t, s, t, rho=bytes(32)) for s, t in ways)}) == 2 * len(ways)


def test_blob_opens_only_in_its_place():
    place = (FID, 1, RHO, 0, 1)
    sealed = seal(bytes(32), b"shares", rules.blob_context(*place))
    assert unseal(bytes(32), sealed, rules.blob_context(*place), "it") == b"shares"
    for at, other in enumerate([bytes(32), 2, bytes(32), 2, 2]):
        elsewhere = (*place[:at], other, *place[at + 1 :])
        with pytest.raises(BadMessage, match="meant for another place"):
            unseal(bytes(32), sealed, rules.blob_context(*elsewhere), "it")


def test_share_has_different_tag_in_every_place():
    pair = bytes(range(32)) * 2
    places = [
        rules.tags(rho, source, target, [(exchange, pair)])
        for rho, source, target, exchange in itertools.product((RHO, bytes(32)), (0, 1), (0, 1), (1, 2))
    ]
    halves = [tag[at : at + 16] for tag in places for at in (0, 16)]
    assert len(set(halves)) == len(halves) == 32


def test_commitment_binds_one_seed_in_one_place():
    base = (FID, 1, 2, 3, bytes(32))
    others = [(*base[:at], other, *base[at + 1 :]) for at, other in enumerate([RHO, 9, 9, 9, RHO])]
    assert len({rules.commitment(*each) for each in (base, *others)}) == 6


def test_context_depends_on_every_agreed_value(kit):
    begin, model = Begin(1, 2, (0, 1, 2), 5, b"settings"), bytes(32)
    changes = [{"epoch": 2}, {"exchange": 1}, {"members": (0, 1, 2, 3)}, {"size": 6}, {"settings": b""}]
    one, other = kit.federation(5), kit.federation(5, exchanges=4)
    contexts = [
        rules.context(one, RHO, begin, model),
        rules.context(other, RHO, begin, model),
        rules.context(one, FID, begin, model),
        rules.context(one, RHO, begin, RHO),
        *(rules.context(one, RHO, replace(begin, **change), model) for change in changes),
    ]
    assert len(set(contexts)) == len(contexts)


def test_start_depends_on_all_inputs_of_update():
    base = (FID, 4, 8.0, RHO)
    others = [(*base[:at], other, *base[at + 1 :]) for at, other in enumerate([RHO, 5, 8.5, b""])]
    settings = [rules.footing(*each) for each in (base, *others)]
    assert len({rules.start(model, each) for each in settings for model in (FID, RHO)}) == 10


def test_survivor_signature_binds_set_exchange_and_federation():
    base = (FID, RHO, (0, 1, 2))
    others = [(*base[:at], other, *base[at + 1 :]) for at, other in enumerate([RHO, FID, (0, 1)])]
    assert len({rules.agreement(*each) for each in (base, *others)}) == 4


def test_pairwise_masks_cancel_and_are_unique():
    def mask(owner, other, bound):
        return rules.pair_mask(loaded(SECRETS[owner]), PUBLICS[other], bound, owner, other)

    seen = set()
    for bound in (RHO, FID):
        for low, high in itertools.combinations(range(3), 2):
            assert mask(low, high, bound) == mask(high, low, bound).opposite()
            assert not mask(low, high, bound).minus
            seen.add(mask(low, high, bound).key)
        seen |= {rules.self_mask(SECRETS[0], bound, member).key for member in range(3)}
    assert len(seen) == 12
