"""Sites on this machine: a vault with a key file for each, and the descriptor that they all pin.

For the demo, benchmarks and tests; a real site makes its own vault where it is used.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedgc.deploy.app_folder import Setting
from fedgc.deploy.local_federation import Node
from fedgc.files import opener
from fedgc.flower.app_guard import DESCRIPTOR
from fedgc.flower.masked_client import KEY, VAULT
from fedgc.secagg import Descriptor, Federation, Identity, Quantizer
from fedgc.secagg.federation import least_threshold, member_list
from fedgc.store.descriptor import write_descriptor
from fedgc.store.vault import Vault

_SECRET_BYTES = 32


@dataclass(frozen=True, slots=True)
class Consortium:
    """The nodes to start, and the descriptor's file, which the server needs too."""

    nodes: tuple[Node, ...]
    descriptor: Path

    def settings(self) -> dict[str, Setting]:
        """Return the settings of a masked run with this consortium."""
        return {
            "secrecy": "masked",
            "federation": str(self.descriptor),
            "min-clients": len(self.nodes),
        }


def make_consortium(
    folder: Path,
    nodes: Mapping[str, Mapping[str, Setting]],
    quantizer: Quantizer,
    *,
    exchanges: int = 32,
) -> Consortium:
    """Make sites with these names and node configs; reuse existing files in the folder."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    identities = {name: _identity(folder, name) for name in nodes}
    members = member_list([(name, each.public) for name, each in identities.items()])
    pinned = Federation(members, least_threshold(len(members)), 3, exchanges, quantizer)
    descriptor = Descriptor(pinned)
    for identity in identities.values():
        descriptor = descriptor.endorse(identity)
    path = folder / "consortium.fed"
    write_descriptor(path, descriptor)
    return Consortium(tuple(_node(folder, path, name, config) for name, config in nodes.items()), path)


def _identity(folder: Path, name: str) -> Identity:
    key = folder / f"{name}.key"
    if not key.exists():
        with open(key, "xb", opener=opener) as file:
            file.write(os.urandom(_SECRET_BYTES))
    with Vault.open(folder / f"{name}.db", key.read_bytes()) as vault:
        return vault.identity()


def _node(folder: Path, descriptor: Path, name: str, config: Mapping[str, Setting]) -> Node:
    paths: Sequence[tuple[str, Path]] = (
        (DESCRIPTOR, descriptor), (VAULT, folder / f"{name}.db"), (KEY, folder / f"{name}.key"),
    )  # fmt: skip
    return Node(name, {**config, **{what: str(path) for what, path in paths}})
