"""Registration of client keys with a SuperLink, through Flower's own program.

A SuperLink with node authentication serves only registered keys. Registration uses its control API, which the
proxy hides from clients; so this runs beside the SuperLink, or where `flwr` may reach it.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from fedgc.deploy.key_files import ClientKey
from fedgc.deploy.superlink import answer_in
from fedgc.errors import EdgeFailed, Unusable, system_errors

PATIENCE_S: Final = 60.0
_IN_USE: Final = "Public key already in use"  # Flower's words for a key that it knows, or has known


def register(client: ClientKey, superlink: str) -> int:
    """Register this client's key with the SuperLink; return Flower's number for it."""
    if client.node is not None:
        raise Unusable(f"client {client.name}: registered as {client.node}; --revoke comes first")
    client.print()  # raises for a file that holds no key
    try:
        answer = _flwr("supernode", "register", str(client.public), superlink, "--name", client.name)
    except EdgeFailed as error:
        if _IN_USE in str(error):
            raise EdgeFailed(_needs_new_key(client)) from error
        raise
    node = int(answer.get("node-id") or 0)
    if not node:
        raise EdgeFailed(f"client {client.name}: flwr gave no number for it: {answer}")
    client.registered(node)
    return node


def _needs_new_key(client: ClientKey) -> str:
    new = (
        f"a new key, as a revoked one is never accepted again: move {client.public.name} and "
        f"{client.private.name} out of {client.folder} and give this command again, or put the "
        f"{client.public.name} of a new key of the client there first"
    )
    if client.is_revoked:
        return f"client {client.name}: saw a key that was revoked, needed {new}"
    return (
        f"client {client.name}: saw a key that the SuperLink knows ({_IN_USE}), needed a file "
        f"{client.folder / 'node'} with its number if it is registered (`flwr supernode list`), else {new}"
    )


def revoke(client: ClientKey, superlink: str) -> int:
    """Revoke this client's key at the SuperLink; return the number that it had."""
    node = client.node
    if node is None:
        raise Unusable(
            f"client {client.name}: saw no file {client.folder / 'node'}, needed Flower's number for its "
            "key; if the key was registered, `flwr supernode list` shows the number, and "
            "`flwr supernode unregister NUMBER` revokes the key"
        )
    _flwr("supernode", "unregister", str(node), superlink)
    client.revoked()
    return node


def _flwr(*words: str) -> dict[str, Any]:
    program = Path(sys.executable).with_name("flwr")
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    with system_errors(f"{program} {words[0]} {words[1]}", kinds=(OSError, subprocess.TimeoutExpired)):
        done = subprocess.run(  # noqa: S603  Flower's own program
            [str(program), *words, "--format", "json"],
            env={**os.environ, **quiet},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
    return answer_in(done.stdout, f"flwr {words[0]} {words[1]}", done.stderr)
