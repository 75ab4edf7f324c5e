"""`fedgc plan`: the tuner's choice for a fleet and its reason, before any run.

From the store it is the plan with which the next run of the task would begin, on the clients of the last one:
the same inputs and seed, so the same answer. From a trace it is a plan for the traced machines. Without any
history there is a plan as well, marked "no history". Local work has a plan of its own (`plan_local`).
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

from fedgc.cli.plan_local import LocalExplanation, explain_local
from fedgc.cli.view import terminal
from fedgc.config import AUTO, RunConfig, known
from fedgc.deploy.app_folder import Setting
from fedgc.errors import Unusable
from fedgc.history import Speeds
from fedgc.round.plan import Chunk, Fleet
from fedgc.sim.clock import Line
from fedgc.sim.traces import read_table
from fedgc.store.database import Store
from fedgc.store.engine import there
from fedgc.store.views import Run
from fedgc.tuner import Advice, Choice, Question, advise, advise_for, recall
from fedgc.tuner.history import FLOAT_BYTES

PIECES: Final = 4  # chunks for each client of a trace
UNKNOWN_CLIENTS: Final = 4  # clients in the plan if none was ever seen
MEGABYTE: Final = 1_000_000
SHOWN: Final = 12  # clients whose load is printed
LEAST_SAID: Final = 0.005  # correction of the prediction that is named


@dataclass(frozen=True, slots=True)
class Asked:
    """The options of the command."""

    settings: Mapping[str, Setting]
    run: str | None = None
    trace: Path | None = None
    model_mb: float = 0.0  # 0: as in the last run, or unknown
    uplink_mb_s: float = 0.0  # of the clients of a trace; 0: uploads take no time
    add: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for name in ("model_mb", "uplink_mb_s"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise Unusable(f"{name}: saw {getattr(self, name)}, needed 0 or more")


@dataclass(frozen=True, slots=True)
class Explanation:
    """The advice, what it was made from, and what the clients call themselves."""

    source: str
    advice: Advice
    question: Question
    names: Mapping[str, str]

    def named(self, text: str) -> str:
        """Return a text with clients by their display names."""
        for client, name in self.names.items():
            text = text.replace(client, name)
        return text


def run_plan(asked: Asked, *, as_json: bool) -> None:
    """Print the plan."""
    explanation = _from_trace(asked, asked.trace) if asked.trace else _from_store(asked)
    if isinstance(explanation, LocalExplanation):
        explanation.show(as_json=as_json)
    elif as_json:
        sys.stdout.write(json.dumps(_figures(explanation), indent=1) + "\n")
    else:
        terminal().print(_shown(explanation))


# ---- inputs


def _from_trace(asked: Asked, trace: Path) -> Explanation:
    scenario = read_table(trace)
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
    return Explanation(f"trace {trace.name}, a step being a chunk", advice, question, {})


def _from_store(asked: Asked) -> Explanation | LocalExplanation:
    if not there():
        return _without_history(asked, "a store that does not exist yet")
    with Store.open(reads_only=True) as store:
        runs = store.runs(1)
        if asked.run is None and not runs:
            return _without_history(asked, f"store {store.name}, which is empty")
        run = store.run(asked.run) if asked.run else runs[0]
        basis = _last_plan(store, run)
        speeds = store.speeds(run.task)
        names = {each.client: each.name for each in store.clients() if each.name}
        source = f"store {store.name}, task {run.task}"
    clients = list(basis.get("loads") or speeds.known)
    config = _settings(run, asked)
    numbers = int(asked.model_mb * MEGABYTE / FLOAT_BYTES) or int(basis.get("numbers", 0))
    if config.work == "local":
        measured = [speeds.known[client] for client in clients if client in speeds.known]
        return explain_local(source, measured, config, numbers)
    if not clients:
        return _without_history(asked, f"{source}, in which no client has worked")
    if basis.get("free") is False and config.replicas == AUTO:
        config = replace(config, replicas=int(basis["replicas"]))
    chunks = config.chunks if "data.chunks" in asked.settings else int(basis.get("chunks", config.chunks))
    question = _question(clients, chunks, numbers, config)
    rng = np.random.default_rng([config.seed, 1])
    history = recall(speeds.recent, question.clients)
    advice = advise(question, speeds, rng, history=history, newcomers_s=asked.add)
    return Explanation(source, advice, question, names)


def _without_history(asked: Asked, source: str) -> Explanation:
    config = RunConfig.read({"work": "coded", **asked.settings})
    clients = [f"client {w}" for w in range(max(UNKNOWN_CLIENTS, config.min_clients))]
    numbers = int(asked.model_mb * MEGABYTE / FLOAT_BYTES)
    question = _question(clients, config.chunks, numbers, config)
    rng = np.random.default_rng([config.seed, 1])
    return Explanation(source, advise(question, Speeds(), rng, newcomers_s=asked.add), question, {})


def _last_plan(store: Store, run: Run) -> Mapping[str, Any]:
    """Return the inputs and results of the run's last plan."""
    plans = [each.basis for each in store.decisions(run.run) if each.what == "plan"]
    return plans[-1] if plans else {}


