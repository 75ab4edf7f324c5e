"""`fedgc data`: the chunks of a site: split, list, verify, remove records, give clients the key."""

import os
import sys
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedgc.cli.options import AsJson
from fedgc.errors import EdgeFailed, FedgcError, numbered

if TYPE_CHECKING:
    from fedgc.datastore import Site

data = typer.Typer(help="The data of a site: chunks that travel to its clients.", no_args_is_help=True)

StoreUrl = Annotated[str, typer.Argument(metavar="STORE", help="A folder, or a URL that fsspec knows.")]
From = Annotated[str, typer.Option("--from", metavar="STORE", help="The store; a folder or a URL.")]
SiteKey = Annotated[Path, typer.Option("--key", help="The file of the site's key.")]
KEY = Path("site.key")


@data.command("split")
def split(
    source: Annotated[
        Path, typer.Argument(help="A file .npz, .safetensors or .pt, or a folder of .npy files.")
    ],
    to: Annotated[str, typer.Option("--to", metavar="STORE", help="An empty folder, or a URL.")],
    chunks: Annotated[int, typer.Option(help="Number of chunks.", min=1)] = 64,
    encrypt: Annotated[bool, typer.Option("--encrypt", help="Encrypt the chunks.")] = False,
    ids: Annotated[str, typer.Option(help="The array that names records; by default their row does.")] = "",
    key: SiteKey = KEY,
) -> None:
    """Split a dataset into chunks with a signed manifest; make the site's key if it is missing.

    Example: fedgc data split ward.npz --chunks 64 --to /srv/ward-data --encrypt
    """
    from fedgc import datastore  # here, since help must not wait for numpy

    if source.suffix == ".pt":
        from fedgc.training.saved_tensors import saved_tensors

        arrays = saved_tensors(source)
    else:
        arrays = datastore.read_arrays(source)
    store = datastore.ChunkStore(to)
    datastore.must_split(arrays, chunks, store, ids)  # before a key is made
    site = _site(key, makes=True)
    made = datastore.split(arrays, chunks, store, site, ids=ids, encrypts=encrypt)
    chunks_made, samples = numbered(len(made.chunks), "chunk"), numbered(made.samples, "sample")
    sys.stdout.write(f"{chunks_made} of {samples} in {to}, of site {made.site}\n")


@data.command("key")
def key(path: Annotated[Path, typer.Argument(help="The file of a client's identity.")]) -> None:
    """Print a client's key for `fedgc data admit`; make its identity if it is missing, and say so.

    Example: fedgc data key /srv/fedgc/state/identity.key
    """
    from fedgc.datastore.keys import client_key
    from fedgc.links.identity import open_key

    was_missing = not path.exists()
    text = client_key(open_key(path, makes=True)).hex()
    if was_missing:
        sys.stderr.write(
            f"{path}: there was no file, so a new identity was made: admit it only if a client has this file "
            "as its `identity` (`fedgc deploy client`: identity.key in its --state folder)\n"
        )
    sys.stdout.write(f"{text}\n")


@data.command("admit")
def admit(
    store: StoreUrl,
    clients: Annotated[list[str], typer.Argument(metavar="KEY...", help="From `fedgc data key`.")],
    key: SiteKey = KEY,
) -> None:
    """Give clients of this site the key of its encrypted chunks.

    Example: fedgc data admit /srv/ward-data 0a1b2c... --key site.key
    """
    from fedgc import datastore
    from fedgc.datastore.keys import client_key_of

    admitted = [client_key_of(text) for text in clients]
    made = datastore.admit(datastore.ChunkStore(store), _site(key), admitted)
    sys.stdout.write(f"clients with the key of {store}: {len(made.keys)}\n")


