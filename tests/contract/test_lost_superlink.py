"""Test a real SuperNode behind a proxy whose certificate expires: it ends once Flower has given up."""

import asyncio
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from fedgc.deploy.flower_programs import write_programs
from fedgc.deploy.key_files import Keyring
from fedgc.deploy.local_federation import LocalFederation, free_port
from fedgc.flower import contact
from fedgc.processes import supervision
from tests.contract.conftest import eventually

pytestmark = [pytest.mark.contract, pytest.mark.timeout(300)]
DAY_S = 86_400.0


class Proxy:
    """Ends TLS before a SuperLink; its certificate can be replaced, and its connections cut."""

    def __init__(self, ring: Keyring, upstream: int) -> None:
        self._folder, self._upstream = ring.folder / "proxy", upstream
        self._lines: set[asyncio.StreamWriter] = set()
        self.has_pulled = False
        self._loop = asyncio.new_event_loop()
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.load()

    def load(self) -> None:
        self._context.load_cert_chain(self._folder / "server.pem", self._folder / "server.key")

    def cut(self) -> None:
        async def close() -> None:
            for each in self._lines:
                each.transport.abort()

        asyncio.run_coroutine_threadsafe(close(), self._loop).result(10.0)

    @contextmanager
    def listening(self) -> Iterator[str]:
        serving = asyncio.start_server(self._relay, "127.0.0.1", port := free_port(), ssl=self._context)
        server = self._loop.run_until_complete(serving)
        thread = threading.Thread(target=self._loop.run_forever)
        thread.start()
        try:
            yield f"localhost:{port}"
        finally:
            self.cut()
            self._loop.call_soon_threadsafe(self._loop.stop)
            thread.join()
            server.close()
            while tasks := asyncio.all_tasks(self._loop):
                self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self._loop.run_until_complete(server.wait_closed())
            self._loop.close()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._lines.add(writer)
        there_reader, there = await asyncio.open_connection("127.0.0.1", self._upstream)
        self._lines.add(there)
        await asyncio.gather(self._pump(reader, there), self._pump(there_reader, writer))
        self._lines -= {writer, there}

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                self.has_pulled = self.has_pulled or b"/v1/fleet/pull-messages" in data
                writer.write(data)
                await writer.drain()
        writer.close()


def test_node_ends_once_its_superlink_has_expired_certificate(tmp_path: Path):
    ring, began = Keyring(tmp_path / "keys"), tmp_path / "contact"
    ring.begin(("localhost",), time.time(), 30)
    write_programs(tmp_path / "programs")
    with LocalFederation(0, folder=tmp_path / "federation") as federation:
        proxy = Proxy(ring, int(federation.address.rpartition(":")[2]))
        with proxy.listening() as address, (tmp_path / "log").open("wb") as log:
            node = subprocess.Popen(
                [
                    *(sys.executable, supervision.__file__, "--alone", "--leave", "20", "flower-supernode"),
                    *("--root-certificates", str(ring.folder / "authority" / "ca.pem")),
                    *("--superlink", address, "--host", "127.0.0.1", "--port", str(free_port())),
                ],
                env={
                    **os.environ,
                    "PATH": os.pathsep.join([str(tmp_path / "programs"), os.environ["PATH"]]),
                    "FLWR_HOME": str(tmp_path / "flwr"),
                    "FLWR_TELEMETRY_ENABLED": "0",
                    "FLWR_DISABLE_UPDATE_CHECK": "1",
                    contact.ENVIRONMENT: str(began),
                },
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            try:
                eventually(lambda: proxy.has_pulled)  # a SuperNode that cannot begin is ended by Flower
                assert began.exists()
                ring.renew(("localhost",), time.time() - 100 * DAY_S, 30)
                proxy.load()

                def has_ended() -> bool:
                    proxy.cut()  # again: a handshake that has begun ends with the old certificate
                    return node.poll() is not None

                eventually(has_ended)
                assert node.returncode == contact.GIVEN_UP
            finally:
                with suppress(ProcessLookupError):
                    node.send_signal(signal.SIGTERM)
                node.wait(60.0)
    said = (tmp_path / "log").read_text(errors="replace")
    assert "SSL/TLS handshake error detected." in said
    assert "saw its SuperLink given up after the error above" in said
