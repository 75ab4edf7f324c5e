"""Results files: what a benchmark measured, at which commit, by which command and on what machine.

    python -m benchmarks NAME --json --save

writes benchmarks/results/NAME.json, from which `python -m docs.generate` fills the figures of the pages.
Nothing in a file names the machine or a folder of it.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Final

import typer

from benchmarks.report import Report
from fedgc.errors import EdgeFailed

FOLDER: Final = Path(__file__).with_name("results")
BENCHMARKS: Final = "benchmarks"
LARGEST: Final = 200_000  # bytes of rows in a file; the first rows are kept
SOURCES: Final = (
    "fedgc",
    "benchmarks",
    "examples/hospitals",
    "pyproject.toml",
    "constraints.txt",
)  # what can change a figure
OTHERS: Final = (":(exclude)benchmarks/results", ":(exclude)*.md")


@dataclass(frozen=True, slots=True)
class Start:
    """The state of the sources and of the machine, and the time, before anything is measured."""

    commit: str
    dirty: bool
    load: float  # processes that want a core, mean of the last minute
    at_s: float


@cache
def start() -> Start:
    """Return the start of this process's benchmark; later calls return the same."""
    return Start(
        _git("rev-parse", "HEAD"),
        bool(_git("status", "--porcelain", "--", *SOURCES, *OTHERS)),
        round(os.getloadavg()[0], 2),
        time.monotonic(),
    )


def wholly(save: bool) -> bool:
    """Check the option `--save` before the benchmark starts: a results file is of a whole benchmark."""
    if save and "--quick" in sys.argv:
        raise typer.BadParameter("saw --quick, needed the whole benchmark")
    if save:
        start()
    return save


def save(report: Report, words: Sequence[str], folder: Path = FOLDER) -> Path:
    """Write the results file of what was called by these words after `python -m`; return its path.

    A benchmark's name is the word after `benchmarks`, that of an example is its module's.
    """
    begun, (module, *others) = start(), words
    name = others[0] if module == BENCHMARKS else module.rpartition(".")[2]
    about = {
        "name": name,
        "command": " ".join(["python -m", module, *map(_without_folder, others)]),
        "commit": begun.commit,
        "dirty": begun.dirty,
        "load": begun.load,
        "date": datetime.now(UTC).date().isoformat(),
        "wall_s": round(time.monotonic() - begun.at_s, 1),
    }
    path = folder / f"{name}.json"
    folder.mkdir(exist_ok=True)
    path.write_text(text(about, report.table()))
    return path


def text(about: Mapping[str, Any], table: Mapping[str, Any], largest: int = LARGEST) -> str:
    """Return the content of a results file, a row on each line; rows beyond `largest` bytes are left out."""
    rows = [json.dumps(row, allow_nan=False) for row in table["rows"]]
    while sum(map(len, rows)) > largest:
        del rows[-max(1, len(rows) // 50) :]
    parts = {**about, **table, "rows_left_out": len(table["rows"]) - len(rows)}
    lines = [
        f"{json.dumps(key)}: {json.dumps(parts[key], allow_nan=False)}" for key in parts if key != "rows"
    ]
    lines.append('"rows": [\n' + ",\n".join(rows) + "\n]")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _without_folder(word: str) -> str:
    """Return a word of the command line with the name of a file alone.

    >>> _without_folder("/data/traces"), _without_folder("--data=../x.npz"), _without_folder("codes")
    ('traces', '--data=x.npz', 'codes')
    """
    option, equals, value = word.rpartition("=")
    return f"{option}{equals}{Path(value).name}"


def _git(*words: str) -> str:
    try:
        done = subprocess.run(  # noqa: S603  git itself, with words of this file
            ["git", *words],  # noqa: S607  the one of the user
            cwd=FOLDER.parents[1], capture_output=True, text=True, check=True,
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError) as error:
        raise EdgeFailed("--save: saw no git repository, needed one, to name the commit") from error
    return done.stdout.strip()
