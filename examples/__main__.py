"""Run examples, all by default, and print a line for each.

python -m examples
python -m examples spot windows
"""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from examples.federation import words_of

FOLDER = Path(__file__).parent
LIMIT_S = 1200.0
OPTIONS = {  # of those that do more or less than one result in a few minutes
    "hospitals": ("--quick",),
    "plugs": ("--random", "10"),
}


def names() -> list[str]:
    """Return the examples: the folders that can be run."""
    return sorted(path.parent.name for path in FOLDER.glob("*/__main__.py"))


def command_of(name: str) -> list[str]:
    """Return the command that runs an example and prints its figures as JSON."""
    return [sys.executable, "-m", f"examples.{name}", *OPTIONS.get(name, ()), "--json"]


def line_of(name: str) -> tuple[str, bool]:
    """Run an example; return its line, and whether its figures are as it states."""
    began = time.monotonic()
    try:
        done = subprocess.run(  # noqa: S603  our own command line
            command_of(name),
            cwd=FOLDER.parent,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"{name}: failed: it took longer than {LIMIT_S:.0f} s", False
    took = f"{time.monotonic() - began:.0f} s"
    try:
        figures = words_of(json.loads(done.stdout)["figures"])
    except (ValueError, KeyError):
        figures = ""
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return f"{name}: failed in {took}: {why}", False
    return f"{name}: as expected in {took}: {figures}", True


def main(words: Sequence[str]) -> None:
    """Run these examples."""
    known = names()
    if unknown := set(words) - set(known):
        sys.exit(f"examples: saw {', '.join(sorted(unknown))}, needed some of {', '.join(known)}")
    failed = False
    for name in words or known:
        line, good = line_of(name)
        print(line, flush=True)
        failed = failed or not good
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main(sys.argv[1:])
