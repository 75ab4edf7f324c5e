"""Test the chunk table: owners, equal chunks, stable numbers, and a bounded size."""

import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgc.messages import CHUNK_BYTES, LARGEST_HOLDINGS, UNREAD, Held
from fedgc.run.chunk_table import MOST_PRIVATE, Amount, Holdings


def own(*names: str, samples: int = 10) -> tuple[Held, ...]:
    return tuple(Held(name, samples) for name in names)


def shared(*names: str, digest: str = "d", samples: int = 10) -> tuple[Held, ...]:
    return tuple(Held(name, samples, digest) for name in names)


def table(holdings: Holdings) -> dict[int, tuple[str, str]]:
    return {chunk.number: (chunk.owner, chunk.name) for chunk in holdings.chunks}


def test_private_chunks_with_same_name_are_different():
    holdings = Holdings()
    parts = own(*(f"part-{at}" for at in range(4)))
    numbers = [holdings.announced(site, parts).numbers for site in "abc"]
    assert len(frozenset().union(*numbers)) == len(holdings.chunks) == 12
    assert holdings.samples == 120


def test_shared_chunks_with_same_name_and_digest_are_same():
    holdings = Holdings()
    first, second = (holdings.announced(site, shared("x", "y")) for site in "ab")
    assert first.numbers == second.numbers == {0, 1}
    assert first.refused == second.refused == ""


def test_shared_and_private_chunk_with_same_name_are_different():
    holdings = Holdings()
    assert holdings.announced("a", shared("x")).numbers != holdings.announced("b", own("x")).numbers


def test_shared_chunk_with_other_digest_is_refused_with_both():
    holdings = Holdings()
    holdings.announced("a", shared("x", "y"))
    told = holdings.announced("b", shared("x", "y", digest="other"))
    assert holdings.present == {"a": {0, 1}, "b": frozenset()}
    seen = "chunk x: saw content of digest other, others have d"
    assert told.refused == f"{seen}; 1 more chunks differ: data made at random need a seed"
    assert holdings.samples == 40  # what was refused is data of the run all the same


def test_refusal_of_chunk_shows_printable_characters_only():
    holdings = Holdings()
    holdings.announced("a", shared("x\n\x1b[2J"))
    told = holdings.announced("b", shared("x\n\x1b[2J", digest="\x1b[31m\nERROR"))
    assert told.refused == "chunk x [2J: saw content of digest [31m ERROR, others have d"
    holdings = Holdings()
    holdings.announced("a", shared("x" * 100))
    told = holdings.announced("b", shared("x" * 100, samples=7))
    assert told.refused == f"chunk {'x' * 64}...: saw 7 samples, others have 10"


def test_chunk_of_lost_client_takes_precedence():
    holdings = Holdings()
    holdings.announced("a", shared("x"))
    holdings.lost("a")
    assert holdings.announced("b", shared("x", digest="other")).refused
    assert not holdings.announced("a", shared("x")).refused


def test_client_may_change_chunk_that_no_other_announces():
    holdings = Holdings()
    holdings.announced("a", shared("x"))
    assert not holdings.announced("a", shared("x", digest="new")).refused
    assert holdings.present == {"a": {1}}
    assert holdings.samples == 10


def test_unread_chunk_takes_first_digest():
    holdings = Holdings()
    holdings.announced("a", shared("x", digest=UNREAD))
    assert holdings.announced("b", shared("x")).numbers == {0}
    assert holdings.announced("a", shared("x", digest=UNREAD)).numbers == {0}
    assert holdings.announced("c", shared("x", digest="other")).refused


def test_new_announcement_replaces_old_one():
    holdings = Holdings()
    for at in range(60):
        holdings.announced("a", (*own(f"own {at}"), *shared(f"shared {at}")))
    assert table(holdings) == {118: ("a", "own 59"), 119: ("", "shared 59")}
    assert holdings.samples == 20


def test_chunk_announced_by_others_is_not_withdrawn():
    holdings = Holdings()
    for client in "ab":
        holdings.announced(client, shared("x"))
    holdings.announced("a", ())
    assert table(holdings) == {0: ("", "x")}


@pytest.mark.parametrize("resumed", [False, True])
def test_returning_client_gets_its_numbers_again(resumed: bool):
    holdings = Holdings()
    for client in "ab":
        holdings.announced(client, own("x", "y"))
    before = holdings.present["a"]
    holdings.lost("a")
    if resumed:
        holdings = Holdings(holdings.known(), holdings.next_number)
    assert holdings.announced("c", own("x")).numbers == {4}
    assert holdings.announced("a", own("x", "y")).numbers == before
    assert holdings.announced("a", own("x")).numbers == {0}
    assert holdings.announced("a", own("x", "y")).numbers == {0, 5}  # not 1 again, which rounds refer to


