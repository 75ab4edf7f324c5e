"""Test the warning about clients that announce the same private chunks."""

import pytest

from fedgc.messages import Held, Joined, Lost
from fedgc.run.alike import AlikeData

NORTH = (Held("part-0", 8), Held("part-1", 9))


def joined(client: str, holds: tuple[Held, ...]) -> Joined:
    return Joined(0.0, client, True, holds)


def test_equal_names_and_counts_warn_by_client_name():
    alike = AlikeData()
    assert alike.handle(joined("a", NORTH), str.upper) == ""
    warning = alike.handle(joined("b", tuple(reversed(NORTH))), str.upper)
    assert warning.startswith("B and A announce the same private chunks (part-0, part-1)")


@pytest.mark.parametrize(
    "holds",
    [(), (Held("part-0", 8),), (Held("part-0", 8), Held("part-1", 8)), (Held("a", 8), Held("b", 9))],
)
def test_different_data_gives_no_warning(holds):
    alike = AlikeData()
    alike.handle(joined("a", NORTH), str.upper)
    assert alike.handle(joined("b", holds), str.upper) == ""


def test_shared_data_and_returning_client_give_no_warning():
    alike, shared = AlikeData(), (Held("part-0", 8, "digest"),)
    assert [alike.handle(joined(each, shared), str.upper) for each in "ab"] == ["", ""]
    assert [alike.handle(joined("a", NORTH), str.upper) for _ in range(2)] == ["", ""]
    alike.handle(Lost(1.0, "a"), str.upper)
    assert alike.handle(joined("b", NORTH), str.upper) == ""
