"""Test settings: each error is one line that names the setting, and tables are read back equal."""

import copy
import math
from dataclasses import fields
from itertools import pairwise
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgc.aggregators import MIXED_RANKS
from fedgc.config import AUTO, BASIC, KEYS, NAME, RunConfig
from fedgc.config.names import FIELDS
from fedgc.config.run_config import SHAPING
from fedgc.errors import BadSetting
from fedgc.plugins import available

HINTS = {name: hint for name, hint in get_type_hints(RunConfig).items() if name in KEYS}
NAMES = sorted(HINTS)
DEFAULTS = RunConfig()
# A server that gives these per client changes no update of local work
NOT_SHAPING = {
    "run", "resume", "server_optimizer", "server_learning_rate", "server_momentum", "code", "replicas",
    "blocks", "min_clients", "start_timeout_s", "deadline_s", "upload_deadline_s", "late_s", "quorum",
    "patience", "wire", "error_limit", "clients_per_round", "groups", "rollback", "check_outliers",
    "gate", "gate_options", "gate_period", "gate_budget", "gate_budget_unit", "lockstep", "max_gap",
    "min_gap", "device", "threads", "memory_mb", "link", "connect_s", "bind", "advertise", "authority",
    "lease_s", "grace_s", "codec", "download_codec", "receivers", "upload_slots", "piece_kb",
    "lines_per_s", "bytes_per_s", "federation", "best", "best_is", "best_patience", "validate_only",
    "site_gateway", "evaluate_every", "checkpoint_dir", "keep_checkpoints", "log_file", "sinks",
    "keep_rounds",
}  # fmt: skip


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
FLOAT_MAY_BE_0 = ["server_momentum", "patience", "inject_clients", "fragment_mixing"]
FLOAT_MAY_BE_0 += ["privacy_epsilon", "privacy_clip_quantile"]
BELOW_1 = ("server_momentum", "inject_clients", "privacy_clip_quantile")
OVER_0 = [name for name in FLOATS if name not in (*FLOAT_MAY_BE_0, "error_limit", "privacy_noise")]
MAY_BE_0 = [
    "clients_per_round",
    "best_patience",
    "seed",
    "threads",
    "evaluate_every",
    "keep_checkpoints",
    "validate_only",
    "warmup_steps",
    "max_gap",
]
UP_TO_1 = ["shared_momentum", "quorum", "gate_budget", "inject_share"]


def read(table: dict[str, object]) -> RunConfig:
    """Read settings by the names of their fields, as a user has them in a table."""
    return RunConfig.read({KEYS.get(name.replace("-", "_"), name): value for name, value in table.items()})


def refused(table: dict[str, object]) -> str:
    with pytest.raises(BadSetting) as caught:
        read(table)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_every_setting_is_of_tested_kind():
    assert set(NAMES) == {*INTEGERS, *FLOATS, *FREE_TEXTS, *CHOICES}
    assert {"local_steps", "blocks"} <= set(INTEGERS)
    assert {"deadline_s", "learning_rate"} <= set(FLOATS)
    assert {"blocks", "deadline_s", "server_optimizer", "precision"} <= set(CHOICES)
    assert {"task", "bind"} <= set(FREE_TEXTS)


def test_defaults_are_valid_and_empty_table_gives_them():
    assert RunConfig.read({}) == DEFAULTS


@pytest.mark.parametrize("name", NAMES)
def test_setting_of_wrong_type_is_refused(name):
    wrong: list[object] = [None, [], {}, b"x", 1j, True, False]
    wrong += [] if takes(name, int) or takes(name, float) else [3]
    wrong += [] if takes(name, float) else [0.5, 3.0]
    wrong += [] if takes(name, str) else ["no such choice", "3", ""]
    for value in wrong:
        assert refused({name: value}).startswith(f"setting {KEYS[name]}: saw {value!r}, needed ")


