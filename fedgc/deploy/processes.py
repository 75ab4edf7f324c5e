"""A deployed server and a deployed client: checks before the start, the program, and health checks.

A container gets its options from its environment and its files from its volumes. The checks report errors in
one line before Flower starts, since Flower would retry for ever or print forty lines. Then the process
becomes Flower's own program, so that signals and exit codes are Flower's. A client's SuperNode has a
supervisor, which lets the client hand in what it has before it passes a signal on. Health is checked by
another process, with data from the state folder.

TLS and node authentication are always on; `insecure` is only for loopback.
"""

import fcntl
import http.client
import math
import os
import re
import shutil
import ssl
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Final

import tomli_w
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedgc.deploy.authority import describe, signed_by
from fedgc.deploy.flower_programs import write_programs
from fedgc.deploy.key_files import CLIENT_NAME, read, write
from fedgc.deploy.local_federation import free_port
from fedgc.deploy.node_config import OPTION, read_settings, whole_text
from fedgc.deploy.ports import must_be_free
from fedgc.deploy.superlink import CONFIG, EXECUTOR, KEEP_INSTALLED, LOOPBACK, SUPERLINKS, read_config
from fedgc.errors import EdgeFailed, Unusable, system_errors, text_of
from fedgc.files import FOLDER, close_to_others, make_file
from fedgc.flower import contact
from fedgc.flower import heartbeat as pulse
from fedgc.flower.app_guard import POLICY
from fedgc.flower.departure import GRACE_KEY, GRACE_S
from fedgc.policy import AuditLog, read_policy
from fedgc.policy.hours import zone_of
from fedgc.processes import supervision

SUPERLINK_PORT: Final = 9092
SESSION_PORT: Final = 9094
# Flower refuses signatures that are more than 5 s in the future, or more than 305 s old
AHEAD_LIMIT_S: Final = 5.0
BEHIND_LIMIT_S: Final = 300.0
# An engine without a heartbeat for so long hangs. None comes during a step, a validation or the download of
# a chunk; a restart, as by the liveness probe of the Helm chart, would repeat that for ever.
STALE_S: Final = 3600.0
SPACE_BYTES: Final = 64 * 2**20  # with less, the next checkpoint does not fit
PATIENCE_S: Final = 10.0
HERE: Final = "127.0.0.1"
# By which this machine reaches what listens on all of its addresses, as Flower's executor does.
OF_ALL: Final = {"0.0.0.0": HERE, "::": "::1"}  # noqa: S104  no server binds it here
Environment = dict[str, str]


@dataclass(frozen=True, slots=True)
class Started:
    """A program of Flower and its additional environment."""

    words: tuple[str, ...]
    environment: Environment
    address: str  # at which it answers


