"""Test that the glossary holds: words of the first edition do not return."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from docs import generate

ROOT = Path(__file__).parents[2]
BANNED = (
    "attendance", "burnt", "desk", "doorman", "errand", "guest", "leash", "ledger", "optimiser", "shelf",
    "shelves", "stand-in", "storey", "tally", "weather", "lest", "in vain",
)  # fmt: skip
TOLD = (*BANNED, "nobody", "seat", "somebody", "stranger", "whoever", "worker")
WORDS = re.compile(rf"\b({'|'.join(BANNED)})s?\b", re.IGNORECASE)
TOLD_WORDS = re.compile(rf"\b({'|'.join(TOLD)})s?\b", re.IGNORECASE)
SOURCES = sorted((ROOT / "fedgc").rglob("*.py"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted(ROOT.glob("examples/*/*.md"))]
FORMATS = "sim/traces"  # the words of files that others write
MIGRATIONS = "store/migrations/versions"  # they name what they replace
LONGEST_TEST_NAME = 65
ARTICLES_AND_RIDDLES = re.compile(
    r"_(a|an|the|anybody|everybody|nobody|somebody|what|whatever|who|whoever|no_one|"
    r"anything_but|nothing_but|never_anything)(?=_|$)"
)


def strings(source: Path) -> Iterator[str]:
    """Every string of a module that can reach a person: those with a space, without docstrings."""
    tree = ast.parse(source.read_text())
    documented = {
        node.body[0].value
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value
        if is_text and node not in documented:
            yield node.value


def names_of_tests(source: Path) -> Iterator[str]:
    """Every test function of a module, in classes too."""
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield node.name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_page_uses_glossary_words(page: Path) -> None:
    assert sorted(set(TOLD_WORDS.findall(page.read_text()))) == []


def test_help_uses_glossary_words() -> None:
    assert TOLD_WORDS.findall(generate.commands_list() + generate.settings_table()) == []


def test_web_page_uses_glossary_words() -> None:
    shown = [(ROOT / "fedgc" / "web" / "page" / name).read_text() for name in ("page.html", "page.js")]
    assert [TOLD_WORDS.findall(text) for text in shown] == [[], []]


def test_messages_use_glossary_words() -> None:
    found = {
        f"{path.relative_to(ROOT)}: {text[:80]}"
        for path in SOURCES
        if FORMATS not in path.as_posix() and MIGRATIONS not in path.as_posix()
        for text in strings(path)
        if TOLD_WORDS.search(text)
    }
    assert sorted(found) == []


def test_docstrings_and_comments_use_glossary_words() -> None:
    found = {
        f"{path.relative_to(ROOT)}: {word}"
        for path in SOURCES
        if MIGRATIONS not in path.as_posix()
        for word in WORDS.findall(path.read_text())
    }
    assert sorted(found) == []


def test_test_names_are_short_and_plain() -> None:
    """A test is named `test_<thing>_<behavior>`, in words of the glossary, without articles and proverbs."""
    modules = sorted((ROOT / "tests").rglob("*.py"))
    names = [(path.name, name) for path in modules for name in names_of_tests(path)]
    assert len(names) > 1000
    assert [each for each in names if len(each[1]) > LONGEST_TEST_NAME] == []
    assert [each for each in names if ARTICLES_AND_RIDDLES.search(each[1])] == []
    assert [each for each in names if TOLD_WORDS.search(each[1].replace("_", " "))] == []
