"""The routes of the page, all of them read-only.

    /               the page            /page/NAME      its files
    /picture        its content         /stream         the content again, at every news
    /round          one round           /metrics        for Prometheus

An error is one line of JSON: 404 if the request names something unknown, 503 if the store cannot be read now.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from importlib import resources
from typing import Final

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from fedgc.errors import FedgcError, Unusable
from fedgc.guards import guarded
from fedgc.store.database import Store
from fedgc.store.reading import LATEST
from fedgc.tuner.wanted import CLIENT_GAIN
from fedgc.web.access import Entry, Guard
from fedgc.web.fleet import Wanted
from fedgc.web.json_values import as_json
from fedgc.web.metrics import CONTENT_TYPE, exposition
from fedgc.web.next_plan import WantedClients
from fedgc.web.snapshot import one_round, picture
from fedgc.web.stream import events

MOST_STREAMS: Final = 64  # each asks the store a few times a second
PAGE: Final = {
    "page.html": "text/html; charset=utf-8",
    "page.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "charts.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}


def page_file(name: str) -> bytes:
    """Return one file of the page, or the style of reports."""
    return resources.files("fedgc.web").joinpath("page", name).read_bytes()


def make_app(
    store: Store,
    entry: Entry,
    ends: Callable[[], bool],
    run: str = LATEST,
    client_gain: float = CLIENT_GAIN,
) -> Starlette:
    """Return the app over this store; `ends` is set when streams must end, `run` is shown first.

    `client_gain` is the share of a round by which a wanted client shortens it.
    """
    shown = _Pages(store, ends, run, WantedClients(client_gain))
    answers = {
        "/": shown.page,
        "/page/{name}": shown.part,
        "/picture": shown.picture,
        "/round": shown.round,
        "/stream": shown.stream,
        "/metrics": shown.metrics,
    }
    routes = [Route(path, _guarded(path, answer)) for path, answer in answers.items()]
    return Starlette(
        routes=routes,
        middleware=[Middleware(Guard, entry=entry)],
        exception_handlers={FedgcError: _refused},
    )


def _guarded(
    path: str, answer: Callable[[Request], Awaitable[Response]]
) -> Callable[..., Awaitable[Response]]:
    """Answer 503 in place of an unexpected error."""

    async def answered(request: Request) -> Response:
        with guarded("a request", path):
            return await answer(request)

    return answered


class _Pages:
    """The route handlers."""

    def __init__(self, store: Store, ends: Callable[[], bool], run: str, clients: WantedClients) -> None:
        self._store = store
        self._ends = ends
        self._run = run
        self._clients = clients
        self._streams = 0

    async def page(self, _request: Request) -> Response:
        return Response(page_file("page.html"), media_type=PAGE["page.html"])

    async def part(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in PAGE:
            return Response(status_code=404)
        return Response(page_file(name), media_type=PAGE[name])

    async def picture(self, request: Request) -> Response:
        return _json(await run_in_threadpool(picture, self._store, self._wanted(request)))

    async def round(self, request: Request) -> Response:
        number, run = _number(request, "round", 0), self._wanted(request).run
        return _json(await run_in_threadpool(one_round, self._store, run, number))

    async def stream(self, request: Request) -> Response:
        wanted = self._wanted(request)
        await run_in_threadpool(self._store.pulse, wanted.run)
        if self._streams >= MOST_STREAMS:
            return _refusal(f"saw {self._streams} pages open, needed less than {MOST_STREAMS}", 503)
        return StreamingResponse(self._counted(wanted), media_type="text/event-stream")

    async def _counted(self, wanted: Wanted) -> AsyncIterator[str]:
        self._streams += 1
        try:
            async for each in events(self._store, wanted, self._ends):
                yield each
        finally:
            self._streams -= 1

    async def metrics(self, request: Request) -> Response:
        said = await run_in_threadpool(exposition, self._store, self._wanted(request).run, self._clients)
        return Response(said, headers={"content-type": CONTENT_TYPE})

    def _wanted(self, request: Request) -> Wanted:
        asked = request.query_params
        return Wanted(
            run=asked.get("run") or self._run,
            sort=asked.get("sort") or "name",
            find=asked.get("find", ""),
            page=_number(request, "page", 0),
        )


def _number(request: Request, name: str, default: int) -> int:
    word = request.query_params.get(name, str(default))
    if not (word.isascii() and word.isdigit() and len(word) <= 9):
        raise Unusable(f"{name}: saw {word[:20]!r}, needed a whole number")
    return int(word)


def _json(value: object, status: int = 200) -> Response:
    return Response(as_json(value), status, media_type="application/json")


def _refusal(reason: str, status: int) -> Response:
    return _json({"error": reason}, status)


async def _refused(_request: Request, error: Exception) -> Response:
    return _refusal(str(error), 404 if isinstance(error, Unusable) else 503)
