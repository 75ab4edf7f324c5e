"""What a person sees of a run: a live view while it runs, tables when it is over. Reads the store alone."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedgc.config import RunConfig, known
from fedgc.errors import BadSetting
from fedgc.history import ClientRow
from fedgc.store.views import Round, Run

PIPE_WIDTH: Final = 120
BAR_WIDTH: Final = 40
RECENT: Final = 5  # rounds that are shown as lines
LONG_S: Final = 120  # more is said in minutes
PACED: Final = 10  # rounds that an estimate is made from


def terminal() -> Console:
    """Return where to print: the terminal as wide as it is, a pipe wide enough for every table."""
    console = Console()
    return console if console.is_terminal else Console(width=PIPE_WIDTH)


def megabytes(count: float) -> str:
    """Return bytes as a person reads them.

    >>> megabytes(1_234_567), megabytes(950)
    ('1.23 MB', '0.95 kB')
    """
    if count >= 1e6:
        return f"{count / 1e6:.2f} MB"
    return f"{count / 1e3:.2f} kB"


def accuracy(rounds: Sequence[Round]) -> float | None:
    """Return the newest accuracy that was measured."""
    for each in reversed(rounds):
        if "accuracy" in each.row.metrics:
            return each.row.metrics["accuracy"]
    return None


def round_line(each: Round) -> str:
    """Return one round as one line, for logs and pipes."""
    row = each.row
    measured = "".join(f"  {name} {value:.3f}" for name, value in sorted(row.metrics.items()))
    missing = f", short of {len(row.short)} chunks" if row.short else ""
    missing += f", {row.lacking}" if row.lacking else ""
    what = f"finished chunks counted, {row.blocks} blocks" if row.blocks else "local steps counted"
    counted = "" if row.outcome == "skipped" else f"{each.counted} of {each.finished} {what}, "
    return (
        f"round {row.round}: {row.outcome}{missing} in {row.working_s + row.collecting_s:.2f} s, {counted}"
        f"up {megabytes(each.up_bytes)}, down {megabytes(each.down_bytes)}{measured}"
    )


def live_view(
    total: int, present: Mapping[str, Any], rounds: Sequence[Round], notes: Iterable[str]
) -> RenderableType:
    """Return the run as it stands now."""
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
    phase = f"{present.get('phase', 'waiting')}: {done_of(present)}{aim}"
    head.add_row("this round", ProgressBar(total=chunks, completed=covered, width=BAR_WIDTH), phase)
    lines = [Text(round_line(each), style="dim") for each in rounds[-RECENT:]]
    said = (Text(note, style="yellow") for note in notes)
    return Group(head, Text(_figures(rounds), style="bold"), _progress(present), *lines, *said)


def time_left(total: int, rounds: Sequence[Round]) -> str:
    """Return how long the rounds that are left will take, from one's begin to the next one's as of late."""
    begun = [each.row.started for each in rounds[-PACED:]]
    took = sorted(later - earlier for earlier, later in pairwise(begun) if later > earlier)
    rounds_left = total - rounds[-1].row.round if rounds else 0
    if not took or rounds_left <= 0:
        return ""
    seconds = rounds_left * took[len(took) // 2]
    return f"{seconds / 60:.0f} min" if seconds >= LONG_S else f"{seconds:.0f} s"


def _figures(rounds: Sequence[Round]) -> str:
    """Say in one line what the rounds so far came to."""
    reached = accuracy(rounds)
    up, down = sum(each.up_bytes for each in rounds), sum(each.down_bytes for each in rounds)
    outcomes = [each.row.outcome for each in rounds]
    counts = ", ".join(f"{outcomes.count(each)} {each}" for each in dict.fromkeys(outcomes)) or "no round yet"
    why = f" ({rounds[-1].row.reason})" if rounds and rounds[-1].row.reason else ""
    score = f"accuracy {reached:.3f}" if reached is not None else "accuracy not measured yet"
    return f"{score}; up {megabytes(up)}, down {megabytes(down)}; gate: {counts}{why}"


def done_of(present: Mapping[str, Any]) -> str:
    """Return how far the round under way is.

    >>> done_of({"covered": 3, "chunks": 8}), done_of({"covered": 2, "chunks": 4, "unit": "clients"})
    ('3 of 8 chunks have a replica', '2 of 4 clients are done')
    """
    done = "clients are done" if present.get("unit") == "clients" else "chunks have a replica"
    return f"{present.get('covered')} of {present.get('chunks')} {done}"


def _progress(present: Mapping[str, Any]) -> RenderableType:
    """Return what each client has finished of its chunks in this round."""
    table = Table.grid(padding=(0, 1))
    for each in present.get("clients", ()):
        finished, held = int(each["finished"]), int(each.get("held", 0))
        what = "steps" if present.get("unit") == "clients" else "chunks"
        state = f"{finished} of {held} {what}, {each.get('link') or 'no link'}" if each["present"] else "gone"
        name = Text(each["name"] or each["client"], style="" if each["present"] else "red")
        table.add_row(name, ProgressBar(total=max(1, held), completed=finished, width=BAR_WIDTH), state)
    return table


def unit_of(rounds: Sequence[Round]) -> str:
    """Return what work is counted in: an exchange of local work has no blocks."""
    local = any(each.row.outcome in ("synced", "approximate") and not each.row.blocks for each in rounds)
    return "local steps" if local else "chunks"


def gate_table(
    rounds: Sequence[Round], rows: Mapping[str, Sequence[tuple[int, ClientRow]]], round_steps: int
) -> Table:
    """Return what was saved in local work: exchanges that were not worth it, steps that were not thrown away.

    A skipped round saves what an exchange of this run cost in the mean. A server that drops whoever has not
    done all its steps, `round_steps` in each round since the last exchange, would have lost what that did.
    """
    exchanged = [each for each in rounds if each.row.outcome in ("synced", "approximate")]
    skipped = sum(each.row.outcome == "skipped" for each in rounds)
    cost = sum(each.up_bytes + each.down_bytes for each in exchanged) / max(1, len(exchanged))
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


def told_of_skips(run: Run, skipped: int) -> str:
    """Return what to say of a run's skipped rounds; nothing where there were none."""
    config = config_of(run)
    return config.told_of_skips(skipped, run.rounds) if config else ""


