"""An institution's end: written before said, masks beside training, and no run but a masked one."""

import dataclasses
import hashlib
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgc.config import RunConfig
from fedgc.errors import BadMessage, BadSetting, BadVector, EdgeFailed, NotAdmitted, Unusable
from fedgc.flower.institution import SAID_AT_HOME, Institution, institution_of
from fedgc.keying import Keying
from fedgc.messages import (
    SKETCH_NUMBERS,
    Failed,
    Held,
    Joined,
    Kept,
    Mix,
    Open,
    Progress,
    Published,
    Repair,
    Report,
    Reveal,
    Survivors,
    Unmask,
)
from fedgc.secagg import Descriptor, Federation, Privacy, Quantiser, RingSum, Terms, letters
from fedgc.secagg.federation import member_list
from fedgc.store.vault import Vault
from fedgc.train import Start

MODEL = np.linspace(-1, 1, 11, dtype=np.float32)
CONFIG = RunConfig()
SETTINGS = CONFIG.shape
FROM = Start(MODEL, None, 0, 0.0)
SECRET = b"a long secret"


class House:
    """Three institutions with vaults on a disk, and the server's keys."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.devices = ["device 0", "device 1", "device 2"]
        keys = []
        for device in self.devices:
            with Vault.open(self.path(device), SECRET) as vault:
                keys.append((device.replace("device", "site"), vault.identity().public))
        self.federation = Federation(member_list(keys), 3, 3, 4, Quantiser(1.0, 20, 32, 100))
        self.open = {device: self.start(device) for device in self.devices}
        self.keying = Keying(self.federation, Terms(MODEL.size, SETTINGS, bytes(32)), 10.0, 0.0)

    def path(self, device: str) -> Path:
        return self.folder / f"{device}.db"

    def start(self, device: str) -> Institution:
        vault = Vault.open(self.path(device), SECRET)
        return Institution(self.federation, vault, CONFIG, lambda: 0.0, os.urandom)

    def restart(self, device: str) -> None:
        self.open[device].close()
        self.open[device] = self.start(device)

    def hear(self, command, start=FROM):
        return self.open[command.device].heard(command, start)

    def set_up(self) -> None:
        for device in self.devices:
            self.keying.enrol(self.open[device].enrolled(device, ""))
        todo = list(self.keying.open(0.0, 1))
        while todo:
            todo += self.keying.heard(self.hear(todo.pop(0)))

    def draw(self, model=MODEL):
        digest = hashlib.sha256(model.tobytes()).digest()
        self.keying.noted(Published(0.0, 0, digest))
        drawn = self.keying.draw(self.devices)
        return drawn, {device: drawn.begin(device, 1)[0] for device in self.devices}

    def close(self) -> None:
        for each in self.open.values():
            each.close()


@pytest.fixture
def house(tmp_path: Path):
    made = House(tmp_path)
    yield made
    made.close()


def agree_on(house: House, exchange, survivors=range(3)):
    exchange, letter = exchange.agree(list(survivors))
    return exchange, {device: Survivors(device, 1, letter.pack()) for device in house.devices}


def test_three_institutions_give_their_mean_over_their_vaults(house: House) -> None:
    house.set_up()
    drawn, begins = house.draw()
    ring = RingSum(house.federation.quantiser, MODEL.size)
    updates = {device: np.full(MODEL.size, at / 4, np.float32) for at, device in enumerate(house.devices)}
    for device in house.devices:
        assert house.hear(begins[device]) is None
        ring.add(house.open[device].masked(updates[device], 50, FROM))
    exchange, told = agree_on(house, drawn.exchange)
    for device in house.devices:
        exchange = exchange.sign(drawn.member[device], house.hear(told[device]).signature)
    unlock = exchange.unlock().pack()
    for device in house.devices:
        said = house.hear(Unmask(device, 1, unlock))
        exchange = exchange.open(letters.Opened.unpack(said.letter))
    ring.remove(exchange.masks())
    mean, weight = ring.mean()
    assert weight == 150
    assert np.abs(mean - 0.25).max() <= house.federation.quantiser.bound(3, weight)


def test_a_restarted_institution_masks_nothing_twice(house: House) -> None:
    house.set_up()
    _, begins = house.draw()
    begin = begins["device 1"]
    house.hear(begin)
    house.restart("device 1")
    house.hear(begin)
    first = house.open["device 1"].masked(MODEL / 2, 50, FROM)
    assert np.array_equal(house.open["device 1"].masked(MODEL / 3, 50, FROM), first), (
        "asked again: the same bytes"
    )
    house.restart("device 1")
    with pytest.raises(BadMessage, match="its vector is gone; needed the next"):
        house.hear(begin)
    with pytest.raises(BadMessage, match="saw no exchange that waits"):
        house.open["device 1"].masked(MODEL / 3, 50, FROM)


def test_a_restarted_institution_masks_no_model_of_which_it_gave_shares(house: House) -> None:
    house.set_up()
    drawn, begins = house.draw()
    for device in house.devices:
        house.hear(begins[device])
        house.open[device].masked(MODEL / 2, 50, FROM)
    exchange, told = agree_on(house, drawn.exchange)
    for device in house.devices:
        exchange = exchange.sign(drawn.member[device], house.hear(told[device]).signature)
    for device in house.devices:
        house.hear(Unmask(device, 1, exchange.unlock().pack()))
        house.restart(device)
    _, begins = house.draw()
    for device in house.devices:
        with pytest.raises(BadMessage, match="two sums of one model tell single updates"):
            house.hear(begins[device])
    _, begins = house.draw(MODEL + 1)
    for device in house.devices:
        house.hear(begins[device], dataclasses.replace(FROM, model=MODEL + 1))


def test_nothing_is_said_that_is_not_written(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    house.set_up()
    _, begins = house.draw()
    for device in house.devices:
        house.hear(begins[device])
    one = house.open["device 0"]
    monkeypatch.setattr(one._vault, "write", lambda *_: (_ for _ in ()).throw(EdgeFailed("the disk is full")))
    with pytest.raises(EdgeFailed, match="the disk is full"):
        one.masked(MODEL, 50, FROM)
    for attempt in (lambda: one.masked(MODEL, 50, FROM), lambda: one.enrolled("device 0", "")):
        with pytest.raises(EdgeFailed, match="needed a new start"):
            attempt()
    assert one.broken
    assert not house.open["device 1"].broken


def test_what_a_server_says_of_the_exchange_is_checked_before_any_mask(house: House) -> None:
    house.set_up()
    _, begins = house.draw()
    begin = begins["device 0"]
    letter = letters.Begin.unpack(begin.letter)
    huge = dataclasses.replace(begin, letter=dataclasses.replace(letter, size=2**40).pack())
    with pytest.raises(BadMessage, match=r"saw 1099511627776 numbers, needed the model's 11"):
        house.hear(huge)
    with pytest.raises(BadMessage, match="saw other settings"):
        house.hear(dataclasses.replace(begin, letter=dataclasses.replace(letter, settings=bytes(32)).pack()))
    with pytest.raises(BadMessage, match="saw no model"):
        house.hear(begin, start=None)
    with pytest.raises(BadMessage, match="saw no exchange that waits"):
        house.open["device 0"].masked(MODEL, 50, FROM)


def test_work_from_another_model_after_the_beginning_is_not_masked(house: House) -> None:
    """Of a model made for it alone, one update would show in the sum: the others' would be nothing."""
    house.set_up()
    _, begins = house.draw()
    for device in house.devices:
        house.hear(begins[device])
    one = house.open["device 0"]
    others = [
        dataclasses.replace(FROM, model=MODEL + 1),
        dataclasses.replace(FROM, before=MODEL),
        dataclasses.replace(FROM, first_step=10**6),
        dataclasses.replace(FROM, common_steps=1e-9),
    ]
    for other in others:
        with pytest.raises(BadMessage, match="made from another model or other settings"):
            one.masked(MODEL, 50, other)
    house.restart("device 0")
    with pytest.raises(BadMessage, match="made from another model or other settings"):
        house.open["device 0"].masked(MODEL, 50, others[0])
    assert house.open["device 0"].masked(MODEL, 50, dataclasses.replace(FROM, model=MODEL.copy())).size