@pytest.mark.parametrize("name", CHOICES)
def test_choice_is_accepted_and_refusal_lists_all_choices(name):
    for choice in choices(name):
        others: dict[str, object] = {"work": "local", "min-clients": 3, "federation": "all.fed"}
        others |= {"gate-budget": 0.5} if name == "gate_budget_unit" else {}
        others |= {"privacy-noise": 1.0, "gate": "every"} if name == "privacy_unit" else {}
        others |= {"late-updates": "count"} if name == "groups" else {}
        assert getattr(read(others | {name: choice}), name) == choice
    if not takes(name, str):
        said = refused({name: "no such choice"})
        assert all(repr(choice) in said for choice in choices(name))


@pytest.mark.parametrize("name", ["abacus", "gpu", "cuda:", "cuda:-1", "cuda:x", "cuda:0:1", "xla", "meta"])
def test_unknown_device_kind_is_refused(name):
    assert refused({"device": name}) == (
        f"setting client.device: saw {name!r}, needed auto, cpu, cuda, cuda:N or mps"
    )


@pytest.mark.parametrize("name", INTEGERS)
def test_integer_has_minimum(name):
    least = 0 if name in MAY_BE_0 else 1
    assert getattr(read({"work": "local", "resume": "spring", name: least}), name) == least
    for value in (least - 1, -1000):
        assert refused({name: value}).startswith(f"setting {KEYS[name]}: saw {value}, needed ")


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf, -0.5])
def test_float_is_finite_and_not_below_0(name, wrong):
    assert refused({name: wrong}).startswith(f"setting {KEYS[name]}: saw {wrong!r}, needed ")


@pytest.mark.parametrize("name", OVER_0)
def test_times_rates_and_limits_are_above_0(name):
    assert "needed above 0" in refused({name: 0.0})
    work = "local" if name == "shared_momentum" else "coded"
    assert getattr(read({name: 1e-6, "work": work}), name) == 1e-6


@pytest.mark.parametrize("name", ["seed", "rounds", "task.rank"])
def test_whole_number_has_at_most_64_bits(name):
    assert RunConfig.read({name: 2**63 - 1}).table()[name] == 2**63 - 1
    for wrong in (2**63, -(2**64)):
        with pytest.raises(
            BadSetting, match=f"^setting {name}: saw {wrong}, needed a whole number of at most 64"
        ):
            RunConfig.read({name: wrong})


def test_momentum_is_at_least_0_and_below_1():
    for value in (0.0, 0.999):
        assert RunConfig(server_momentum=value).server_momentum == value
    assert refused({"server-momentum": 1.0}) == (
        "setting optimizer.server-momentum: saw 1.0, needed 0 or more, below 1"
    )


def test_error_limit_is_at_least_float32_rounding():
    for value in (1e-7, 0.5):
        assert RunConfig(error_limit=value).error_limit == value
    for value in (0.0, 1e-8, 1.5):
        assert refused({"error-limit": value}).startswith(
            f"setting code.error-limit: saw {value}, needed at least 1e-7"
        )


@pytest.mark.parametrize("name", UP_TO_1)
def test_shares_are_at_most_1(name):
    assert getattr(RunConfig(**{name: 1.0}), name) == 1.0
    assert refused({name: 1.01}).startswith(f"setting {KEYS[name]}: saw 1.01")


def test_budget_in_megabytes_may_be_above_1():
    assert RunConfig(gate_budget=50.0, gate_budget_unit="megabytes").gate_budget == 50.0


def test_budget_in_own_unit_must_be_given():
    said = refused({"gate": "drift", "gate-budget-unit": "seconds"})
    assert said == "setting gate.budget: saw auto, needed a number of seconds"


def test_gaps_between_exchanges_are_ordered():
    assert (
        refused({"max-gap": 3, "min-gap": 4})
        == "setting gate.max-gap: saw 3, needed at least gate.min-gap (4)"
    )
    assert RunConfig(max_gap=0, min_gap=4).max_gap == 0


