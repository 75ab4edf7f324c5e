"""A self-check of the page: request everything that a browser would, and judge the answers."""

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields
from http.client import HTTPConnection, HTTPResponse
from typing import Final

from fedgc.errors import EdgeFailed, text_of
from fedgc.web.app import PAGE
from fedgc.web.serve import Served

HEAVIEST: Final = 300_000  # bytes of the page with its first picture
PATIENCE_S: Final = 30.0
_ELSEWHERE: Final = re.compile(rb"(?:src|href|url|import|fetch)\s*[=(]?\s*[\"'(](?:https?:)?//")


@dataclass(frozen=True, slots=True)
class Checked:
    """The results; `faults` is empty if there are none."""

    run: str
    rounds: int
    clients: int
    page_bytes: int
    picture_bytes: int
    picture_s: float
    first_event_s: float
    metrics: int
    elsewhere: int  # references to other machines
    faults: tuple[str, ...]

    def figures(self) -> Mapping[str, object]:
        """Return the results by name."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


def check(served: Served) -> Checked:
    """Request everything from a running page."""
    parts = [_ask(served, "/"), *(_ask(served, f"/page/{name}") for name in PAGE if name != "page.html")]
    began = time.monotonic()
    picture = _ask(served, "/picture")
    picture_s = time.monotonic() - began
    shown = json.loads(picture)
    first_s = _first_event_s(served)
    metrics = [line for line in _ask(served, "/metrics").splitlines() if line and not line.startswith(b"#")]
    elsewhere = sum(len(_ELSEWHERE.findall(part)) for part in parts)
    page_bytes = sum(map(len, parts)) + len(picture)
    findings = {
        f"saw {page_bytes} bytes of page, needed less than {HEAVIEST}": page_bytes >= HEAVIEST,
        f"saw {elsewhere} references to other machines, needed none": elsewhere > 0,
        "saw no metrics, needed some": not metrics,
    }
    if rounds := shown["series"]["last"]:
        run, newest = shown["now"]["run"], rounds[-1]
        _ask(served, f"/round?run={run}&round={newest}")
    return Checked(
        run=shown["now"]["run"],
        rounds=shown["totals"]["rounds"],
        clients=shown["fleet"]["clients"],
        page_bytes=page_bytes,
        picture_bytes=len(picture),
        picture_s=round(picture_s, 4),
        first_event_s=round(first_s, 4),
        metrics=len(metrics),
        elsewhere=elsewhere,
        faults=tuple(sentence for sentence, wrong in findings.items() if wrong),
    )


def _open(served: Served, path: str) -> tuple[HTTPConnection, HTTPResponse]:
    connection = HTTPConnection(*served.address, timeout=PATIENCE_S)
    headers = {"host": f"localhost:{served.address[1]}"}
    if served.token:
        headers["authorization"] = f"Bearer {served.token}"
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
    except OSError as error:
        connection.close()
        raise EdgeFailed(f"page {served.root}: {path}: {text_of(error)}") from error
    if answer.status != 200:
        connection.close()
        raise EdgeFailed(f"page {served.root}: saw status {answer.status} for {path}, needed 200")
    return connection, answer


def _ask(served: Served, path: str) -> bytes:
    connection, answer = _open(served, path)
    try:
        return answer.read()
    finally:
        connection.close()


def _first_event_s(served: Served) -> float:
    began = time.monotonic()
    connection, answer = _open(served, "/stream")
    try:
        said = answer.readline()
    finally:
        connection.close()
    if said != b"event: picture\n":
        raise EdgeFailed(f"page {served.root}: saw {said[:60]!r} on its stream, needed a picture")
    return time.monotonic() - began
