"""What `make docker-check` does and shows, one step after the other. The first that is not so ends it."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from compose import service
from fleet import Container, Fleet, own
from images import Images, megabytes
from network import PROXY, SERVER, Network

from fedgc.flower import pulse, tether
from fedgc.flower.keyring import Keyring
from fedgc.store import checkpoint
from fedgc.store.database import Store

PORT = 8443
ADDRESS = f"{PROXY}:{PORT}"
DEVICES = {"ward-1": 100.0, "ward-2": 50.0, "ward-3": 20.0}  # megabits a second, both ways
ROUNDS = 80
CUT_IN, CUT_S, KILL_IN = 3, 20.0, 8  # rounds, seconds
SETTINGS: dict[str, str | int | float] = {
    "rounds": ROUNDS,
    "min-devices": 3,
    "chunks": 12,
    "replicas": 3,
    "blocks": 1,
    "local-steps": 4,
    "evaluate-every": 10,
    "grace-s": 8.0,
    "deadline-s": 120.0,
    "upload-deadline-s": 60.0,
    "start-timeout-s": 300.0,
    "connect-s": 60.0,
    "threads": 1,
}
MIDDLE_S = 0.5  # into a round
PACE_S = 0.1  # least time of a local step: so that a round has a middle
SAME = 5e-3  # of their size: sums of the same updates in another order, rounded, and trained on
READY_S, RUN_S = 300.0, 900.0
FIRST_CHUNK_S, SIZE_MB = 20.0, 600.0  # what is promised


ONLY_TORCHS = ("sympy", "mpmath", "networkx", "setuptools", "functorch")  # nobody else needs them
COMPILER = re.compile(r"(^|-)(gcc|g\+\+|cc|c\+\+|clang)(-|$)")


class Failed(Exception):
    """Something was not so."""


class Story:
    """The steps."""

    def __init__(self, folder: Path, images: Images, repository: Path) -> None:
        self._folder = folder
        self._images = images
        self._repository = repository
        self._began = time.monotonic()
        self._ring = Keyring(folder / "keys")
        self._streams: list[subprocess.Popen[bytes]] = []
        self._returned: dict[str, int] = {}  # device -> round in which it was back

    def tell(self) -> None:
        """Do all of it."""
        self._build()
        with Network() as network, Fleet(self._folder, self._images, network) as fleet:
            self._fleet = fleet
            try:
                self._open(network)
                self._refuse_strangers(network)
                self._train()
                self._revoke()
            except Failed:
                self._show_logs()
                raise
            finally:
                for stream in self._streams:
                    stream.communicate()  # ends its input, and with it the leash and all below
        self._left_nothing(network)

    # ---- images

    def _build(self) -> None:
        self._say("a Debian base by debootstrap, our Dockerfiles on it by buildah")
        self._images.make_base()
        for role in ("device", "server", "proxy"):
            began = time.monotonic()
            self._images.build(f"docker/{role}.Dockerfile", f"localhost/fedgc-{role}")
            self._so(f"image fedgc-{role}", f"{time.monotonic() - began:.0f} s")
        self._measure()

    def _measure(self) -> None:
        for role in ("device", "server", "proxy"):
            container = self._images.container(f"localhost/fedgc-{role}")
            try:
                root = self._images.mounted(container)
                packages = next(root.glob("opt/fedgc/lib/python3*/site-packages"), root / "none")
                torch = megabytes(packages.glob("torch*"))
                its_needs = megabytes(packages / each for each in ONLY_TORCHS)
                whole = megabytes([root])
                compilers = [each.name for each in root.glob("usr/bin/*") if COMPILER.search(each.name)]
                told = f"{whole:.0f} MB, {whole - torch:.0f} MB of it without torch"
                self._so(
                    f"fedgc-{role} unpacked",
                    f"{told}, {whole - torch - its_needs:.0f} MB without what only torch needs",
                )
                self._must(not compilers, f"image fedgc-{role} holds compilers: {compilers}")
                small = role != "device" or whole - torch - its_needs < SIZE_MB
                self._must(small, f"image fedgc-{role} is larger than {SIZE_MB:.0f} MB")
            finally:
                self._images.remove([container])

    # ---- server, keys, devices

    def _open(self, network: Network) -> None:
        self._say("keys, server and proxy; every host in a namespace of its own")
        self._fedgc("keys", "tls", PROXY, "--folder", str(self._ring.folder))
        for name in (*DEVICES, "stranger"):
            self._fedgc("keys", "device", name, "--folder", str(self._ring.folder))
        given = {
            "FEDGC_ADVERTISE": ADDRESS,
            "FEDGC_KEYS_FOLDER": str(self._ring.folder),
            "FEDGC_TASKS_FOLDER": str(self._folder / "tasks"),
        }
        self._server = self._add("server", "server", given, {})
        self._proxy = self._add("proxy", "proxy", given, {"FEDGC_INSIDE": SERVER})
        self._server.start()
        self._proxy.start()
        self._wait("server and proxy are healthy", READY_S, lambda: self._healthy(self._server, self._proxy))
        for name in DEVICES:
            done = self._server.ask("fedgc", "keys", "device", name, "--register")
            self._must(done.returncode == 0, f"{name} was not registered: {done.stderr.strip()}")
            self._so(f"{name} registered", done.stdout.strip().partition(", ")[2])
        for number, (name, rate) in enumerate(DEVICES.items()):
            network.join(name, f"10.77.0.{11 + number}", rate)
            self._device(name, name)
        for name in ("ward-1", "ward-2"):
            self._fleet.containers[name].start()
        self._wait(
            "ward-1 and ward-2 are healthy", READY_S, lambda: self._healthy(*self._of("ward-1", "ward-2"))
        )

    def _device(self, host: str, key: str, **environment: str) -> Container:
        given = {
            "FEDGC_SERVER": ADDRESS,
            "FEDGC_NAME": host,
            "FEDGC_NODE_CONFIG": f"pace-s={PACE_S}",
            "FEDGC_KEYS_FOLDER": str(self._ring.folder / "devices" / key),
            "FEDGC_TASKS_FOLDER": str(self._folder / "tasks"),
            "FEDGC_DATA_FOLDER": str(self._folder / "data"),
        }
        return self._add(host, "device", given, environment)

    def _add(self, host: str, name: str, given: Mapping[str, str], more: Mapping[str, str]) -> Container:
        file = self._repository / "docker" / f"compose.{'device' if name == 'device' else 'server'}.yaml"
        return self._fleet.add(host, service(file, name, given), f"localhost/fedgc-{name}", more)

    # ---- who is refused

    def _refuse_strangers(self, network: Network) -> None:
        self._say("who is refused")
        network.join("stranger", "10.77.0.99", 20.0)
        stranger = self._device("stranger", "stranger")
        stranger.start()
        self._wait("an unregistered device ends", READY_S, lambda: self._ended(stranger), tends=False)
        self._refused("unregistered device", stranger, r"\[code: \d+\] .*")
        self._refused_words(
            "a device without FEDGC_SERVER", stranger, {"FEDGC_SERVER": ""}, "FEDGC_SERVER: is not set"
        )
        own_authority = Keyring(self._folder / "foreign")
        own_authority.begin((PROXY,), time.time(), 30)
        foreign = (own_authority.folder / "authority" / "ca.pem").read_bytes()
        ours = (
            stranger.place(next(each for each in stranger.service.mounts if each.target == "/keys"))
            / "ca.pem"
        )
        kept = ours.read_bytes()
        ours.write_bytes(foreign)
        self._refused_words("a device with another authority", stranger, {}, "its certificate is refused")
        ours.write_bytes(kept)
        self._refuse_control(network)

    def _refused(self, what: str, container: Container, pattern: str) -> None:
        code = container.leash.returncode if container.leash else 0
        said = re.findall(pattern, container.log.read_text(errors="replace"))
        self._must(code != 0 and bool(said), f"{what}: exit code {code}, it said {said}")
        self._so(what, f"exit code {code}: {' '.join(said[-1].split())[:160]}")
        container.kill()

    def _refused_words(self, what: str, container: Container, more: Mapping[str, str], sentence: str) -> None:
        container.given = more
        done = container.ask(*container.entry, *container.service.command)
        lines = [line for line in done.stderr.splitlines() if line.startswith("fedgc")]
        self._must(
            done.returncode != 0 and len(lines) == 1 and sentence in lines[0],
            f"{what}: exit code {done.returncode}, {done.stderr[-500:]}",
        )
        self._so(what, f"exit code {done.returncode}: {lines[0]}")
        container.given = {}

    def _refuse_control(self, network: Network) -> None:
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
            seen = self._try(network, "ward-1", url)
            self._must(seen == needed, f"from a device, {url}: saw {seen}, needed {needed}")
            self._so(f"from a device, {url.partition('//')[2]}", seen)

    def _try(self, network: Network, host: str, url: str) -> str:
        """POST from a device's namespace; return the status, or that nobody is there."""
        program = (
            "import http.client, ssl, sys\n"
            "host, path = sys.argv[1].split('/', 3)[2], '/' + sys.argv[1].split('/', 3)[3]\n"
            "trusted = ssl.create_default_context(cafile=sys.argv[2])\n"
            "line = http.client.HTTPSConnection(host, timeout=5, context=trusted)\n"
            "try:\n    line.request('POST', path, b'')\n    print(line.getresponse().status)\n"
            "except OSError:\n    print('unreachable')\n"
        )
        inside = ["ip", "netns", "exec", network.space(host), sys.executable, "-c", program]
        authority = str(self._ring.folder / "authority" / "ca.pem")
        return subprocess.run(
            [*inside, url, authority], capture_output=True, text=True, check=False
        ).stdout.strip()

    # ---- training

    def _train(self) -> None:
        self._say(f"{ROUNDS} rounds of digits, nothing amiss; ward-3 is started when the run waits for it")
        with self._run("calm") as log:
            self._wait("the run waits for devices", READY_S, lambda: "sessions at" in log.read_text())
            self._first_chunk("ward-3")
            names = [name for name in DEVICES if self._chunks(self._fleet.containers[name]) > 0]
            self._so("engines whose pulse is heard", ", ".join(names))
            self._wait("the run ends", RUN_S, lambda: not self._runs())
        self._trained(log)
        self._say("the same run again, with faults")
        with self._run("storm") as log:
            self._wait(f"round {CUT_IN}", RUN_S, lambda: rounds(log) >= CUT_IN)
            self._cut(log)
            self._wait(f"round {KILL_IN}", RUN_S, lambda: rounds(log) >= KILL_IN)
            self._kill(log)
            self._wait("the run ends", RUN_S, lambda: not self._runs())
        self._trained(log)
        self._compare()

    @contextmanager
    def _run(self, name: str) -> Iterator[Path]:
        words = " ".join(f"{key}={json.dumps(value)}" for key, value in {**SETTINGS, "run": name}.items())
        command = ["flwr", "run", "/opt/app", "local", "--stream", "--run-config", words]
        log = self._folder / f"run-{name}.log"
        with log.open("wb") as out:
            stream = subprocess.Popen(
                [sys.executable, tether.__file__, *self._server.words(command)],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        self._streams.append(stream)
        yield log

    def _runs(self) -> bool:
        return self._streams[-1].poll() is None

    def _first_chunk(self, host: str) -> None:
        container = self._fleet.containers[host]
        began = time.monotonic()
        container.start()
        self._wait(f"{host} has finished a chunk", 400.0, lambda: self._chunks(container) > 0, pause_s=0.1)
        took = time.monotonic() - began
        busy = os.getloadavg()[0]
        verdict = "as promised" if took < FIRST_CHUNK_S else f"promised within {FIRST_CHUNK_S:.0f} s"
        self._so("from a container's start to its first chunk", f"{took:.1f} s ({verdict}; load {busy:.1f})")
        self._must(took < FIRST_CHUNK_S or busy > (os.cpu_count() or 1), "the first chunk came too late")

    def _chunks(self, container: Container) -> int:
        state = container.place(next(each for each in container.service.mounts if each.target == "/state"))
        beat = pulse.heard(state / "pulse")
        return beat.chunks if beat is not None else 0

    def _cut(self, log: Path) -> None:
        network = self._fleet.network
        seen = rounds(log)
        self._wait("another round is over", 60.0, lambda: rounds(log) > seen, pause_s=0.05)
        time.sleep(MIDDLE_S)
        network.cut("ward-2")
        self._so("cut off ward-2", f"{MIDDLE_S} s into round {rounds(log) + 1}")
        end = time.monotonic() + CUT_S
        self._wait(f"{CUT_S:.0f} s pass", CUT_S + 5, lambda: time.monotonic() > end)
        network.mend("ward-2")
        self._so("joined ward-2 again", f"round {rounds(log) + 1}; the others went on")
        self._back(log, "ward-2")

    def _back(self, log: Path, name: str) -> None:
        """Wait until a device has joined the run again, and keep the round in which it did."""
        joins = joined(log, name)
        self._wait(f"{name} is back", READY_S, lambda: joined(log, name) > joins or not self._runs())
        self._must(joined(log, name) > joins, f"{name} was not back before the run's end")
        self._returned[name] = rounds(log)

    def _kill(self, log: Path) -> None:
        container = self._fleet.containers["ward-3"]
        container.kill()
        self._so("killed every process of ward-3", f"in round {rounds(log) + 1}")
        began = time.monotonic()
        container.pause_s, container.again = 0.1, time.monotonic() + 0.1
        self._back(log, "ward-3")
        refused = len(container.ends)
        self._so(
            "ward-3 came back by itself",
            f"{time.monotonic() - began:.0f} s, after {refused} refusals by Flower",
        )

    def _trained(self, log: Path) -> None:
        said = [line for line in log.read_text(errors="replace").splitlines() if "evaluated" in line]
        self._must(rounds(log) == ROUNDS and bool(said), f"{log.name}: {rounds(log)} of {ROUNDS} rounds")
        self._so("trained", said[-1].partition(":")[2].strip()[:100] or said[-1])

    # ---- what came of it

    def _compare(self) -> None:
        self._say("what came of it")
        self._server.kill()
        state = self._folder / "volumes" / "server" / "state"
        with Store.open(str(state / "fedgc" / "fedgc.db")) as store:
            for run in ("calm", "storm"):
                self._judge(store, run)
        calm, storm = (checkpoint.load(state / "fedgc" / "runs" / run).model for run in ("calm", "storm"))
        apart = float(np.linalg.norm(calm - storm) / np.linalg.norm(calm))
        self._so("the models of both runs", f"apart by {apart:.1e} of their size")
        self._must(apart < SAME, f"the models differ by {apart:.1e}, needed below {SAME}")
        own(state)
        self._server.start()
        self._wait("the server is healthy again", READY_S, lambda: self._healthy(self._server, self._proxy))

    def _judge(self, store: Store, run: str) -> None:
        outcomes = [each.row.outcome for each in store.rounds(run)]
        self._must(store.run(run).state == "completed", f"run {run} is {store.run(run).state}")
        self._must(set(outcomes) == {"synced"}, f"run {run}: outcomes {sorted(set(outcomes))}")
        self._so(f"run {run}", f"{len(outcomes)} rounds, each sum exact")
        for device in store.devices():
            rows = store.device_history(run, device.device)
            counted = {number: row.counted for number, row in rows}
            told = f"{sum(row.finished for _, row in rows)} chunks finished, {sum(counted.values())} counted"
            links = sorted({row.link for _, row in rows if row.link})
            self._so(f"  {device.name}", f"{told}, over {' and '.join(links)}")
            since = self._returned.get(device.name, 0) if run == "storm" else 0
            late = sum(count for number, count in counted.items() if number > since)
            self._must(late > 0, f"run {run}: nothing of {device.name} counted after round {since}")
            if since:
                self._so(f"    {device.name} after its return", f"{late} chunks counted since round {since}")

    def _revoke(self) -> None:
        self._say("a key is revoked")
        container = self._fleet.containers["ward-1"]
        self._wait("ward-1 is healthy", READY_S, lambda: self._healthy(container))
        done = self._server.ask("fedgc", "keys", "device", "ward-1", "--revoke")
        self._must(done.returncode == 0, f"ward-1 was not revoked: {done.stderr.strip()}")
        before = len(container.ends)
        self._wait("ward-1 is refused", READY_S, lambda: len(container.ends) > before + 1)
        self._must(0 not in container.ends[before + 1 :], f"ward-1 ended with {container.ends[before:]}")
        self._so("ward-1, revoked", f"exit codes {container.ends[before:]}")

    # ---- after it

    def _left_nothing(self, network: Network) -> None:
        spaces = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout
        self._must(network.prefix not in spaces, f"namespaces are left: {spaces}")
        held = self._images.say("containers", "-q")
        self._must(not held, f"containers are left: {held}")
        self._say("every process, namespace and container of it is gone")

    # ---- words

    def _healthy(self, *containers: Container) -> bool:
        return all(each.ask(*each.service.health).returncode == 0 for each in containers)

    def _of(self, *hosts: str) -> list[Container]:
        return [self._fleet.containers[host] for host in hosts]

    @staticmethod
    def _ended(container: Container) -> bool:
        return container.leash is not None and container.leash.poll() is not None

    def _fedgc(self, *words: str) -> None:
        program = Path(sys.executable).with_name("fedgc")
        environment = {**os.environ, "PYTHONPATH": str(self._repository)}
        done = subprocess.run([program, *words], env=environment, capture_output=True, text=True, check=False)
        self._must(done.returncode == 0, f"fedgc {' '.join(words)}: {done.stderr.strip()}")

    def _wait(
        self,
        what: str,
        limit_s: float,
        condition: Callable[[], bool],
        *,
        tends: bool = True,
        pause_s: float = 0.5,
    ) -> None:
        began = time.monotonic()
        while not condition():
            if time.monotonic() - began > limit_s:
                raise Failed(f"waited {limit_s:.0f} s: {what}")
            if tends:
                self._fleet.tend()
            time.sleep(pause_s)
        self._so(what, f"after {time.monotonic() - began:.0f} s")

    @staticmethod
    def _must(so: bool, what: str) -> None:
        if not so:
            raise Failed(what)

    def _say(self, what: str) -> None:
        print(f"\n[{time.monotonic() - self._began:5.0f} s] {what}", flush=True)

    @staticmethod
    def _so(what: str, how: str) -> None:
        print(f"    {what}: {how}", flush=True)

    def _show_logs(self) -> None:
        for log in sorted(self._folder.glob("*.log")):
            print(f"\n---- the end of {log.name}", flush=True)
            print("\n".join(log.read_text(errors="replace").splitlines()[-25:]), flush=True)


def rounds(log: Path) -> int:
    """Return the last round that a run's log tells of."""
    found = re.findall(
        r"round (\d+)[: ].*(?:synced|approximate|skipped|empty)", log.read_text(errors="replace")
    )
    return int(found[-1]) if found else 0


def joined(log: Path, name: str) -> int:
    """Return how often a device has joined a run."""
    return len(re.findall(rf"device {name} \([0-9a-f]+\) joins", log.read_text(errors="replace")))
