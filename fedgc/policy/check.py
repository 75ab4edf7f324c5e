"""What a policy says to a run, an exchange, a figure. Every refusal names its rule."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from fedgc.policy.hours import zone_of
from fedgc.policy.policy import Policy
from fedgc.policy.totals import Totals, day_of, midnight_s
from fedgc.secagg.renyi import Release, text_above

LOSS: Final = "loss"  # the name of the training loss among the figures
NEVER: Final = float("inf")


@dataclass(frozen=True, slots=True)
class Request:
    """What a run asks of a site. A digest is empty if the file was not found."""

    run: str
    task: str  # empty with a script
    task_digest: str = ""
    script: str = ""
    script_digest: str = ""
    app_digest: str | None = None  # None: not known here
    app_signers: tuple[str, ...] = ()  # the keys that have signed the app
    signed_code: str = ""  # the digest of the script or task that they have signed with it
    is_in_app: bool = False  # the module of the task is a file of the app, or of fedgc
    is_owners: bool = False  # the script is the command of the client's owner
    masked: bool = False
    threshold: int = 0
    n_min: int = 0
    noise: float = 0.0  # of each release, as a multiple of the site's clip; 0: no privacy of the site
    releases: int = 0  # that the descriptor declares, for all of its runs
    descriptor: str = ""  # begin of its hash; empty without masks
    protects_records: bool = False  # by noise in each local step
    weighs_loss: bool = False  # its gate needs the loss of each client
    batch_samples: int = 0  # of a local step, which its training loss describes; 0: not known, as of a script


@dataclass(frozen=True, slots=True)
class Exchange:
    """An update that is about to leave: its bytes, and those of its run that are not in the totals yet."""

    size_bytes: int = 0
    unsettled_bytes: int = 0
    noise: float = 0.0
    steps: tuple[Release, ...] = ()  # local steps with noise for records, not in the totals yet
    again: bool = False  # the same vector has left before, and was counted as an exchange
    descriptor: str = ""  # to which its noise is charged


@dataclass(frozen=True, slots=True)
class Refusal:
    """A rule that a run breaks; `again_s` says in how many seconds it may be allowed (infinite: never)."""

    rule: str
    text: str
    again_s: float = NEVER


def check(policy: Policy, request: Request, totals: Totals, now: float) -> tuple[Refusal, ...]:
    """Return the rules that a run breaks; empty if it is allowed now.

    Args:
        policy: The site's rules.
        request: What the run asks for.
        totals: What the site has spent.
        now: Seconds since 1970.
    """
    return (
        *check_run(policy, request),
        *_privacy(policy, request, totals),
        *_limits(policy, totals, now, Exchange()),
    )


def check_run(policy: Policy, request: Request) -> tuple[Refusal, ...]:
    """Return the rules that a run breaks, whatever the time and whatever the site has spent."""
    return (*_code(policy, request), *_secrecy(policy, request), *_gate(policy, request))


def check_exchange(policy: Policy, exchange: Exchange, totals: Totals, now: float) -> tuple[Refusal, ...]:
    """Return the rules that one more exchange breaks."""
    return (*_limits(policy, totals, now, exchange), *check_release(policy, exchange, totals))


def check_bytes(policy: Policy, totals: Totals, now: float, spare: int = 0) -> tuple[Refusal, ...]:
    """Return the rule that is broken if more bytes than are allowed have moved today, and `spare` more."""
    zone, limit = zone_of(policy.zone), policy.bytes_per_day
    seen = totals.on(day_of(now, zone)).bytes
    if limit is None or seen <= limit + spare:
        return ()
    text = f"saw {seen} today, needed at most {limit}; a day ends at 24:00 {zone}"
    return (_refusal(policy, "limits.bytes-per-day", text, midnight_s(now, zone)),)


def check_app(policy: Policy, digest: str, signers: tuple[str, ...] = ()) -> tuple[Refusal, ...]:
    """Return the rule that an app breaks by its digest and the keys that have signed it.

    An empty digest is that of an app not checked.
    """
    if not policy.limits_apps or digest in (policy.apps or ()):
        return ()
    key, seen, needed = "allow.apps", f"saw the app {digest}", "needed one that is listed"
    if policy.signers is not None:
        count = _signatures(policy, signers)
        if digest and count >= policy.needed_signatures:
            return ()
        key, seen = "allow.signers", f"{seen}, signed by {count} of these keys"
        needed = f"needed {policy.needed_signatures}" + (", or one in allow.apps" if policy.apps else "")
    if not digest:
        seen = "saw an app that was not checked before it began"
        needed = "needed one that `fedgc deploy client` starts"
    return (_refusal(policy, key, f"{seen}, {needed}"),)


def figures_that_leave(
    policy: Policy, names: tuple[str, ...], samples: int
) -> tuple[tuple[str, ...], tuple[Refusal, ...]]:
    """Return the names of the figures that may leave, and the rules that keep the others."""
    if names and samples < policy.smallest_group:
        key = "metrics.smallest-group"
        text = f"saw figures of {samples} samples, needed at least {policy.smallest_group}"
        return (), (_refusal(policy, key, text),)
    allowed = policy.figures
    if allowed is None:
        return names, ()
    kept = [name for name in names if name not in allowed]
    refusals = (
        (_refusal(policy, "metrics.names", f"saw {', '.join(kept)}, which may not leave"),) if kept else ()
    )
    return tuple(name for name in names if name in allowed), refusals


def loss_leaves(policy: Policy, request: Request, samples: int) -> bool:
    """Return whether the training loss of a client with so many samples may leave.

    It describes those of a local step: the server may ask after any step, and subtract what it knows already.
    """
    return not figures_that_leave(policy, (LOSS,), min(samples, request.batch_samples))[1]


def _refusal(policy: Policy, key: str, text: str, again_s: float = NEVER) -> Refusal:
    return Refusal(key, f"{policy.where(key)}: {text}", again_s)


def _code(policy: Policy, request: Request) -> Iterator[Refusal]:
    kind, name, digest, listed = "task", request.task, request.task_digest, policy.tasks
    if request.script:
        kind, name, digest, listed = "script", request.script, request.script_digest, policy.scripts
    key, seen = f"allow.{kind}s", f"saw the {kind} {name!r}, digest {digest or 'unknown'}"
    refused = () if request.app_digest is None else check_app(policy, request.app_digest, request.app_signers)
    if listed is not None:
        is_named = not request.script and ":" not in name and name in listed
        if not (is_named or digest in listed):
            yield _refusal(policy, key, f"{seen}, needed one that is listed")
    elif policy.limits_apps and not refused and not _is_of_app(policy, request):
        other = "in the app, or "
        if request.script:
            other = "signed with its app, or " if policy.signers else ""
        yield _refusal(policy, key, f"{seen}, needed one that is {other}listed here")
    yield from refused


def _is_of_app(policy: Policy, request: Request) -> bool:
    """Return whether what a run executes comes with an allowed app, or is the owner's; also if unknown."""
    if not request.script:
        return ":" not in request.task or request.is_in_app or request.app_digest is None
    if request.is_owners or policy.signers is None:
        return request.is_owners
    is_signed = _signatures(policy, request.app_signers) >= policy.needed_signatures
    is_script = bool(request.script_digest) and request.signed_code == request.script_digest
    return request.app_digest is None or (is_signed and is_script)