def test_an_exchange_with_another_lead_than_the_work_came_with_is_refused(house: House) -> None:
    house.set_up()
    before = MODEL / 2
    house.keying.noted(Published(0.0, 0, hashlib.sha256(before.tobytes()).digest()))
    house.keying.noted(Published(0.0, 1, hashlib.sha256(MODEL.tobytes()).digest()))
    drawn = house.keying.draw(house.devices, (8, 4.0))
    (begin,) = drawn.begin("device 0", 1)
    led = Start(MODEL, before, 8, 4.0)
    for other in (
        dataclasses.replace(led, before=None),
        dataclasses.replace(led, before=MODEL / 3),
        dataclasses.replace(led, first_step=9),
        dataclasses.replace(led, common_steps=0.5),
    ):
        with pytest.raises(BadMessage, match="or another lead"):
            house.hear(begin, start=other)
    assert house.hear(begin, start=led) is None


def test_the_same_exchange_begun_again_keeps_its_masks(house: House) -> None:
    house.set_up()
    _, begins = house.draw()
    house.hear(begins["device 0"])
    pad = house.open["device 0"]._pad
    house.hear(begins["device 0"])
    assert house.open["device 0"]._pad is pad
    with pytest.raises(BadMessage, match="with another model, members or settings"):
        house.hear(begins["device 0"], start=dataclasses.replace(FROM, model=MODEL + 1))