@data.command("list")
def list_chunks(store: StoreUrl, as_json: AsJson = False) -> None:
    """Show the chunks of a store, and the site that signed them.

    Example: fedgc data list /srv/ward-data
    """
    import json

    from fedgc import datastore
    from fedgc.cli.view import megabytes

    manifest = datastore.ChunkStore(store).manifest()
    if as_json:
        sys.stdout.write(json.dumps(asdict(manifest), indent=1) + "\n")
        return
    encrypted = f"encrypted, clients with the key: {len(manifest.keys)}" if manifest.salt else "not encrypted"
    sys.stdout.write(f"site {manifest.site}, {', '.join(manifest.columns)}, {encrypted}\n")
    for chunk in manifest.chunks:
        rewritten = f", rewritten {numbered(len(chunk.former), 'time')}" if chunk.former else ""
        samples = numbered(chunk.samples, "sample")
        sys.stdout.write(f"{chunk.name}  {samples}  {megabytes(chunk.size_bytes)}{rewritten}\n")


@data.command("verify")
def verify(store: StoreUrl, site: Annotated[str, typer.Option(help="The site's public key.")] = "") -> None:
    """Read every chunk and compare it with the signed manifest; exit code 1 if one differs.

    Example: fedgc data verify /srv/ward-data --site 5e1f...
    """
    from fedgc import datastore
    from fedgc.datastore.chunk_bytes import must_match

    opened = datastore.ChunkStore(store)
    manifest, faults = opened.manifest(site), []
    for chunk in manifest.chunks:
        try:
            must_match(chunk, b"".join(opened.blocks(chunk)))
        except FedgcError as error:
            faults.append(f"{chunk.name}: {error}")
    unknown = opened.digests() - {chunk.digest for chunk in manifest.chunks}
    faults += [f"chunks/{digest}: it is not in the manifest" for digest in sorted(unknown)]
    chunks = numbered(len(manifest.chunks), "chunk")
    for fault in faults:
        sys.stdout.write(f"{fault}\n")
    if faults:
        raise EdgeFailed(f"chunk store {opened.url}: {numbered(len(faults), 'fault')} in {chunks}")
    sys.stdout.write(f"{chunks} as site {manifest.site} signed them\n")


@data.command("remove")
def remove(
    records: Annotated[
        list[str], typer.Argument(metavar="RECORD...", help="Rows of the source, or values of --ids.")
    ],
    store: From,
    key: SiteKey = KEY,
) -> None:
    """Remove records: their chunks are written again, and the runs that have used them are listed.

    Example: fedgc data remove p-1017 --from /srv/ward-data
    """
    from fedgc import datastore

    past = _past_runs()
    removed = datastore.remove_records(datastore.ChunkStore(store), _site(key), records)
    for record, chunks in removed.items():
        known = frozenset().union(*(chunk.names for chunk in chunks))
        removed_from = ", ".join(each.name for each in chunks)
        sys.stdout.write(f"{record}: removed from {removed_from}; {past.that_used(known)}\n")


@dataclass(frozen=True, slots=True)
class _PastRuns:
    """The chunks that each run in the store has used, or why they are not known."""

    chunks: Mapping[str, Collection[str]] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()  # runs whose clients choose their chunks themselves
    why: str = ""

    def that_used(self, names: Collection[str]) -> str:
        """Say which runs have used a chunk of one of these names."""
        if self.why:
            return f"not known which runs have used it: {self.why}"
        used = sorted(run for run, known in self.chunks.items() if not set(names).isdisjoint(known))
        told = f"runs that have used it: {', '.join(used) or 'none in this store of runs'}"
        unknown = ", ".join(self.unknown)
        return f"{told}; not known of runs with a script or a plain ClientApp: {unknown}" if unknown else told


def _past_runs() -> _PastRuns:
    from fedgc.store.database import Store

    try:
        with Store.open(reads_only=True) as opened:
            runs = {each.run: each.settings for each in opened.runs(limit=sys.maxsize)}
            unknown = sorted(
                run for run, of in runs.items() if of.get("script") or of.get("client.app") == "stock"
            )
            return _PastRuns(opened.used_chunks(), tuple(unknown))
    except FedgcError as error:
        return _PastRuns(why=str(error))


def _site(path: Path, *, makes: bool = False) -> "Site":
    from fedgc.datastore import Site
    from fedgc.links.identity import open_key

    return Site(open_key(path, makes=makes), os.urandom)
