"""NVFlare's FedAvg that waits for all, in its simulator: `nvflare_job.py FOLDER SITES ROUNDS`.

A site is a process of the simulator that runs `nvflare_site.py`, which stays for all rounds.
"""

import sys
from pathlib import Path

from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.workflows.fedavg import FedAvg
from nvflare.app_opt.pt.job_config.base_fed_job import BaseFedJob
from nvflare.job_config.script_runner import ScriptRunner

from examples.hospitals.rivals.work import Marks, network


class MarkedFedAvg(FedAvg):
    """FedAvg that marks when its first round begins, and the accuracy after each round."""

    def __init__(self, folder: str, num_clients: int, num_rounds: int, persistor_id: str) -> None:
        super().__init__(num_clients=num_clients, num_rounds=num_rounds, persistor_id=persistor_id)
        self.folder = folder

    def run(self) -> None:
        """Run the rounds."""
        self._marks = Marks(Path(self.folder))
        super().run()

    def send_model(self, *given: object, **named: object) -> None:
        """Send the model of a round to all sites."""
        if self.current_round == 0:
            self._marks.begin()
        super().send_model(*given, **named)

    def save_model(self, model: FLModel) -> None:
        """Evaluate and save the model of a round."""
        self._marks.add(self.current_round + 1, model.params)
        super().save_model(model)


def main(folder: str, sites: int, rounds: int) -> None:
    """Run the job."""
    job = BaseFedJob(initial_model=network(Path(folder)), name="hospitals", min_clients=sites)
    job.to_server(MarkedFedAvg(folder, sites, rounds, job.comp_ids["persistor_id"]))
    script = str(Path(__file__).with_name("nvflare_site.py"))
    for site in range(sites):
        job.to(ScriptRunner(script, script_args=f"{folder} {site}"), f"site-{site}")
    job.simulator_run(f"{folder}/workspace", threads=sites)


if __name__ == "__main__":
    # a job names the module of a controller, which is not __main__
    from examples.hospitals.rivals import nvflare_job

    nvflare_job.main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
