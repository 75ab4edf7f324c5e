"""The settings of a run: the name, default, meaning and allowed values of each.

`RunConfig` (run_config.py) adds derived values. In tables (`pyproject.toml`, `--set`) a setting has the first
name, for example `gate.budget`; in Python it is the field, `gate_budget`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from fedgc.aggregators import BOUNDED, PLAIN
from fedgc.codecs import EXACT
from fedgc.config.fields import (
    AUTO,
    NAME_NEEDS,
    TASK,
    All,
    Auto,
    Value,
    count,
    is_name,
    not_negative,
    positive,
    setting,
    share,
)
from fedgc.config.partition import NEEDS as PARTITION_NEEDS
from fedgc.config.partition import Partition
from fedgc.config.task_settings import TaskSettings

LOCAL_STEPS = 16
CODED_STEPS = 4
FRAME = "frame"
SHARED = 0.1  # weight of a client's own gradient beside the shared momentum: no effect from 0.05 to 0.2


@dataclass(frozen=True, slots=True)
class Settings:
    """Every setting of a run, unchecked."""

    # Model and training
    run: str = setting("run", "", "the run's name in the store (empty: generated)", is_name, NAME_NEEDS)
    resume: str = setting(
        "resume",
        "",
        "the name of a run to resume from its last checkpoint",
        lambda v: not v.startswith(".") and "/" not in v,
        "a run's name, not a path",
    )
    task: str = setting("task", "digits", "a shipped task's name, or module:attribute of your own")
    script: str = setting(
        "script",
        "",
        "a training script of your own in place of a task: a Python file, a notebook or a launcher's command "
        "line, started by each client (empty: the task is trained)",
    )
    rounds: int = setting("rounds", 20, "rounds to run", count, "at least 1")
    work: Literal["local", "coded"] = setting(
        "work",
        "local",
        "local: each client trains one model on all of its data, and any number of steps counts; "
        "coded: each chunk of shared data is trained by itself, and any client that holds it may send it",
    )
    local_steps: int | Auto = setting(
        "local-steps",
        AUTO,
        "local work: the optimizer steps after which a client is done with a round; a slower client counts "
        "with fewer, and a client that waits for others goes on to more, unless gate.lockstep is on. Coded "
        f"work: the optimizer steps on each chunk, exactly. auto: {LOCAL_STEPS} in local work, {CODED_STEPS} "
        "in coded",
        count,
        "at least 1, or auto",
    )
    batch_size: int = setting("batch-size", 32, "samples in one local step", count, "at least 1")
    learning_rate: float = setting("learning-rate", 0.1, "of the local steps", positive, "above 0")
    schedule: Literal["constant", "cosine"] = setting(
        "optimizer.schedule",
        "constant",
        "schedule of the learning rate over the local steps of the whole run, rounds times local-steps; "
        "cosine: falls to 0 at their end",
    )
    warmup_steps: int = setting(
        "optimizer.warmup-steps",
        0,
        "local steps in which the learning rate rises to its full height",
        not_negative,
        "0 or more",
    )
    shared_momentum: float | Literal["off", "auto"] = setting(
        "optimizer.shared-momentum",
        AUTO,
        f"weight of a client's own gradient in a local step, the rest is the last common step; auto: {SHARED}"
        " for local work with a task; off with a script, fragments, a sample of clients and for coded work",
        share,
        "above 0 and at most 1, off or auto",
    )
    server_optimizer: Literal["sgd", "nesterov", "schedule-free", "adam", "adamw", "adagrad", "rmsprop"] = (
        setting("optimizer.server", "sgd", "torch optimizer that applies the mean update")
    )
    server_learning_rate: float = setting(
        "optimizer.server-learning-rate",
        1.0,
        "of the server's optimizer (sgd at 1.0 is averaging)",
        positive,
        "above 0",
    )
    server_momentum: float = setting(
        "optimizer.server-momentum",
        0.0,
        "of the server's sgd, nesterov or schedule-free (0: for the last two 0.9)",
        lambda v: 0 <= v < 1,
        "0 or more, below 1",
    )
    seed: int = setting("seed", 0, "the root of every random choice", not_negative, "0 or more")
    task_settings: Mapping[str, Value] = field(
        default_factory=TaskSettings, metadata={"key": TASK, "says": "settings of the task's own"}
    )

    # Data and code
    chunks: int = setting(
        "data.chunks", 16, "chunks of the shared data, if the task allows a choice", count, "at least 1"
    )
    partition: str = setting(
        "data.partition",
        "iid",
        "how fedgc.over and the shipped tasks divide samples into chunks: iid; dirichlet:ALPHA, by label; "
        "quantity:ALPHA, uneven sizes; shards:COUNT, so many of the samples sorted by label; owner",
        Partition.allows,
        PARTITION_NEEDS,
    )
    placement: Literal["private", "scattered", "shuffled-once", "cyclic"] = setting(
        "data.placement",
        "private",
        "local work: which chunks a client trains on. private: its own; if every client can load every "
        "chunk, as with fedgc.over, an equal share of them. The others need a task with may_move. scattered: "
        "each chunk on code.replicas random clients. shuffled-once: each chunk on one random client. cyclic: "
        "as many equal shares as there are clients, and code.replicas neighboring shares on each client",
    )
    inject_clients: float = setting(
        "data.inject-clients",
        0.0,
        "local work, where the task lets data move: share of the clients that at each step give samples to "
        "all (0: none; SelSync's alpha)",
        lambda v: 0 <= v <= 1,
        "0 to 1",
    )
    inject_share: float = setting(
        "data.inject-share",
        0.5,
        "how much of its batch each of them gives (SelSync's beta)",
        share,
        "above 0 and at most 1",
    )
    code: str = setting(
        "code.name", FRAME, "coded work: the gradient code; frame: well conditioned, gaussian: as published"
    )
    replicas: int | Auto = setting(
        "code.replicas",
        AUTO,
        "clients that hold each chunk (fewer clients: all of them); auto: in coded work chosen by the tuner "
        "from the speed history, 3 without history and in local work",
        count,
        "at least 1, or auto",
    )
    blocks: int | Auto = setting(
        "code.blocks",
        AUTO,
        "a codeword is 1/blocks of an update; each chunk needs as many replicas; auto: the tuner may fix it "
        "before a round, otherwise each round decides when its training ends",
        count,
        "at least 1, or auto",
    )
    min_clients: int = setting(
        "min-clients",
        2,
        "clients needed to begin or resume a run; after its first round fewer may remain; `fedgc run` waits "
        "for all clients that it starts, unless this is set",
        count,
        "at least 1",
    )
    start_timeout_s: float = setting(
        "timing.start-timeout-s",
        120.0,
        "how long to wait for min-clients (later: for any client) before the run ends",
        positive,
        "above 0",
    )

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
        "largest relative error that the numbers on the wire may cause in a sum (int8 needs 0.011 and more)",
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

    # Gate
    gate: str | Auto = setting(
        "gate.name",
        AUTO,
        "which rounds are exchanged; auto: the default of the kind of work; every with fragments",
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

    # Clients
    device: str = setting("client.device", AUTO, "cpu, cuda, cuda:0, mps; auto: the best there is")
    precision: Literal["float32", "bf16"] = setting(
        "client.precision", "float32", "bf16: local steps under autocast"
    )
    threads: int = setting(
        "client.threads",
        0,
        "CPU threads of a client's engine (0: torch decides; clients on one machine share its cores)",
        not_negative,
        "0 or more",
    )
    memory_mb: int = setting(
        "client.memory-mb",
        1024,
        "finished updates a client keeps in memory before it spills to disk",
        count,
        "at least 1",
    )

    # Links
    client_app: Literal["fedgc", "stock"] = setting(
        "client.app",
        "fedgc",
        "stock: unmodified Flower ClientApps, which are sent Flower's own train and evaluate messages",
    )
    link: Literal["auto", "session", "messages"] = setting(
        "links.kind",
        AUTO,
        "session: one lasting connection per client; messages: Flower messages alone; "
        "auto: sessions, and messages for each client whose session does not connect",
    )
    connect_s: float = setting(
        "links.connect-s",
        10.0,
        "how long a client tries to connect its session before it falls back to messages",
        positive,
        "above 0",
    )
    bind: str = setting(
        "links.bind", "127.0.0.1:0", "address the session listener binds to (port 0: any free one)"
    )
    advertise: str = setting("links.advertise", "", "address that clients connect to (empty: the bound one)")
    authority: str = setting(
        "links.authority",
        "",
        "file of the authority that signed the proxy's certificate, for a proxy that terminates TLS "
        "(empty: the listener's own certificate)",
    )
    lease_s: float = setting(
        "links.lease-s", 3600.0, "a session's life before it is renewed", positive, "above 0"
    )
    grace_s: float = setting(
        "links.grace-s", 10.0, "how long a broken session may take to come back", positive, "above 0"
    )
    codec: str = setting(
        "links.codec", EXACT, "local work: how an update travels; its options follow the name"
    )
    download_codec: Literal["float32", "int8"] = setting(
        "links.download-codec",
        EXACT,
        "how a new model travels to a client that has the one before; int8: as the difference from it, in 8 "
        "bits, whose error the server adds to the next difference (a client without that model gets all of "
        "it as float32)",
    )
    fragments: int = setting(
        "links.fragments",
        1,
        "local work: parts of the model that rounds exchange in turn, while clients train on (Streaming "
        "DiLoCo); 1: every round exchanges all of it",
        count,
        "at least 1",
    )
    fragment_mixing: float = setting(
        "links.fragment-mixing",
        0.5,
        "with fragments: share of a client's own values in a part of the new model that arrives after the "
        "client has trained on",
        lambda v: 0 <= v <= 1,
        "0 to 1",
    )
    upload_slots: int = setting(
        "links.upload-slots", 2, "clients that upload at the same time", count, "at least 1"
    )
    piece_kb: int = setting(
        "links.piece-kb",
        1024,
        "size of the pieces in which vectors travel",
        lambda v: 1 <= v <= 4096,
        "1 to 4096",
    )
    lines_per_s: float = setting(
        "quota.lines-per-s",
        5000.0,
        "control lines that one client may send a second, and ten times as many at once; a client that sends "
        "more is excluded for a while",
        positive,
        "above 0",
    )
    bytes_per_s: float = setting(
        "quota.bytes-per-s",
        4e6,
        "bytes of control lines that one client may send a second; vectors are not counted",
        positive,
        "above 0",
    )

    # Secrecy between sites
    secrecy: Literal["open", "masked"] = setting(
        "secrecy", "open", "masked: the server learns sums over sites, no update of one; needs a descriptor"
    )
    federation: str = setting("federation", "", "masked: the descriptor's file, on the server")

    # What models are worth
    best: str = setting(
        "validate.best", "", "the figure by which the best model of the run is chosen (empty: none is chosen)"
    )
    best_is: Literal["auto", "highest", "lowest"] = setting(
        "validate.best-is",
        AUTO,
        "which value of it is best; auto: the lowest of a loss, error or perplexity, else the highest",
    )
    best_patience: int = setting(
        "validate.patience",
        0,
        "evaluations in a row without a better model after which the run stops (0: it does not)",
        not_negative,
        "0 or more",
    )
    validate_only: int | Literal["off"] = setting(
        "validate.only",
        "off",
        "with resume: the version of the model that clients score, without training, as `fedgc evaluate` "
        "asks for it (off: the run trains)",
        not_negative,
        "0 or more, or off",
    )

    # Sites
    site_gateway: str = setting(
        "site.gateway",
        "",
        "file by which the server of a site finds its gateway; the gateway sets it (empty: no site)",
    )

    # History and checkpoints
    evaluate_every: int = setting(
        "history.evaluate-every",
        1,
        "rounds between evaluations on the server (0: never)",
        not_negative,
        "0 or more",
    )
    checkpoint_dir: str = setting(
        "history.checkpoint-dir",
        "",
        "folder of all runs' checkpoints (empty: runs/ beside the default store)",
    )
    keep_checkpoints: int | All = setting(
        "history.keep-checkpoints",
        3,
        "how many of the newest are kept (0: none are written; all: every one)",
        not_negative,
        "0 or more, or all",
    )
    log_file: str = setting(
        "history.log-file", "", "file of the server to add JSON lines to, one a round (empty: none)"
    )
    sinks: str = setting(
        "history.sinks", "", "sinks of other packages to add, by name, with commas between (empty: none)"
    )
    keep_rounds: int = setting(
        "history.keep-rounds",
        10_000,
        "rounds whose client rows the store keeps before it folds them into summaries",
        count,
        "at least 1",
    )
