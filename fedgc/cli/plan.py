"""`fedgc plan`: what the tuner would choose for a fleet, and why, before any run.

From the store it is what the next run of the task would begin with, on the clients of the last one: the same
question, history and chance, so the same answer. From a trace it is what these machines would be given.
Without any history there is a plan as well, and it says "no history".
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
from fedgc.config import AUTO, RunConfig, known
from fedgc.deploy.app_folder import Setting
from fedgc.errors import Unusable
from fedgc.history import Speeds
from fedgc.round.plan import Chunk, Fleet
from fedgc.sim.clock import Line
from fedgc.sim.traces import read_scenario
from fedgc.store.database import Store
from fedgc.store.engine import there
from fedgc.store.views import Run
from fedgc.tuner import Advice, Question, advise, advise_for, recall
from fedgc.tuner.past import FLOAT_BYTES

PIECES: Final = 4  # chunks for each client of a trace
NOBODY: Final = 4  # clients that are asked about where nobody was ever seen
MEGABYTE: Final = 1_000_000
SHOWN: Final = 12  # clients whose load is told to people


@dataclass(frozen=True, slots=True)
class Asked:
    """What a person asks for."""

    settings: Mapping[str, Setting]
    run: str | None = None
    trace: Path | None = None
    model_mb: float = 0.0  # 0: as the last run's, or not known
    uplink_mb_s: float = 0.0  # of the clients of a trace; 0: its uploads take no time
    add: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for name in ("model_mb", "uplink_mb_s"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise Unusable(f"{name}: saw {getattr(self, name)}, needed 0 or more")


@dataclass(frozen=True, slots=True)
class PastRound:
    """The advice, what it was made from, and what the clients call themselves."""

    source: str
    advice: Advice
    question: Question
    names: Mapping[str, str]

    def named(self, text: str) -> str:
        """Return a text with clients by the names that people gave them."""
        for client, name in self.names.items():
            text = text.replace(client, name)
        return text


def run_plan(asked: Asked, *, as_json: bool) -> None:
    """Print what would be chosen."""
    told = _from_trace(asked, asked.trace) if asked.trace else _from_store(asked)
    if as_json:
        sys.stdout.write(json.dumps(_figures(told), indent=1) + "\n")
    else:
        terminal().print(_shown(told))


# ---- the question


def _from_trace(asked: Asked, trace: Path) -> PastRound:
    scenario = read_scenario(trace)
    clients = scenario[0].clients
    config = RunConfig.read(
        {"work": "coded", "data.chunks": PIECES * clients, "local-steps": 1, **asked.settings}
    )
    pieces = max(1, config.chunks // clients)
    if asked.model_mb and asked.uplink_mb_s:
        up_s_w = np.full(clients, asked.model_mb / asked.uplink_mb_s)
        scenario = tuple(replace(each, up_s_w=up_s_w) for each in scenario)
    names = [f"client {w}" for w in range(clients)]
    numbers = int(asked.model_mb * MEGABYTE / FLOAT_BYTES)
    question = _question(names, pieces * clients, numbers, replace(config, local_steps=1))
    rng = np.random.default_rng([config.seed, 1])
    advice = advise_for(question, scenario, rng, newcomers_s=asked.add)
    return PastRound(f"trace {trace.name}, a step being a chunk", advice, question, {})


def _from_store(asked: Asked) -> PastRound:
    if not there():
        return _of_nobody(asked, "a store that is not there yet")
    with Store.open(reads_only=True) as store:
        runs = store.runs(1)
        if asked.run is None and not runs:
            return _of_nobody(asked, f"store {store.name}, which is empty")
        run = store.run(asked.run) if asked.run else runs[0]
        basis = _last_plan(store, run)
        speeds = store.speeds(run.task)
        names = {each.client: each.name for each in store.clients() if each.name}
        source = f"store {store.name}, task {run.task}"
    clients = list(basis.get("loads") or speeds.known)
    if not clients:
        return _of_nobody(asked, f"{source}, in which no client has worked")
    config = _settings(run, asked)
    if basis.get("free") is False and config.replicas == AUTO:
        config = replace(config, replicas=int(basis["replicas"]))
    numbers = int(asked.model_mb * MEGABYTE / FLOAT_BYTES) or int(basis.get("numbers", 0))
    chunks = config.chunks if "data.chunks" in asked.settings else int(basis.get("chunks", config.chunks))
    question = _question(clients, chunks, numbers, config)
    rng = np.random.default_rng([config.seed, 1])
    past = recall(speeds.told, question.clients)
    advice = advise(question, speeds, rng, past=past, newcomers_s=asked.add)
    return PastRound(source, advice, question, names)


def _of_nobody(asked: Asked, source: str) -> PastRound:
    config = RunConfig.read({"work": "coded", **asked.settings})
    clients = [f"client {w}" for w in range(max(NOBODY, config.min_clients))]
    numbers = int(asked.model_mb * MEGABYTE / FLOAT_BYTES)
    question = _question(clients, config.chunks, numbers, config)
    rng = np.random.default_rng([config.seed, 1])
    return PastRound(source, advise(question, Speeds(), rng, newcomers_s=asked.add), question, {})


def _last_plan(store: Store, run: Run) -> Mapping[str, Any]:
    """Return what the run's last plan was made from, and came to."""
    plans = [each.basis for each in store.decisions(run.run) if each.what == "plan"]
    return plans[-1] if plans else {}


