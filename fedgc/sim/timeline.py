"""The timeline of a round as a picture: each client's work over time, counted or discarded.

A row is a client, a bar a chunk: dark if counted, light if finished but in no sum, red if unfinished when the
round stopped. Beyond `MOST_ROWS` clients, those shown are evenly spaced from the fastest to the slowest. The
page embeds its picture as SVG and the given style and loads nothing from the network; the PNG is written
without a library.
"""

import html
import struct
import zlib
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedgc.sim.clock import Span
from fedgc.sim.simulate import Prediction, shown_s

MOST_ROWS: Final = 120
WIDTH, ROW, LABEL, HEAD = 1200, 9, 90, 30
LONGEST: Final = 20  # characters of a name beside its bars
COLOURS: Final = {"counted": (31, 90, 160), "discarded": (155, 190, 225), "not finished": (205, 70, 60)}
GRID: Final = (225, 225, 225)
MOST_TICKS: Final = 10
STYLE: Final = (
    "main{padding:12px}table{border-collapse:collapse}td,th{padding:.2em .8em;text-align:right}"
    "td:first-child,th:first-child{text-align:left}.scroll{overflow-x:auto}.scroll svg{min-width:640px}"
    ".box{display:inline-block;width:1.4em;height:.8em;margin:0 .4em 0 0}"
    ".box:not(:first-child){margin-left:1.2em}"
)

Pixels = NDArray[np.uint8]


def kind(span: Span) -> str:
    """Return the category of a span.

    >>> kind(Span("a", 0, 0.0, 2.0, finished=True)), kind(Span("a", 0, 0.0, 2.0, finished=False))
    ('discarded', 'not finished')
    """
    if not span.finished:
        return "not finished"
    return "counted" if span.counted else "discarded"


def shown(spans: Sequence[Span]) -> list[str]:
    """Return the clients to show, most finished chunks first, evenly thinned."""
    finished: dict[str, int] = {}
    for span in spans:
        finished[span.client] = finished.get(span.client, 0) + span.finished
    order = sorted(finished, key=lambda client: -finished[client])
    places = np.unique(np.linspace(0, len(order) - 1, min(MOST_ROWS, len(order))).round().astype(int))
    return [order[at] for at in places.tolist()] if order else []


def svg(spans: Sequence[Span], working_s: float) -> str:
    """Return the picture of one round."""
    clients = shown(spans)
    row = {client: at for at, client in enumerate(clients)}
    end_s = max([working_s, *(span.end_s for span in spans)], default=1.0) or 1.0
    scale = (WIDTH - LABEL) / end_s
    bars = [
        f'<rect x="{LABEL + span.begin_s * scale:.1f}" y="{HEAD + row[span.client] * ROW}" '
        f'width="{max((span.end_s - span.begin_s) * scale - 0.5, 0.5):.1f}" height="{ROW - 2}" '
        f'fill="rgb{COLOURS[kind(span)]}"><title>{html.escape(span.client)}: chunk {span.chunk}, '
        f"{span.begin_s:.2f} to {span.end_s:.2f} s, {kind(span)}</title></rect>"
        for span in spans
        if span.client in row
    ]
    labels = [
        f'<text x="0" y="{HEAD + at * ROW + ROW - 2}" font-size="7" fill="currentColor">'
        f"{html.escape(client if len(client) <= LONGEST else client[: LONGEST - 1] + '…')}</text>"
        for client, at in row.items()
    ]
    ticks = [
        f'<line x1="{LABEL + at * scale:.1f}" x2="{LABEL + at * scale:.1f}" y1="{HEAD - 6}" '
        f'y2="{HEAD + len(clients) * ROW}" stroke="var(--grid, rgb{GRID})"/>'
        f'<text x="{LABEL + at * scale:.1f}" y="{HEAD - 10}" font-size="10" fill="currentColor">'
        f"{at:g} s</text>"
        for at in ticks_of(end_s)
    ]
    height = HEAD + len(clients) * ROW + 4
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="100%" '
        f'font-family="sans-serif">{"".join((*ticks, *bars, *labels))}</svg>'
    )


