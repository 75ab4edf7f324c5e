"""What a sweep tries, from a TOML file: settings for all, a grid of settings, scenarios, seeds.

rounds = 60
seeds = 3
model-mb = 4.0

[settings]
local-steps = 16

[grid]                                   # every combination of these
"timing.quorum" = [0.5, 0.75, 1.0]
"links.codec" = ["float32", "int8"]

[scenarios.ward]                         # clients of a model or a trace, as the options of `fedgc sim`
clients = 20
model = "bimodal-persistent"
uplink-mb-s = [12.5, 1.0]
unit-steps = 16                          # local steps in a unit of the model's time, about a second

[scenarios.spring]                       # the clients of a recorded run
like = "run-20260101-120000-1"
"""

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, Final

from fedgc.config import RunConfig
from fedgc.config.fields import Value
from fedgc.config.names import dashed, flat
from fedgc.config.training_settings import LOCAL_STEPS
from fedgc.errors import BadSetting, nearest
from fedgc.run.figure_names import direction_of
from fedgc.sim.simulate import Request

MOST_RUNS: Final = 2000
ROUNDS: Final = 40
MODEL_MB: Final = 50.0
RETURNS_S: Final = 30.0
SETS: Final = {
    "rounds": "rounds at the top of the file",
    "seed": "seeds at the top of the file",
    "min-clients": "clients in a scenario, as all of them take part from the beginning",
}
SMALL: Final = 0.001  # megabytes of the smallest model
TOP: Final = (
    "rounds", "seeds", "model-mb", "train", "figure", "target", "stack", "settings", "grid", "scenarios",
)  # fmt: skip
OF_MODELS: Final = (
    "clients", "model", "trace", "links", "uplink-mb-s", "downlink-mb-s", "server-mb-s", "latency-s",
)  # fmt: skip
SIMULATED: Final = {"client.app": "fedgc", "script": "", "site.gateway": ""}
WITHOUT_EFFECT: Final = (("trace", "model"), ("links", "uplink-mb-s"), ("links", "downlink-mb-s"))
TEXTS: Final = ("model", "trace", "links")
OF_SCENARIOS: Final = (*OF_MODELS, "unit-steps", "returns-s", "like")
Settings = Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class SweepScenario:
    """Clients by name: modelled ones of a request, or (`like`) those of a recorded run."""

    name: str
    request: Request
    unit_steps: int
    returns_s: float
    like: str = ""


@dataclass(frozen=True, slots=True)
class Goal:
    """The task that is trained, and the value of one of its figures that runs are to reach."""

    task: str
    figure: str
    target: float
    stack: int = 1  # clients that are trained as one batch of models

    def is_reached(self, value: float) -> bool:
        """Whether a model with this value has reached the target.

        >>> Goal("digits", "loss", 0.5).is_reached(0.4), Goal("digits", "accuracy", 0.5).is_reached(0.4)
        (True, False)
        """
        return value <= self.target if direction_of(self.figure) == "lowest" else value >= self.target


@dataclass(frozen=True, slots=True)
class Sweep:
    """What is tried: each of `combinations`, on every scenario and with every seed."""

    rounds: int
    seeds: int
    model_mb: float
    common: Settings
    combinations: tuple[Settings, ...]
    scenarios: tuple[SweepScenario, ...]
    goal: "Goal | None" = None

    def config(self, combination: Settings, seed: int) -> RunConfig:
        """Return the settings of one run."""
        rounds = {"rounds": self.rounds, "seed": seed}
        return RunConfig.read({**self.common, **combination, **rounds})


def read_sweep(path: Path) -> Sweep:
    """Return the sweep of a file; raise BadSetting with one line for what is wrong in it."""
    try:
        values = tomllib.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise BadSetting(f"sweep {path.name}: cannot be read: {reason}") from error
    table = _Table(f"sweep {path.name}", values, TOP)
    grid, scenarios = dict(flat(table.of("grid"))), table.of("scenarios")
    for name, tried in grid.items():
        if not isinstance(tried, list) or not tried:
            raise BadSetting(f"{table.where}, grid: saw {name} = {tried!r}, needed a list of values")
    common = dict(flat(table.of("settings")))
    for name in SETS.keys() & {dashed(each) for each in (*grid, *common)}:
        raise BadSetting(f"{table.where}: saw the setting {name}, needed {SETS[name]}")
    if not scenarios:
        raise BadSetting(f"{table.where}: saw no scenario, needed a table [scenarios.NAME]")
    seeds = table.count("seeds", 1)
    runs = prod(map(len, grid.values())) * len(scenarios) * seeds
    if runs > MOST_RUNS:
        raise BadSetting(f"{table.where}: saw {runs} runs, needed at most {MOST_RUNS}")
    names = [dashed(name) for name in grid]
    sweep = Sweep(
        table.count("rounds", ROUNDS),
        seeds,
        table.number("model-mb", MODEL_MB, SMALL),
        {dashed(name): value for name, value in common.items()},
        tuple(dict(zip(names, values, strict=True)) for values in product(*grid.values())),
        tuple(_scenario(table, name, scenarios) for name in scenarios),
        _goal(table),
    )
    return _checked(table.where, sweep)