def test_grown_private_chunk_is_other_chunk():
    holdings = Holdings()
    holdings.announced("a", own("x"))
    assert holdings.announced("a", own("x", samples=11)).numbers == {1}
    assert holdings.samples == 11


def test_chunk_table_stays_bounded_as_clients_come_and_go():
    holdings = Holdings()
    many = own(*(f"{at:080}" for at in range(4_000)))
    kept = LARGEST_HOLDINGS // (80 + CHUNK_BYTES)
    for at in range(20):
        holdings.announced(f"client {at}", many)
        holdings.lost(f"client {at}")
        assert len(holdings.chunks) <= 3 * (kept + len(many))
    assert len(holdings.known()) <= kept
    assert holdings.samples == 20 * 4_000 * 10  # they are data of the run still


ANNOUNCED = st.lists(
    st.builds(
        Held,
        st.sampled_from(string.ascii_lowercase[:4]),
        st.integers(1, 2),
        st.sampled_from(["", "one", "two", UNREAD]),
    ),
    unique_by=lambda held: held.name,
    max_size=4,
).map(tuple)
HAPPENS = st.lists(st.tuples(st.sampled_from("abc"), st.none() | ANNOUNCED), max_size=30)


@settings(deadline=None)
@given(HAPPENS)
def test_any_history_gives_unambiguous_numbers(happens):
    holdings, meant = Holdings(), {}
    for client, holds in happens:
        if holds is None:
            holdings.lost(client)
            holdings = Holdings(holdings.known(), holdings.next_number) if not holdings.present else holdings
            continue
        told = holdings.announced(client, holds)
        chunks = {chunk.number: chunk for chunk in holdings.chunks}
        mine = [chunks[number] for number in told.numbers]
        assert sorted(chunk.name for chunk in mine) == sorted(held.name for held in holds)
        assert {chunk.owner for chunk in mine} <= {client, ""}
        used = [(chunks[number].owner, chunks[number].name) for number in set(chunks) - holdings.left_out]
        assert len(set(used)) == len(used), "of a shared chunk one content is used"
        assert holdings.samples >= sum(chunks[number].samples for number in set(chunks) - holdings.left_out)
        for chunk in chunks.values():
            assert meant.setdefault(chunk.number, (chunk.owner, chunk.name, chunk.samples))[:2] == (
                chunk.owner,
                chunk.name,
            )
        assert holdings.present[client] == told.numbers - holdings.left_out
        assert bool(told.refused) <= (client in holdings.refused)
        assert frozenset().union(*holdings.present.values()) <= chunks.keys()


def names_in_use(holdings: Holdings) -> dict[str, set[tuple[str, str, int, str]]]:
    chunks = {chunk.number: chunk for chunk in holdings.chunks}
    return {
        client: {(c.owner, c.name, c.samples, c.digest) for c in (chunks[number] for number in numbers)}
        for client, numbers in holdings.present.items()
    }


HONEST = tuple(f"honest {at}" for at in range(5))
LIARS = tuple(f"liar {at}" for at in range(4))
TRUE = shared(*"abcd")
LIES = st.lists(
    st.builds(
        Held, st.sampled_from("abcdefgh"), st.sampled_from([1, 10, 10**15]), st.sampled_from(["", "d", "e"])
    ),
    unique_by=lambda held: held.name,
    min_size=1,
    max_size=8,
).map(tuple)


@settings(deadline=None)
@given(st.permutations([*HONEST, *LIARS]), st.lists(LIES, min_size=len(LIARS), max_size=len(LIARS)))
def test_hostile_minority_changes_no_chunk_of_shared_data(order, lies):
    holdings, said = Holdings(), dict(zip(LIARS, lies, strict=True))
    for client in order:
        holdings.announced(client, said.get(client, TRUE))
    used = names_in_use(holdings)
    true = {("", held.name, held.samples, held.digest) for held in TRUE}
    assert all(used[client] == true for client in HONEST)
    assert not set(HONEST) & holdings.refused.keys()
    for liar in LIARS:  # what several of them invent alike is theirs to train
        assert all(owner == "" for owner, *_ in used[liar] - true)
        assert not {(name) for _, name, *_ in used[liar] - true} & set("abcd")


