"""Who may see the page.

Bound to this machine, it answers whoever is on it, but only under this machine's own names: a page from
elsewhere whose name was made to point here (DNS rebinding) is refused. Bound to anything else, or where a
token was given, the token is asked for: in the address once, from then on in a cookie that no script reads,
or as a bearer token (Prometheus). Every answer forbids the browser to load anything from another machine.

May import: errors; starlette.
"""

import hmac
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Final

from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fedgc.errors import Unusable

COOKIE: Final = "fedgc_watch"
LEAST_TOKEN: Final = 16
LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """What a browser must show: a token where there is one, else one of this machine's names."""

    token: str | None = None

    def __post_init__(self) -> None:
        if self.token is not None and (len(self.token) < LEAST_TOKEN or not self.token.isascii()):
            raise Unusable(
                f"--token: saw {len(self.token)} characters, needed at least {LEAST_TOKEN}, all of them ASCII"
            )

    def fits(self, offered: str) -> bool:
        """Return whether this is the token; it takes as long whichever of its letters is wrong."""
        return self.token is not None and hmac.compare_digest(offered.encode(), self.token.encode())


class Guard:
    """Stands before an app: turns away, lets in, and adds the headers that keep the browser here."""

    def __init__(self, app: ASGIApp, entry: Entry) -> None:
        self._app = app
        self._entry = entry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or pass on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        answer = self._turned_away(scope)
        await (answer or self._app)(scope, receive, send_with_headers)

    def _turned_away(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if self._entry.token is None:
            name = headers.get("host", "").rpartition(":")[0] or headers.get("host", "")
            named = name if name in LOOPBACK else headers.get("host", "")
            return None if named in LOOPBACK else PlainTextResponse("this name is not ours\n", 421)
        if self._entry.fits(_offered(headers)):
            return None
        if scope["path"] == "/" and self._entry.fits(QueryParams(scope["query_string"]).get("token", "")):
            answer = RedirectResponse("/", 303)
            answer.set_cookie(COOKIE, self._entry.token, httponly=True, samesite="strict")
            return answer
        refusal = PlainTextResponse("needed the token: open the address that `fedgc watch` printed\n", 401)
        refusal.headers["www-authenticate"] = "Bearer"
        return refusal


def _offered(headers: Headers) -> str:
    """Return the token that a request brings in its headers, if any."""
    kind, _, bearer = headers.get("authorization", "").partition(" ")
    if kind.casefold() == "bearer":
        return bearer.strip()
    try:
        cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return cookie.value if cookie else ""
