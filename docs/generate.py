"""The generated parts of the pages: settings, commands, public names, states of a round, figures.

The generated text is committed, so that it can be read without building the site. `python -m docs.generate`
(`make reference`) writes it again; a test holds the committed text equal to the generated one. On the site, a
hook of mkdocs replaces the list of public names by their whole docstrings. Another one adds the README.md of
each example as a tutorial, so that each exists once.

`python -m docs.generate --unmeasured` prints the figures of benchmarks that were typed by hand.
"""

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

from typer.main import get_command

import fedgc
from fedgc.aggregators import AggregationRule, CollectingRule
from fedgc.cli.commands import app
from fedgc.codecs import Codec
from fedgc.codes import Code
from fedgc.config import RunConfig, group_of
from fedgc.config.names import FIELDS
from fedgc.errors import Unusable
from fedgc.flower.sink import Sink
from fedgc.gates import Gate
from fedgc.round.machine import TABLE, State
from fedgc.training.loop.training_loop import TrainingLoop

Page = Callable[[], str]
FOLDER: Final = Path(__file__).parent
ROOT: Final = FOLDER.parent
BLOCK: Final = re.compile(r"<!-- generated: (\w+) -->\n(?:.*?)<!-- end of generated text -->", re.DOTALL)
MODULE_PREFIX: Final = re.compile(r"\b(?:[a-z_]\w*\.)+(?=[A-Za-z])")  # of torch.nn.modules.module.Module
ARRAY: Final = re.compile(r"ndarray\[tuple\[Any, \.\.\.\], dtype\[(\w+)\]\]")
QUOTED_TYPE: Final = re.compile(r"'([A-Z]\w*)'")
MEMBERS: Final = {"RunConfig": ("read", "table", "round_steps"), "FedGC": ("start", "summary")}
INTERFACES: Final = {  # of extensions, with the members that an author writes
    Gate: ("make", "init", "step", "describe", "always_syncs"),
    CollectingRule: ("combine",),
    AggregationRule: ("add", "result", "outliers", "clear"),
    Codec: ("encode", "decode", "largest", "expected"),
    Code: ("make", "matrix_bw", "solve", "prune"),
    Sink: tuple(name for name in vars(Sink) if not name.startswith("_")),
}
CALLBACKS: Final = ("hf.Callback", "lightning.Callback")  # of Trainers, in modules that are not in `__all__`
LONGEST_SIGNATURE: Final = 90
ARGUMENTS: Final = re.compile(r"^Args:\n((?: {4}.*\n?|\n)+)", re.MULTILINE)  # of a docstring
ARGUMENT: Final = re.compile(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)


def settings_table() -> str:
    """Return the settings by table, each with its default and its meaning."""
    explained = RunConfig.explained()
    return "\n\n".join(
        _group(group, [each for each in explained if group_of(each[0]) == group])
        for group in dict.fromkeys(group_of(name) for name, _, _ in explained)
    )


def _group(group: str, explained: Sequence[tuple[str, object, str]]) -> str:
    rows = [
        f"| `{name}` | `{FIELDS[name]}` | `{default!r}` | {_cell(meaning)} |"
        for name, default, meaning in explained
    ]
    title = f"## `[{group}]`" if group else "## The run"
    return "\n".join([title, "", "| setting | in Python | default | meaning |", "|---|---|---|---|", *rows])


def commands_list() -> str:
    """Return every command with its help, arguments and options."""
    return "\n\n".join(_commands(get_command(app), "fedgc"))


def on_page_markdown(markdown: str, **_: object) -> str:
    """Return a page with its generated parts as the site shows them; mkdocs calls this for every page."""
    return filled(markdown, {**PAGES, "api": api_directives, "interfaces": interfaces_directives})


def filled(markdown: str, pages: dict[str, Page]) -> str:
    """Return a page in which the text between the markers is generated again."""

    def made(block: re.Match[str]) -> str:
        name = block.group(1)
        return f"<!-- generated: {name} -->\n\n{pages[name]()}\n\n<!-- end of generated text -->"

    return BLOCK.sub(made, markdown)


def api_list() -> str:
    """Return the public names of fedgc with signatures, parameters and first lines of their docstrings."""
    return "\n\n".join(_public(name) for name in public_names())


def api_directives() -> str:
    """Return the public names as directives of mkdocstrings, which shows their docstrings."""
    return "\n\n".join(_directive(name) for name in public_names())


def public_names() -> Sequence[str]:
    """Return the public names of fedgc, in the order of the page."""
    return (*(name for name in fedgc.__all__ if not name.startswith("_")), *CALLBACKS)


