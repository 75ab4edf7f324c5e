"""Keys: signatures (Ed25519), key agreement (X25519) and authenticated encryption (AES-256-GCM).

- An `Identity` is an Ed25519 key; its public half is pinned in the federation's descriptor.
- Channel and mask keys are X25519 keys for one epoch or one exchange. `agree` gives the shared secret of two
  keys, used only through HKDF-SHA256 with a context, so the same pair of keys yields independent secrets in
  different contexts.
- `seal` and `unseal` are AES-256-GCM under a key that is used for one message only; its nonce is zero.

Every key is made from 32 bytes given by the caller; nothing here is random.
"""

import hashlib
import hmac
from dataclasses import dataclass, field
from typing import Final

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedgc.errors import BadMessage, BadSetting, NotAdmitted
from fedgc.secagg.canonical import Value, pack

KEY_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64
TAG_BYTES: Final = 16  # of the digest of one share
_ONCE: Final = bytes(12)  # the nonce, for a key that seals one message
_FIELD: Final = 2**255 - 19  # of Curve25519
_SMALL: Final = frozenset({  # u-coordinates of points of small order (Bernstein 2006)
    0,
    1,
    _FIELD - 1,
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Identity:
    """The long-lived key of a site or client."""

    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.secret) != KEY_BYTES:
            raise BadSetting(f"identity: saw a key of {len(self.secret)} bytes, needed {KEY_BYTES}")

    @property
    def public(self) -> bytes:
        """Return the public key, 32 bytes."""
        return Ed25519PrivateKey.from_private_bytes(self.secret).public_key().public_bytes_raw()

    def sign(self, statement: bytes) -> bytes:
        """Return the signature of a statement."""
        return Ed25519PrivateKey.from_private_bytes(self.secret).sign(statement)


def verify(public: bytes, signature: bytes, statement: bytes, who: str) -> None:
    """Raise NotAdmitted unless `signature` is that of `public` over the statement."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, statement)
    except (InvalidSignature, ValueError) as error:
        raise NotAdmitted(f"{who}: saw a signature that is not of this key over this statement") from error


def digest(label: str, *values: Value) -> bytes:
    """Return the SHA-256 of a labelled tuple."""
    return hashlib.sha256(pack(label, *values)).digest()


def same(one: bytes, other: bytes) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(one, other)


def derive(secret: bytes, salt: bytes, label: str, *values: Value) -> bytes:
    """Return HKDF-SHA256 of a secret with a salt, for one labelled purpose."""
    return HKDF(hashes.SHA256(), KEY_BYTES, salt, pack(label, *values)).derive(secret)


def public_of(secret: bytes) -> bytes:
    """Return the public half of an X25519 secret."""
    return loaded(secret).public_key().public_bytes_raw()


def loaded(secret: bytes) -> X25519PrivateKey:
    """Return an X25519 key for `agree`; loading is as expensive as agreeing, so it is done once per key."""
    return X25519PrivateKey.from_private_bytes(secret)


def check_public(public: bytes, who: str) -> None:
    """Raise unless this is the canonical encoding of an X25519 key that is not of small order."""
    value = int.from_bytes(public, "little")
    if value >= _FIELD or value in _SMALL:
        raise BadMessage(f"{who}: saw a key of small order or with a second spelling, needed X25519 keys")


def agree(secret: X25519PrivateKey, public: bytes, who: str) -> bytes:
    """Return the shared secret of two X25519 keys; raise for a point of small order."""
    try:
        return secret.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError as error:
        raise BadMessage(f"{who}: saw a key of small order, needed an X25519 public key") from error


def seal(key: bytes, plain: bytes, context: bytes) -> bytes:
    """Encrypt the only message of this key, bound to its context."""
    return AESGCM(key).encrypt(_ONCE, plain, context)


def unseal(key: bytes, sealed: bytes, context: bytes, who: str) -> bytes:
    """Decrypt the only message of this key; raise if it was changed or has another context."""
    try:
        return AESGCM(key).decrypt(_ONCE, sealed, context)
    except InvalidTag as error:
        raise BadMessage(f"{who}: saw a blob that was changed or meant for another place") from error
