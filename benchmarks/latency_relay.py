"""A TCP relay that delays what it passes on: benchmarks have the latency of a network with it."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any, cast

from fedgc.deploy.local_federation import free_port
from fedgc.sim.owned import end_with_the_parent


@contextmanager
def delayed(port: int, delay_s: float) -> Iterator[int]:
    """Yield a port from which all bytes reach another port of this machine so much later, and back."""
    near = free_port()
    relay = get_context("spawn").Process(target=_serve, args=(near, port, delay_s), daemon=True)
    relay.start()
    try:
        yield near
    finally:
        relay.kill()
        relay.join()


def _serve(near: int, port: int, delay_s: float) -> None:
    end_with_the_parent()
    asyncio.run(_relay(near, port, delay_s))


async def _relay(near: int, port: int, delay_s: float) -> None:
    loop = asyncio.get_running_loop()

    def accepted() -> _End:
        return _End(delay_s, lambda: loop.create_connection(lambda: _End(delay_s), "127.0.0.1", port))

    server = await loop.create_server(accepted, "127.0.0.1", near)
    await server.serve_forever()


class _End(asyncio.Protocol):
    """One end of a connection: what comes from it goes to the other end, so much later."""

    def __init__(self, delay_s: float, connect: "Connect | None" = None) -> None:
        """`connect` makes the other end, if that does not exist yet."""
        self._delay_s, self._connect = delay_s, connect
        self._loop = asyncio.get_running_loop()
        self._held: deque[bytes] = deque()  # oldest first; empty bytes are the end
        self._transport: asyncio.Transport
        self._other: _End | None = None
        self._connecting: asyncio.Task[None] | None = None  # the loop itself holds only a weak reference

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Read nothing before there is another end."""
        self._transport = cast("asyncio.Transport", transport)
        if self._connect is not None:
            self._transport.pause_reading()
            self._connecting = self._loop.create_task(self._meet(self._connect))

    async def _meet(self, connect: "Connect") -> None:
        try:
            _, self._other = await connect()
        except OSError:
            self._transport.close()
            return
        self._other._other = self
        self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        """Hold what came."""
        self._held.append(data)
        self._loop.call_later(self._delay_s, self._give)

    def connection_lost(self, _: Exception | None) -> None:
        """Hold the end."""
        self.data_received(b"")

    def _give(self) -> None:
        data = self._held.popleft()
        if self._other is None or self._other._transport.is_closing():
            return
        if data:
            self._other._transport.write(data)
        else:
            self._other._transport.close()


Connect = Callable[[], Coroutine[Any, Any, tuple[asyncio.Transport, _End]]]