@pytest.mark.parametrize(("name", "value"), [("placement", "scattered"), ("codec", "int8")])
def test_local_setting_is_refused_with_coded_work(name, value):
    said = refused({name: value, "min-clients": 8, "work": "coded"})
    assert said == f"setting {KEYS[name]}: saw {value}, needed work = local with it"
    assert getattr(read({"work": "local", name: value, "min-clients": 8}), name) == value


def test_gate_that_weighs_gradients_is_refused_with_coded_work():
    said = refused({"gate": "relative-change", "work": "coded"})
    needed = "needed a gate that weighs distances or nothing with work = coded"
    assert said == f"setting gate.name: saw relative-change, {needed}"


def test_coded_work_has_no_shared_momentum():
    said = refused({"shared_momentum": 0.1, "work": "coded"})
    assert said.startswith("setting optimizer.shared-momentum: saw 0.1, needed off or auto (optimizer.server")
    assert said.endswith("with work = coded")
    for value in ("off", "auto"):
        assert read({"shared_momentum": value, "work": "coded"}).alpha == 1.0


def test_shares_overlap_at_most_on_all_clients():
    said = refused({"work": "local", "placement": "cyclic", "replicas": 9, "min-clients": 8})
    assert said == "setting code.replicas: saw 9 with data.placement cyclic, needed at most min-clients (8)"


def test_samples_are_shared_only_where_data_may_move():
    table = {"inject-clients": 0.5, "inject-share": 0.5}
    for private in (table, {"work": "local", **table}):
        assert refused(private).startswith(
            "setting data.inject-clients: saw 0.5 with data.placement private, needed 0 where data stays"
        )
    moving = {"work": "local", "placement": "cyclic", "replicas": 1}
    assert read({**moving, **table}).inject_clients == 0.5
    assert refused({**moving, "inject-clients": 1.5}) == "setting data.inject-clients: saw 1.5, needed 0 to 1"
    assert refused({**moving, "inject-share": 0.0}).startswith(
        "setting data.inject-share: saw 0.0, needed above"
    )


def test_round_steps_are_set_or_default_of_work_kind():
    assert RunConfig(local_steps=3).round_steps == 3
    assert (RunConfig(work="local").round_steps, RunConfig(work="coded").round_steps) == (16, 4)


def test_automatic_values_follow_kind_of_work():
    coded, local = RunConfig(work="coded"), RunConfig(work="local")
    assert (coded.alpha, local.alpha) == (1.0, 0.1)
    assert (coded.chosen_gate, local.chosen_gate) == ("every", "drift")
    assert RunConfig(work="local", shared_momentum="off").alpha == 1.0
    assert RunConfig(shared_momentum=0.2, gate="qsr").alpha == 0.2
    assert RunConfig(shared_momentum=0.2, gate="qsr").chosen_gate == "qsr"


def test_schedule_covers_steps_of_whole_run():
    config = RunConfig(schedule="cosine", rounds=10, local_steps=2, warmup_steps=4)
    shares = [config.rate_share(step) for step in range(21)]
    assert shares[0] == pytest.approx(0.25)
    assert shares[10] == pytest.approx(0.5)
    assert shares[20] == pytest.approx(0.0)
    assert all(before > after for before, after in pairwise(shares[4:]))
    assert {RunConfig().rate_share(step) for step in range(99)} == {1.0}


def test_pieces_are_at_most_4_mb():
    assert RunConfig(piece_kb=4096).piece_kb == 4096
    assert refused({"piece-kb": 4097}) == "setting links.piece-kb: saw 4097, needed 1 to 4096"


@given(replicas=st.integers(1, 9), blocks=st.integers(1, 9))
def test_blocks_are_limited_by_replicas(replicas, blocks):
    if blocks <= replicas:
        assert RunConfig(replicas=replicas, blocks=blocks).blocks == blocks
    else:
        assert refused({"replicas": replicas, "blocks": blocks}) == (
            f"setting code.blocks: saw {blocks}, needed at most code.replicas ({replicas})"
        )


