"""`fedgc speeds`, `fedgc status` and `fedgc queue list`: the store's data, for people and as JSON."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fedgc.cli.view import (
    config_of,
    done_of,
    figures_text,
    mean_of,
    megabytes,
    scores_table,
    skips_message,
    terminal,
)
from fedgc.errors import Unusable, numbered
from fedgc.history import APP_FAILED, BY_SITE, Score
from fedgc.store.database import Store
from fedgc.store.explanation import INCOMPLETE, NOT_YET, Explanation, explain, span
from fedgc.store.liveness import ALIVE_S, CRASHED, advice_for, alive, reason_of, state_of
from fedgc.store.reading import BEST, HOURS
from fedgc.store.records import Decided
from fedgc.store.run_queue import RUNNING, Entry
from fedgc.store.views import Client, MeasuredSpeeds, Round, Run, labels_of
from fedgc.web.fleet import present_clients
from fedgc.web.json_values import printed_json

BARS: Final = "▁▂▃▄▅▆▇█"
TREND_WIDTH: Final = 16
SHOWN_RUNS: Final = 5
SHOWN_AUDIT: Final = 50
WATCH_S: Final = 1.0


def must_be_over(run: Run) -> None:
    """Refuse an action on a running run."""
    if alive(run, time.time()):
        raise Unusable(
            f"run {run.run}: saw it running, needed it to be over (one that was killed elsewhere is, "
            f"{ALIVE_S:.0f} s later)"
        )


def must_have_begun(entry: Entry, runs: Sequence[Run]) -> None:
    """Refuse an action on an entry of the queue that was just taken: its run is not recorded yet."""
    taken = entry.began if entry.state == RUNNING else None
    if taken is None or any(each.run == entry.run and each.heard >= taken for each in runs):
        return
    if abs(time.time() - taken) < ALIVE_S:  # the clock may be set back
        raise Unusable(
            f"queue: saw entry {entry.id} taken, and its run not begun; needed its run to begin, "
            f"or {ALIVE_S:.0f} s to pass"
        )


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer as text and as JSON."""

    figures: Mapping[str, Any]
    shown: Callable[[], RenderableType]


def print_answer(ask: Callable[[Store], Answer], *, as_json: bool, watch: bool) -> None:
    """Query the store, once or repeatedly, and print the answer."""
    with Store.open(reads_only=True) as store:
        if as_json:
            sys.stdout.write(printed_json(ask(store).figures) + "\n")
            return
        console = terminal()
        if not watch:
            console.print(ask(store).shown())
            return
        _watch(console, lambda: ask(store).shown())


def _plain_fields(value: Score | Explanation) -> dict[str, object]:
    return {each.name: getattr(value, each.name) for each in fields(value)}


def _watch(console: Console, shown: Callable[[], RenderableType]) -> None:
    if not console.is_terminal:
        raise Unusable("--watch: saw no terminal, needed one; ask again and again with --json instead")
    try:
        with Live(shown(), console=console, auto_refresh=False) as live:
            while True:
                time.sleep(WATCH_S)
                live.update(shown(), refresh=True)
    except KeyboardInterrupt:
        return


# ---- speeds


def speeds(store: Store, run: str | None, *, every: bool) -> Answer:
    """Return the speeds of the clients of a run (None: the newest with rounds), or of all at its task."""
    known = _chosen(store, run) if run else newest_with_rounds(store)
    paces, of_run = store.paces(known.task), store.took_part(known.run)
    paces = tuple(pace for pace in paces if every or pace.client.client in of_run)
    title = f"{'All clients' if every else f'Clients of run {known.run}'} at {known.task}"
    return Answer(
        {"task": known.task, "run": known.run, "clients": [_pace_figures(pace) for pace in paces]},
        lambda: _speeds_table(title, paces),
    )


def newest_with_rounds(store: Store) -> Run:
    """Return the newest run that has rounds; the newest of all if none of the last ones has any."""
    return next((each for each in store.runs() if each.rounds), None) or store.run()


def _pace_figures(pace: MeasuredSpeeds) -> dict[str, Any]:
    return {
        "client": pace.client.client,
        "name": pace.client.name,
        "speed": pace.speed,
        "trend_step_s": list(pace.trend),
        "rounds": pace.rounds,
        "finished": pace.finished,
        "counted": pace.counted,
        "counted_share": pace.counted_share,
        "failures": pace.failures,
        "implausible": pace.implausible,
    }


