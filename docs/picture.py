"""Draws docs/picture.svg: how fedgc works, taken from the code that says so.

The states, what each reacts to and in what a round can end are read from the tables at the end of
`fedgc/round/machine.py` and from what their entries call; the storeys from the contract in `pyproject.toml`. Only
the strip at the top, who talks to whom, is drawn by hand. A test holds the picture against the code.

    python docs/picture.py      writes the picture anew
"""

import ast
import re
import textwrap
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

ROOT: Final = Path(__file__).parents[1]
PICTURE: Final = ROOT / "docs" / "picture.svg"
ROUND: Final = ROOT / "fedgc" / "round.py"
WIDTH: Final = 1010
LINE: Final = 17
PACKET: Final = 6.2  # how wide one is, about
GAP: Final = 150  # below the states, for what leads to which end
ENTERS: Final = {"Exchange": "COLLECTING"}  # what is made when a state begins
STYLE: Final = """
text { font: 12px system-ui, sans-serif; fill: #1b1f24; }
.head { font-weight: 600; font-size: 14px; }
.said { fill: #57606a; font-size: 11.5px; }
.floor { font-size: 11px; }
.box { fill: #f6f8fa; stroke: #57606a; }
.way { stroke: #0a58ca; stroke-width: 1.5; fill: none; marker-end: url(#tip); }
#tip path { fill: #0a58ca; }
@media (prefers-color-scheme: dark) {
  svg { background: #0d1117; }
  text { fill: #e6edf3; } .said { fill: #9da7b3; }
  .box { fill: #161b22; stroke: #9da7b3; }
  .way { stroke: #6cb6ff; } #tip path { fill: #6cb6ff; }
}
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """What one state does with one event, and where that can lead."""

    event: str
    says: str
    leads_to: frozenset[str]


# ---- what the code says


def tables(source: str) -> Mapping[str, tuple[Entry, ...]]:
    """Return the tables of a round by the name of their state."""
    tree, lines = ast.parse(source), source.splitlines()
    methods = {
        each.name: each
        for room in tree.body
        if isinstance(room, ast.ClassDef) and room.name == "Round"
        for each in room.body
        if isinstance(each, ast.FunctionDef)
    }
    return {
        name: tuple(
            Entry(ast.unparse(event), _comment(lines[does.lineno - 1]), _leads_to(does.attr, methods))
            for event, does in pairs
        )
        for name, pairs in _tables(tree)
    }


def _tables(tree: ast.Module) -> Iterator[tuple[str, list[tuple[ast.expr, ast.Attribute]]]]:
    """Yield every table at the top of the module whose values are methods of `Round`."""
    for each in tree.body:
        if not (isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)):
            continue
        for part in ast.walk(each):
            if isinstance(part, ast.Dict) and part.values:
                pairs = [
                    (event, does)
                    for event, does in zip(part.keys, part.values, strict=True)
                    if event is not None and isinstance(does, ast.Attribute)
                ]
                if all(isinstance(does.value, ast.Name) and does.value.id == "Round" for _, does in pairs):
                    yield each.target.id, pairs


def _comment(line: str) -> str:
    return line.partition("#")[2].strip()


def _leads_to(method: str, methods: Mapping[str, ast.FunctionDef]) -> frozenset[str]:
    """Return the states and outcomes that this method can lead to, by itself or by what it calls."""
    seen, waiting, found = {method}, [method], set[str]()
    while waiting:
        for call in ast.walk(methods[waiting.pop()]):
            if not isinstance(call, ast.Call):
                continue
            if isinstance(call.func, ast.Name) and call.func.id in ENTERS:
                found.add(ENTERS[call.func.id])
            if isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) == "self":
                if call.func.attr == "_close":
                    found |= _literals(call.args[0])
                elif call.func.attr in methods and call.func.attr not in seen:
                    seen.add(call.func.attr)
                    waiting.append(call.func.attr)
    return frozenset(found)


def _literals(outcome: ast.expr) -> set[str]:
    """Return the words that an outcome can be."""
    words = {
        each.value
        for each in ast.walk(outcome)
        if isinstance(each, ast.Constant) and isinstance(each.value, str)
    }
    if not words:
        raise SystemExit(f"{ROUND.name}: saw an outcome {ast.unparse(outcome)!r}, needed its words there")
    return words


def outcomes(source: str) -> Mapping[str, str]:
    """Return what the head of the file says of each outcome, by its word."""
    head = ast.get_docstring(ast.parse(source)) or ""
    block = re.search(r"^    CLOSED(.*?)\n\n", head, re.DOTALL | re.MULTILINE)
    said: dict[str, str] = {}
    for line in block.group(1).splitlines() if block else ():
        begun = re.match(r" *([a-z]+) {2,}(.+)$", line)
        word = begun.group(1) if begun else next(reversed(said))
        said[word] = f"{said.get(word, '')} {begun.group(2) if begun else line.strip()}".strip()
    return said


def storeys(manifest: str) -> list[str]:
    """Return the storeys of the house, the highest first."""
    contracts = tomllib.loads(manifest)["tool"]["importlinter"]["contracts"]
    return [re.sub(r"[()]", "", layer) for layer in contracts[0]["layers"]]


# ---- the picture


def draw(source: str, manifest: str) -> str:
    """Return the picture."""
    states, floors = tables(source), storeys(manifest)
    boxes, bottom = _states(states, outcomes(source))
    house, floor = _house(floors)
    height = max(bottom, floor) + 20
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-labelledby="title said">\n'
        '<title id="title">How fedgc works</title>\n'
        f'<desc id="said">{escape(_described(states))}</desc>\n'
        f"<style>{STYLE}</style>\n"
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
        'orient="auto"><path d="M0 0 8 4 0 8z"/></marker></defs>\n'
        + "\n".join([*_walk(), *boxes, *house])
        + "\n</svg>\n"
    )


def _described(states: Mapping[str, Sequence[Entry]]) -> str:
    """Say the picture in words, for who does not see it."""
    return " ".join(
        f"While {name.lower()}, {entry.event} can lead to {' or '.join(sorted(entry.leads_to))}."
        for name, entries in states.items()
        for entry in entries
        if entry.leads_to
    )


def _text(x: float, y: float, said: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}">{escape(said)}</text>'


def _box(x: float, y: float, wide: float, high: float) -> str:
    return f'<rect class="box" x="{x:g}" y="{y:g}" width="{wide:g}" height="{high:g}" rx="6"/>'


def _titled(x: float, y: float, wide: float, title: str, lines: Sequence[str]) -> list[str]:
    """Draw a box with a title and lines of text."""
    words = [_text(x + 12, y + 42 + LINE * n, said, "said") for n, said in enumerate(lines)]
    return [_box(x, y, wide, 36 + LINE * len(lines)), _text(x + 12, y + 22, title, "head"), *words]


def _walk() -> list[str]:
    """Draw who talks to whom: the one part that no table of the code says."""
    return [
        *_titled(10, 10, 190, "clients", ["train chunk by chunk,", "keep what is finished"]),
        *_titled(350, 10, 160, "server", ["counts copies,", "keeps one running sum"]),
        *_titled(620, 10, 140, "store", ["a row per round", "and client"]),
        '<path class="way" d="M200 30H348"/>',
        _text(274, 24, "progress, codewords", "said", "middle"),
        '<path class="way" d="M350 62H202"/>',
        _text(276, 56, "work, skip, take, model", "said", "middle"),
        '<path class="way" d="M510 30H618"/>',
        _text(564, 24, "rows, versions", "said", "middle"),
        '<path class="way" d="M620 62H512"/>',
        _text(566, 56, "speeds", "said", "middle"),
    ]


def _states(states: Mapping[str, Sequence[Entry]], said: Mapping[str, str]) -> tuple[list[str], float]:
    """Draw the states with what each reacts to, the end below them, and the ways between."""
    exchange, top, wide = [], 120.0, 750 / len(states) - 30
    texts = {name: _lines(entries, int((wide - 24) / PACKET)) for name, entries in states.items()}
    most = max(map(len, texts.values()))
    high = 36 + LINE * most
    ends = dict.fromkeys(end for entries in states.values() for entry in entries for end in entry.leads_to)
    closed = [f"{end}: {said[end]}" if end in said else end for end in sorted(ends) if end not in states]
    below = top + high + GAP
    for number, name in enumerate(states):
        x = 10 + number * (wide + 45)
        exchange += _titled(x, top, wide, name, [*texts[name], *[""] * (most - len(texts[name]))])
        exchange += _ways(name, states, (x, top, wide, high), below)
    exchange += _titled(10, below, 750, "CLOSED", closed)
    return exchange, below + 36 + LINE * len(closed)


def _lines(entries: Sequence[Entry], packets: int) -> list[str]:
    """Return what is said of these entries, in lines of no more than so many packets."""
    said = [f"{entry.event}: {entry.says}" if entry.says else entry.event for entry in entries]
    return [line for each in said for line in textwrap.wrap(each, packets, subsequent_indent="\u2003")]


def _ways(
    name: str,
    states: Mapping[str, Sequence[Entry]],
    at: tuple[float, float, float, float],
    below: float,
) -> Iterator[str]:
    """Draw where a state can lead: to the next state aside, to each outcome below."""
    x, top, wide, high = at
    if list(states)[-1] != name:  # the tables stand in the order in which a round goes through them
        yield f'<path class="way" d="M{x + wide:g} {top + high / 2:g}h43"/>'
    ends: dict[frozenset[str], list[str]] = {}
    for entry in states[name]:
        outcome = entry.leads_to.difference(states)
        if outcome:
            ends.setdefault(outcome, []).append(entry.event)
    yield f'<path class="way" d="M{x + 12:g} {top + high:g}V{below - 2:g}"/>'
    said = [f"{', '.join(sorted(events))} → {', '.join(sorted(end))}" for end, events in ends.items()]
    lines = [line for each in said for line in textwrap.wrap(each, int((wide - 24) / PACKET))]
    for row, words in enumerate(lines):
        yield _text(x + 22, top + high + 22 + LINE * row, words, "said")


def _house(floors: Sequence[str]) -> tuple[list[str], float]:
    """Draw the storeys: each imports only those below it."""
    exchange = [_text(890, 24, "each storey imports those below", "said", "middle")]
    for number, floor in enumerate(floors):
        y = 34 + 30 * number
        exchange += [
            _box(780, y, 220, 26),
            _text(890, y + 17, floor.replace(" | ", " · "), "floor", "middle"),
        ]
    return exchange, 34.0 + 30 * len(floors)


if __name__ == "__main__":
    PICTURE.write_text(draw(ROUND.read_text(), (ROOT / "pyproject.toml").read_text()))