@pytest.mark.parametrize("name", [name for name in FLOATS if name != "privacy_delta"])
def test_integer_beyond_all_floats_is_out_of_range(name):
    assert refused({name: 10**400}).startswith(f"setting {KEYS[name]}: saw inf, needed ")


@pytest.mark.parametrize("name", [name for name in FLOATS if name != "privacy_delta"])
def test_integer_is_accepted_for_float(name):
    value = 0 if name in BELOW_1 else 1
    taken = getattr(read({name: value}), name)
    assert type(taken) is float
    assert taken == value


@pytest.mark.parametrize("name", list(FIELDS))
@given(data=st.data())
def test_misspelled_setting_gets_hint(name, data):
    if len(name) < 4:
        return
    at = data.draw(st.integers(0, len(name) - 1))
    wrong = name[:at] + name[at + 1 :]
    if wrong not in FIELDS:
        said = refused({wrong: 1})
        assert said.startswith(f"unknown setting {wrong!r}; ")
        if "did you mean" in said:
            assert said.split("did you mean ")[1].rstrip("?") in FIELDS


def test_unknown_setting_is_refused_without_hint():
    assert refused({"xyzzy": 1}) == "unknown setting 'xyzzy'; a setting of a task is named task.xyzzy"
    assert "'local-stepz'; did you mean local-steps?" in refused({"local-stepz": 1})


def test_dashes_and_underscores_are_equal():
    assert (
        RunConfig.read({"local-steps": 7}) == RunConfig.read({"local_steps": 7}) == RunConfig(local_steps=7)
    )


def test_duplicate_setting_is_refused():
    with pytest.raises(BadSetting) as caught:
        RunConfig.read({"local-steps": 1, "local_steps": 2})
    assert str(caught.value) == "setting local-steps: saw it with dashes and with underscores, needed it once"


counts, amounts = st.integers(1, 4096), st.floats(1e-3, 1e6)
NARROW = {
    "server_momentum": st.floats(0, 0.99), "error_limit": st.floats(1e-7, 1), "inject_clients": st.just(0.0),
    "largest_share": st.floats(1e-3, 1), "fragment_mixing": st.floats(0, 1),
    "privacy_delta": st.floats(1e-9, 0.01), "privacy_clip_quantile": st.floats(0, 0.9),
    **dict.fromkeys(UP_TO_1, st.floats(1e-3, 1)),
}  # fmt: skip
WORDS = {
    "device": st.sampled_from(("auto", "cpu", "cuda:0")),
    "partition": st.sampled_from(("iid", "owner:a", "dirichlet:0.3")),
    "run": st.from_regex(NAME, fullmatch=True), "resume": st.text("ab-7:", max_size=10),
    "gate": st.sampled_from(available("fedgc.gates")), "gate_options": st.just(""),
    "aggregator": st.sampled_from(sorted({*available("fedgc.aggregators")} - {MIXED_RANKS})),
    "aggregator_options": st.just(""),
    "codec": st.sampled_from(available("fedgc.codecs")),
    "code": st.just("frame"), "samples": st.just(""), "site_gateway": st.just(""),
}  # fmt: skip


OF_FEW_RUNS = (
    "check_outliers",
    "clients_per_round",
    "fragments",
    "groups",
    "late_updates",
    "privacy_epsilon",
    "privacy_noise",
    "privacy_unit",
)  # they need many other settings


def _make_work_fit(values: dict[str, Any]) -> None:
    local = {"work": "local", "min_clients": 4096}
    values |= local if values.keys() & {"placement", "codec", "aggregator"} else {}
    if values.get("work") == "coded":
        values |= {"gate": "every", "shared_momentum": "off"}


