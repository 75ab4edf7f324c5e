"""Masked training reaches what plain training reaches: the same seeds, machines and data, in one run."""

import hashlib
import os
from pathlib import Path

import numpy as np
import torch

from fedgc.config import RunConfig
from fedgc.flower.institution import Institution
from fedgc.keying import Keying
from fedgc.messages import Published, Reveal, Ring, Survivors, Unmask, Work
from fedgc.secagg import Federation, Quantiser, RingSum, Terms, letters
from fedgc.secagg.federation import member_list
from fedgc.store.vault import Vault
from fedgc.task.digits import digits
from fedgc.train import CommonModel, Engine

COUNT, ROUNDS, WITHIN = 4, 12, 0.005  # half a point
SECRET = b"a long secret"
CONFIG = RunConfig(task="digits", work="local", gate_every=4, chunks=COUNT, learning_rate=0.5, seed=3)


class Ward:
    """Engines that each have a quarter of the digits, and a model of their own way of averaging."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        task = digits(CONFIG)
        self.common = CommonModel(task, CONFIG)
        self.devices = [f"device {number}" for number in range(COUNT)]
        self.engines = {
            device: Engine(task, CONFIG, clock=lambda: 0.0, rest=lambda _: None, spill_dir=folder)
            for device in self.devices
        }
        self.chunks = list(task.chunks)
        self.model = self.common.first()

    def work(self, number: int) -> Work:
        """Train everybody's part of a round from the present model; return one's order."""
        steps = CONFIG.round_steps
        for chunk, (device, engine) in enumerate(self.engines.items()):
            led, named = float(steps) if number > 1 else 0.0, ((chunk, self.chunks[chunk]),)
            work = Work(
                device, number, number - 1, steps, (chunk,), named, CONFIG.seed, 60.0,
                kind="local", first_step=steps * (number - 1), common_steps=led,
            )  # fmt: skip
            engine.load(number - 1, self.model)
            engine.handle(work)
            while not engine.idle:
                engine.step()
        return work

    def go_on(self, mean: np.ndarray) -> None:
        self.model = self.model - mean

    @property
    def accuracy(self) -> float:
        return self.common.evaluate(self.model)["accuracy"]


def revealed(device: str, number: int) -> Reveal:
    return Reveal(device, number, 0, "masked", None, ring=Ring(1, 32))


def plain_mean(ward: Ward, number: int) -> np.ndarray:
    ward.work(number)
    sent = [engine.mean_update(revealed(device, number)) for device, engine in ward.engines.items()]
    total = sum(weight for _, weight in sent)
    return (sum(weight * update.astype(np.float64) for update, weight in sent) / total).astype(np.float32)


class Masked:
    """Institutions with vaults, and the server's keys."""

    def __init__(self, folder: Path, ward: Ward) -> None:
        vaults = {device: Vault.open(folder / f"{device}.db", SECRET) for device in ward.devices}
        members = member_list([(device, vault.identity().public) for device, vault in vaults.items()])
        federation = Federation(members, 3, 3, 32, Quantiser(0.5, 20, 32, 2000))
        self.open = {
            device: Institution(federation, vault, CONFIG, lambda: 0.0, os.urandom)
            for device, vault in vaults.items()
        }
        self.ward, self.federation = ward, federation
        self.keying = Keying(federation, Terms(ward.common.size, CONFIG.shape, bytes(32)), 10.0, 0.0)
        for device, one in self.open.items():
            self.keying.enrol(one.enrolled(device, ""))
        todo = list(self.keying.open(0.0, 1))
        while todo:
            todo += self.keying.heard(self.said(todo.pop(0)))

    def said(self, command):
        return self.open[command.device].heard(command, self.ward.engines[command.device].start)

    def mean(self, number: int) -> np.ndarray:
        digest = hashlib.sha256(self.ward.model.tobytes()).digest()
        self.keying.noted(Published(0.0, number - 1, digest))
        work = self.ward.work(number)
        drawn = self.keying.draw(self.ward.devices, (work.first_step, work.common_steps))
        ring, exchange = RingSum(self.federation.quantiser, self.ward.common.size), drawn.exchange
        for device, one in self.open.items():
            (begin,) = drawn.begin(device, number)
            assert self.said(begin) is None
            ring.add(one.revealed(revealed(device, number), self.ward.engines[device]))
        exchange, agree = exchange.agree(range(COUNT))
        for device in self.open:
            signed = self.said(Survivors(device, number, agree.pack()))
            exchange = exchange.sign(drawn.member[device], signed.signature)
        unlock = exchange.unlock().pack()
        for device in self.open:
            exchange = exchange.open(letters.Opened.unpack(self.said(Unmask(device, number, unlock)).letter))
        ring.remove(exchange.masks())
        return ring.mean()[0]


def test_digits_under_masks_are_told_apart_as_well_as_without(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    plain, ward = Ward(tmp_path / "plain"), Ward(tmp_path / "masked")
    masked = Masked(tmp_path, ward)
    start = plain.accuracy
    for number in range(1, ROUNDS + 1):
        plain.go_on(plain_mean(plain, number))
        ward.go_on(masked.mean(number))
    for one in masked.open.values():
        one.close()
    assert not np.array_equal(plain.model, ward.model), "numbers were rounded"
    assert plain.accuracy > 0.9 > 0.5 > start
    assert abs(plain.accuracy - ward.accuracy) <= WITHIN
