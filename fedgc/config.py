"""The settings of a run: one frozen value, read once, the only home of defaults.

A setting is one field of `RunConfig`: its default, what it means and what is allowed stand together.
Flower hands settings over as a flat table with dashes (`local-steps = 4`); `RunConfig.read` takes that
table, names what it does not know, and is the only place in which a table of settings becomes a value.
"""

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

from fedgc.aggregators import DEFAULT, AggregationRule, make_rule, rule_summaries
from fedgc.errors import BadSetting, nearest
from fedgc.gates import Gate, GateSettings, Measure, default_gate, gate_named, make_gate, summaries

SHAPING: Final = (
    "task", "work", "local_steps", "gate_every", "batch_size", "learning_rate", "warmup_steps", "schedule",
    "shared_momentum", "seed", "precision",
)  # fmt: skip
Auto = Literal["auto"]
AUTO: Final = "auto"
All = Literal["all"]
NAME: Final = re.compile(r"(?!latest\Z)[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}")  # latest is the newest run
NAME_NEEDS: Final = "letters, digits, - _ and . (not first), at most 64, and not latest"
SHARED: Final = 0.1  # weight of a client's own gradient beside the shared momentum: flat from 0.05 to 0.2


MASKED: Final = {"client_app": "fedgc", "delta_bits": 32, "placement": "private", "aggregator": DEFAULT}
RENAMED: Final = {  # settings of version 0.1
    "clients": "client-app",
    "gate_delta": "gate-options",
    "gate_qsr_base": "gate-options",
    "gate_qsr_growth": "gate-options",
    "gate_window": "gate-options",
    "inject_devices": "inject-clients",
    "min_devices": "min-clients",
    "server_optimiser": "server-optimizer",
}


def _setting(
    default: Any, says: str, allowed: Callable[[Any], bool] = lambda _: True, needs: str = ""
) -> Any:
    return field(default=default, metadata={"says": says, "allowed": allowed, "needs": needs})


def _positive(value: float | str) -> bool:
    return isinstance(value, str) or (math.isfinite(value) and value > 0)


def _count(value: int | str) -> bool:
    return isinstance(value, str) or value >= 1


def _not_negative(value: float | str) -> bool:
    return isinstance(value, str) or (math.isfinite(value) and value >= 0)


def _name(value: str) -> bool:
    return not value or NAME.fullmatch(value) is not None


def _share(value: float | str) -> bool:
    return isinstance(value, str) or 0 < value <= 1


