"""`fedgc plan`: what the tuner would choose for a fleet, and why, before any run.

From the store it is what the next run of the task would begin with, on the devices of the last one: the same
question, history and chance, so the same answer. From a trace it is what these machines would be given.
Without any history there is a plan as well, and it says "no history".

May import: sim.traces, store, tuner and below; rich.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fedgc.cli.view import terminal
from fedgc.config import AUTO, RunConfig
from fedgc.errors import Unusable
from fedgc.flower.app import Setting
from fedgc.history import Speeds
from fedgc.plan import Chunk, Fleet
from fedgc.replay import Line
from fedgc.sim.traces import read_weather
from fedgc.store.database import Store
from fedgc.store.engine import there
from fedgc.store.views import Run
from fedgc.tuner import Advice, Question, advise, advise_for, recall
from fedgc.tuner.past import FLOAT_BYTES

PIECES: Final = 4  # chunks for each device of a trace
NOBODY: Final = 4  # devices that are asked about where nobody was ever seen
MEGABYTE: Final = 1_000_000
SHOWN: Final = 12  # devices whose load is told to people


@dataclass(frozen=True, slots=True)
class Asked:
    """What a person asks for."""

    settings: Mapping[str, Setting]
    run: str | None = None
    trace: Path | None = None
    model_mb: float = 0.0  # 0: as the last run's, or not known
    uplink_mb_s: float = 0.0  # of the devices of a trace; 0: its uploads take no time
    add: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for name in ("model_mb", "uplink_mb_s"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise Unusable(f"{name}: saw {getattr(self, name)}, needed 0 or more")


@dataclass(frozen=True, slots=True)
class Told:
    """The advice, what it was made from, and what the devices call themselves."""

    source: str
    advice: Advice
    question: Question
    names: Mapping[str, str]

    def named(self, text: str) -> str:
        """Return a text with devices by the names that people gave them."""
        for device, name in self.names.items():
            text = text.replace(device, name)
        return text


def run_plan(asked: Asked, *, as_json: bool) -> None:
    """Print what would be chosen."""
    told = _from_trace(asked, asked.trace) if asked.trace else _from_store(asked)
    if as_json:
        sys.stdout.write(json.dumps(_figures(told), indent=1) + "\n")
    else:
        terminal().print(_shown(told))


# ---- the question


def _from_trace(asked: Asked, trace: Path) -> Told:
    weather = read_weather(trace)
    devices = weather[0].devices
    config = RunConfig.read({"chunks": PIECES * devices, "local-steps": 1, **asked.settings})
    pieces = max(1, config.chunks // devices)
    if asked.model_mb and asked.uplink_mb_s:
        up_s_w = np.full(devices, asked.model_mb / asked.uplink_mb_s)
        weather = tuple(replace(each, up_s_w=up_s_w) for each in weather)
    names = [f"device {w}" for w in range(devices)]
    numbers = int(asked.model_mb * MEGABYTE / FLOAT_BYTES)
    question = _question(names, pieces * devices, numbers, replace(config, local_steps=1))
    rng = np.random.default_rng([config.seed, 1])
    advice = advise_for(question, weather, rng, newcomers_s=asked.add)
    return Told(f"trace {trace.name}, a step being a chunk", advice, question, {})


def _from_store(asked: Asked) -> Told:
    if not there():
        return _of_nobody(asked, "a store that is not there yet")
    with Store.open(reads_only=True) as store:
        runs = store.runs(1)
        if asked.run is None and not runs:
            return _of_nobody(asked, f"store {store.name}, which is empty")
        run = store.run(asked.run) if asked.run else runs[0]
        basis = _last_plan(store, run)
        speeds = store.speeds(run.task)
        names = {each.device: each.name for each in store.devices() if each.name}
        source = f"store {store.name}, task {run.task}"
    devices = list(basis.get("loads") or speeds.known)
    if not devices:
        return _of_nobody(asked, f"{source}, in which no device has worked")
    config = _settings(run, asked)
    if basis.get("free") is False and config.replicas == AUTO:
        config = replace(config, replicas=int(basis["replicas"]))
    numbers = int(asked.model_mb * MEGABYTE / FLOAT_BYTES) or int(basis.get("numbers", 0))
    chunks = config.chunks if "chunks" in asked.settings else int(basis.get("chunks", config.chunks))
    question = _question(devices, chunks, numbers, config)
    rng = np.random.default_rng([config.seed, 1])
    past = recall(speeds.told, question.devices)
    advice = advise(question, speeds, rng, past=past, newcomers_s=asked.add)
    return Told(source, advice, question, names)


def _of_nobody(asked: Asked, source: str) -> Told:
    config = RunConfig.read(asked.settings)
    devices = [f"device {w}" for w in range(max(NOBODY, config.min_devices))]
    numbers = int(asked.model_mb * MEGABYTE / FLOAT_BYTES)
    question = _question(devices, config.chunks, numbers, config)
    rng = np.random.default_rng([config.seed, 1])
    return Told(source, advise(question, Speeds(), rng, newcomers_s=asked.add), question, {})


def _last_plan(store: Store, run: Run) -> Mapping[str, Any]:
    """Return what the run's last plan was made from, and came to."""
    plans = [each.basis for each in store.decisions(run.run) if each.what == "plan"]
    return plans[-1] if plans else {}


