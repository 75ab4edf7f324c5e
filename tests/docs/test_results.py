"""Test the figures of benchmarks in the pages: each is of its results file, or is marked as typed by hand."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.__main__ import app
from docs import generate, results
from fedgc.errors import Unusable

MEASURED = results.read()
PAGES = {path.relative_to(generate.ROOT).as_posix(): path.read_text() for path in generate.pages()}
MARKERS = [marker for page in PAGES.values() for marker in results.MARKER.findall(page)]
MARKED = [name for name, page in PAGES.items() if results.MARKER.search(page)]
OPENED = re.compile(r"<!-- (?:result|unmeasured): (?!NAME)")  # NAME: explained, not used
FIRST = re.compile(r"^\s*(?:(?:[-*+>]|\d+\.)\s+)*<!-- (?:result|unmeasured)", re.MULTILINE)
CODE = re.compile(r"```.*?```|`[^`\n]*`|\]\([^)]*\)", re.DOTALL)
FIXED = (  # settings, not measured
    "8-bit", "8 or 16 bits", "as short as 8 bits", "float32", "1 GB", "in 32 steps", "in 64,", "4 kB",
    "10 MB", "100 MB",
    "100 Mbit/s", "65% and 75%", "AES-256", "H100", "H200",
    "100 kB", "1.2 ms", "15 s", "10 s", "20 s", "100 rounds", "1.05",
    "| 10 |", "| 100 |", "| 1000 |", "| 3000 |", "64 clients", "50 ms",
    "15, 60 or 300 s", "0.2.0", "50 steps", "after every 125",
    "60 s", "300 s", "waits 2 s", "8, 16 or 32 local",
)  # fmt: skip
FILES = {
    "speed": {
        "figures": {"ratio": 1.256, "by": {"8,4": 0.031}, "never": "inf", "lacks": None},
        "rows": [{"rule": "a, b", "ms": 2}, {"rule": "c", "ms": 3}, {"rule": "c", "ms": 4}],
    }
}


def marked(asked: str, text: str = "?", kind: str = "result") -> str:
    return f"It is <!-- {kind}: {asked} -->{text}<!-- /result --> times."


@pytest.mark.parametrize(
    ("asked", "number"),
    [
        ("speed.ratio .2f", "1.26"),
        ("speed.by.8,4 .0%", "3%"),
        ("speed[rule=a, b].ms 1e-3 .3f", "0.002"),
        ("speed[rule=c; ms=4].ms .0f", "4"),
    ],
)
def test_marker_gets_figure_of_results_file(asked: str, number: str):
    assert results.filled(marked(asked), FILES) == marked(asked, number)


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ("speed.rate .2f", "speed.rate: saw no rate in speed.json, needed one of: ratio, by, never, lacks"),
        ("speed.by.4,2 .2f", "saw no 4,2 in speed.json, needed one of: 8,4"),
        ("speed.ratio.x .2f", "saw no x in speed.json, needed one of: one number"),
        ("speed.never .2f", "saw 'inf' in speed.json, needed a number"),
        ("speed.lacks .2f", "saw None in speed.json, needed a number"),
        ("speed[rule=c].ms .2f", "saw 2 rows with these values, needed one"),
        ("speed[rule=d].ms .2f", "saw 0 rows with these values, needed one"),
        ("other.ratio .2f", "saw no file other.json, needed one in benchmarks/results"),
        ("speed[c].ms .2f", "saw 0 rows with these values, needed one"),
        ("speed.ratio ms", "saw the format 'ms', needed one of Python, such as .1f"),
        ("ratio .2f", "saw 'ratio', needed NAME.figure"),
    ],
)
def test_missing_figure_is_named(asked: str, sentence: str):
    with pytest.raises(Unusable, match=re.escape(sentence)):
        results.filled(marked(asked), FILES)


def test_typed_number_stays_until_there_is_results_file():
    typed = marked("speed.ratio .1f", "2.0", "unmeasured")
    shown = results.filled(typed, {})
    assert shown == typed.replace("<!-- /result -->", "<!-- /result -->†") + results.EXPLAINED
    assert results.filled(shown, {}) == shown
    assert results.filled(shown, FILES) == marked("speed.ratio .1f", "1.3")
    assert list(results.unmeasured(f"\n{typed}")) == [(2, "speed.ratio", "2.0")]


def test_results_are_read_by_name(tmp_path: Path):
    (tmp_path / "speed.json").write_text(json.dumps(FILES["speed"]))
    assert results.read(tmp_path) == FILES
    (tmp_path / "speed.json").write_text("<<<<")
    with pytest.raises(Unusable, match=r"speed\.json: saw .*, needed a file of python -m benchmarks"):
        results.read(tmp_path)


@pytest.mark.parametrize("name", MARKED)
def test_page_has_figures_of_results_files(name: str):
    assert results.filled(PAGES[name], MEASURED) == PAGES[name], "run `make reference`"


@pytest.mark.parametrize("name", MARKED)
def test_markers_are_whole_and_within_line(name: str):
    """A comment that begins a line makes the line HTML, in which Markdown does not apply."""
    assert len(OPENED.findall(PAGES[name])) == len(results.MARKER.findall(PAGES[name]))
    assert FIRST.findall(PAGES[name]) == []


def test_markers_name_benchmarks():
    named = {marker[1].partition("[")[0].partition(".")[0] for marker in MARKERS}
    examples = {path.parent.name for path in (generate.ROOT / "examples").glob("*/__main__.py")}
    assert named <= {"none", *examples, *(command.name for command in app.registered_commands)}


def test_each_benchmark_is_in_table_and_protocol():
    listed = set(re.findall(r"^\| `(\w+)` \|", PAGES["docs/benchmarks.md"], re.MULTILINE))
    assert set(MEASURED) <= listed
    assert [name for name in sorted(listed) if f"`{name}`" not in PAGES["docs/protocol.md"]] == []


def test_numbers_of_benchmarks_page_are_marked():
    text = CODE.sub("", results.MARKER.sub("", PAGES["docs/benchmarks.md"].removesuffix(results.EXPLAINED)))
    for each in FIXED:
        text = text.replace(each, "")
    assert re.findall(r".{0,40}\d.*", text) == [], "neither of a results file nor a setting in FIXED"


def test_typed_numbers_are_listed():
    said = subprocess.run(
        [sys.executable, "-m", "docs.generate", "--unmeasured"],
        capture_output=True, text=True, timeout=240, check=True, cwd=generate.ROOT,
    )  # fmt: skip
    listed = said.stdout.splitlines()
    assert listed == list(generate.unmeasured())
    assert len(listed) == sum(len(re.findall("<!-- unmeasured: (?!NAME)", page)) for page in PAGES.values())
