"""`fedgc keys`: the keys of a deployment.

    fedgc keys tls      the authority, and the certificate that devices check
    fedgc keys device   a device's key: made, registered with the SuperLink, revoked

May import: typer, errors; the rooms that do it, once a command is called.
"""

from pathlib import Path
from typing import Annotated

import typer

from fedgc.errors import Unusable

keys = typer.Typer(help="Make, show, renew and revoke keys.", no_args_is_help=True)

Folder = Annotated[
    Path, typer.Option("--folder", envvar="FEDGC_KEYRING", help="The folder of the deployment's keys.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@keys.command("tls")
def tls(
    names: Annotated[
        list[str] | None, typer.Argument(help="The names and addresses by which devices reach the server.")
    ] = None,
    folder: Folder = Path("keys"),
    days: Annotated[int, typer.Option(help="Life of the certificate that devices check.")] = 397,
    renew: Annotated[bool, typer.Option("--renew", help="Sign a new one in place of the old.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make an authority and the server's certificates, or show what there is and until when; or renew.

    Example: fedgc keys tls fl.example.org 192.0.2.7
    """
    from fedgc.cli.fleet_keys import certificates

    certificates(folder, tuple(names or ()), days, renew=renew, as_json=as_json)


@keys.command("device")
def device(
    name: Annotated[str, typer.Argument(help="What people call the device.")],
    folder: Folder = Path("keys"),
    register: Annotated[bool, typer.Option("--register", help="Have the SuperLink let it in.")] = False,
    revoke: Annotated[
        bool, typer.Option("--revoke", help="Have the SuperLink refuse it from now on.")
    ] = False,
    superlink: Annotated[
        str, typer.Option(envvar="FEDGC_SUPERLINK", help="The SuperLink's name in Flower's configuration.")
    ] = "local",
    as_json: AsJson = False,
) -> None:
    """Make a device's key, or show it; register it with the SuperLink, or revoke it.

    Example: fedgc keys device ward-3 --register
    """
    from fedgc.cli.fleet_keys import device_key

    if register and revoke:
        raise Unusable("keys device: saw --register and --revoke, needed one of them")
    action = "register" if register else "revoke" if revoke else ""
    device_key(folder, name, superlink, action, as_json=as_json)
