"""Runs on a SuperLink in Flower's configuration: submit, follow, stop, query.

Flower keeps a user's connections (address, certificate) in `config.toml` of its home, and its program `flwr`
reads them: so a user that is logged in there needs nothing more here. Flower reports a refused certificate as
a network failure; `server_time` asks the SuperLink itself to tell them apart.
"""

import json
import os
import re
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, Final

from fedgc.errors import EdgeFailed, Unusable, nearest, text_of

SUBMIT_S: Final = 60.0  # a run that has not started by then never will
POLL_S: Final = 0.05
STOPS: Final = 3  # requests to stop a run
CONFIG: Final = "config.toml"
SUPERLINKS: Final = "superlink"  # its table of connections
ANSWER_S: Final = 10.0
QUOTED_LINES: Final = 5  # log lines that an error quotes
KEEP_INSTALLED: Final = (
    "--disable-runtime-dependency-installation"  # an option that a SuperLink must be started with
)
INSTALLS: Final = "--allow-runtime-dependency-installation"  # its executor's option without it
EXECUTOR: Final = "flower-superexec"
COLUMNS: Final = 1000  # the terminal width for Flower's program, which breaks paths at the edge
LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
_DIALS: Final = "--runtime-api-address"
_BOX: Final = re.compile(r"╭─+ Error ─+╮\n(.*?)╰", re.DOTALL)  # the frame of its errors


@dataclass(frozen=True, slots=True)
class Connection:
    """A SuperLink in Flower's configuration."""

    name: str
    address: str
    insecure: bool
    certificates: Path | None


def flower_home(environment: Mapping[str, str]) -> Path:
    """Return the folder of Flower's configuration.

    >>> flower_home({"FLWR_HOME": "/flower"}).as_posix()
    '/flower'
    """
    return Path(environment.get("FLWR_HOME") or Path.home() / ".flwr")


def connection(name: str, environment: Mapping[str, str], *others: str) -> Connection:
    """Return the connection of this name; raise Unusable if it is missing or for simulations.

    `others` are names that the caller takes as well.
    """
    path = flower_home(environment) / CONFIG
    known = _connections(path)
    found = known.get(name)
    if found is None:
        named = ", ".join(known) or "none"
        takes = f"one of that name{''.join(f', or {each}' for each in others)}"
        hint = nearest(name, (*known, *others))
        raise Unusable(f"SuperLink {name!r}: saw {named} in {path}, needed {takes}{hint}")
    address = found.get("address")
    if not isinstance(address, str) or not re.fullmatch(r".+:\d+", address):
        raise Unusable(f"SuperLink {name!r} in {path}: saw address {address!r}, needed host:port")
    certificates = found.get("root-certificates")
    insecure = found.get("insecure") is True
    if certificates is not None and not (isinstance(certificates, str) and Path(certificates).is_absolute()):
        raise Unusable(
            f"SuperLink {name!r} in {path}: saw root-certificates {certificates!r}, needed an absolute path"
        )
    if insecure and certificates is not None:
        raise Unusable(
            f"SuperLink {name!r} in {path}: saw root-certificates and insecure = true, needed one of them"
        )
    return Connection(name, address, insecure, Path(certificates) if certificates else None)


def _connections(path: Path) -> dict[str, Any]:
    links = read_config(path).get(SUPERLINKS, {})
    return {name: each for name, each in links.items() if isinstance(each, dict)}


def read_config(path: Path) -> dict[str, Any]:
    """Return Flower's configuration in a file, empty without one; raise Unusable if it cannot be read."""
    try:
        table = tomllib.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise Unusable(f"Flower's configuration {path}: cannot be read ({text_of(error, path)})") from error
    if not isinstance(links := table.get(SUPERLINKS, {}), dict):
        raise Unusable(f"Flower's configuration {path}: saw {SUPERLINKS} = {links!r}, needed a table")
    return table


