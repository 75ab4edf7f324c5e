"""How properties are searched: the same examples every time, new ones by `make fuzz`; masked institutions.

A test run that finds what another did not is no verdict on a change. What a search finds becomes an
example of its own, written into the test. (Hypothesis also draws numbers and words out of modules that are
loaded, so that examples may differ where others are: a strategy must be right for all that it can draw.)

No garbage is looked for while thousands of tests are collected, nor later in what that has made: it stays.
"""

import dataclasses
import gc
import hashlib
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import settings

from fedgc import messages
from fedgc.secagg import Client, Federation, Identity, Quantiser, Reply, letters
from fedgc.secagg.federation import least_threshold, member_list

settings.register_profile("same", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None, derandomize=False, print_blob=True)
settings.load_profile("same")

MODEL = hashlib.sha256(b"model").digest()


def pytest_configure() -> None:
    gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


class Party:
    """Institutions of one federation, without a link: what a server's command makes them say."""

    def __init__(self, count: int, exchanges: int = 3) -> None:
        self.identities = [Identity(hashlib.sha256(f"party {at}".encode()).digest()) for at in range(count)]
        named = [(f"site {at}", each.public) for at, each in enumerate(self.identities)]
        quantiser = Quantiser(clip=1.0, bits=20, ring=32, w_max=100)
        self.federation = Federation(member_list(named), least_threshold(count), 3, exchanges, quantiser)
        self.devices = [f"device {at}" for at in range(count)]
        self.clients = {
            device: Client.start(self.federation, each, {})
            for device, each in zip(self.devices, self.identities, strict=True)
        }
        self._entropy = 0

    def enrolled(
        self, device: str, now: float = 0.0, epoch: int | None = None, run: str = ""
    ) -> messages.Enrolled:
        """What it says to be let in; with `epoch`, a member lies about the keys that it has seen."""
        client = self.clients[device]
        if epoch is not None:
            client = dataclasses.replace(client, state=dataclasses.replace(client.state, epoch=epoch))
        fid, signature = self.federation.fid, client.enrol(run, device)
        return messages.Enrolled(now, device, fid, client.number, client.state.epoch, signature)

    def fresh(self) -> bytes:
        self._entropy += 1
        return hashlib.sha256(f"chance {self._entropy}".encode()).digest()

    def take(self, device: str, step: tuple) -> object:
        self.clients[device], todo = step
        return next((each.content for each in todo if isinstance(each, Reply)), None)

    def answer(self, command: object, now: float = 0.0, wall: float = 0.0, model: bytes = MODEL) -> object:
        """What the device of a command says to it; `model` is the digest of the one that it has."""
        device, round_, letter = command.device, command.round, command.letter
        client = self.clients[device]
        match command:
            case messages.Open():
                step = client.open(letters.Open.unpack(letter), wall, self.fresh())
                return messages.Advert(now, device, round_, self.take(device, step))
            case messages.Roster():
                step = client.join(letters.Roster.unpack(letter), wall, self.fresh())
                return messages.Deal(now, device, round_, self.take(device, step))
            case messages.Begin():
                self.take(device, client.begin(letters.Begin.unpack(letter), model))
                return None
            case messages.Survivors():
                step = client.agree(letters.Agree.unpack(letter))
                return messages.Signed(now, device, round_, self.take(device, step))
            case messages.Unmask():
                step = client.unlock(letters.Unlock.unpack(letter))
                return messages.Shares(now, device, round_, self.take(device, step))
        return None

    def vector(self, device: str, update: np.ndarray, weight: int) -> np.ndarray:
        client = self.clients[device]
        return self.take(
            device, client.upload(update, weight, client.state.start, client.pad(), self.fresh())
        )


@pytest.fixture(scope="session")
def party() -> Callable[..., Party]:
    return Party


@pytest.fixture(scope="session")
def model_digest() -> bytes:
    return MODEL
