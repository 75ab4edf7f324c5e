"""The identity of a client: an Ed25519 key, made on its first start and kept in a file with mode 600.

Flower's node id changes whenever a SuperNode restarts; the key does not, so a client keeps its history and
its chunks. The identity is a digest of the public key, and the key signs each hello.

The file is locked while it is in use: two SuperNodes of one host without a path of their own take different
files, each the first free default.
"""

import fcntl
import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedgc.errors import EdgeFailed, system_errors
from fedgc.files import whole
from fedgc.processes.state_folder import state_folder
from fedgc.secagg import keys

DIGITS: Final = 16  # hexadecimal digits of a client's identity
PLACES: Final = 64  # default key files of one user on one host


@dataclass(frozen=True, slots=True)
class Identity(keys.Identity):
    """A client's key, and the file that holds it."""

    path: Path | None = None

    @property
    def client(self) -> str:
        """The client's identity."""
        return client_of(self.public)


def client_of(public: bytes) -> str:
    """Return the identity of a public key.

    >>> client_of(bytes(32))
    '66687aadf862bd77'
    """
    return hashlib.sha256(public).hexdigest()[:DIGITS]


def statement(version: int, run: str, credential: bytes, nonce: bytes, server: bytes) -> bytes:
    """Return the bytes that a hello signs: version, run, credential, nonce and the server's fingerprint."""
    parts = (b"fedgc hello", str(version).encode(), run.encode(), credential, nonce, server)
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def check(public: bytes, signature: bytes, signed: bytes) -> str:
    """Return the identity of the key that signed, or raise NotAdmitted."""
    keys.verify(public, signature, signed, "hello")
    return client_of(public)


@contextmanager
def hold(
    path: Path, used: str = "another client uses it; give each its own `identity`"
) -> Iterator[Identity]:
    """Lock the key file `path`, making the key if there is none; release it at the end."""
    lock = _lock(path)
    if lock is None:
        raise EdgeFailed(f"key {path}: {used}")
    try:
        yield open_key(path, makes=True)
    finally:
        os.close(lock)


def open_key(path: Path, *, makes: bool = False) -> Identity:
    """Read the key file `path`, or make it; raise EdgeFailed if that fails, or if others can read it."""
    if makes and not path.exists():
        with system_errors(f"key {path}", "a place in which to make it"):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            return Identity(_make(path), path)
    return Identity(_read(path), path)


@contextmanager
def hold_default(environment: Mapping[str, str]) -> Iterator[Identity]:
    """Hold the first free key file in the user's state directory."""
    folder = state_folder(environment)
    for path in (folder / f"client-{place}.key" for place in range(1, PLACES + 1)):
        lock = _lock(path)
        if lock is not None:
            try:
                yield open_key(path, makes=True)
            finally:
                os.close(lock)
            return
    raise EdgeFailed(f"keys in {folder}: saw {PLACES} in use, needed a free one")


def _lock(path: Path) -> int | None:
    with system_errors(f"key {path}", "a folder in which to lock it"):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_mode & 0o077:
            raise EdgeFailed(f"key {path}: others can read it; needed mode 600")
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except OSError as error:
        raise EdgeFailed(f"key {path}: {error.strerror}, needed a file to read") from error
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:  # a TypeError: it has a passphrase
        raise EdgeFailed(f"key {path}: needed an Ed25519 private key in PEM ({error})") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise EdgeFailed(f"key {path}: saw {type(key).__name__}, needed an Ed25519 private key")
    return key.private_bytes_raw()


def _make(path: Path) -> bytes:
    key = Ed25519PrivateKey.generate()
    text = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    with whole(path, synced=True) as part:
        part.write_bytes(text)
    return key.private_bytes_raw()
