"""`fedgc doctor`: checks what a run needs on this machine and on a SuperLink, and suggests fixes.

Each check returns one finding and changes nothing. A resource that does not exist yet is no fault.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final, Literal

from cryptography import x509
from rich.table import Table
from rich.text import Text

from fedgc.cli.run import named
from fedgc.cli.settings import GIVEN, settle
from fedgc.cli.up import NAME as UP
from fedgc.cli.view import terminal
from fedgc.config import RunConfig
from fedgc.deploy.app_folder import MANIFEST, Setting, app_in
from fedgc.deploy.flower_version import supported, supports
from fedgc.deploy.local_federation import NAME as LOCAL
from fedgc.deploy.superlink import (
    KEEP_INSTALLED,
    Connection,
    connection,
    installs,
    presented_certificate,
    server_time,
)
from fedgc.errors import EdgeFailed, FedgcError, Unusable, numbered, words_of
from fedgc.messages import WIRE_VERSION
from fedgc.processes.state_folder import state_folder
from fedgc.store.database import Store
from fedgc.store.engine import not_writable

OLDEST_PYTHON: Final = (3, 11)
LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]")
PROGRAMS: Final = ("flwr", "flower-superlink", "flower-supernode")
LAST_PORT: Final = 65_535
LEAST_DISK_BYTES: Final = 1 << 30
CLOCK_S: Final = 5.0  # certificates and Flower's TTLs depend on the clocks of both sides
EXPIRES_S: Final = 14 * 86_400.0
WAIT_S: Final = 5.0

Grade = Literal["ok", "warning", "wrong"]
MARKS: Final[Mapping[Grade, str]] = {"ok": "green", "warning": "yellow", "wrong": "red"}


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check, and a fix if it failed."""

    what: str
    grade: Grade
    saw: str
    do: str = ""


Check = Callable[[], Finding]


def examine(given: Mapping[str, Setting], superlink: str | None, *, as_json: bool) -> None:
    """Print every finding; raise EdgeFailed if one is wrong."""
    app = app_in(Path.cwd())
    config = settle([*([(MANIFEST, app.settings)] if app else []), (GIVEN, given)]).config
    found = [each() for each in here(config)]
    if superlink is not None:
        found += there(superlink)
    if as_json:
        sys.stdout.write(json.dumps({"findings": [asdict(each) for each in found]}, indent=1) + "\n")
    else:
        terminal().print(_table(found))
    wrong = [each.what for each in found if each.grade == "wrong"]
    if wrong:
        raise EdgeFailed(f"doctor: something is wrong with {', '.join(wrong)}")


def here(config: RunConfig) -> Sequence[Check]:
    """Return the checks of this machine."""
    return (
        python,
        torch,
        lambda: gpu(config.device),
        flower,
        lambda: port(config.bind),
        disk,
        store,
        clock,
    )


def there(name: str) -> list[Finding]:
    """Check a SuperLink, up to the first failure."""
    try:
        with tempfile.TemporaryDirectory(prefix="fedgc-") as folder:
            asked = named(name, Path(folder))
            where = connection(LOCAL if name == UP else name, asked.environment)
            findings: list[Finding] = []
            checks: tuple[Check, ...] = (
                lambda: certificates(where),
                lambda: reached(where),
                lambda: both_versions(name, lambda: asked.ask("list")),
                lambda: dependencies(where),
            )
            for check in checks:
                findings.append(check())
                if findings[-1].grade == "wrong":
                    break
            return findings
    except Unusable as error:
        return [Finding("SuperLink", "wrong", str(error), "put it right in Flower's configuration")]


# ---- this machine


def python() -> Finding:
    """The interpreter's version is supported."""
    saw = f"{sys.version.split()[0]} at {sys.executable}"
    if sys.version_info < OLDEST_PYTHON:
        return Finding("Python", "wrong", saw, f"use {'.'.join(map(str, OLDEST_PYTHON))} or newer")
    return Finding("Python", "ok", saw)


def torch() -> Finding:
    """Torch is installed and works."""
    try:
        from fedgc.training.devices import build

        return Finding("torch", "ok", build())
    except Exception as error:  # a broken build may raise any exception
        return Finding("torch", "wrong", words_of(error), "install torch for this interpreter")


