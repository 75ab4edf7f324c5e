"""Bad input, case by case: each ends with one clear line and an exit code other than 0.

strangers   an unregistered key, a missing variable, another authority's certificate
clocks      certificates that are not yet or no longer valid, a client whose clock is a day ahead
full_disks  a server, a client and a server at work whose volume is full
curious     a client's attempts to reach internal services
old_wire    a client whose fedgc speaks another wire version
revoked     a revoked key
"""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from fleet import Container, own
from network import PROXY, SERVER
from stage import ADDRESS, PORT, READY_S, Stage

from fedgc.deploy.key_files import Keyring

STRANGER, LAGGARD = "stranger", "laggard"
ASTRAY, ASTRAY_AT = "astray", "10.77.0.98"  # a proxy with expired or future certificates
DAY_S = 86_400.0
OTHER_CERTIFICATES = (  # from the client's view; name, first day, message
    (
        "a client far behind the certificate",
        ASTRAY_AT,
        3,
        "certificate is not yet valid; this machine's clock",
    ),
    (
        "a client far ahead of the certificate",
        ASTRAY_AT,
        -40,
        "certificate has expired; this machine's clock",
    ),
    ("a client that dials another name", PROXY, 0, "IP address mismatch"),
)
RATE_MBIT = 20.0
FULL_MB, ROOM_MB = 32, 20.0  # less than the 64 MB that a server or client needs
FLOWERS_REFUSAL = r"\[code: \d+\] .*"


def strangers(stage: Stage) -> None:
    """Clients that are not admitted."""
    stage.network.join(STRANGER, "10.77.0.99", RATE_MBIT)
    stranger = stage.client(STRANGER)
    stranger.start()
    stage.wait("an unregistered client ends", READY_S, lambda: _ended(stranger), tends=False)
    code = stranger.supervisor.returncode if stranger.supervisor else 0
    output = re.findall(FLOWERS_REFUSAL, stranger.log.read_text(errors="replace"))
    stage.require(code != 0 and bool(output), f"unregistered client: exit code {code}, its output {output}")
    stage.report("an unregistered client", f"exit code {code}: {' '.join(output[-1].split())[:160]}")
    stranger.kill()
    _refused(stage, "a client without FEDGC_SERVER", stranger, "(FEDGC_SERVER): is not set", FEDGC_SERVER="")
    foreign = Keyring(stage.folder / "foreign")
    foreign.begin((PROXY,), time.time(), 30)
    ours = stranger.seen("/keys") / "ca.pem"
    kept = ours.read_bytes()
    ours.write_bytes((foreign.folder / "authority" / "ca.pem").read_bytes())
    _refused(stage, "a client with another authority", stranger, "unable to get local issuer certificate")
    ours.write_bytes(kept)
    key = stranger.seen("/keys") / "client.key"
    os.chown(key, 0, 0)
    _refused(stage, "a client that may not read its key", stranger, "user 10001 may not read it")
    own(key.parent)


def clocks(stage: Stage) -> None:
    """Certificates and clocks of other days; a separate proxy shows those certificates."""
    stage.network.join(ASTRAY, ASTRAY_AT, RATE_MBIT)
    stranger, dialled = stage.fleet.containers[STRANGER], {"FEDGC_SERVER": f"{ASTRAY_AT}:{PORT}"}
    ring = Keyring(stage.folder / "keys-astray")
    shutil.copytree(stage.ring.folder, ring.folder)
    proxy = stage.serve(ASTRAY, "proxy", ring.folder, FEDGC_INSIDE=SERVER)
    for what, name, days, sentence in OTHER_CERTIFICATES:
        ring.renew((name,), time.time() + days * DAY_S, 30)
        own(ring.folder / "proxy")
        proxy.start()
        stage.wait("the astray proxy listens", READY_S, lambda: _listens(stage, stranger), tends=False)
        _refused(stage, what, stranger, sentence, **dialled)
        proxy.kill()
    clock = stranger.seen("/tasks") / "sitecustomize.py"  # Python's hook to change what all programs see
    clock.write_text(f"import time\n_now = time.time\ntime.time = lambda: _now() + {DAY_S}\n")
    _refused(
        stage, "a client whose clock is a day ahead", stranger, "s ahead of the server's, needed at most"
    )
    clock.unlink()


def full_disks(stage: Stage) -> None:
    """Volumes without space."""
    stage.network.join("cramped", "10.77.0.96", RATE_MBIT)
    cramped = stage.serve("cramped", "server", stage.ring.folder)
    stage.fleet.limit(cramped.seen("/state"), FULL_MB)
    _refused(stage, "a server whose volume is full", cramped, "MB free, needed at least 64")
    stranger = stage.fleet.containers[STRANGER]
    stage.fleet.limit(stranger.seen("/cache"), FULL_MB)
    _refused(stage, "a client whose cache is full", stranger, "MB free, needed at least 64")
    state = stage.server.seen("/state")  # a small volume since the start
    ballast = state / "ballast"
    free = shutil.disk_usage(state).free
    ballast.write_bytes(bytes(int(free - ROOM_MB * 2**20)))
    done = stage.server.ask(*stage.server.service.health)
    line = _one_line(done.stderr)
    stage.require(done.returncode == 1 and "MB free, needed" in line, f"a server at work: {done}")
    stage.report(
        "a server at work whose volume fills up is unhealthy", f"exit code {done.returncode}: {line}"
    )
    ballast.unlink()
    stage.require(stage.healthy(stage.server), "the server is not healthy after its volume has room again")
    stage.report("the same with room again", "healthy")


