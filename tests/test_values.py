"""Test values: they equal frozen dataclasses with slots, and are faster to make."""

import pickle
from dataclasses import FrozenInstanceError, dataclass, field, fields, replace
from typing import Annotated

import pytest

from fedgc.errors import BadMessage
from fedgc.messages import Progress, Skip
from fedgc.values import Filled, Within, value


@value
class Quick:
    first: int
    second: str = "b"
    third: bytes = field(default=b"", repr=False)

    def __post_init__(self) -> None:
        if self.first < 0:
            raise ValueError(f"{self!r}: needed 0 or more")


@dataclass(frozen=True, slots=True)
class Slow:
    first: int
    second: str = "b"
    third: bytes = field(default=b"", repr=False)


def both(*given: object, **named: object) -> tuple[Quick, Slow]:
    return Quick(*given, **named), Slow(*given, **named)


def test_value_has_repr_and_equality_of_dataclass():
    for quick, slow in (both(1), both(1, "c"), both(first=2, third=b"x"), both(3, second="d")):
        assert repr(quick) == repr(slow).replace("Slow", "Quick")
        assert [getattr(quick, each.name) for each in fields(Quick)] == [slow.first, slow.second, slow.third]
        assert quick == replace(quick)
        assert hash(quick) == hash(replace(quick))
        assert quick != replace(quick, first=9)
        assert quick != slow
        assert pickle.loads(pickle.dumps(quick)) == quick  # noqa: S301  made here


@pytest.mark.parametrize("given", [((), {}), ((1, "b", b"", 4), {}), ((1,), {"fourth": 4})])
def test_value_has_only_its_fields(given):
    words, named = given
    with pytest.raises(TypeError, match=r"__init__\(\)"):
        Quick(*words, **named)


def test_value_is_frozen_and_slotted():
    quick = Quick(1)
    with pytest.raises(FrozenInstanceError):
        quick.first = 2
    with pytest.raises(FrozenInstanceError):
        del quick.first
    with pytest.raises((FrozenInstanceError, TypeError)):
        quick.fourth = 4
    assert quick.first == 1


def test_value_is_validated_when_made():
    with pytest.raises(ValueError, match="needed 0 or more"):
        Quick(-1)
    with pytest.raises(ValueError, match="needed 0 or more"):
        replace(Quick(1), first=-1)
    with pytest.raises(BadMessage, match="needed chunk of 0 or more"):
        replace(Skip("a", 1, 2), chunk=-1)


def test_default_factory_is_refused_with_class():
    with pytest.raises(TypeError, match="Listed: saw items, needed fields that are given"):

        @value
        class Listed:
            items: list[int] = field(default_factory=list)


@pytest.mark.parametrize(
    "kind",
    ["int", Annotated[int, Within(0, 9, "a digit")] | None, tuple[Annotated[str, Filled("a name")], ...]],
)
def test_nested_rule_is_refused_with_class(kind: object):
    with pytest.raises(TypeError, match="Hidden: saw item, needed types with any rule outermost"):
        value(type("Hidden", (), {"__annotations__": {"item": kind}}))


SAID = Progress(1.0, "a", 1, 2, 3, 0.5, 4, 1.0, 0.5)
WRONG = {
    "now": (-1.0, float("nan"), float("inf")), "client": ("",), "seconds": (-1.0, float("nan")),
    "squared_norm": (-1.0, float("inf")), "round": (-1, 10**16), "chunk": (-1,), "reached": (-1,),
    "samples": (-1, 10**16),
}  # fmt: skip


@pytest.mark.parametrize(("name", "wrong"), [(name, each) for name, all_ in WRONG.items() for each in all_])
def test_progress_validates_its_fields(name: str, wrong: object):
    with pytest.raises(BadMessage, match=f"needed a.* {name}|needed {name}|needed a client"):
        replace(SAID, **{name: wrong})


@value
class Ruled:
    digit: Annotated[int, Within(0, 9, "{name} from 0 to 9")]
    name: Annotated[str, Filled("a name")] = "a"
    free: Annotated[int, "a remark"] = 0

    def __post_init__(self) -> None:
        if self.free < 0:
            raise ValueError("looked at after the rules")


@pytest.mark.parametrize("digit", [-1, 10, float("nan"), float("inf")])
def test_invalid_value_is_named_with_required_range(digit: float):
    with pytest.raises(BadMessage, match=r"Ruled\(digit=.*, name='', free=-1\): needed digit from 0 to 9"):
        Ruled(digit, "", -1)
    with pytest.raises(BadMessage, match="needed a name"):
        Ruled(9, "", -1)
    with pytest.raises(ValueError, match="looked at after the rules"):
        Ruled(9, "a", -1)
    assert Ruled(0).free == Ruled(9).free == 0