@dataclass(frozen=True, slots=True)
class RunConfig:
    """The settings of a run, frozen and validated.

    `fedgc config` lists every setting with its default and meaning. `dataclasses.replace` makes a changed
    copy; `RunConfig.read` makes settings from a table, such as Flower's run config.

    Raises:
        BadSetting: A setting is unknown, has a wrong type or value, or contradicts another one.

    Example:
        >>> import fedgc
        >>> fedgc.RunConfig(rounds=3, learning_rate=0.05).rounds
        3
        >>> fedgc.RunConfig.read({"rounds": 3, "local-steps": 2}).local_steps
        2
        >>> fedgc.RunConfig.read({"round": 3})
        Traceback (most recent call last):
        ...
        fedgc.errors.BadSetting: unknown setting 'round'; did you mean rounds?
    """

    # What is trained
    run: str = _setting("", "the run's name in the store (empty: one is made up)", _name, NAME_NEEDS)
    resume: str = _setting(
        "",
        "the name of a run to go on with, from its last checkpoint",
        lambda v: not v.startswith(".") and "/" not in v,
        "a run's name, not a path",
    )
    task: str = _setting("digits", "a shipped task's name, or module:attribute of your own")
    rounds: int = _setting(20, "rounds to run", _count, "at least 1")
    work: Literal["coded", "local"] = _setting(
        "coded",
        "coded: every chunk is trained by itself, and any holder's copy will do; "
        "local: each client trains one model on all of its chunks, and any number of steps counts",
    )
    local_steps: int = _setting(
        4, "coded work: optimizer steps on each chunk before it counts as finished", _count, "at least 1"
    )
    batch_size: int = _setting(32, "samples in one local step", _count, "at least 1")
    learning_rate: float = _setting(0.1, "of the local steps", _positive, "above 0")
    schedule: Literal["constant", "cosine"] = _setting(
        "constant", "how the learning rate goes over the local steps of the whole run"
    )
    warmup_steps: int = _setting(
        0, "local steps in which the learning rate rises to its full height", _not_negative, "0 or more"
    )
    shared_momentum: float | Literal["off", "auto"] = _setting(
        AUTO,
        "weight of a client's own gradient in a local step, the rest is the last common step; "
        f"auto: {SHARED} for local work, off for coded",
        _share,
        "above 0 and at most 1, off or auto",
    )
    server_optimizer: Literal["sgd", "adam", "adamw", "adagrad", "rmsprop"] = _setting(
        "sgd", "torch optimizer that applies the mean update"
    )
    server_learning_rate: float = _setting(
        1.0, "of the server's optimizer (sgd at 1.0 is averaging)", _positive, "above 0"
    )
    server_momentum: float = _setting(0.0, "of the server's sgd", lambda v: 0 <= v < 1, "0 or more, below 1")
    seed: int = _setting(0, "the root of every random choice", _not_negative, "0 or more")

    # How it is shared out
    chunks: int = _setting(
        16, "pieces the shared data is cut in, where the task lets us choose", _count, "at least 1"
    )
    placement: Literal["private", "scattered", "shuffled-once", "cyclic"] = _setting(
        "private",
        "local work: private: data stays where it is; where the task lets it move, scattered: every chunk at "
        "random on replicas clients, shuffled-once: on one, cyclic: replicas neighboring shares each",
    )
    inject_clients: float = _setting(
        0.0,
        "local work, where the task lets data move: share of the clients that at each step give samples to "
        "all (0: none; SelSync's alpha)",
        lambda v: 0 <= v <= 1,
        "0 to 1",
    )
    inject_share: float = _setting(
        0.5, "how much of its batch each of them gives (SelSync's beta)", _share, "above 0 and at most 1"
    )
    replicas: int | Auto = _setting(
        AUTO,
        "clients that hold each chunk (fewer clients: all of them); auto: from what the clients did before",
        _count,
        "at least 1, or auto",
    )
    blocks: int | Auto = _setting(
        AUTO,
        "codeword = update / blocks; each chunk must be finished as often; auto: chosen when a round stops",
        _count,
        "at least 1, or auto",
    )
    min_clients: int = _setting(
        2,
        "clients without which a run does not begin, nor a resumed one go on; after its first round fewer "
        "may remain",
        _count,
        "at least 1",
    )
    start_timeout_s: float = _setting(
        120.0,
        "how long to wait for them (once begun: for anybody) before the run ends",
        _positive,
        "above 0",
    )

    # When a round ends
    deadline_s: float | Auto = _setting(
        AUTO,
        "longest time of the working phase; auto: from the measured speeds",
        _positive,
        "above 0, or auto",
    )
    upload_deadline_s: float | Auto = _setting(
        AUTO,
        "longest wait for codewords after the working phase; auto: from size and measured uplinks",
        _positive,
        "above 0, or auto",
    )
    late_s: float | Auto = _setting(
        AUTO,
        "least time of a codeword, and half as much again as most took, after which others are asked for the "
        "same (where one is known to take so long, all train on meanwhile, to be ready); auto: grace-s, so "
        "that a broken session may come back",
        _positive,
        "above 0, or auto",
    )
    quorum: float | Auto = _setting(
        AUTO,
        "local work: share of the clients that must have done their steps before the gate is looked at; "
        "auto: three of four",
        _share,
        "above 0 and at most 1, or auto",
    )
    patience: float = _setting(
        0.25,
        "local work: how much longer, as a share of the time so far, an exchange waits for clients that "
        "are nearly done (0: not at all)",
        _not_negative,
        "0 or more",
    )
    wire: Literal["float32", "short"] = _setting(
        "float32",
        "coded work: numbers of a codeword; short: float32, bf16 or int8, whatever makes the codewords of a "
        "round shortest within the error limit",
    )
    error_limit: float = _setting(
        1e-2,
        "largest relative error that the numbers on the wire may cause in a sum (int8 needs 0.011 and more)",
        lambda v: 1e-7 <= v <= 1,
        "at least 1e-7 (float32's own rounding), at most 1",
    )

    # What is made of the updates
    aggregator: str = _setting(DEFAULT, "local work: what is made of the clients' updates")
    aggregator_options: str = _setting("", "the aggregator's own options, as name=value, name=value")

    # Which rounds are exchanged
    gate: str | Auto = _setting(AUTO, "which rounds are exchanged; auto: the default of the kind of work")
    gate_options: str = _setting("", "the gate's own options, as name=value, name=value")
    gate_every: int = _setting(
        16, "local work: optimizer steps from one look at the gate to the next", _count, "at least 1"
    )
    gate_period: int = _setting(
        1, "rounds from one exchange to the next, of a gate with a period", _count, "at least 1"
    )
    gate_budget: float | Auto = _setting(
        AUTO,
        "what exchanges may cost over the whole run, of a gate with a budget; auto: a tenth of the rounds, "
        "but no fewer than 20 exchanges (a shorter run has one each round)",
        _positive,
        "above 0, or auto",
    )
    gate_budget_unit: Literal["share", "megabytes", "seconds"] = _setting(
        "share", "what the budget counts; share: of the rounds"
    )
    lockstep: Literal["auto", "on", "off"] = _setting(
        AUTO,
        "local work: on: a client rests at each look until the verdict comes; off: it goes on with local "
        "steps meanwhile, up to max-gap looks from the last exchange; auto: on with masks and with "
        "a gate that weighs gradients, else off",
    )
    max_gap: int = _setting(
        32,
        "rounds after which an exchange is due, whatever the gate says (0: none)",
        _not_negative,
        "0 or more",
    )
    min_gap: int = _setting(1, "rounds from one exchange to the next at least", _count, "at least 1")

    # Clients
    device: str = _setting(AUTO, "cpu, cuda, cuda:0, mps; auto: the best there is")
    precision: Literal["float32", "bf16"] = _setting("float32", "bf16: local steps under autocast")
    threads: int = _setting(
        0, "CPU threads of a client's engine (0: torch decides)", _not_negative, "0 or more"
    )
    memory_mb: int = _setting(
        1024, "finished updates a client keeps in memory before it spills to disk", _count, "at least 1"
    )

    # Links
    client_app: Literal["fedgc", "stock"] = _setting(
        "fedgc",
        "stock: unmodified Flower ClientApps, which are sent Flower's own train and evaluate messages",
    )
    link: Literal["auto", "session", "messages"] = _setting(
        AUTO,
        "session: one lasting connection per client; messages: Flower messages alone; "
        "auto: sessions, and messages for each client whose session does not connect",
    )
    connect_s: float = _setting(
        10.0,
        "how long a client tries to connect its session before it goes on over messages",
        _positive,
        "above 0",
    )
    bind: str = _setting("127.0.0.1:0", "address the session listener binds to (port 0: any free one)")
    advertise: str = _setting("", "address clients are told (empty: the bound one)")
    authority: str = _setting(
        "",
        "file of the authority whose certificate clients find at that address, where a proxy stands before "
        "the listener (empty: the listener's own certificate)",
    )
    lease_s: float = _setting(3600.0, "a session's life before it is renewed", _positive, "above 0")
    grace_s: float = _setting(10.0, "how long a broken session may take to come back", _positive, "above 0")
    delta_bits: int = _setting(
        32,
        "local work: bits of each number of an update on the wire",
        lambda v: v in (4, 8, 32),
        "4, 8 or 32",
    )
    upload_slots: int = _setting(2, "clients that upload at the same time", _count, "at least 1")
    piece_kb: int = _setting(
        1024, "size of the pieces in which vectors travel", lambda v: 1 <= v <= 4096, "1 to 4096"
    )

    # Secrecy between sites
    secrecy: Literal["open", "masked"] = _setting(
        "open", "masked: the server learns sums over sites, no update of one; needs a federation"
    )
    federation: str = _setting("", "masked: the file with the federation's descriptor, on the server")

    # Memory of the run
    evaluate_every: int = _setting(
        1, "rounds between evaluations on the server (0: never)", _not_negative, "0 or more"
    )
    checkpoint_dir: str = _setting(
        "", "folder of all runs' checkpoints (empty: runs/ beside the default store)"
    )
    keep_checkpoints: int | All = _setting(
        3, "how many of the newest are kept (0: none are written)", _not_negative, "0 or more, or all"
    )
    log_file: str = _setting("", "file of the server to add JSON lines to, one a round (empty: none)")
    sinks: str = _setting("", "sinks of other packages to add, by name, with commas between (empty: none)")
    keep_rounds: int = _setting(
        10_000,
        "rounds whose client rows the store keeps before it folds them into summaries",
        _count,
        "at least 1",
    )

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for each in fields(self):
            value = getattr(self, each.name)
            if not _is(value, hints[each.name]):
                raise BadSetting(f"setting {each.name}: saw {value!r}, needed {_wanted(hints[each.name])}")
            if not each.metadata["allowed"](value):
                raise BadSetting(f"setting {each.name}: saw {value!r}, needed {each.metadata['needs']}")
        self._check_code()
        self._check_gate()
        self._check_local()
        self._check_secrecy()
        self._check_aggregator()

    def _check_secrecy(self) -> None:
        if self.secrecy == "open":
            return
        for name, needed in MASKED.items():
            if getattr(self, name) != needed:
                raise BadSetting(
                    f"setting {name}: saw {getattr(self, name)}, needed {needed} with secrecy = masked"
                )
        if not self.federation:
            raise BadSetting("setting federation: saw none, needed a descriptor's file with secrecy = masked")
        if self.measure == "gradient":
            raise BadSetting(
                f"setting gate: saw {self.chosen_gate}, which weighs gradients, "
                "needed one that does not, with secrecy = masked"
            )
        if self.lockstep == "off":
            raise BadSetting("setting lockstep: saw off, needed on or auto with secrecy = masked")

    def _check_aggregator(self) -> None:
        if self.work == "coded" and self.client_app == "fedgc" and self.aggregator != DEFAULT:
            raise BadSetting(
                f"setting aggregator: saw {self.aggregator}, needed {DEFAULT} with work = coded, "
                "whose codewords are sums of several updates"
            )
        self.new_rule()

    def _check_code(self) -> None:
        both = isinstance(self.blocks, int) and isinstance(self.replicas, int)
        if both and int(self.blocks) > int(self.replicas):
            raise BadSetting(f"setting blocks: saw {self.blocks}, needed at most replicas ({self.replicas})")

    def _check_gate(self) -> None:
        if 0 < self.max_gap < self.min_gap:
            raise BadSetting(f"setting max_gap: saw {self.max_gap}, needed at least min_gap ({self.min_gap})")
        budget = self._budget
        if self.gate_budget_unit == "share" and budget is not None and budget > 1:
            raise BadSetting(f"setting gate_budget: saw {self.gate_budget} of all rounds, needed at most 1")
        self.new_gate()

    def _check_local(self) -> None:
        if self.work == "coded" and (self.placement != "private" or self.delta_bits != 32):
            name = "placement" if self.placement != "private" else "delta_bits"
            raise BadSetting(f"setting {name}: saw {getattr(self, name)}, needed work = local with it")
        if self.inject_clients and self.placement == "private":
            raise BadSetting(
                f"setting inject_clients: saw {self.inject_clients} with placement private, needed 0 where "
                "data stays where it is (cyclic with replicas = 1 lets it lie so, and be shared)"
            )
        overlaps = self.placement in ("scattered", "cyclic") and isinstance(self.replicas, int)
        if overlaps and int(self.replicas) > self.min_clients:
            raise BadSetting(
                f"setting replicas: saw {self.replicas} with placement {self.placement}, "
                f"needed at most min_clients ({self.min_clients})"
            )

    # ---- what follows from them

    @property
    def round_steps(self) -> int:
        """How many local steps a round adds to those since the last exchange."""
        return self.gate_every if self.work == "local" else self.local_steps

    @property
    def alpha(self) -> float:
        """The weight of a client's own gradient in a local step (1: there is no shared momentum)."""
        if self.shared_momentum == AUTO:
            return SHARED if self.work == "local" else 1.0
        return 1.0 if self.shared_momentum == "off" else float(self.shared_momentum)

    @property
    def most_steps(self) -> int:
        """Local steps from a common model up to which a client goes on without a verdict (0: it rests).

        A masked update has as many steps as was agreed, or fewer: its reach is bounded by them.

        >>> RunConfig(work="local", gate_every=8, max_gap=4).most_steps
        32
        """
        rests = self.measure == "gradient" or self.secrecy == "masked"
        if self.work != "local" or self.lockstep == "on" or (self.lockstep == AUTO and rests):
            return 0
        return self.round_steps * (self.max_gap or self.rounds)

    @property
    def chosen_gate(self) -> str:
        """The gate's name, auto settled."""
        if self.gate == AUTO:
            return default_gate(self.work)
        return self.gate

    @property
    def measure(self) -> Measure:
        """What the gate needs from clients."""
        return gate_named(self.chosen_gate).measure

    def new_gate(self) -> Gate[Any]:
        """Return the gate that these settings describe."""
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
        """Return the aggregation rule that these settings describe."""
        return make_rule(self.aggregator, self.aggregator_options)

    @property
    def _budget(self) -> float | None:
        return None if self.gate_budget == AUTO else float(self.gate_budget)

    def told_of_skips(self, skipped: int, rounds: int) -> str:
        """Return what to say of rounds that the gate skipped: how many, and by which setting; else nothing.

        >>> RunConfig(work="local", gate_budget=0.1).told_of_skips(11, 12)[:76]
        '11 of 12 rounds were skipped by the gate (drift, gate-budget 0.1 of the roun'
        >>> RunConfig(work="local", gate="every", gate_period=4).told_of_skips(9, 12)
        '9 of 12 rounds were skipped by the gate (every, gate-period 4)'
        """
        if not skipped:
            return ""
        gate = self.new_gate()
        by = ", ".join(filter(None, (self.chosen_gate, gate.told())))
        said = f"{skipped} of {rounds} rounds were skipped by the gate ({by})"
        return f"{said}: {gate.advice}" if gate.advice else said

    @property
    def shape(self) -> bytes:
        """The hash of all that shapes an update: the members of a masked exchange must have it in common."""
        shaping = {name: getattr(self, name) for name in SHAPING}
        if self.schedule != "constant":  # its end is that of the run
            shaping["rounds"] = self.rounds
        return hashlib.sha256(json.dumps(shaping, sort_keys=True).encode()).digest()

    def rate_share(self, step: int) -> float:
        """Return the share of the full learning rate at this local step of the run, counted from 0.

        Steps, never samples: a slow client's step is then as long as everybody's.

        >>> [RunConfig(warmup_steps=4).rate_share(step) for step in (0, 3, 9)]
        [0.25, 1.0, 1.0]
        """
        warm = min(1.0, (step + 1) / self.warmup_steps) if self.warmup_steps else 1.0
        if self.schedule == "constant":
            return warm
        return warm * 0.5 * (1.0 + math.cos(math.pi * min(1.0, step / (self.rounds * self.round_steps))))

    @classmethod
    def read(cls, table: Mapping[str, object]) -> "RunConfig":
        """Return the settings in `table` over the defaults; dashes and underscores are the same."""
        hints = get_type_hints(cls)
        values: dict[str, Any] = {}
        for key, value in table.items():
            name = key.replace("-", "_")
            if name not in hints:
                now = RENAMED.get(name)
                hint = f"; it is now {now}" if now else nearest(name, hints)
                raise BadSetting(f"unknown setting {key!r}{hint}")
            if name in values:
                raise BadSetting(f"setting {name}: saw it with dashes and with underscores, needed it once")
            values[name] = _as_float(value) if _takes_float(value, hints[name]) else value
        return cls(**values)

    def table(self) -> dict[str, str | int | float]:
        """Return the flat table that `read` takes back."""
        return {each.name.replace("_", "-"): getattr(self, each.name) for each in fields(self)}

    @classmethod
    def explained(cls) -> tuple[tuple[str, object, str], ...]:
        """Return (name, default, what it says) of every setting; installed gates say what they do."""
        more = {"gate": f"; {summaries()}", "aggregator": f"; {rule_summaries()}"}
        return tuple(
            (each.name, each.default, each.metadata["says"] + more.get(each.name, "")) for each in fields(cls)
        )


def _choices(hint: Any) -> tuple[Any, ...]:
    if get_origin(hint) is Literal:
        return get_args(hint)
    return ()


def _members(hint: Any) -> tuple[Any, ...]:
    is_union = get_origin(hint) is not None and get_origin(hint) is not Literal
    return get_args(hint) if is_union else (hint,)


def _is(value: object, hint: Any) -> bool:
    for member in _members(hint):
        if _choices(member):
            if isinstance(value, str) and value in _choices(member):
                return True
        elif type(value) is member:
            return True
    return False


def _as_float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _takes_float(value: object, hint: Any) -> bool:
    return type(value) is int and float in _members(hint)


def _wanted(hint: Any) -> str:
    names = []
    for member in _members(hint):
        names += [repr(choice) for choice in _choices(member)] or [member.__name__]
    return " or ".join(names)
