"""The overhead of masks in a round on real Flower processes: four sites, a model of 10 MB, over sessions.

The overhead of a round is defined as in the link benchmark: its duration less the local steps of the slowest
site. Flower's own SecAgg+ uses the same SuperLink, SuperNodes, model and step as the rounds without masks; a
failure leaves a row with the reason.
"""

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from benchmarks.local_run import complete, rounds_of
from benchmarks.plus import SECAGG_PLUS
from benchmarks.report import Value
from benchmarks.stock import MODELS, Quickstart, overheads_s
from fedgc.deploy.app_folder import Setting
from fedgc.deploy.local_consortium import make_consortium
from fedgc.deploy.local_federation import LocalFederation, Node
from fedgc.errors import EdgeFailed, words_of
from fedgc.secagg import Quantizer

SITES: Final = 4
WAIT_S: Final = 240.0
PLUS_WAIT_S: Final = 150.0
PRACTICE: Final = 1  # rounds in which chunks are loaded and keys are made
PLUS_ROUNDS: Final = 2  # beyond practice: each takes many seconds
NUMBERS: Final = Quantizer(clip=1.0, bits=20, ring=32, w_max=8)
SETTINGS: Final[Mapping[str, Setting]] = {
    "task": "bench_models:mb10",
    "work": "coded",
    "local-steps": 1,
    "code.replicas": 1,
    "code.blocks": 1,
    "data.chunks": SITES,
    "min-clients": SITES,
    "history.evaluate-every": 0,
    "history.keep-checkpoints": 0,
    "links.kind": "session",
    "client.threads": 1,
}


def deployed_rows(rounds: int) -> Iterator[dict[str, Value]]:
    """Run plain rounds, masked rounds and Flower's, and yield the overhead of each."""
    with tempfile.TemporaryDirectory(prefix="fedgc-bench-") as name:
        folder = Path(name)
        (folder / "bench_models.py").write_text(MODELS)
        names = [f"site-{number}" for number in range(SITES)]
        consortium = make_consortium(folder / "sites", {each: {} for each in names}, NUMBERS)
        plain: Sequence[Node] = [Node(each) for each in names]
        methods: Mapping[str, tuple[Sequence[Node], Mapping[str, Setting]]] = {
            "plain": (plain, {}),
            "masked": (consortium.nodes, consortium.settings()),
        }
        for method, (nodes, settings) in methods.items():
            environment = {
                "FEDGC_DB": str(folder / f"{method}.db"),
                "XDG_STATE_HOME": str(folder / method),
                "PYTHONPATH": os.pathsep.join(filter(None, [name, os.environ.get("PYTHONPATH", "")])),
            }
            with LocalFederation(
                nodes, folder=folder / f"run-{method}", environment=environment
            ) as federation:
                own = {**settings, "rounds": rounds + PRACTICE + 1, "run": method}
                complete(federation, federation.submit({**SETTINGS, **own}), method, WAIT_S)
                if method == "plain":
                    yield from _plus_rows(federation, folder / "plus")
            yield from _rows(folder / f"{method}.db", method)


def _plus_rows(federation: LocalFederation, folder: Path) -> Iterator[dict[str, Value]]:
    run = Quickstart("mb10", PRACTICE + PLUS_ROUNDS, SITES)
    try:
        found = overheads_s(federation, folder, SECAGG_PLUS, run, PLUS_WAIT_S)
    except EdgeFailed as error:
        yield {"what": "failed", "part": "flower deployed", "reason": words_of(error)}
        return
    for overhead_s in found[PRACTICE:]:
        yield {"what": "deployed", "method": "flower", "round_s": overhead_s}


def _rows(database: Path, method: str) -> Iterator[dict[str, Value]]:
    for this, seconds, of_clients in rounds_of(database, method, PRACTICE):
        yield {
            "what": "deployed",
            "method": method,
            "outcome": this.row.outcome,
            "round_s": seconds - max((row.busy_s for row in of_clients), default=0.0),
            "collecting_s": this.row.collecting_s,
            "up_bytes": this.up_bytes,
        }