def _make_validation_fit(values: dict[str, Any]) -> None:
    if values.get("best_patience") or values.get("best"):
        values |= {"best": "loss", "evaluate_every": 1, "client_app": "fedgc"}
        values.pop("secrecy", None)
    if values.get("validate_only", "off") != "off":
        values |= {"resume": "spring", "link": "session", "client_app": "fedgc"}
        values.pop("secrecy", None)


@st.composite
def configs(draw: st.DrawFn) -> RunConfig:
    """Draw a setting of every kind."""
    values: dict[str, Any] = {}
    for name in draw(st.sets(st.sampled_from(NAMES))):
        kinds = [st.sampled_from(choices(name))] if choices(name) else []
        kinds += [counts] if takes(name, int) else []
        kinds += [NARROW.get(name, amounts)] if takes(name, float) else []
        kinds += [WORDS.get(name, st.text(max_size=10))] if takes(name, str) else []
        values[name] = draw(st.one_of(kinds))
    _make_work_fit(values)
    if values.get("script"):
        values |= {"work": "local", "client_app": "fedgc", "placement": "private", "inject_clients": 0.0}
        values |= {"gate": "every", "link": "session", "shared_momentum": "off"}
    _make_validation_fit(values)
    if values.get("secrecy") == "masked":
        values |= {"client_app": "fedgc", "codec": "float32", "placement": "private", "federation": "all.fed"}
        values |= {"gate": "every", "lockstep": "auto", "aggregator": "weighted-mean"}
    values = {name: value for name, value in values.items() if name not in OF_FEW_RUNS}
    if values.get("client_app") == "stock":
        values.pop("download_codec", None)
    values["max_gap"] = max(values.get("max_gap", 32), values.get("min_gap", 1))
    if values.get("gate_budget_unit", "share") != "share":
        values["gate_budget"] = 0.5 if values.get("gate_budget", AUTO) == AUTO else values["gate_budget"]
    if "gate_budget" in values:
        values |= {"max_gap": 0, "min_gap": 1}  # any budget can be spent
    if isinstance(values.get("blocks"), int):
        replicas = values.get("replicas", AUTO)
        values["replicas"] = max(values["blocks"], replicas) if isinstance(replicas, int) else replicas
    return RunConfig(**values)


@given(configs())
def test_table_is_read_back_equal(config):
    assert RunConfig.read(config.table()) == config


@given(configs())
def test_table_is_flat_and_has_dashes(config):
    table = config.table()
    assert len(table) == len(NAMES)
    assert not any("_" in name for name in table)
    assert all(type(value) in (str, int, float) for value in table.values())


def test_every_setting_is_documented_with_default():
    explained = RunConfig.explained()
    assert [name for name, _, _ in explained] == list(FIELDS)
    for name, default, says in explained:
        assert default == getattr(DEFAULTS, FIELDS[name])
        assert len(says) > 5


def test_auto_is_allowed_exactly_where_type_allows_it():
    automatic = {name for name in NAMES if AUTO in choices(name)}
    assert automatic == {
        "aggregator", "best_is", "blocks", "check_outliers", "deadline_s", "gate", "gate_budget", "late_s",
        "link", "local_steps", "lockstep", "privacy_noise", "quorum", "receivers", "replicas", "rollback",
        "shared_momentum", "upload_deadline_s",
    }  # fmt: skip
    for name in automatic:
        assert getattr(DEFAULTS, name) == AUTO


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        (
            {"federation": "a", "best": "accuracy"},
            "setting validate.best: saw accuracy with secrecy = masked, needed none: "
            "under masks no figure of a single site leaves it",
        ),
        (
            {"federation": "a", "resume": "spring", "validate_only": 3},
            "setting secrecy: saw masked, needed open (no figure of a single site leaves it) "
            "with validate.only",
        ),
        ({}, "setting federation: saw none, needed a descriptor's file with secrecy = masked"),
        ({"client-app": "stock"}, "setting client.app: saw stock, needed fedgc with secrecy = masked"),
        (
            {"federation": "x", "work": "local", "lockstep": "off"},
            "setting gate.lockstep: saw off, needed on or auto with secrecy = masked",
        ),
        (
            {"work": "local", "codec": "int8"},
            "setting links.codec: saw int8, needed float32 with secrecy = masked",
        ),
        (
            {"work": "local", "placement": "shuffled-once"},
            "setting data.placement: saw shuffled-once, needed private with secrecy = masked",
        ),
        (
            {"federation": "all.fed", "gate": "relative-change"},
            "setting gate.name: saw relative-change, which weighs gradients, "
            "needed one that does not, with secrecy = masked",
        ),
    ],
)
def test_setting_incompatible_with_masks_is_refused(table, sentence):
    assert refused({"secrecy": "masked", **table}) == sentence


