"""Masked sites for tests: the machines of one federation, without a link."""

import dataclasses
import hashlib

import numpy as np

from fedgc import messages
from fedgc.secagg import Client, Federation, Identity, Quantizer, Reply, packets
from fedgc.secagg.federation import least_threshold, member_list
from fedgc.secagg.graph import graph_for

MODEL = hashlib.sha256(b"model").digest()


class Party:
    """Sites of one federation without a link: they answer the server's commands."""

    def __init__(self, count: int, exchanges: int = 3, colluders: int | None = None) -> None:
        """With `colluders` the graph is sparse, and three sites need not stay."""
        self.identities = [Identity(hashlib.sha256(f"party {at}".encode()).digest()) for at in range(count)]
        named = [(f"site {at}", each.public) for at, each in enumerate(self.identities)]
        quantizer = Quantizer(clip=1.0, bits=20, ring=32, w_max=100)
        stays = least_threshold(count) if colluders is None else count - 3
        graph = None if colluders is None else graph_for(count, stays, stays, colluders, lost=1)
        self.federation = Federation(member_list(named), stays, 3, exchanges, quantizer, graph=graph)
        self.clients = [f"client {at}" for at in range(count)]
        self.machines = {
            client: Client.start(self.federation, each, {})
            for client, each in zip(self.clients, self.identities, strict=True)
        }
        self._entropy = 0

    def enrolled(
        self, client: str, now: float = 0.0, epoch: int | None = None, run: str = ""
    ) -> messages.Enrolled:
        """The site's enrolment; with `epoch`, it makes a false claim about the keys that it has seen."""
        machine = self.machines[client]
        if epoch is not None:
            machine = dataclasses.replace(machine, state=dataclasses.replace(machine.state, epoch=epoch))
        fid, signature = self.federation.fid, machine.enrol(run, client)
        return messages.Enrolled(now, client, fid, machine.number, machine.state.epoch, signature)

    def fresh(self) -> bytes:
        self._entropy += 1
        return hashlib.sha256(f"chance {self._entropy}".encode()).digest()

    def take(self, client: str, step: tuple) -> object:
        self.machines[client], todo = step
        return next((each.content for each in todo if isinstance(each, Reply)), None)

    def answer(self, command: object, now: float = 0.0, wall: float = 0.0, model: bytes = MODEL) -> object:
        """Return a client's answer to a command; `model` is the digest of the client's model."""
        client, round_, packet = command.client, command.round, command.packet
        machine = self.machines[client]
        match command:
            case messages.Open():
                step = machine.open(packets.Open.unpack(packet), wall, self.fresh())
                return messages.Advert(now, client, round_, self.take(client, step))
            case messages.Roster():
                step = machine.join(packets.Roster.unpack(packet), wall, self.fresh())
                return messages.Deal(now, client, round_, self.take(client, step))
            case messages.Begin():
                self.take(client, machine.begin(packets.Begin.unpack(packet), model))
                return None
            case messages.Survivors():
                step = machine.agree(packets.Agree.unpack(packet))
                return messages.Signed(now, client, round_, self.take(client, step))
            case messages.Unmask():
                self.take(client, machine.note(packets.Unlock.unpack(packet)))
                step = self.machines[client].unlock(packets.Unlock.unpack(packet))
                return messages.Shares(now, client, round_, self.take(client, step))
        return None

    def vector(self, client: str, update: np.ndarray, weight: int) -> np.ndarray:
        machine = self.machines[client]
        step = machine.upload(update, weight, machine.state.start, self.fresh())
        return self.take(client, step)[:]