def server_time(where: Connection) -> float | None:
    """Return the time of a SuperLink's web server, or raise why it does not answer."""
    if where.insecure:
        asked = HTTPConnection(where.address, timeout=ANSWER_S)
    else:
        asked = HTTPSConnection(where.address, timeout=ANSWER_S, context=_trusting(where.certificates))
    try:
        asked.request("HEAD", "/")
        date = asked.getresponse().getheader("Date")
    except ssl.SSLError as error:
        raise EdgeFailed(f"{where.address}: {_mistrust(where, error)}") from error
    except ConnectionResetError as error:  # http's RemoteDisconnected is one
        over = "; one with TLS does so where the connection says insecure = true" if where.insecure else ""
        raise EdgeFailed(f"{where.address}: saw a line closed without an answer{over}") from error
    except (OSError, HTTPException) as error:
        raise EdgeFailed(f"{where.address} does not answer: {text_of(error)}") from error
    finally:
        asked.close()
    return parsedate_to_datetime(date).timestamp() if date else None


def presented_certificate(where: Connection, wait_s: float) -> bytes | None:
    """Return the certificate that a SuperLink presents, in DER, trusted or not; None if none can be had."""
    host, _, port = where.address.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # only its dates are read
    with (
        suppress(OSError, ValueError),
        socket.create_connection((host.strip("[]"), int(port)), timeout=wait_s) as line,
        context.wrap_socket(line, server_hostname=host.strip("[]")) as secured,
    ):
        return secured.getpeercert(binary_form=True)
    return None


def installs(where: Connection) -> bool | None:
    """Return whether a SuperLink here installs the dependencies of apps; None if that is not visible.

    It does unless it was started with KEEP_INSTALLED, and then every run fails: fedgc is in no package
    registry. It has no query for this, but its executor's command line shows it.
    """
    host, _, port = where.address.rpartition(":")
    if host.strip("[]") not in LOOPBACK:
        return None
    for words in _command_lines():
        address = words[words.index(_DIALS) + 1 :][:1] if _DIALS in words else []
        if address and address[0].endswith(f":{port}") and any(EXECUTOR in word for word in words):
            return INSTALLS in words
    return None


def _command_lines() -> Iterator[list[str]]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            yield path.read_bytes().decode(errors="replace").split("\0")


def _trusting(certificates: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=str(certificates) if certificates else None)
    except OSError as error:  # an SSLError is one
        raise EdgeFailed(
            f"root-certificates {certificates}: cannot be read ({text_of(error, certificates)})"
        ) from error


def _mistrust(where: Connection, error: ssl.SSLError) -> str:
    if not isinstance(error, ssl.SSLCertVerificationError):
        return f"saw no TLS as it should be ({error.reason or error}), needed a SuperLink with TLS"
    trusted = f"root-certificates {where.certificates}" if where.certificates else "those of the system"
    return f"its certificate is refused by {trusted}: {error.verify_message}"


def answer_in(output: str, asked: str, errors: str = "") -> dict[str, Any]:
    """Return the JSON object at the end of the output of `flwr`, or raise EdgeFailed with its error."""
    _, begin, rest = output.partition("{")
    try:
        answer = json.loads(begin + rest or "{}")
    except (ValueError, RecursionError):
        answer = {}
    if answer.get("success"):
        return dict(answer)
    complaint = str(answer.get("error-message") or f"{errors} {output}")
    raise EdgeFailed(f"{asked}: {' '.join(complaint.split()) or 'no output'}")


def framed(text: str) -> str:
    r"""Return the framed error in the output of Flower's program, in one line; empty if there is none.

    >>> framed("╭──── Error ────╮\n│ Loading failed │\n│ (exit 608)     │\n╰─────────────────╯")
    'Loading failed (exit 608)'
    """
    found = _BOX.findall(text)
    return " ".join(found[-1].replace("│", " ").split()) if found else ""


def tail(log: Path) -> str:
    """Return the error in a log in one line: Flower's framed one, else the last lines."""
    text = log.read_text(errors="replace")
    return framed(text) or " | ".join(
        line.strip() for line in text.splitlines()[-QUOTED_LINES:] if line.strip()
    )


