"""Test the numbers of samples that the operator fixes for clients."""

import pytest

from fedgc.config import RunConfig
from fedgc.errors import BadSetting
from fedgc.messages import Held, Joined, Lost
from fedgc.run.sample_pins import SamplePins
from fedgc.run.sample_shares import SampleShares

NAMES = {"a": "north", "b": "south", "c": "north", "d": ""}


def joined(client: str, samples: int) -> Joined:
    holds = (Held("left", samples - 1), Held("right", 1)) if samples else ()
    return Joined(0.0, client, True, holds)


def test_pin_is_by_name_or_by_identity():
    pins = SamplePins({"north": 500, "d": 7})
    for client in "abd":
        pins.handle(joined(client, 900), NAMES.__getitem__)
    assert [pins.of(each) for each in "abcd"] == [500, None, None, 7]


def test_client_that_announces_its_pin_causes_no_warning():
    pins = SamplePins({"north": 500})
    assert pins.handle(joined("a", 500), NAMES.__getitem__) == ""
    assert pins.handle(joined("b", 900), NAMES.__getitem__) == ""


def test_name_stays_with_first_client_after_it_left():
    pins = SamplePins({"north": 500})
    pins.handle(joined("a", 500), NAMES.__getitem__)
    pins.handle(Lost(1.0, "a"), NAMES.__getitem__)
    assert "only a, the first, is pinned" in pins.handle(joined("c", 900), NAMES.__getitem__)
    assert (pins.of("a"), pins.of("c")) == (500, None)


def test_unknown_name_is_told_once_clients_are_here():
    pins = SamplePins({"north": 500, "d": 7})
    for client in "ad":
        pins.handle(joined(client, 900), NAMES.__getitem__)
    assert pins.unused(["a", "d"]) == ""
    needed = "aggregation.samples: saw 'west', needed a client's name or identity"
    assert SamplePins({"west": 1}).unused(["a"]) == needed


def test_pinned_client_is_not_named_as_far_larger():
    pins = SamplePins({"north": 10**6})
    shares = SampleShares(RunConfig(), pins)
    for client, samples in (("b", 10), ("d", 10), ("a", 10**9)):
        pins.handle(joined(client, samples), NAMES.__getitem__)
        told = shares.handle(joined(client, samples), NAMES.__getitem__)
    assert told == ""


def test_clients_without_data_make_no_other_client_large():
    shares = SampleShares(RunConfig(), SamplePins())
    told = [
        shares.handle(joined(client, n), NAMES.__getitem__) for client, n in (("b", 0), ("d", 0), ("a", 200))
    ]
    assert told == ["", "", ""]


@pytest.mark.parametrize(
    "text", ["north", "=5", "north=0", "north=-1", "north=5.5", "north=1, north=2", ",", f"n={10**16}"]
)
def test_malformed_pins_are_refused_in_one_line(text: str):
    with pytest.raises(BadSetting, match=r"^setting aggregation.samples: saw .*, needed .*$"):
        RunConfig(samples=text)


@pytest.mark.parametrize(
    ("setting", "value"), [("work", "coded"), ("client_app", "stock")], ids=["coded", "stock"]
)
def test_pins_need_local_work_of_own_clients(setting: str, value: str):
    with pytest.raises(BadSetting, match=r"with aggregation\.samples"):
        RunConfig(samples="north=5", **{setting: value})
