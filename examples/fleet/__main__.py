"""A fleet of uneven clients with shared data: what was planned and predicted, beside what happened."""

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

from examples.federation import ROOT, Federation, Result, main, say
from fedgc.deploy.local_federation import Node
from fedgc.errors import EdgeFailed

PACES_S = {"fast-1": 0.02, "fast-2": 0.02, "fast-3": 0.02, "half": 0.04, "quarter": 0.08}
UPLINK_KB_S = 400.0
ROUNDS = 12
SETTINGS = {"task": "digits", "work": "coded", "rounds": ROUNDS, "data.chunks": 20, "links.grace-s": 2.0}
BANDS = {
    "accuracy": (0.8, 1.0),
    "measured_over_predicted": (0.4, 2.5),
    "chunks_of_slowest_over_fastest": (0.0, 0.8),
    "samples_counted_percent": (100.0, 100.0),
}


def example(folder: Path) -> Result:
    """Run without history; ask for the plan that follows from it; run again, and compare."""
    nodes = [Node(name, {"pace-s": pace, "uplink-kb-s": UPLINK_KB_S}) for name, pace in PACES_S.items()]
    with Federation(folder, nodes) as federation:
        say("a first run, which measures the clients")
        federation.complete("measured", SETTINGS)
        planned = plan(federation)
        choice = planned["choice"]
        say(f"plan: {choice['words']}, {planned['predicted_s']:.2f} s a round predicted; {planned['reason']}")
        say("a second run, by that plan")
        federation.complete("planned", SETTINGS)
        rows = federation.client_rows("planned")
        rounds = federation.rounds("planned")
        accuracy = federation.last("planned", "accuracy")
        first = [each.row.working_s + each.row.collecting_s for each in federation.rounds("measured")]
    seconds = [each.row.working_s + each.row.collecting_s for each in rounds]
    loads = choice["loads"]
    figures = {
        "predicted_s": planned["predicted_s"],
        "predicted_low_s": planned["band_s"][0],
        "predicted_high_s": planned["band_s"][1],
        "measured_s": median(seconds),
        "measured_over_predicted": median(seconds) / planned["predicted_s"],
        "first_run_s": median(first),
        "replicas": choice["replicas"],
        "chunks_of_slowest_over_fastest": loads["quarter"] / max(loads["fast-1"], 1),
        "samples_counted_percent": 100.0 * min(each.row.coverage or 0.0 for each in rounds),
        "accuracy": accuracy,
    }
    return Result(
        figures,
        [
            {
                "client": name,
                "least_step_s": pace,
                "chunks_planned": loads.get(name),
                "chunks_finished": sum(row.finished for _, row in rows[name]),
                "chunks_counted": sum(row.counted for _, row in rows[name]),
            }
            for name, pace in PACES_S.items()
        ],
    )


def plan(federation: Federation) -> dict:
    """Return what `fedgc plan --json` says."""
    done = subprocess.run(
        [sys.executable, "-m", "fedgc.cli", "plan", "--json"],
        env={**os.environ, "FEDGC_DB": str(federation.database)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise EdgeFailed(f"fedgc plan: {done.stderr.strip()}")
    return json.loads(done.stdout)


if __name__ == "__main__":
    main(example, BANDS, "fleet")
