"""`python -m benchmarks placement`: how fast the chunks of a site reach the clients that hold them.

Made data in 64 encrypted chunks lie in a local object store behind a line of 1 Gbit/s that all clients share.
Each of 20 clients (threads of one process, each with a disk cache of its own) fetches and verifies the chunks
that a placement with two replicas gives it.

    placement_over_line    seconds until all clients have their chunks, over what the bytes take on the line
    placement_over_plain   the same over plain downloads of the same files by as many threads
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.request import urlopen

import numpy as np

from benchmarks.object_server import BLOCK_BYTES
from benchmarks.report import Report, machine
from fedgc.codes.place import place
from fedgc.config.fields import Value
from fedgc.datastore import ChunkStore, Manifest, Site, admit, site_data, split
from fedgc.datastore.keys import client_key
from fedgc.errors import EdgeFailed
from fedgc.links.identity import open_key

CLIENTS, CHUNKS, REPLICAS = 20, 64, 2
LINE_BYTES_S: Final = 125e6
GIGABYTE: Final = 1e9
WIDTH: Final = 1024  # bytes of a sample
SEED: Final = 0
ORDERS: Final = place(CHUNKS, [1.0] * CLIENTS, REPLICAS, seed=SEED).orders


def bench_placement(gigabytes: float) -> Report:
    """Place so much made data, and return the report."""
    with tempfile.TemporaryDirectory(prefix="fedgc-placement-") as name:
        folder = Path(name)
        manifest, keys = _made_store(folder, gigabytes)
        with _served(folder / "store") as url:
            seconds, placed = _place(folder, url, manifest, keys)
            plain_s = _download(folder, url, manifest)
    line_s = placed / LINE_BYTES_S
    row = {
        "clients": CLIENTS,
        "chunks": CHUNKS,
        "replicas": REPLICAS,
        "placed_mb": round(placed / 1e6, 1),
        "seconds": round(seconds, 3),
        "line_s": round(line_s, 3),
        "plain_s": round(plain_s, 3),
        "load_1m": os.getloadavg()[0],
    }
    figures = {"placement_over_line": seconds / line_s, "placement_over_plain": seconds / plain_s}
    return Report(figures, [row], machine(), [SEED])


def _made_store(folder: Path, gigabytes: float) -> tuple[Manifest, list[Path]]:
    """Write the store of the site; return the manifest, and the identities of its clients."""
    site = Site(open_key(folder / "site.key", makes=True), os.urandom)
    samples = max(CHUNKS, int(gigabytes * GIGABYTE / WIDTH))
    made = np.lib.format.open_memmap(folder / "made.npy", "w+", np.uint8, (samples, WIDTH))
    rng = np.random.default_rng(SEED)
    for begin in range(0, samples, 65536):
        made[begin : begin + 65536] = rng.integers(0, 256, (min(65536, samples - begin), WIDTH), np.uint8)
    store = ChunkStore(str(folder / "store"))
    split({"inputs": made}, CHUNKS, store, site, encrypts=True)
    (folder / "made.npy").unlink()
    keys = [folder / f"client-{number}.key" for number in range(CLIENTS)]
    return admit(store, site, [client_key(open_key(path, makes=True)) for path in keys]), keys


def _place(folder: Path, url: str, manifest: Manifest, keys: list[Path]) -> tuple[float, int]:
    """Have all clients fetch what they hold; return the seconds, and the bytes of all together."""
    settings: Mapping[str, Value] = {"data-store": url, "data-site": manifest.site}
    own = [{**settings, "identity": str(key), "data-cache": str(folder / "cache")} for key in keys]
    ChunkStore(url).manifest()  # imports what fsspec needs for this kind of URL
    began = time.monotonic()
    clients = [site_data(each) for each in own]
    for client, order in zip(clients, ORDERS, strict=True):
        client.hold([manifest.chunks[chunk].name for chunk in order])
    for client in clients:
        client.wait()
    seconds = time.monotonic() - began
    sizes = {chunk.digest: chunk.size_bytes for chunk in manifest.chunks}
    wanted = sum(manifest.chunks[chunk].size_bytes for order in ORDERS for chunk in order)
    fetched = sum(sizes[path.name] for path in (folder / "cache").rglob("*") if path.is_file())
    if fetched != wanted:
        raise EdgeFailed(f"placement: saw {fetched} bytes at the clients, needed {wanted}")
    shutil.rmtree(folder / "cache")
    return seconds, wanted


def _download(folder: Path, url: str, manifest: Manifest) -> float:
    """Download the same chunks for each client; return the seconds."""

    def one(client: int) -> None:
        for chunk in ORDERS[client]:
            digest, target = manifest.chunks[chunk].digest, folder / f"plain-{client}"
            with urlopen(f"{url}/chunks/{digest}") as answer, target.open("wb") as file:  # noqa: S310  our own
                shutil.copyfileobj(answer, file, BLOCK_BYTES)

    began = time.monotonic()
    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(one, range(CLIENTS)))
    return time.monotonic() - began


@contextmanager
def _served(folder: Path) -> Iterator[str]:
    """Serve the store from a process of its own; yield its URL."""
    command = [sys.executable, "-m", "benchmarks.object_server", str(folder), str(LINE_BYTES_S)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603  our own
        try:
            port = process.stdout.readline().strip() if process.stdout else ""
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
