"""Views of a run for people: a live view while it runs, tables when it is over. Reads only the store."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedgc.config import RunConfig, known
from fedgc.errors import BadSetting, numbered
from fedgc.history import LEFT_OUT, BestModel, ClientRow, Score
from fedgc.messages import SUMMED
from fedgc.run.client_figures import means_of
from fedgc.run.client_notes import LOST
from fedgc.store.views import Round, Run
from fedgc.store.work import ClientWork, settled

PIPE_WIDTH: Final = 120
BAR_WIDTH: Final = 40
RECENT: Final = 5  # rounds shown as lines
LONG_S: Final = 120  # longer times are in minutes
EXACT_S: Final = 100  # shorter durations are in seconds, those from HOUR_S on in hours
HOUR_S: Final = 3600
PACED: Final = 10  # rounds used for an estimate


def terminal(*, stderr: bool = False) -> Console:
    """Return the console: as wide as the terminal, and wide enough for every table in a pipe.

    Names of figures, clients and runs may have any characters, so none of them are markup or emoji.
    """
    console = Console(stderr=stderr, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    return console


def megabytes(count: float) -> str:
    """Return a size in readable units.

    >>> megabytes(1_234_567), megabytes(950)
    ('1.23 MB', '0.95 kB')
    """
    if count >= 1e6:
        return f"{count / 1e6:.2f} MB"
    return f"{count / 1e3:.2f} kB"


def duration(seconds: float) -> str:
    """Return a duration in readable units.

    >>> duration(3.64), duration(100.0), duration(3636.4), duration(90_000.0)
    ('3.64 s', '1 min 40 s', '1 h 1 min', '25 h 0 min')
    """
    if seconds < EXACT_S:
        return f"{seconds:.3g} s"
    if seconds < HOUR_S:
        return f"{round(seconds) // 60} min {round(seconds) % 60} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min"


def accuracy(rounds: Sequence[Round]) -> float | None:
    """Return the newest measured accuracy."""
    for each in reversed(rounds):
        if "accuracy" in each.row.metrics:
            return each.row.metrics["accuracy"]
    return None


def newest_metrics(rounds: Sequence[Round]) -> Mapping[str, float]:
    """Return the metrics of the newest measured model."""
    return next((each.row.metrics for each in reversed(rounds) if each.row.metrics), {})


def partial_rounds(rounds: Sequence[Round]) -> str:
    """Return how many models lack samples, in words; empty if none does."""
    made = [each.row for each in rounds if each.row.outcome in SUMMED]
    shares = [row.coverage for row in made if row.lacking and row.coverage is not None]
    if not shares:
        return ""
    share = math.floor(100 * sum(shares) / len(shares))
    return f"{len(shares)} of them with less than all samples ({share}% on average)"


def round_line(each: Round) -> str:
    """Return one round as one line, for logs and pipes."""
    row = each.row
    measured = "".join(f"  {name} {value:.3f}" for name, value in sorted(row.metrics.items()))
    missing = f", short of {numbered(len(row.short), 'chunk')}" if row.short and row.blocks else ""
    missing += f", {row.lacking}" if row.lacking else ""
    what = (
        f"finished chunks counted, {numbered(row.blocks, 'block')}" if row.blocks else "local steps counted"
    )
    counted = "" if row.outcome == "skipped" else f"{each.counted} of {each.finished} {what}, "
    if not (row.blocks or row.replicas):
        counted = f"{row.covered} of {numbered(row.chunks, 'stock client')} answered, "
    why = f"  ({row.reason})" if row.outcome == "aborted" or LEFT_OUT in row.reason else ""
    return (
        f"round {row.round}: {row.outcome}{missing} in {row.working_s + row.collecting_s:.2f} s, {counted}"
        f"up {megabytes(each.up_bytes)}, down {megabytes(each.down_bytes)}{measured}{why}"
    )


def live_view(
    total: int,
    present: Mapping[str, Any],
    rounds: Sequence[Round],
    notes: Iterable[str],
    scores: Sequence[Score] = (),
    best: BestModel | None = None,
) -> RenderableType:
    """Return the live view of the run."""
    last = rounds[-1].row.round if rounds else 0
    left = time_left(total, rounds)
    head = Table.grid(padding=(0, 1))
    head.add_row(
        "rounds",
        ProgressBar(total=total, completed=last, width=BAR_WIDTH),
        f"{last} of {total}{f', about {left} left' if left else ''}",
    )
    covered, chunks = int(present.get("covered", 0)), int(present.get("chunks", 0) or 1)
    aim = f" ({present['replicas']} aimed for)" if present.get("replicas") else ""
    phase = f"{present['phase']}: {done_of(present)}{aim}" if "phase" in present else "waiting"
    head.add_row("this round", ProgressBar(total=chunks, completed=covered, width=BAR_WIDTH), phase)
    scored = {each.client: f"{figures_text(each.metrics)} after round {each.round}" for each in scores}
    lines = [Text(round_line(each), style="dim") for each in rounds[-RECENT:]]
    note_lines = (Text(note, style="yellow") for note in notes)
    parts: list[RenderableType] = [head, Text(_figures(rounds), style="bold")]
    if best is not None:
        parts.append(Text(f"best model: {best}", style="bold"))
    return Group(*parts, _progress(present, scored), *lines, *note_lines)


def time_left(total: int, rounds: Sequence[Round]) -> str:
    """Return the estimated time of the remaining rounds, from the duration of recent ones."""
    begun = [each.row.started for each in rounds[-PACED:]]
    took = sorted(later - earlier for earlier, later in pairwise(begun) if later > earlier)
    rounds_left = total - rounds[-1].row.round if rounds else 0
    if not took or rounds_left <= 0:
        return ""
    seconds = rounds_left * took[len(took) // 2]
    return f"{seconds / 60:.0f} min" if seconds >= LONG_S else f"{seconds:.0f} s"


def _figures(rounds: Sequence[Round]) -> str:
    """Return the totals of the rounds so far, in one line."""
    reached = accuracy(rounds)
    up, down = sum(each.up_bytes for each in rounds), sum(each.down_bytes for each in rounds)
    outcomes = [each.row.outcome for each in rounds]
    counts = ", ".join(f"{outcomes.count(each)} {each}" for each in dict.fromkeys(outcomes)) or "no round yet"
    why = f" ({rounds[-1].row.reason})" if rounds and rounds[-1].row.reason else ""
    others = figures_text(newest_metrics(rounds)) or "no figure measured yet"
    score = f"accuracy {reached:.3f}" if reached is not None else others
    return f"{score}; up {megabytes(up)}, down {megabytes(down)}; gate: {counts}{why}"


def done_of(present: Mapping[str, Any]) -> str:
    """Return the progress of the current round.

    >>> done_of({"covered": 3, "chunks": 8}), done_of({"covered": 2, "chunks": 4, "unit": "clients"})
    ('3 of 8 chunks have a replica', '2 of 4 clients are done')
    """
    done = "clients are done" if present.get("unit") == "clients" else "chunks have a replica"
    return f"{present.get('covered')} of {present.get('chunks')} {done}"


def _progress(present: Mapping[str, Any], scored: Mapping[str, str]) -> RenderableType:
    """Return each client's progress in this round, and its newest figures."""
    table = Table.grid(padding=(0, 1))
    for each in present.get("clients", ()):
        finished, held = int(each["finished"]), int(each.get("held", 0))
        what = "steps" if present.get("unit") == "clients" else "chunks"
        trains = what == "steps" and not finished  # clients report their steps when they have done them
        done = f"trains for {held}" if trains else f"{finished} of {held}"
        work = f"{done} {what}" if held else "no work now"
        state = f"{work}, {each.get('link') or 'no link'}" if each["present"] else "gone"
        name = Text(each["name"] or each["client"], style="" if each["present"] else "red")
        progress = ProgressBar(total=max(1, held), completed=finished, width=BAR_WIDTH)
        table.add_row(name, progress, state, Text(scored.get(each["client"], "")))
    return table