def gpu(wanted: str) -> Finding:
    """The device of the setting `client.device` exists, and no GPU is left unused."""
    try:
        from fedgc.training.devices import choose

        chosen = choose(wanted)
    except FedgcError as error:
        return Finding("GPU", "wrong", str(error), "set client.device=auto, or install torch for that device")
    except Exception as error:  # torch is broken: its own finding reports it
        return Finding("GPU", "wrong", words_of(error), "see torch")
    card = shutil.which("nvidia-smi") is not None
    if chosen.type == "cpu" and card and wanted == "auto":
        return Finding("GPU", "warning", "a card, and a torch that cannot use it", "install torch for CUDA")
    return Finding("GPU", "ok", f"training runs on {chosen}")


def flower() -> Finding:
    """Flower is installed in a supported version, with its programs."""
    try:
        seen = version("flwr")
    except PackageNotFoundError:
        return Finding("Flower", "wrong", "none", f"install {supported()}")
    beside = Path(sys.executable).parent
    missing = [each for each in PROGRAMS if not (beside / each).exists()]
    saw = f"flwr {seen}, fedgc {version('fedgc')}, wire version {WIRE_VERSION}"
    if missing:
        return Finding("Flower", "wrong", f"{saw}, without {', '.join(missing)}", "install flwr again")
    if not supports(seen):
        return Finding("Flower", "wrong", saw, f"install {supported()}")
    return Finding("Flower", "ok", saw)


def port(bind: str) -> Finding:
    """The address in the setting `links.bind` can be bound."""
    host, _, number = bind.rpartition(":")
    do = "set links.bind to an address and port that are free"
    if not (number.isascii() and number.isdigit() and int(number) <= LAST_PORT):
        return Finding("ports", "wrong", f"{bind!r} is no host:port", do)
    try:
        with socket.create_server((host.strip("[]"), int(number))) as bound:
            return Finding("ports", "ok", f"{bind} can be had ({bound.getsockname()[1]})")
    except OSError as error:
        return Finding("ports", "wrong", f"{bind}: {error.strerror or error}", do)


def disk() -> Finding:
    """There is disk space for the store, checkpoints and client caches."""
    folder = state_folder(os.environ)
    there_already = next(each for each in (folder, *folder.parents) if each.exists())
    free = shutil.disk_usage(there_already).free
    saw = f"{free / 1e9:.1f} GB free in {folder}"
    if not os.access(there_already, os.W_OK):
        return Finding("disk", "wrong", f"{there_already} cannot be written", "set XDG_STATE_HOME")
    if free < LEAST_DISK_BYTES:
        return Finding(
            "disk", "warning", saw, "free some space, or set XDG_STATE_HOME and history.checkpoint-dir"
        )
    return Finding("disk", "ok", saw)


def store() -> Finding:
    """The store can be opened and written, and is intact; a missing store that can be made is fine."""
    try:
        if locked := not_writable():
            do = "make it writable for this user; FEDGC_DB names another store"
            return Finding("store", "wrong", f"{locked} cannot be written", do)
        with Store.open(reads_only=True) as opened:
            health = opened.check()
    except Unusable as error:
        name, missing, _ = str(error).partition(": saw nothing there")
        if missing:
            return Finding("store", "ok", f"{name} does not exist yet: the first run makes it")
        return Finding("store", "wrong", str(error), "see `fedgc store check`")
    except FedgcError as error:
        return Finding("store", "wrong", str(error), "see `fedgc store check`; FEDGC_DB names another")
    saw = f"{health.name}: {numbered(health.runs, 'run')}, {numbered(health.rounds, 'round')}"
    if health.faults:
        return Finding("store", "wrong", f"{saw}; {'; '.join(health.faults)}", "restore a backup")
    return Finding("store", "ok", saw)


def clock() -> Finding:
    """The clock is not behind the store's records, and is not known to be unsynchronized."""
    ahead_s = _newest() - time.time()
    if ahead_s > CLOCK_S:
        return Finding("clock", "wrong", f"{ahead_s:.0f} s behind the store's newest row", "set the clock")
    if _is_synchronized() is False:
        return Finding("clock", "warning", "it is not synchronised", "turn time synchronisation on")
    return Finding("clock", "ok", time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()))


def _newest() -> float:
    try:
        with Store.open(reads_only=True) as opened:
            return max((each.heard for each in opened.runs(1)), default=0.0)
    except FedgcError:
        return 0.0


def _is_synchronized() -> bool | None:
    """Return the system's report on clock synchronization; None if it has none."""
    program = shutil.which("timedatectl")
    if program is None:
        return None
    words = [program, "show", "--property=NTPSynchronized", "--value"]
    try:
        output = subprocess.run(words, capture_output=True, text=True, timeout=WAIT_S, check=False)  # noqa: S603  a program of the system, found by its name
    except (OSError, subprocess.TimeoutExpired):
        return None
    return {"yes": True, "no": False}.get(output.stdout.strip())