def config_of(run: Run) -> RunConfig | None:
    """Return the settings of a run, or None if this version cannot read them."""
    try:
        return RunConfig.read(known(run.settings))
    except BadSetting:
        return None


def summary(rounds: Sequence[Round], seconds: float) -> Table:
    """Return the run as one small table."""
    table = Table(title="The run", show_header=False)
    reached = accuracy(rounds)
    finished = sum(each.finished for each in rounds)
    counted = sum(each.counted for each in rounds)
    rows = [each.row for each in rounds]
    outcomes = [row.outcome for row in rows]
    blocks = Counter(row.blocks for row in rows)
    in_rounds = [row.working_s + row.collecting_s for row in rows]
    facts = {
        "rounds": ", ".join(f"{outcomes.count(each)} {each}" for each in dict.fromkeys(outcomes)),
        "accuracy": f"{reached:.3f}" if reached is not None else "not measured",
        "time": f"{seconds:.1f} s, of which rounds {sum(in_rounds):.1f} s",
        "bytes up": megabytes(sum(each.up_bytes for each in rounds)),
        "bytes down": megabytes(sum(each.down_bytes for each in rounds)),
        "bytes of control": megabytes(sum(each.control_bytes for each in rounds)),
        "samples counted": f"{rows[-1].lacking} in the last round" if rows[-1].lacking else "",
        "work counted": f"{counted} of {finished} {unit_of(rounds)} done",
        "work discarded": f"{1 - counted / finished:.1%}" if finished else "none was finished",
        "chunks skipped, taken": f"{sum(r.skips for r in rows)}, {sum(r.takes for r in rows)}",
        "uploads pruned, repaired": f"{sum(r.pruned for r in rows)}, {sum(r.repairs for r in rows)}",
        "blocks": ", ".join(f"{b} in {n} rounds" for b, n in sorted(blocks.items()) if b),
    }
    for name, value in facts.items():
        if value:
            table.add_row(name, value)
    return table


def clients_table(rows: Mapping[str, Sequence[ClientRow]], names: Mapping[str, str]) -> Table:
    """Return what each client did, summed over its rounds."""
    table = Table(title="The clients")
    table.add_column("client", no_wrap=True)
    for column in ("rounds", "finished", "counted", "discarded", "s per step", "up", "down"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("faults")
    for client, own in sorted(rows.items(), key=lambda each: names.get(each[0], each[0])):
        finished, counted = sum(row.finished for row in own), sum(row.counted for row in own)
        steps = [row.step_s for row in own if row.step_s is not None]
        table.add_row(
            Text(names.get(client) or client),
            str(sum(1 for row in own if row.finished)),
            str(finished),
            str(counted),
            str(finished - counted),
            f"{sum(steps) / len(steps):.4f}" if steps else "-",
            megabytes(sum(row.up_bytes for row in own)),
            megabytes(sum(row.down_bytes for row in own)),
            Text(", ".join(dict.fromkeys(row.failure for row in own if row.failure)) or "none"),
        )
    return table
