"""The report of a run as one HTML page: no script, nothing from another machine, made to be printed.

A policy in the page allows its own style and nothing else, so a name that a client has chosen could not load
or run anything even if it were not escaped.
"""

import base64
import hashlib
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

from fedgc.store.views import labels_of
from fedgc.web.app import page_file
from fedgc.web.markup import Markup, element, joined, line_chart, table
from fedgc.web.plans import PlanMade
from fedgc.web.report import ClientShare, Privacy, RunReport, Samples

MOST_CLIENTS: Final = 500  # in the table; --json has all
MOST_LOST: Final = 60
MOST_REFUSALS: Final = 60
MOST_PLANS: Final = 100
MOST_POINTS: Final = 600
MINUTE_S: Final = 60.0
UNREPORTED: Final = (
    "Work that a client had done when its process was killed is not included unless it had reported it."
)
WAITED: Final = (
    "“Waited for” counts the rounds with a sum in which no other counted client took longer for its model, "
    "its training and its upload. “Share of data” is of the samples that clients have announced to the run."
)
EPSILON: Final = (
    "Epsilon spent for each site: {:.3f}, at the descriptor's delta. It does not hold against sites that "
    "collude, which know their own noise."
)
CLIENT_EPSILON: Final = (
    "Epsilon spent for each client: {:.3f}, at privacy.delta. It holds for those who see the models, not for "
    "the server, which adds the noise."
)
RECORD_EPSILON: Final = (
    "Each client has added noise to its local steps, and counts the epsilon of its records itself: at most "
    "{:.3f} (privacy.epsilon), at privacy.delta."
)
RECORD_NOISE: Final = "Each client has added noise to its local steps, without a limit of epsilon."


def report_page(report: RunReport, now: float) -> str:
    """Return the page."""
    footer = element("footer", f"Made {_moment(now)}.", class_="muted")
    return page_of(report.run.run, *_sections(report), footer)


def page_of(title: str, *parts: Markup) -> str:
    """Return a page of these parts with this style."""
    style = page_file("report.css").decode()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", f"fedgc: {title}"),
        element("style", Markup(style)),
    )
    return f"<!doctype html>\n{element('html', head, element('body', *parts), lang='en')}\n"


def _sections(report: RunReport) -> Iterator[Markup]:
    yield element("h1", report.run.run)
    yield from _head(report)
    yield _numbers(report)
    yield _charts(report)
    yield _section("What was counted", _outcomes(report))
    yield _section("What was lost, and why", _lost(report))
    yield _section("Clients", _clients(report.clients))
    yield _section("Bytes", _bytes(report))
    yield _section("Privacy", _privacy(report))
    yield _section("Predictions and what happened", _predictions(report))
    yield _section("Settings", _settings(report))


def _section(title: str, content: Markup) -> Markup:
    return element("section", element("h2", title), content)


def _paragraph(text: str, *, muted: bool = False) -> Markup:
    return element("p", text, class_="muted") if muted else element("p", text)


# ---- the head


def _head(report: RunReport) -> Iterator[Markup]:
    run = report.run
    ended = f", ended {_moment(run.ended)}" if run.ended is not None else ""
    yield _paragraph(
        f"Task {run.task}, {report.work or 'unknown'} work. Began {_moment(run.started)}{ended}."
    )
    first, *others = report.why
    yield element("p", first, class_="good" if report.state == "completed" else "bad")
    yield element("ul", *(element("li", line) for line in others))


def _numbers(report: RunReport) -> Markup:
    share = report.counted / report.finished if report.finished else None
    facts = [
        ("rounds", f"{len(report.rounds)}", ", ".join(f"{e.rounds} {e.outcome}" for e in report.outcomes)),
        ("time of the rounds", _time(report.seconds), ""),
        (f"{report.unit} counted", f"{report.counted}", f"{_percent(share)} of {report.finished} reported"),
        (f"{report.unit} lost", f"{report.lost_work}", "reported, and in no sum"),
        ("samples counted", *_samples_fact(report.samples)),
        *((each.name, f"{each.last:.4g}", f"{each.first:.4g} at first") for each in report.figures),
    ]
    if report.best is not None:
        facts.append(("best model", f"version {report.best.version}", str(report.best)))
    return element(
        "dl",
        *(
            element("div", element("dt", name), element("dd", value), element("dd", more))
            for name, value, more in facts
        ),
    )


