"""Test a site's masked client: persist before send, refuse unmasked runs."""

import dataclasses
import hashlib
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from fedgc import FedGC
from fedgc.config import RunConfig
from fedgc.errors import (
    BadMessage,
    BadSetting,
    BadTask,
    BadVector,
    EdgeFailed,
    NotAdmitted,
    Unexpected,
    Unusable,
)
from fedgc.flower.client import _client
from fedgc.flower.masked_client import SEE_CLIENT_LOG, MaskedClient, site_of
from fedgc.flower.message_work import MessageWork
from fedgc.flower.sink import Sink
from fedgc.flower.site_policy import SitePolicy
from fedgc.links.frames import Offer
from fedgc.links.message.packets import Packet
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
    Ring,
    Survivors,
    Unmask,
)
from fedgc.round.masked.key_agreement import KeyAgreement
from fedgc.secagg import Descriptor, Federation, Privacy, Quantizer, RingSum, Terms, packets
from fedgc.secagg.federation import member_list
from fedgc.store.vault import Vault
from fedgc.training import Answer, Start
from tests.flower.test_site_policy import logged, masked_policy
from tests.six_chunks import TASK

MODEL = np.linspace(-1, 1, 11, dtype=np.float32)
CONFIG = RunConfig(work="coded")
SETTINGS = CONFIG.shape
FROM = Start(MODEL, None, 0, 0.0, 3)
SECRET = b"a long secret"


