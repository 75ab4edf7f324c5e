"""The server of the page."""

import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

import uvicorn

from fedgc.errors import EdgeFailed, Unusable
from fedgc.store.database import Store
from fedgc.store.reading import LATEST
from fedgc.tuner.wanted import CLIENT_GAIN
from fedgc.web.access import LOOPBACK, Entry
from fedgc.web.app import make_app
from fedgc.web.connection import MOST_HEAD, Connection

START_S: Final = 10.0
STOP_S: Final = 5.0
MOST_CONNECTIONS: Final = 256  # far more than the waiting ones (connection.py) and the streams together
IDLE_S: Final = 4  # of a connection after an answer


@dataclass(frozen=True, slots=True)
class Place:
    """Where to listen; a missing `token` is generated if one is needed."""

    host: str = "127.0.0.1"
    port: int = 8600
    token: str | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65_535:
            raise Unusable(f"--port: saw {self.port}, needed 0 (any free one) to 65535")
        Entry(self.token)

    @property
    def entry(self) -> Entry:
        """The access rule: no token is needed only on loopback."""
        stays = f"[{self.host}]" in LOOPBACK or self.host in LOOPBACK
        return Entry(self.token if self.token or stays else secrets.token_urlsafe(24))


class Served:
    """A running page: its address, and its end."""

    def __init__(
        self, store: Store, place: Place, run: str = LATEST, client_gain: float = CLIENT_GAIN
    ) -> None:
        """Bind the port at once, so that a port in use is reported first."""
        entry = place.entry
        self._socket = _listen(place)
        self._server = uvicorn.Server(
            uvicorn.Config(
                make_app(store, entry, lambda: self._server.should_exit, run, client_gain),
                log_level="error",
                access_log=False,
                server_header=False,
                http=Connection,
                h11_max_incomplete_event_size=MOST_HEAD,
                timeout_keep_alive=IDLE_S,
                timeout_graceful_shutdown=round(STOP_S),
                limit_concurrency=MOST_CONNECTIONS,
                lifespan="off",
                ws="none",
            )
        )
        host = f"[{place.host}]" if ":" in place.host else place.host
        bound, port = self._socket.getsockname()[:2]
        nowhere = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  bound to all, requested on one
        self.address: Final[tuple[str, int]] = (nowhere.get(bound, bound), port)
        self.token: Final = entry.token
        self.root: Final = f"http://{host}:{port}/"
        made = None if place.token else entry.token
        self.url: Final = self.root + (f"?token={quote(made)}" if made else "")  # the user's own stays secret

    def forever(self) -> None:
        """Serve until Ctrl-C or a signal that ends the process."""
        self._server.run(sockets=[self._socket])

    @contextmanager
    def beside(self) -> Iterator["Served"]:
        """Serve from a thread while the block runs."""
        thread = threading.Thread(target=self.forever, name="fedgc-watch", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.should_exit = True
            thread.join(START_S + STOP_S)
            self._socket.close()


def _listen(place: Place) -> socket.socket:
    family = socket.AF_INET6 if ":" in place.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((place.host, place.port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise EdgeFailed(
            f"{place.host} port {place.port}: {error.strerror or error}; needed an address of this machine "
            "and a free port, --port 0 takes any"
        ) from error
    return listener
