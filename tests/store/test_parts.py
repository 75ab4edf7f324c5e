"""Test the parts in which the client rows of a run are read."""

from hypothesis import given
from hypothesis import strategies as st

from fedgc.store import parts
from fedgc.store.parts import spans
from tests.web.run_of_four import round_of


class Sized:
    """A round of which only the number and the count of clients are asked."""

    def __init__(self, number: int, clients: int) -> None:
        self.row = round_of(number, clients=())
        self.clients = clients


@given(st.lists(st.integers(0, 70_000), max_size=30))
def test_parts_hold_whole_ordered_rounds_within_limit(counts: list[int]):
    rounds = [Sized(number, clients) for number, clients in enumerate(counts, start=1)]
    found = list(spans(rounds))
    assert [number for first, last in found for number in range(first, last + 1)] == [
        each.row.round for each in rounds
    ]
    for first, last in found:
        assert first == last or sum(counts[first - 1 : last]) <= parts.PART
