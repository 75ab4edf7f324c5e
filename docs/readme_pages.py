"""A hook of mkdocs: files README.md of packages, of docker/ and of the examples as pages of the site.

They lie beside the code, where its readers look for them, and are not copied into `docs/`. Links between
pages are written as paths in the repository; here they become links of the site.
"""

import posixpath
import re
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
PACKAGES: Final = MappingProxyType(
    {
        "packages/gates.md": "fedgc/gates/README.md",
        "packages/aggregators.md": "fedgc/aggregators/README.md",
        "packages/codecs.md": "fedgc/codecs/README.md",
        "packages/codes.md": "fedgc/codes/README.md",
        "packages/secagg.md": "fedgc/secagg/README.md",
        "packages/sim.md": "fedgc/sim/README.md",
        "packages/export.md": "fedgc/export/README.md",
        "packages/containers.md": "docker/README.md",
    }
)
LINK: Final = re.compile(r"(\]\()([^)#:\s]+\.md)(#[^)]*)?(\))")


def tutorials() -> dict[str, str]:
    """Return the tutorials by their places on the site: the README.md of each example."""
    found = sorted(ROOT.glob("examples/*/README.md"))
    return {f"tutorials/{path.parent.name}.md": path.relative_to(ROOT).as_posix() for path in found}


def pages() -> dict[str, str]:
    """Return all these pages: places on the site, and paths in the repository."""
    return {**PACKAGES, **tutorials()}


def on_files(files: Any, config: Any) -> Any:  # noqa: ANN401  of mkdocs, which is there for the site alone
    """Add the pages; mkdocs calls this once."""
    from mkdocs.structure.files import File

    for place, source in pages().items():
        files.append(File.generated(config, place, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: object) -> str:  # noqa: ANN401  of mkdocs
    """Return a page with links of the site; mkdocs calls this for every page."""
    return linked(markdown, page.file.src_uri)


def linked(markdown: str, place: str) -> str:
    """Return a page of the site with links to the pages that README.md files have become.

    >>> linked("[Gates](../fedgc/gates/README.md#a-gate)", "concepts.md")
    '[Gates](packages/gates.md#a-gate)'
    >>> linked("[Concepts](../../docs/concepts.md)", "packages/gates.md")
    '[Concepts](../concepts.md)'
    """
    known = pages()
    here = posixpath.dirname(known.get(place, f"docs/{place}"))
    places = {source: name for name, source in known.items()}

    def link(found: re.Match[str]) -> str:
        begin, path, part, end = found.groups("")
        source = posixpath.normpath(posixpath.join(here, path))
        target = places.get(source, source.removeprefix("docs/"))
        if target == source:
            return found.group()  # outside the site
        return f"{begin}{posixpath.relpath(target, posixpath.dirname(place) or '.')}{part}{end}"

    return LINK.sub(link, markdown)