def test_an_identity_that_is_not_pinned_opens_nothing(house: House, tmp_path: Path) -> None:
    vault = Vault.open(tmp_path / "stranger.db", SECRET)
    with pytest.raises(NotAdmitted, match="needed a member's"):
        Institution(house.federation, vault, CONFIG, lambda: 0.0, os.urandom)
    vault.close()


# ---- what a node's config says


def node_of(house: House, device: str = "device 0", privacy: Privacy | None = None) -> dict[str, object]:
    with Vault.open(house.folder / "signer.db", SECRET) as vault:
        members = (*house.federation.members, *member_list([("zoe", vault.identity().public)]))
        descriptor = Descriptor(
            dataclasses.replace(house.federation, members=members, privacy=privacy)
        ).endorse(vault.identity())
    (house.folder / "all.fed").write_bytes(descriptor.pack())
    key = house.folder / "vault.key"
    key.write_bytes(SECRET)
    key.chmod(0o600)
    return {
        "federation": str(house.folder / "all.fed"),
        "vault": str(house.path(device)),
        "vault-key": str(key),
    }


def of(config: RunConfig, node: dict[str, object], environment: dict[str, str] | None = None):
    return institution_of(config, node, environment or {}, lambda: 0.0, os.urandom)


MASKED = RunConfig(secrecy="masked", federation="server.fed")


def test_a_node_without_a_federation_has_no_institution() -> None:
    assert of(RunConfig(), {"name": "plain"}) is None


def test_a_node_with_a_federation_refuses_every_run_that_is_not_masked(house: House) -> None:
    with pytest.raises(BadSetting, match="takes part in masked runs alone, saw secrecy = open"):
        of(RunConfig(), node_of(house))


@pytest.mark.parametrize("missing", [("federation",), ("vault",), ("federation", "vault")])
def test_a_masked_run_needs_both_at_the_node(house: House, missing: tuple[str, ...]) -> None:
    node = {name: value for name, value in node_of(house).items() if name not in missing}
    with pytest.raises(BadSetting, match="a masked run needs federation and vault"):
        of(MASKED, node)


