"""A consortium of four sites under secure aggregation: one vanishes in mid-round, and the sums survive."""

import time
from collections import Counter
from pathlib import Path

from examples.federation import Federation, Result, eventually, main, say
from examples.sites import SITES
from fedgc.deploy.local_consortium import make_consortium
from fedgc.errors import FedgcError
from fedgc.messages import SUMMED
from fedgc.secagg import Quantizer

ROUNDS = 12
VANISHES, AFTER = "site-2", 3  # while updates are collected, after so many rounds
LATEST = 3  # rounds later, it vanishes at any moment
PACE_S = 0.03
LEAST_SITES = 3  # in a sum: fixed in the descriptor that all sites have signed
SETTINGS = {
    "task": "examples.sites:task",
    "work": "local",
    "rounds": ROUNDS,
    "local-steps": 20,
    "learning-rate": 0.2,
    "optimizer.shared-momentum": "off",
    "gate.name": "every",
    "links.grace-s": 2.0,
}
QUANTIZER = Quantizer(clip=1.0, bits=20, ring=32, w_max=2000)
BANDS = {
    "sums": (ROUNDS - 2, ROUNDS),
    "sites_in_smallest_sum": (LEAST_SITES, LEAST_SITES),
    "sums_without_one_site": (1, ROUNDS),
    "losses_seen": (0, 0),
    "accuracy": (0.8, 1.0),
}


def example(folder: Path) -> Result:
    """Train under masks, lose a site, and list what the server saw."""
    configs = {f"site-{number}": {"site": number, "pace-s": PACE_S} for number in range(SITES)}
    consortium = make_consortium(folder / "sites", configs, QUANTIZER)
    with Federation(folder, consortium.nodes) as federation:
        run = federation.begin("consortium", {**SETTINGS, **consortium.settings()})
        vanish(federation)
        federation.finish(run)
        rounds, rows = federation.rounds("consortium"), federation.client_rows("consortium")
        accuracy = federation.last("consortium", "accuracy")
        with federation.store() as store:
            audit = store.audited("consortium")
    among = Counter(number for own in rows.values() for number, row in own if row.counted)
    sums = [among[each.row.round] for each in rounds if each.row.outcome in SUMMED]
    for each in audit:
        say(f"audit: {each.kind}: {each.what}")
    for size, times in sorted(Counter(sums).items(), reverse=True):
        say(f"the server saw {times} sums of the updates of {size} sites, and no update of one site")
    return Result(
        {
            "rounds": len(rounds),
            "sums": len(sums),
            "sites_in_smallest_sum": min(sums, default=0),
            "sums_without_one_site": sum(size == SITES - 1 for size in sums),
            "losses_seen": sum(each.row.loss is not None for each in rounds),
            "accuracy": accuracy,
        },
        [
            {"round": each.row.round, "outcome": each.row.outcome, "sites_in_sum": among[each.row.round]}
            for each in rounds
        ],
    )


def vanish(federation: Federation) -> None:
    """Kill all processes of a site while the server collects masked updates."""
    eventually(lambda: due(federation))
    federation.kill(VANISHES)
    say(f"SIGKILL to {VANISHES}, after round {len(federation.rounds('consortium'))}; it does not come back")


def due(federation: Federation) -> bool:
    """Whether the moment to vanish has come."""
    last = len(federation.rounds("consortium"))
    return last >= AFTER + LATEST or (last >= AFTER and phase(federation) == "collecting")


def phase(federation: Federation) -> str:
    """Return the phase of the present round; looked at often, as collecting is short."""
    end = time.monotonic() + 0.2
    said = ""
    while said != "collecting" and time.monotonic() < end:
        try:
            with federation.store() as store:
                said = str(store.run("consortium").present.get("phase"))
        except FedgcError:
            return ""
    return said


if __name__ == "__main__":
    main(example, BANDS, "consortium")