def _signatures(policy: Policy, signers: tuple[str, ...]) -> int:
    return len(set(signers) & set(policy.signers or ()))


def _secrecy(policy: Policy, request: Request) -> Iterator[Refusal]:
    if policy.least_secrecy == "open":
        return
    if not request.masked:
        yield _refusal(policy, "secrecy.least", "saw secrecy = open, needed masked")
        return
    for key, seen, needed in (
        ("secrecy.threshold", request.threshold, policy.threshold),
        ("secrecy.n-min", request.n_min, policy.n_min),
    ):
        if seen < needed:
            yield _refusal(policy, key, f"saw {seen} in the descriptor, needed at least {needed}")


def _privacy(policy: Policy, request: Request, totals: Totals) -> Iterator[Refusal]:
    """Check that the budget lasts for all releases that the descriptor declares, or that something is left.

    Those that were spent in other runs under the descriptor are among them.
    """
    if policy.epsilon == NEVER:
        return
    if request.protects_records:
        if (spent := totals.epsilon(policy.delta)) >= policy.epsilon:
            seen = f"saw {spent:.3g} spent by all runs, needed less than {policy.epsilon:g}"
            yield _refusal(policy, "privacy.epsilon", seen)
        return
    if not request.noise:
        yield _refusal(
            policy,
            "privacy.epsilon",
            "saw a run without differential privacy, needed privacy.unit = record, or noise in a descriptor",
        )
        return
    total = totals.epsilon(policy.delta, request.descriptor, request.releases / request.noise**2)
    if total > policy.epsilon:
        declared = f"{request.releases} releases with noise {request.noise:g}"
        yield _refusal(
            policy, "privacy.epsilon",
            f"saw a descriptor of {declared}, after which all runs have spent "
            f"{text_above(total, policy.epsilon)}, needed at most {policy.epsilon:g}",
        )  # fmt: skip