def test_a_vault_is_opened_by_its_key_file_or_by_the_environment(house: House) -> None:
    house.close()
    node = node_of(house)
    made = of(MASKED, node)
    assert made is not None
    assert made.enrolled("d", "").member == 0
    made.close()
    del node["vault-key"]
    of(MASKED, node, {"FEDGC_PASSPHRASE": SECRET.decode()}).close()
    with pytest.raises(BadSetting, match="the vault needs vault-key here"):
        of(MASKED, node)
    with pytest.raises(Unusable, match="another passphrase"):
        of(MASKED, node, {"FEDGC_PASSPHRASE": "something else"})


def test_a_descriptor_that_is_none_is_one_line(house: House) -> None:
    node = node_of(house)
    Path(str(node["federation"])).write_bytes(b"something")
    with pytest.raises(Unusable, match=r"descriptor .*all\.fed: "):
        of(MASKED, node)


def test_what_leaves_an_institution_tells_nothing_that_only_a_sum_may(house: House) -> None:
    one = house.open["device 0"]
    joined = Joined(0.0, "d", True, (Held("a", 31), Held("b", 7)), (Kept(1, 0, 3),))
    assert one.discreet(joined, 0) == Joined(0.0, "d", True, (Held("a", 1), Held("b", 1)))
    told = one.discreet(Progress(0.0, "d", 1, 2, 4, 0.5, 31, 2.75, 0.25, (0.1,) * SKETCH_NUMBERS), 3)
    assert told == Progress(0.0, "d", 1, 2, 4, 0.5, 1, 0.0, 0.0)
    told = one.discreet(Report(0.0, "d", 1, 16, 31, 0.5, 2.75, 0.25), 3)
    assert told == Report(0.0, "d", 1, 16, 3, 0.5, 0.0, 0.0)
    failed = Failed(0.0, "d", 1, "update: saw values from -0.25 to inf", (2,))
    assert one.discreet(failed, 0) == dataclasses.replace(failed, reason=SAID_AT_HOME)


def test_what_goes_wrong_with_its_own_numbers_is_told_without_the_reason(house: House) -> None:
    one, begin = house.open["device 0"], Open("device 0", 1, b"letter")
    for error in (BadVector("update: saw values from -0.25 to inf"), EdgeFailed("/home/ward/vault is full")):
        assert one.failed(begin, error) == Failed(0.0, "device 0", 1, SAID_AT_HOME)
    assert one.failed(begin, BadMessage("of the letter")).reason == "of the letter"


def test_nothing_is_given_in_the_clear(house: House) -> None:
    one, mix = house.open["device 0"], Mix((0,), ((1.0,),))
    for command in (
        Reveal("device 0", 1, 0, "coded", mix),
        Reveal("device 0", 1, 0, "local", None),
        Repair("device 0", 1, 1, "device 1", mix),
    ):
        with pytest.raises(BadMessage, match="asked for in the clear, needed masks"):
            one.revealed(command, None)


@given(squared=st.floats(1e-12, 1e12))
def test_the_gate_is_told_a_norm_to_a_factor_of_two_at_most(coarse, squared: float) -> None:
    told = coarse(squared)
    assert 0.5 <= told / squared <= 2.0
    assert math.log(told, 4.0) == pytest.approx(round(math.log(told, 4.0)))


@pytest.fixture(scope="module")
def coarse():
    one = Institution.__new__(Institution)
    one._config = RunConfig(work="local")
    return one._coarse


def test_with_privacy_no_norm_may_leave(house: House) -> None:
    node = node_of(house, privacy=Privacy(1.0, 4.0, 10, 1e-6))
    local = dataclasses.replace(MASKED, work="local")
    with pytest.raises(BadSetting, match="with privacy no norm may leave"):
        of(local, node)


def test_a_device_that_is_no_institution_loads_neither_a_database_nor_the_simulator():
    code = (
        "import sys; from fedgc.flower import client_app; client_app(); "
        "print(sorted(set(sys.modules) & {'sqlalchemy', 'alembic', 'fedgc.replay', 'fedgc.run'}))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert said.stdout == "[]\n", said.stderr