def curious(stage: Stage) -> None:
    """The control API and the inside, tried from a client's host."""
    tries = [
        (f"https://{ADDRESS}/v1/control/start-run", "404"),
        (f"https://{ADDRESS}/v1/control/list-nodes", "404"),
        (f"https://{ADDRESS}/v1/runtime/pull-task", "404"),
        (f"https://{ADDRESS}/v1/fleet/../control/start-run", "404"),
        (f"https://{ADDRESS}/docs", "404"),
        (f"https://{SERVER}:9092/v1/control/list-nodes", "unreachable"),
        (f"https://{SERVER}:9094/", "unreachable"),
    ]
    for url, needed in tries:
        seen = _try(stage, "ward-1", url)
        stage.require(seen == needed, f"from a client, {url}: saw {seen}, needed {needed}")
        stage.report(f"from a client, {url.partition('//')[2]}", seen)


def old_wire(stage: Stage, run_log: Path) -> None:
    """A client whose fedgc speaks the wire's next version; call it during a run."""
    stage.network.join(LAGGARD, "10.77.0.97", RATE_MBIT)
    laggard = stage.client(LAGGARD)
    root = stage.images.mounted(laggard.identity)
    source = next(root.glob("opt/fedgc/lib/python3*/site-packages/fedgc/messages/fields.py"))
    changed, times = re.subn(
        r"^(WIRE_VERSION: Final = )(\d+)",
        lambda found: f"{found[1]}{int(found[2]) + 1}",
        source.read_text(),
        flags=re.MULTILINE,
    )
    stage.require(times == 1, f"{source.name}: saw {times} lines with the wire version, needed 1")
    source.write_text(changed)
    stage.register(LAGGARD)
    laggard.start()
    sentence = re.compile(r"ended: (the server speaks wire version \d+, this client \d+)")

    def heard() -> bool:
        return all(sentence.search(log.read_text(errors="replace")) for log in (laggard.log, run_log))

    stage.wait("client and run say that their wire versions differ", READY_S, heard)
    stage.report(
        "a client of another wire version", sentence.findall(laggard.log.read_text(errors="replace"))[-1]
    )
    laggard.kill()


def revoked(stage: Stage) -> None:
    """A registered client whose key is revoked."""
    container = stage.fleet.containers["ward-1"]
    stage.wait("ward-1 is healthy", READY_S, lambda: stage.healthy(container))
    done = stage.server.ask("fedgc", "keys", "client", "ward-1", "--revoke")
    stage.require(done.returncode == 0, f"ward-1 was not revoked: {done.stderr.strip()}")
    before = len(container.ends)
    stage.wait("ward-1 is refused", READY_S, lambda: len(container.ends) > before + 1)
    stage.require(0 not in container.ends[before + 1 :], f"ward-1 ended with {container.ends[before:]}")
    output = re.findall(FLOWERS_REFUSAL, container.log.read_text(errors="replace"))
    stage.require(bool(output), "ward-1 does not say why it ended")
    stage.report(
        "ward-1, revoked", f"exit codes {container.ends[before:]}: {' '.join(output[-1].split())[:160]}"
    )


def _refused(stage: Stage, what: str, container: Container, sentence: str, **changes: str) -> None:
    """Start a container with these changes; it must print one line with this text and fail."""
    kept, container.given = container.given, {**container.given, **changes}
    done = container.ask(*container.entry, *container.service.command)
    container.given = kept
    line = _one_line(done.stderr)
    stage.require(
        done.returncode not in {0, 124} and sentence in line,
        f"{what}: exit code {done.returncode}, needed one line with {sentence!r}: {done.stderr[-500:]}",
    )
    stage.report(what, f"exit code {done.returncode}: {line}")


def _one_line(output: str) -> str:
    """Return the only line of fedgc in an output; empty if there are none or more."""
    lines = [line for line in output.splitlines() if line.startswith("fedgc")]
    return lines[0] if len(lines) == 1 and "Traceback" not in output else ""


def _ended(container: Container) -> bool:
    return container.supervisor is not None and container.supervisor.poll() is not None


def _listens(stage: Stage, container: Container) -> bool:
    program = f"import socket; socket.create_connection(({ASTRAY_AT!r}, {PORT}), 2)"
    inside = ["ip", "netns", "exec", stage.network.space(container.host), sys.executable, "-c", program]
    return subprocess.run(inside, capture_output=True, check=False).returncode == 0


def _try(stage: Stage, host: str, url: str) -> str:
    """POST from a client's namespace; return the status, or that no server answers."""
    program = (
        "import http.client, ssl, sys\n"
        "host, path = sys.argv[1].split('/', 3)[2], '/' + sys.argv[1].split('/', 3)[3]\n"
        "trusted = ssl.create_default_context(cafile=sys.argv[2])\n"
        "line = http.client.HTTPSConnection(host, timeout=5, context=trusted)\n"
        "try:\n    line.request('POST', path, b'')\n    print(line.getresponse().status)\n"
        "except OSError:\n    print('unreachable')\n"
    )
    inside = ["ip", "netns", "exec", stage.network.space(host), sys.executable, "-c", program]
    authority = str(stage.ring.folder / "authority" / "ca.pem")
    return subprocess.run(
        [*inside, url, authority], capture_output=True, text=True, check=False
    ).stdout.strip()
