"""The settings of a round: `[timing]`, `[aggregation]`, `[gate]`, and the numbers of codewords."""

from dataclasses import dataclass
from typing import Literal

from fedgc.aggregators import BOUNDED, PLAIN
from fedgc.config.fields import AUTO, Auto, count, not_negative, positive, setting, share


@dataclass(frozen=True)
class RoundSettings:
    """How long a round waits, what it makes of updates, and whether it is exchanged."""

    __slots__ = ()

    # Time limits and wire format
    deadline_s: float | Auto = setting(
        "timing.deadline-s",
        AUTO,
        "longest time of a round's training, from when clients have the model; after skipped rounds in "
        "proportion longer; auto: from the measured speeds, 600 s without any",
        positive,
        "above 0, or auto",
    )
    upload_deadline_s: float | Auto = setting(
        "timing.upload-deadline-s",
        AUTO,
        "longest wait for updates or codewords after the training; auto: from size and measured uplinks. "
        "Local work: if set, the round waits that long for every update",
        positive,
        "above 0, or auto",
    )
    late_s: float | Auto = setting(
        "timing.late-s",
        AUTO,
        "least time in which an upload has to begin. Local work: once more updates have come than are "
        "missing, a client that has not begun to send is awaited for this time, for four times as long as "
        "the slowest upload of the round took if that is longer, and for its own measured step and uplink "
        "besides; auto: 2, and at least 60 over Flower messages. Coded work: a codeword is late after this "
        "time and after 1.5 times the time in which half of the codewords came, and other clients are asked "
        "to replace it; auto: links.grace-s",
        positive,
        "above 0, or auto",
    )
    quorum: float | Auto = setting(
        "timing.quorum",
        AUTO,
        "local work: share of the clients that must have done their steps before the gate is asked, rounded "
        "up; auto: 0.75, so all of 2 or 3 clients, 3 of 4, 4 of 5",
        share,
        "above 0 and at most 1, or auto",
    )
    patience: float = setting(
        "timing.patience",
        0.25,
        "local work: how much longer, as a share of the time so far, an exchange waits for clients that "
        "are nearly done (0: not at all)",
        not_negative,
        "0 or more",
    )
    wire: Literal["float32", "short"] = setting(
        "code.wire",
        "float32",
        "coded work: numbers of codewords; short: the shortest of float32, bf16, int8 within the error limit",
    )
    error_limit: float = setting(
        "code.error-limit",
        1e-2,
        "largest relative error that the numbers on the wire may cause in a sum, as estimated for normally "
        "distributed numbers (int8 needs 0.011 and more, and errs more where few numbers are much larger)",
        lambda v: 1e-7 <= v <= 1,
        "at least 1e-7 (float32's own rounding), at most 1",
    )

    # Aggregation
    aggregator: str | Auto = setting(
        "aggregation.rule",
        AUTO,
        "local work: the aggregation rule of the clients' updates; "
        f"auto: {BOUNDED}, with masks or stock clients {PLAIN}",
    )
    aggregator_options: str = setting(
        "aggregation.options", "", "the rule's own options, as name=value, name=value"
    )
    clients_per_round: int = setting(
        "aggregation.clients-per-round",
        0,
        "local work: clients that train from a new model, drawn at random without replacement (0: all)",
        not_negative,
        "0 or more",
    )
    largest_share: float = setting(
        "aggregation.largest-share",
        0.5,
        "local work of three or more clients: largest share that clients with more than twice the median of "
        "samples count for together, whatever they announce (1: as announced)",
        share,
        "above 0 and at most 1",
    )
    late_updates: Literal["wait", "count"] = setting(
        "aggregation.late-updates",
        "wait",
        "local work: updates that are not here when timing.quorum of the clients have sent theirs; wait: the "
        "round waits for them, within its limits; count: it ends, and each counts in the round in which it "
        "comes, the more the older its model is, at most 2 times",
    )
    groups: Literal["off", "speed"] = setting(
        "aggregation.groups",
        "off",
        "local work with late updates that count; speed: clients in groups by how long a round takes them, "
        "as the speed history shows; a round ends when timing.quorum of any one group have sent theirs",
    )
    samples: str = setting(
        "aggregation.samples",
        "",
        "local work: the number of samples that a client counts for, whatever it announces, as "
        "CLIENT=samples, CLIENT=samples; a client is named by its name or its identity",
    )
    rollback: Literal["auto", "off"] = setting(
        "aggregation.rollback",
        AUTO,
        "auto: if a new model loses half of what the best one has gained, the run goes on from the best one; "
        "off: never",
    )

    check_outliers: Literal["auto", "on", "off"] = setting(
        "aggregation.check-outliers",
        AUTO,
        "auto: if the task evaluates models, bounded-mean leaves out outliers without which they are better, "
        "and bounds those less with which they are better; on: also with evaluate_fn, which is then called "
        "twice in a round with outliers; off: by their distance alone",
    )

    # Gate
    gate: str | Auto = setting(
        "gate.name",
        AUTO,
        "which rounds are exchanged; auto: the default of the kind of work; every with fragments, "
        "client-level privacy and late updates that count",
    )
    gate_options: str = setting("gate.options", "", "the gate's own options, as name=value, name=value")
    gate_period: int = setting(
        "gate.period", 1, "rounds from one exchange to the next, for gates with a period", count, "at least 1"
    )
    gate_budget: float | Auto = setting(
        "gate.budget",
        AUTO,
        "limit of the cost of exchanges over the whole run, for gates with a budget; auto: a tenth of the "
        "rounds, but no fewer than 20 exchanges (a shorter run has one each round)",
        positive,
        "above 0, or auto",
    )
    gate_budget_unit: Literal["share", "megabytes", "seconds"] = setting(
        "gate.budget-unit",
        "share",
        "unit of gate.budget; share: exchanges as a share of the rounds; megabytes, seconds: of all "
        "exchanges of the run together",
    )
    lockstep: Literal["auto", "on", "off"] = setting(
        "gate.lockstep",
        AUTO,
        "local work: on: a client that has done its steps waits for the gate's decision; off: it goes on "
        "with local steps, for at most gate.max-gap rounds from the last exchange; auto: on with masks, "
        "with privacy of records and with a gate that weighs gradients, else off",
    )
    max_gap: int = setting(
        "gate.max-gap", 32, "rounds after which an exchange is forced (0: never)", not_negative, "0 or more"
    )
    min_gap: int = setting(
        "gate.min-gap", 1, "rounds from one exchange to the next at least", count, "at least 1"
    )