@dataclass(frozen=True, slots=True)
class ServerPlace:
    """Where a SuperLink runs, and the address that clients dial."""

    advertise: str
    keys: Path
    state: Path
    host: str
    insecure: bool = False

    def __post_init__(self) -> None:
        _make_absolute(self, "keys", "state")
        if not self.insecure:
            _host_and_port(
                self.advertise,
                "--advertise (FEDGC_ADVERTISE)",
                "the address that clients dial, such as fl.example.org:443",
            )
        elif self.host not in LOOPBACK:
            raise Unusable(
                f"--insecure: saw host {self.host}, needed a loopback address: nothing is encrypted"
            )

    def check(self, now: float) -> str:
        """Return a sentence on the results, or raise the first error."""
        _writable(self.state, "FEDGC_STATE")
        _close_to_others(self._database)
        if self.insecure:
            return "plain, on loopback alone"
        authority, own = (read(self.keys / name) for name in ("ca.pem", "server.pem"))
        read(self.keys / "server.key")
        if not signed_by(own, authority):
            raise EdgeFailed(
                f"{self.keys / 'server.pem'}: not signed by ca.pem beside it; needed both of one authority"
            )
        _must_fit(self.keys / "server.pem", self.keys / "server.key")
        certificate = describe(own)
        if not certificate.covers(self._own):
            raise EdgeFailed(
                f"{self.keys / 'server.pem'}: saw the names {', '.join(certificate.names)}, needed "
                f"{self._own} too, by which this machine reaches --host (FEDGC_HOST) {self.host}"
            )
        left, early = certificate.days_left(now), certificate.days_until(now)
        if left < 0 or early > 0:
            seen = f"it ended {-left} days ago" if left < 0 else f"it begins in {early} days"
            raise EdgeFailed(f"{self.keys / 'server.pem'}: {seen}, or this machine's clock is wrong")
        host = self.advertise.rpartition(":")[0].strip("[]")
        known = certificate.covers(host)
        lacks = "" if known else f", which does not name {host}: clients refuse it unless a proxy has another"
        return f"clients dial {self.advertise}, the certificate lasts {left} days{lacks}"

    def program(self) -> Started:
        """Return the SuperLink, which runs ServerApps below itself."""
        secure = (
            *("--ssl-ca-certfile", str(self.keys / "ca.pem")),
            *("--ssl-certfile", str(self.keys / "server.pem")),
            *("--ssl-keyfile", str(self.keys / "server.key")),
            "--enable-supernode-auth",
        )
        words = (
            "flower-superlink",
            *(("--insecure",) if self.insecure else secure),
            *("--database", str(self._database)),
            KEEP_INSTALLED,
            *("--host", self.host),
            *("--port", str(SUPERLINK_PORT)),
        )
        place = {
            "FEDGC_BIND": _address(self.host, SESSION_PORT),
            "FEDGC_ADVERTISE": self.advertise,
            "FEDGC_AUTHORITY": str(self.keys / "ca.pem"),
        }
        return Started(words, {} if self.insecure else place, _address(self._own, SUPERLINK_PORT))

    @property
    def _own(self) -> str:
        """The host by which this machine reaches the SuperLink."""
        return OF_ALL.get(self.host, self.host)

    @property
    def _database(self) -> Path:
        return self.state / "superlink.db"

    def check_ports(self) -> None:
        """Raise if another program has a port of this server."""
        sessions = {} if self.insecure else {"the sessions": SESSION_PORT}
        must_be_free(self.host, {"the SuperLink": SUPERLINK_PORT} | sessions)

    def configure(self, flower_home: Path) -> Path:
        """Write the connections for `flwr`: `local` on this machine, `server` for a container beside it.

        Others in the file stay. Return the file.
        """
        trust = {"insecure": True} if self.insecure else {"root-certificates": str(self.keys / "ca.pem")}
        hosts = {"local": self._own} | ({} if self.insecure else {"server": "server"})
        table = read_config(path := flower_home / CONFIG)
        own = {name: {"address": _address(host, SUPERLINK_PORT), **trust} for name, host in hosts.items()}
        links = {"default": "local", **table.get(SUPERLINKS, {}), **own}
        if links != table.get(SUPERLINKS):
            write(path, tomli_w.dumps({**table, SUPERLINKS: links}).encode(), secret=False)
        return path


@dataclass(frozen=True, slots=True)
class ClientPlace:
    """Where a SuperNode runs, and which server it dials."""

    server: str
    name: str
    keys: Path
    state: Path
    cache: Path
    node_config: str = ""
    insecure: bool = False
    grace_s: float = GRACE_S  # in which it hands in what it has when the container is stopped
    policy: Path | None = None  # what the client's site allows

    def __post_init__(self) -> None:
        _make_absolute(self, "keys", "state", "cache", *(("policy",) if self.policy is not None else ()))
        _must_be_grace(self.grace_s, "--grace-s (FEDGC_LEAVE_GRACE_S)")
        host, _ = _host_and_port(
            self.server, "--server (FEDGC_SERVER)", "the server's address, such as fl.example.org:443"
        )
        if self.insecure and host not in LOOPBACK:
            raise Unusable(
                f"--insecure: saw server {self.server}, needed a loopback address: nothing is encrypted"
            )
        if not CLIENT_NAME.fullmatch(self.name):
            raise Unusable(
                f"--name (FEDGC_NAME): saw {self.name!r}, needed up to 63 letters, digits, - and _"
            )
        _must_be_grace(self.leave_s, f"{OPTION} {GRACE_KEY}")
        self._whole_node_config()  # checks

    @property
    def leave_s(self) -> float:
        """In which it hands in what it has: that of the node config, where it has one."""
        seconds: float = read_settings(self.node_config).get(GRACE_KEY, self.grace_s)
        return seconds

    def check(self, now: Callable[[], float]) -> str:
        """Return a sentence on the results, or raise the first error."""
        _writable(self.state, "FEDGC_STATE")
        _writable(self.cache, "FEDGC_CACHE")
        if self.policy is not None:
            _policy_in(self.policy, now)
        if self.insecure:
            return "plain, on loopback alone"
        read(self.keys / "ca.pem")
        _flower_key(self.keys / "client.key")
        host, port = _host_and_port(self.server, "--server", "")
        try:
            date = _ask(host, port, _context(self.keys / "ca.pem"), clock=now)
        except _Unreachable as error:
            return f"{error}; the SuperNode goes on trying"
        _same_clock(date, now())
        return f"{self.server} answers and is ours"

    def program(self) -> Started:
        """Return the SuperNode, under a supervisor that lets its client leave before it ends.

        Its ClientApps are started by programs that check the app first, against the policy and the descriptor
        that the node config names; they are written here.
        """
        secure = (
            *("--root-certificates", str(self.keys / "ca.pem")),
            *("--auth-supernode-private-key", str(self.keys / "client.key")),
        )
        write_programs(self.state / "programs")
        folders = (str(self.state / "programs"), str(Path(sys.executable).parent))
        environment = {
            pulse.ENVIRONMENT: str(self.state / "pulse"),
            contact.ENVIRONMENT: str(self.state / "contact"),
            "TMPDIR": str(self.cache),
            "PATH": os.pathsep.join((*folders, os.environ.get("PATH", ""))),
        }
        words = (
            *(sys.executable, supervision.__file__, "--alone", "--leave", str(self.leave_s)),
            "flower-supernode",
            *(("--insecure",) if self.insecure else secure),
            *("--superlink", self.server),
            *("--node-config", self._whole_node_config()),
            *("--host", HERE),
            *("--port", str(port := free_port())),  # of its executor: a machine may have several clients
        )
        return Started(words, environment, _address(HERE, port))

    def _whole_node_config(self) -> str:
        options: dict[str, str | Path] = {
            "name": self.name,
            "identity": self.state / "identity.key",
            "cache": self.cache / "cache",
            **({POLICY: self.policy} if self.policy is not None else {}),
        }
        usual: dict[str, float | Path] = {GRACE_KEY: self.grace_s, "data-cache": self.cache / "chunks"}
        return whole_text(options, usual, self.node_config)


