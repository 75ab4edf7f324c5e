"""`fedgc keys`: the keys of a deployment.

fedgc keys tls      the authority, and the certificate that clients check
fedgc keys client   a client's key: made, registered with the SuperLink, revoked
fedgc keys new, federation, check
                    a site's identity, and the descriptor that it agrees on with others
"""

from pathlib import Path
from typing import Annotated, Final

import typer
from click.core import ParameterSource

from fedgc.errors import Unusable

keys = typer.Typer(help="Make, show, renew and revoke keys.", no_args_is_help=True)

Folder = Annotated[
    Path, typer.Option("--folder", envvar="FEDGC_KEYRING", help="The folder of the deployment's keys.")
]
SIGNING: Final = ("path", "vault", "key_file")  # what `keys federation` takes to sign a descriptor
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
VaultPath = Annotated[
    Path | None, typer.Option("--vault", help="The site's vault; by default vault.db by the store.")
]
KeyFile = Annotated[
    Path | None,
    typer.Option(help="Key file of the vault; by default a passphrase, from FEDGC_PASSPHRASE or a prompt."),
]


@keys.command("tls")
def tls(
    names: Annotated[
        list[str] | None, typer.Argument(help="The names and addresses by which clients reach the server.")
    ] = None,
    folder: Folder = Path("keys"),
    days: Annotated[int, typer.Option(help="Validity of the certificate that clients check.")] = 397,
    renew: Annotated[bool, typer.Option("--renew", help="Replace the certificate by a new one.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make an authority and the server's certificates, or show them and their validity; or renew.

    Example: fedgc keys tls fl.example.org 192.0.2.7
    """
    from fedgc.cli.fleet_keys import certificates

    certificates(folder, tuple(names or ()), days, renew=renew, as_json=as_json)


@keys.command("client")
def client(
    name: Annotated[str, typer.Argument(help="Display name of the client.")],
    folder: Folder = Path("keys"),
    register: Annotated[
        bool, typer.Option("--register", help="Register the key with the SuperLink.")
    ] = False,
    revoke: Annotated[bool, typer.Option("--revoke", help="Revoke the key at the SuperLink.")] = False,
    superlink: Annotated[
        str, typer.Option(envvar="FEDGC_SUPERLINK", help="The SuperLink's name in Flower's configuration.")
    ] = "local",
    as_json: AsJson = False,
) -> None:
    """Make a client's key, or show it; register it with the SuperLink, or revoke it.

    Example: fedgc keys client ward-3 --register
    """
    from fedgc.cli.fleet_keys import client_key

    if register and revoke:
        raise Unusable("keys client: saw --register and --revoke, needed one of them")
    action = "register" if register else "revoke" if revoke else ""
    client_key(folder, name, superlink, action, as_json=as_json)


@keys.command("new")
def new(vault: VaultPath = None, key_file: KeyFile = None) -> None:
    """Make this site's identity in its vault and print its public key; print an existing one again.

    Example: fedgc keys new --vault /var/lib/fedgc/vault.db --key-file /etc/fedgc/vault.key
    """
    from fedgc.cli.federation import Opener, show_public

    show_public(Opener(vault, key_file))


@keys.command("federation")
def federation(  # noqa: PLR0913, PLR0917  one for each option
    context: typer.Context,
    path: Annotated[Path, typer.Argument(help="The descriptor's file.")],
    member: Annotated[
        list[str] | None, typer.Option(help="A site, as name=public key; repeated for each.")
    ] = None,
    threshold: Annotated[
        int | None, typer.Option(help="Sites that can unmask together; by default the least allowed.")
    ] = None,
    n_min: Annotated[int, typer.Option(help="Fewest sites in any sum.")] = 3,
    exchanges: Annotated[int, typer.Option(help="Exchanges per set-up of keys.")] = 32,
    colluders: Annotated[
        int | None,
        typer.Option(help="Large federations: sites that may collude; each site then masks with few others."),
    ] = None,
    lost: Annotated[
        int | None,
        typer.Option(help="With --colluders: sites lost in an exchange that succeeds; else a twentieth."),
    ] = None,
    clip: Annotated[float, typer.Option(help="Largest value of an update; beyond it, values are cut.")] = 1.0,
    bits: Annotated[int, typer.Option(help="Bits of a value.")] = 20,
    ring: Annotated[int, typer.Option(help="Bits of a sum: 32, 16 or 8; as many travel.")] = 32,
    largest_weight: Annotated[
        int, typer.Option(help="Largest weight of a site, in samples; more count as this many.")
    ] = 10_000,
    site_clip: Annotated[
        float | None, typer.Option(help="Privacy of sites: the largest norm of an update.")
    ] = None,
    noise: Annotated[
        float | None, typer.Option(help="Privacy: noise of the sum, as a multiple of that norm.")
    ] = None,
    releases: Annotated[int, typer.Option(help="Privacy: total number of exchanges.")] = 100,
    delta: Annotated[float, typer.Option(help="Privacy: the delta at which epsilon is stated.")] = 1e-6,
    task: Annotated[
        Path | None, typer.Option(help="The statement of the only task, which `fedgc task sign` writes.")
    ] = None,
    signatures: Annotated[
        int | None, typer.Option(help="With --task: members that have to sign it; by default all.")
    ] = None,
    vault: VaultPath = None,
    key_file: KeyFile = None,
) -> None:
    """Write the signed descriptor of a federation; without members, sign the one that another wrote.

    Example: fedgc keys federation consortium.fed --member a=5e1f... --member b=77d0... --member c=09ab...
    """
    from fedgc.cli.federation import Numbers, Opener, Pinned, sign, write

    opener = Opener(vault, key_file)
    if not member:
        _must_only_sign(context)
        sign(opener, path)
        return
    numbers = Numbers(clip, bits, ring, largest_weight)
    privacy = (noise, releases, delta)
    sparse = (colluders, lost)
    pinned = Pinned(
        tuple(member), threshold, n_min, exchanges, numbers, site_clip, privacy, sparse, (task, signatures)
    )
    write(opener, path, pinned)


def _must_only_sign(context: typer.Context) -> None:
    """Refuse options that a descriptor which is there already cannot follow."""
    for each in context.command.params:
        is_given = context.get_parameter_source(each.name or "") is ParameterSource.COMMANDLINE
        if is_given and each.name not in SIGNING:
            raise Unusable(
                f"keys federation: saw {each.opts[0]} without --member; needed the members of a new "
                "descriptor, or no such option to sign the one that is there"
            )


@keys.command("check")
def check(
    path: Annotated[Path, typer.Argument(help="The descriptor's file.")],
    as_json: AsJson = False,
) -> None:
    """Print what a descriptor guarantees, and what it does not.

    Example: fedgc keys check consortium.fed
    """
    from fedgc.cli.federation import explain

    explain(path, as_json=as_json)