def unit_of(rounds: Sequence[Round], config: RunConfig | None = None) -> str:
    """Return the unit of work: by the settings, if known; an exchange of local work has no blocks."""
    if config is not None:
        if config.client_app == "stock":
            return "answers"
        return "local steps" if config.work == "local" else "chunks"
    local = any(each.row.outcome in SUMMED and not each.row.blocks for each in rounds)
    return "local steps" if local else "chunks"


def gate_table(
    rounds: Sequence[Round], rows: Mapping[str, Sequence[tuple[int, ClientRow]]], round_steps: int
) -> Table:
    """Return the savings of local work: skipped exchanges, and steps that were not discarded.

    A skipped round saves the mean cost of an exchange in this run. The model that an exchange makes is sent
    in the next round, which may be a skipped one. A server that drops every client that has not done all its
    steps, `round_steps` in each round since the last exchange, would have lost that work.
    """
    exchanged = [each for each in rounds if each.row.outcome in SUMMED]
    skipped = sum(each.row.outcome == "skipped" for each in rounds)
    paid = [each for each in rounds if each.row.outcome == "skipped" or each.row.outcome in SUMMED]
    cost = sum(each.up_bytes + each.down_bytes for each in paid) / max(1, len(exchanged))
    partial = target = 0
    for each in rounds:
        target += 0 if each.row.outcome in ("empty", "aborted") else round_steps
        if each in exchanged:
            counted = [
                row.counted for own in rows.values() for number, row in own if number == each.row.round
            ]
            partial += sum(steps for steps in counted if steps < target)
            target = 0
    table = Table(title="Local work", show_header=False)
    table.add_row("rounds skipped", f"{skipped} of {len(rounds)}")
    table.add_row("bytes saved by that", megabytes(skipped * cost))
    table.add_row("steps counted that a dropping server would have lost", str(partial))
    return table


