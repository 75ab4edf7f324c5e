"""A site with encrypted data in a store, and a client to which it has given its key."""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event

import numpy as np
import pytest

from fedgc.datastore import ChunkStore, Site, SiteData, admit, site_data, split
from fedgc.datastore.keys import client_key
from fedgc.datastore.manifest import Chunk
from fedgc.errors import EdgeFailed
from fedgc.links.identity import open_key

SAMPLES, CHUNKS = 40, 8
WAIT_S = 20.0
MARK = 0x5EC2E7C0DE5EC2E7  # stands in every sample, to be looked for on disks


@dataclass
class Ward:
    """The site, its store, and where its clients keep what they have."""

    folder: Path
    site: Site
    store: ChunkStore

    def settings(self, name: str = "client", **more: str | int | float) -> dict[str, str | int | float]:
        return {
            "data-store": self.store.url,
            "data-site": self.site.key.public.hex(),
            "data-cache": str(self.folder / "cache"),
            "identity": str(self.folder / f"{name}.key"),
            **more,
        }

    def data(self, name: str = "client", **more: str | int | float) -> SiteData:
        return site_data(self.settings(name, **more))

    def admit(self, *names: str) -> None:
        keys = [client_key(open_key(self.folder / f"{name}.key", makes=True)) for name in names]
        admit(self.store, self.site, keys)

    @property
    def chunks(self):
        return self.store.manifest().chunks

    def file(self, chunk) -> Path:
        return self.folder / "store" / "chunks" / chunk.digest

    @property
    def cached(self) -> dict[str, int]:
        """The sizes of the files in the cache, also while another thread renames or removes some."""
        sizes = {}
        for path in (self.folder / "cache").rglob("*"):
            with suppress(FileNotFoundError):
                if path.is_file():
                    sizes[path.name] = path.stat().st_size
        return sizes


def arrays(samples: int = SAMPLES) -> dict[str, np.ndarray]:
    rows = np.arange(samples)
    inputs = np.stack([rows, np.full(samples, MARK, np.int64)], axis=1)
    return {"inputs": inputs, "labels": rows % 2, "patient": np.array([f"p{row:03}" for row in rows])}


def site_of(path: Path) -> Site:
    return Site(open_key(path, makes=True), os.urandom)


@pytest.fixture
def ward(tmp_path: Path) -> Ward:
    made = Ward(tmp_path, site_of(tmp_path / "site.key"), ChunkStore(str(tmp_path / "store")))
    split(arrays(), CHUNKS, made.store, made.site, ids="patient", encrypts=True)
    made.admit("client")
    return made


@pytest.fixture
def slow(ward: Ward, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Event, Event]]:
    """Events: the first chunk is being fetched, and lets it arrive."""
    begun, free, read = Event(), Event(), ChunkStore.blocks

    def blocks(store: ChunkStore, chunk: Chunk) -> Iterator[bytes]:
        if chunk == ward.chunks[0]:
            begun.set()
            if not free.wait(WAIT_S):
                raise EdgeFailed("the first chunk was not let in")
        yield from read(store, chunk)

    monkeypatch.setattr(ChunkStore, "blocks", blocks)
    yield begun, free
    free.set()
