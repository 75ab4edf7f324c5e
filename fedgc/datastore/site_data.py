"""The data of a site as its clients train on it: chunks that are fetched as the placement asks for them."""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from types import MappingProxyType
from typing import Any, Final

from numpy.typing import NDArray

from fedgc.config.fields import Value
from fedgc.datastore.chunk_bytes import Form
from fedgc.datastore.chunk_cache import ChunkCache
from fedgc.datastore.chunk_store import ChunkStore
from fedgc.datastore.keys import client_key, unwrapped
from fedgc.datastore.manifest import Chunk, Manifest
from fedgc.errors import BadSetting, EdgeFailed, FedgcError, NotAdmitted, Refused
from fedgc.links.identity import Identity, open_key
from fedgc.processes.state_folder import state_folder

STORE, SITE, QUOTA, FOLDER = "data-store", "data-site", "data-quota-mb", "data-cache"
QUOTA_MB: Final = 10_000
MEGABYTE: Final = 1_000_000


def site_data(client: Mapping[str, Value]) -> "SiteData":
    """Open the data of this client's site, to be given to `fedgc.over`.

    Chunks come from the store that the client's own settings name, when the client first trains on them. They
    are verified, and kept on disk, encrypted as they lie in the store.

    Args:
        client: The client's own settings. `data-store` is the URL of the store, `data-site` the public key of
            the site that must have signed its manifest, `data-quota-mb` the most megabytes on disk (10000),
            and `data-cache` the folder for them. Without settings, as on the server, there is no chunk.

    Returns:
        The data: `chunks` (samples by name) and `load` (name -> tuple of arrays) are what `Task` takes.

    Raises:
        BadSetting: A setting is missing or of another type.
        NotAdmitted: The manifest is of another site, or the site has given this client no key.
        EdgeFailed: The store cannot be reached, or the disk failed.

    Example:
        >>> import fedgc
        >>> data = fedgc.site_data({})  # on the server
        >>> fedgc.over(data, fedgc.RunConfig(), model=list, loss=max).sizes()
        mappingproxy({})
    """
    url = client.get(STORE)
    if not url:
        return SiteData(None, None, None)
    if not client.get(SITE) or not client.get("identity"):
        raise BadSetting(f"node config: saw {STORE} alone, needed {SITE} and identity beside it")
    quota_mb = client.get(QUOTA, QUOTA_MB)
    if isinstance(quota_mb, str) or not quota_mb > 0:
        raise BadSetting(f"node config {QUOTA}: saw {quota_mb!r}, needed megabytes, more than 0")
    store, who = ChunkStore(str(url)), open_key(Path(str(client["identity"])))
    manifest = store.manifest(str(client[SITE]))
    largest = max((chunk.size_bytes for chunk in manifest.chunks), default=0)
    if quota_mb * MEGABYTE < largest:
        raise BadSetting(
            f"node config {QUOTA}: saw {quota_mb}, needed {largest / MEGABYTE:.1f} for one chunk"
        )
    form = Form(manifest.public, _key(manifest, who))
    folder = Path(str(client.get(FOLDER) or state_folder(os.environ) / "chunks")) / who.client
    return SiteData(manifest, ChunkCache(folder, int(quota_mb * MEGABYTE), store), form)


def _key(manifest: Manifest, who: Identity) -> bytes | None:
    """Return the key of the chunks; None if they are not encrypted."""
    if not manifest.salt:
        return None
    mine = manifest.keys.get(client_key(who).hex())
    if mine is None:
        raise NotAdmitted(
            f"site {manifest.site[:16]}: it has given its key to {len(manifest.keys)} clients, and not to "
            f"client {who.client}"
        )
    return unwrapped(mine, who, manifest.public)


class SiteData:
    """Loads the chunks of a site, and keeps those on disk that the placement gives to this client."""

    def __init__(self, manifest: Manifest | None, cache: ChunkCache | None, form: Form | None) -> None:
        """Make one with `site_data`; without arguments it has no chunks."""
        self._manifest, self._cache, self._form = manifest, cache, form
        known = manifest.chunks if manifest else ()
        self._chunks: Mapping[str, Chunk] = {chunk.name: chunk for chunk in known}
        self.chunks: Final = MappingProxyType({chunk.name: chunk.samples for chunk in known})
        if cache is not None:
            cache.forget(cache.digests - {chunk.digest for chunk in known})  # rewritten or removed since
        self._held: tuple[str, ...] = ()
        self._stop = Event()
        self._threads: list[Thread] = []

    def load(self, name: str) -> tuple[NDArray[Any], ...]:
        """Return the columns of a chunk, and begin to fetch the next one; raise Refused if it is damaged."""
        chunk = self._chunks.get(name)
        if chunk is None or self._manifest is None or self._cache is None or self._form is None:
            raise Refused(f"chunk {name}: it is not in the manifest of this site")
        try:
            arrays = self._form.arrays(chunk, self._cache.bytes_of(chunk), self._manifest)
        except (Refused, EdgeFailed):  # it may be damaged on this disk alone
            self._cache.forget({chunk.digest})
            arrays = self._form.arrays(chunk, self._cache.bytes_of(chunk), self._manifest)
        if name in self._held:
            at = self._held.index(name)
            self._prefetch(self._held[at + 1 :] + self._held[:at], evicts=True)
        return tuple(arrays[column] for column in self._manifest.columns)

    def digest(self, name: str) -> str:
        """Return the digest of a chunk, which is fetched from nowhere for that."""
        return self._chunks[name].digest

    def has(self, name: str) -> bool:
        """Return whether a chunk is on this client's disk."""
        return self._cache is not None and name in self._chunks and self._cache.has(self._chunks[name])

    def hold(self, names: Sequence[str]) -> None:
        """Forget all chunks but these, and fetch them in this order, as far as there is room."""
        held = tuple(name for name in names if name in self._chunks)
        if held == self._held or self._cache is None:
            return
        self._stop.set()
        self._held = held
        self._cache.forget(self._cache.digests - {self._chunks[name].digest for name in held})
        self._prefetch(held, evicts=False)

    def fetched(self) -> tuple[int, int, float]:
        """Return the chunks, bytes and seconds of what was fetched since the last call."""
        return self._cache.fetched() if self._cache is not None else (0, 0, 0.0)

    def wait(self) -> None:
        """Wait until nothing is being fetched ahead."""
        for each in self._threads:
            each.join()

    def _prefetch(self, names: Sequence[str], *, evicts: bool) -> None:
        """Fetch these chunks in the background, in place of what was to be fetched; the first may evict."""
        cache = self._cache
        if cache is None or all(self._chunks[name].digest in cache.digests for name in names):
            return
        self._stop.set()
        self._stop = stop = Event()
        wanted = [self._chunks[name] for name in names]
        thread = Thread(target=self._fetch, args=(cache, wanted, evicts, stop), daemon=True)
        self._threads = [*(each for each in self._threads if each.is_alive()), thread]
        thread.start()

    def _fetch(self, cache: ChunkCache, wanted: Sequence[Chunk], evicts: bool, stop: Event) -> None:
        for at, chunk in enumerate(wanted):
            if stop.is_set():
                return
            with suppress(FedgcError):  # loading the chunk tries again, and reports the error
                cache.fetch(chunk, evicts=evicts and at == 0)
            if chunk.name not in self._held:  # any more
                cache.forget({chunk.digest})
