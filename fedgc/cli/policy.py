"""`fedgc policy` and `fedgc audit`: what the rules of a site say, would have said, and what was done."""

import json
import math
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from fedgc.cli.run import app_with
from fedgc.cli.script import placed_script
from fedgc.cli.settings import GIVEN, settle, trained
from fedgc.config import RunConfig, known
from fedgc.deploy.app_folder import MANIFEST, Setting, app_in, whole
from fedgc.errors import FedgcError, Unusable, nearest
from fedgc.flower.app_bundle import bundle_of
from fedgc.flower.site_policy import is_foreign, request_of
from fedgc.history import ClientRow
from fedgc.messages import SUMMED
from fedgc.policy import (
    AuditLog,
    Exchange,
    Policy,
    Refusal,
    Request,
    Totals,
    check,
    check_exchange,
    explained,
    figures_that_leave,
    implied,
    read_policy,
    verify,
)
from fedgc.policy.digests import app_digest, files_in_bundle
from fedgc.policy.hours import zone_of
from fedgc.policy.policy import is_digest
from fedgc.policy.totals import day_of
from fedgc.secagg import Federation
from fedgc.store.database import Store
from fedgc.store.descriptor import read_descriptor
from fedgc.store.views import Run
from fedgc.training.tasks.find import SHIPPED

LIMITS: Final = (
    "The rules bind fedgc's own client. An app of another kind could leave it out: only allow.apps and "
    "allow.signers, checked before any code of an app runs, keep other apps away.",
    "Under these, a run still chooses its settings and, unless allow.tasks lists tasks, any shipped task or "
    "any function of a module in its app as its task.",
    "A program of an allowed app can read what its user can read, the policy and the log included.",
)


def check_file(file: Path) -> None:
    """Check a policy and its log."""
    policy = read_policy(file)
    totals = AuditLog(policy.log_file, zone_of(policy.zone), time.time).totals()
    today = totals.on(day_of(time.time(), zone_of(policy.zone)))
    spent = f"{today.bytes} bytes and {today.exchanges} exchanges today"
    if totals.privacy or totals.steps:
        spent += f", epsilon {totals.epsilon(policy.delta):.3g} in all runs"
    sys.stdout.write(
        f"{file}: {len(explained(policy)) - 1} rules, none contradicts another; spent: {spent}\n"
    )
    sys.stdout.write("".join(f"{each}\n" for each in (*implied(policy), *_misspelt(policy))))


def _misspelt(policy: Policy) -> Iterator[str]:
    """Yield a sentence for each task that this version of fedgc does not ship."""
    for task in policy.tasks or ():
        if not is_digest(task) and task not in SHIPPED:
            meant = nearest(task, SHIPPED, SHIPPED)
            yield f"{policy.where('allow.tasks')}: saw {task}, which is no task that this fedgc ships{meant}"


def explain(file: Path, *, as_json: bool) -> None:
    """Print a policy as sentences."""
    policy = read_policy(file)
    rules = (*explained(policy), *implied(policy))
    if as_json:
        sys.stdout.write(json.dumps({"rules": rules, "limits": LIMITS}, indent=1) + "\n")
        return
    sys.stdout.write("".join(f"{each}\n" for each in (*rules, "", *LIMITS)))


def digests(folder: Path, task: str | None, script: str | None) -> None:
    """Print the digests of an app as it is sent, and of a task or script in it."""
    app = app_in(folder)
    names_one = task or script or (app is not None and not app.settings.keys().isdisjoint(("task", "script")))
    if whole(app) is None and not names_one:
        raise Unusable(
            f"folder {folder.absolute()}: saw no app, needed a pyproject.toml with [tool.flwr.app], or "
            "--task or --script, which travels with fedgc's own app"
        )
    _, request = asked_in(folder, trained(task, script))
    sys.stdout.write(f"app {request.app_digest}\n")
    for kind, name, digest in (
        ("task", request.task, request.task_digest),
        ("script", request.script, request.script_digest),
    ):
        if name and (kind == "script" or ":" in name):
            sys.stdout.write(f"{kind} {digest or 'not found'} {name}\n")


def asked_in(folder: Path, given: Mapping[str, Setting]) -> tuple[RunConfig, Request]:
    """Return the settings of a run of the app in a folder, as `fedgc run` sends it, and what it asks for."""
    app = app_in(folder)
    layers = [] if app is None else [(MANIFEST, app.settings)]
    config = settle([*layers, (GIVEN, given)]).config
    own = whole(app)
    config = replace(config, script=placed_script(config.script, folder, own, here=own is None))
    with tempfile.TemporaryDirectory() as temporary:
        written = app_with(app, Path(temporary) / "app", config, folder)
        found = app_digest(files_in_bundle(bundle_of(written)))
        request = request_of(config, "", None, folders=(str(written), str(folder.absolute()), *sys.path))
    return config, replace(request, app_digest=found)


def verify_log(file: Path, noted: str) -> None:
    """Verify an audit log."""
    head = verify(file, noted)
    if not head.lines:
        sys.stdout.write(f"{file}: it is empty: nothing has been logged yet\n")
        return
    sys.stdout.write(f"{file}: {head.lines} lines follow each other; head {head.digest}\n")


def export_log(file: Path, run: str | None, noted: str) -> None:
    """Print the entries of a verified log."""
    verified = verify(file, noted)
    with file.open("rb") as log:
        text = log.read(verified.size_bytes).decode()  # a client may append meanwhile
    for line in text.split("\n")[:-1]:  # texts of a server may hold other ends of lines, such as U+2028
        if run is None or json.loads(line)["run"] == run:
            sys.stdout.write(f"{line}\n")


