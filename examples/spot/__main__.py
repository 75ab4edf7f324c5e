"""Clients on machines that may be taken away: some with a notice (SIGTERM), some without (SIGKILL)."""

import random
import time
from collections.abc import Iterator
from pathlib import Path

from examples.federation import Federation, Result, main, say
from examples.sites import SITES, STEPS
from fedgc.deploy.local_federation import Node

DEPARTURES = 8
SEED = 1
PACE_S = 0.03  # least time of a step, as if the model were larger
NAMES = tuple(f"site-{number}" for number in range(SITES))
SETTINGS = {
    "task": "examples.sites:task",
    "work": "local",
    "local-steps": 30,
    "learning-rate": 0.2,
    "optimizer.shared-momentum": "off",
    "gate.name": "every",
    "gate.period": 3,  # an exchange in every third round: a client has steps to lose
    "min-clients": 2,
    "links.grace-s": 2.0,
}
BANDS = {
    "accuracy": (0.9, 1.0),
    "accuracy_gap_points": (-3.0, 3.0),
    "lost_percent_after_sigterm": (0.0, 2.0),
    "departures": (DEPARTURES, DEPARTURES),
}


def example(folder: Path) -> Result:
    """Take clients away at random moments, and bring them back; then train without that for comparison."""
    (folder / "steps").mkdir()
    nodes = [Node(name, {"site": number, "pace-s": PACE_S}) for number, name in enumerate(NAMES)]
    with Federation(folder, nodes, **{STEPS: str(folder / "steps")}) as federation:
        run = federation.begin("spot", {**SETTINGS, "rounds": 1_000_000, "min-clients": len(NAMES)})
        federation.until_exchange("spot")
        rows = list(departures(federation, folder / "steps"))
        federation.until_exchange("spot")
        federation.stop(run)
        federation.wait(run, 60.0)
        accuracy = federation.last("spot", "accuracy")
        rounds = len(federation.rounds("spot"))
        say(f"the same {rounds} rounds without departures")
        federation.complete("calm", {**SETTINGS, "rounds": rounds, "min-clients": len(NAMES)})
        calm = federation.last("calm", "accuracy")
    lost = {kind: [row for row in rows if row["signal"] == kind] for kind in ("SIGTERM", "SIGKILL")}
    figures = {
        "departures": len(rows),
        "rounds": rounds,
        "accuracy": accuracy,
        "accuracy_calm": calm,
        "accuracy_gap_points": 100.0 * (calm - accuracy),
        **{f"lost_percent_after_{kind.lower()}": lost_percent(each) for kind, each in lost.items()},
    }
    return Result(figures, rows)


def departures(federation: Federation, steps: Path) -> Iterator[dict]:
    """Take a random client away by a random signal, see what became of its steps, and start it again."""
    chance = random.Random(SEED)  # noqa: S311  moments, not secrets
    uncounted = dict.fromkeys(NAMES, 0)
    for number in range(DEPARTURES):
        federation.until_exchange("spot")
        time.sleep(chance.uniform(0.5, 3.0))
        name, kind = chance.choice(NAMES), ("SIGTERM", "SIGKILL")[number % 2]
        since = counted(federation, name)
        (federation.leave if kind == "SIGTERM" else federation.kill)(name)
        federation.until_exchange("spot")
        done, kept = (steps / str(NAMES.index(name))).stat().st_size, counted(federation, name)
        lost = done - kept - uncounted[name]
        uncounted[name] = done - kept
        at_stake = lost + kept - since
        say(f"{kind} to {name}: {at_stake} steps since the last exchange, {lost} of them lost")
        yield {"signal": kind, "client": name, "steps_at_stake": at_stake, "steps_lost": lost}
        federation.restart(name)


def counted(federation: Federation, name: str) -> int:
    """Return the steps of a client that were counted so far."""
    return sum(row.counted for _, row in federation.client_rows("spot")[name])


def lost_percent(rows: list[dict]) -> float | None:
    """Return the share of the steps at stake that was lost."""
    at_stake = sum(row["steps_at_stake"] for row in rows)
    return 100.0 * sum(row["steps_lost"] for row in rows) / at_stake if at_stake else None


if __name__ == "__main__":
    main(example, BANDS, "spot")
