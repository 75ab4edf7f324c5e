"""Settings: everything wrong is one line that names the setting; everything right goes round the table."""

import dataclasses
import math
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgc.config import AUTO, RunConfig
from fedgc.errors import BadSetting

HINTS = get_type_hints(RunConfig)
NAMES = sorted(HINTS)
DEFAULTS = RunConfig()


def members(name: str) -> tuple[Any, ...]:
    """The types that a setting may have, each choice by itself."""
    hint = HINTS[name]
    parts = get_args(hint) if get_origin(hint) not in (None, Literal) else (hint,)
    return tuple(each for part in parts for each in (get_args(part) or (part,)))


def takes(name: str, kind: type) -> bool:
    return kind in members(name)


def choices(name: str) -> tuple[str, ...]:
    return tuple(each for each in members(name) if isinstance(each, str))


INTEGERS = [name for name in NAMES if takes(name, int)]
FLOATS = [name for name in NAMES if takes(name, float)]
FREE_TEXTS = [name for name in NAMES if takes(name, str)]
CHOICES = [name for name in NAMES if choices(name)]
OVER_0 = [name for name in FLOATS if name not in ("server_momentum", "error_limit")]
MAY_BE_0 = ["seed", "threads", "evaluate_every", "keep_checkpoints"]


def refused(table: dict[str, object]) -> str:
    with pytest.raises(BadSetting) as caught:
        RunConfig.read(table)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_every_setting_is_of_one_of_the_kinds_tested_here():
    assert set(NAMES) == {*INTEGERS, *FLOATS, *FREE_TEXTS, *CHOICES}
    assert {"local_steps", "blocks"} <= set(INTEGERS)
    assert {"deadline_s", "learning_rate"} <= set(FLOATS)
    assert {"blocks", "deadline_s", "server_optimiser", "precision"} <= set(CHOICES)
    assert {"task", "bind"} <= set(FREE_TEXTS)


def test_the_defaults_are_allowed_and_an_empty_table_gives_them():
    assert RunConfig.read({}) == DEFAULTS


@pytest.mark.parametrize("name", NAMES)
def test_no_setting_takes_what_is_of_another_type(name):
    wrong: list[object] = [None, [], {}, b"x", 1j, True, False]
    wrong += [] if takes(name, int) or takes(name, float) else [3]
    wrong += [] if takes(name, float) else [0.5, 3.0]
    wrong += [] if takes(name, str) else ["no such choice", "3", ""]
    for value in wrong:
        assert refused({name: value}).startswith(f"setting {name}: saw {value!r}, needed ")


@pytest.mark.parametrize("name", CHOICES)
def test_a_choice_is_taken_and_a_refusal_names_all_of_them(name):
    for choice in choices(name):
        assert getattr(RunConfig.read({name: choice}), name) == choice
    if not takes(name, str):
        said = refused({name: "no such choice"})
        assert all(repr(choice) in said for choice in choices(name))


@pytest.mark.parametrize("name", INTEGERS)
def test_an_integer_has_its_least_value(name):
    least = 0 if name in MAY_BE_0 else 1
    assert getattr(RunConfig.read({name: least}), name) == least
    for value in (least - 1, -1000):
        assert refused({name: value}).startswith(f"setting {name}: saw {value}, needed ")


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf, -0.5])
def test_a_float_is_finite_and_not_below_0(name, wrong):
    assert refused({name: wrong}).startswith(f"setting {name}: saw {wrong!r}, needed ")


@pytest.mark.parametrize("name", OVER_0)
def test_times_rates_and_limits_are_above_0(name):
    assert "needed above 0" in refused({name: 0.0})
    assert getattr(RunConfig.read({name: 1e-6}), name) == 1e-6


def test_momentum_lies_in_0_to_1_without_1():
    for value in (0.0, 0.999):
        assert RunConfig(server_momentum=value).server_momentum == value
    assert refused({"server-momentum": 1.0}) == (
        "setting server_momentum: saw 1.0, needed 0 or more, below 1"
    )


def test_the_error_limit_is_no_less_than_what_float32_rounds_away():
    for value in (1e-7, 0.5):
        assert RunConfig(error_limit=value).error_limit == value
    for value in (0.0, 1e-8, 1.5):
        assert refused({"error-limit": value}).startswith(
            f"setting error_limit: saw {value}, needed at least 1e-7"
        )


