"""Access control of the page.

Bound to loopback, it answers every user of this machine, but only under this machine's own names: that blocks
DNS rebinding, by which a foreign page gets a name that resolves to loopback. Bound to any other address, or
with a token, it requires the token: once in the address, or as a bearer token (Prometheus). A browser that
showed it gets an HttpOnly cookie with a random value of this process, not the token. Wrong tokens are rate
limited (guesses.py). Every answer forbids the browser to load anything from another machine.
"""

import hmac
import math
import secrets
import time
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import Final

from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fedgc.errors import Unusable
from fedgc.web.guesses import Guesses

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
    """What a browser must show: the token if there is one, else one of this machine's names.

    A browser that has shown the token gets a cookie, which is valid too.
    """

    token: str | None = None
    cookie: str = field(default_factory=lambda: secrets.token_urlsafe(24))

    def __post_init__(self) -> None:
        if self.token is not None and (len(self.token) < LEAST_TOKEN or not self.token.isascii()):
            raise Unusable(
                f"token: saw {len(self.token)} characters, needed at least {LEAST_TOKEN}, all of them ASCII"
            )

    def fits(self, offered: str) -> bool:
        """Return whether this is the token, in constant time."""
        return self.token is not None and hmac.compare_digest(offered.encode(), self.token.encode())

    def knows(self, cookie: str) -> bool:
        """Return whether this is the cookie that browsers get after the token."""
        return hmac.compare_digest(cookie.encode(), self.cookie.encode())


class Guard:
    """ASGI middleware that checks access and adds security headers."""

    def __init__(self, app: ASGIApp, entry: Entry) -> None:
        self._app = app
        self._entry = entry
        self._guesses = Guesses(time.monotonic)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or call the app."""
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
        if self._entry.knows(_cookie(headers, _cookie_name(scope))):
            return None
        bearer, asked = _bearer(headers), _asked(scope)
        if not (bearer or asked):
            return _refusal()
        return self._tried(scope, bearer, asked)

    def _tried(self, scope: Scope, bearer: str, asked: str) -> Response | None:
        """Check a token, unless its address has sent too many wrong ones."""
        address = (scope.get("client") or ("",))[0]
        if wait_s := self._guesses.wait_s(address):
            return _too_many(wait_s)
        if self._entry.fits(bearer):
            return None
        if self._entry.fits(asked):
            return self._let_in(scope)
        self._guesses.wrong(address)
        return _refusal()

    def _let_in(self, scope: Scope) -> Response:
        """Give a browser its cookie, and redirect it to an address without the token."""
        answer = RedirectResponse("/", 303)
        answer.set_cookie(
            _cookie_name(scope),
            self._entry.cookie,
            httponly=True,
            samesite="lax",  # sent also where a link on another site leads here: all answers only read
            secure=scope.get("scheme") == "https",
        )
        return answer


def _refusal() -> Response:
    refusal = PlainTextResponse(
        "needed the token of `fedgc watch`, once in the address as /?token=TOKEN\n", 401
    )
    refusal.headers["www-authenticate"] = "Bearer"
    return refusal


def _too_many(wait_s: float) -> Response:
    wait = math.ceil(wait_s)
    return PlainTextResponse(
        f"saw too many wrong tokens from this address, needed {wait} s without one\n",
        429,
        {"retry-after": str(wait)},
    )


def _bearer(headers: Headers) -> str:
    kind, _, bearer = headers.get("authorization", "").partition(" ")
    return bearer.strip() if kind.casefold() == "bearer" else ""


def _asked(scope: Scope) -> str:
    """Return the token in the page's address."""
    return QueryParams(scope["query_string"]).get("token", "") if scope["path"] == "/" else ""


def _cookie_name(scope: Scope) -> str:
    """Return the name of the cookie, one for each port: browsers share cookies between ports."""
    return f"{COOKIE}_{(scope.get('server') or ('', 0))[1]}"


def _cookie(headers: Headers, name: str) -> str:
    try:
        cookie = SimpleCookie(headers.get("cookie", "")).get(name)
    except CookieError:
        return ""
    return cookie.value if cookie else ""
