"""The data of a site: chunks that travel from a store of the site to its clients, and to nobody else.

`split` cuts a dataset into chunks, which are named by their content and may be encrypted, and writes them to
a store of fsspec with a signed `Manifest`. `SiteData` gives a client the chunks that the placement asks of
it: it fetches, verifies, and keeps them on disk within a quota.
"""

from fedgc.datastore.chunk_store import ChunkStore
from fedgc.datastore.manifest import Chunk, Manifest
from fedgc.datastore.records import remove_records
from fedgc.datastore.site_data import SiteData, site_data
from fedgc.datastore.split import Site, admit, must_split, read_arrays, split

__all__ = [
    "Chunk",
    "ChunkStore",
    "Manifest",
    "Site",
    "SiteData",
    "admit",
    "must_split",
    "read_arrays",
    "remove_records",
    "site_data",
    "split",
]
