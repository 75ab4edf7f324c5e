"""The vault: the secret, durable state of a site.

One SQLite file, readable only by its owner, holds the identity and, for each federation, the records of the
masked exchange (`fedgc.secagg.state`). Every value is sealed with AES-256-GCM under a random key, which is
sealed under a key that scrypt derives from a passphrase or key file. The name and scope of a record are
authenticated, so that records cannot be swapped.

`write` returns when the change is durable: one synced transaction, with the write-ahead log moved into the
file and truncated. Erased records are overwritten with zeros (`secure_delete`). Old blocks that a disk keeps
by itself (flash, snapshots, copies) are sealed, but under a key that still exists.

One process opens a vault at a time: two that continue from one state would mask two updates with the same
keys, and the difference of the updates would be revealed. For the same reason a vault must never be restored
from a copy.
"""

import fcntl
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Self

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt
from sqlalchemy import URL, Connection, LargeBinary, delete, event, select
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from fedgc.errors import EdgeFailed, Unusable, system_errors
from fedgc.files import make_file
from fedgc.secagg import Changes, Identity
from fedgc.store.engine import Database, use_wal

Entropy = Callable[[int], bytes]

PASSPHRASE_IN: Final = "FEDGC_PASSPHRASE"  # noqa: S105  the variable that may hold one
WAIT_S: Final = 5.0
SHORTEST_SECRET: Final = 8
DAMAGED: Final = (
    "never restore a copy, which may mask an update twice: the site needs a new vault and descriptor"
)
_COST: Final = 2**15  # of scrypt: 32 MB and about a tenth of a second for each guess
_SALT_BYTES: Final = 16
_NONCE_BYTES: Final = 12
_KEY_BYTES: Final = 32
_LOCKED: Final = ("lock", "salt"), ("lock", "key")  # the two values that open the rest
_IDENTITY: Final = ("identity", "secret")


class _Table(DeclarativeBase):
    type_annotation_map = {bytes: LargeBinary}  # noqa: RUF012  as SQLAlchemy asks for it


class _Entry(_Table):
    """A sealed value. The two of the lock are not sealed, or sealed under the passphrase."""

    __tablename__ = "vault"
    __table_args__ = {"sqlite_with_rowid": False}  # noqa: RUF012  as SQLAlchemy asks for it
    scope: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    value: Mapped[bytes]


class Vault:
    """An open vault."""

    def __init__(self, database: Database, key: bytes, lock: int, entropy: Entropy) -> None:
        self._database = database
        self._key = AESGCM(key)
        self._lock = lock
        self._entropy = entropy

    @classmethod
    def open(cls, path: Path, secret: bytes, entropy: Entropy = os.urandom) -> Self:
        """Open the vault with its passphrase or the content of its key file; create it if it is missing."""
        if len(secret) < SHORTEST_SECRET:
            raise Unusable(f"vault {path}: saw a secret of {len(secret)} bytes, needed {SHORTEST_SECRET}")
        lock = _take(path)
        url = URL.create("sqlite", database=str(path))
        database = Database(url, WAIT_S, kind="vault", damaged=DAMAGED)
        event.listen(database.engine, "connect", _on_connect)
        try:
            use_wal(database, WAIT_S)
            return cls(database, _unlock(database, path, secret, entropy), lock, entropy)
        except BaseException:
            database.close()
            os.close(lock)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; another process may open it then."""
        self._database.close()
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1

    def identity(self) -> Identity:
        """Return the site's identity; make it the first time."""
        with self._database.writing() as connection:
            kept = _get(connection, *_IDENTITY)
            if kept is not None:
                return Identity(self._unsealed(*_IDENTITY, kept))
            secret = self._entropy(_KEY_BYTES)
            _put(connection, *_IDENTITY, self._sealed(*_IDENTITY, secret))
        self._settle()
        return Identity(secret)

    def records(self, fid: bytes) -> dict[str, bytes]:
        """Return all records of a federation."""
        scope = fid.hex()
        with self._database.reading() as connection:
            rows = connection.execute(select(_Entry.name, _Entry.value).where(_Entry.scope == scope)).all()
        return {name: self._unsealed(scope, name, value) for name, value in rows}

    def write(self, fid: bytes, record: bytes) -> None:
        """Apply the changes of a `Persist` durably."""
        scope, changes = fid.hex(), Changes.unpack(record)
        with self._database.writing() as connection:
            for name in changes.erases:
                connection.execute(delete(_Entry).where(_Entry.scope == scope, _Entry.name == name))
            for name, value in changes.puts:
                _put(connection, scope, name, self._sealed(scope, name, value))
        self._settle()

    def _settle(self) -> None:
        """Move the log into the file and truncate it: erased values are in neither."""
        with self._database.apart() as connection:
            busy = connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").scalar_one()
        if busy:
            raise EdgeFailed(f"vault {self._database.name}: saw a reader in it, needed it alone")

    def _sealed(self, scope: str, name: str, value: bytes) -> bytes:
        nonce = self._entropy(_NONCE_BYTES)
        return nonce + self._key.encrypt(nonce, value, _place(scope, name))

    def _unsealed(self, scope: str, name: str, value: bytes) -> bytes:
        try:
            return self._key.decrypt(value[:_NONCE_BYTES], value[_NONCE_BYTES:], _place(scope, name))
        except (InvalidTag, ValueError) as error:
            raise EdgeFailed(
                f"vault {self._database.name}: record {name} was changed from outside; needed it as written"
            ) from error


