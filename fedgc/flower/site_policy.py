"""The policy of a client's site, enforced in the client: at joining, and whenever something leaves.

What is allowed is logged before it happens; what cannot be logged does not happen. Without a policy in the
node config everything is allowed, and nothing is logged.
"""

import math
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from weakref import ref

from fedgc.config import RunConfig
from fedgc.errors import NotAllowed
from fedgc.flower.app_guard import POLICY, checked_app
from fedgc.links.byte_counts import Amounts
from fedgc.links.log import LOG
from fedgc.messages import MOST_WINDOWS, Progress, Report, Scored
from fedgc.policy import (
    AuditLog,
    Entry,
    Exchange,
    Policy,
    Refusal,
    Request,
    Totals,
    check,
    check_bytes,
    check_exchange,
    check_release,
    check_run,
    figures_that_leave,
    loss_leaves,
    read_policy,
)
from fedgc.policy.digests import script_digest, task_digest
from fedgc.policy.hours import zone_of
from fedgc.policy.totals import day_of
from fedgc.secagg import Federation
from fedgc.secagg.renyi import Release
from fedgc.training.script.place import in_app, script_in

if TYPE_CHECKING:
    from fedgc.training.record_privacy import RecordPrivacy

NOTHING: Final = Request("", "")
OWN: Final = "fedgc.training.tasks."  # modules of tasks that come with fedgc


