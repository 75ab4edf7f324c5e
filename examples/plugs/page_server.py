"""The page of the buttons: on loopback, for holders of the token.

/          the page         /page/NAME   its files
/state     what it shows    /press       POST: one button
"""

import json
import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from examples.plugs.fleet import Fleet
from fedgc.errors import EdgeFailed, FedgcError, Unusable
from fedgc.web.access import Entry, Guard

FOLDER = Path(__file__).parent / "page"
FILES = ("page.css", "page.js")
LOOPBACK = "127.0.0.1"
LARGEST_PRESS = 200  # bytes
STOP_S = 5.0


def make_app(fleet: Fleet, entry: Entry) -> Starlette:
    """Return the app of the page."""

    async def page(_: Request) -> Response:
        return FileResponse(FOLDER / "page.html")

    async def part(request: Request) -> Response:
        name = request.path_params["name"]
        return FileResponse(FOLDER / name) if name in FILES else Response(status_code=404)

    async def state(_: Request) -> Response:
        return JSONResponse(await run_in_threadpool(fleet.state))

    async def press(request: Request) -> Response:
        name, button = await _pressed(request)
        await run_in_threadpool(fleet.press, name, button)
        return JSONResponse({"pressed": [name, button]}, 202)

    return Starlette(
        routes=[
            Route("/", page),
            Route("/page/{name}", part),
            Route("/state", state),
            Route("/press", press, methods=["POST"]),
        ],
        middleware=[Middleware(Guard, entry=entry)],
        exception_handlers={FedgcError: _refused},
    )


async def _pressed(request: Request) -> tuple[str, str]:
    """Return the process and the button that a request names."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > LARGEST_PRESS:
            raise Unusable(f"a button: saw more than {LARGEST_PRESS} bytes, needed a name and a button")
    try:
        said = json.loads(body)
        return str(said["name"]), str(said["button"])
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise Unusable("a button: saw another form, needed an object with name and button") from error


async def _refused(_: Request, error: Exception) -> Response:
    return JSONResponse({"error": str(error)}, 400 if isinstance(error, Unusable) else 503)


@contextmanager
def serving(fleet: Fleet, port: int) -> Iterator[str]:
    """Serve the page while the block runs; yield its address, with the token."""
    entry = Entry(secrets.token_urlsafe(24))
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((LOOPBACK, port))
        listener.listen()
    except OSError as error:
        listener.close()
        raise EdgeFailed(f"port {port}: {error.strerror}, needed a free one; --port 0 takes any") from error
    config = uvicorn.Config(
        make_app(fleet, entry),
        log_level="error",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=round(STOP_S),
        lifespan="off",
        ws="none",
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: server.run(sockets=[listener]), daemon=True)
    thread.start()
    try:
        yield f"http://{LOOPBACK}:{listener.getsockname()[1]}/?token={entry.token}"
    finally:
        server.should_exit = True
        thread.join(2 * STOP_S)
        listener.close()