class House:
    """Three sites with vaults on a disk, and the server's keys."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clients = ["client 0", "client 1", "client 2"]
        keys = []
        for client in self.clients:
            with Vault.open(self.path(client), SECRET) as vault:
                keys.append((client.replace("client", "site"), vault.identity().public))
        self.federation = Federation(member_list(keys), 3, 3, 4, Quantizer(1.0, 20, 32, 100))
        self.open = {client: self.start(client) for client in self.clients}
        self.key_agreement = KeyAgreement(
            self.federation, Terms(MODEL.size, SETTINGS, bytes(32)), 10.0, lambda: 0.0
        )

    def path(self, client: str) -> Path:
        return self.folder / f"{client}.db"

    def start(self, client: str) -> MaskedClient:
        vault = Vault.open(self.path(client), SECRET)
        return MaskedClient(self.federation, vault, CONFIG, lambda: 0.0, os.urandom)

    def restart(self, client: str) -> None:
        self.open[client].close()
        self.open[client] = self.start(client)

    def hear(self, command, start=FROM):
        return self.open[command.client].handle(command, start)

    def set_up(self) -> None:
        for client in self.clients:
            self.key_agreement.enrol(self.open[client].enrolled(client, ""))
        todo = list(self.key_agreement.open(0.0, 1))
        while todo:
            todo += self.key_agreement.heard(self.hear(todo.pop(0)))

    def draw(self, model=MODEL):
        digest = hashlib.sha256(model.tobytes()).digest()
        self.key_agreement.noted(Published(0.0, 0, digest))
        exchange = self.key_agreement.draw(self.clients)
        return exchange, {client: exchange.begin(client, 1)[0] for client in self.clients}

    def close(self) -> None:
        for each in self.open.values():
            each.close()


@pytest.fixture
def house(tmp_path: Path):
    made = House(tmp_path)
    yield made
    made.close()


def agree_on(house: House, exchange, survivors=range(3)):
    exchange, packet = exchange.agree(list(survivors))
    return exchange, {client: Survivors(client, 1, packet.pack()) for client in house.clients}


def test_three_sites_give_mean_over_their_vaults(house: House) -> None:
    house.set_up()
    agreed, begins = house.draw()
    ring = RingSum(house.federation.quantizer, MODEL.size)
    updates = {client: np.full(MODEL.size, at / 4, np.float32) for at, client in enumerate(house.clients)}
    for client in house.clients:
        assert house.hear(begins[client]) is None
        ring.add(house.open[client].masked(updates[client], 50, FROM))
    exchange, told = agree_on(house, agreed.exchange)
    for client in house.clients:
        exchange = exchange.sign(agreed.member[client], house.hear(told[client]).signature)
    unlock = exchange.unlock().pack()
    for client in house.clients:
        said = house.hear(Unmask(client, 1, unlock))
        exchange = exchange.open(packets.Opened.unpack(said.packet))
    ring.remove(exchange.masks())
    mean, weight = ring.mean()
    assert weight == 150
    assert np.abs(mean - 0.25).max() <= house.federation.quantizer.bound(3, weight)


def test_restarted_site_masks_no_exchange_twice(house: House) -> None:
    house.set_up()
    _, begins = house.draw()
    begin = begins["client 1"]
    house.hear(begin)
    house.restart("client 1")
    house.hear(begin)
    first = house.open["client 1"].masked(MODEL / 2, 50, FROM)
    assert house.open["client 1"].masked(MODEL / 3, 50, FROM) is first, "asked again: the same bytes"
    house.restart("client 1")
    with pytest.raises(BadMessage, match="its vector is gone; needed the next"):
        house.hear(begin)
    with pytest.raises(BadMessage, match="saw no exchange that waits"):
        house.open["client 1"].masked(MODEL / 3, 50, FROM)


def answered(house: House, policy: SitePolicy, *commands: object) -> list[object]:
    """Return the lines with which a process of client 1 answers these commands over Flower messages."""
    engine = SimpleNamespace(idle=True, start=FROM, keep=tuple)
    engine.answer = lambda command: Answer(command, None, MODEL / 2, 50)
    files = SimpleNamespace(models=dict)
    client = "client 1"
    made = MessageWork(engine, files, client, time.monotonic, house.open[client], policy=policy)
    made.run(Packet("run", bytes(16), 60.0, commands))
    return made.lines


def test_vector_that_leaves_again_or_never_costs_no_privacy(house: House, tmp_path: Path) -> None:
    """A server could spend all privacy of a site by lines alone."""
    house.set_up()
    begin = house.draw()[1]["client 1"]
    policy = masked_policy(tmp_path / "site.toml", "[privacy]\nepsilon = 20.0\n")
    asks = [
        Reveal("client 1", 1, attempt, "masked", None, ring=Ring(MODEL.size + 1, 32)) for attempt in (0, 1)
    ]
    lines = answered(house, policy, begin, *asks)
    assert len([each for each in lines if isinstance(each, Offer)]) == 2
    house.restart("client 1")
    lost = answered(house, policy, begin, asks[0])
    assert [type(each) for each in lost] == [Failed, Failed], "its vector is gone"
    told = [(each["what"], each["exchanges"], each["noise"]) for each in logged(tmp_path / "site.toml")]
    assert told[:2] == [("exchange", 1, 4.0), ("exchange", 0, 0.0)]
    assert [what for what, *_ in told[2:]] == ["round", "round"], "the lines of each message count"


def test_restarted_site_masks_no_model_with_given_shares(house: House) -> None:
    house.set_up()
    agreed, begins = house.draw()
    for client in house.clients:
        house.hear(begins[client])
        house.open[client].masked(MODEL / 2, 50, FROM)
    exchange, told = agree_on(house, agreed.exchange)
    for client in house.clients:
        exchange = exchange.sign(agreed.member[client], house.hear(told[client]).signature)
    for client in house.clients:
        house.hear(Unmask(client, 1, exchange.unlock().pack()))
        house.restart(client)
    _, begins = house.draw()
    for client in house.clients:
        with pytest.raises(BadMessage, match="two sums of one model tell single updates"):
            house.hear(begins[client])
    _, begins = house.draw(MODEL + 1)
    for client in house.clients:
        house.hear(begins[client], dataclasses.replace(FROM, model=MODEL + 1))


def test_site_that_cannot_write_vault_sends_nothing(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    house.set_up()
    _, begins = house.draw()
    for client in house.clients:
        house.hear(begins[client])
    one = house.open["client 0"]
    monkeypatch.setattr(one._vault, "write", lambda *_: (_ for _ in ()).throw(EdgeFailed("the disk is full")))
    with pytest.raises(EdgeFailed, match="the disk is full"):
        one.masked(MODEL, 50, FROM)
    for attempt in (lambda: one.masked(MODEL, 50, FROM), lambda: one.enrolled("client 0", "")):
        with pytest.raises(EdgeFailed, match="needed a new start"):
            attempt()
    assert one.broken
    assert not house.open["client 1"].broken


def test_exchange_announcement_is_checked_before_masking(house: House) -> None:
    house.set_up()
    _, begins = house.draw()
    begin = begins["client 0"]
    packet = packets.Begin.unpack(begin.packet)
    huge = dataclasses.replace(begin, packet=dataclasses.replace(packet, size=2**40).pack())
    with pytest.raises(BadMessage, match=r"saw 1099511627776 numbers, needed the model's 11"):
        house.hear(huge)
    with pytest.raises(BadMessage, match="saw other settings"):
        house.hear(dataclasses.replace(begin, packet=dataclasses.replace(packet, settings=bytes(32)).pack()))
    with pytest.raises(BadMessage, match="saw no model"):
        house.hear(begin, start=None)
    with pytest.raises(BadMessage, match="saw no exchange that waits"):
        house.open["client 0"].masked(MODEL, 50, FROM)


def test_work_from_other_model_is_not_masked(house: House) -> None:
    """A model made for one site would reveal its update: the sum would hold no other."""
    house.set_up()
    _, begins = house.draw()
    for client in house.clients:
        house.hear(begins[client])
    one = house.open["client 0"]
    others = [
        dataclasses.replace(FROM, model=MODEL + 1),
        dataclasses.replace(FROM, before=MODEL),
        dataclasses.replace(FROM, first_step=10**6),
        dataclasses.replace(FROM, common_steps=1e-9),
    ]
    for other in others:
        with pytest.raises(BadMessage, match="made from another model or other settings"):
            one.masked(MODEL, 50, other)
    house.restart("client 0")
    with pytest.raises(BadMessage, match="made from another model or other settings"):
        house.open["client 0"].masked(MODEL, 50, others[0])
    assert house.open["client 0"].masked(MODEL, 50, dataclasses.replace(FROM, model=MODEL.copy())).size


def test_exchange_with_other_lead_than_work_is_refused(house: House) -> None:
    house.set_up()
    before = MODEL / 2
    house.key_agreement.noted(Published(0.0, 0, hashlib.sha256(before.tobytes()).digest()))
    house.key_agreement.noted(Published(0.0, 1, hashlib.sha256(MODEL.tobytes()).digest()))
    exchange = house.key_agreement.draw(house.clients, (8, 4.0))
    (begin,) = exchange.begin("client 0", 1)
    led = Start(MODEL, before, 8, 4.0, 3)
    for other in (
        dataclasses.replace(led, before=None),
        dataclasses.replace(led, before=MODEL / 3),
        dataclasses.replace(led, first_step=9),
        dataclasses.replace(led, common_steps=0.5),
    ):
        with pytest.raises(BadMessage, match="or another shared momentum"):
            house.hear(begin, start=other)
    assert house.hear(begin, start=led) is None


def test_repeated_exchange_with_other_model_is_refused(house: House) -> None:
    house.set_up()
    _, begins = house.draw()
    house.hear(begins["client 0"])
    house.hear(begins["client 0"])
    with pytest.raises(BadMessage, match="with another model, members or settings"):
        house.hear(begins["client 0"], start=dataclasses.replace(FROM, model=MODEL + 1))


def test_unpinned_identity_is_refused(house: House, tmp_path: Path) -> None:
    vault = Vault.open(tmp_path / "stranger.db", SECRET)
    with pytest.raises(NotAdmitted, match="needed a member's"):
        MaskedClient(house.federation, vault, CONFIG, lambda: 0.0, os.urandom)
    vault.close()


# ---- what a node's config says


def node_of(house: House, client: str = "client 0", privacy: Privacy | None = None) -> dict[str, object]:
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
        "vault": str(house.path(client)),
        "vault-key": str(key),
    }


def of(config: RunConfig, node: dict[str, object], environment: dict[str, str] | None = None):
    return site_of(config, node, environment or {}, lambda: 0.0, os.urandom)


MASKED = RunConfig(secrecy="masked", federation="server.fed", work="coded")


def test_node_without_federation_has_no_site() -> None:
    assert of(RunConfig(work="coded"), {"name": "plain"}) is None


def test_node_with_federation_refuses_unmasked_run(house: House) -> None:
    with pytest.raises(BadSetting, match="takes part in masked runs alone, saw secrecy = open"):
        of(RunConfig(work="coded"), node_of(house))


@pytest.mark.parametrize("missing", [("federation",), ("vault",), ("federation", "vault")])
def test_masked_run_needs_identity_and_federation(house: House, missing: tuple[str, ...]) -> None:
    node = {name: value for name, value in node_of(house).items() if name not in missing}
    with pytest.raises(BadSetting, match="a masked run needs federation and vault"):
        of(MASKED, node)


def test_vault_is_opened_by_key_file_or_environment(house: House) -> None:
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


def test_invalid_descriptor_gives_one_line(house: House) -> None:
    node = node_of(house)
    Path(str(node["federation"])).write_bytes(b"something")
    with pytest.raises(Unusable, match=r"descriptor .*all\.fed: "):
        of(MASKED, node)


def test_messages_from_site_reveal_no_more_than_sum(house: House) -> None:
    one = house.open["client 0"]
    joined = Joined(0.0, "d", True, (Held("a", 31), Held("b", 7)), (Kept(1, 0, 3),))
    assert one.redacted(joined, None) == Joined(0.0, "d", True, (Held("a", 1), Held("b", 1)))
    told = one.redacted(Progress(0.0, "d", 1, 2, 4, 0.5, 31, 2.75, 0.25, (0.1,) * SKETCH_NUMBERS), FROM)
    assert told == Progress(0.0, "d", 1, 2, 4, 0.5, 1, 0.0, 0.0)
    told = one.redacted(Report(0.0, "d", 1, 16, 31, 0.5, 2.75, 0.25), FROM)
    assert told == Report(0.0, "d", 1, 16, 3, 0.5, 0.0, 0.0)
    failed = Failed(0.0, "d", 1, "update: saw values from -0.25 to inf", (2,))
    assert one.redacted(failed, None) == dataclasses.replace(failed, reason=SEE_CLIENT_LOG)


def test_failure_on_private_data_is_reported_without_reason(house: House) -> None:
    one, begin = house.open["client 0"], Open("client 0", 1, b"packet")
    for error in (BadVector("update: saw values from -0.25 to inf"), EdgeFailed("/home/ward/vault is full")):
        assert one.failed(begin, error) == Failed(0.0, "client 0", 1, SEE_CLIENT_LOG)
    assert one.failed(begin, BadMessage("of the packet")).reason == "of the packet"


def test_failure_that_ends_client_is_reported_without_reason(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flower sends the text of an exception to the server."""
    (tmp_path / "failing_ward.py").write_text("def task(config): raise ValueError('patient 4711: -3 kg')\n")
    monkeypatch.syspath_prepend(tmp_path)
    house.close()
    node = {
        **node_of(house),
        "name": "north",
        "identity": str(tmp_path / "key"),
        "cache": str(tmp_path / "c"),
    }
    masked = {"secrecy": "masked", "federation": "all.fed", "work": "local"}
    failed = Context(1, 2, node, RecordDict(), {**masked, "task": "failing_ward:task"})
    with pytest.raises(BadTask) as said, _client(failed, None, "ward@7"):
        pass
    assert str(said.value) == f"client north: {SEE_CLIENT_LOG}"
    works = Context(1, 2, node, RecordDict(), {**masked, "task": "digits"})
    with pytest.raises(Unexpected) as said, _client(works, None, "ward@7"):
        raise KeyError("patient 4711")
    assert str(said.value) == f"client north: {SEE_CLIENT_LOG}"
    with pytest.raises(BadMessage, match="of the packet"), _client(works, None, "ward@7"):
        raise BadMessage("of the packet")