class SitePolicy:
    """The policy of one client in one run."""

    def __init__(
        self,
        policy: Policy | None = None,
        client: str = "",
        request: Request = NOTHING,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`client` is its identity; `wall` returns seconds since 1970."""
        self._policy, self._client, self._wall = policy, client, wall
        self.request: Final = request  # what the run asks of the site
        self._log = AuditLog(policy.log_file, zone_of(policy.zone), wall) if policy else None
        self._closes_at = 0.0  # when the present window closes; asked for in every turn of the client's loop
        self._closes_from = 0.0  # when that was computed: the clock may be set back
        self._unsettled = 0  # bytes that moved, and are not in the log yet
        self._room: int | None = None  # that was left today for more of them; None: unknown
        self._sent: Callable[[], object] = lambda: None  # the masked vector that has left last
        self._records: RecordPrivacy | None = None
        self._totals = Totals()
        self._is_spent = False  # and the log says so
        self._withheld: set[str] = set()  # rules that kept figures, each logged once

    # ---- joining and hours

    def admit(self, *, ends_exchange: bool = False) -> None:
        """Raise NotAllowed unless the run is allowed now.

        A message that only ends an exchange, whose update was charged, is allowed also if nothing more is.
        """
        if self._policy is None or self._log is None:
            return
        if ends_exchange:
            self._allow(check_run(self._policy, self.request), 0)
            return
        self._allow(check(self._policy, self.request, self._log.totals(), self._wall()), 0)
        self._append(self._entry("joined"))

    @contextmanager
    def logs_refusal(self) -> Iterator[None]:
        """Enter a refusal by other rules than the policy's own into the log: those of the descriptor."""
        try:
            yield
        except NotAllowed as refused:
            if self._policy is not None:
                self._append(replace(self._entry("refused"), rule=str(refused)))
            raise

    def closes_s(self) -> float | None:
        """Return the seconds until the site's hours end, 0 outside of them; None if they do not end."""
        if self._policy is None or self._policy.hours is None:
            return None
        now = self._wall()
        if not self._closes_from <= now < self._closes_at:
            self._closes_from, self._closes_at = now, now + self._policy.hours.closes_s(now)
        return self._closes_at - now if math.isfinite(self._closes_at) else None

    def opens_s(self) -> float:
        """Return the seconds until the hours after the present ones begin; 0 if these do not end."""
        closes_s = self.closes_s()
        if self._policy is None or self._policy.hours is None or closes_s is None:
            return 0.0
        return closes_s + self._policy.hours.opens_s(self._wall() + closes_s)

    def windows(self) -> tuple[tuple[float, float], ...]:
        """Return the windows of the next seven days, as seconds from now; none if the site has no hours.

        The last ones of seven days in which summer time begins may be left out.
        """
        hours = self._policy.hours if self._policy else None
        return hours.week(self._wall())[:MOST_WINDOWS] if hours else ()

    @property
    def gpu_share(self) -> float:
        """The share of the memory of a GPU that training may take."""
        return self._policy.gpu_share if self._policy else 1.0

    # ---- what leaves

    def watch(self, records: "RecordPrivacy") -> None:
        """Let no step on records exceed the privacy of the site, and enter what steps spend into the log."""
        if self._policy is None or self._log is None:
            return
        self._records = records
        self.settle(0)  # the steps of a process that was killed
        self.reread()
        records.heed(self._forbids)

    def reread(self) -> None:
        """Count what other clients of the site have spent meanwhile, before steps on records follow."""
        if self._records is not None and self._log is not None:
            self._totals = self._log.totals()

    def _forbids(self, steps: tuple[Release, ...]) -> str:
        """Return the rule that these steps would break, by what the site had spent at the last work."""
        if self._policy is None:
            return ""
        exchange = Exchange(steps=steps)
        text = "; ".join(each.text for each in check_release(self._policy, exchange, self._totals))
        if text and not self._is_spent:
            self._is_spent = True
            self._append(replace(self._entry("refused"), rule=text))
        return text

    @property
    def _steps(self) -> tuple[Release, ...]:
        return self._records.undelivered if self._records is not None else ()

    def moved(self, amounts: Amounts) -> None:
        """Note bytes that the link has carried."""
        self._unsettled += amounts.up_bytes + amounts.down_bytes + amounts.control_bytes

    def send_first_model(self, size_bytes: int) -> None:
        """Log the first model, which leaves openly and before training; raise NotAllowed if it must not."""
        self._leaves(replace(self._entry("exchange"), bytes=size_bytes, exchanges=1, secrecy="open"))

    def send(self, round_: int, size_bytes: int, masked: object = None) -> None:
        """Log an update of this size that is about to leave; raise NotAllowed if it must not.

        If the same `masked` vector leaves again, only its bytes are charged: nobody learns more from it.
        """
        entry = replace(self._entry("exchange", round_), bytes=size_bytes)
        if masked is None or masked is not self._sent():
            entry = replace(entry, exchanges=1, noise=self.request.noise)
        self._leaves(entry)
        self._sent = (lambda: None) if masked is None else ref(masked)

    def _leaves(self, entry: Entry) -> None:
        """Log a vector that is about to leave."""
        if self._policy is None:
            return
        policy, size_bytes, steps = self._policy, entry.bytes, self._steps
        moved, again = self._unsettled, not entry.exchanges
        exchange = Exchange(size_bytes, moved, entry.noise, steps, again, entry.descriptor)

        def allowed(totals: Totals) -> None:
            self._allow(check_exchange(policy, exchange, totals, self._wall()), entry.round, logs=False)

        self._enter(replace(entry, steps=steps), allowed)
        self._unsettled -= size_bytes  # the link counts it too
        self._room = None
        self._delivered()

    def measured(self, round_: int) -> None:
        """Log the steps behind a measure that is about to leave; raise NotAllowed if it must not."""
        if self._policy is None or not self._steps:
            return
        policy, exchange = self._policy, Exchange(steps=self._steps)

        def allowed(totals: Totals) -> None:
            self._allow(check_release(policy, exchange, totals), round_, logs=False)

        self._enter(replace(self._entry("round", round_), steps=exchange.steps), allowed)
        self._delivered()

    def settle(self, round_: int) -> None:
        """Log the bytes that moved in a round besides its updates, and steps of which nothing left."""
        if self._policy is not None and (self._unsettled > 0 or self._steps):
            moved = max(0, self._unsettled)
            self._append(replace(self._entry("round", round_), bytes=moved, steps=self._steps))
            self._unsettled -= moved
            self._room = None
            self._delivered()

    def keep_to_bytes(self, round_: int, spare: int = 0) -> None:
        """Raise NotAllowed if more bytes than are allowed have moved today, and `spare` more.

        The log is read only if that is possible: other clients of the site write to it too.
        """
        policy = self._policy
        if policy is None or self._log is None or policy.bytes_per_day is None:
            return
        if self._room is None or self._unsettled > self._room + spare:
            self.settle(round_)
            totals, now = self._log.totals(), self._wall()
            self._room = policy.bytes_per_day - totals.on(day_of(now, zone_of(policy.zone))).bytes
            self._allow(check_bytes(policy, totals, now, spare), round_)

    def _delivered(self) -> None:
        if self._records is not None:
            self._records.deliver()
            self.reread()

    def filtered(self, event: Any) -> Any:  # noqa: ANN401  an event of the same kind
        """Return an event without the figures that must not leave."""
        policy = self._policy
        if policy is None:
            return event
        if isinstance(event, Scored):
            return self._scored(policy, event)
        if isinstance(event, Progress | Report) and not loss_leaves(policy, self.request, event.samples):
            return replace(event, loss=0.0)
        return event

    def _scored(self, policy: Policy, event: Scored) -> Scored:
        names = tuple(name for name, _ in event.figures)
        leave, refusals = figures_that_leave(policy, names, event.samples)
        for refusal in refusals:
            if refusal.text not in self._withheld:
                self._withheld.add(refusal.text)
                self._append(replace(self._entry("withheld"), rule=refusal.text))
        if leave:
            self._append(replace(self._entry("figures"), figures=leave))
        kept = tuple((name, value) for name, value in event.figures if name in leave)
        problem = "; ".join([event.problem, *(each.text for each in refusals)]).removeprefix("; ")
        return replace(event, figures=kept, problem=problem if refusals else event.problem)

    # ---- the log

    def _allow(self, refusals: Iterable[Refusal], round_: int, *, logs: bool = True) -> None:
        found = tuple(refusals)
        if not found:
            return
        text = "; ".join(each.text for each in found)
        if logs:
            self._append(replace(self._entry("refused", round_), rule=text))
        LOG.warning("the site's policy refuses: %s", text)
        raise NotAllowed(text, max(each.again_s for each in found), self._client)

    def _entry(self, what: str, round_: int = 0) -> Entry:
        secrecy = "masked" if self.request.masked else "open"
        asked = self.request
        return Entry(what, self._client, asked.run, round_, secrecy=secrecy, descriptor=asked.descriptor)

    def _enter(self, entry: Entry, allowed: Callable[[Totals], None]) -> None:
        """Append an entry if it is allowed, else one that says why not, and raise NotAllowed."""
        try:
            self._append(entry, allowed)
        except NotAllowed as refused:
            self._append(replace(self._entry("refused", entry.round), rule=str(refused)))
            raise

    def _append(self, entry: Entry, allowed: Callable[[Totals], None] | None = None) -> None:
        if self._log is not None:
            self._log.append(entry, allowed)


def site_policy(
    config: RunConfig, node: Mapping[str, object], client: str, run: str, federation: Federation | None
) -> SitePolicy:
    """Return the policy that the node config names, for this run.

    Raises:
        Unusable: The file cannot be read, or contradicts itself.
    """
    path = node.get(POLICY)
    policy = read_policy(Path(str(path))) if path else None
    return SitePolicy(policy, client, request_of(config, run, federation, str(node.get("script", ""))))


def request_of(
    config: RunConfig, run: str, federation: Federation | None, pinned: str = "", folders: Iterable[str] = ()
) -> Request:
    """Return what a run asks of a site.

    Args:
        config: Its settings.
        run: Its name.
        federation: The descriptor of a masked run.
        pinned: The command that the client's owner runs in place of the run's script.
        folders: Where the task and the script lie; by default where Python looks for modules.
    """
    places = tuple(folders) or tuple(sys.path)
    command = (pinned or config.script) if config.script else ""
    privacy, sent = federation.privacy if federation else None, checked_app()
    return Request(
        run=run.partition("@")[0],
        task="" if command else config.task,
        task_digest="" if command else task_digest(config.task, places),
        script=command,
        script_digest=script_digest(command, _file_of(command, places)) if command else "",
        app_digest=sent.digest if sent else "",
        app_signers=sent.signers if sent else (),
        signed_code=sent.signed_code if sent else "",
        is_in_app=not is_foreign(config.task) or (sent is not None and sent.has_module(config.task)),
        is_owners=bool(pinned),
        masked=config.secrecy == "masked",
        threshold=federation.threshold if federation else 0,
        n_min=federation.quorum if federation else 0,
        noise=privacy.noise if privacy else 0.0,
        releases=privacy.exchanges if privacy else 0,
        descriptor=federation.fid.hex()[:16] if federation else "",
        weighs_loss=config.reads_losses,
        batch_samples=0 if config.script else config.batch_size,
        protects_records=config.protects_records,
    )


def is_foreign(task: str) -> bool:
    """Return whether a task is none of fedgc's own."""
    return ":" in task and not task.startswith(OWN)


def _file_of(command: str, folders: Iterable[str]) -> str:
    """Return the path of the script that a command starts; empty if it names none."""
    try:
        return script_in(shlex.split(in_app(command, folders)))
    except ValueError:
        return ""
