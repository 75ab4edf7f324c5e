"""Fill the generated parts of the reference pages: a hook of mkdocs, and functions that tests call."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from typer.main import get_command

from fedgc.cli.commands import app
from fedgc.config import RunConfig, group_of
from fedgc.round.diagram import mermaid

Page = Callable[[], str]


def settings_table() -> str:
    """Return the settings by table, each with its default and its meaning."""
    explained = RunConfig.explained()
    return "\n\n".join(
        _group(group, [each for each in explained if group_of(each[0]) == group])
        for group in dict.fromkeys(group_of(name) for name, _, _ in explained)
    )


def _group(group: str, explained: Sequence[tuple[str, object, str]]) -> str:
    rows = [f"| `{name}` | `{default!r}` | {_cell(meaning)} |" for name, default, meaning in explained]
    title = f"## `[{group}]`" if group else "## The run"
    return "\n".join([title, "", "| setting | default | meaning |", "|---|---|---|", *rows])


def commands_list() -> str:
    """Return every command with its help, arguments and options."""
    return "\n\n".join(_commands(get_command(app), "fedgc"))


def on_page_markdown(markdown: str, **_: object) -> str:
    """Replace the markers of a page by what they name; mkdocs calls this for every page."""
    for name, made in PAGES.items():
        marker = f"<!-- generated: {name} -->"
        if marker in markdown:
            markdown = markdown.replace(marker, made())
    return markdown


def round_diagram() -> str:
    """Return the states of a round as a Mermaid diagram, from its transition table."""
    return f"```mermaid\n{mermaid()}```"


PAGES: Final[dict[str, Page]] = {
    "settings": settings_table,
    "commands": commands_list,
    "round": round_diagram,
}


def _commands(group: Any, prefix: str) -> Iterator[str]:  # noqa: ANN401  of click, as typer brings it
    for name, command in group.commands.items():
        if command.hidden:
            continue
        if hasattr(command, "commands"):
            yield from _commands(command, f"{prefix} {name}")
        else:
            yield _one(command, f"{prefix} {name}")


def _one(command: Any, name: str) -> str:  # noqa: ANN401  the same
    said, _, example = (command.help or "").partition("Example: ")
    lines = [f"## `{name}`", "", " ".join(said.split()), ""]
    options = [each for each in command.params if not getattr(each, "hidden", False)]
    if options:
        lines += ["| option | meaning |", "|---|---|"]
        lines += [
            f"| `{'`, `'.join(each.opts)}` | {_cell(getattr(each, 'help', None) or '')} |" for each in options
        ]
    if example:
        lines += ["", "```console", f"$ {example.strip()}", "```"]
    return "\n".join(lines)


def _names(words: Sequence[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


def _cell(text: str) -> str:
    r"""Return text that a cell of a table can hold.

    >>> print(_cell("a | b"))
    a \| b
    """
    return " ".join(text.split()).replace("|", r"\|")
