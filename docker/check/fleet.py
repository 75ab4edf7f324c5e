"""Containers, each in its own namespace, started as in the compose file.

A supervisor (fedgc.processes.supervision) holds a container's processes: a kill reaches every one, and none
outlives this program. A container that ends by itself is restarted as with `restart: unless-stopped`, after
pauses that double from a tenth of a second to a minute.
"""

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from compose import Mount, Service
from images import Images
from network import Network

from fedgc.processes import supervision

USER = 10001
FIRST_PAUSE_S, LONGEST_PAUSE_S, SETTLED_S = 0.1, 60.0, 10.0


@dataclass
class Container:
    """One container: `start`, `kill`, and its folders on this side."""

    host: str
    service: Service
    entry: tuple[str, ...]  # the image's
    given: Mapping[str, str]  # environment in addition to the compose file's
    fleet: "Fleet"
    at: str = ""  # the host on whose network and volumes it is; empty: its own
    identity: str = ""
    beside: str = ""  # another container of its image and folders, which loses its mounts when this one ends
    supervisor: "subprocess.Popen[bytes] | None" = None
    started: float = 0.0
    pause_s: float = FIRST_PAUSE_S
    again: float | None = None
    ends: list[int] = field(default_factory=list)  # exit codes

    @property
    def log(self) -> Path:
        """Its log file."""
        return self.fleet.folder / f"{self.host}.log"

    def place(self, mount: Mount) -> Path:
        """Return the folder behind a mount: a named volume belongs to this host."""
        own = mount.source.startswith((".", "/"))
        return (
            Path(mount.source)
            if own
            else self.fleet.folder / "volumes" / (self.at or self.host) / mount.source
        )

    def seen(self, target: str) -> Path:
        """Return the host's folder behind a mount point."""
        return self.place(next(each for each in self.service.mounts if each.target == target))

    def start(self) -> None:
        """Start it."""
        self.again, self.started = None, time.monotonic()
        with self.log.open("ab") as log:
            self.supervisor = subprocess.Popen(
                [
                    sys.executable,
                    supervision.__file__,
                    *self.words((*self.entry, *self.service.command), self.identity),
                ],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def words(self, command: Sequence[str], identity: str = "") -> list[str]:
        """Return the command line of a program in its namespace, with its folders and on its network."""
        environment = {**self.service.environment, **self.given}
        options = [f"--env={name}={value}" for name, value in environment.items()]
        mounts = [(self.place(each), each.target, each.read_only) for each in self.service.mounts]
        mounts += [(self.fleet.folder / "tmp" / self.host, target, False) for target in self.service.tmpfs]
        options += [f"--volume={here}:{there}:{'ro' if fixed else 'rw'}" for here, there, fixed in mounts]
        run = ["run", "--isolation", "chroot", "--user", f"{USER}:{USER}", "--cap-drop", "all", *options]
        inside = ["ip", "netns", "exec", self.fleet.network.space(self.at or self.host)]
        return [*inside, *self.fleet.images.buildah(*run, identity or self.beside, "--", *command)]

    def ask(self, *command: str, timeout_s: float = 90.0) -> "subprocess.CompletedProcess[str]":
        """Run a program in it, as with `docker compose exec`; it ends in time, with all its children."""
        words = [sys.executable, supervision.__file__, *self.words(command)]
        near, far = os.pipe()
        with open(near) as held, open(far, "w") as supervisor:  # noqa: PTH123  ends of a pipe
            program = subprocess.Popen(
                words, stdin=held, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            try:
                output = program.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired:
                supervisor.close()
                program.wait()
                return subprocess.CompletedProcess(words, 124, "", f"no answer within {timeout_s:.0f} s")
        return subprocess.CompletedProcess(words, program.returncode, *output)

    def kill(self) -> None:
        """SIGKILL all its processes, like a power cut; it is not restarted by itself."""
        if self.supervisor is not None:
            supervision.kill_below(self.supervisor.pid)
            self._let_go()
        self.again = None

    def cpu_s(self) -> float:
        """Return the CPU time of its processes, including ended ones."""
        if self.supervisor is None:
            return 0.0
        ticks = 0
        for process in supervision.descendants(self.supervisor.pid):
            with suppress(OSError):
                stat = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
                ticks += sum(map(int, stat[11:15]))  # its own, and those of reaped children
        return ticks / os.sysconf("SC_CLK_TCK")

    def tend(self, now: float) -> None:
        """Restart it if it has ended, after its pause."""
        if self.supervisor is not None and self.supervisor.poll() is not None:
            self.ends.append(self.supervisor.returncode)
            self._let_go()
            self.pause_s = (
                FIRST_PAUSE_S if now - self.started > SETTLED_S else min(2 * self.pause_s, LONGEST_PAUSE_S)
            )
            self.again = now + self.pause_s
        if self.supervisor is None and self.again is not None and now >= self.again:
            self.start()

    def _let_go(self) -> None:
        if self.supervisor is not None:
            if self.supervisor.stdin is not None:
                self.supervisor.stdin.close()
            self.supervisor.wait()
            self.supervisor = None


@dataclass
class Fleet:
    """All containers; use it as a context."""

    folder: Path
    images: Images
    network: Network
    containers: dict[str, Container] = field(default_factory=dict)
    limited: list[Path] = field(default_factory=list)  # folders that are small file systems

    def __enter__(self) -> "Fleet":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(self, host: str, service: Service, given: Mapping[str, str], at: str = "") -> Container:
        """Make a container, with its folders owned by its user."""
        image = f"localhost/{service.image.partition(':')[0]}"
        entry = ("/usr/local/bin/start",) if service.name == "proxy" else ("fedgc",)
        made = Container(host, service, entry, given, self, at)
        made.identity, made.beside = self.images.container(image), self.images.container(image)
        self.containers[host] = made
        folders = [made.place(mount) for mount in service.mounts] + [self.folder / "tmp" / host]
        for each in folders:
            each.mkdir(parents=True, exist_ok=True)
            own(each)
        return made

    def limit(self, folder: Path, size_mb: int) -> None:
        """Mount a small file system on an empty folder."""
        options = f"size={size_mb}m,mode=0755,uid={USER},gid={USER}"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True)
        self.limited.append(folder)

    def tend(self) -> None:
        """Restart ended containers."""
        for each in self.containers.values():
            each.tend(time.monotonic())

    def close(self) -> None:
        """End every process and remove every container."""
        for each in self.containers.values():
            each.kill()
        every = [each for made in self.containers.values() for each in (made.identity, made.beside)]
        self.images.remove(each for each in every if each)
        while self.limited:
            subprocess.run(["umount", "--lazy", str(self.limited.pop())], check=False)


def own(folder: Path) -> None:
    """Give a folder and its content to the containers' user."""
    os.chown(folder, USER, USER)
    for here, folders, files in os.walk(folder):
        for name in (*folders, *files):
            os.chown(Path(here) / name, USER, USER)