# ---- a SuperLink


def certificates(where: Connection) -> Finding:
    """The certificates that the connection names, and that the SuperLink presents, are valid."""
    if where.insecure and where.address.rpartition(":")[0] in LOOPBACK:
        return Finding("certificates", "ok", f"none, and {where.address} is this machine")
    if where.insecure:
        return Finding(
            "certificates", "warning", f"{where.address} without TLS", "use TLS beyond one machine"
        )
    ends = {}
    if where.certificates is not None:
        try:
            trusted = x509.load_pem_x509_certificates(where.certificates.read_bytes())
        except OSError as error:
            saw = f"{where.certificates}: {error.strerror}"
            return Finding("certificates", "wrong", saw, "get it from the server")
        except ValueError:
            saw = f"{where.certificates}: no certificate in PEM"
            return Finding("certificates", "wrong", saw, "get it from the server")
        ends[str(where.certificates)] = min(each.not_valid_after_utc for each in trusted)
    if presented := presented_certificate(where, WAIT_S):
        ends[where.address] = x509.load_der_x509_certificate(presented).not_valid_after_utc
    return _by_their_ends(ends, where)


def _by_their_ends(ends: Mapping[str, datetime], where: Connection) -> Finding:
    """Grade certificates, by what has them, by when they end."""
    now = time.time()
    left_s = {each: end.timestamp() - now for each, end in ends.items()}
    saw = "; ".join(
        f"{each}: {left_s[each] / 86_400:.0f} days left"
        if left_s[each] > 0
        else f"{each}: ended on {end:%Y-%m-%d %H:%M} UTC"
        for each, end in ends.items()
    )
    first = min(left_s, key=left_s.__getitem__, default="")
    if not first or left_s[first] >= EXPIRES_S:
        return Finding("certificates", "ok", saw or "those of the system")
    by_server = first == where.address
    if left_s[first] > 0:
        do = "renew it there in time" if by_server else "have a new one made in time"
        return Finding("certificates", "warning", saw, do)
    do = (
        "renew it there, such as by `fedgc keys tls --renew`"
        if by_server
        else "get a new one from the server"
    )
    return Finding("certificates", "wrong", saw, do)


def reached(where: Connection) -> Finding:
    """The SuperLink answers, over TLS if configured, and both clocks agree."""
    try:
        date = server_time(where)
    except EdgeFailed as error:
        return Finding(
            "SuperLink", "wrong", str(error), "start it, open the way to it, or mend its connection"
        )
    if date is None:
        return Finding("SuperLink", "warning", f"{where.address} answers, and tells no time", "")
    apart_s = abs(date - time.time())
    saw = f"{where.address} answers, the clocks are {apart_s:.0f} s apart"
    if apart_s > CLOCK_S:
        return Finding("SuperLink", "wrong", saw, "set the clock of one of the two")
    return Finding("SuperLink", "ok", saw)


def both_versions(name: str, ask: Callable[[], object]) -> Finding:
    """The SuperLink accepts this Flower's calls: it refuses incompatible versions.

    The versions of fedgc are compared at a client's first hello, which refuses another wire version.
    """
    try:
        ask()
    except EdgeFailed as error:
        return Finding("versions", "wrong", str(error), f"log in, or have {supported()} on both sides")
    return Finding(
        "versions", "ok", f"{name} takes flwr {version('flwr')}; clients need fedgc {version('fedgc')}"
    )


def dependencies(where: Connection) -> Finding:
    """The SuperLink runs an app with its installed packages: fedgc is in no package registry."""
    does = installs(where)
    if does is None:
        saw = f"{where.address} does not say whether it installs what an app depends on"
        return Finding("dependencies", "warning", saw, f"make sure that it was started with {KEEP_INSTALLED}")
    if does:
        saw = "the SuperLink would install what an app depends on, and no run would start"
        return Finding("dependencies", "wrong", saw, f"start flower-superlink with {KEEP_INSTALLED}")
    return Finding("dependencies", "ok", "an app runs with what is installed beside the SuperLink")


def _table(found: Sequence[Finding]) -> Table:
    table = Table(title="What a run needs")
    for column in ("check", "grade"):
        table.add_column(column, no_wrap=True)
    for column in ("seen", "to do"):
        table.add_column(column)
    for each in found:
        table.add_row(each.what, Text(each.grade, MARKS[each.grade]), Text(each.saw), Text(each.do))
    return table
