"""Test that a link to a part of a page names a heading of that page."""

import re
from collections import Counter
from pathlib import Path

import pytest

from docs import generate

ROOT = Path(__file__).parents[2]
PAGES = {path.relative_to(ROOT).as_posix(): path for path in generate.pages()}
FENCED = re.compile(r"^( *)```.*?^\1```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#:\s]*)#([^)\s]+)\)")


def anchors_of(page: Path) -> set[str]:
    """The anchors of a page's headings that are the same on GitHub and on the site, which joins dashes."""
    headings = re.findall(r"^#{1,6} (.+)$", FENCED.sub("", page.read_text()), re.MULTILINE)
    shown = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading) for heading in headings)
    names, seen = set(), Counter[str]()
    for each in (re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in shown):
        names.add(each if not seen[each] else "")  # the two number equal headings in different ways
        seen[each] += 1
    return {each for each in names if each and "--" not in each}


@pytest.mark.parametrize("name", [name for name, page in PAGES.items() if LINK.search(page.read_text())])
def test_linked_parts_of_pages_exist(name: str):
    page = PAGES[name]
    linked = [
        (f"{link}#{anchor}", (page.parent / link).resolve() if link else page.resolve(), anchor)
        for link, anchor in sorted(set(LINK.findall(page.read_text())))
    ]
    assert [link for link, target, anchor in linked if anchor not in anchors_of(target)] == []


def test_anchors_are_those_of_headings(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text(
        "# A page\n\n```sh\n# no heading\n```\n\n## `fedgc run`, [here](#a-page)\n\n## A page\n## One - two\n"
    )
    assert anchors_of(page) == {"a-page", "fedgc-run-here"}
