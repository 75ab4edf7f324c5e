"""The page of a sweep: time against bytes for each scenario, a table, and the recommended settings."""

import html
import json
import math
from typing import Final

from fedgc.sim.sweep import Swept, Trial
from fedgc.sim.sweep_file import Settings
from fedgc.sim.timeline import STYLE, ticks_of

WIDTH, HEIGHT, LEFT, BELOW = 640, 320, 60, 40
LABEL: Final = 'font-size="11" fill="currentColor"'
UNTRAINED: Final = (
    "Steps beyond local-steps are not counted. Nothing is trained: settings that exchange less often need "
    "fewer bytes, and what they cost in accuracy is not seen here."
)


def words_of(settings: Settings) -> str:
    """Return settings in one line.

    >>> words_of({"timing.quorum": 0.5, "links.codec": "int8"})
    'timing.quorum=0.5 links.codec=int8'
    """
    return " ".join(f"{name}={value}" for name, value in settings.items()) or "the settings"


def toml_of(settings: Settings) -> str:
    """Return settings as a table for `pyproject.toml`.

    >>> print(toml_of({"timing.quorum": 0.5, "links.codec": "int8"}))
    [tool.flwr.app.config]
    timing.quorum = 0.5
    links.codec = "int8"
    """
    lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
    return "\n".join(["[tool.flwr.app.config]", *lines])


def sweep_page(swept: Swept, style: str = "") -> str:
    """Return a self-contained page; `style` is the style sheet of the web page."""
    parts = "".join(_section(swept, each.name) for each in swept.sweep.scenarios)
    best = swept.recommended
    about = html.escape(f"To {swept.what}, means over seeds. {'' if swept.sweep.goal else UNTRAINED}")
    advice = (
        f"<section><h2>Recommended</h2><pre>{html.escape(toml_of(swept.settings(best)))}</pre></section>"
        if best is not None
        else f"<section><p>{swept.unadvised}</p></section>"
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>fedgc: sweep</title><style>{style}{STYLE}</style></head><body><main>"
        f"<section><h1>Sweep</h1><p>{about}</p></section>{advice}{parts}</main></body></html>"
    )


def _section(swept: Swept, scenario: str) -> str:
    trials = [each for each in swept.trials if each.scenario == scenario]
    best, frontier = swept.recommended, swept.frontier(scenario)
    names = ("settings", "seconds", "MB", "exchanged rounds", html.escape(swept.last_name), "")
    rows = "".join(
        f"<tr><td>{'<td>'.join(_cells(swept, each, each.combination in frontier))}</tr>"
        for each in sorted(trials, key=lambda each: each.seconds)
    )
    return (
        f"<section><h2>{html.escape(scenario)}</h2>"
        f"<div class=scroll>{_svg(swept, trials, frontier, best)}</div>"
        f"<div class=scroll><table><thead><tr><th>{'<th>'.join(names)}</tr></thead>"
        f"<tbody>{rows}</tbody></table></div></section>"
    )


def _cells(swept: Swept, trial: Trial, is_best: bool) -> tuple[str, ...]:
    return (
        html.escape(words_of(swept.sweep.combinations[trial.combination])),
        *(f"{each:.3g}" if trial.seconds < math.inf else "-" for each in (trial.seconds, trial.megabytes)),
        f"{trial.exchanges:.0%}",
        swept.last_words(trial),
        html.escape(trial.ended) or ("frontier" if is_best else ""),
    )


def _svg(swept: Swept, trials: list[Trial], frontier: frozenset[int], best: int | None) -> str:
    """Return a point for each combination: seconds to the right, megabytes upward."""
    there = [each for each in trials if each.seconds < math.inf]
    if not there:
        return ""
    most_s, most_mb = (max(getattr(each, name) for each in there) or 1.0 for name in ("seconds", "megabytes"))

    def x(seconds: float) -> str:
        return f"{LEFT + (WIDTH - LEFT - 20) * seconds / most_s:.1f}"

    def y(megabytes: float) -> str:
        return f"{HEIGHT - BELOW - (HEIGHT - BELOW - 20) * megabytes / most_mb:.1f}"

    points = [
        f'<circle cx="{x(each.seconds)}" cy="{y(each.megabytes)}" r="{7 if each.combination == best else 4}" '
        f'fill="rgb{(31, 90, 160) if each.combination in frontier else (155, 190, 225)}"><title>'
        f"{html.escape(words_of(swept.sweep.combinations[each.combination]))}: {each.seconds:.3g} s, "
        f"{each.megabytes:.3g} MB</title></circle>"
        for each in there
    ]
    below = HEIGHT - BELOW + 16
    across = "".join(f'<text x="{x(at)}" y="{below}" {LABEL}>{at:g}</text>' for at in ticks_of(most_s))
    up = "".join(f'<text x="4" y="{y(at)}" {LABEL}>{at:g}</text>' for at in ticks_of(most_mb))
    axes = (
        f'<text x="{WIDTH - 80}" y="{HEIGHT - 6}" {LABEL}>seconds</text><text x="4" y="12" {LABEL}>MB</text>'
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="100%" '
        f'style="max-width:{WIDTH}px" font-family="sans-serif">{across}{up}{axes}{"".join(points)}</svg>'
    )
