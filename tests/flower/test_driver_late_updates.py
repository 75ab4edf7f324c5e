"""Test the driver's sum with updates that come after their round, on a link that the test plays."""

import logging
import math

import numpy as np

from fedgc.flower.driver import Driver
from fedgc.flower.job import Job
from fedgc.history import Speeds
from fedgc.links.links import Amounts
from fedgc.messages import Held, Joined, Leaving, Lost, Reveal, ToClient
from fedgc.training import CommonModel
from tests.flower.test_driver import Kept
from tests.run.test_late_updates import LATE, QUICK, Late
from tests.run.test_local_run import CLIENTS, SAMPLES
from tests.six_chunks import TASK


class PlayedLink:
    """The link of a fleet whose updates are ones, and threes those of the late client."""

    def __init__(self, fleet: "Driven") -> None:
        self.fleet = fleet

    def publish(self, version: int, vector: np.ndarray, change: object = None) -> None:
        pass

    def send(self, command: ToClient) -> None:
        if isinstance(command, Reveal):
            self.fleet.asked.append(command)
        else:
            self.fleet.clients[command.client].handle(command)

    def take(self, client: str, round_: int, attempt: int) -> np.ndarray:
        return np.full(self.fleet.driver.common.size, 3.0 if client == LATE else 1.0, np.float32)

    def forget(self, client: str, round_: int, attempt: int) -> None:
        pass

    def settle(self, client: str) -> Amounts:
        return Amounts()

    def name(self, client: str) -> str:
        return client

    def link(self, client: str) -> str:
        return "session"

    def clients(self) -> tuple[str, ...]:
        return CLIENTS


class Driven(Late):
    """Clients of a driver."""

    driver: Driver | None = None

    def say(self, event: object) -> None:
        if self.driver is None:
            job = Job(CommonModel(TASK, self.config), self.config, Kept(), Speeds())
            self.driver = Driver(job, lambda: self.now, logging.getLogger("test"))
            self.run, self.played = self.driver._run, PlayedLink(self)
            self.driver._publish(0, self.played)
        self.driver._handle(event, self.played)

    @property
    def outcomes(self) -> list[str]:
        return [each.outcome for each in self.driver._job.sink.rows]


def test_late_update_stays_in_sum_when_all_clients_leave() -> None:
    fleet = Driven(aggregator="weighted-mean", shared_momentum="off")
    fleet.do_round()
    fleet.say(Leaving(fleet.now, LATE, 5.0))
    fleet.do_round()
    fleet.send(LATE)
    fleet.say(Lost(fleet.now, LATE))
    for kind, *grace_s in ((Leaving, 5.0), (Lost,)):
        for client in QUICK:
            fleet.say(kind(fleet.now, client, *grace_s))
    assert fleet.outcomes == ["approximate", "approximate", "stopped"]
    before, fleet.asked = fleet.driver.model.copy(), []
    fleet.clients["a"].restart(keeps=False)
    fleet.say(Joined(fleet.now, "a", True, (Held("chunk a", SAMPLES, ""),)))
    fleet.work("a")
    fleet.send("a")
    assert fleet.driver._run.version == 3
    weights = SAMPLES, SAMPLES * math.sqrt(3)  # the late one is two models old
    mean = (weights[0] + 3.0 * weights[1]) / sum(weights)
    np.testing.assert_allclose(before - fleet.driver.model, mean, rtol=1e-5)