def _settings(run: Run, asked: Asked) -> RunConfig:
    """Return the settings of that run, overridden by the given ones."""
    return RunConfig.read({**known(run.settings), "resume": "", **asked.settings})


def _question(clients: Sequence[str], chunks: int, numbers: int, config: RunConfig) -> Question:
    if config.work != "coded":
        raise Unusable(
            f"plan: saw work = {config.work} without a run of it in the store, needed one, or coded work"
        )
    table = tuple(Chunk(number, f"chunk {number}", 1) for number in range(chunks))
    fleet = Fleet(dict.fromkeys(clients, frozenset(range(chunks))), table, numbers)
    line = Line(slots=config.upload_slots)
    return Question(fleet, config, config.round_steps, line, rounds_left=config.rounds)


# ---- output


def _figures(explanation: Explanation) -> dict[str, Any]:
    advice = explanation.advice
    choice = advice.choice
    return {
        "source": explanation.source,
        "choice": {
            "words": choice.setting.words,
            "replicas": choice.setting.replicas,
            "blocks": choice.setting.blocks or AUTO,
            "chunks": len(explanation.question.fleet.chunks),
            "local_steps": explanation.question.steps,
            "order": advice.order,
            "deadline_s": choice.deadline_s,
            "loads": {
                explanation.named(d): load for d, load in zip(advice.clients, advice.loads, strict=True)
            },
        },
        "history": choice.known,
        "history_helps": choice.trusted,
        "reason": explanation.named(choice.reason),
        "predicted_s": choice.predicted_s,
        "band_s": [choice.band.low_s, choice.band.high_s],
        "correction": choice.correction,
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
            {"client": explanation.named(client), "predicted_s_without": s} for client, s in advice.costs
        ],
        "rows": [
            {
                "client": explanation.named(row.client),
                "step_s": row.step_s,
                "over_median": row.over_median,
                "failing": row.fails,
                "rounds": {run: list(rounds) for run, rounds in row.seen.items()},
            }
            for row in choice.rows
        ],
    }


def _shown(explanation: Explanation) -> RenderableType:
    advice = explanation.advice
    choice = advice.choice
    table = Table(title="The plan", show_header=False)
    table.add_column(no_wrap=True)
    table.add_column()
    for name, value in _facts(explanation).items():
        table.add_row(name, Text(value))
    rows = [Text(f"  {explanation.named(row.words)}") for row in choice.rows]
    heading = [Text("Rows of the history that stand out:")] if rows else []
    return Group(Text(f"From {explanation.source}."), table, *heading, *rows)


def _prediction(choice: Choice) -> str:
    low_s, high_s = choice.band.low_s, choice.band.high_s
    if not choice.known:
        return f"{choice.predicted_s:.3g} s guessed, {low_s:.3g} to {high_s:.3g} s"
    said = f"{choice.predicted_s:.3g} s predicted, four rounds in five take {low_s:.3g} to {high_s:.3g} s"
    if abs(choice.correction - 1.0) < LEAST_SAID:
        return said
    return f"{said}; past rounds took {choice.correction:.2f} times as long as simulated"


def _facts(explanation: Explanation) -> dict[str, str]:
    advice = explanation.advice
    choice = advice.choice
    loads = zip(advice.clients, advice.loads, strict=True)
    facts = {
        "chosen": f"{choice.setting.words}, {len(explanation.question.fleet.chunks)} chunks",
        "why": explanation.named(choice.reason),
        "order": advice.order,
        "chunks on each": ", ".join(
            f"{explanation.named(client)} {load}" for client, load in list(loads)[:SHOWN]
        )
        + (", ..." if len(advice.clients) > SHOWN else ""),
        "round": _prediction(choice),
        "deadline": "of the first rounds" if choice.deadline_s is None else f"{choice.deadline_s:.3g} s",
        "uncoded": f"{advice.uncoded_s:.3g} s ({advice.over_uncoded:.2f} times that is predicted)",
        "fluid bound": f"{advice.fluid_s:.3g} s ({advice.over_fluid:.2f} times that is predicted)",
        "one more client": "; ".join(
            f"of {step_s:.3g} s a step: {round_s:.3g} s" for step_s, round_s in advice.one_more
        ),
        "costs more than it gives": "; ".join(
            f"{explanation.named(client)}: {round_s:.3g} s without it" for client, round_s in advice.costs
        )
        or "none",
    }
    finer = "; ".join(f"{c.chunks} of {c.steps} steps: {c.round_s:.3g} s" for c in advice.cuts[1:])
    return facts | ({"the same work in other chunks": finer} if finer else {})