def _make_absolute(place: ServerPlace | ClientPlace, *names: str) -> None:
    """Make paths absolute: Flower reads them later, in processes with other working folders."""
    for name in names:
        object.__setattr__(place, name, getattr(place, name).absolute())


def _policy_in(path: Path, now: Callable[[], float]) -> None:
    """Raise if a policy cannot be read, or its audit log cannot be written or was cut."""
    policy = read_policy(path)
    AuditLog(policy.log_file, zone_of(policy.zone), now).totals()


def server_health(keys: Path, state: Path, *, insecure: bool) -> str:
    """Return a sentence if the server is healthy, or raise what is wrong."""
    _executor(state)
    _ask(*_answers_at(state), None if insecure else _context(keys / "ca.pem"))
    return "the SuperLink and its executor answer"


def client_health(state: Path, now: float) -> str:
    """Return a sentence if the client is healthy, or raise what is wrong."""
    _executor(state)
    _ask(*_answers_at(state), None)
    beat = pulse.last_beat(state / "pulse")
    if beat is None or not beat.alive:
        return "the SuperNode and its executor answer; no session is open"
    turn_s = now - beat.at
    if turn_s > STALE_S:
        raise EdgeFailed(f"the engine has not come round for {turn_s:.0f} s, needed {STALE_S:.0f}")
    if turn_s < -STALE_S:  # the clock was set back, and no heartbeat came since
        raise EdgeFailed(
            f"the engine has not come round since its clock was {-turn_s:.0f} s ahead, needed {STALE_S:.0f}"
        )
    ago_s = max(0.0, turn_s)
    return f"the engine came round {ago_s:.0f} s ago, {beat.chunks} chunks finished in this session"


def must_reach(state: Path, now: float) -> None:
    """Raise if a client's SuperLink has not answered for longer than its SuperNode needs to try again."""
    contact.must_be_in_contact(state / "contact", (state / "process").stat().st_mtime, now)


def must_have_space(folder: Path) -> None:
    """Raise if so little disk space is left that the next checkpoint does not fit."""
    free = shutil.disk_usage(folder).free
    if free < SPACE_BYTES:
        raise EdgeFailed(f"{folder}: {free / 2**20:.0f} MB free, needed at least {SPACE_BYTES / 2**20:.0f}")