# ---- a run of the store


@dataclass(frozen=True, slots=True)
class Found:
    """A refusal in a run: when first, and how often."""

    client: str
    rule: str
    text: str
    first_round: int  # 0: at joining
    times: int = 1


def simulate(run: str | None, file: Path, client: str | None, *, as_json: bool) -> None:
    """Print what a policy would have refused in a run."""
    policy = read_policy(file)
    with Store.open(reads_only=True) as store:
        chosen = store.run(run) if run else store.run()
        names = {each.client: each.name or each.client for each in store.clients()}
        refused = simulated(policy, store, chosen, names)
        folded = _folded(store, chosen)
    if client is not None and client not in names.values():
        raise Unusable(f"--client: saw {client!r}, needed one of {', '.join(sorted(set(names.values())))}")
    shown = [each for each in refused if client in (None, each.client)]
    unknown = (*_not_known(policy, chosen), *folded)
    if as_json:
        found = {"run": chosen.run, "refused": [asdict(each) for each in shown], "not_known": unknown}
        sys.stdout.write(json.dumps(found, indent=1) + "\n")
        return
    for each in shown:
        when = f"from round {each.first_round} on, {each.times} times" if each.first_round else "at joining"
        sys.stdout.write(f"{each.client}, {when}: {each.text}\n")
    if not shown:
        sys.stdout.write(f"run {chosen.run}: nothing would have been refused\n")
    sys.stdout.write("".join(f"not known: {each}\n" for each in unknown))


def simulated(policy: Policy, store: Store, run: Run, names: Mapping[str, str]) -> tuple[Found, ...]:
    """Return what the policy would have refused to each client, the first time of each rule."""
    config = RunConfig.read(known(run.settings))
    request = replace(request_of(config, run.run, _federation(config)), app_digest=None)
    found: dict[tuple[str, str], Found] = {}
    for client, round_, refusal in _refusals(policy, store, run, request):
        key = names.get(client, client), refusal.rule
        before = found.get(key)
        found[key] = (
            Found(*key, refusal.text, round_) if before is None else replace(before, times=before.times + 1)
        )
    return tuple(found.values())


def _refusals(policy: Policy, store: Store, run: Run, request: Request) -> Iterator[tuple[str, int, Refusal]]:
    totals: dict[str, Totals] = {}
    for round_ in store.rounds(run.run):
        row = round_.row
        at = row.started + row.working_s
        for client in store.client_rows(run.run, row.round):
            if client.client not in totals:
                for refusal in check(policy, request, Totals(), row.started):
                    yield client.client, 0, refusal
            before = totals.get(client.client, Totals())
            gave = client.finished if row.is_left_out else client.counted  # what is left out was sent
            sums = row.outcome in SUMMED and gave > 0
            refusals, totals[client.client] = _spent(policy, request, client, before, at, sums=sums)
            for refusal in refusals:
                yield client.client, row.round, refusal
    for score in store.scores(run.run):
        for refusal in figures_that_leave(policy, tuple(score.metrics), score.samples)[1]:
            yield score.client, score.round, refusal


def _folded(store: Store, run: Run) -> tuple[str, ...]:
    """Return that what clients spent in some rounds is not known, if their rows were folded."""
    rounds = [
        each.row.round
        for each in store.rounds(run.run)
        if each.clients > len(store.client_rows(run.run, each.row.round))
    ]
    if not rounds:
        return ()
    said = f"what all clients spent in {len(rounds)} rounds up to round {rounds[-1]}, whose rows were folded"
    return (f"{said}: the budgets of [limits] count without them",)


def _spent(
    policy: Policy, request: Request, client: ClientRow, before: Totals, at: float, *, sums: bool
) -> tuple[tuple[Refusal, ...], Totals]:
    """Return what is refused in a round, and what the client has spent after it."""
    size_bytes = client.up_bytes + client.down_bytes + client.control_bytes
    refused: tuple[Refusal, ...] = ()
    if sums:
        exchange = Exchange(size_bytes, 0, request.noise, descriptor=request.descriptor)
        refused = check_exchange(policy, exchange, before, at)
    if refused:
        return refused, before
    day = day_of(at, zone_of(policy.zone))
    account = request.descriptor or request.run
    return (), before.spent(day, account, size_bytes, int(sums), request.noise)


def _federation(config: RunConfig) -> Federation | None:
    """Return the descriptor of a masked run, if it is on this machine."""
    try:
        return read_descriptor(Path(config.federation)).federation if config.federation else None
    except FedgcError:
        return None


def _not_known(policy: Policy, run: Run) -> tuple[str, ...]:
    """Return what the store does not say of a run, as far as the policy asks for it."""
    config = RunConfig.read(known(run.settings))
    said = []
    if policy.apps is not None:
        said.append("the digest of the app (allow.apps)")
    if policy.signers is not None:
        said.append("who has signed the app (allow.signers)")
    if policy.signers is not None and config.script and policy.scripts is None:
        said.append("whether the script was signed with the app (allow.scripts)")
    if policy.limits_apps and policy.tasks is None and not config.script and is_foreign(config.task):
        said.append("whether the task is in the app (allow.tasks)")
    if config.secrecy == "masked" and _federation(config) is None:
        said.append(f"the descriptor {config.federation}, which is not on this machine: it counts as empty")
    if config.protects_records and math.isfinite(policy.epsilon):
        said.append("what local steps with noise for records have spent (privacy.epsilon)")
    return tuple(said)
