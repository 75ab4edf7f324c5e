"""A deployment's keys on disk: the authority, the server's certificates, each client's key.

    authority/   ca.pem ca.key                       the key signs, and is needed nowhere else
    proxy/       ca.pem server.pem server.key        files for the proxy
    server/      ca.pem server.pem server.key        files for the SuperLink
    clients/NAME/ca.pem client.key client.pub node   files for one client; its number, once registered

A client's key is one of Flower's (NIST P-384, in OpenSSH's format): Flower signs every request with it. It
may be made anywhere; the server needs only `client.pub`. Every file is written atomically; only their owner
can read secret ones.
"""

import base64
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedgc.deploy.authority import INSIDE, Described, describe, issue, make_authority, signed_by
from fedgc.errors import EdgeFailed, Unusable, system_errors
from fedgc.files import whole
from fedgc.links.session.certificate import Certificate

CLIENT_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")


@dataclass(frozen=True, slots=True)
class CertificateStatus:
    """The certificates of a deployment on disk."""

    authority: Described
    proxy: Described


@dataclass(frozen=True, slots=True)
class ClientKey:
    """The files of one client."""

    name: str
    folder: Path

    @property
    def private(self) -> Path:
        """Its private key."""
        return self.folder / "client.key"

    @property
    def public(self) -> Path:
        """Its public key."""
        return self.folder / "client.pub"

    @property
    def node(self) -> int | None:
        """Flower's number for it; None if it is not registered."""
        file = self.folder / "node"
        if not file.exists():
            return None
        text = read(file).decode(errors="replace").strip()
        if not text.isdigit():
            raise EdgeFailed(f"{file}: saw {text!r}, needed the number that Flower gave this client")
        return int(text)

    def registered(self, node: int) -> None:
        """Save the number."""
        write(self.folder / "node", f"{node}\n".encode(), secret=False)
        remove(self.folder / "revoked")

    def revoked(self) -> None:
        """Delete the number, and note the key as revoked."""
        write(self.folder / "revoked", f"{self.print()}\n".encode(), secret=False)
        remove(self.folder / "node")

    @property
    def is_revoked(self) -> bool:
        """Whether this key was revoked from here, and no other one is in its place."""
        file = self.folder / "revoked"
        return file.exists() and read(file).decode(errors="replace").strip() == self.print()

    def print(self) -> str:
        """Return the digest of this key for comparison by people, as in ssh-keygen -l."""
        try:
            key = serialization.load_ssh_public_key(read(self.public))
        except (ValueError, UnsupportedAlgorithm) as error:
            raise EdgeFailed(
                f"{self.public}: needed an elliptic curve's public key as OpenSSH writes it"
            ) from error
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise EdgeFailed(
                f"{self.public}: saw {type(key).__name__}, needed an elliptic curve's public key"
            )
        digest = serialization.ssh_key_fingerprint(key, hashes.SHA256())
        return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


class Keyring:
    """The folder of a deployment's keys."""

    def __init__(self, folder: Path) -> None:
        self.folder: Final = folder

    # ---- the server's certificates

    @property
    def has_authority(self) -> bool:
        """Whether the authority exists."""
        return (self.folder / "authority" / "ca.pem").exists()

    @property
    def has_certificate(self) -> bool:
        """Whether the proxy's certificate exists."""
        return (self.folder / "proxy" / "server.pem").exists()

    def status(self) -> CertificateStatus:
        """Return the names and the validity of the certificates."""
        authority = read(self.folder / "authority" / "ca.pem")
        proxy = read(self.folder / "proxy" / "server.pem")
        if not signed_by(proxy, authority):
            raise EdgeFailed(
                f"{self.folder / 'proxy' / 'server.pem'}: not signed by authority/ca.pem beside it"
            )
        return CertificateStatus(describe(authority), describe(proxy))

    def begin(self, names: tuple[str, ...], now: float, days: int) -> None:
        """Make the authority, and the certificates of proxy and SuperLink."""
        authority = make_authority(now)
        proxy, server = issue(authority, names, now, days), issue(authority, INSIDE, now)
        write(self.folder / "authority" / "ca.key", authority.private, secret=True)
        write(self.folder / "authority" / "ca.pem", authority.public, secret=False)
        self._place("proxy", proxy, authority.public)
        self._place("server", server, authority.public)
        (self.folder / "clients").mkdir(exist_ok=True)  # shared with the server before the first client

    def renew(self, names: tuple[str, ...], now: float, days: int) -> None:
        """Sign a new certificate for the proxy, and one for the SuperLink if it has none.

        Clients need no change.
        """
        folder = self.folder / "authority"
        authority = Certificate(read(folder / "ca.pem"), read(folder / "ca.key"))
        self._place("proxy", issue(authority, names, now, days), authority.public)
        if not (self.folder / "server" / "server.pem").exists():
            self._place("server", issue(authority, INSIDE, now), authority.public)

    def _place(self, part: str, certificate: Certificate, authority: bytes) -> None:
        write(self.folder / part / "ca.pem", authority, secret=False)
        write(self.folder / part / "server.key", certificate.private, secret=True)
        write(self.folder / part / "server.pem", certificate.public, secret=False)

    # ---- clients

    def client(self, name: str) -> ClientKey:
        """Return a client's files, with or without a key."""
        if not CLIENT_NAME.fullmatch(name):
            raise Unusable(f"client name: saw {name!r}, needed up to 63 letters, digits, - and _")
        return ClientKey(name, self.folder / "clients" / name)

    def make_client(self, name: str) -> ClientKey:
        """Return a client's key; make one if neither half exists."""
        client = self.client(name)
        if client.public.exists():
            return client
        if client.private.exists():
            raise EdgeFailed(f"{client.private}: its public half {client.public.name} is missing beside it")
        key = ec.generate_private_key(ec.SECP384R1())
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
        )
        public = key.public_key().public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        )
        write(client.private, private, secret=True)
        write(client.public, public + b"\n", secret=False)
        if self.has_authority:
            write(client.folder / "ca.pem", read(self.folder / "authority" / "ca.pem"), secret=False)
        return client


def read(path: Path) -> bytes:
    """Return the content of a file."""
    try:
        return path.read_bytes()
    except PermissionError as error:
        raise EdgeFailed(
            f"{path}: user {os.getuid()} may not read it; needed a file of that user's"
        ) from error
    except OSError as error:
        raise EdgeFailed(f"{path}: {error.strerror}, needed a file to read") from error


def write(path: Path, content: bytes, *, secret: bool) -> None:
    """Write a file atomically; a secret one is readable only by its owner."""
    with system_errors(f"{path}", "a file to write"):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700 if secret else 0o755)
        with whole(path, synced=True) as part:
            part.write_bytes(content)
            if not secret:
                part.chmod(0o644)


def remove(path: Path) -> None:
    """Remove a file, if it is there."""
    with system_errors(f"{path}", "a file to remove"):
        path.unlink(missing_ok=True)
