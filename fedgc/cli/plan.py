"""`fedgc plan`: the tuner's choice for a fleet and its reason, before any run.

From the store it is the plan with which the next run of the task would begin, on the clients of the last one
that had rounds: the same inputs and seed, so the same answer. From a trace it is a plan for the traced
machines. Without any history there is a plan as well, marked "no history". Local work has a plan of its own
(`plan_local`).
"""

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fedgc.cli.history import newest_with_rounds
from fedgc.cli.plan_local import LocalExplanation, explain_local
from fedgc.cli.view import terminal
from fedgc.config import AUTO, RunConfig
from fedgc.deploy.app_folder import Setting
from fedgc.errors import Unusable
from fedgc.history import Speeds
from fedgc.sim.clock import FLOAT_BYTES
from fedgc.sim.traces import read_names, read_table
from fedgc.store.database import Store
from fedgc.store.engine import there
from fedgc.store.views import labels_of
from fedgc.tuner import Advice, Choice, Question, advise, clients_wanted, nothing, remember
from fedgc.tuner.week import Week
from fedgc.web.next_plan import Planned, local_clients, planned, question_of, settings_of

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
    client_gain: float | None = None  # None: the wanted number of clients is not computed

    def __post_init__(self) -> None:
        for name in ("model_mb", "uplink_mb_s"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise Unusable(f"{name}: saw {getattr(self, name)}, needed 0 or more")
        if self.trace is not None and self.run is not None:
            raise Unusable(f"--trace: saw run {self.run} beside it, needed one of them")
        if self.uplink_mb_s and not (self.trace and self.model_mb):
            raise Unusable(
                f"--uplink-mb-s: saw {self.uplink_mb_s:g} alone, needed --trace and --model-mb, or --model-gb"
            )

    @property
    def numbers(self) -> int:
        """The numbers of the model; 0: not given."""
        return int(self.model_mb * MEGABYTE / FLOAT_BYTES)


@dataclass(frozen=True, slots=True)
class Explanation:
    """The advice, what it was made from, and what the clients call themselves."""

    source: str
    advice: Advice
    question: Question
    names: Mapping[str, str]
    wanted: int | None = None  # clients, if asked for
    errors: tuple[float, ...] = ()  # of the predictions of past rounds, as shares of what they took

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
    names = read_names(trace)
    question = question_of(names, pieces * clients, asked.numbers, replace(config, local_steps=1))
    size_bytes = FLOAT_BYTES * question.fleet.size
    history, links = remember(scenario, pieces=pieces, update_bytes=size_bytes, names=names)
    about = Planned(question, links, history)
    advice = advise(question, links, about.rng, history=history, newcomers_s=asked.add)
    source = f"trace {trace.name}, a step being a chunk"
    return Explanation(source, advice, question, {}, _wanted(asked, about))


def _from_store(asked: Asked) -> Explanation | LocalExplanation:
    if asked.run is None and not there():
        return _without_history(asked, "a store that does not exist yet")
    with Store.open(reads_only=True) as store:
        if asked.run is None and not store.runs(1):
            return _without_history(asked, f"store {store.name}, which is empty")
        run = store.run(asked.run) if asked.run else newest_with_rounds(store)
        source = f"store {store.name}, run {run.run} of task {run.task}"
        config = settings_of(run, asked.settings)
        if config.work == "local":
            if asked.add or asked.client_gain is not None:
                raise Unusable("plan: saw --add or --client-gain with local work, needed coded work")
            measured, numbers = local_clients(store, run, asked.numbers)
            return explain_local(source, measured, config, numbers)
        about = planned(store, run, asked.settings, asked.numbers, with_closed=True)
        known = store.clients()
    if about is None:
        return _without_history(asked, f"{source}, in which no client has worked")
    question, speeds, history = about.question, about.speeds, about.history
    advice = advise(
        question, speeds, about.rng, history=history, newcomers_s=asked.add, windows=about.windows
    )
    names = labels_of([each for each in known if each.client in question.clients])
    wanted = _wanted(asked, about)
    errors = tuple(each.error for each in speeds.recent if each.error is not None)
    return Explanation(source, advice, question, names, wanted, errors)


def _wanted(asked: Asked, about: Planned) -> int | None:
    if asked.client_gain is None:
        return None
    wanted = clients_wanted(about.question, about.history, about.speeds, about.rng, asked.client_gain)
    if wanted is None:
        raise Unusable(
            "--client-gain: saw no history of several clients that can all load the data, needed one"
        )
    return wanted


def _without_history(asked: Asked, source: str) -> Explanation:
    config = RunConfig.read({"work": "coded", **asked.settings})
    clients = [f"client {w}" for w in range(max(UNKNOWN_CLIENTS, config.min_clients))]
    question = question_of(clients, config.chunks, asked.numbers, config)
    about = Planned(question, Speeds(), nothing(question.clients))
    advice = advise(question, about.speeds, about.rng, newcomers_s=asked.add)
    return Explanation(source, advice, question, {}, _wanted(asked, about))


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
        "past_predictions": len(explanation.errors),
        "past_error_median": median(explanation.errors) if explanation.errors else None,
        "past_error_worst": max(explanation.errors, default=None),
        "uncoded_s": advice.uncoded_s,
        "over_uncoded": advice.over_uncoded,
        "fluid_bound_s": advice.fluid_s,
        "over_fluid_bound": advice.over_fluid,
        "others": [{"words": words, "predicted_s": score} for words, score in choice.scores],
        "cuts": [
            {"chunks": cut.chunks, "local_steps": cut.steps, "predicted_s": cut.round_s}
            for cut in advice.cuts
        ],
        **({"week": _week_figures(advice.week)} if advice.week else {}),
        **({} if explanation.wanted is None else {"clients_wanted": explanation.wanted}),
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


def _week_figures(week: Week) -> dict[str, float | None]:
    return {"round_s": week.round_s if math.isfinite(week.round_s) else None, "idle_h": week.idle_h}


def _week_words(week: Week) -> str:
    if not math.isfinite(week.round_s):
        return "no client may train at any time"
    return (
        f"{week.round_s:.3g} s a round with closed hours; no client may train in {week.idle_h:.0f} of 168 h"
    )


def _prediction(choice: Choice) -> str:
    low_s, high_s = choice.band.low_s, choice.band.high_s
    if not choice.known:
        return f"{choice.predicted_s:.3g} s guessed, {low_s:.3g} to {high_s:.3g} s"
    said = f"{choice.predicted_s:.3g} s predicted, four rounds in five take {low_s:.3g} to {high_s:.3g} s"
    if abs(choice.correction - 1.0) < LEAST_SAID:
        return said
    return f"{said}; past rounds took {choice.correction:.2f} times as long as simulated"


def _past_errors(errors: Sequence[float]) -> dict[str, str]:
    if not errors:
        return {}
    count = f"of {len(errors)} past rounds" if len(errors) > 1 else "of one past round"
    return {f"predictions {count}": f"off by {median(errors):.0%} (median), {max(errors):.0%} at most"}


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
        **_past_errors(explanation.errors),
        "deadline": "of the first rounds" if choice.deadline_s is None else f"{choice.deadline_s:.3g} s",
        "uncoded": f"{advice.uncoded_s:.3g} s; the prediction is {advice.over_uncoded:.2f} times that",
        "fluid bound": f"{advice.fluid_s:.3g} s; the prediction is {advice.over_fluid:.2f} times that",
        "one more client": "; ".join(
            f"of {step_s:.3g} s a step: {round_s:.3g} s" for step_s, round_s in advice.one_more
        ),
        "costs more than it gives": "; ".join(
            f"{explanation.named(client)}: {round_s:.3g} s without it" for client, round_s in advice.costs
        )
        or "none",
    }
    finer = "; ".join(f"{c.chunks} of {c.steps} steps: {c.round_s:.3g} s" for c in advice.cuts[1:])
    if advice.week:
        facts["over a week"] = _week_words(advice.week)
    if explanation.wanted is not None:
        facts["clients wanted"] = str(explanation.wanted)
    return facts | ({"the same work in other chunks": finer} if finer else {})
