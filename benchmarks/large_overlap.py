"""Rounds on a line where sending takes as long as training: with fragments, and without.

Three clients of real Flower processes do local work. A local step takes `STEP_S`, and an uplink carries a
fragment in the time of a round's steps. The arms differ in one thing:

    fragments   clients train on while a fragment travels, and models come as differences in 8 bits
    waits       the same fragments in lockstep: a client waits for the next model
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.local_run import complete, rounds_of
from benchmarks.report import Value
from fedgc.deploy.app_folder import Setting
from fedgc.deploy.local_federation import LocalFederation, Node

Rows = list[dict[str, Value]]

CLIENTS: Final = 3
FRAGMENTS: Final = 4
STEPS: Final = 8
STEP_S: Final = 0.5
TRAIN_S: Final = STEPS * STEP_S
SIZE_BYTES: Final = 24_000_000
UPLINK_KB_S: Final = SIZE_BYTES / FRAGMENTS / TRAIN_S / 1000
PRACTICE: Final = 2  # rounds
ROUNDS: Final = 6
WAIT_S: Final = 240.0
ARMS: Final[Mapping[str, Mapping[str, Setting]]] = {
    "fragments": {"gate.lockstep": "off", "links.download-codec": "int8"},
    "waits": {"gate.lockstep": "on"},
}
SETTINGS: Final[Mapping[str, Setting]] = {
    "work": "local",
    "rounds": PRACTICE + ROUNDS + 1,
    "local-steps": STEPS,
    "links.fragments": FRAGMENTS,
    "links.kind": "session",
    "links.upload-slots": CLIENTS,
    "history.evaluate-every": 0,
    "history.keep-checkpoints": 0,
    "client.threads": 1,
    "min-clients": CLIENTS,
    "data.chunks": CLIENTS,
}


def bench_overlap(folder: Path, task: str, environment: Mapping[str, str]) -> Rows:
    """Return the rounds of both arms, on a model of `SIZE_BYTES`."""
    own: dict[str, Setting] = {"pace-s": STEP_S, "uplink-kb-s": UPLINK_KB_S}
    nodes = [Node(f"slow-{n}", own) for n in range(CLIENTS)]
    rows: Rows = []
    with LocalFederation(nodes, folder=folder / "slow", environment=environment) as federation:
        for arm, settings in ARMS.items():
            run = federation.submit({**SETTINGS, **settings, "task": task, "run": arm})
            complete(federation, run, arm, WAIT_S)
            rows += _rounds(folder / "fedgc.db", arm)
    return rows


def _rounds(database: Path, arm: str) -> Rows:
    return [
        {
            "what": "overlap",
            "arm": arm,
            "outcome": this.row.outcome,
            "round_s": seconds,
            "up_bytes": this.up_bytes,
            "down_bytes": this.down_bytes,
        }
        for this, seconds, _ in rounds_of(database, arm, PRACTICE)
    ]


def figures(rows: Sequence[Mapping[str, Value]]) -> dict[str, float | None]:
    """Return a round's time over that of its steps, and the bytes of 8-bit models over those of float32.

    >>> row = {"what": "overlap", "arm": "waits", "round_s": 10.0}
    >>> figures([row])["waits_ratio"]
    2.5
    """
    of_arm = {arm: [row for row in rows if row.get("arm") == arm] for arm in ARMS}
    down = _median(of_arm["fragments"], "down_bytes")
    return {
        "overlap_ratio": _over(_median(of_arm["fragments"], "round_s"), TRAIN_S),
        "waits_ratio": _over(_median(of_arm["waits"], "round_s"), TRAIN_S),
        "download_ratio": _over(down, CLIENTS * SIZE_BYTES / FRAGMENTS),
    }


def _median(rows: Sequence[Mapping[str, Value]], name: str) -> float | None:
    return median(float(row[name] or 0.0) for row in rows) if rows else None


def _over(value: float | None, by: float) -> float | None:
    return None if value is None else value / by
