"""Test the chunk table: owners, equal chunks, stable numbers, and a bounded size."""

import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgc.messages import CHUNK_BYTES, LARGEST_HOLDINGS, UNREAD, Held
from fedgc.run.chunk_table import Amount, Holdings


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
    assert told.holds == ()
    assert told.refused == "chunk x: saw content of digest other, others have d; 1 more chunks differ"
    assert holdings.samples == 40  # what was refused is data of the run all the same


def test_chunk_of_lost_client_takes_precedence():
    holdings = Holdings()
    holdings.announced("a", shared("x"))
    holdings.lost("a")
    assert holdings.announced("b", shared("x", digest="other")).refused
    assert not holdings.announced("a", shared("x", digest="new")).refused  # its own it may change


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
        assert sorted(chunk.name for chunk in mine) == sorted(held.name for held in told.holds)
        assert {chunk.owner for chunk in mine} <= {client, ""}
        assert bool(told.refused) == (told.holds != holds)
        for chunk in chunks.values():
            assert meant.setdefault(chunk.number, (chunk.owner, chunk.name, chunk.samples))[:2] == (
                chunk.owner,
                chunk.name,
            )
        assert holdings.present[client] == told.numbers
        assert frozenset().union(*holdings.present.values()) <= chunks.keys()


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