def check_release(policy: Policy, exchange: Exchange, totals: Totals) -> Iterator[Refusal]:
    """Yield the rule that the privacy of one more exchange breaks."""
    if policy.epsilon == NEVER or not (exchange.noise or exchange.steps):
        return
    more = exchange.noise**-2 if exchange.noise else 0.0
    before = totals.privacy.get(exchange.descriptor, 0.0)
    total = totals.epsilon(policy.delta, exchange.descriptor, before + more, exchange.steps)
    if total > policy.epsilon:
        spent = text_above(total, policy.epsilon)
        seen = f"saw {spent} spent by all runs with this update, needed at most {policy.epsilon:g}"
        yield _refusal(policy, "privacy.epsilon", seen)


def _gate(policy: Policy, request: Request) -> Iterator[Refusal]:
    if not request.weighs_loss:
        return
    seen, least = "saw a gate that needs the loss of each client", policy.smallest_group
    if policy.figures is not None and LOSS not in policy.figures:
        yield _refusal(policy, "metrics.names", f"{seen}, which may not leave")
    elif request.batch_samples < least:
        batch = request.batch_samples or "an unknown number of"
        text = f"{seen}, over batches of {batch} samples, needed at least {least}"
        yield _refusal(policy, "metrics.smallest-group", text)


def _limits(policy: Policy, totals: Totals, now: float, exchange: Exchange) -> Iterator[Refusal]:
    if policy.hours is not None and not policy.hours.closes_s(now):
        opens_s = policy.hours.opens_s(now)
        text = f"training is not allowed now; the next window opens in {_span(opens_s)}"
        yield _refusal(policy, "hours.open", text, opens_s)
    zone = zone_of(policy.zone)
    today = totals.on(day_of(now, zone))
    used = today.bytes + exchange.unsettled_bytes + max(1, exchange.size_bytes)
    for key, seen, limit in (
        ("limits.bytes-per-day", used, policy.bytes_per_day),
        ("limits.exchanges-per-day", today.exchanges + (not exchange.again), policy.exchanges_per_day),
    ):
        if limit is not None and seen > limit:
            text = (
                f"saw {seen} today with one more exchange, needed at most {limit}; a day ends at 24:00 {zone}"
            )
            yield _refusal(policy, key, text, midnight_s(now, zone))


def _span(seconds: float) -> str:
    hours, minutes = divmod(int(seconds) // 60, 60)
    return f"{hours} h {minutes} min"
