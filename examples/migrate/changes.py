"""Apply the changes that the README shows to copies of the files before them."""

import re
import shutil
from pathlib import Path

from fedgc.errors import Unusable

FOLDER = Path(__file__).parent
BLOCK = re.compile(r"<!-- change: ([\w-]+) -->\n\n```diff\n(.*?)```", re.DOTALL)
FILE = re.compile(r"^--- (\S+)\n", re.MULTILINE)


def changes(page: str) -> dict[str, dict[str, list[list[str]]]]:
    """Return the changes of a page: by name, for each file, the places with their lines."""
    found: dict[str, dict[str, list[list[str]]]] = {}
    for name, block in BLOCK.findall(page):
        parts = FILE.split(block)[1:]
        found[name] = {
            file: [place.splitlines() for place in text.split("@@\n") if place]
            for file, text in zip(parts[::2], parts[1::2], strict=True)
        }
    return found


def changed(text: str, places: list[list[str]], file: str) -> str:
    """Return a text with these places changed, each found by the lines that it keeps or removes."""
    lines, at = text.splitlines(), 0
    for place in places:
        before = [line[1:] for line in place if not line.startswith("+")]
        after = [line[1:] for line in place if not line.startswith("-")]
        starts = range(at, len(lines) - len(before) + 1)
        start = next((each for each in starts if lines[each : each + len(before)] == before), None)
        if start is None:
            raise Unusable(f"{file}: saw no place for {before[0]!r} and what follows, needed one")
        lines[start : start + len(before)] = after
        at = start + len(after)
    return "\n".join(lines) + "\n"


def migrated(name: str, folder: Path) -> Path:
    """Copy the files of a change into a folder, apply it, and return the folder of the copy."""
    by_file = changes((FOLDER / "README.md").read_text())[name]
    top = next(iter(by_file)).partition("/")[0]
    shutil.copytree(FOLDER / top, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for file, places in by_file.items():
        path = folder / name / Path(file).relative_to(top)
        path.write_text(changed(path.read_text(), places, file))
    return folder / name
