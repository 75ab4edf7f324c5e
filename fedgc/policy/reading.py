"""Reads the file of a policy; a contradiction or an unknown key is refused before any run."""

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, get_type_hints

from fedgc.config.fields import converted, fits, wanted
from fedgc.errors import Unusable, nearest, text_of
from fedgc.policy.hours import Hours, zone_of
from fedgc.policy.policy import Names, Policy

PART: Final = re.compile(r"""[\w-]+|"[^"]*"|'[^']*'""")  # of a key, which may be quoted
PATH: Final = rf"((?:{PART.pattern})(?:\s*\.\s*(?:{PART.pattern}))*)"
SECTION: Final = re.compile(rf"\s*\[\s*{PATH}\s*\]")
KEY: Final = re.compile(rf"\s*{PATH}\s*=")
RULES: Final[Mapping[str, str]] = MappingProxyType(  # key in the file -> field
    {each.metadata["key"]: each.name for each in fields(Policy) if "key" in each.metadata}
)
SAYS: Final[Mapping[str, Any]] = MappingProxyType(
    {each.metadata["key"]: each.metadata for each in fields(Policy) if "key" in each.metadata}
)


def read_policy(path: Path) -> Policy:
    """Return the policy in a file.

    Raises:
        Unusable: The file cannot be read, or a rule is unknown, malformed or contradicts another.
    """
    try:
        text = path.read_text()
        table = tomllib.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise Unusable(f"policy {path}: cannot be read: {text_of(error, path)}") from error
    policy = Policy(path, MappingProxyType(dict(_lines(text))))
    given = {}
    for section, entries in table.items():
        if not isinstance(entries, dict):
            known = sorted({key.partition(".")[0] for key in RULES})
            raise Unusable(
                f"{policy.where(section)}: saw a key outside of a table, needed [{'], ['.join(known)}]"
            )
        for name, value in entries.items():
            key = f"{section}.{name}"
            if key not in RULES:
                raise Unusable(f"{policy.where(key)}: unknown rule{nearest(key, RULES)}")
            given[RULES[key]] = _value(policy, key, value)
    keys = frozenset(key for key, name in RULES.items() if name in given)
    return _consistent(replace(policy, **given, keys=keys), given)


def explained(policy: Policy) -> tuple[str, ...]:
    """Return the rules of a policy as sentences."""
    said = []
    for key, name in RULES.items():
        value = getattr(policy, name)
        text = ", ".join(value) or "none" if isinstance(value, tuple) else value
        if key in policy.keys or key == "audit.log":
            said.append(f"{policy.where(key)}: {SAYS[key]['says'].format(text)}.")
    return tuple(said)


def implied(policy: Policy) -> tuple[str, ...]:
    """Return, as sentences, what rules that limit apps say of scripts and tasks where the file does not."""
    if not policy.limits_apps:
        return ()
    signed = " but one that was signed with its app, by as many as the app needs" if policy.signers else ""
    said = []
    if policy.scripts is None:
        said.append(
            f"{policy.where('allow.scripts')}: not set, and apps are limited: no script is started{signed}."
        )
    if policy.tasks is None:
        said.append(
            f"{policy.where('allow.tasks')}: not set, and apps are limited: only tasks that fedgc ships and "
            "those in the app are trained."
        )
    return tuple(said)


def _lines(text: str) -> Iterator[tuple[str, int]]:
    """Yield each section and each key with its line, as far as lines begin with them."""
    section = ""
    for number, line in enumerate(text.split("\n"), 1):
        if found := SECTION.match(line):
            section = _path(found[1])
            yield section, number
        elif found := KEY.match(line):
            key = _path(found[1])
            yield f"{section}.{key}" if section else key, number


def _path(text: str) -> str:
    """Return a key without quotes and blanks: `"limits" . bytes-per-day` is limits.bytes-per-day."""
    return ".".join(part.strip("\"'") for part in PART.findall(text))


def _value(policy: Policy, key: str, value: Any) -> Any:  # noqa: ANN401  what TOML holds
    hint = get_type_hints(Policy)[RULES[key]]
    if hint == Names | None:
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise Unusable(f"{policy.where(key)}: saw {value!r}, needed a list of texts")
        value = tuple(value)
    else:
        value = converted(value, hint)
        if value is None or not fits(value, hint):
            raise Unusable(
                f"{policy.where(key)}: saw {value!r}, needed {wanted(hint).removesuffix(' or NoneType')}"
            )
    about = SAYS[key]
    if not about["allowed"](value):
        raise Unusable(f"{policy.where(key)}: saw {value!r}, needed {about['needs']}")
    return value


def _consistent(policy: Policy, given: Mapping[str, object]) -> Policy:
    """Return the policy with its hours; raise Unusable if its rules contradict each other."""
    for key, problem in _contradictions(policy, given):
        raise Unusable(f"{policy.where(key)}: {problem}")
    try:
        zone_of(policy.zone)
    except Unusable as error:
        raise Unusable(f"{policy.where('hours.zone')}: {error}") from error
    try:
        hours = None if policy.windows is None else Hours.of(policy.zone, policy.windows)
    except Unusable as error:
        raise Unusable(f"{policy.where('hours.open')}: {error}") from error
    return replace(policy, hours=hours)


def _contradictions(policy: Policy, given: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Yield the key of each rule that contradicts another, and why."""
    if policy.apps == () and policy.signers is None:
        yield "allow.apps", "saw no app, so no run is ever allowed; needed at least one digest"
    if policy.signatures > len(policy.signers or ()):
        keys = f"{len(policy.signers or ())} keys in allow.signers"
        yield "allow.signatures", f"saw {policy.signatures} with {keys}, needed as many keys or more"
    if policy.tasks == () and policy.scripts == ():
        yield "allow.tasks", "saw neither a task nor a script, so no run is ever allowed; needed one"
    yield from _about_secrecy(policy, given)
    if policy.figures == () and policy.smallest_group:
        yield "metrics.smallest-group", "saw it with metrics.names = [], needed a figure that may leave"
    if "zone" in given and not {"windows", "bytes_per_day", "exchanges_per_day"} & given.keys():
        yield "hours.zone", "saw it alone, needed hours.open or a daily limit"


def _about_secrecy(policy: Policy, given: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    masked = policy.least_secrecy == "masked"
    for key in ("secrecy.threshold", "secrecy.n-min"):
        if RULES[key] in given and not masked:
            yield key, "saw it with secrecy.least = open, needed masked: only masked runs have it"
    if policy.threshold > policy.n_min > 0:
        yield "secrecy.n-min", f"saw {policy.n_min}, needed at least secrecy.threshold ({policy.threshold})"
    if "delta" in given and "epsilon" not in given:
        yield "privacy.delta", "saw it alone, needed privacy.epsilon, the budget that it belongs to"
    if masked and policy.figures:
        yield (
            "metrics.names",
            "saw names with secrecy.least = masked, under which no figure leaves; needed none",
        )