def key_file(path: Path) -> bytes:
    """Return the content of a key file that only its owner can read."""
    with system_errors(f"key file {path}", "one to read", Unusable):
        if path.stat().st_mode & 0o077:
            raise Unusable(f"key file {path}: others can read it; needed mode 600")
        return path.read_bytes()


def secret_of(key: Path | None, environment: Mapping[str, str]) -> bytes | None:
    """Return the secret that opens a vault: the named key file, else the passphrase of the environment."""
    if key is not None:
        return key_file(key)
    passphrase = environment.get(PASSPHRASE_IN)
    return None if passphrase is None else passphrase.encode(errors="surrogateescape")  # also if no UTF-8


def _take(path: Path) -> int:
    """Create the file, or check its mode; return the lock that keeps other processes out."""
    with system_errors(f"vault {path}", "a file to read and write", Unusable):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        make_file(path)
        others, names = path.stat().st_mode & 0o077, path.stat().st_nlink
        lock = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(lock)
        raise EdgeFailed(f"vault {path}: another process has it; needed it alone") from error
    if names > 1 or path.is_symlink():
        os.close(lock)
        raise Unusable(f"vault {path}: saw a link, needed the file by its only name: the lock goes by that")
    if others:
        os.close(lock)
        raise Unusable(f"vault {path}: others can read it; needed mode 600")
    return lock


def _on_connect(connection: object, _record: object) -> None:
    # SQLAlchemy gives the connection of the driver, whose type it does not know
    connection.execute("PRAGMA secure_delete = ON")  # type: ignore[attr-defined]  # sqlite3's own connection


def _unlock(database: Database, path: Path, secret: bytes, entropy: Entropy) -> bytes:
    """Return the key of the values; make it in a new vault."""
    with database.writing() as connection:
        _Table.metadata.create_all(connection)
        salt, sealed = (_get(connection, *each) for each in _LOCKED)
        if salt is not None and sealed is not None:
            return _opened(path, secret, salt, sealed)
        salt, key, nonce = entropy(_SALT_BYTES), entropy(_KEY_BYTES), entropy(_NONCE_BYTES)
        wrapped = nonce + AESGCM(_stretched(secret, salt)).encrypt(nonce, key, _place(*_LOCKED[1]))
        _put(connection, *_LOCKED[0], salt)
        _put(connection, *_LOCKED[1], wrapped)
    return key


def _opened(path: Path, secret: bytes, salt: bytes, sealed: bytes) -> bytes:
    wrapping = AESGCM(_stretched(secret, salt))
    try:
        return wrapping.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], _place(*_LOCKED[1]))
    except InvalidTag as error:
        raise Unusable(f"vault {path}: saw another passphrase or key file, needed its own") from error


def _stretched(secret: bytes, salt: bytes) -> bytes:
    return Scrypt(salt=salt, length=_KEY_BYTES, n=_COST, r=8, p=1).derive(secret)


def _place(scope: str, name: str) -> bytes:
    return f"fedgc vault {scope} {name}".encode()


def _get(connection: Connection, scope: str, name: str) -> bytes | None:
    query = select(_Entry.value).where(_Entry.scope == scope, _Entry.name == name)
    return connection.execute(query).scalar_one_or_none()


def _put(connection: Connection, scope: str, name: str, value: bytes) -> None:
    row = insert(_Entry).values(scope=scope, name=name, value=value)
    connection.execute(row.on_conflict_do_update(index_elements=["scope", "name"], set_={"value": value}))
