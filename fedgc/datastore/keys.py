"""The keys of a site's data.

A site has one secret, its Ed25519 key in a file with mode 600. It signs manifests, and the AES key of a store
is derived from it (HKDF), with a salt that the manifest holds. That AES key is wrapped for each client of the
site (HPKE, RFC 9180, with X25519), whose X25519 key is derived from the client's own identity.
"""

from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedgc.errors import BadMessage, NotAdmitted, Refused, Unusable
from fedgc.links.identity import Identity
from fedgc.secagg.keys import check_public

KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12
MOST_BYTES: Final = 2**31 - 64  # what one call of AES-GCM takes
SUITE: Final = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM)


def chunk_key(site: Identity, salt: bytes) -> bytes:
    """Return the AES key of the store with this salt."""
    return _derived(site, salt, b"fedgc chunks of a site")


def client_key(who: Identity) -> bytes:
    """Return the public key for which a site wraps its key."""
    return _client_private(who).public_key().public_bytes_raw()


def client_key_of(text: str) -> bytes:
    """Return the key that `fedgc data key` has printed; raise Unusable if this is none."""
    try:
        key = bytes.fromhex(text)
        X25519PublicKey.from_public_bytes(key)
    except ValueError as error:
        raise Unusable(f"client key: saw {text[:80]!r}, needed 64 hexadecimal digits") from error
    try:
        check_public(key, f"client key {text}")  # no shared secret can be made with others
    except BadMessage as error:
        raise Unusable(str(error)) from error
    return key


def wrapped(key: bytes, client: bytes, site: bytes) -> bytes:
    """Encrypt a store's key for one client of this site."""
    return SUITE.encrypt(key, X25519PublicKey.from_public_bytes(client), _info(site))


def unwrapped(text: str, who: Identity, site: bytes) -> bytes:
    """Return a store's key; raise NotAdmitted if it was wrapped for another client or by another site."""
    try:
        key = SUITE.decrypt(bytes.fromhex(text), _client_private(who), _info(site))
    except (InvalidTag, ValueError) as error:
        raise NotAdmitted("the site's key: it was wrapped for another client, or changed") from error
    if len(key) != KEY_BYTES:
        raise NotAdmitted(f"the site's key: saw {len(key)} bytes, needed {KEY_BYTES}")
    return key


def sealed(plain: bytes, key: bytes, nonce: bytes, site: bytes) -> bytes:
    """Encrypt the bytes of a chunk (AES-256-GCM); the nonce is the first part of the result."""
    if len(plain) > MOST_BYTES:
        raise Unusable(f"split: saw a chunk of {len(plain)} bytes, needed at most {MOST_BYTES}: more chunks")
    return nonce + AESGCM(key).encrypt(nonce, plain, site)


def opened(data: bytes, key: bytes, site: bytes) -> bytes:
    """Decrypt the bytes of a chunk; raise Refused if they are not of this site and key."""
    try:
        return AESGCM(key).decrypt(data[:NONCE_BYTES], data[NONCE_BYTES:], site)
    except (InvalidTag, ValueError) as error:
        raise Refused("its bytes are not encrypted by this site's key") from error


def _client_private(who: Identity) -> X25519PrivateKey:
    return X25519PrivateKey.from_private_bytes(_derived(who, None, b"fedgc data of a client"))


def _derived(who: Identity, salt: bytes | None, info: bytes) -> bytes:
    return HKDF(SHA256(), KEY_BYTES, salt, info).derive(who.secret)


def _info(site: bytes) -> bytes:
    return b"fedgc key of a site" + site
