"""The rules of a site, as its file `site.toml` states them. A rule that is not named allows everything."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal

from fedgc.config.fields import LARGEST_DELTA, setting
from fedgc.policy.hours import Hours

DIGEST: Final = "sha256:"
Names = tuple[str, ...]
FEWEST: Final = 3  # sites in a masked sum: two could compute each other's update


def is_digest(text: str) -> bool:
    """Return whether a text is a digest as the rules name it."""
    hexadecimal = text.removeprefix(DIGEST)
    return text != hexadecimal and len(hexadecimal) == 64 and not set(hexadecimal) - set("0123456789abcdef")


def is_key(text: str) -> bool:
    """Return whether a text is a public key as `fedgc keys new` prints it."""
    return is_digest(DIGEST + text)


def _digests(entries: Names) -> bool:
    return all(map(is_digest, entries))


def _tasks(entries: Names) -> bool:
    return all(is_digest(each) or (each and ":" not in each) for each in entries)


@dataclass(frozen=True, slots=True)
class Policy:
    """What a site allows. `lines` has the line of each key in `file`, and that of each section.

    A key within an inline table has the line of the table. `keys` are those that the file sets.
    """

    file: Path
    lines: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    keys: frozenset[str] = frozenset()
    apps: Names | None = setting(
        "allow.apps", None, "only these apps run, by the digest of their code: {}", _digests,
        f"digests as `fedgc policy digest` prints them, {DIGEST}...",
    )  # fmt: skip
    signers: Names | None = setting(
        "allow.signers", None, "these keys allow an app by their signatures under its statement: {}",
        lambda entries: bool(entries) and all(map(is_key, entries)) and len(set(entries)) == len(entries),
        "public keys as `fedgc keys new` prints them, each once",
    )  # fmt: skip
    signatures: int = setting(
        "allow.signatures", 0, "an app needs at least {} signatures of allow.signers",
        lambda value: value >= 1, "at least 1",
    )  # fmt: skip
    tasks: Names | None = setting(
        "allow.tasks", None, "only these tasks are trained: {}", _tasks,
        f"names of shipped tasks, or digests as `fedgc policy digest` prints them, {DIGEST}...",
    )  # fmt: skip
    scripts: Names | None = setting(
        "allow.scripts", None, "only these training scripts are started, by digest: {}",
        _digests, f"digests as `fedgc policy digest` prints them, {DIGEST}...",
    )  # fmt: skip
    least_secrecy: Literal["open", "masked"] = setting(
        "secrecy.least", "open", "updates leave as {} or better",
    )  # fmt: skip
    threshold: int = setting(
        "secrecy.threshold", 0, "at least {} sites are needed to remove masks",
        lambda value: value >= FEWEST, f"at least {FEWEST}",
    )  # fmt: skip
    n_min: int = setting(
        "secrecy.n-min", 0, "every sum has updates of at least {} sites",
        lambda value: value >= FEWEST, f"at least {FEWEST}",
    )  # fmt: skip
    epsilon: float = setting(
        "privacy.epsilon", math.inf,
        "all runs together spend at most epsilon = {} of differential privacy; a run without it is refused",
        lambda value: 0 < value < math.inf, "a finite number above 0",
    )  # fmt: skip
    delta: float = setting(
        "privacy.delta", 1e-6, "epsilon is stated at delta = {}",
        lambda value: 0 < value <= LARGEST_DELTA, f"above 0 and at most {LARGEST_DELTA}",
    )  # fmt: skip
    figures: Names | None = setting(
        "metrics.names", None, "only these figures of the site's data leave it (loss: of training): {}",
        lambda value: all(value), "names of figures",
    )  # fmt: skip
    smallest_group: int = setting(
        "metrics.smallest-group", 0, "no figure leaves that describes fewer than {} samples",
        lambda value: value >= 1, "at least 1",
    )  # fmt: skip
    bytes_per_day: int | None = setting(
        "limits.bytes-per-day", None, "at most {} bytes are exchanged a day",
        lambda value: value >= 1, "at least 1 (0 would allow no run)",
    )  # fmt: skip
    exchanges_per_day: int | None = setting(
        "limits.exchanges-per-day", None, "at most {} updates leave a day",
        lambda value: value >= 1, "at least 1 (0 would allow no run)",
    )  # fmt: skip
    zone: str = setting("hours.zone", "UTC", "days and hours are those of {}")
    windows: Names | None = setting("hours.open", None, "training is allowed in these hours only: {}")
    gpu_share: float = setting(
        "gpu.share", 1.0, "training takes at most {} of the memory of a GPU",
        lambda value: 0 < value <= 1, "above 0 and at most 1",
    )  # fmt: skip
    log: str = setting(
        "audit.log", "site.audit.jsonl", "decisions and exchanges are logged in {}",
        lambda value: bool(value) and "\0" not in value, "a file",
    )  # fmt: skip
    hours: Hours | None = field(default=None, metadata={})  # of `windows`

    def where(self, key: str) -> str:
        """Return a rule as errors and refusals name it: `site.toml, line 4 (secrecy.least)`."""
        line = self.lines.get(key) or self.lines.get(key.partition(".")[0])
        return f"{self.file.name}{f', line {line}' if line else ''} ({key})"

    @property
    def limits_apps(self) -> bool:
        """Whether only listed or signed apps run."""
        return self.apps is not None or self.signers is not None

    @property
    def needed_signatures(self) -> int:
        """The number of signatures by which an app is allowed: of all signers, if the rules do not say."""
        return self.signatures or len(self.signers or ())

    @property
    def log_file(self) -> Path:
        """The audit log; a relative path counts from the folder of the policy."""
        return self.file.absolute().parent / self.log
