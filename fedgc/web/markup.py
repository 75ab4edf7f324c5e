"""HTML as values: text is escaped unless it was made here.

Names, failures and reasons come from clients, so nothing reaches a page but by `element`.
"""

import html
import math
from collections.abc import Iterable, Sequence
from typing import Final

VOID: Final = frozenset({"meta"})
HIDDEN: Final = "\N{REPLACEMENT CHARACTER}"
WIDTH, HEIGHT = 560, 130  # of a chart
LEAST_POINTS: Final = 2
LARGE: Final = 100  # numbers at an axis without decimals


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def element(tag: str, *parts: str, **attributes: str) -> Markup:
    """Return an element; a trailing underscore of an attribute's name is left out, others become dashes.

    >>> element("td", "<b>", class_="n")
    '<td class="n">&lt;b&gt;</td>'
    >>> element("p", element("b", "a"), " & b")
    '<p><b>a</b> &amp; b</p>'
    """
    named = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items()}
    words = "".join(f' {name}="{safe(value)}"' for name, value in named.items())
    if tag in VOID:
        return Markup(f"<{tag}{words}>")
    return Markup(f"<{tag}{words}>{joined(parts)}</{tag}>")


def joined(parts: Iterable[str]) -> Markup:
    """Return these parts one after another."""
    return Markup("".join(part if isinstance(part, Markup) else safe(part) for part in parts))


def safe(text: str) -> str:
    """Return text escaped; characters that cannot be seen, or turn the direction of others, are replaced.

    >>> safe('<a href="x">'), safe("a" + chr(0x202E)) == "a" + HIDDEN
    ('&lt;a href=&quot;x&quot;&gt;', True)
    """
    return html.escape("".join(each if each.isprintable() else HIDDEN for each in text))


def table(head: Sequence[str], rows: Iterable[Sequence[str]], words: int = 1) -> Markup:
    """Return a table whose first `words` columns hold text, the others numbers."""

    def cell(tag: str, at: int, text: str) -> Markup:
        return element(tag, text) if at < words else element(tag, text, class_="n")

    made = [element("tr", *(cell("td", at, text) for at, text in enumerate(row))) for row in rows]
    top = element("tr", *(cell("th", at, text) for at, text in enumerate(head)))
    return element("div", element("table", element("thead", top), element("tbody", *made)), class_="scroll")


def line_chart(title: str, points: Sequence[tuple[float, float]], unit: str = "rounds") -> Markup:
    """Return a line chart as SVG with the least and the largest value; empty for less than two points."""
    finite = [point for point in points if math.isfinite(point[1])]
    if len(finite) < LEAST_POINTS:
        return Markup()
    (x0, x1), (y0, y1) = ((min(each), max(each)) for each in zip(*finite, strict=True))
    wide, high = WIDTH / ((x1 - x0) or 1.0), HEIGHT / ((y1 - y0) or 1.0)
    places = " ".join(f"{(x - x0) * wide:.1f},{HEIGHT - (y - y0) * high:.1f}" for x, y in finite)
    drawn = element(
        "svg",
        element("polyline", points=places, fill="none", class_="line"),
        viewBox=f"-4 -4 {WIDTH + 8} {HEIGHT + 8}",
        role="img",
        aria_label=title,
        preserveAspectRatio="none",
    )
    words = f"{title}: {y0:.4g} to {y1:.4g}, {unit} {_short(x0)} to {_short(x1)}"
    return element("figure", drawn, element("figcaption", words))


def _short(number: float) -> str:
    """Return a number without decimals, or with three digits if it is small.

    >>> _short(12.0), _short(1234.5), _short(0.00048)
    ('12', '1234', '0.00048')
    """
    return f"{number:.0f}" if abs(number) >= LARGE or number == int(number) else f"{number:.3g}"