def _checked(where: str, sweep: Sweep) -> Sweep:
    """Return a sweep whose settings are valid, and can be played."""
    if sweep.goal is not None and any(each.like for each in sweep.scenarios):
        raise BadSetting(f"{where}: saw train and a scenario with like, needed modelled clients to train")
    for combination in sweep.combinations:
        try:
            config = sweep.config(combination, seed=0)
            must_be_simulated(config)
        except BadSetting as error:
            raise BadSetting(f"{where}: {error}") from error
        if config.secrecy == "masked":
            raise BadSetting(f"{where}: saw secrecy = masked, needed open: keys are not simulated")
        if config.fragments > 1:
            raise BadSetting(
                f"{where}: saw links.fragments = {config.fragments}, needed 1: whole models are simulated"
            )
    return sweep


def must_be_simulated(config: RunConfig) -> None:
    """Refuse settings of a run whose clients are not simulated."""
    for name, needed in SIMULATED.items():
        if (seen := config.table()[name]) != needed:
            raise BadSetting(f"setting {name}: saw {seen} in a simulation, needed {needed or 'none'}")


def _goal(table: "_Table") -> Goal | None:
    if "train" not in table.values:
        if alone := {"figure", "target", "stack"} & table.values.keys():
            raise BadSetting(f"{table.where}: saw {min(alone)} without train, needed a task to train")
        return None
    if "model-mb" in table.values:
        raise BadSetting(f"{table.where}: saw model-mb and train, needed one: the task has the model")
    if "target" not in table.values:
        raise BadSetting(f"{table.where}: saw train without target, needed the value that runs are to reach")
    figure = table.text("figure") if "figure" in table.values else "accuracy"
    stack = table.count("stack", 1)
    return Goal(table.text("train"), figure, table.number("target", 0.0, SMALL), stack)


def _scenario(table: "_Table", name: str, scenarios: Mapping[str, Any]) -> SweepScenario:
    """Return the scenario of this name."""
    if not isinstance(scenarios[name], dict):
        raise BadSetting(f"{table.where}: saw scenarios.{name} = {scenarios[name]!r}, needed a table")
    own = _Table(f"{table.where}, scenario {name}", scenarios[name], OF_SCENARIOS)
    like = own.values.get("like", "")
    if not isinstance(like, str) or (like and len(own.values) > 1):
        raise BadSetting(
            f"{own.where}: saw like = {like!r} and {len(own.values) - 1} more, needed one run alone"
        )
    for chosen, unused in WITHOUT_EFFECT:
        if {chosen, unused} <= own.values.keys():
            raise BadSetting(f"{own.where}: saw {chosen} and {unused}, needed one of them")
    given: dict[str, Any] = {}
    for key in set(OF_MODELS) & own.values.keys():
        given[key.replace("-", "_")] = own.text(key) if key in TEXTS else own.numbers(key)
    given |= {key: Path(given[key]) for key in ("trace", "links") if key in given}
    given |= {
        "rounds": table.count("rounds", ROUNDS),
        "model_mb": table.number("model-mb", MODEL_MB, SMALL),
    }
    try:
        request = Request(**given, replicas=1)
    except BadSetting as error:
        raise BadSetting(f"{own.where}: {error}") from error
    unit_steps = own.count("unit-steps", LOCAL_STEPS)
    return SweepScenario(name, request, unit_steps, own.number("returns-s", RETURNS_S, least=0), like)


@dataclass(frozen=True, slots=True)
class _Table:
    """A table of the file whose keys are known."""

    where: str
    values: Mapping[str, Any]
    names: Sequence[str]

    def __post_init__(self) -> None:
        for name in self.values:
            if name not in self.names:
                raise BadSetting(f"{self.where}: unknown key {name!r}{nearest(name, self.names, self.names)}")

    def of(self, name: str) -> Mapping[str, Any]:
        """Return a table in this one."""
        found = self.values.get(name, {})
        if not isinstance(found, dict):
            raise BadSetting(f"{self.where}: saw {name} = {found!r}, needed a table")
        return found

    def text(self, name: str) -> str:
        """Return a text."""
        found = self.values[name]
        if not isinstance(found, str):
            raise BadSetting(f"{self.where}: saw {name} = {found!r}, needed text")
        return found

    def numbers(self, name: str) -> float | tuple[float, ...]:
        """Return a number, or several in a list."""
        found = self.values[name]
        each = found if isinstance(found, list) and name.endswith("link-mb-s") else [found]
        if not each or not all(isinstance(one, int | float) and not isinstance(one, bool) for one in each):
            raise BadSetting(f"{self.where}: saw {name} = {found!r}, needed a number")
        if name == "clients":
            return self.count(name, 1)
        return tuple(each) if isinstance(found, list) else float(found)

    def count(self, name: str, default: int) -> int:
        """Return a whole number of at least 1."""
        found = self.number(name, default)
        if found != int(found):
            raise BadSetting(f"{self.where}: saw {name} = {found:g}, needed a whole number")
        return int(found)

    def number(self, name: str, default: float, least: float = 1) -> float:
        """Return a number."""
        found = self.values.get(name, default)
        if isinstance(found, bool) or not isinstance(found, int | float) or not least <= found < math.inf:
            raise BadSetting(f"{self.where}: saw {name} = {found!r}, needed a number of at least {least:g}")
        return float(found)