@settings(deadline=None)
@given(st.permutations([*HONEST, *LIARS]), st.lists(LIES, min_size=len(LIARS), max_size=len(LIARS)))
def test_hostile_minority_leaves_out_no_private_data(order, lies):
    holdings, said = Holdings(), dict(zip(LIARS, lies, strict=True))
    for client in order:
        holdings.announced(client, said.get(client, own(*"abcd")))
    used = names_in_use(holdings)
    assert all(used[client] == {(client, name, 10, "") for name in "abcd"} for client in HONEST)


@pytest.mark.parametrize("first", ["liar", "honest"])
def test_first_hostile_claim_is_outvoted(first: str):
    holdings = Holdings()
    clients = ["liar", "b", "c"] if first == "liar" else ["b", "liar", "c"]
    for client in clients:
        holdings.announced(client, shared("x", samples=10**15 if client == "liar" else 10))
    assert {client for client, numbers in holdings.present.items() if numbers} == {"b", "c"}
    assert holdings.refused == {"liar": f"chunk x: saw {10**15} samples, others have 10"}
    assert holdings.samples == 20, "what is left out counts as no larger than what is used"


def test_invented_chunks_are_left_out_where_data_is_shared():
    holdings = Holdings()
    invented = shared(*(f"new {at}" for at in range(3000)), samples=10**15)
    for client in "abc":
        holdings.announced(client, shared("x", "y"))
    for holds in (invented, own(*(held.name for held in invented))):
        holdings.announced("d", (*shared("x", "y"), *holds))
        assert holdings.present["d"] == holdings.present["a"]
        why = "chunk new 0: no other client announces it, and the run's data is shared; nor 2999 more"
        assert holdings.refused == {"d": why}
        assert holdings.samples == 20 + 3000 * 10


def test_chunk_of_one_client_is_used_once_another_has_announced_it():
    holdings = Holdings()
    for client in "abc":
        holdings.announced(client, shared("x"))
    holdings.announced("a", shared("x", "y"))
    assert holdings.present["a"] == holdings.present["b"]
    holdings.announced("d", shared("y"))
    holdings.lost("d")
    assert len(holdings.present["a"]) == 2, "a lost client's announcement counts"
    resumed = Holdings(holdings.known(), holdings.next_number)
    for client in "abc":
        resumed.announced(client, shared("x", "y") if client == "a" else shared("x"))
    assert len(resumed.present["a"]) == 2


def test_rewritten_chunk_of_single_client_is_used_after_resume():
    holdings = Holdings()
    holdings.announced("a", (*shared("x"), *shared("old")))
    resumed = Holdings(holdings.known(), holdings.next_number)
    resumed.announced("a", (*shared("x"), *shared("new")))
    assert {chunk.name for chunk in resumed.chunks if chunk.number in resumed.present["a"]} == {"x", "new"}
    assert resumed.refused == {}


def test_rewritten_chunk_counts_once_others_announce_it_too():
    holdings = Holdings()
    for client in "abc":
        holdings.announced(client, shared("x", "old"))
    used = []
    for client in "abc":
        holdings.announced(client, shared("x", "new"))
        numbers = frozenset().union(*holdings.present.values())
        used.append({chunk.name for chunk in holdings.chunks if chunk.number in numbers})
    assert used == [{"x", "old"}, {"x", "new"}, {"x", "new"}]


def test_private_chunks_beyond_limit_are_refused():
    holdings = Holdings(most_private=MOST_PRIVATE)
    told = holdings.announced("a", own(*(f"{at}" for at in range(MOST_PRIVATE + 1))))
    assert len(told.numbers) == len(holdings.present["a"]) == MOST_PRIVATE
    assert told.refused == holdings.refused["a"] == "it announced 2001 private chunks, needed at most 2000"
    assert holdings.samples == (MOST_PRIVATE + 1) * 10
    assert not holdings.announced("a", own("x")).refused
    assert holdings.refused == {}
    assert len(Holdings().announced("a", own(*(f"{at}" for at in range(3000)))).numbers) == 3000


def test_amounts_tell_present_and_missing_data_apart():
    holdings = Holdings()
    holdings.announced("a", shared("x", "y"))
    holdings.announced("b", shared("y"))
    holdings.announced("c", own("z", samples=7))
    holdings.lost("a")
    holdings.lost("c")
    amounts = holdings.amounts
    assert (amounts.present, amounts.known) == (Amount(1, 10), Amount(3, 27))
    assert amounts.by_client == {"a": Amount(2, 20), "b": Amount(1, 10), "c": Amount(1, 7)}
    holdings.announced("c", own("z", samples=7))
    assert holdings.amounts.present == Amount(2, 17), "it is counted anew after each change"
    assert Holdings(holdings.known()).amounts.by_client == {"c": Amount(1, 7)}, "as a resume knows it"
