"""The digests by which a policy allows code: of an app, a task and a training script."""

import hashlib
import io
import shlex
import zipfile
from collections.abc import Iterable, Mapping
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Final

from fedgc.errors import Unusable
from fedgc.policy.policy import DIGEST

MANIFEST: Final = "pyproject.toml"  # it holds the settings of a run, which change; what they do is checked
NOT_CODE: Final = (".", "__pycache__")  # begin of the names of folders that are left out


def app_digest(files: Mapping[str, bytes]) -> str:
    """Return the digest of an app's code: of each file but its manifest, by its path in the app.

    >>> app_digest({"client/app.py": b"", "pyproject.toml": b"1"}) == app_digest({"client/app.py": b""})
    True
    """
    hashed = hashlib.sha256(b"fedgc app")
    for name in sorted(files):
        parts = name.split("/")
        if name != MANIFEST and not any(part.startswith(NOT_CODE) for part in parts[:-1]):
            hashed.update(b"".join(hashlib.sha256(each).digest() for each in (name.encode(), files[name])))
    return DIGEST + hashed.hexdigest()


def files_in_bundle(content: bytes) -> dict[str, bytes]:
    """Return the files of an app as Flower sends it, a zip."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as bundle:
            return {each.filename: bundle.read(each) for each in bundle.infolist() if not each.is_dir()}
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, OSError) as error:
        raise Unusable(f"app: saw {len(content)} bytes that are no bundle of Flower ({error})") from error


def task_digest(task: str, folders: Iterable[str]) -> str:
    """Return the digest of a task's name and of the file of its module; empty if it is not found.

    The module is looked for and not imported.
    """
    module = Path(*task.partition(":")[0].split("."))
    compiled = tuple(module.with_name(module.name + suffix) for suffix in EXTENSION_SUFFIXES)
    found = _first(folders, (module / "__init__.py", *compiled, module.with_name(f"{module.name}.py")))
    return _digest("task", task, found)


def script_digest(command: str, file: str) -> str:
    """Return the digest of a script's command and of its file; empty if there is no such file."""
    try:
        words = shlex.join(shlex.split(command))
    except ValueError:
        return ""
    return _digest("script", words, Path(file) if file and Path(file).is_file() else None)


def _first(folders: Iterable[str], places: Iterable[Path]) -> Path | None:
    named = tuple(places)
    found = (Path(folder) / place for folder in folders for place in named)
    return next((path for path in found if path.is_file()), None)


def _digest(kind: str, name: str, file: Path | None) -> str:
    if file is None:
        return ""
    parts = (f"fedgc {kind}".encode(), name.encode(errors="replace"), file.read_bytes())
    return DIGEST + hashlib.sha256(b"".join(hashlib.sha256(each).digest() for each in parts)).hexdigest()
