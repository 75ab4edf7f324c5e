"""The settings of a run: one frozen, validated value with all defaults.

Flower passes settings as a flat table with dots and dashes (`gate.budget = 0.1`). `RunConfig.read` takes that
table or nested ones, and refuses unknown names.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import Field, dataclass, fields
from typing import Any, Final, get_type_hints

from fedgc.aggregators import BOUNDED, PLAIN, AggregationRule, make_rule, rule_summaries
from fedgc.codecs import codec_summaries, make_codec
from fedgc.config import checks
from fedgc.config.fields import AUTO, TASK, Value, converted, needed_of, unexplained
from fedgc.config.link_settings import SHORT_BYTES
from fedgc.config.names import FIELDS, dashed, field_of, flat
from fedgc.config.pins import parse_pins
from fedgc.config.settings import Settings
from fedgc.config.task_settings import TaskSettings
from fedgc.config.training_settings import CODED_STEPS, LOCAL_STEPS, SHARED
from fedgc.errors import BadSetting
from fedgc.gates import DEFAULT_GATES, Gate, GateSettings, Measure, gate_named, make_gate, summaries

SCRIPT_LEASE_S: Final = 7 * 24 * 3600.0
HINTS: Final[Mapping[str, Any]] = get_type_hints(Settings)
SHAPING: Final = (
    "task", "script", "client_app", "work", "round_steps", "batch_size", "learning_rate", "warmup_steps",
    "schedule", "shared_momentum", "seed", "precision", "chunks", "partition", "placement", "inject_clients",
    "inject_share", "fragments", "fragment_mixing", "aggregator", "aggregator_options", "largest_share",
    "samples", "late_updates", "secrecy", "privacy_unit", "privacy_epsilon", "privacy_noise",
    "privacy_delta", "privacy_clip", "privacy_clip_quantile",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RunConfig(Settings):
    """The settings of a run, frozen and validated.

    `fedgc config --all` lists every setting with its default and meaning. `dataclasses.replace` makes a
    changed copy; `RunConfig.read` makes settings from a table, such as Flower's run config.

    Raises:
        BadSetting: A setting is unknown, has a wrong type or value, or contradicts another one.

    Example:
        >>> import fedgc
        >>> fedgc.RunConfig(rounds=3, gate_budget=0.2).rounds
        3
        >>> fedgc.RunConfig.read({"rounds": 3, "gate": {"budget": 0.2}}).gate_budget
        0.2
        >>> fedgc.RunConfig.read({"task.rank": 8}).task_settings
        TaskSettings({'rank': 8})
        >>> fedgc.RunConfig.read({"round": 3})
        Traceback (most recent call last):
        ...
        fedgc.errors.BadSetting: unknown setting 'round'; did you mean rounds?
    """

    def __post_init__(self) -> None:
        object.__setattr__(self, "task_settings", TaskSettings(self.task_settings))
        for each in fields(self):
            if each.metadata["key"] == TASK:
                continue
            object.__setattr__(self, each.name, _valid(each, getattr(self, each.name)))
        checks.check_code(self)
        checks.check_gate(self, self._budget)
        self.new_gate()
        checks.check_local(self, self.chosen_gate, self.measure)
        checks.check_choice(self)
        checks.check_late(self, self.chosen_gate, self.measure)
        checks.check_script(self, self.chosen_gate, self.measure)
        checks.check_fragments(self, self.chosen_gate, self.measure)
        checks.check_best(self)
        checks.check_validate_only(self)
        checks.check_secrecy(self, self.chosen_gate, self.measure)
        checks.check_aggregator(self)
        checks.check_outlier_checks(self)
        checks.check_mixed_ranks(self)
        checks.check_samples(self)
        checks.check_privacy(self, self.chosen_gate, self.measure)
        checks.check_records(self, self.chosen_gate, reads_losses=self.reads_losses)
        checks.check_site(self, self.chosen_gate, always_syncs=self.new_gate().always_syncs)
        self.new_rule()
        make_codec(self.codec)

    # ---- derived values

    @property
    def workload(self) -> str:
        """What is trained: a stock app, a script, or the task. Speeds are recorded under it."""
        return "stock" if self.client_app == "stock" else self.script or self.task

    @property
    def round_steps(self) -> int:
        """The local steps of a round: the setting `local-steps`, with auto resolved."""
        if self.local_steps == AUTO:
            return LOCAL_STEPS if self.work == "local" else CODED_STEPS
        return int(self.local_steps)

    @property
    def alpha(self) -> float:
        """The weight of a client's own gradient in a local step (1: no shared momentum)."""
        if self.shared_momentum == AUTO:
            # Each client has the model and an earlier one
            has_both = not self.clients_per_round and self.fragments == 1
            leads = self.work == "local" and not self.script and has_both and not self.is_private
            return SHARED if leads else 1.0
        return 1.0 if self.shared_momentum == "off" else float(self.shared_momentum)

    @property
    def session_lease_s(self) -> float:
        """How long a client keeps its session: with a script longer, as the script ends with the session."""
        return max(self.lease_s, SCRIPT_LEASE_S) if self.script else self.lease_s

    @property
    def most_steps(self) -> int:
        """The most local steps from a common model without a decision of the gate (0: the client waits).

        A masked update has the agreed number of steps or fewer, which bounds its size. With record-level
        privacy each step costs.

        >>> RunConfig(work="local", local_steps=8, max_gap=4).most_steps
        32
        """
        rests = self.measure == "gradient" or self.secrecy == "masked" or self.protects_records
        if self.work != "local" or self.lockstep == "on" or (self.lockstep == AUTO and rests):
            return 0
        return self.most_kept

    @property
    def most_kept(self) -> int:
        """The most local steps that a client can hold since the last exchange."""
        return self.round_steps * (self.max_gap or self.rounds)

    @property
    def chosen_gate(self) -> str:
        """The gate's name, with auto resolved."""
        if self.gate == AUTO:
            each_round = self.fragments > 1 or self.is_private or self.late_updates == "count"
            return "every" if each_round else DEFAULT_GATES[self.work]
        return self.gate

    @property
    def measure(self) -> Measure:
        """The client measure that the gate needs."""
        return gate_named(self.chosen_gate).measure

    @property
    def reads_losses(self) -> bool:
        """Whether the gate needs the loss of each client."""
        return gate_named(self.chosen_gate).reads_losses

    def new_gate(self) -> Gate[Any]:
        """Return a new gate with these settings."""
        settings = GateSettings(
            rounds=self.rounds,
            period=self.gate_period,
            budget=self._budget,
            unit=self.gate_budget_unit,
            check_steps=self.round_steps,
            max_gap=self.max_gap or None,
            min_gap=self.min_gap,
        )
        return make_gate(self.chosen_gate, settings, self.gate_options)

    def new_rule(self) -> AggregationRule:
        """Return a new aggregation rule with these settings."""
        return make_rule(self.chosen_rule, self.aggregator_options)

    @property
    def pinned_samples(self) -> dict[str, int]:
        """The number of samples that each named client counts for."""
        return parse_pins(self.samples)

    @property
    def chosen_rule(self) -> str:
        """The name of the aggregation rule.

        >>> RunConfig().chosen_rule, RunConfig(work="coded").chosen_rule
        ('bounded-mean', 'weighted-mean')
        """
        if self.aggregator != AUTO:
            return self.aggregator
        bounds = self.work == "local" and self.secrecy == "open" and self.client_app == "fedgc"
        return BOUNDED if bounds and not self.is_private else PLAIN

    def update_bytes(self, numbers: int) -> float:
        """Return the bytes of an update of so many numbers: that of local work by its codec.

        >>> RunConfig(codec="int8").update_bytes(50_000) < RunConfig().update_bytes(50_000) / 3
        True
        """
        return make_codec(self.codec if self.work == "local" else "float32").expected(numbers)

    def slots_for(self, size_bytes: float) -> int | None:
        """Return how many vectors of this size (0: unknown) are uploaded at the same time; None: all.

        >>> RunConfig().slots_for(1e6), RunConfig().slots_for(1e5)
        (2, None)
        """
        return None if 0 < size_bytes <= SHORT_BYTES else self.upload_slots

    def upload_turns(self, clients: int, size_bytes: float) -> int:
        """Return after how many uploads, one after the other, those of all clients are there."""
        slots = self.slots_for(size_bytes)
        return 1 if slots is None else -(-clients // slots)

    @property
    def most_exchanges(self) -> int:
        """The exchanges that the gate can make, without those forced for clients that leave.

        >>> RunConfig(rounds=10, gate="every", gate_period=4).most_exchanges
        3
        """
        if self.chosen_gate != "every":
            return self.rounds
        return -(-self.rounds // min(self.gate_period, self.max_gap or self.gate_period))

    def evaluates_after(self, round_: int) -> bool:
        """Return whether the server evaluates the model that this round made.

        >>> [each for each in range(1, 6) if RunConfig(rounds=5, evaluate_every=2).evaluates_after(each)]
        [2, 4, 5]
        """
        every = self.evaluate_every
        return every > 0 and (round_ % every == 0 or round_ >= self.rounds)

    @property
    def _budget(self) -> float | None:
        return None if self.gate_budget == AUTO else float(self.gate_budget)

    def skips_message(self, skipped: int, rounds: int) -> str:
        """Return a message on the rounds that the gate skipped, with the responsible setting; empty if none.

        >>> RunConfig(work="local", gate_budget=0.1).skips_message(11, 12)[:76]
        '11 of 12 rounds were skipped by the gate (drift, gate.budget 0.1 of the roun'
        >>> RunConfig(work="local", gate="every", gate_period=4).skips_message(9, 12)
        '9 of 12 rounds were skipped by the gate (every, gate.period 4)'
        """
        if not skipped:
            return ""
        gate = self.new_gate()
        by = ", ".join(filter(None, (self.chosen_gate, gate.describe())))
        message = f"{skipped} of {rounds} rounds were skipped by the gate ({by})"
        return f"{message}: {gate.advice}" if gate.advice else message

    @property
    def shape(self) -> bytes:
        """The hash of all settings that affect an update: equal for all members of a masked exchange.

        Steps that a client keeps for the run go on only under the same hash.
        """
        shaping = {name: getattr(self, name) for name in SHAPING} | {
            "task_settings": dict(self.task_settings)
        }
        # The schedule ends with the run, noise is spread over it, and a task may read how long it is
        if self.schedule != "constant" or self.protects_records or self.secrecy == "masked":
            shaping["rounds"] = self.rounds
        return hashlib.sha256(json.dumps(shaping, sort_keys=True).encode()).digest()

    def rate_share(self, step: int) -> float:
        """Return the learning rate's factor at this local step of the run, counted from 0.

        It depends on steps, not samples: a slow client's step has the same learning rate as others.

        >>> [RunConfig(warmup_steps=4).rate_share(step) for step in (0, 3, 9)]
        [0.25, 1.0, 1.0]
        """
        warm = min(1.0, (step + 1) / self.warmup_steps) if self.warmup_steps else 1.0
        if self.schedule == "constant":
            return warm
        return warm * 0.5 * (1.0 + math.cos(math.pi * min(1.0, step / (self.rounds * self.round_steps))))

    @classmethod
    def read(cls, table: Mapping[str, object]) -> "RunConfig":
        """Return the settings in `table` over the defaults.

        The table may be flat (`{"gate.budget": 0.1}`) or nested (`{"gate": {"budget": 0.1}}`). Settings of
        the task's own begin with `task.`; dashes and underscores are the same in all other names.
        """
        values, own = _fields_of(table)
        return cls(**values, task_settings=own)

    def table(self) -> dict[str, Value]:
        """Return the flat table that `read` accepts."""
        own = {f"{TASK}{key}": value for key, value in self.task_settings.items()}
        return {key: getattr(self, name) for key, name in FIELDS.items()} | own

    @classmethod
    def explained(cls) -> tuple[tuple[str, object, str], ...]:
        """Return (name, default, meaning) of every setting; meanings list named values and plug-ins."""
        more = {"gate.name": f"; {summaries()}", "aggregation.rule": f"; {rule_summaries()}"}
        more["links.codec"] = f"; {codec_summaries()}"
        known = {each.name: each for each in fields(cls)}
        says = {name: each.metadata["says"] for name, each in known.items()}
        return tuple(
            (key, known[name].default, says[name] + unexplained(HINTS[name], says[name]) + more.get(key, ""))
            for key, name in FIELDS.items()
        )


def check_each(table: Mapping[str, object]) -> None:
    """Raise BadSetting if a name in `table` is unknown, or a value is invalid by itself.

    The table may be a part of the settings: whether they fit together is seen in all of them.
    """
    values, _ = _fields_of(table)
    for each in fields(RunConfig):
        if each.name in values:
            _valid(each, values[each.name])


def is_text(key: str) -> bool:
    """Return whether a setting takes any text, and nothing else.

    >>> is_text("run"), is_text("rounds"), is_text("work")
    (True, False, False)
    """
    return key in FIELDS and HINTS[FIELDS[key]] is str


def _fields_of(table: Mapping[str, object]) -> tuple[dict[str, Any], TaskSettings]:
    """Return the values of a table by their fields, and the settings of the task's own."""
    values: dict[str, Any] = {}
    own: dict[str, Any] = {}
    for key, value in flat(table):
        if key.startswith(TASK):
            own[key.removeprefix(TASK)] = value
            continue
        name = field_of(key)
        if name in values:
            raise BadSetting(
                f"setting {dashed(key)}: saw it with dashes and with underscores, needed it once"
            )
        values[name] = value
    return values, TaskSettings(own)


def _valid(each: Field[Any], value: object) -> object:
    """Return the value of a setting in its type; raise BadSetting if it is invalid by itself."""
    value = converted(value, HINTS[each.name])
    if needed := needed_of(value, HINTS[each.name], each.metadata):
        raise BadSetting(f"setting {each.metadata['key']}: saw {value!r}, needed {needed}")
    return value
