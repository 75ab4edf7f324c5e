"""Two sites, each with a fleet of its own: server, proxy and gateway on one host, and a client on another."""

import shutil

from fleet import Container, own
from network import LOOPBACK
from stage import PORT, READY_S, Stage

from fedgc.deploy.key_files import Keyring

SITES = {"north": "10.77.0.31", "south": "10.77.0.41"}  # address of each; that of its client is one more
RATE_MBIT = 50.0


def opened(stage: Stage) -> list[Container]:
    """Start two sites and return their gateways, which the consortium knows."""
    gateways = [_site(stage, name, address) for name, address in SITES.items()]
    stage.wait("both gateways are healthy", READY_S, lambda: stage.healthy(*gateways))
    return gateways


def _site(stage: Stage, name: str, address: str) -> Container:
    ring, ward = Keyring(stage.folder / "sites" / name), f"{name}-1"
    stage.fedgc("keys", "tls", address, "127.0.0.1", "--folder", str(ring.folder))
    stage.fedgc("keys", "client", ward, "--folder", str(ring.folder))
    stage.fedgc("keys", "client", name, "--folder", str(stage.ring.folder))
    own(stage.ring.folder / "clients" / name)  # the server that registers it runs already
    stage.register(name)
    shutil.copytree(stage.ring.folder / "clients" / name, ring.folder / "gateway")
    own(ring.folder / "gateway")
    prefix, _, last = address.rpartition(".")
    stage.network.join(name, address, RATE_MBIT)
    stage.network.join(ward, f"{prefix}.{int(last) + 1}", RATE_MBIT)
    dialed = f"{address}:{PORT}"
    server = stage.serve(f"{name}-server", "server", ring.folder, at=name, FEDGC_ADVERTISE=dialed)
    proxy = stage.serve(f"{name}-proxy", "proxy", ring.folder, at=name, FEDGC_INSIDE=LOOPBACK)
    gateway = stage.gateway(name, ring.folder)
    for each in (server, proxy):
        each.start()
    stage.wait(f"server and proxy of {name} are healthy", READY_S, lambda: stage.healthy(server, proxy))
    stage.register(ward, server)
    stage.client(ward, dialed, ring.folder).start()
    gateway.start()
    return gateway