def hold(state: Path) -> None:
    """Lock a state folder for this process, and for the program that it becomes.

    Raises:
        EdgeFailed: Another server or client has it.
    """
    lock = os.open(state / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(lock)
        raise EdgeFailed(
            f"FEDGC_STATE {state}: saw process {_number_in(state / 'process')} run with it, needed its end, "
            "or another folder"
        ) from error
    except OSError:  # a file system that locks no files
        pass
    os.set_inheritable(lock, True)


def save_process(state: Path, process: int, address: str) -> None:
    """Write the state for health checks, and delete that of an earlier process."""
    write(state / "address", f"{address}\n".encode(), secret=False)
    write(state / "process", f"{process}\n".encode(), secret=False)
    for name in ("pulse", "contact"):
        (state / name).unlink(missing_ok=True)


class _Unreachable(EdgeFailed):
    """The server does not answer, which may be temporary, unlike a wrong certificate."""


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _answers_at(state: Path) -> tuple[str, int]:
    path = state / "address"
    return _host_and_port(read(path).decode(errors="replace").strip(), str(path), "a host and a port")


def _host_and_port(address: str, variable: str, needed: str) -> tuple[str, int]:
    found = re.fullmatch(r"(\[[0-9a-fA-F:]+\]|[^:\s/]+):(\d{1,5})", address)
    if found is None or not 0 < int(found.group(2)) < 65536:
        seen = f"saw {address!r}" if address else "is not set"
        raise Unusable(f"{variable}: {seen}, needed {needed}")
    return found.group(1).strip("[]"), int(found.group(2))


def _must_be_grace(seconds: float, source: str) -> None:
    if type(seconds) not in (int, float) or not 0 <= seconds < math.inf:
        raise Unusable(f"{source}: saw {seconds!r}, needed seconds, 0 or more")


def _writable(folder: Path, variable: str) -> None:
    """Make a folder if it is missing, and raise unless files can be written there."""
    with system_errors(f"{variable} {folder}", f"a folder that user {os.getuid()} may write"):
        folder.mkdir(mode=FOLDER, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    must_have_space(folder)


def _must_fit(certificate: Path, key: Path) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except (ssl.SSLError, OSError) as error:
        raise EdgeFailed(
            f"{key}: does not fit {certificate.name} beside it ({text_of(error, key)}); needed its key"
        ) from error


def _close_to_others(database: Path) -> None:
    """Let only its owner read Flower's database: it holds models and updates that travel in messages.

    Files that SQLite makes beside it have the permissions of the database.
    """
    with system_errors(f"{database}", f"a file that user {os.getuid()} may write"):
        make_file(database)
        for each in database.parent.glob(f"{database.name}*"):
            close_to_others(each)


def _flower_key(path: Path) -> None:
    try:
        key = serialization.load_ssh_private_key(read(path), None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise EdgeFailed(f"{path}: needed the key that `fedgc keys client` makes ({error})") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise EdgeFailed(f"{path}: saw {type(key).__name__}, needed the key that `fedgc keys client` makes")


def _context(authority: Path) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=str(authority))
    except (ssl.SSLError, OSError) as error:
        raise EdgeFailed(
            f"{authority}: needed the authority's certificate ({text_of(error, authority)})"
        ) from error


def _ask(
    host: str, port: int, context: ssl.SSLContext | None, clock: Callable[[], float] | None = None
) -> str | None:
    """Request /health; return the date of the answer, or raise why there is none."""
    where = _address(host, port)
    line = (
        http.client.HTTPConnection(host, port, timeout=PATIENCE_S)
        if context is None
        else http.client.HTTPSConnection(host, port, timeout=PATIENCE_S, context=context)
    )
    try:
        line.request("GET", "/health")
        answer = line.getresponse()
    except ssl.SSLCertVerificationError as error:
        raise EdgeFailed(_mistrust(where, error, clock)) from error
    except (OSError, http.client.HTTPException) as error:
        raise _Unreachable(f"{where} does not answer: {text_of(error)}") from error
    finally:
        line.close()
    if answer.status != http.HTTPStatus.OK:
        raise _Unreachable(f"{where}: saw status {answer.status} for /health, needed 200")
    return answer.headers.get("Date")


def _mistrust(where: str, error: ssl.SSLCertVerificationError, clock: Callable[[], float] | None) -> str:
    why = error.verify_message
    if clock is not None and ("not yet valid" in why or "expired" in why):
        here = datetime.fromtimestamp(clock(), UTC)
        why += f"; this machine's clock says {here:%Y-%m-%d %H:%M} UTC: if that is wrong, set it"
    return f"{where}: its certificate is refused: {why}"


def _same_clock(date: str | None, now: float) -> None:
    if date is None:
        return
    there = parsedate_to_datetime(date).timestamp()
    ahead = now - there
    if not -BEHIND_LIMIT_S <= ahead < AHEAD_LIMIT_S:
        which = "ahead of" if ahead > 0 else "behind"
        raise EdgeFailed(
            f"this machine's clock is {abs(ahead):.0f} s {which} the server's, needed at most "
            f"{AHEAD_LIMIT_S:.0f} s ahead and {BEHIND_LIMIT_S:.0f} s behind: Flower refuses other signatures"
        )


def _executor(state: Path) -> None:
    """Raise unless Flower's program runs with its executor below it."""
    process = _number_in(state / "process")
    commands = (_command(each) for each in supervision.descendants(process))
    if not any(EXECUTOR in command for command in commands):
        raise EdgeFailed(
            f"process {process} has no {EXECUTOR} below it, so that nothing would be carried out"
        )


def _number_in(path: Path) -> int:
    try:
        return int(read(path))
    except ValueError as error:
        raise EdgeFailed(f"{path}: needed a number") from error


def _command(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""