def test_settings_that_shape_update_are_distinguished():
    ones = [RunConfig(), RunConfig(local_steps=7), RunConfig(learning_rate=0.5), RunConfig(seed=1)]
    ones += [
        RunConfig(schedule="cosine"),
        RunConfig(schedule="cosine", rounds=7),
    ]  # its rates end with the run
    records = {"privacy_unit": "record", "privacy_noise": 2.0, "shared_momentum": "off", "gate": "every"}
    ones += [RunConfig(**{**records, **more}) for more in ({}, {"privacy_clip": 1e-30}, {"rounds": 7})]
    masked = {"secrecy": "masked", "federation": "all.fed", "gate": "every"}
    ones += [RunConfig(**masked), RunConfig(**masked, rounds=7)]
    assert len({each.shape for each in ones}) == len(ones)
    assert RunConfig(rounds=99, run="another", federation="elsewhere").shape == ones[0].shape


def test_each_setting_shapes_updates_or_is_known_not_to():
    named = {each.name for each in fields(RunConfig)} - {"task_settings", "local_steps", "rounds"}
    assert named == set(SHAPING) - {"round_steps"} | NOT_SHAPING


@pytest.mark.parametrize(
    ("table", "steps"),
    [
        ({}, 12),
        ({"max-gap": 0, "rounds": 7}, 28),
        ({"lockstep": "on"}, 0),
        ({"gate": "relative-change"}, 0),
        ({"gate": "relative-change", "lockstep": "off"}, 12),
        ({"secrecy": "masked", "federation": "x"}, 0),
        ({"work": "coded"}, 0),
    ],
)
def test_clients_run_ahead_of_gate_unless_in_lockstep(table, steps):
    local = {"work": "local", "local-steps": 4, "max-gap": 3}
    assert read({**local, **table}).most_steps == steps


@pytest.mark.parametrize("name", ["../evil", "a/b", ".hidden", "a" * 65, "a b", "é", "latest", "a\n"])
def test_run_name_is_plain_word(name):
    with pytest.raises(BadSetting, match=r"setting run: saw .*, needed letters, digits, - _ and"):
        RunConfig(run=name)


def test_resumed_run_is_name_not_path():
    for name in ("../evil", "/evil", "."):
        with pytest.raises(BadSetting, match=r"setting resume: saw .*, needed a run's name, not a path"):
            RunConfig(resume=name)
    assert RunConfig(run="Ward_7.b-2", resume="latest-1").run == "Ward_7.b-2"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("clients", "client.app"),
        ("min-devices", "min-clients"),
        ("inject_devices", "data.inject-clients"),
        ("server-optimiser", "optimizer.server"),
        ("gate-delta", "gate.options"),
        ("delta-bits", "links.codec"),
        ("gate-budget", "gate.budget"),
        ("gate_every", "local-steps"),
        ("replicas", "code.replicas"),
        ("gate", "gate.name"),
    ],
)
def test_renamed_setting_is_refused_with_new_name(old: str, new: str) -> None:
    with pytest.raises(BadSetting, match=f"unknown setting '{old}'; it is now {new}$"):
        RunConfig.read({old: 3})


