"""Test that `make test` includes every quick contract test."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
LINE = next(line for line in (ROOT / "Makefile").read_text().splitlines() if "-m 'contract" in line)
QUICK = re.compile(r"mark\.contract\b(?!\W+pytest\.mark\.slow)")


def test_every_quick_contract_test_is_in_folder_of_make_test():
    folder = ROOT / LINE.split()[-1]
    quick = {path for path in (ROOT / "tests").rglob("test_*.py") if QUICK.search(path.read_text())}
    assert quick, "there are some"
    assert {path for path in quick if folder not in path.parents} == set()