def interfaces_list() -> str:
    """Return the interfaces of extensions with the signatures and meanings of their members."""
    return "\n\n".join(_interface(kind, members) for kind, members in INTERFACES.items())


def interfaces_directives() -> str:
    """Return these interfaces as directives of mkdocstrings."""
    return "\n\n".join(f"::: {_path(kind)}" for kind in INTERFACES)


def mermaid() -> str:
    """Return the diagram: each arrow between states names the events that may cause it.

    Events that do not change the state are not drawn.
    """
    lines = ["stateDiagram-v2", f"    [*] --> {State.WORKING.name}"]
    for state, row in TABLE.items():
        for after in State:
            kinds = [kind.__name__ for kind, transition in row.items() if after in transition.to]
            if kinds and after is not state:
                lines.append(f"    {state.name} --> {after.name}: {', '.join(kinds)}")
    return "\n".join([*lines, f"    {State.CLOSED.name} --> [*]", ""])


def round_diagram() -> str:
    """Return the states of a round as a Mermaid diagram, from its transition table."""
    return f"```mermaid\n{mermaid()}```"


PAGES: Final[dict[str, Page]] = {
    "settings": settings_table,
    "commands": commands_list,
    "api": api_list,
    "interfaces": interfaces_list,
    "round": round_diagram,
}


def pages() -> list[Path]:
    """Return the pages: those of the site, and the files README.md beside code and examples."""
    return sorted(
        [*FOLDER.rglob("*.md"), *ROOT.glob("*.md"), *ROOT.glob("fedgc/*/*.md"), *ROOT.glob("examples/*/*.md")]
    )


def write() -> list[Path]:
    """Write the generated parts of all pages again; return the pages that changed."""
    from docs import results  # here, as mkdocs loads this file without the folder above it

    changed = []
    measured = results.read()
    for path in pages():
        before = path.read_text()
        try:
            after = results.filled(filled(before, PAGES), measured)
        except Unusable as error:
            raise Unusable(f"{path.relative_to(ROOT)}: {error}") from error
        if after != before:
            path.write_text(after)
            changed.append(path)
    return changed


def unmeasured() -> Iterator[str]:
    """Yield a line for each figure of a benchmark that was typed by hand."""
    from docs import results

    for path in pages():
        for line, reference, text in results.unmeasured(path.read_text()):
            yield f"{path.relative_to(ROOT)}:{line}: {text}  {reference}"


def main(words: Sequence[str]) -> None:
    """Write the generated parts, or print the figures that were typed by hand."""
    if words == ["--unmeasured"]:
        sys.stdout.writelines(f"{line}\n" for line in unmeasured())
        return
    if words:
        sys.exit(f"docs: saw {' '.join(words)}, needed --unmeasured or nothing")
    try:
        sys.stdout.writelines(f"{page.relative_to(ROOT)}\n" for page in write())
    except Unusable as error:
        sys.exit(f"docs: {error}")


def _public(name: str) -> str:
    value = attrgetter(name)(fedgc)
    lines = [f"## `fedgc.{name}`", "", _first_line(value), "", "```py", _signature(f"fedgc.{name}", value)]
    owner, prefix = (TrainingLoop, "fed") if name == "join" else (value, f"fedgc.{name}")
    members = [(each, getattr(owner, each)) for each in _members(name)]
    called = [(each, member) for each, member in members if not isinstance(member, property)]
    lines += [_signature(f"{prefix}.{each}", member) for each, member in called]
    lines.append("```")
    if members:
        lines += ["", *(f"- `{each}`: {_first_line(member)}" for each, member in members)]
    rows = [f"| `{each}` | {_cell(meaning)} |" for each, meaning in _parameters(value)]
    for each, member in members:
        rows += [f"| `{each}`: `{named}` | {_cell(meaning)} |" for named, meaning in _parameters(member)]
    if rows:
        lines += ["", "| parameter | meaning |", "|---|---|", *rows]
    return "\n".join(lines)


def _path(kind: type) -> str:
    """Return where an interface is imported from: the package that offers it, or its module."""
    package = kind.__module__.rpartition(".")[0]
    offered = getattr(sys.modules[package], kind.__name__, None) is kind
    return f"{package if offered else kind.__module__}.{kind.__name__}"


def _interface(kind: type, names: Sequence[str]) -> str:
    members = [(name, inspect.getattr_static(kind, name)) for name in names]
    plain = {name: getattr(member, "__func__", member) for name, member in members}
    called = [(name, member) for name, member in plain.items() if not isinstance(member, property)]
    lines = [f"## `{_path(kind)}`", "", _first_line(kind), "", "```py"]
    lines += [*(_signature(name, member) for name, member in called), "```", ""]
    shown = [(f"`{name}`{_duty(kind, name, member)}", _first_line(plain[name])) for name, member in members]
    return "\n".join([*lines, *(f"- {named}: {meaning}" for named, meaning in shown)])