# ---- tables


def test_nested_and_flat_tables_are_same():
    nested = {"rounds": 3, "gate": {"budget": 0.5, "max-gap": 4}, "task.rank": 8}
    flat = {"rounds": 3, "gate.budget": 0.5, "gate.max_gap": 4, "task.rank": 8}
    assert RunConfig.read(nested) == RunConfig.read(flat)


def test_few_settings_are_outside_groups():
    assert len(BASIC) <= 13
    assert {"task", "rounds", "work", "learning-rate", "gate.budget", "secrecy"} <= set(BASIC)


@pytest.mark.parametrize(
    ("other", "needed"),
    [
        ({"work": "coded"}, "work: saw coded, needed local"),
        ({"secrecy": "masked", "federation": "all.fed"}, "secrecy: saw masked, needed open"),
        ({"client_app": "stock"}, "client.app: saw stock, needed fedgc"),
        ({"placement": "cyclic"}, "data.placement: saw cyclic, needed private"),
        ({"fragments": 4}, "links.fragments: saw 4, needed 1"),
        ({"shared_momentum": 0.5}, "optimizer.shared-momentum: saw 0.5, needed off or auto"),
        ({"site_gateway": "x"}, "site.gateway: saw x, needed none"),
    ],
)
def test_sample_of_clients_is_refused_where_all_are_needed(other, needed):
    said = refused({"clients_per_round": 5, **other})
    assert said.startswith(f"setting {needed}")
    assert said.endswith("with aggregation.clients-per-round")


@pytest.mark.parametrize(
    ("other", "needed"),
    [
        ({"work": "coded"}, "work: saw coded, needed local"),
        ({"secrecy": "masked", "federation": "all.fed"}, "secrecy: saw masked, needed open"),
        ({"client_app": "stock"}, "client.app: saw stock, needed fedgc"),
        ({"clients_per_round": 5}, "aggregation.clients-per-round: saw 5, needed 0"),
        ({"placement": "cyclic", "inject_clients": 0.5}, "data.inject-clients: saw 0.5, needed 0"),
        ({"fragments": 4}, "links.fragments: saw 4, needed 1"),
        ({"link": "messages"}, "links.kind: saw messages, needed session or auto"),
        (
            {"aggregator": "lora-mixed-ranks", "script": "train.py", "placement": "private"},
            "aggregation.rule: saw lora-mixed-ranks, needed a rule that does not take the model",
        ),
        ({"privacy_noise": 1.0}, "privacy.unit: saw client, needed record (if any privacy)"),
        ({"gate": "drift"}, "gate.name: saw drift, needed a gate without a measure"),
        ({"site_gateway": "x"}, "site.gateway: saw x, needed none"),
    ],
)
def test_late_updates_are_refused_where_rounds_need_their_own(other, needed):
    said = refused({"late_updates": "count", **other})
    assert said.startswith(f"setting {needed}")
    assert said.endswith("with aggregation.late-updates = count")


@pytest.mark.parametrize(
    ("other", "needed"),
    [
        ({"work": "coded"}, "work: saw coded, needed local"),
        ({"secrecy": "masked", "federation": "x"}, "secrecy: saw masked, needed open"),
        ({"client_app": "stock"}, "client.app: saw stock, needed fedgc"),
        ({"fragments": 2, "link": "session"}, "links.fragments: saw 2, needed 1"),
        ({"evaluate_every": 0}, "history.evaluate-every: saw 0, needed 1 or more"),
        ({"script": "a.py"}, "script: saw a.py, needed a task, whose models the server evaluates"),
        ({"aggregator": "weighted-mean"}, "aggregation.rule: saw weighted-mean, needed auto or bounded-mean"),
        ({"aggregator": "median"}, "aggregation.rule: saw median, needed auto or bounded-mean"),
    ],
)
def test_outlier_checks_need_single_updates_and_evaluations(other, needed):
    said = refused({"check_outliers": "on", **other})
    assert said == f"setting {needed} with aggregation.check-outliers = on"


