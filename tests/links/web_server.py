"""A web server with a deployment's certificate, for checks that run before Flower."""

import http.server
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from fedgc.deploy.key_files import Keyring


@contextmanager
def server(ring: Keyring, part: str = "proxy", ahead_s: float = 0.0, status: int = 200) -> Iterator[str]:
    """A server with the deployment's certificate that answers every request with `status`."""

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()

        do_HEAD = do_GET  # noqa: N815  the library's name

        def date_time_string(self, timestamp: float | None = None) -> str:
            return super().date_time_string(time.time() + ahead_s)

        def log_message(self, *_: object) -> None:
            pass

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(ring.folder / part / "server.pem", ring.folder / part / "server.key")

    class Quiet(http.server.HTTPServer):
        def handle_error(self, *_: object) -> None:
            pass

    with Quiet(("127.0.0.1", 0), Answer) as listening:
        listening.socket = context.wrap_socket(listening.socket, server_side=True)
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"localhost:{listening.server_port}"
        finally:
            listening.shutdown()
            thread.join()