def skips_message(run: Run, skipped: int) -> str:
    """Return the message on a run's skipped rounds; empty if there were none."""
    config = config_of(run)
    return config.skips_message(skipped, run.rounds) if config else ""


def config_of(run: Run) -> RunConfig | None:
    """Return the settings of a run, or None if this version cannot read them."""
    try:
        return RunConfig.read(known(run.settings))
    except BadSetting:
        return None


def figures_text(metrics: Mapping[str, float]) -> str:
    """Return figures as one line.

    >>> figures_text({"accuracy": 0.91234, "loss": 0.25})
    'accuracy 0.9123, loss 0.25'
    """
    return ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())


def scores_table(
    title: str, scores: Sequence[Score], names: Mapping[str, str], mean: Mapping[str, float]
) -> Table:
    """Return the figures of each client, and the mean of those of the newest round in the last line."""
    figures = sorted({name for each in scores for name in each.metrics})
    table = Table(title=title)
    table.add_column("client", no_wrap=True)
    for column in ("round", "samples", *figures):
        table.add_column(Text(column), justify="right", no_wrap=True)
    for each in sorted(scores, key=lambda score: names.get(score.client) or score.client):
        values = (f"{each.metrics[name]:.4g}" if name in each.metrics else "-" for name in figures)
        name = Text(names.get(each.client) or each.client)
        table.add_row(name, str(each.round), str(each.samples), *values)
    if mean:
        newest = _of_newest_round(scores)
        total = str(sum(each.samples for each in newest))
        values = (f"{mean[name]:.4g}" if name in mean else "-" for name in figures)
        table.add_section()
        table.add_row("mean", str(newest[0].round), total, *values)
    return table


def mean_of(scores: Sequence[Score], config: RunConfig | None) -> dict[str, float]:
    """Return the means of the figures of the newest round, weighted as those of the run.

    >>> of_round = [Score(2, "a", 10, {"accuracy": 0.5}), Score(2, "b", 30, {"accuracy": 0.9})]
    >>> mean_of([*of_round, Score(1, "c", 60, {"accuracy": 0.1})], None)
    {'accuracy': 0.8}
    """
    newest = _of_newest_round(scores)
    of = ((each.client, each.samples, each.metrics) for each in newest)
    return means_of(of, (config or RunConfig()).largest_share)


def _of_newest_round(scores: Sequence[Score]) -> Sequence[Score]:
    newest = max((each.round for each in scores), default=0)
    return [each for each in scores if each.round == newest]


