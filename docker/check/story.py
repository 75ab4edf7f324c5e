"""The steps of `make docker-check`, one after the other. The first failure ends it."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import refused
import sites
from fleet import Container, Fleet, own
from images import Images, megabytes, uncompiled
from network import PROXY, SERVER, Network
from stage import CLIENTS, READY_S, Failed, Stage

from fedgc.flower import heartbeat as pulse
from fedgc.processes import supervision
from fedgc.store import checkpoint
from fedgc.store.database import Store

ROUNDS = 80
CUT_IN, CUT_S, KILL_IN = 3, 20.0, 8  # rounds, seconds
SETTINGS: dict[str, str | int | float] = {
    "rounds": ROUNDS,
    "min-clients": 3,
    "work": "coded",
    "data.chunks": 12,
    "code.replicas": 3,
    "code.blocks": 1,
    "local-steps": 4,
    "history.evaluate-every": 10,
    "links.grace-s": 8.0,
    "timing.deadline-s": 120.0,
    "timing.upload-deadline-s": 60.0,
    "timing.start-timeout-s": 300.0,
    "links.connect-s": 60.0,
    "client.threads": 1,
}
SHUT: dict[str, str | int | float] = {
    "rounds": 2,
    "links.connect-s": 5.0,
    "links.advertise": f"{PROXY}:9",
}  # addresses without a host
SITES: dict[str, str | int | float] = {
    "work": "local",
    "code.replicas": "auto",
    "code.blocks": "auto",
    "rounds": 3,
    "min-clients": 2,
    "gate.name": "every",
    "history.evaluate-every": 1,
    "timing.late-s": 60.0,
}
MIDDLE_S = 0.5  # into a round
SAME = 5e-3  # relative: the same updates summed in another order, rounded, and trained on
RUN_S = 900.0
FIRST_CHUNK_S, SIZE_MB = 20.0, 600.0  # documented limits
STATE_MB = 256  # of the server's volume
COMPILER = re.compile(r"(^|-)(gcc|g\+\+|cc|c\+\+|clang)(-|$)")
WAY = {  # log lines of a client up to its first chunk
    "its own checks are over": re.compile(r"^fedgc client: ", re.MULTILINE),
    "its SuperNode is connected": re.compile(r"SuperNode ID"),
    "it is asked": re.compile(r"Receiving: train"),
}


class Story:
    """The steps."""

    def __init__(self, folder: Path, images: Images, repository: Path) -> None:
        self._folder = folder
        self._images = images
        self._repository = repository
        self._began = time.monotonic()
        self._streams: list[subprocess.Popen[bytes]] = []
        self._returned: dict[str, int] = {}  # client -> round in which it was back

    def tell(self) -> None:
        """Run all steps."""
        self._build()
        with Network() as network, Fleet(self._folder, self._images, network) as fleet:
            self._stage = Stage(self._folder, self._images, network, fleet, self._repository)
            try:
                self._open(network)
                self._refuse()
                self._train()
                self._shut()
                self._compare()
                self._say("a key is revoked")
                refused.revoked(self._stage)
                self._sites()
            except Failed:
                self._stage.show_logs()
                raise
            finally:
                for stream in self._streams:
                    stream.communicate()  # closes its input, which ends the supervisor and all below
        self._left_nothing(network)

    # ---- images

    def _build(self) -> None:
        self._say("a Debian base by debootstrap, our Dockerfiles on it by buildah")
        self._images.make_base()
        for role in ("client", "server", "proxy"):
            began = time.monotonic()
            self._images.build(f"docker/{role}.Dockerfile", f"localhost/fedgc-{role}")
            Stage.report(f"image fedgc-{role}", f"{time.monotonic() - began:.0f} s")
        self._measure()

    def _measure(self) -> None:
        for role in ("client", "server", "proxy"):
            container = self._images.container(f"localhost/fedgc-{role}")
            try:
                root = self._images.mounted(container)
                packages = next(root.glob("opt/fedgc/lib/python3*/site-packages"), root / "none")
                torch = megabytes(packages.glob("torch*"))
                whole = megabytes([root])
                compilers = [each.name for each in root.glob("usr/bin/*") if COMPILER.search(each.name)]
                Stage.report(
                    f"fedgc-{role} unpacked", f"{whole:.0f} MB, {whole - torch:.0f} MB of it without torch"
                )
                Stage.require(not compilers, f"image fedgc-{role} holds compilers: {compilers}")
                small = role != "client" or whole - torch < SIZE_MB
                Stage.require(small, f"image fedgc-{role} is larger than {SIZE_MB:.0f} MB without torch")
                slow = uncompiled(root)
                Stage.require(
                    not slow, f"image fedgc-{role}: {len(slow)} modules without bytecode: {slow[:5]}"
                )
            finally:
                self._images.remove([container])

    # ---- server, keys, clients

    def _open(self, network: Network) -> None:
        self._say("keys, server and proxy; every host in a namespace of its own")
        stage, keys = self._stage, str(self._stage.ring.folder)
        stage.fedgc("keys", "tls", PROXY, "--folder", keys)
        for name in (*CLIENTS, refused.STRANGER, refused.LAGGARD):
            stage.fedgc("keys", "client", name, "--folder", keys)
        server = stage.serve("server", "server", stage.ring.folder)
        proxy = stage.serve("proxy", "proxy", stage.ring.folder, FEDGC_INSIDE=SERVER)
        stage.fleet.limit(server.seen("/state"), STATE_MB)
        server.start()
        proxy.start()
        stage.wait("server and proxy are healthy", READY_S, lambda: stage.healthy(server, proxy))
        for name in CLIENTS:
            stage.register(name)
        for number, (name, rate) in enumerate(CLIENTS.items()):
            network.join(name, f"10.77.0.{11 + number}", rate)
            stage.client(name)
        for name in ("ward-1", "ward-2"):
            stage.fleet.containers[name].start()
        stage.wait(
            "ward-1 and ward-2 are healthy", READY_S, lambda: stage.healthy(*stage.of("ward-1", "ward-2"))
        )

    def _refuse(self) -> None:
        self._say("who is refused")
        refused.strangers(self._stage)
        self._say("clocks and certificates of other days")
        refused.clocks(self._stage)
        self._say("full disks")
        refused.full_disks(self._stage)
        self._say("what is none of a client's business")
        refused.curious(self._stage)

    # ---- training

    def _train(self) -> None:
        self._say(f"{ROUNDS} rounds of digits, nothing amiss; ward-3 is started when the run waits for it")
        with self._run("calm") as log:
            self._stage.wait(
                "ward-1 and ward-2 wait for the third",
                READY_S,
                lambda: all(joined(log, name) for name in ("ward-1", "ward-2")),
            )
            self._first_chunk("ward-3")
            names = [name for name in CLIENTS if self._chunks(self._stage.fleet.containers[name]) > 0]
            self._stage.report("engines whose pulse is heard", ", ".join(names))
            refused.old_wire(self._stage, log)
            self._stage.wait("the run ends", RUN_S, lambda: not self._runs())
        self._trained(log)
        self._say("the same run again, with faults")
        with self._run("storm") as log:
            self._stage.wait(f"round {CUT_IN}", RUN_S, lambda: rounds(log) >= CUT_IN)
            self._cut(log)
            self._stage.wait(f"round {KILL_IN}", RUN_S, lambda: rounds(log) >= KILL_IN)
            self._kill(log)
            self._stage.wait("the run ends", RUN_S, lambda: not self._runs())
        self._trained(log)

    def _shut(self) -> None:
        self._say("a run whose session address has no listener")
        with self._run("shut", SHUT) as log:
            self._stage.wait("the run ends", RUN_S, lambda: not self._runs())
        log_text = log.read_text(errors="replace")
        falls = re.findall(r"client [0-9a-f]+ goes on over Flower messages alone", log_text)
        self._stage.require(
            len(falls) == len(CLIENTS), f"{len(falls)} clients went on over messages: {falls}"
        )
        self._stage.report("the run says of each of them", falls[0])
        reasons = {line for line in log_text.splitlines() if "could not be reached" in line}
        self._stage.require(bool(reasons), "no log line says what could not be reached")
        self._stage.report("and why", sorted(reasons)[0].partition("a session ended: ")[2])

    def _sites(self) -> None:
        self._say("two sites with fleets of their own, in place of the clients")
        for container in self._stage.of(*CLIENTS):
            container.kill()
        sites.opened(self._stage)
        with self._run("sites", SITES) as log:
            self._stage.wait("the run ends", RUN_S, lambda: not self._runs())
        done = rounds(log)
        self._stage.require(done == SITES["rounds"], f"{log.name}: {done} of {SITES['rounds']} rounds")
        for name in sites.SITES:
            self._stage.require(joined(log, name) > 0, f"the gateway of {name} has not joined")
        self._stage.report("rounds of two sites", str(done))

    @contextmanager
    def _run(self, name: str, changes: Mapping[str, str | int | float] | None = None) -> Iterator[Path]:
        settings = {**SETTINGS, "run": name, **(changes or {})}
        words = " ".join(f"{key}={json.dumps(value)}" for key, value in settings.items())
        command = ["flwr", "run", "/opt/app", "local", "--stream", "--run-config", words]
        log = self._folder / f"run-{name}.log"
        with log.open("wb") as out:
            stream = subprocess.Popen(
                [sys.executable, supervision.__file__, *self._stage.server.words(command)],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        self._streams.append(stream)
        yield log

    def _runs(self) -> bool:
        return self._streams[-1].poll() is None

    def _first_chunk(self, host: str) -> None:
        """Start a client that a run waits for, and print the time of each part of its start."""
        container = self._stage.fleet.containers[host]
        way: dict[str, float] = {}
        began = time.monotonic()
        container.start()

        def arrived() -> bool:
            log_text, now = container.log.read_text(errors="replace"), time.monotonic() - began
            for what, sign in WAY.items():
                if what not in way and sign.search(log_text):
                    way[what] = now
            return self._chunks(container) > 0

        self._stage.wait(f"{host} has finished a chunk", 400.0, arrived, pause_s=0.1)
        took, busy = time.monotonic() - began, os.getloadavg()[0]
        verdict = "as promised" if took < FIRST_CHUNK_S else f"promised within {FIRST_CHUNK_S:.0f} s"
        self._stage.report(
            "from a container's start to its first chunk", f"{took:.1f} s ({verdict}; load {busy:.1f})"
        )
        summary = ", ".join(f"{what} at {at:.1f} s" for what, at in way.items())
        self._stage.report("on the way", f"{summary}; {container.cpu_s():.1f} s of a core in all")
        self._stage.require(
            took < FIRST_CHUNK_S or busy > (os.cpu_count() or 1), "the first chunk came too late"
        )

    @staticmethod
    def _chunks(container: Container) -> int:
        beat = pulse.last_beat(container.seen("/state") / "pulse")
        return beat.chunks if beat is not None else 0

    def _cut(self, log: Path) -> None:
        network = self._stage.fleet.network
        seen = rounds(log)
        self._stage.wait("another round is over", 60.0, lambda: rounds(log) > seen, pause_s=0.05)
        time.sleep(MIDDLE_S)
        network.cut("ward-2")
        self._stage.report("cut off ward-2", f"{MIDDLE_S} s into round {rounds(log) + 1}")
        end = time.monotonic() + CUT_S
        self._stage.wait(f"{CUT_S:.0f} s pass", CUT_S + 5, lambda: time.monotonic() > end)
        network.mend("ward-2")
        self._stage.report("joined ward-2 again", f"round {rounds(log) + 1}; the others went on")
        self._back(log, "ward-2")

    def _back(self, log: Path, name: str) -> None:
        """Wait until a client has joined the run again, and note the round."""
        joins = joined(log, name)
        self._stage.wait(f"{name} is back", READY_S, lambda: joined(log, name) > joins or not self._runs())
        self._stage.require(joined(log, name) > joins, f"{name} was not back before the run's end")
        self._returned[name] = rounds(log)

    def _kill(self, log: Path) -> None:
        container = self._stage.fleet.containers["ward-3"]
        container.kill()
        self._stage.report("killed every process of ward-3", f"in round {rounds(log) + 1}")
        began = time.monotonic()
        container.pause_s, container.again = 0.1, time.monotonic() + 0.1
        self._back(log, "ward-3")
        took, refusals = time.monotonic() - began, len(container.ends)
        self._stage.report("ward-3 came back by itself", f"{took:.0f} s, after {refusals} refusals by Flower")

    def _trained(self, log: Path) -> None:
        lines = [line for line in log.read_text(errors="replace").splitlines() if "evaluated" in line]
        self._stage.require(
            rounds(log) == ROUNDS and bool(lines), f"{log.name}: {rounds(log)} of {ROUNDS} rounds"
        )
        self._stage.report("trained", lines[-1].partition(":")[2].strip()[:100] or lines[-1])

    # ---- results

    def _compare(self) -> None:
        self._say("what came of it")
        stage = self._stage
        stage.server.kill()
        state = stage.server.seen("/state")
        with Store.open(str(state / "fedgc" / "fedgc.db")) as store:
            for run, link in (("calm", "session"), ("storm", "session"), ("shut", "messages")):
                self._judge(store, run, link)
        calm, storm = (checkpoint.load(state / "fedgc" / "runs" / run).model for run in ("calm", "storm"))
        apart = float(np.linalg.norm(calm - storm) / np.linalg.norm(calm))
        stage.report("the models of the first two runs", f"apart by {apart:.1e} of their size")
        stage.require(apart < SAME, f"the models differ by {apart:.1e}, needed below {SAME}")
        own(state)
        stage.server.start()
        stage.wait("the server is healthy again", READY_S, lambda: stage.healthy(stage.server, stage.proxy))

    def _judge(self, store: Store, run: str, link: str) -> None:
        outcomes = [each.row.outcome for each in store.rounds(run)]
        self._stage.require(store.run(run).state == "completed", f"run {run} is {store.run(run).state}")
        self._stage.require(set(outcomes) == {"synced"}, f"run {run}: outcomes {sorted(set(outcomes))}")
        self._stage.report(f"run {run}", f"{len(outcomes)} rounds, each sum exact")
        for client in store.clients():
            rows = store.client_history(run, client.client)
            counted = {number: row.counted for number, row in rows}
            summary = (
                f"{sum(row.finished for _, row in rows)} chunks finished, {sum(counted.values())} counted"
            )
            links = {row.link for _, row in rows if row.link}
            self._stage.report(f"  {client.name}", f"{summary}, over {' and '.join(sorted(links))}")
            self._stage.require(link in links, f"run {run}: {client.name} over {links}, needed {link}")
            since = self._returned.get(client.name, 0) if run == "storm" else 0
            late = sum(count for number, count in counted.items() if number > since)
            idle = (
                link == "session" and not late
            )  # over messages, all chunks of a slow client may also be others'
            self._stage.require(not idle, f"run {run}: nothing of {client.name} counted after round {since}")
            if since:
                self._stage.report(
                    f"    {client.name} after its return", f"{late} chunks counted since round {since}"
                )

    # ---- afterwards

    def _left_nothing(self, network: Network) -> None:
        spaces = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout
        Stage.require(network.prefix not in spaces, f"namespaces are left: {spaces}")
        held = self._images.run("containers", "-q")
        Stage.require(not held, f"containers are left: {held}")
        mounts = Path("/proc/mounts").read_text()
        Stage.require(str(self._folder) not in mounts, f"mounts are left below {self._folder}")
        self._say("every process, namespace, mount and container of it is gone")

    def _say(self, what: str) -> None:
        print(f"\n[{time.monotonic() - self._began:5.0f} s] {what}", flush=True)


def rounds(log: Path) -> int:
    """Return the last round in a run's log."""
    found = re.findall(
        r"round (\d+)[: ].*(?:synced|approximate|skipped|empty)", log.read_text(errors="replace")
    )
    return int(found[-1]) if found else 0


def joined(log: Path, name: str) -> int:
    """Return how often a client has joined a run."""
    return len(re.findall(rf"client {name} \([0-9a-f]+\) joins", log.read_text(errors="replace")))