def test_pieces_are_at_most_4_mb():
    assert RunConfig(piece_kb=4096).piece_kb == 4096
    assert refused({"piece-kb": 4097}) == "setting piece_kb: saw 4097, needed 1 to 4096"


@given(replicas=st.integers(1, 9), blocks=st.integers(1, 9))
def test_an_update_is_cut_in_no_more_blocks_than_it_has_copies(replicas, blocks):
    if blocks <= replicas:
        assert RunConfig(replicas=replicas, blocks=blocks).blocks == blocks
    else:
        assert refused({"replicas": replicas, "blocks": blocks}) == (
            f"setting blocks: saw {blocks}, needed at most replicas ({replicas})"
        )


@pytest.mark.parametrize("name", FLOATS)
def test_a_whole_number_beyond_all_floats_is_out_of_range(name):
    assert refused({name: 10**400}).startswith(f"setting {name}: saw inf, needed ")


@pytest.mark.parametrize("name", FLOATS)
def test_a_whole_number_is_taken_for_a_float(name):
    value = {"server_momentum": 0, "error_limit": 1}.get(name, 3)
    read = getattr(RunConfig.read({name: value}), name)
    assert type(read) is float
    assert read == value


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_a_name_with_a_letter_missing_names_the_nearest(name, data):
    if len(name) < 4:
        return
    at = data.draw(st.integers(0, len(name) - 1))
    wrong = name[:at] + name[at + 1 :]
    if wrong not in NAMES:
        said = refused({wrong: 1})
        assert said.startswith(f"unknown setting {wrong!r}; did you mean ")
        assert said.split("did you mean ")[1].rstrip("?") in NAMES


def test_a_name_like_no_other_is_refused_without_a_hint():
    assert refused({"xyzzy": 1}) == "unknown setting 'xyzzy'"
    assert "'local-stepz'; did you mean local_steps?" in refused({"local-stepz": 1})


def test_dashes_and_underscores_are_the_same():
    assert (
        RunConfig.read({"local-steps": 7}) == RunConfig.read({"local_steps": 7}) == RunConfig(local_steps=7)
    )


def test_a_setting_that_is_there_twice_is_refused():
    said = refused({"local-steps": 1, "local_steps": 2})
    assert said == "setting local_steps: saw it with dashes and with underscores, needed it once"


counts, amounts = st.integers(1, 4096), st.floats(1e-3, 1e6)
NARROW = {"server_momentum": st.floats(0, 0.99), "error_limit": st.floats(1e-7, 1)}


@st.composite
def configs(draw: st.DrawFn) -> RunConfig:
    """Draw a setting of every kind."""
    values: dict[str, Any] = {}
    for name in draw(st.sets(st.sampled_from(NAMES))):
        kinds = [st.sampled_from(choices(name))] if choices(name) else []
        kinds += [counts] if takes(name, int) else []
        kinds += [NARROW.get(name, amounts)] if takes(name, float) else []
        kinds += [st.text(max_size=10)] if takes(name, str) else []
        values[name] = draw(st.one_of(kinds))
    if isinstance(values.get("blocks"), int):
        replicas = values.get("replicas", AUTO)
        values["replicas"] = max(values["blocks"], replicas) if isinstance(replicas, int) else replicas
    return RunConfig(**values)


@given(configs())
def test_read_takes_back_the_table(config):
    assert RunConfig.read(config.table()) == config


@given(configs())
def test_the_table_is_flat_and_has_dashes(config):
    table = config.table()
    assert len(table) == len(NAMES)
    assert not any("_" in name for name in table)
    assert all(type(value) in (str, int, float) for value in table.values())


def test_every_setting_is_explained_with_its_default():
    explained = RunConfig.explained()
    assert [name for name, _, _ in explained] == [field.name for field in dataclasses.fields(RunConfig)]
    for name, default, says in explained:
        assert default == getattr(DEFAULTS, name)
        assert len(says) > 5


def test_auto_is_allowed_exactly_where_its_type_says_so():
    automatic = {name for name in NAMES if AUTO in choices(name)}
    assert automatic == {"blocks", "deadline_s", "link", "replicas", "upload_deadline_s"}
    for name in automatic:
        assert getattr(DEFAULTS, name) == AUTO
