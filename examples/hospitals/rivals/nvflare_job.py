"""NVFlare's FedAvg that waits for all, in its simulator: `nvflare_job.py FOLDER SITES ROUNDS`.

A site is a process of the simulator that runs `nvflare_site.py`, which stays for all rounds.
"""

import sys
from pathlib import Path
from typing import Any

from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.workflows.fedavg import FedAvg
from nvflare.job_config.api import FedJob
from nvflare.job_config.script_runner import ScriptRunner

from examples.hospitals.rivals.work import Marks, network


class MarkedFedAvg(FedAvg):
    """FedAvg that begins with the model in a folder, and marks when its first round begins and each model."""

    def __init__(self, folder: str, num_clients: int, num_rounds: int) -> None:
        super().__init__(num_clients=num_clients, num_rounds=num_rounds, persistor_id="")
        self.folder = folder  # a job keeps the arguments under their names

    def load_model(self) -> FLModel:
        """Return the model before the first round."""
        self._marks = Marks(Path(self.folder))
        state = network(Path(self.folder)).state_dict()
        return FLModel(params={name: each.numpy() for name, each in state.items()})

    def send_model(self, *given: Any, **named: Any) -> None:  # noqa: ANN401  what its base sends
        """Send the model of a round to all sites."""
        if self.current_round == 0:
            self._marks.begin()
        super().send_model(*given, **named)

    def save_model(self, model: FLModel) -> None:
        """Evaluate the model of a round."""
        self._marks.add(self.current_round + 1, model.params)


def main(folder: str, sites: int, rounds: int) -> None:
    """Run the job."""
    job = FedJob(name="hospitals", min_clients=sites)
    job.to_server(MarkedFedAvg(folder, sites, rounds))
    script = str(Path(__file__).with_name("nvflare_site.py"))
    for site in range(sites):
        job.to(ScriptRunner(script, script_args=f"{folder} {site}"), f"site-{site}")
    job.simulator_run(f"{folder}/workspace", threads=sites)


if __name__ == "__main__":
    # a job has the name of the module of its controller, which must not be __main__
    from examples.hospitals.rivals import nvflare_job

    nvflare_job.main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