def _speeds_table(title: str, paces: Sequence[MeasuredSpeeds]) -> Table:
    table = Table(title=title)
    labels = labels_of([pace.client for pace in paces])
    table.add_column("client", no_wrap=True)
    for column in ("steps a second", "spread", "rounds", "failures", "counted", "uplink"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("trend", no_wrap=True)
    for pace in paces:
        speed = pace.speed
        table.add_row(
            Text(labels[pace.client.client]),
            f"{1 / speed.step_s:.1f}" if speed else "-",
            f"{speed.spread_s / speed.step_s:.0%}" if speed else "-",
            str(pace.rounds),
            str(pace.failures),
            f"{pace.counted_share:.0%}" if pace.counted_share is not None else "-",
            f"{megabytes(speed.up_bytes_s)}/s" if speed and speed.up_bytes_s else "-",
            sparkline([1 / step_s for step_s in pace.trend if step_s]),
        )
    return table


def sparkline(values: Sequence[float]) -> str:
    """Return the last values as bars, scaled to the largest.

    >>> sparkline([1.0, 2.0, 4.0]), sparkline([])
    ('▂▄█', '')
    """
    recent = values[-TREND_WIDTH:]
    top = max(recent, default=0.0)
    return "".join(BARS[max(0, min(7, round(8 * value / top) - 1))] for value in recent) if top > 0 else ""


# ---- queue


def queued(store: Store) -> Answer:
    """Return the queue of runs: in the order in which they run, then those that are over."""
    entries = store.queue.entries()
    return Answer({"store": store.name, "queue": entries}, lambda: _queue_table(entries))


def _queue_table(entries: Sequence[Entry]) -> Table:
    table = Table(title="Queue, the next run first")
    for column in ("entry", "priority", "run", "state", "added", "reason"):
        table.add_column(column, no_wrap=column != "reason")
    for each in entries:
        added = f"{span(time.time() - each.added)} ago"
        words = (str(each.id), str(each.priority), each.run, each.state, added, each.reason)
        table.add_row(*map(Text, words))
    return table


# ---- status


def why(store: Store, run: str | None) -> Answer:
    """Return why a run (None: the newest) stands where it stands; the first line is the first cause."""
    explained = explain(store, _chosen(store, run), time.time())
    return Answer(_plain_fields(explained), lambda: Text("\n".join(explained.lines)))


def _chosen(store: Store, run: str | None) -> Run:
    found = store.run(run) if run else next(iter(store.runs(1)), None)
    if found is None:
        raise Unusable(f"store {store.name}: saw no runs, needed one; `fedgc demo` makes one")
    return found


def status(store: Store, run: str | None) -> Answer:
    """Return the runs, and the state of one of them (None: the newest)."""
    chosen = _chosen(store, run)
    runs = store.runs(SHOWN_RUNS)
    last = store.rounds(chosen.run, after=(chosen.last_round or 0) - 1)
    every, decisions = store.clients(), store.decisions(chosen.run)
    of_run = store.took_part(chosen.run) | present_clients(chosen).keys()
    clients = [each for each in every if each.client in of_run]
    audit = store.audited(chosen.run, SHOWN_AUDIT)
    scores, best = store.last_scores(chosen.run), store.best(chosen.run)
    names, known = {each.client: each.name for each in every}, labels_of(every)
    labels = labels_of(each for each in every if each.client in {score.client for score in scores})
    skips = skips_message(chosen, sum(each.skipped for each in store.stretches(chosen.run, 1)))
    figures = {
        "store": store.name,
        "runs": runs,
        "run": chosen,
        "state": state_of(chosen),
        "reason": reason_of(chosen),
        "skips": skips,
        "last_round": _round_figures(last[-1]) if last else None,
        "initial_metrics": chosen.initial_metrics,
        "best": best,
        "scores": [{"name": names.get(each.client, ""), **_plain_fields(each)} for each in scores],
        "clients": clients,
        "decisions": decisions[-SHOWN_RUNS:],
        "audit": audit,
        "why": explain(store, chosen, time.time()),
    }
    made = changes([each for each in decisions if each.what not in (BEST, HOURS)])
    facts = [f"round {each.round}: {each.what}: {each.reason}" for each in made[-3:]]
    facts += [f"best model: {best}"] if best is not None else []
    refused = [each for each in audit if each.kind in ("refused", "excluded", BY_SITE, APP_FAILED)][-3:]
    facts += [
        f"{each.kind}: {known.get(each.who) or each.who or 'an unknown client'}: {each.what}"
        for each in refused
    ]
    facts += [each.what for each in audit if each.kind == "rollback"][-3:]
    facts += [skips] if skips else []

    def shown() -> RenderableType:
        parts: list[RenderableType] = [
            _runs_table(runs),
            _run_lines(chosen, last, facts),
            _seen_table(clients),
        ]
        if scores:
            parts.append(
                scores_table(
                    "Figures of the clients, newest", scores, labels, mean_of(scores, config_of(chosen))
                )
            )
        return Group(*parts)

    return Answer(figures, shown)


def changes(decisions: Sequence[Decided]) -> list[Decided]:
    """Return the decisions that differ from the last one of their kind.

    >>> made = [Decided(0.0, "r", number, "plan", {}, why) for number, why in enumerate("aab", 1)]
    >>> [each.round for each in changes(made)]
    [1, 3]
    """
    last: dict[str, str] = {}
    changed = []
    for each in decisions:
        if last.get(each.what) != each.reason:
            changed.append(each)
        last[each.what] = each.reason
    return changed


def _round_figures(each: Round) -> dict[str, Any]:
    row = each.row
    return {
        "round": row.round,
        "outcome": row.outcome,
        "replicas": row.replicas,
        "blocks": row.blocks,
        "amplification": row.amplification,
        "error": row.error,
        "short": list(row.short),
        "coverage": row.coverage,
        "left_out": row.left_out,
        "reason": row.reason,
        "metrics": dict(row.metrics),
        "finished": each.finished,
        "counted": each.counted,
        "up_bytes": each.up_bytes,
        "down_bytes": each.down_bytes,
        "control_bytes": each.control_bytes,
    }


def _runs_table(runs: Sequence[Run]) -> Table:
    table = Table(title="Runs, newest first")
    for column in ("run", "task", "state", "rounds", "reason"):
        table.add_column(column, no_wrap=column != "reason")
    for each in runs:
        table.add_row(*map(Text, (each.run, each.task, _state(each), str(each.rounds), reason_of(each))))
    return table


def _state(run: Run) -> str:
    state, silent = state_of(run), time.time() - run.heard
    if state != "running" or abs(silent) <= ALIVE_S:
        return state
    return f"{state}, silent for {span(silent)}" if silent > 0 else f"{state}, clock {span(-silent)} ahead"


def _run_lines(run: Run, last: Sequence[Round], facts: Sequence[str]) -> Text:
    lines = [f"{run.run}:"]
    state = state_of(run)
    if state == CRASHED:
        lines += [f"  {each}" for each in (f"{state}: {reason_of(run)}", advice_for(run)) if each]
    elif state == "failed":
        lines.append(f"  failed: {run.reason.removeprefix(INCOMPLETE)}")
    elif state == "running" and "phase" not in run.present:
        lines.append(f"  {NOT_YET}")
    elif state == "running":
        now = run.present
        aim = now.get("replicas") if now.get("unit") != "clients" else 0
        lines.append(
            f"  round {now.get('round')} of {now.get('rounds')}, {now.get('phase')}: "
            f"{done_of(now)}{f', {aim} aimed for' if aim else ''}"
        )
    if last:
        row = last[-1].row
        measured = f", {figures_text(row.metrics)}" if row.metrics else ""
        blocks = numbered(row.blocks, "block")
        why = row.reason if row.outcome == "aborted" else row.left_out
        lines.append(
            f"  last round {row.round}: {row.outcome}{measured}"
            f"{f', {row.replicas} replicas, {blocks}' if row.blocks else ''}"
            f"{f', amplification {row.amplification:.2f}' if row.amplification is not None else ''}"
            f"{f', {row.lacking}' if row.lacking else ''}{f' ({why})' if why else ''}"
        )
    return Text("\n".join(lines + [f"  {line}" for line in facts]))


def _seen_table(clients: Sequence[Client]) -> Table:
    table = Table(title="Clients")
    for column in ("name", "client", "link", "last seen"):
        table.add_column(column, no_wrap=True)
    for each in clients:
        seen = f"{span(time.time() - each.last_seen)} ago"
        table.add_row(*map(Text, (each.name or "-", each.client, each.link or "-", seen)))
    return table