def _settings(run: Run, asked: Asked) -> RunConfig:
    """Return the settings of that run, under those that are given."""
    return RunConfig.read({**known(run.settings), "resume": "", **asked.settings})


def _question(clients: Sequence[str], chunks: int, numbers: int, config: RunConfig) -> Question:
    if config.work != "coded":
        raise Unusable(
            f"plan: saw work = {config.work}, which all do alike; needed coded work, which is shared"
        )
    table = tuple(Chunk(number, f"chunk {number}", 1) for number in range(chunks))
    fleet = Fleet(dict.fromkeys(clients, frozenset(range(chunks))), table, numbers)
    line = Line(slots=config.upload_slots)
    return Question(fleet, config, config.round_steps, line, rounds_left=config.rounds)


# ---- the answer


def _figures(told: PastRound) -> dict[str, Any]:
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
            "loads": {told.named(d): load for d, load in zip(advice.clients, advice.loads, strict=True)},
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
        "one_more_client": [{"step_s": step, "predicted_s": s} for step, s in advice.one_more],
        "costs_more_than_it_gives": [
            {"client": told.named(client), "predicted_s_without": s} for client, s in advice.costs
        ],
        "rows": [
            {
                "client": told.named(row.client),
                "step_s": row.step_s,
                "over_median": row.over_median,
                "failing": row.fails,
                "rounds": {run: list(rounds) for run, rounds in row.seen.items()},
            }
            for row in choice.rows
        ],
    }


def _shown(told: PastRound) -> RenderableType:
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


def _facts(told: PastRound) -> dict[str, str]:
    advice = told.advice
    choice = advice.choice
    loads = zip(advice.clients, advice.loads, strict=True)
    facts = {
        "chosen": f"{choice.setting.words}, {len(told.question.fleet.chunks)} chunks",
        "why": told.named(choice.reason),
        "order": advice.order,
        "chunks on each": ", ".join(f"{told.named(client)} {load}" for client, load in list(loads)[:SHOWN])
        + (", ..." if len(advice.clients) > SHOWN else ""),
        "round": f"{choice.predicted_s:.3g} s predicted, {choice.low_s:.3g} to {choice.high_s:.3g} s",
        "deadline": "of the first rounds" if choice.deadline_s is None else f"{choice.deadline_s:.3g} s",
        "uncoded": f"{advice.uncoded_s:.3g} s ({advice.over_uncoded:.2f} times that is predicted)",
        "fluid bound": f"{advice.fluid_s:.3g} s ({advice.over_fluid:.2f} times that is predicted)",
        "one more client": "; ".join(
            f"of {step_s:.3g} s a step: {round_s:.3g} s" for step_s, round_s in advice.one_more
        ),
        "costs more than it gives": "; ".join(
            f"{told.named(client)}: {round_s:.3g} s without it" for client, round_s in advice.costs
        )
        or "nobody",
    }
    finer = "; ".join(f"{c.chunks} of {c.steps} steps: {c.round_s:.3g} s" for c in advice.cuts[1:])
    return facts | ({"the same work in other chunks": finer} if finer else {})
