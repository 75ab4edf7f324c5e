"""The arms of the training benchmarks, each a table of settings for `run`.

    BSP              all clients sync at every step (identical to relative change with delta 0)
    FedAvg           a fixed period; an exchange waits for six of eight and drops the others' work
    FedAvgM          the same, with momentum on the server (Hsu et al., arXiv 1909.06335)
    FedCM            the same, with shared momentum (Xu et al., arXiv 2106.10874)
    ..., wait        the same, waiting for all eight
    DiLoCo           the same, with Nesterov's momentum on the server (Douillard et al., arXiv 2311.08105)
    shuffle once     FedCM after the data was redistributed at random, each sample on one client
    5% shared        a twentieth of all samples is on every client (Zhao et al., arXiv 1806.00582)
    relative change  SelSync as published, on private data (arXiv 2307.07950)
    injected         the same, with half of the clients sharing half of their batch at each step
    QSR              periods by the learning rate, under a cosine (arXiv 2310.14423)
    gradient code    every chunk with three clients, one step a round (Tandon et al., arXiv 1612.03301),
                     with fedgc's placement and code for one block
    FedProx          partial steps count, as published, and a proximal term of this weight (arXiv 1812.06127)
    SCAFFOLD         control variates (arXiv 1910.06378), beside the model in each transfer
    TimelyFL         slow clients train the layers next to the output (arXiv 2304.06947; see `local_rules`)
    grace window     a quorum, a grace window for clients that are nearly done, no shared momentum
                     (Decoupled DiLoCo, arXiv 2604.21428, which merges by tokens; here by samples, which is
                     better under skew)
    ours             partial steps count, as do steps done while waiting for a decision; shared momentum;
                     fixed periods, drift and loss-change at several budgets, and pace (the schedule of the
                     drift budget, without a measure: the null arm); on private or scattered data, in 32, 8
                     or 4 bits; and momentum of 0.5 on the server in place of the shared one
    ours, planned    the quorum, and whether late updates count, as `fedgc plan` says; 8 bits in both
                     directions, or float32

    SSP              every step is sent, and a client is at most a fixed number of steps ahead of the slowest
                     (Ho et al., NIPS 2013)
    FedBuff          every client runs at its own pace; four updates make a model (arXiv 2106.06639)

The last two are trained by `benchmarks.asynchronous`, all others by `run`.

`run` counts partial steps; in an arm that drops them unfinished clients send nothing (`Terms.partial`). Each
arm is tuned over five rates, each twice the one before.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from benchmarks.asynchronous import Bounded, Buffered, Rule
from benchmarks.local_rules import LocalRule, Proximal, Scaffold, Timely
from benchmarks.scene import CLIENTS
from fedgc.codecs import EXACT, share_of
from fedgc.config import RunConfig
from fedgc.tuner.local_rounds import LocalClients, choose_rounds

COPIES: Final = 3  # of each chunk in coded arms
LOOK: Final = 8  # steps between two checks of the gate
QUORUM: Final = 0.75
RATES: Final = {"sgd": 0.1, "adam": 0.0005}  # the least of the five rates of plain steps
RATE_STEPS: Final = 5
LED: Final = 4.0  # factor on the rate with shared momentum
PUSHED: Final = 0.5  # the server's momentum
PIECES: Final = 32  # chunks of a client's samples, if they may move
ALONE: Final[Mapping[str, Any]] = {"shared_momentum": "off"}
INJECTED: Final[Mapping[str, Any]] = {
    "placement": "cyclic", "replicas": 1, "inject_clients": 0.5, "inject_share": 0.5
}  # fmt: skip
OUTER: Final[Mapping[str, Any]] = {
    "quorum": 1.0, "server_optimizer": "nesterov", "server_momentum": 0.9, "server_learning_rate": 0.7
}  # fmt: skip
QSR_GROWTH: Final = 6.0  # (6 / 1)^2 = 36 steps at the full rate


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to train, with its defining settings."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    ours: bool = False
    partial: bool = True
    moves: bool = False
    shared: float = 0.0
    tenth: bool = False  # whether its budget is a tenth of BSP's bytes
    rule: Rule | None = None  # of an asynchronous server
    local_rule: LocalRule | None = None  # of the local steps, if they are not plain or fedgc's
    planned: bool = False  # whether quorum and late updates are those of `fedgc plan`, for each seed

    @property
    def coded(self) -> bool:
        """Return whether chunks are trained separately."""
        return self.settings.get("work") == "coded"

    @property
    def vectors(self) -> int:
        """Return how many vectors of the model's size travel in each transfer."""
        return 1 if self.local_rule is None else self.local_rule.vectors

    @property
    def look(self) -> int:
        """Return the steps between two checks of the gate."""
        return int(self.settings.get("local_steps", LOOK))

    @property
    def period(self) -> int:
        """Return the local steps between two exchanges, or between two checks of a gate that may skip."""
        return self.look * int(self.settings.get("gate_period", 1))

    def with_local_steps(self, steps: int) -> "Arm":
        """Return the arm with an exchange after each so many local steps."""
        settings = {name: value for name, value in self.settings.items() if name != "gate_period"}
        return replace(self, settings={**settings, "gate": "every", "local_steps": steps})

    def planned_for(self, known: LocalClients) -> "Arm":
        """Return the arm with the rounds that `fedgc plan` names for clients of which this is known."""
        down, up = (share_of(self.settings.get(each, EXACT)) for each in ("download_codec", "codec"))
        clients = replace(known, down_s_w=down * known.down_s_w, up_s_w=up * known.up_s_w)
        choice = choose_rounds(clients, self.look)
        late = "count" if choice.way == "late" else "wait"
        return replace(self, settings={**self.settings, "quorum": choice.chosen.quorum, "late_updates": late})

    def rates(self, optimizer: str) -> tuple[float, ...]:
        """Return the rates to tune over, the middle ones first."""
        factor = 1.0 if self.settings.get("shared_momentum") == "off" else LED
        factor *= PUSHED if "server_momentum" in self.settings else 1.0
        rates = [RATES[optimizer] * factor * 2.0**at for at in range(RATE_STEPS)]
        middle = (RATE_STEPS - 1) / 2
        return tuple(sorted(rates, key=lambda rate: abs(rates.index(rate) - middle)))

    def config(self, steps: int, rate: float, seed: int, model_bytes: int) -> RunConfig:
        """Return the settings of a run of this many steps."""
        values: dict[str, Any] = {
            "work": "local", "rounds": steps // self.look, "local_steps": LOOK, "quorum": QUORUM,
            "patience": 0.0, "batch_size": 32, "learning_rate": rate, "min_clients": CLIENTS, "seed": seed,
            "device": "cpu", "evaluate_every": 16 if self.look == 1 else 1, "gate": "every", "max_gap": 0,
            "replicas": COPIES, "threads": 1, "lockstep": "auto" if self.ours else "on",
            "aggregator": "auto" if self.ours else "weighted-mean",
        }  # fmt: skip
        values |= self.settings
        if values["gate"] == "qsr":
            values["gate_options"] = f"base={LOOK}, growth={QSR_GROWTH * rate}"
        if self.tenth:
            bsp = steps * CLIENTS * 2 * model_bytes
            values |= {"gate_budget_unit": "megabytes", "gate_budget": bsp / 10 / 1e6}
        return RunConfig(**values)


