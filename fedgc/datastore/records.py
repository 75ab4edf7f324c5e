"""Removes records: their chunks are written again without them, and the old bytes are removed."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedgc.datastore.chunk_bytes import RECORD, digest_of, record_digests
from fedgc.datastore.chunk_store import ChunkStore
from fedgc.datastore.manifest import Chunk, Manifest
from fedgc.datastore.split import Site, changing
from fedgc.errors import Unusable


def remove_records(store: ChunkStore, site: Site, records: Sequence[str]) -> Mapping[str, tuple[Chunk, ...]]:
    """Remove these records from a site's store; return the chunks of each, as they were.

    Every chunk is read, as the manifest does not say where a record is. A record with several samples may be
    in several chunks.

    Raises:
        Unusable: A record is in no chunk; nothing is changed.
        NotAdmitted: The store is of another site.
        Refused: A chunk is damaged.
        EdgeFailed: The store failed, or another command changes data of this site.
    """
    with changing(store, site) as manifest:
        return _removed(store, site, manifest, records)


def _removed(
    store: ChunkStore, site: Site, manifest: Manifest, records: Sequence[str]
) -> Mapping[str, tuple[Chunk, ...]]:
    _remove_unlisted(store, manifest)  # of a removal that was interrupted
    wanted = dict(zip(map(bytes, record_digests(records)), records, strict=True))
    found = {chunk: _rows(store, site, manifest, chunk, wanted) for chunk in manifest.chunks}
    chunks_of = {
        record: tuple(chunk for chunk, rows in found.items() if record in rows) for record in records
    }
    if missing := [record for record, chunks in chunks_of.items() if not chunks]:
        raise Unusable(f"records {', '.join(missing)}: saw them in no chunk of {store.url}")
    kept = {
        chunk.number: _without(store, site, manifest, chunk, np.concatenate(list(rows.values())))
        for chunk, rows in found.items()
        if rows
    }
    left = tuple(new for each in manifest.chunks if (new := kept.get(each.number, each)) is not None)
    manifest = replace(manifest, chunks=left)
    store.put_manifest(manifest, site.key)
    _remove_unlisted(store, manifest)
    return chunks_of


def _remove_unlisted(store: ChunkStore, manifest: Manifest) -> None:
    """Remove the files of chunks that are not in the manifest: they may hold removed records."""
    for digest in store.digests() - {chunk.digest for chunk in manifest.chunks}:
        store.remove(digest)


def _rows(
    store: ChunkStore, site: Site, manifest: Manifest, chunk: Chunk, wanted: Mapping[bytes, str]
) -> Mapping[str, NDArray[np.int64]]:
    """Return the rows of a chunk that hold these records."""
    arrays = site.form(manifest.salt).arrays(chunk, b"".join(store.blocks(chunk)), manifest)
    names = [wanted.get(bytes(each)) for each in arrays[RECORD]]
    there = set(names) - {None}
    return {str(name): np.flatnonzero([each == name for each in names]) for name in there}


def _without(
    store: ChunkStore, site: Site, manifest: Manifest, chunk: Chunk, rows: NDArray[np.int64]
) -> Chunk | None:
    """Write a chunk again without these rows; None if it has no others."""
    if len(rows) == chunk.samples:
        return None
    form = site.form(manifest.salt)
    arrays = form.arrays(chunk, b"".join(store.blocks(chunk)), manifest)
    data = form.data({name: np.delete(each, rows, axis=0) for name, each in arrays.items()}, site.draw)
    new = Chunk(
        chunk.number, digest_of(data), len(data), chunk.samples - len(rows), (chunk.digest, *chunk.former)
    )
    store.put(new.digest, data)
    return new
