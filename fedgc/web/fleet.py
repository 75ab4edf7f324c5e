"""The clients of a run on the page: one screen, in the requested order."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from fedgc.errors import Unusable, nearest
from fedgc.store.database import Store
from fedgc.store.reading import LATEST
from fedgc.store.records import Decided
from fedgc.store.views import Lately, Round, Run
from fedgc.web import measures

SCREEN: Final = 50  # clients


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the page requests: a run, a search for clients, and their order."""

    run: str = LATEST
    sort: str = "name"
    find: str = ""
    page: int = 0

    def __post_init__(self) -> None:
        if self.sort not in ORDERS:
            raise Unusable(
                f"sort: saw {self.sort!r}, needed one of {', '.join(ORDERS)}{nearest(self.sort, ORDERS)}"
            )
        if self.page < 0:
            raise Unusable(f"page: saw {self.page}, needed 0 or more")


@dataclass(frozen=True, slots=True)
class Cell:
    """One client in one round of its strip."""

    finished: int
    counted: int
    failure: str
    later: bool  # whether its work can still be in the sum of a later round


@dataclass(frozen=True, slots=True)
class Line:
    """One client of the fleet table; sums are over the rounds of the strips."""

    client: str
    name: str
    site: str
    link: str
    present: bool | None  # None: unknown
    last_seen: float | None
    load: int | None  # chunks assigned by the plan
    rounds: int
    finished: int
    counted: int
    step_s: float | None
    sent_bytes: int
    failures: int
    refused: int
    strip: tuple[Cell | None, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)  # of the newest model that it scored
    scored: int | None = None  # the round of that model


@dataclass(frozen=True, slots=True)
class Fleet:
    """One screen of the fleet; `columns` are the rounds of the strips."""

    clients: int
    present: int
    found: int
    page: int
    screen: int
    columns: tuple[int, ...]
    lines: tuple[Line, ...]
    measures: tuple[str, ...]  # that clients have scored, also those on other screens


_NEVER: Final = -math.inf
ORDERS: Final[Mapping[str, Any]] = {
    "name": lambda line: (line.name or line.client).casefold(),
    "speed": lambda line: -(line.step_s if line.step_s is not None else _NEVER),  # the slowest first
    "counted": lambda line: -line.counted,
    "discarded": lambda line: -(line.finished - line.counted),
    "faults": lambda line: -(line.failures + line.refused),
    "sent": lambda line: -line.sent_bytes,
    "seen": lambda line: line.last_seen if line.last_seen is not None else _NEVER,  # longest silent first
}


def fleet_of(
    store: Store, run: Run, wanted: Wanted, newest: Sequence[Round], plans: Sequence[Decided]
) -> Fleet:
    """Return the requested screen of clients, with the newest rounds."""
    lines = _lines(store, run, max(len(newest), 1), plans)
    asked = wanted.find.casefold()
    found = [each for each in lines if asked in f"{each.name} {each.client} {each.site}".casefold()]
    found.sort(key=ORDERS[wanted.sort])
    pages = max(1, math.ceil(len(found) / SCREEN))
    page = min(wanted.page, pages - 1)
    screen = found[page * SCREEN : (page + 1) * SCREEN]
    return Fleet(
        clients=len(lines),
        present=sum(bool(each.present) for each in lines),
        found=len(found),
        page=page,
        screen=SCREEN,
        columns=tuple(each.row.round for each in newest),
        lines=_with_strips(store, run.run, screen, newest),
        measures=tuple(measures.shown(each.metrics for each in lines)),
    )


def _lines(store: Store, run: Run, rounds: int, plans: Sequence[Decided]) -> list[Line]:
    """Return every client known to the run: those that worked recently, and all that joined."""
    lately = {each.client: each for each in store.lately(run.run, rounds)}
    states = present_clients(run)
    loads = plans[-1].basis.get("loads", {}) if plans else {}
    known = {each.client: each for each in store.clients()}
    scores = {each.client: each for each in store.last_scores(run.run)}
    lines = []
    for client in dict.fromkeys([*lately, *states, *scores]):
        own, seen, recorded = lately.get(client), known.get(client), states.get(client)
        lines.append(
            Line(
                client=client,
                name=(seen.name if seen else "") or str((recorded or {}).get("name", "")),
                site=seen.site if seen else "",
                link=(seen.link if seen else "") or str((recorded or {}).get("link", "")),
                present=bool(recorded["present"]) if recorded and "present" in recorded else None,
                last_seen=seen.last_seen if seen else None,
                load=whole(loads.get(client)),
                metrics=scores[client].metrics if client in scores else {},
                scored=scores[client].round if client in scores else None,
                **_did(own),
            )
        )
    return lines


def _did(own: Lately | None) -> dict[str, Any]:
    if own is None:
        nothing = dict.fromkeys(("rounds", "finished", "counted", "sent_bytes", "failures", "refused"), 0)
        return {**nothing, "step_s": None}
    return {
        "rounds": own.rounds,
        "finished": own.finished,
        "counted": own.counted,
        "step_s": own.busy_s / own.steps if own.steps else None,
        "sent_bytes": own.up_bytes + own.down_bytes + own.control_bytes,
        "failures": own.failures,
        "refused": own.refused,
    }


def _with_strips(store: Store, run: str, screen: Sequence[Line], newest: Sequence[Round]) -> tuple[Line, ...]:
    later = {each.row.round: each.row.outcome == "skipped" for each in newest}
    cells: dict[str, dict[int, Cell]] = {}
    if later:
        for number, row in store.strips(run, [each.client for each in screen], len(later)):
            cell = Cell(row.finished, row.counted, row.failure, later.get(number, False))
            cells.setdefault(row.client, {})[number] = cell
    return tuple(
        replace(each, strip=tuple(cells.get(each.client, {}).get(number) for number in later))
        for each in screen
    )


def present_clients(run: Run) -> dict[str, Mapping[str, Any]]:
    """Return the last recorded state of each client."""
    states = run.present.get("clients", ())
    return {str(each["client"]): each for each in states if isinstance(each, Mapping) and "client" in each}


def whole(value: object) -> int | None:
    """Return an integer, None for anything else that JSON may hold."""
    return value if isinstance(value, int) else None
