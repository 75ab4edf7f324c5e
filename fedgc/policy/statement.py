"""The statement of a task: the code, settings and version of fedgc that its signers have agreed to.

It is a JSON file in the folder of the app, and travels with the app. The descriptor of a masked federation
may pin its digest, and the policy of a site may allow apps by its signatures. The digest of an app does not
cover the file, since the statement names that digest.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from fedgc.config import RunConfig, Value, group_of
from fedgc.errors import FedgcError, NotAdmitted, Unusable, system_errors
from fedgc.files import SHARED, whole
from fedgc.policy.digests import STATEMENT, app_digest
from fedgc.policy.policy import DIGEST, is_digest, is_key
from fedgc.secagg import Identity
from fedgc.secagg.canonical import pack
from fedgc.secagg.keys import verify

FREE: Final = frozenset({  # settings of one run and of its machines, and groups of them, which are not pinned
    "run", "resume", "seed", "federation", "min-clients", "timing", "quota", "history", "site",
    "client.device", "client.threads", "client.memory-mb", "links.kind", "links.connect-s", "links.bind",
    "links.advertise", "links.authority", "links.lease-s", "links.grace-s", "links.upload-slots",
    "links.piece-kb", "links.receivers",
})  # fmt: skip
FIELDS: Final = ("app", "code", "fedgc", "settings", "signatures")


@dataclass(frozen=True, slots=True)
class Statement:
    """What is signed, and the signatures by public key, both in hexadecimal digits."""

    fedgc: str  # its version
    app: str  # its digest
    code: str  # digest of the script or of the task's module; empty for a task that fedgc ships
    settings: Mapping[str, Value]
    signatures: Mapping[str, str] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """The digest of all but the signatures."""
        return DIGEST + hashlib.sha256(self._signed).hexdigest()

    @property
    def _signed(self) -> bytes:
        return pack("fedgc task", _json({name: getattr(self, name) for name in FIELDS[:-1]}))

    def sign(self, identity: Identity) -> "Statement":
        """Return the statement with one more signature."""
        signature = identity.sign(self._signed).hex()
        return replace(self, signatures={**self.signatures, identity.public.hex(): signature})

    def differences(self, seen: "Statement") -> tuple[str, ...]:
        """Return what differs in `seen` from this statement, each by its name."""
        return tuple(_differences(self, seen))

    def write(self, path: Path) -> None:
        """Replace the file of the statement."""
        content = {name: getattr(self, name) for name in FIELDS}
        with system_errors(f"{path}", "a place to write"), whole(path, SHARED) as part:
            part.write_text(json.dumps(content, sort_keys=True, indent=1) + "\n")

    @classmethod
    def read(cls, content: bytes) -> "Statement":
        """Decode the content of a file, and verify its signatures.

        Raises:
            Unusable: It is no statement, or a signature is not valid.
        """
        try:
            found = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise Unusable(f"{STATEMENT}: cannot be read: {error}") from error
        statement = cls(**_checked(found))
        for key, signature in statement.signatures.items():
            try:
                verify(bytes.fromhex(key), bytes.fromhex(signature), statement._signed, f"key {key}")
            except (NotAdmitted, ValueError) as error:
                raise Unusable(
                    f"{STATEMENT}: saw a signature of {key} that is not over it, needed a valid one"
                ) from error
        return statement


@dataclass(frozen=True, slots=True)
class SentApp:
    """An app that has arrived, and the statement that travels with it."""

    digest: str
    statement: Statement | None = None
    problem: str = ""  # why there is no statement, though its file is there
    files: frozenset[str] = frozenset()  # their paths in the app

    @classmethod
    def of(cls, files: Mapping[str, bytes]) -> "SentApp":
        """Return the app of these files; raise Unusable if its code cannot be read."""
        statement, problem = None, ""
        try:
            statement = Statement.read(files[STATEMENT]) if STATEMENT in files else None
        except Unusable as error:
            problem = str(error)
        return cls(app_digest(files), statement, problem, frozenset(files))

    @property
    def signers(self) -> tuple[str, ...]:
        """The public keys that have signed this app."""
        statement = self.statement
        return tuple(statement.signatures) if statement and statement.app == self.digest else ()

    @property
    def signed_code(self) -> str:
        """The digest of the script or task that was signed with this app; empty if there is none."""
        return self.statement.code if self.statement and self.signers else ""

    def has_module(self, task: str) -> bool:
        """Return whether the module of a task is a file of this app."""
        path = task.partition(":")[0].replace(".", "/")
        return not self.files.isdisjoint((f"{path}.py", f"{path}/__init__.py"))


def pinned_settings(config: RunConfig) -> dict[str, Value]:
    """Return the settings that a statement names.

    >>> "rounds" in pinned_settings(RunConfig()), "links.bind" in pinned_settings(RunConfig())
    (True, False)
    """
    return {key: each for key, each in config.table().items() if FREE.isdisjoint((key, group_of(key)))}


def read_statement(path: Path) -> Statement:
    """Return the statement in a file, or raise Unusable."""
    try:
        return Statement.read(path.read_bytes())
    except OSError as error:
        raise Unusable(
            f"{path}: {error.strerror}, needed a statement that `fedgc task sign` writes"
        ) from error
    except FedgcError as error:
        raise Unusable(f"{path.parent}: {error}") from error


def _json(content: object) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()


def _checked(found: Any) -> dict[str, Any]:  # noqa: ANN401  what JSON holds
    """Return the fields of a statement; raise Unusable, by its name, for the first that is none."""
    if not isinstance(found, dict) or sorted(found) != sorted(FIELDS):
        seen = ", ".join(sorted(found))[:200] if isinstance(found, dict) else type(found).__name__
        raise Unusable(f"{STATEMENT}: saw {seen!r}, needed {', '.join(FIELDS)}")
    for name, fits, needed in (
        ("fedgc", lambda value: isinstance(value, str) and _is_plain(value), "a version"),
        ("app", lambda value: isinstance(value, str) and is_digest(value), "a digest"),
        (
            "code",
            lambda value: value == "" or (isinstance(value, str) and is_digest(value)),
            "a digest, or none",
        ),
        ("settings", _is_settings, "settings by name"),
        ("signatures", _is_signatures, "signatures by public key"),
    ):
        if not fits(found[name]):
            raise Unusable(f"{STATEMENT}: saw {name} = {str(found[name])[:100]!r}, needed {needed}")
    return found


def _is_plain(text: str) -> bool:
    """Whether a text can be shown: it is printed as it is where statements differ."""
    return text.isascii() and text.isprintable()


def _is_settings(value: object) -> bool:
    return isinstance(value, dict) and all(
        _is_plain(key) and isinstance(each, str | int | float) for key, each in value.items()
    )


def _is_signatures(value: object) -> bool:
    return isinstance(value, dict) and all(
        is_key(key) and isinstance(each, str) for key, each in value.items()
    )


def _differences(needed: Statement, seen: Statement) -> Iterator[str]:
    code = "script" if needed.settings.get("script") else "task"
    for name, one, other in (
        ("version of fedgc", seen.fedgc, needed.fedgc),
        ("app", seen.app, needed.app),
        (f"code of the {code}", seen.code, needed.code),
    ):
        if one != other:
            yield f"{name}: saw {one or 'none'}, needed {other or 'none'}"
    for key in sorted(needed.settings.keys() | seen.settings.keys()):
        value, agreed = (each.settings.get(key) for each in (seen, needed))
        if value != agreed or type(value) is not type(agreed):
            yield f"setting {key}: saw {_said(value)}, needed {_said(agreed)}"


def _said(value: Value | None) -> str:
    return "none" if value is None else repr(value)
