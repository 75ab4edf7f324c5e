"""Test that masked training matches plain training with the same seeds, machines and data."""

import hashlib
import os
from pathlib import Path

import numpy as np
import torch

from fedgc.config import RunConfig
from fedgc.flower.masked_client import MaskedClient
from fedgc.messages import Published, Reveal, Ring, Survivors, Unmask, Work
from fedgc.round.masked.key_agreement import KeyAgreement
from fedgc.secagg import Federation, Quantizer, RingSum, Terms, packets
from fedgc.secagg.federation import member_list
from fedgc.store.vault import Vault
from fedgc.training import CommonModel, new_engine
from fedgc.training.pace import Pace
from fedgc.training.tasks.digits import digits

COUNT, ROUNDS, WITHIN = 4, 12, 0.005  # half a point
SECRET = b"a long secret"
CONFIG = RunConfig(task="digits", work="local", local_steps=4, chunks=COUNT, learning_rate=0.5, seed=3)


class Ward:
    """Engines that each have a quarter of the digits, and a model of their own way of averaging."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        task = digits(CONFIG)
        self.common = CommonModel(task, CONFIG)
        self.clients = [f"client {number}" for number in range(COUNT)]
        self.engines = {
            client: new_engine(task, CONFIG, Pace(lambda: 0.0, lambda _: None), folder)
            for client in self.clients
        }
        self.chunks = list(task.chunks)
        self.model = self.common.first()

    def work(self, number: int) -> Work:
        """Train every client's part of a round from the current model; return one client's order."""
        steps = CONFIG.round_steps
        for chunk, (client, engine) in enumerate(self.engines.items()):
            led, named = float(steps) if number > 1 else 0.0, ((chunk, self.chunks[chunk]),)
            work = Work(
                client, number, number - 1, steps, (chunk,), named, CONFIG.seed, 60.0,
                kind="local", first_step=steps * (number - 1), common_steps=led,
                before=max(0, number - 2),
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


def revealed(client: str, number: int) -> Reveal:
    return Reveal(client, number, 0, "masked", None, ring=Ring(1, 32))


def plain_mean(ward: Ward, number: int) -> np.ndarray:
    ward.work(number)
    sent = [engine.answer(revealed(client, number)) for client, engine in ward.engines.items()]
    total = sum(each.weight for each in sent)
    return (sum(each.weight * each.vector[:].astype(np.float64) for each in sent) / total).astype(np.float32)


class Masked:
    """Sites with vaults, and the server's keys."""

    def __init__(self, folder: Path, ward: Ward) -> None:
        vaults = {client: Vault.open(folder / f"{client}.db", SECRET) for client in ward.clients}
        members = member_list([(client, vault.identity().public) for client, vault in vaults.items()])
        federation = Federation(members, 3, 3, 32, Quantizer(0.5, 20, 32, 2000))
        self.open = {
            client: MaskedClient(federation, vault, CONFIG, lambda: 0.0, os.urandom)
            for client, vault in vaults.items()
        }
        self.ward, self.federation = ward, federation
        self.key_agreement = KeyAgreement(
            federation, Terms(ward.common.size, CONFIG.shape, bytes(32)), 10.0, lambda: 0.0
        )
        for client, one in self.open.items():
            self.key_agreement.enrol(one.enrolled(client, ""))
        todo = list(self.key_agreement.open(0.0, 1))
        while todo:
            todo += self.key_agreement.heard(self.said(todo.pop(0)))

    def said(self, command):
        return self.open[command.client].handle(command, self.ward.engines[command.client].start)

    def mean(self, number: int) -> np.ndarray:
        digest = hashlib.sha256(self.ward.model.tobytes()).digest()
        self.key_agreement.noted(Published(0.0, number - 1, digest))
        work = self.ward.work(number)
        agreed = self.key_agreement.draw(self.ward.clients, (work.first_step, work.common_steps))
        ring, exchange = RingSum(self.federation.quantizer, self.ward.common.size), agreed.exchange
        for client, one in self.open.items():
            (begin,) = agreed.begin(client, number)
            assert self.said(begin) is None
            engine = self.ward.engines[client]
            ring.add(one.masked_answer(engine.answer(revealed(client, number)), engine.start))
        exchange, agree = exchange.agree(range(COUNT))
        for client in self.open:
            signed = self.said(Survivors(client, number, agree.pack()))
            exchange = exchange.sign(agreed.member[client], signed.signature)
        unlock = exchange.unlock().pack()
        for client in self.open:
            exchange = exchange.open(packets.Opened.unpack(self.said(Unmask(client, number, unlock)).packet))
        ring.remove(exchange.masks())
        return ring.mean()[0]


def test_masked_digits_accuracy_equals_unmasked(tmp_path: Path) -> None:
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
