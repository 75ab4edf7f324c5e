"""Sites that train at night: each hands in what it has when its night ends, and joins again in the next."""

import time
from pathlib import Path

from examples.federation import Federation, Result, main, say
from examples.sites import SITES
from fedgc.deploy.local_federation import Node

DAY_S = 80.0  # so long a day takes here
NIGHTS = 2  # of each site
PACE_S = 0.03  # least time of a step
NAMES = tuple(f"site-{number}" for number in range(SITES))
SETTINGS = {
    "task": "examples.sites:task",
    "work": "local",
    "rounds": 1_000_000,
    "local-steps": 30,
    "learning-rate": 0.2,
    "optimizer.shared-momentum": "off",
    "gate.name": "every",
    "min-clients": 1,
    "links.grace-s": 2.0,
}
BANDS = {
    "nights": (SITES * NIGHTS, SITES * NIGHTS),
    "nights_counted": (SITES * NIGHTS, SITES * NIGHTS),
    "lost_percent": (0.0, 5.0),
    "accuracy": (0.85, 1.0),
}


def night_of(site: int, number: int) -> tuple[float, float]:
    """Return when a night of a site begins and ends, in days; the sites lie in different time zones.

    A night is half a day, so two of four sites train at any time.
    """
    begins = number + site / SITES
    return begins, begins + 0.5


def example(folder: Path) -> Result:
    """Follow the clock: start the sites whose night begins, have those leave whose night ends."""
    nights = {(site, number): night_of(site, number) for site in range(SITES) for number in range(NIGHTS)}
    events = sorted(
        [(begin, "begins", site, number) for (site, number), (begin, _) in nights.items()]
        + [(end, "ends", site, number) for (site, number), (_, end) in nights.items()]
    )
    nodes = [Node(name, {"site": number, "pace-s": PACE_S}) for number, name in enumerate(NAMES)]
    rows = []
    with Federation(folder, nodes) as federation:
        federation.leave(*NAMES)  # no site trains before its first night
        run = federation.begin("windows", SETTINGS)
        began = None
        for at, what, site, number in events:
            if began is not None:
                time.sleep(max(0.0, began + DAY_S * at - time.monotonic()))
            name = NAMES[site]
            if what == "begins":
                federation.restart(name)
                began = time.monotonic() - DAY_S * at if began is None else began
                say(f"{at:.2f} days: the night of {name} begins")
                continue
            federation.leave(name)
            rows.append({"site": name, "night": number, "counted": counted(federation, name)})
            say(f"{at:.2f} days: {name} has left; {rows[-1]['counted']} of its steps are counted so far")
        federation.stop(run)
        federation.wait(run, 60.0)
        works = [row for own in federation.client_rows("windows").values() for _, row in own]
        accuracy = federation.last("windows", "accuracy")
        rounds = len(federation.rounds("windows"))
    finished, in_sums = sum(row.finished for row in works), sum(row.counted for row in works)
    return Result(
        {
            "nights": len(rows),
            "nights_counted": sum(new > 0 for new in new_in_each(rows)),
            "rounds": rounds,
            "steps_finished": finished,
            "lost_percent": 100.0 * (finished - in_sums) / finished,
            "accuracy": accuracy,
        },
        rows,
    )


def counted(federation: Federation, name: str) -> int:
    """Return the steps of a site that were counted so far."""
    return sum(row.counted for _, row in federation.client_rows("windows")[name])


def new_in_each(rows: list[dict]) -> list[int]:
    """Return the steps of each night that were counted by its end."""
    before = dict.fromkeys(NAMES, 0)
    new = []
    for row in rows:
        new.append(row["counted"] - before[row["site"]])
        before[row["site"]] = row["counted"]
    return new


if __name__ == "__main__":
    main(example, BANDS, "windows")