def _settings(run: Run, asked: Asked) -> RunConfig:
    """Return the settings of that run, under those that are given."""
    known = set(RunConfig().table())
    had = {name: value for name, value in run.settings.items() if name in known and name != "resume"}
    return RunConfig.read({**had, **asked.settings})


def _question(devices: Sequence[str], chunks: int, numbers: int, config: RunConfig) -> Question:
    if config.work != "coded":
        raise Unusable(
            f"plan: saw work = {config.work}, which all do alike; needed coded work, which is shared"
        )
    table = tuple(Chunk(number, f"chunk {number}", 1) for number in range(chunks))
    fleet = Fleet(dict.fromkeys(devices, frozenset(range(chunks))), table, numbers)
    line = Line(slots=config.upload_slots)
    return Question(fleet, config, config.round_steps, line, rounds_left=config.rounds)


# ---- the answer


def _figures(told: Told) -> dict[str, Any]:
    advice = told.advice
    choice = advice.choice
    return {
        "source": told.source,
        "choice": {
            "words": choice.setting.words,
            "replicas": choice.setting.replicas,
            "blocks": choice.setting.blocks or AUTO,
            "chunks": len(told.question.fleet.chunks),
            "local_steps": told.question.steps,
            "order": advice.order,
            "deadline_s": choice.deadline_s,
            "loads": {told.named(d): load for d, load in zip(advice.devices, advice.loads, strict=True)},
        },
        "history": choice.known,
        "history_helps": choice.trusted,
        "reason": told.named(choice.reason),
        "predicted_s": choice.predicted_s,
        "band_s": [choice.low_s, choice.high_s],
        "uncoded_s": advice.uncoded_s,
        "over_uncoded": advice.over_uncoded,
        "fluid_bound_s": advice.fluid_s,
        "over_fluid_bound": advice.over_fluid,
        "others": [{"words": words, "predicted_s": score} for words, score in choice.scores],
        "cuts": [
            {"chunks": cut.chunks, "local_steps": cut.steps, "predicted_s": cut.round_s}
            for cut in advice.cuts
        ],
        "one_more_device": [{"step_s": step, "predicted_s": s} for step, s in advice.one_more],
        "costs_more_than_it_gives": [
            {"device": told.named(device), "predicted_s_without": s} for device, s in advice.costs
        ],
        "rows": [
            {
                "device": told.named(row.device),
                "step_s": row.step_s,
                "over_median": row.over_median,
                "failing": row.fails,
                "rounds": {run: list(rounds) for run, rounds in row.seen.items()},
            }
            for row in choice.rows
        ],
    }


def _shown(told: Told) -> RenderableType:
    advice = told.advice
    choice = advice.choice
    table = Table(title="The plan", show_header=False)
    table.add_column(no_wrap=True)
    table.add_column()
    for name, value in _facts(told).items():
        table.add_row(name, Text(value))
    rows = [Text(f"  {told.named(row.words)}") for row in choice.rows]
    heading = [Text("Rows of the history that stand out:")] if rows else []
    return Group(Text(f"From {told.source}."), table, *heading, *rows)


def _facts(told: Told) -> dict[str, str]:
    advice = told.advice
    choice = advice.choice
    loads = zip(advice.devices, advice.loads, strict=True)
    facts = {
        "chosen": f"{choice.setting.words}, {len(told.question.fleet.chunks)} chunks",
        "why": told.named(choice.reason),
        "order": advice.order,
        "chunks on each": ", ".join(f"{told.named(device)} {load}" for device, load in list(loads)[:SHOWN])
        + (", ..." if len(advice.devices) > SHOWN else ""),
        "round": f"{choice.predicted_s:.3g} s predicted, {choice.low_s:.3g} to {choice.high_s:.3g} s",
        "deadline": "of the first rounds" if choice.deadline_s is None else f"{choice.deadline_s:.3g} s",
        "uncoded": f"{advice.uncoded_s:.3g} s ({advice.over_uncoded:.2f} times that is predicted)",
        "fluid bound": f"{advice.fluid_s:.3g} s ({advice.over_fluid:.2f} times that is predicted)",
        "one more device": "; ".join(
            f"of {step_s:.3g} s a step: {round_s:.3g} s" for step_s, round_s in advice.one_more
        ),
        "costs more than it gives": "; ".join(
            f"{told.named(device)}: {round_s:.3g} s without it" for device, round_s in advice.costs
        )
        or "nobody",
    }
    finer = "; ".join(f"{c.chunks} of {c.steps} steps: {c.round_s:.3g} s" for c in advice.cuts[1:])
    return facts | ({"the same work in other chunks": finer} if finer else {})
