"""The manifest of a site's data: its chunks, their digests, and the store's key for each client; signed.

The file is a line with the signature, then JSON. A reader checks the signature before it reads on.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from fedgc.errors import BadMessage, NotAdmitted
from fedgc.guards import guarded
from fedgc.links.identity import Identity

DIGEST: Final = re.compile(r"[0-9a-f]{64}")
NAME_DIGITS: Final = 16  # of the digest, in a chunk's name
CHUNK_NAME: Final = re.compile(r"chunk-\d{4,}-([0-9a-f]{16})")
SIGNED: Final = b"fedgc manifest"
MOST_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk in the store; `digest` is the SHA-256 of its stored bytes.

    `former` holds the digests that it had before records were removed.

    >>> Chunk(7, "ab" * 32, size_bytes=100, samples=5).name
    'chunk-0007-abababababababab'
    """

    number: int
    digest: str
    size_bytes: int
    samples: int
    former: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        counts = (self.number, self.size_bytes, self.samples)
        digests = (self.digest, *self.former)
        if not all(type(each) is int and each >= 0 for each in counts) or self.samples < 1:
            raise BadMessage(f"chunk {self.number!r}: saw a size or a number of samples that cannot be")
        if not all(isinstance(each, str) and DIGEST.fullmatch(each) for each in digests):
            raise BadMessage(f"chunk {self.number}: needed SHA-256 digests in hexadecimal digits")

    @property
    def name(self) -> str:
        """The name by which tasks, servers and histories know it: number and digest."""
        return f"chunk-{self.number:04}-{self.digest[:NAME_DIGITS]}"

    @property
    def names(self) -> frozenset[str]:
        """The names that it has and had."""
        digests = (self.digest, *self.former)
        return frozenset(f"chunk-{self.number:04}-{each[:NAME_DIGITS]}" for each in digests)


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a site has split.

    `site` is its public key, `columns` the arrays that make a sample, in order. With `salt` the chunks are
    encrypted, and `keys` holds the store's key, wrapped for each client's key. All bytes are hexadecimal.
    """

    site: str
    columns: tuple[str, ...]
    chunks: tuple[Chunk, ...]
    salt: str = ""
    keys: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        texts = (self.site, self.salt, *self.columns, *self.keys, *self.keys.values())
        if not all(isinstance(each, str) for each in texts) or not DIGEST.fullmatch(self.site):
            raise BadMessage("manifest: needed text for the site, its columns and its keys")
        if len({chunk.number for chunk in self.chunks}) < len(self.chunks):
            raise BadMessage("manifest: saw two chunks of one number")

    @property
    def samples(self) -> int:
        """The samples of all chunks."""
        return sum(chunk.samples for chunk in self.chunks)

    @property
    def public(self) -> bytes:
        """The site's public key."""
        return bytes.fromhex(self.site)

    def signed(self, site: Identity) -> bytes:
        """Return the file of this manifest."""
        body = json.dumps(asdict(self), sort_keys=True, separators=(",", ":")).encode()
        return site.sign(SIGNED + body).hex().encode() + b"\n" + body


def read_manifest(data: bytes, site: str = "") -> Manifest:
    """Return the manifest in a file; raise NotAdmitted if it is not signed by `site` (any, if empty)."""
    with guarded("a manifest", error=BadMessage):
        signature, _, body = data.partition(b"\n")
        table, signer = _signed_by(body)
        if site and signer != site:
            raise NotAdmitted(f"manifest: saw site {signer[:NAME_DIGITS]}, needed {site[:NAME_DIGITS]}")
        try:
            key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(signer))
            key.verify(bytes.fromhex(signature.decode()), SIGNED + body)
        except (InvalidSignature, ValueError) as error:
            raise NotAdmitted(f"manifest: not signed by its site {signer[:NAME_DIGITS]}") from error
        return _manifest(table)


def _signed_by(body: bytes) -> tuple[Mapping[str, Any], str]:
    """Return what a manifest holds, and its site; raise NotAdmitted if bytes were changed, added or cut."""
    try:
        table = json.loads(body)
        return table, str(table["site"])
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise NotAdmitted("manifest: not signed by its site: saw bytes that are no manifest") from error


def _manifest(table: Mapping[str, Any]) -> Manifest:
    chunks = tuple(Chunk(**{**each, "former": tuple(each["former"])}) for each in table["chunks"])
    return Manifest(**{**table, "columns": tuple(table["columns"]), "chunks": chunks})