def test_no_update_is_sent_in_clear(house: House) -> None:
    one, mix = house.open["client 0"], Mix((0,), ((1.0,),))
    for command in (
        Reveal("client 0", 1, 0, "coded", mix),
        Reveal("client 0", 1, 0, "local", None),
        Repair("client 0", 1, 1, "client 1", mix),
    ):
        with pytest.raises(BadMessage, match="asked for in the clear, needed masks"):
            one.must_be_masked(command)


@given(squared=st.floats(1e-12, 1e12))
def test_gate_sees_norm_within_factor_of_two(coarse, squared: float) -> None:
    told = coarse(squared)
    assert 0.5 <= told / squared <= 2.0
    assert math.log(told, 4.0) == pytest.approx(round(math.log(told, 4.0)))


@pytest.fixture(scope="module")
def coarse():
    one = MaskedClient.__new__(MaskedClient)
    one._config = RunConfig(work="local")
    return one._coarse


def test_differential_privacy_forbids_sending_norm(house: House) -> None:
    node = node_of(house, privacy=Privacy(1.0, 4.0, 10, 1e-6))
    local = dataclasses.replace(MASKED, work="local")
    with pytest.raises(BadSetting, match="with privacy no norm may leave"):
        of(local, node)
    server = FedGC(TASK, dataclasses.replace(local, federation=str(node["federation"])), sink=Sink())
    with pytest.raises(BadSetting, match="with privacy no norm may leave"):
        server._job(None, Sink(), "r", None, None)


def test_descriptor_with_noise_protects_records_already(house: House) -> None:
    node = node_of(house, privacy=Privacy(2.0, 4.0, 10, 1e-6))
    records = dataclasses.replace(
        MASKED, work="local", gate="every", privacy_unit="record", privacy_noise=1.0
    )
    with pytest.raises(BadSetting, match="needed client under a descriptor with --site-clip"):
        of(records, node)


def test_client_without_site_imports_no_database_or_simulator():
    code = (
        "import sys; from fedgc import client_app; client_app(); "
        "print(sorted(set(sys.modules) & {'sqlalchemy', 'alembic', 'fedgc.sim.clock', 'fedgc.run.machine'}))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert said.stdout == "[]\n", said.stderr