def _samples_fact(samples: Samples | None) -> tuple[str, str]:
    if samples is None:
        return "unknown", "no round has recorded its samples"
    words = f"mean of {samples.rounds} rounds; least {_percent(samples.least_share)}"
    return _percent(samples.mean_share), words


def _charts(report: RunReport) -> Markup:
    rows = [each.row for each in report.rounds]
    charts = [
        line_chart(name, _thinned([(row.round, row.metrics[name]) for row in rows if name in row.metrics]))
        for name in (each.name for each in report.figures)
    ]
    seconds = _thinned([(row.round, row.working_s + row.collecting_s) for row in rows])
    return element("div", *charts, line_chart("seconds of a round", seconds), class_="charts")


def _thinned(points: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    """Return at most `MOST_POINTS` of them, the last one too."""
    every = -(-len(points) // MOST_POINTS) or 1
    return points[::-1][::every][::-1]


# ---- what was counted and lost


def _outcomes(report: RunReport) -> Markup:
    head = ("outcome", "most frequent reason", "rounds", "finished", "counted", "seconds", "bytes")
    rows = [
        (
            each.outcome,
            each.reason or "-",
            f"{each.rounds}",
            f"{each.finished}",
            f"{each.counted}",
            f"{each.seconds:.1f}",
            _size(each.bytes),
        )
        for each in report.outcomes
    ]
    notes = [_paragraph(f"Finished and counted are {report.unit}.", muted=True)]
    if report.samples is not None:
        known = report.samples
        notes.append(
            _paragraph(
                f"Of {known.known} known samples, {known.whole} of {known.rounds} rounds that wanted a sum "
                f"had all; the mean share was {_percent(known.mean_share)}."
            )
        )
        notes += [_paragraph(known.left_out)] if known.left_out else []
    if report.folded:
        notes.append(
            _paragraph(
                f"Client rows of {report.folded} rounds were folded: the tables of losses and of clients "
                "lack them."
            )
        )
    return joined([table(head, rows, 2), *notes])


def _lost(report: RunReport) -> Markup:
    return joined([*_lost_work(report), _paragraph(UNREPORTED, muted=True), *_refusals(report)])


def _lost_work(report: RunReport) -> Iterator[Markup]:
    if not report.lost:
        yield _paragraph("No finished work was lost, and no client failed in a round.")
        return
    rows = [
        (each.name, each.why, f"{each.rounds}", f"{each.first}", f"{each.last}", f"{each.amount}")
        for each in report.lost[:MOST_LOST]
    ]
    yield table(("client", "why", "rounds", "first", "last", f"{report.unit} lost"), rows, 2)
    yield from _more(len(report.lost), MOST_LOST)


def _refusals(report: RunReport) -> Iterator[Markup]:
    if not report.refusals:
        return
    names = labels_of(report.clients)
    rows = [
        (_moment(each.now), each.kind, names.get(each.who) or each.who or "-", each.what)
        for each in report.refusals[-MOST_REFUSALS:]
    ]
    yield table(("at", "event", "client", "what"), rows, 4)
    yield from _more(len(report.refusals), MOST_REFUSALS)


def _more(count: int, shown: int) -> Iterator[Markup]:
    if count > shown:
        yield _paragraph(f"{count - shown} more are not shown.", muted=True)


# ---- clients


def _clients(clients: Sequence[ClientShare]) -> Markup:
    if not clients:
        return _paragraph("No client has worked in this run.")
    head = (
        "client", "last failure", "samples", "share of data", "rounds", "finished", "counted", "lost",
        "steps", "s per step", "at work", "transfer", "waited for", "failures", "refused", "up", "down",
    )  # fmt: skip
    labels = labels_of(clients)
    rows = [_client(each, labels[each.client]) for each in clients[:MOST_CLIENTS]]
    note = _paragraph(WAITED, muted=True)
    return joined([table(head, rows, 2), *_more(len(clients), MOST_CLIENTS), note])


def _client(each: ClientShare, label: str) -> tuple[str, ...]:
    site = f" ({each.site})" if each.site else ""
    return (
        f"{label}{site}",
        each.last_failure or "-",
        "-" if each.samples is None else f"{each.samples}",
        _percent(each.data_share),
        f"{each.rounds}",
        f"{each.finished}",
        f"{each.counted}",
        f"{each.lost}",
        f"{each.steps}",
        "-" if each.step_s is None else f"{each.step_s:.4f}",
        _time(each.busy_s),
        f"{each.transfer_s:.1f} s",
        f"{each.waited}",
        f"{each.failures}",
        f"{each.refused}",
        _size(each.up_bytes),
        _size(each.down_bytes),
    )


# ---- bytes, privacy, predictions, settings


def _bytes(report: RunReport) -> Markup:
    rows = [
        (name, _size(report.total(total)))
        for name, total in (
            ("updates and codewords, to the server", "up_bytes"),
            ("models, from the server", "down_bytes"),
            ("all other messages", "control_bytes"),
        )
    ]
    if report.saved is not None:
        rows += [
            ("all of it", _size(report.saved.sent)),
            ("plain averaging, which sends a model each way in every round", _size(report.saved.plain)),
            ("saved by skipped rounds", _size(report.saved.by_gate)),
            ("saved in all other rounds", _size(report.saved.by_code)),
        ]
    return table(("what", "bytes"), rows)


def _privacy(report: RunReport) -> Markup:
    privacy = report.privacy
    words, seen = EPSILON, f"{privacy.releases} sums, and no update of one site."
    seen = f"Updates were masked: the server has seen {seen}"
    if privacy.secrecy != "masked":
        words, seen = CLIENT_EPSILON, f"the update of every client in {privacy.releases} exchanges."
        seen = f"Secrecy was {privacy.secrecy}: the server has read {seen}"
    return _paragraph(f"{seen} {_spent(privacy, words)}")


def _spent(privacy: Privacy, words: str) -> str:
    if privacy.epsilon is not None:
        return words.format(privacy.epsilon)
    if privacy.of_records is not None:
        return RECORD_EPSILON.format(privacy.of_records) if privacy.of_records else RECORD_NOISE
    return "No differential privacy." if privacy.releases else "No exchange has spent any epsilon."


def _predictions(report: RunReport) -> Markup:
    found = report.predictions
    if not found.plans:
        return _paragraph("No plan was made.")
    words = "No plan has both a prediction and a round."
    if found.median_ratio is not None:
        words = (
            f"In {found.within} of {found.compared} plans with a prediction, the median round was within the "
            f"predicted band. Measured over predicted time, median: {found.median_ratio:.2f}."
        )
    head = ("from round", "reason", "replicas", "predicted", "band", "took (median)")
    rows = [_plan(each) for each in found.plans[:MOST_PLANS]]
    return joined([_paragraph(words), table(head, rows, 2), *_more(len(found.plans), MOST_PLANS)])


def _plan(each: PlanMade) -> tuple[str, ...]:
    return (
        f"{each.round}",
        each.reason,
        "-" if each.replicas is None else f"{each.replicas}",
        _seconds(each.predicted_s),
        "-" if each.band_s is None else f"{each.band_s[0]:.3g} to {each.band_s[1]:.3g} s",
        _seconds(each.took_s),
    )


def _settings(report: RunReport) -> Markup:
    chosen = [(each.name, f"{each.value}") for each in report.settings if not each.usual]
    usual = [(each.name, f"{each.value}") for each in report.settings if each.usual]
    rest = element(
        "details", element("summary", f"{len(usual)} settings with their defaults"),
        table(("setting", "value"), usual, 2), open="",
    )  # fmt: skip
    shown = table(("setting", "value"), chosen, 2) if chosen else _paragraph("All settings are the defaults.")
    return joined([shown, rest])


# ---- words


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.3g} s"


def _time(seconds: float) -> str:
    """Return a time in words; the largest unit alone could drop almost half of it.

    >>> _time(1.84), _time(75.4), _time(7140)
    ('1.84 s', '1 min 15 s', '1 h 59 min')
    """
    if seconds < MINUTE_S:
        return _seconds(seconds)
    minutes, rest = divmod(round(seconds), 60)
    hours, left = divmod(minutes, 60)
    return f"{hours} h {left} min" if hours else f"{minutes} min {rest} s"


def _size(count: int) -> str:
    """Return a number of bytes in words.

    >>> _size(950), _size(1_234_567), _size(-2_000)
    ('950 B', '1.23 MB', '-2 kB')
    """
    size, units = float(abs(count)), ["B", "kB", "MB", "GB", "TB"]
    while size >= 1000 and len(units) > 1:
        size, units = size / 1000, units[1:]
    return f"{'-' if count < 0 else ''}{size:.3g} {units[0]}"


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