def _bsp() -> Arm:
    return Arm("BSP", {**ALONE, "local_steps": 1, "quorum": 1.0})


def _fixed(period: int, **others: Any) -> dict[str, Any]:  # noqa: ANN401  settings are of any kind
    return {"gate": "every", "gate_period": period, **others}


def _drift(budget: float, **others: Any) -> dict[str, Any]:  # noqa: ANN401  the same
    return {"gate": "drift", "gate_budget": budget, "max_gap": 32, **others}


def _relative(delta: float, name: str = "", **others: Any) -> Arm:  # noqa: ANN401  the same
    settings = {
        **ALONE,
        "gate": "relative-change",
        "gate_options": f"delta={delta}",
        "local_steps": 1,
        "quorum": 1.0,
    }
    return Arm(f"relative change {delta:g}{name}", {**settings, **others})


BSP: Final = _bsp()
BASELINES: Final = (
    *(Arm(f"FedAvg {LOOK * p}", _fixed(p, **ALONE), partial=False) for p in (1, 4, 16)),
    Arm("FedAvgM", _fixed(4, **ALONE, server_momentum=0.9), partial=False),
    Arm("FedAvg 32, wait", _fixed(4, **ALONE, quorum=1.0), partial=False),
    Arm("FedCM, drop", _fixed(4), partial=False),
    Arm("FedCM, wait", _fixed(4, quorum=1.0), partial=False),
    Arm("DiLoCo", _fixed(4, **ALONE, **OUTER), partial=False),
    *(_relative(delta) for delta in (0.1, 0.3, 1.0)),
    _relative(0.1, ", injected", **INJECTED),
    Arm("QSR", {**ALONE, "gate": "qsr", "schedule": "cosine", "max_gap": 32}),
    Arm("grace window", _fixed(4, **ALONE, patience=1.0)),
    Arm("SSP 16", {**ALONE, "local_steps": 1}, rule=Bounded(16)),
    Arm("FedBuff", {**ALONE, "local_steps": 4 * LOOK}, rule=Buffered(4)),
)
CODED: Final = Arm("gradient code", {"work": "coded", "local_steps": 1, **ALONE, "blocks": 1}, moves=True)
LOCAL_RULES: Final = (
    *(Arm(f"FedProx {mu:g}", _fixed(4, **ALONE), local_rule=Proximal(mu)) for mu in (0.01, 0.1, 1.0)),
    Arm("SCAFFOLD, drop", _fixed(4, **ALONE), partial=False, local_rule=Scaffold()),
    Arm("SCAFFOLD, wait", _fixed(4, **ALONE, quorum=1.0), partial=False, local_rule=Scaffold()),
    Arm("TimelyFL", _fixed(4, **ALONE, quorum=1.0), partial=False, local_rule=Timely(6)),
    Arm("shuffle once, drop", _fixed(4, placement="shuffled-once"), partial=False, moves=True),
    Arm("5% shared", _fixed(4, **ALONE), shared=0.05),
)
PLANNED: Final = (
    Arm("ours, planned", _fixed(1, codec="int8", download_codec="int8"), ours=True, planned=True),
    Arm("ours, planned, float32", _fixed(1), ours=True, planned=True),
)
SCATTERED: Final = {"placement": "scattered"}
OURS: Final = (
    *(Arm(f"ours, fixed {LOOK * p}", _fixed(p), ours=True) for p in (4, 8)),
    *(
        Arm(f"ours, server momentum, fixed {LOOK * p}", _fixed(p, **ALONE, server_momentum=0.5), ours=True)
        for p in (4, 8)
    ),
    *(Arm(f"ours, drift {b:g}", _drift(b), ours=True) for b in (0.5, 0.25, 0.125)),
    *(Arm(f"ours, pace {b:g}", {**_drift(b), "gate": "pace"}, ours=True) for b in (0.25, 0.125)),
    *(
        Arm(f"ours, loss-change {b:g}", {**_drift(b), "gate": "loss-change"}, ours=True)
        for b in (0.25, 0.125)
    ),
    Arm("ours, drift, a tenth of BSP's bytes", _drift(1.0), ours=True, tenth=True),
    *(Arm(f"ours, drift 0.25, {bits} bits", _drift(0.25, codec=f"int{bits}"), ours=True) for bits in (8, 4)),
    *(
        Arm(f"ours, scattered, drift {b:g}", _drift(b, **SCATTERED), ours=True, moves=True)
        for b in (0.25, 0.08)
    ),
)
ARMS: Final = (BSP, *BASELINES, *OURS)  # of `python -m benchmarks gate`


def named(*names: str) -> tuple[Arm, ...]:
    """Return the arms with these names."""
    by_name = {arm.name: arm for arm in (*ARMS, CODED, *LOCAL_RULES, *PLANNED)}
    return tuple(by_name[name] for name in names)
