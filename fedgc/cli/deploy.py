"""`fedgc deploy`: the programs and health checks of containers. Options come from the environment."""

import os
import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fedgc.deploy.processes import Started

deploy = typer.Typer(help="Start a server or a client of a fleet, in a container.", no_args_is_help=True)


class Role(StrEnum):
    """The role whose health is checked."""

    server = "server"
    client = "client"


Keys = Annotated[Path, typer.Option(envvar="FEDGC_KEYS", help="The folder with its keys.")]
State = Annotated[Path, typer.Option(envvar="FEDGC_STATE", help="The folder for durable state.")]
Cache = Annotated[Path, typer.Option(envvar="FEDGC_CACHE", help="The folder for finished chunks.")]
Insecure = Annotated[bool, typer.Option("--insecure", help="No encryption; only on loopback.")]


@deploy.command("server")
def server(
    advertise: Annotated[str, typer.Option(envvar="FEDGC_ADVERTISE", help="The address clients dial.")] = "",
    host: Annotated[str, typer.Option(envvar="FEDGC_HOST", help="Where to listen.")] = "127.0.0.1",
    keys: Keys = Path("/keys"),
    state: State = Path("/state"),
    insecure: Insecure = False,
) -> None:
    """Check what a server needs, then become its SuperLink.

    Example: fedgc deploy server --advertise fl.example.org:443
    """
    from fedgc.deploy.processes import ServerPlace, hold
    from fedgc.deploy.superlink import flower_home

    place = ServerPlace(advertise, keys, state, host, insecure)
    sys.stderr.write(f"fedgc server: {place.check(time.time())}\n")
    hold(place.state)
    place.check_ports()
    path = place.configure(flower_home(os.environ))
    sys.stderr.write(f"fedgc server: the connection `local` is in {path}\n")
    _become(place.program(), state)


@deploy.command("client")
def client(  # noqa: PLR0913, PLR0917  one for each option
    server: Annotated[str, typer.Option(envvar="FEDGC_SERVER", help="The address to dial.")] = "",
    name: Annotated[str, typer.Option(envvar="FEDGC_NAME", help="Display name of this client.")] = "",
    keys: Keys = Path("/keys"),
    state: State = Path("/state"),
    cache: Cache = Path("/cache"),
    node_config: Annotated[
        str, typer.Option(envvar="FEDGC_NODE_CONFIG", help="More of Flower's node config, as key=value.")
    ] = "",
    grace_s: Annotated[
        float, typer.Option(envvar="FEDGC_LEAVE_GRACE_S", help="Seconds to hand in work when it is stopped.")
    ] = 20.0,
    policy: Annotated[
        Path | None, typer.Option(envvar="FEDGC_POLICY", help="The rules of the client's site, site.toml.")
    ] = None,
    insecure: Insecure = False,
) -> None:
    """Check what a client needs, then start its SuperNode.

    Example: fedgc deploy client --server fl.example.org:443 --name ward-3
    """
    from fedgc.deploy.processes import ClientPlace, hold

    place = ClientPlace(server, name, keys, state, cache, node_config, insecure, grace_s, policy)
    sys.stderr.write(f"fedgc client: {place.check(time.time)}\n")
    hold(place.state)
    _become(place.program(), state)


@deploy.command("health")
def health(
    role: Annotated[Role, typer.Argument(help="server or client.")],
    keys: Keys = Path("/keys"),
    state: State = Path("/state"),
    cache: Cache = Path("/cache"),
    insecure: Insecure = False,
    live: Annotated[
        bool, typer.Option("--live", help="Only what a restart mends: neither disk space nor the SuperLink.")
    ] = False,
) -> None:
    """Check the health of a server or a client on this machine; exit code 1 if it is unhealthy.

    Example: fedgc deploy health client
    """
    from fedgc.deploy.processes import client_health, must_have_space, must_reach, server_health

    if role is Role.server:
        result = server_health(keys, state, insecure=insecure)
    else:
        result = client_health(state, time.time())
    if role is Role.client and not live:
        must_reach(state, time.time())
    if not live:
        must_have_space(state if role is Role.server else cache)
    sys.stdout.write(f"{result}\n")


def _become(program: "Started", state: Path) -> None:
    from fedgc.deploy.processes import save_process

    save_process(state, os.getpid(), program.address)
    beside = str(Path(sys.executable).parent)
    paths = {"PATH": os.pathsep.join([beside, os.environ.get("PATH", "")])}
    os.execvpe(program.words[0], program.words, {**os.environ, **paths, **program.environment})  # noqa: S606  Flower's own program