def summary(
    rounds: Sequence[Round],
    seconds: float,
    best: BestModel | None = None,
    *,
    unit: str = "",
    resumed: bool = False,
    at_end: int = 0,
) -> Table:
    """Return the run as one small table; `seconds` are those since it was started, or `resumed`.

    `at_end` local steps are in no sum, and no round has settled them.
    """
    unit = unit or unit_of(rounds)
    table = Table(title="The run", show_header=False)
    reached = accuracy(rounds)
    others = {name: value for name, value in newest_metrics(rounds).items() if name != "accuracy"}
    finished, counted = settled(rounds, local=unit == "local steps")
    finished += at_end
    rows = [each.row for each in rounds]
    outcomes = [row.outcome for row in rows]
    blocks = Counter(row.blocks for row in rows)
    last = f"{rows[-1].lacking} in the last round" if rows[-1].lacking else ""
    skipped = (sum(r.skips for r in rows), sum(r.takes for r in rows))
    pruned = (sum(r.pruned for r in rows), sum(r.repairs for r in rows))
    in_rounds = [row.working_s + row.collecting_s for row in rows]
    facts = {
        "rounds": ", ".join(f"{outcomes.count(each)} {each}" for each in dict.fromkeys(outcomes)),
        "accuracy": f"{reached:.3f}" if reached is not None else "" if others else "not measured",
        "figures": figures_text(others),
        "best model": str(best) if best is not None else "",
        "time": f"{seconds:.1f} s since the resume; rounds of all starts {sum(in_rounds):.1f} s"
        if resumed
        else f"{seconds:.1f} s, of which rounds {sum(in_rounds):.1f} s",
        "bytes up": megabytes(sum(each.up_bytes for each in rounds)),
        "bytes down": megabytes(sum(each.down_bytes for each in rounds)),
        "bytes of control": megabytes(sum(each.control_bytes for each in rounds)),
        "samples counted": "; ".join(filter(None, (partial_rounds(rounds), last))),
        "work counted": f"{counted} of {finished} {unit} done",
        "work discarded": f"{1 - counted / finished:.1%}" if finished else "none was finished",
        "chunks skipped, taken": f"{skipped[0]}, {skipped[1]}" if any(blocks) or any(skipped) else "",
        "uploads pruned, repaired": f"{pruned[0]}, {pruned[1]}" if any(blocks) or any(pruned) else "",
        "blocks": ", ".join(f"{b} in {numbered(n, 'round')}" for b, n in sorted(blocks.items()) if b),
    }
    for name, value in facts.items():
        if value:
            table.add_row(name, value)
    return table


def faults_of(rows: Iterable[tuple[int, ClientRow]]) -> str:
    """Return the faults of a client in its rounds: each once, the last loss with its rounds.

    >>> faults_of([(1, ClientRow("a")), (6, ClientRow("a", failure="lost")), (9, ClientRow("a"))])
    'lost in round 6, back in round 9'
    """
    lost_in, back_in, losses = 0, 0, 0
    others: dict[str, None] = {}
    for number, row in rows:
        if row.failure == LOST:
            losses += not lost_in or bool(back_in)
            lost_in, back_in = (number, 0) if not lost_in or back_in else (lost_in, 0)
        elif row.failure:
            others[row.failure] = None
        elif lost_in and not back_in:
            back_in = number
    times = f"lost {losses} times, last" if losses > 1 else LOST
    lost = f"{times} in round {lost_in}" + (f", back in round {back_in}" if back_in else "") if losses else ""
    return "; ".join(filter(None, (lost, ", ".join(others)))) or "none"


def clients_table(
    rows: Mapping[str, Sequence[tuple[int, ClientRow]]],
    names: Mapping[str, str],
    work: Mapping[str, ClientWork],
) -> Table:
    """Return each client's work, summed over its rounds."""
    table = Table(title="The clients")
    table.add_column("client", no_wrap=True)
    for column in ("rounds", "finished", "counted", "discarded", "s per step", "up", "down"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("faults")
    for client, entries in sorted(rows.items(), key=lambda each: names.get(each[0], each[0])):
        own = [row for _, row in entries]
        done = work.get(client, ClientWork())
        steps = [row.step_s for row in own if row.step_s is not None]
        table.add_row(
            Text(names.get(client) or client),
            str(done.rounds),
            str(done.finished),
            str(done.counted),
            str(done.discarded),
            f"{sum(steps) / len(steps):.4f}" if steps else "-",
            megabytes(sum(row.up_bytes for row in own)),
            megabytes(sum(row.down_bytes for row in own)),
            Text(faults_of(entries)),
        )
    return table
