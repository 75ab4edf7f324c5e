"""A TCP relay that delays what it passes on: benchmarks have the latency of a network with it."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from typing import Final

from fedgc.deploy.local_federation import free_port
from fedgc.sim.owned import end_with_the_parent

READ_BYTES: Final = 2**16


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
    async def both(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
            await asyncio.gather(_one(reader, far_writer, delay_s), _one(far_reader, writer, delay_s))

    server = await asyncio.start_server(both, "127.0.0.1", near)
    await server.serve_forever()


async def _one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float) -> None:
    """Pass on the bytes of one direction, and its end."""
    held: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
    clock = asyncio.get_running_loop().time

    async def take() -> None:
        data = b"-"
        while data:
            data = await reader.read(READ_BYTES)
            held.put_nowait((clock() + delay_s, data))

    async def give() -> None:
        while True:
            due_s, data = await held.get()
            await asyncio.sleep(due_s - clock())
            if not data:
                writer.close()
                return
            writer.write(data)

    with suppress(OSError):
        await asyncio.gather(take(), give())
