"""Test that files and classes of the library stay small enough to be read at once."""

import ast
from collections.abc import Iterator
from pathlib import Path

import fedgc

SOURCES = sorted(Path(fedgc.__file__).parent.rglob("*.py"))
MOST_LINES = 500
MOST_METHODS = 35  # properties and dunder methods count


def classes(source: Path) -> Iterator[tuple[str, int]]:
    """Every class of a module, and how many methods it defines."""
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.ClassDef):
            methods = [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
            yield node.name, len(methods)


def test_files_have_at_most_500_lines() -> None:
    lines = {path.name: len(path.read_text().splitlines()) for path in SOURCES}
    assert {name: count for name, count in lines.items() if count > MOST_LINES} == {}


def test_classes_have_at_most_35_methods() -> None:
    found = [(path.name, *each) for path in SOURCES for each in classes(path)]
    assert len(found) > 500
    assert [each for each in found if each[2] > MOST_METHODS] == []