class Superlink:
    """A SuperLink by its name; `folder` holds the logs of its runs."""

    def __init__(
        self,
        name: str,
        folder: Path,
        environment: Mapping[str, str] = MappingProxyType({}),
        program: Path | None = None,
    ) -> None:
        """`program` is Flower's `flwr`, by default the one installed beside this Python."""
        self.name: Final = name
        self.folder: Final = folder
        self.environment: Final = {**os.environ, **environment}
        self._program: Final = program or Path(sys.executable).parent / "flwr"
        self._streams: dict[int, subprocess.Popen[bytes]] = {}
        self._asked = 0
        self._asking: subprocess.Popen[bytes] | None = None

    def close(self) -> None:
        """End the processes that follow runs; the runs go on."""
        for stream in self._streams.values():
            stream.kill()
            stream.wait()
        self._streams.clear()

    def end_question(self) -> None:
        """End a question whose answer is not waited for: a SuperLink that ends too would not answer it."""
        if self._asking is not None:
            self._asking.kill()
            self._asking.wait()
            self._asking = None

    def check(self) -> None:
        """Raise EdgeFailed with the reason if the SuperLink does not answer."""
        server_time(connection(self.name, self.environment))

    def log(self, run: int) -> Path:
        """Return the file with a run's log."""
        return self.folder / f"run-{run}.log"

    def submit(self, app: Path) -> int:
        """Submit the app in this folder; return Flower's id of the run."""
        self._asked += 1
        log = self.folder / f"submit-{self._asked}.log"
        with log.open("wb") as out:
            stream = self._flwr(["run", str(app), self.name, "--stream"], out)
        try:
            run = self._started(stream, log, app)
        except BaseException:
            stream.kill()
            stream.wait()
            raise
        self._streams[run] = stream
        self.log(run).symlink_to(log.name)
        return run

    def _started(self, stream: subprocess.Popen[bytes], log: Path, app: Path) -> int:
        end = time.monotonic() + SUBMIT_S
        while not (found := re.search(r"started run (\d+)", log.read_text(errors="replace"))):
            if stream.poll() is not None or time.monotonic() > end:
                said = tail(log).replace(f"{app.resolve()}{os.sep}", "")  # the folder is a copy of the user's
                raise EdgeFailed(f"flwr run did not start a run: {said}")
            time.sleep(POLL_S)
        return int(found.group(1))

    def running(self, run: int) -> bool:
        """Return whether the run's log is still being written; cheap."""
        return self._streams[run].poll() is None

    def wait(self, run: int, timeout_s: float) -> str:
        """Wait for the end of a run and return its status, such as "finished:completed"."""
        try:
            self._streams[run].wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise EdgeFailed(f"run {run} has not ended after {timeout_s:.0f} s") from None
        return self.status(run)

    def status(self, run: int) -> str:
        """Ask Flower for the status of a run (this starts a program: about a second)."""
        answer = self.ask("list", "--run-id", str(run))
        return str(answer["runs"][0]["status"])

    def stop(self, run: int) -> None:
        """Ask Flower to stop a run, several times if it fails, as its database may be busy.

        Raises:
            EdgeFailed: Flower did not stop it, though it is still running.
        """
        for left in reversed(range(STOPS)):
            try:
                self.ask("stop", str(run))
            except EdgeFailed:
                if self.status(run).startswith("finished"):
                    return
                if not left:
                    raise
            else:
                return

    def ask(self, *words: str) -> dict[str, Any]:
        """Return Flower's answer, or raise EdgeFailed with its error."""
        with tempfile.TemporaryFile() as out:
            self._asking = self._flwr([*words, self.name, "--format", "json"], out)
            self._asking.wait()  # if this is interrupted, what was asked is still done
            self._asking = None
            out.seek(0)
            said = out.read().decode(errors="replace")
        return answer_in(said, f"flwr {words[0]} at SuperLink {self.name!r} said")

    def _flwr(self, arguments: list[str], out: IO[bytes]) -> subprocess.Popen[bytes]:
        # In a session of its own: Ctrl-C is for the caller, who then asks Flower to stop the run.
        return subprocess.Popen(  # noqa: S603  Flower's own program
            [str(self._program), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**self.environment, "COLUMNS": str(COLUMNS)},
            cwd=self.folder,
            start_new_session=True,
        )
