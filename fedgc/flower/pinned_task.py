"""The task that a masked federation pins: the app that a site is sent is checked before the site trains it.

The code of the app is checked before it is installed (`app_guard`); the settings, the code of the task or
script and the version of fedgc before the task is imported.
"""

from importlib.metadata import version

from fedgc.config import RunConfig
from fedgc.errors import NotAllowed
from fedgc.policy import Request, SentApp, Statement, pinned_settings
from fedgc.secagg import Federation


def pinned_statement(federation: Federation, sent: SentApp | None) -> Statement | None:
    """Return the statement that a descriptor pins; None if it pins none.

    Raises:
        NotAllowed: The app is none that was checked, has not this statement with it or one that cannot be
            read, or has too few signatures of members under it.
    """
    pin = federation.task
    if pin is None:
        return None
    if sent is None:
        seen = "saw an app that was not checked before it began"
        raise _refused(federation, f"{seen}, needed one that `fedgc deploy client` starts")
    if sent.problem:
        raise _refused(federation, sent.problem)
    statement = sent.statement
    if statement is None:
        seen = "saw an app without a statement"
        raise _refused(federation, f"{seen}, needed the statement that `fedgc task sign` writes")
    if statement.digest != (needed := f"sha256:{pin.digest.hex()}"):
        raise _refused(federation, f"saw the statement {statement.digest}, needed {needed}")
    signed = signed_by(federation, statement)
    if len(signed) < pin.signatures:
        seen = ", ".join(signed) or "no member"
        raise _refused(federation, f"saw it signed by {seen}, needed {pin.signatures} members")
    return statement


def signed_by(federation: Federation, statement: Statement) -> tuple[str, ...]:
    """Return the names of the members that have signed."""
    return tuple(each.name for each in federation.members if each.public.hex() in statement.signatures)


def must_be_app(federation: Federation, sent: SentApp) -> None:
    """Raise NotAllowed unless an app is that of the statement that a descriptor pins, if it pins one."""
    statement = pinned_statement(federation, sent)
    if statement is not None and statement.app != sent.digest:
        raise _refused(federation, f"app: saw {sent.digest}, needed {statement.app}")


def must_be_pinned(
    federation: Federation, sent: SentApp | None, config: RunConfig, request: Request, client: str
) -> None:
    """Raise NotAllowed unless all that a run asks for is what a descriptor pins, if it pins a task."""
    statement = pinned_statement(federation, sent)
    if statement is None:
        return
    if differences := statement.differences(statement_of(config, request)):
        raise _refused(federation, "; ".join(differences), client)


def statement_of(config: RunConfig, request: Request) -> Statement:
    """Return the statement, without signatures, of what a run asks for."""
    task = request.task_digest if ":" in request.task else ""
    code = request.script_digest if request.script else task
    return Statement(version("fedgc"), request.app_digest or "", code, pinned_settings(config))


def _refused(federation: Federation, problem: str, client: str = "") -> NotAllowed:
    return NotAllowed(f"descriptor {federation.fid.hex()[:16]} pins its task: {problem}", client=client)