def _duty(kind: type, name: str, member: object) -> str:
    """Return whether a member is a classmethod, and whether a subclass must write it."""
    words = ["a classmethod"] if isinstance(member, classmethod) else []
    words += ["must be written"] if name in getattr(kind, "__abstractmethods__", ()) else []
    return f" ({', '.join(words)})" if words else ""


def _members(name: str) -> Sequence[str]:
    if name == "join":
        return [each for each in vars(TrainingLoop) if not each.startswith("_")]
    return MEMBERS.get(name, ())


def _directive(name: str) -> str:
    members = MEMBERS.get(name)
    more = f"\n    options:\n      members: [{', '.join(members)}]" if members else ""
    loop = f"\n\n::: {TrainingLoop.__module__}.TrainingLoop" if name == "join" else ""
    return f"::: fedgc.{name}{more}{loop}"


def _signature(name: str, value: Any) -> str:  # noqa: ANN401  any public object
    """Return the call of a public object as its source writes it, without the modules of types."""
    if value is RunConfig:
        return f"{name}(**settings)  # the settings, by their names in Python"
    found = inspect.signature(value)
    arguments = _arguments(found)
    annotation = inspect.formatannotation(found.return_annotation).strip("'")
    returns = "" if found.return_annotation in (found.empty, None) else f" -> {_short(annotation)}"
    line = f"{name}({', '.join(arguments)}){returns}"
    if len(line) <= LONGEST_SIGNATURE:
        return line
    return f"{name}(\n" + "".join(f"    {each},\n" for each in arguments) + f"){returns}"


def _arguments(found: inspect.Signature) -> list[str]:
    """Return the arguments with `*` before the first that has to be named."""
    parameters = [each for each in found.parameters.values() if each.name not in ("self", "cls")]
    arguments = [_short(str(each)) for each in parameters]
    named = [each.kind is inspect.Parameter.KEYWORD_ONLY for each in parameters]
    if any(named):
        arguments.insert(named.index(True), "*")
    return arguments


def _short(text: str) -> str:
    plain = QUOTED_TYPE.sub(r"\1", MODULE_PREFIX.sub("", text)).replace("~", "")
    return ARRAY.sub(r"ndarray[\1]", plain)


def _first_line(value: Any) -> str:  # noqa: ANN401  any public object
    return (inspect.getdoc(value) or "").split("\n\n")[0].replace("\n", " ")


def _parameters(value: Any) -> list[tuple[str, str]]:  # noqa: ANN401  any public object
    """Return the parameters that a docstring describes, with their meanings."""
    section = ARGUMENTS.search(inspect.getdoc(value) or "")
    return ARGUMENT.findall(section.group(1)) if section else []


def _commands(group: Any, prefix: str) -> Iterator[str]:  # noqa: ANN401  of click, as typer brings it
    for name, command in group.commands.items():
        if command.hidden:
            continue
        if hasattr(command, "commands"):
            yield from _commands(command, f"{prefix} {name}")
        else:
            yield _one(command, f"{prefix} {name}")


def _one(command: Any, name: str) -> str:  # noqa: ANN401  the same
    said, *examples = (command.help or "").split("Example: ")
    lines = [f"## `{name}`", "", " ".join(said.split())]
    options = [each for each in command.params if not getattr(each, "hidden", False)]
    if options:
        lines += ["", "| option | default | meaning |", "|---|---|---|"]
        lines += [
            f"| `{'`, `'.join(each.opts)}` | {_default(each)} | {_cell(_meaning(each))} |" for each in options
        ]
    if examples:
        lines += ["", "```console", *(f"$ {each.strip()}" for each in examples), "```"]
    return "\n".join(lines)


def _default(option: Any) -> str:  # noqa: ANN401  the same
    """Return what holds without the option; nothing for a flag, and where the help says it."""
    value = option.default
    plain = isinstance(value, int | float | str | Path) and not isinstance(value, bool)
    return f"`{value}`" if plain and value != "" else ""


def _meaning(option: Any) -> str:  # noqa: ANN401  the same
    """Return the help of an option, with the environment variable that it replaces."""
    variable = f" Variable: `{option.envvar}`." if option.envvar else ""
    return f"{getattr(option, 'help', None) or ''}{variable}"


def _names(words: Sequence[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


def _cell(text: str) -> str:
    r"""Return text that a cell of a table can hold.

    >>> print(_cell("a | b"))
    a \| b
    """
    return " ".join(text.split()).replace("|", r"\|")


if __name__ == "__main__":
    main(sys.argv[1:])
