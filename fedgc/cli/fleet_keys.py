"""`fedgc keys tls` and `client`: a deployment's certificates, client keys and their registration."""

import json
import os
import sys
import time
from pathlib import Path

from fedgc.deploy.key_files import ClientKey, Keyring
from fedgc.deploy.registration import register, revoke
from fedgc.deploy.superlink import connection, server_time
from fedgc.errors import EdgeFailed, Unusable


def certificates(folder: Path, names: tuple[str, ...], days: int, *, renew: bool, as_json: bool) -> None:
    """Make, renew or show the certificates."""
    ring = Keyring(folder)
    _make_or_renew(ring, names, days, renew=renew)
    _show(ring, as_json=as_json)


def client_key(folder: Path, name: str, superlink: str, action: str, *, as_json: bool) -> None:
    """Make or show a client's key; `action` may be to register or to revoke it."""
    ring = Keyring(folder)
    key = ring.client(name) if action == "revoke" else ring.make_client(name)
    if action:
        _tell(superlink, key, action)
    about = {"name": name, "folder": str(key.folder), "key": key.print(), "node": key.node}
    status = "not registered" if key.node is None else f"registered as {key.node}"
    status = "revoked" if key.node is None and key.is_revoked else status
    line = f"client {name}: {about['key']}, {status}, in {key.folder}"
    sys.stdout.write(f"{json.dumps(about, indent=1) if as_json else line}\n")


def _tell(superlink: str, key: ClientKey, action: str) -> None:
    try:
        (register if action == "register" else revoke)(key, superlink)
    except EdgeFailed:
        server_time(
            connection(superlink, os.environ)
        )  # its error is clearer than Flower's for a network failure
        raise


def _make_or_renew(ring: Keyring, names: tuple[str, ...], days: int, *, renew: bool) -> None:
    now = time.time()
    if not ring.has_authority and ring.has_certificate:  # another authority would shut all clients out
        raise Unusable(
            f"keys tls: saw certificates and no {ring.folder / 'authority' / 'ca.pem'}, needed the "
            "authority that has signed them"
        )
    if not ring.has_authority:
        if not names:
            raise Unusable(f"keys tls: no authority in {ring.folder} yet; needed the names that clients dial")
        ring.begin(names, now, days)
        return
    if names and (renew or not ring.has_certificate):
        ring.renew(names, now, days)
        return
    if not ring.has_certificate:
        raise Unusable(f"keys tls: no certificate in {ring.folder} yet; needed the names that clients dial")
    had = ring.status().proxy.names
    if renew:
        ring.renew(had, now, days)
    elif names and set(names) != set(had):
        raise Unusable(f"keys tls: the certificate is for {', '.join(had)}; --renew replaces it")


def _show(ring: Keyring, *, as_json: bool) -> None:
    status, now = ring.status(), time.time()
    about = {
        "folder": str(ring.folder),
        "authority_ends": status.authority.ends.isoformat(),
        "names": list(status.proxy.names),
        "ends": status.proxy.ends.isoformat(),
        "days_left": status.proxy.days_left(now),
    }
    if as_json:
        sys.stdout.write(json.dumps(about, indent=1) + "\n")
    else:
        sys.stdout.write(
            f"authority    until {status.authority.ends:%Y-%m-%d}, {status.authority.days_left(now)} days\n"
            f"certificate  until {status.proxy.ends:%Y-%m-%d}, {status.proxy.days_left(now)} days, "
            f"for {', '.join(status.proxy.names)}\n"
        )
    if status.proxy.days_left(now) < 0:
        raise EdgeFailed(f"certificate: it ended on {status.proxy.ends:%Y-%m-%d}; --renew signs a new one")
    if status.proxy.days_until(now) > 0:
        raise EdgeFailed(
            f"certificate: it begins on {status.proxy.begins:%Y-%m-%d}, or this machine's clock is wrong; "
            "--renew signs a new one"
        )
