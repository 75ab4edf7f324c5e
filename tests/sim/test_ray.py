"""Test training of simulated clients on Ray, where that is installed."""

import os
import signal
import sys
from concurrent.futures import Future
from dataclasses import replace

import numpy as np
import pytest

from fedgc.errors import EdgeFailed, Unusable
from fedgc.sim import ray_workers
from fedgc.sim.training import train
from fedgc.sim.workers import Order
from tests.sim.test_fleet import job, make


def broken_loss(module, batch):
    raise ValueError("no batch")


def broken():
    return replace(make(), loss=broken_loss)


def test_ray_without_its_package_is_refused_in_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(Unusable, match="saw no package ray, needed it: pip install"):
        train(replace(job(), ray="local", workers=2))


class ActorError(Exception):
    """As Ray's: its text is a traceback, and what the actor raised is its cause."""

    cause = ValueError("no\nbatch")


def test_error_of_actor_is_told_by_its_cause():
    order = Order(None, Future())
    order.future.set_exception(ActorError("ray::Actor.train()\n" * 50))
    with pytest.raises(EdgeFailed, match=r"^training on Ray: ValueError: no batch$"):
        ray_workers.RayWorkers.result(None, order)


@pytest.mark.contract
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_ray_gives_same_numbers_also_if_actor_is_killed(monkeypatch):
    pytest.importorskip("ray")
    killed = []

    class Killing(ray_workers.RayWorkers):
        def order(self, stretch):
            order = super().order(stretch)
            if len(killed) < stretch.work.round // 2:
                ray = self._ray
                killed.append(ray.get(self._actors[0].pid.remote()))
                os.kill(killed[-1], signal.SIGKILL)
            return order

    monkeypatch.setattr("fedgc.sim.fleet.RayWorkers", Killing)
    monkeypatch.setattr(ray_workers.Actor, "pid", lambda self: os.getpid(), raising=False)
    several = train(replace(job(codec="int8"), ray="local", workers=2))
    assert len(killed) == 2
    assert np.array_equal(several.model, train(job(codec="int8")).model)
    with pytest.raises(EdgeFailed, match=r"training: client \d, round 1: ValueError: no batch$"):
        train(replace(job(), make=broken, ray="local", workers=1))