def ticks_of(end_s: float) -> list[float]:
    """Return four to nine round numbers of seconds from 0 to the end.

    >>> ticks_of(7.3), ticks_of(0.21)
    ([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], [0.0, 0.05, 0.1, 0.15, 0.2])
    """
    power = 10.0 ** np.floor(np.log10(end_s))
    step = next(step for step in (0.1, 0.2, 0.5, 1.0, 2.0) if end_s / (step * power) < MOST_TICKS) * power
    return [round(float(at * step), 9) for at in range(int(end_s / step + 1e-9) + 1)]


def page(predictions: Sequence[Prediction], style: str = "") -> str:
    """Return a self-contained page: a table of policies, and a timeline of each that was watched.

    `style` is the style sheet of the web page, whose variables and tables this page uses.
    """
    names = ("policy", "median s", "p95 s", "up MB a round", "finished work discarded", "incomplete rounds")
    head = f"<thead><tr><th>{'<th>'.join(names)}</tr></thead>"
    rows = "".join(_table_row(each) for each in sorted(predictions, key=lambda each: each.median_s))
    legend = "".join(
        f'<span class="box" style="background:rgb{color}"></span>{name} ' for name, color in COLOURS.items()
    )
    pictures = "".join(
        f"<section><h2>{html.escape(each.policy)}: the last round</h2><p>{legend}</p>"
        f"<p>{shares(each.spans)}</p><div class=scroll>{svg(each.spans, each.working_s)}</div></section>"
        for each in predictions
        if each.spans
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>fedgc: simulated rounds</title><style>{style}{STYLE}</style></head><body><main>"
        "<section><h1>Simulated rounds</h1>"
        f"<div class=scroll><table>{head}<tbody>{rows}</tbody></table></div>"
        f"</section>{pictures}</main></body></html>"
    )


def shares(spans: Sequence[Span]) -> str:
    """Return the shares of counted, discarded and unfinished time in a round as text.

    >>> shares([Span("a", 0, 0.0, 3.0, finished=True, counted=True), Span("b", 0, 0.0, 1.0, finished=False)])
    'Of the time at work, 75% counted, 0% was discarded after it was finished, 25% was not finished.'
    """
    spent = dict.fromkeys(COLOURS, 0.0)
    for span in spans:
        spent[kind(span)] += span.end_s - span.begin_s
    counted, discarded, unfinished = (each / (sum(spent.values()) or 1.0) for each in spent.values())
    return (
        f"Of the time at work, {counted:.0%} counted, {discarded:.0%} was discarded after it was finished, "
        f"{unfinished:.0%} was not finished."
    )


def _table_row(each: Prediction) -> str:
    incomplete = sum(not result.exact for result in each.results)
    cells = (
        html.escape(each.policy),
        shown_s(each.median_s, "{:.3f}"),
        shown_s(each.p95_s, "{:.3f}"),
        f"{each.up_mb:.1f}",
        f"{each.discarded:.1%}",
        f"{incomplete} of {len(each.results)}",
    )
    return f"<tr><td>{'<td>'.join(cells)}</tr>"


def png(spans: Sequence[Span], working_s: float) -> bytes:
    """Return the same picture as a PNG file, without labels."""
    clients = shown(spans)
    row = {client: at for at, client in enumerate(clients)}
    end_s = max([working_s, *(span.end_s for span in spans)], default=1.0) or 1.0
    pixels = np.full((max(len(clients), 1) * ROW + 2, WIDTH, 3), 255, np.uint8)
    for tick in np.linspace(0, WIDTH - 1, 7).astype(int)[:-1].tolist():
        pixels[:, tick] = GRID
    for span in spans:
        if span.client in row:
            top = row[span.client] * ROW + 1
            left = int(span.begin_s / end_s * (WIDTH - 1))
            right = max(left + 1, int(span.end_s / end_s * (WIDTH - 1)) - 1)  # a gap between neighbors
            pixels[top : top + ROW - 2, left:right] = COLOURS[kind(span)]
    return encoded(pixels)


def encoded(pixels: Pixels) -> bytes:
    """Return an RGB image (height x width x 3) as PNG (ISO/IEC 15948): header, deflated rows, end."""
    height, width, _ = pixels.shape
    rows = np.zeros((height, 1 + width * 3), np.uint8)  # each row begins with filter type 0 (none)
    rows[:, 1:] = pixels.reshape(height, -1)
    parts = (
        _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)),
        _chunk(b"IDAT", zlib.compress(rows.tobytes(), 9)),
        _chunk(b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
