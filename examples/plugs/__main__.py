"""Pull the plugs of a federation: a page with a button for each process, or random buttons from a seed.

python -m examples.plugs                     # a page; Ctrl-C ends it
python -m examples.plugs --random 30 --json  # 30 random buttons, and what the run has lost
"""

import argparse
import sys
import tempfile
from pathlib import Path

from examples.federation import finished_example, say
from examples.plugs.fleet import Fleet, eventually_over
from examples.plugs.page_server import serving
from examples.plugs.presses import MANY, pressed
from examples.plugs.scene import started
from fedgc.errors import FedgcError

DAY_S = 86_400.0
BANDS = {
    "runs_lost": (0, 0),
    "percent_lost_beyond_unfinished": (0.0, 10.0),
    "accuracy_gap_points": (-3.0, 3.0),
    "accuracy": (0.85, 1.0),
}


def show(folder: Path, port: int) -> None:
    """Serve the page until Ctrl-C, or until the run is lost."""
    with started(folder / "run", "plugs", MANY) as scene:
        fleet = Fleet(scene)
        try:
            with serving(fleet, port) as address:
                say(f"{address}\nCtrl-C ends the run")
                eventually_over(fleet.served, DAY_S)
        except KeyboardInterrupt:
            say("ending the run")
        finally:
            fleet.close()


def main() -> None:
    """Run by the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--random", type=int, metavar="PRESSES", help="press so many random buttons, without a page"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the random buttons")
    parser.add_argument("--port", type=int, default=8610, help="of the page, on loopback; 0: any")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--folder", type=Path, help="a new folder for the store and all other files")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fedgc-") as temporary:
        folder = given.folder.absolute() if given.folder else Path(temporary)
        try:
            if given.random is None:
                show(folder, given.port)
                return
            result = pressed(folder, given.random, given.seed)
        except FedgcError as error:
            sys.exit(f"plugs: {error}")
    finished_example(result, BANDS, "plugs", as_json=given.json)


if __name__ == "__main__":
    main()