def test_groups_are_refused_where_updates_wait():
    assert refused({"groups": "speed"}) == (
        "setting aggregation.late-updates: saw wait, needed count with aggregation.groups = speed"
    )


def test_late_updates_choose_gate_and_shared_momentum():
    config = RunConfig(late_updates="count")
    assert (config.chosen_gate, config.alpha) == ("every", 0.1)


def test_sample_of_clients_trains_without_shared_momentum():
    assert [RunConfig(clients_per_round=count).alpha for count in (0, 5)] == [0.1, 1.0]


def test_task_settings_are_kept_by_name():
    config = RunConfig.read({"task": "digits", "task.lora-rank": 8, "task.data_path": "/data"})
    assert config.task_settings == {"lora-rank": 8, "data_path": "/data"}
    assert RunConfig.read(config.table()) == config
    assert config.shape != RunConfig().shape


def test_task_settings_are_read_only_and_hashable():
    given = {"rank": 8}
    config = RunConfig(task_settings=given)
    given["rank"] = 9
    assert config.task_settings == {"rank": 8}
    assert hash(config) == hash(RunConfig.read({"task.rank": 8}))
    assert copy.deepcopy(config) == config
    with pytest.raises(TypeError):
        config.task_settings["rank"] = 9


@pytest.mark.parametrize("name", [name for name in FLOATS if name != "privacy_delta"])
def test_integer_is_float_in_python(name):
    value = 0 if name in BELOW_1 else 1
    assert type(getattr(RunConfig(**{name: value}), name)) is float


@pytest.mark.parametrize("value", [None, [1], b"x"])
def test_invalid_task_setting_is_refused(value):
    said = refused({"task.rank": value})
    assert said == f"setting task.rank: saw {value!r}, needed a name, and text, a number, true or false"


def test_unknown_setting_may_belong_to_task():
    assert refused({"lora-rank-of-mine": 8}).endswith("; a setting of a task is named task.lora-rank-of-mine")


FRAGMENTS = {"fragments": 4, "link": "session"}


def test_fragments_are_exchanged_every_round_without_shared_momentum():
    config = RunConfig(**FRAGMENTS)
    assert (config.chosen_gate, config.alpha) == ("every", 1.0)
    assert (RunConfig().chosen_gate, RunConfig().alpha) == ("drift", 0.1)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"work": "coded"}, "setting work: saw coded, needed local with links.fragments"),
        ({"link": "auto"}, "setting links.kind: saw auto, needed session with links.fragments"),
        (
            {"secrecy": "masked", "federation": "all.fed", "gate": "every"},
            "setting secrecy: saw masked, needed open with links.fragments",
        ),
        (
            {"shared-momentum": 0.3},
            "setting optimizer.shared-momentum: saw 0.3, needed off or auto with links.fragments",
        ),
        (
            {"gate": "drift"},
            "setting gate.name: saw drift, needed a gate without a measure, such as every or pace, "
            "with links.fragments",
        ),
        ({"client-app": "stock"}, "setting client.app: saw stock, needed fedgc with links.fragments"),
        (
            {"aggregation.rule": "lora-mixed-ranks", "aggregation.options": "rank=4"},
            "setting aggregation.rule: saw lora-mixed-ranks, needed a rule that does not look at whole "
            "tensors with links.fragments",
        ),
    ],
)
def test_fragments_refuse_settings_for_whole_updates(table, said):
    assert refused({**FRAGMENTS, **table}) == said


def test_stock_clients_get_models_as_float32():
    said = refused({"client-app": "stock", "download-codec": "int8"})
    assert said == "setting links.download-codec: saw int8, needed float32 with stock clients"
