"""Figures of benchmarks in the pages, filled in from the files of benchmarks/results.

    <!-- result: NAME.figure .1f -->2.5<!-- /result -->

is a figure of benchmarks/results/NAME.json with a format of Python; `NAME.figure.key` is one of a figure with
keys, and `NAME[column=value; column=value].column` is of the one row with these values. A factor may stand
before the format (`1e3 .1f`). `unmeasured` in place of `result` marks a number that was typed by hand because
there is no such file yet. Readers see it with a dagger, which a line at the end of the page explains. When
there is a file, the number is filled in, the marker becomes `result`, and the dagger goes.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from fedgc.errors import Unusable

ROOT: Final = Path(__file__).parents[1]
FOLDER: Final = ROOT / "benchmarks" / "results"
MARKER: Final = re.compile(
    r"<!-- (result|unmeasured): (.+?)(?: (-?1e-?\d+))? ([^ ]+) -->([^<`\n]*)<!-- /result -->(†?)"
)
DAGGER: Final = "†"
EXPLAINED: Final = (
    f"\n{DAGGER} Typed by hand: no file in `benchmarks/results` backs this number yet, so it is no claim.\n"
)
REFERENCE: Final = re.compile(r"(\w+)(?:\[(.+)\])?\.(\w+)(?:\.(.+))?")

Results = Mapping[str, Any]  # the content of each results file by its name


def read(folder: Path = FOLDER) -> Results:
    """Return the results files."""
    return {path.stem: _table(path) for path in sorted(folder.glob("*.json"))}


def filled(markdown: str, results: Results) -> str:
    """Return a page with the figures of the results files, and a dagger at each number typed by hand."""

    def made(marker: re.Match[str]) -> str:
        kind, reference, factor, form, _, dagger = marker.groups()
        if kind == "unmeasured" and _parts(reference)[0] not in results:
            return marker.group().removesuffix(dagger) + DAGGER
        number = _formatted(looked_up(reference, results) * float(factor or 1), form)
        asked = " ".join(filter(None, (reference, factor, form)))
        return f"<!-- result: {asked} -->{number}<!-- /result -->"

    page = MARKER.sub(made, markdown.removesuffix(EXPLAINED))
    return page + EXPLAINED if DAGGER in page else page


def looked_up(reference: str, results: Results) -> float:
    """Return the number that a marker refers to.

    >>> results = {"codes": {"figures": {"worst": {"8,4": 9.9}}, "rows": [{"what": "solve", "ms": 2}]}}
    >>> looked_up("codes.worst.8,4", results), looked_up("codes[what=solve].ms", results)
    (9.9, 2)
    """
    name, where, figure, key = _parts(reference)
    if name not in results:
        raise Unusable(f"{reference}: saw no file {name}.json, needed one in benchmarks/results")
    found = _row(reference, where, results[name]["rows"]) if where else results[name]["figures"]
    for part in filter(None, (figure, key)):
        if not isinstance(found, Mapping) or part not in found:
            known = ", ".join(found) if isinstance(found, Mapping) else "one number"
            raise Unusable(f"{reference}: saw no {part} in {name}.json, needed one of: {known}")
        found = found[part]
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise Unusable(f"{reference}: saw {found!r} in {name}.json, needed a number")
    return found


def unmeasured(markdown: str) -> Iterator[tuple[int, str, str]]:
    """Yield line, reference and text of each number that was typed by hand."""
    for marker in MARKER.finditer(markdown):
        if marker.group(1) == "unmeasured":
            yield markdown.count("\n", 0, marker.start()) + 1, marker.group(2), marker.group(5)


def _table(path: Path) -> Any:  # noqa: ANN401  JSON
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise Unusable(
            f"{path.name}: saw {error}, needed a file of python -m benchmarks NAME --save"
        ) from error


def _formatted(number: float, form: str) -> str:
    try:
        return format(number, form)
    except ValueError as error:
        raise Unusable(f"saw the format {form!r}, needed one of Python, such as .1f") from error


def _parts(reference: str) -> tuple[str, ...]:
    """Return the name of the results file, the row's values, the figure and its key; empty where missing."""
    match = REFERENCE.fullmatch(reference)
    if match is None:
        raise Unusable(f"saw {reference!r}, needed NAME.figure, NAME.figure.key or NAME[column=value].column")
    return match.groups("")


def _row(reference: str, where: str, rows: list[Mapping[str, Any]]) -> Mapping[str, Any]:
    wanted = [each.partition("=") for each in where.split("; ")]
    found = [row for row in rows if all(str(row.get(name)) == value for name, _, value in wanted)]
    if len(found) != 1:
        raise Unusable(f"{reference}: saw {len(found)} rows with these values, needed one")
    return found[0]
