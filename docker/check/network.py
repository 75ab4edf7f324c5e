"""Hosts on one machine: network namespaces, joined by a bridge, each with a link of a given speed.

    outside  10.77.0.0/24   the proxy (.1) and the clients; every link has a token bucket both ways (tc tbf)
    inside   10.78.0.0/24   the proxy (.1) and the server (.2); clients reach it only through the proxy

A host is cut off by removing its link from the bridge, so that it does not notice: packets vanish, as behind
a NAT that has forgotten it. Names contain this process's id; `close` removes all of them.
"""

import os
import subprocess
from dataclasses import dataclass, field

OUTSIDE, INSIDE = "10.77.0", "10.78.0"
LOOPBACK = "127.0.0.1"
PROXY, SERVER = f"{OUTSIDE}.1", f"{INSIDE}.2"


@dataclass
class Network:
    """The hosts; use it as a context."""

    prefix: str = field(default_factory=lambda: f"fgc{os.getpid()}")
    hosts: dict[str, str] = field(default_factory=dict)  # host -> address outside

    def __enter__(self) -> "Network":
        try:
            self._add("switch")
            self._ip("-n", self.space("switch"), "link", "add", "bridge", "type", "bridge")
            self._ip("-n", self.space("switch"), "link", "set", "bridge", "up")
            self._add("server")
            self.join("proxy", PROXY, rate_mbit=1000)
            self._line("proxy", "inside", f"{INSIDE}.1", "server", "inside", SERVER)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def space(self, host: str) -> str:
        """Return the name of a host's namespace."""
        return f"{self.prefix}-{host}"

    def join(self, host: str, address: str, rate_mbit: float) -> None:
        """Add a host with a link of this speed to the bridge."""
        self._add(host)
        self._line(host, "outside", address, "switch", f"to-{host}"[:15], None)
        self._ip("-n", self.space("switch"), "link", "set", f"to-{host}"[:15], "master", "bridge")
        bits = max(1, round(rate_mbit * 1e6))
        for space, client in ((host, "outside"), ("switch", f"to-{host}"[:15])):
            bucket = ["root", "tbf", "rate", f"{bits}bit", "burst", "64kb", "latency", "400ms"]
            self._run("tc", "-n", self.space(space), "qdisc", "add", "dev", client, *bucket)
        self.hosts[host] = address

    def cut(self, host: str) -> None:
        """Drop all packets of this host from now on."""
        self._ip("-n", self.space("switch"), "link", "set", f"to-{host}"[:15], "nomaster")

    def mend(self, host: str) -> None:
        """Connect it again."""
        self._ip("-n", self.space("switch"), "link", "set", f"to-{host}"[:15], "master", "bridge")

    def sent_bytes(self, host: str) -> int:
        """Return the bytes that this host has sent so far."""
        output = self._ip("-n", self.space(host), "-s", "-o", "link", "show", "outside")
        return int(output.split("TX:")[1].split("\\")[1].split()[0])

    def close(self) -> None:
        """Remove every namespace of this process."""
        output = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout
        for line in output.splitlines():
            name = line.split()[0]
            if name.startswith(f"{self.prefix}-"):
                subprocess.run(["ip", "netns", "del", name], check=False)

    def _add(self, host: str) -> None:
        self._ip("netns", "add", self.space(host))
        self._ip("-n", self.space(host), "link", "set", "lo", "up")

    def _line(
        self, host: str, client: str, address: str, peer: str, peer_client: str, peer_address: str | None
    ) -> None:
        ends = ["type", "veth", "peer", "name", peer_client, "netns", self.space(peer)]
        self._ip("link", "add", client, "netns", self.space(host), *ends)
        for space, name, given in ((host, client, address), (peer, peer_client, peer_address)):
            if given is not None:
                self._ip("-n", self.space(space), "address", "add", f"{given}/24", "dev", name)
            self._ip("-n", self.space(space), "link", "set", name, "up")

    def _ip(self, *words: str) -> str:
        return self._run("ip", *words)

    @staticmethod
    def _run(*words: str) -> str:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")
        return done.stdout
