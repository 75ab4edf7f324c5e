"""A local object store: GET, HEAD and ranges of the files in a folder, over one line of a fixed rate.

    python -m benchmarks.object_server FOLDER BYTES_PER_S

It prints its port. All answers share the line, as the clients of a site share that of their store.
"""

import re
import sys
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Final

BLOCK_BYTES: Final = 256 * 1024
RANGE: Final = re.compile(r"bytes=(\d+)-(\d*)")


class Line:
    """Gives each block its time on the line, in the order in which blocks come."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s, self._free, self._lock = bytes_per_s, 0.0, Lock()

    def wait(self, size: int) -> None:
        """Wait until a block has passed."""
        with self._lock:
            self._free = max(self._free, time.monotonic()) + size / self._bytes_per_s
            ends = self._free
        time.sleep(max(0.0, ends - time.monotonic()))


class Objects(BaseHTTPRequestHandler):
    """Answers requests; `folder` and `line` are set before the server starts."""

    protocol_version = "HTTP/1.1"
    folder: Path
    line: Line

    def do_HEAD(self) -> None:
        """Tell the size of a file."""
        self._answer(body=False)

    def do_GET(self) -> None:
        """Send a file, or a range of it."""
        self._answer(body=True)

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def _answer(self, *, body: bool) -> None:
        path = self.folder / self.path.lstrip("/")
        if not path.resolve().is_relative_to(self.folder) or not path.is_file():
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        size, asked = path.stat().st_size, RANGE.fullmatch(self.headers.get("Range", ""))
        begin, end = (int(asked[1]), min(size, int(asked[2] or size) + 1)) if asked else (0, size)
        self.send_response(HTTPStatus.PARTIAL_CONTENT if asked else HTTPStatus.OK)
        self.send_header("Content-Length", str(end - begin))
        self.send_header("Accept-Ranges", "bytes")
        if asked:
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{size}")
        self.end_headers()
        if body:
            self._send(path, begin, end)

    def _send(self, path: Path, begin: int, end: int) -> None:
        with path.open("rb") as file:
            file.seek(begin)
            while begin < end:
                block = file.read(min(BLOCK_BYTES, end - begin))
                self.line.wait(len(block))
                self.wfile.write(block)
                begin += len(block)


def serve(folder: Path, bytes_per_s: float) -> None:
    """Serve until the process is ended."""
    Objects.folder, Objects.line = folder.resolve(), Line(bytes_per_s)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Objects)
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    serve(Path(sys.argv[1]), float(sys.argv[2]))
