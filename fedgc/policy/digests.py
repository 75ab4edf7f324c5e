"""The digests by which a policy allows code: of an app, a task and a training script."""

import hashlib
import io
import json
import lzma
import shlex
import struct
import tomllib
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Final

from fedgc.errors import Unusable
from fedgc.files import is_file
from fedgc.policy.policy import DIGEST

MANIFEST: Final = "pyproject.toml"  # its settings of a run change, and what they do is checked
STATEMENT: Final = "task.fedgc.json"  # names the digest of the app, and travels with it
LARGEST_APP_BYTES: Final = 1 << 28  # unpacked; Flower takes bundles of at most 10 MB
PACKED: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # others unpack without a limit
BLOCK_BYTES: Final = 1 << 20
INFO: Final = ".info/"  # Flower's list of the files, which it removes when it installs an app


def app_digest(files: Mapping[str, bytes]) -> str:
    """Return the digest of an app's code: of each file by its path in the app.

    Of the manifest, all counts but the settings of a run, which change, and the patterns of the files, as
    these count themselves.

    >>> files = {"client/app.py": b"", "pyproject.toml": b"tool.flwr.app.config.rounds = 3"}
    >>> app_digest(files) == app_digest({**files, "pyproject.toml": b"tool.flwr.app.config.rounds = 4"})
    True

    Raises:
        Unusable: The app holds compiled Python code, or its manifest cannot be read.
    """
    hashed = hashlib.sha256(b"fedgc app")
    counted = {
        name: content for name, content in files.items() if name != STATEMENT and not name.startswith(INFO)
    }
    counted[MANIFEST] = _without_settings(files.get(MANIFEST, b""))
    for name in sorted(counted):
        if "__pycache__" in name.split("/") or name.endswith(".pyc"):
            raise Unusable(f"app: saw compiled code in {name!r}, needed files that can be reviewed")
        hashed.update(b"".join(hashlib.sha256(each).digest() for each in (name.encode(), counted[name])))
    return DIGEST + hashed.hexdigest()


# zipfile raises NotImplementedError for a compression that it lacks, RuntimeError for a password, ValueError
# for an offset or a name that cannot be, and what its decompressors raise
NOT_READ: Final = (
    zipfile.BadZipFile, NotImplementedError, RuntimeError, OSError, ValueError, EOFError, struct.error,
    zlib.error, lzma.LZMAError,
)  # fmt: skip


def files_in_bundle(content: bytes) -> dict[str, bytes]:
    """Return the files of an app as Flower sends it, a zip; no two can be written to one path."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as bundle:
            files = [each for each in bundle.infolist() if not each.is_dir()]
            names = [each.filename for each in files]
            for name in names:
                if "\\" in name or not {"", ".", ".."}.isdisjoint(name.split("/")):
                    raise Unusable(f"app: saw a file {name!r}, needed a plain path")
            if len(set(names)) < len(names):
                raise Unusable("app: saw two files of one path, needed one")
            size_bytes = sum(each.file_size for each in files)
            if size_bytes > LARGEST_APP_BYTES:
                raise Unusable(f"app: saw {size_bytes} bytes of files, needed at most {LARGEST_APP_BYTES}")
            return {each.filename: _content(bundle, each) for each in files}
    except NOT_READ as error:
        raise Unusable(f"app: saw {len(content)} bytes that are no bundle of Flower ({error})") from error


def _content(bundle: zipfile.ZipFile, file: zipfile.ZipInfo) -> bytes:
    """Return a file of a bundle. It may unpack to more than its size: all of it is never in memory."""
    if file.compress_type not in PACKED:
        raise Unusable(f"app: saw the compression {file.compress_type} of a file, needed deflate, or none")
    with bundle.open(file) as opened:
        blocks = iter(lambda: opened.read(BLOCK_BYTES), b"")
        return b"".join(blocks)


def _without_settings(manifest: bytes) -> bytes:
    """Return a manifest without the settings of the run, the same for the same values."""
    try:
        read = tomllib.loads(manifest.decode())
        tools = read.get("tool", {})
        app = tools.get("flwr", {}).get("app", {})
        app.pop("config", None)
        for patterns in ("fab-include", "fab-exclude"):
            app.pop(patterns, None)
        tools.pop("fedgc", None)  # defaults of these settings
        return json.dumps(read, sort_keys=True, default=str).encode()
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise Unusable(f"app: saw a {MANIFEST} that cannot be read ({error})") from error


def task_digest(task: str, folders: Iterable[str]) -> str:
    """Return the digest of a task's name and of the file of its module; empty if it is not found.

    The module is looked for and not imported.
    """
    module = Path(*task.partition(":")[0].split("."))
    if not module.name:
        return ""
    compiled = tuple(module.with_name(module.name + suffix) for suffix in EXTENSION_SUFFIXES)
    found = _first(folders, (module / "__init__.py", *compiled, module.with_name(f"{module.name}.py")))
    return _digest("task", task, found)


def script_digest(command: str, file: str) -> str:
    """Return the digest of a script's command and of its file; empty if there is no such file."""
    try:
        words = shlex.join(shlex.split(command))
    except ValueError:
        return ""
    return _digest("script", words, Path(file) if file and is_file(Path(file)) else None)


def _first(folders: Iterable[str], places: Iterable[Path]) -> Path | None:
    named = tuple(places)
    found = (Path(folder) / place for folder in folders for place in named)
    return next((path for path in found if is_file(path)), None)


def _digest(kind: str, name: str, file: Path | None) -> str:
    if file is None:
        return ""
    parts = (f"fedgc {kind}".encode(), name.encode(errors="replace"), file.read_bytes())
    return DIGEST + hashlib.sha256(b"".join(hashlib.sha256(each).digest() for each in parts)).hexdigest()
