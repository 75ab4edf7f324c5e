"""`fedgc task sign` and `verify`: the statement of a task beside the app in a folder."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedgc.cli.federation import Opener
from fedgc.cli.policy import asked_in
from fedgc.cli.settings import parse, trained
from fedgc.errors import EdgeFailed, NotAllowed, Unusable, numbered
from fedgc.flower.pinned_task import pinned_statement, signed_by, statement_of
from fedgc.policy import SentApp, Statement, read_statement
from fedgc.policy.digests import STATEMENT
from fedgc.store.descriptor import read_descriptor


@dataclass(frozen=True, slots=True)
class Asked:
    """The file of a statement, and the statement of what is in front of it."""

    file: Path
    here: Statement


def asked(
    folder: Path,
    task: str | None,
    script: str | None,
    settings: Sequence[str] | None,
    file: Path | None,
) -> Asked:
    """Return what a command asks for."""
    config, request = asked_in(folder, {**parse(settings or []), **trained(task, script)})
    here = statement_of(config, request)
    if not here.code and (request.script or ":" in request.task):
        raise Unusable(f"{request.script or request.task!r}: saw no file of it, needed one in {folder}")
    return Asked(file or folder / STATEMENT, here)


def sign(asked: Asked, opener: Opener) -> None:
    """Add this site's signature to a statement; write the statement if there is none."""
    statement = read_statement(asked.file) if asked.file.exists() else asked.here
    if differences := statement.differences(asked.here):
        raise EdgeFailed(
            f"{asked.file}: {'; '.join(differences)}; delete the file to begin a new one, which all sign"
        )
    with opener.open(may_make=False) as vault:
        signed = statement.sign(vault.identity())
    signed.write(asked.file)
    count = numbered(len(signed.signatures), "signature")
    sys.stdout.write(f"{asked.file}: statement {signed.digest}, {count}\n")


def verify(asked: Asked, descriptor: Path | None, *, as_json: bool) -> None:
    """Print who has signed a statement; raise EdgeFailed if anything differs from it."""
    statement = read_statement(asked.file)
    problems = list(statement.differences(asked.here))
    signers = tuple(statement.signatures)
    if descriptor is not None:
        federation = read_descriptor(descriptor).federation
        signers = signed_by(federation, statement)
        try:
            if pinned_statement(federation, SentApp(asked.here.app, statement)) is None:
                problems.append(f"{descriptor}: pins no task, needed one with --task")
        except NotAllowed as refused:
            problems.append(str(refused))
    if as_json:
        said = {"statement": statement.digest, "signed": signers, "differs": problems}
        sys.stdout.write(json.dumps(said, indent=1) + "\n")
    else:
        sys.stdout.write(f"{asked.file}: statement {statement.digest}\n")
        sys.stdout.write(f"signed by {', '.join(signers) or 'nobody'}\n")
    if problems:
        raise EdgeFailed(f"{asked.file}: {'; '.join(problems)}")
    if not as_json:
        sys.stdout.write("the app, its task, its settings and this version of fedgc are as signed\n")
