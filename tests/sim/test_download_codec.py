"""Test simulated downloads in few bits: the server's models, and the time and bytes of changes."""

from dataclasses import replace

import numpy as np
import pytest

from fedgc.codecs import share_of
from fedgc.codecs.model_change import apply_change
from fedgc.config import RunConfig
from fedgc.errors import BadSetting
from fedgc.messages import Held, Joined, Loaded, Lost, Work
from fedgc.sim.clock import UNCONTENDED, ClientModel, Failure, Line, Terms, VirtualClock, working
from fedgc.sim.play import TimedClients, play
from fedgc.sim.training import Job, Trained, train
from fedgc.training import CommonModel
from fedgc.training.next_model import NextModel
from tests.six_chunks import TASK

INT8 = share_of("int8", 1000)
OWN = share_of("int8", 12)  # of the model of TASK
DOWN_S = 4.0


def config(**changes) -> RunConfig:
    values = {
        "work": "local", "rounds": 6, "local_steps": 3, "gate": "every", "quorum": 1.0, "batch_size": 4,
        "learning_rate": 0.3, "min_clients": 3, "device": "cpu", "download_codec": "int8",
    }  # fmt: skip
    return RunConfig(**{**values, **changes})


def trained(settings: RunConfig, scenario=None) -> Trained:
    return train(Job(TASK, settings, scenario or (working([[1.0]] * 3),) * settings.rounds))


# ---- models


@pytest.mark.parametrize("work", ["local", "coded"])
def test_models_are_those_of_server_and_of_its_clients(monkeypatch, work):
    means, models, changes = [], [], []
    apply = NextModel.apply

    def spied(server, model, mean, version):
        means.append(mean.copy())
        made, change = apply(server, model, mean, version)
        models.append(made.copy())
        changes.append(change)
        return made, change

    monkeypatch.setattr(NextModel, "apply", spied)
    settings = config(work=work, server_optimizer="nesterov", server_momentum=0.5)
    done = trained(settings)
    monkeypatch.undo()
    common = CommonModel(TASK, settings)
    server = NextModel(settings, common.parameters, common.size, common.layout.variances)
    model, decoded = common.first(), common.first()
    for version, (mean, made, change) in enumerate(zip(means, models, changes, strict=True)):
        model, _ = server.apply(model, mean, version)
        apply_change(decoded, change)
        assert np.array_equal(made, model)
        assert np.array_equal(made, decoded)
    assert len(means) == settings.rounds
    assert np.array_equal(done.model, model)


def test_error_feedback_keeps_model_near_that_of_float32():
    short, plain = (trained(config(rounds=20, download_codec=codec)) for codec in ("int8", "float32"))
    assert (short.model != plain.model).any()
    assert short.model == pytest.approx(plain.model, abs=0.02)


# ---- time and bytes


class Listener:
    """Hears the events of a clock."""

    def __init__(self, next_tick: float = 1e3) -> None:
        self.heard: list = []
        self.next_tick = next_tick

    def handle(self, event):
        self.heard.append(event)
        return ()


def loads(versions, *, line=UNCONTENDED, before=lambda clock, version: None) -> tuple[list[Loaded], float]:
    """Send models of 4000 bytes to one client; return how they came, and what was sent, in whole models."""
    client_model = ClientModel(lambda _: working([[1.0]], down_s=DOWN_S), [1.0])
    terms, held = Terms(update_bytes=4000, line=line, download_codec="int8"), (Held("chunk 0", 1, "same"),)
    clock, listener = VirtualClock(["a"], client_model, terms, held), Listener()
    for number, version in enumerate(versions, start=1):
        before(clock, version)
        work = Work("a", number, version, 1, (0,), ((0, "chunk 0"),), 0, 99.0)
        ends = len(listener.heard) + 2
        clock.run(listener, [work], lambda ends=ends: len(listener.heard) >= ends)
    return [each for each in listener.heard if isinstance(each, Loaded)], clock.downloads.sent


@pytest.mark.parametrize("line", [Line(), Line(update_s=DOWN_S / 2)], ids=["own lines", "a shared line"])
def test_change_takes_quarter_of_time_and_bytes(line):
    came, sent = loads([0, 1, 2, 4], line=line)
    shares = [1.0, INT8, INT8, 1.0]
    assert [each.version for each in came] == [0, 1, 2, 4]
    assert [each.seconds for each in came] == pytest.approx([DOWN_S * share for share in shares])
    assert [each.size_bytes for each in came] == [round(4000 * share) for share in shares]
    assert sent == pytest.approx(sum(shares))


def test_version_that_is_model_before_is_sent_whole():
    """The server publishes no change where it left out the update of a round."""
    came, _ = loads([0, 1, 2], before=lambda clock, _: clock.downloads.unchanged.add(1))
    assert [each.size_bytes for each in came] == [4000, 4000, round(4000 * INT8)]


@pytest.mark.parametrize(
    ("keeps", "noticed_s", "size_bytes"),
    [(False, 2.0, 4000), (True, 0.5, 4000), (True, 2.0, round(4000 * INT8))],
    ids=["process dies", "session is lost", "session goes on"],
)
def test_new_session_begins_with_whole_model(keeps, noticed_s, size_bytes):
    client_model = ClientModel(lambda _: working([[1.0]], down_s=DOWN_S), [1.0])
    terms, held = Terms(update_bytes=4000, download_codec="int8"), (Held("chunk 0", 1, "same"),)
    clock, listener = VirtualClock(["a"], client_model, terms, held), Listener()
    work = Work("a", 1, 0, 1, (0,), ((0, "chunk 0"),), 0, 99.0)
    clock.run(listener, [work], lambda: len(listener.heard) == 2)
    clock._die(0, Failure(0.0, 1.0, keeps=keeps, noticed_s=noticed_s))
    clock.run(listener, [], lambda: isinstance(listener.heard[-1], Joined))
    assert any(isinstance(each, Lost) for each in listener.heard) == (noticed_s < 1.0)
    clock.run(
        listener,
        [replace(work, round=2, version=1)],
        lambda: isinstance(listener.heard[-1], Loaded),
    )
    assert listener.heard[-1].size_bytes == size_bytes


def test_client_without_last_model_is_sent_whole_one():
    """The third client dies in the second round, and comes back for the fourth."""
    calm = working([[1.0]] * 3)
    away = replace(
        calm, dies_s_w=np.array([np.inf, np.inf, 0.5]), returns_s_w=np.array([np.inf, np.inf, 2.5])
    )
    settings = config(quorum=0.6, patience=0.0, lockstep="on", local_steps=1)
    done = trained(settings, (calm, away, *(calm,) * 4))
    there = [{each.client for each in point.row.clients} for point in done.points]
    whole = [len(now - before) for before, now in zip([set(), *there], there, strict=False)]
    assert sum(whole) == 4, "three at first, and the one that comes back"
    assert sum(map(len, there)) < 3 * settings.rounds, "one was away"
    sent = np.cumsum([count + OWN * (len(now) - count) for count, now in zip(whole, there, strict=True)])
    assert [point.down for point in done.points] == pytest.approx(sent.tolist())


def test_run_is_shorter_by_bytes_that_it_saves():
    slow = (working([[1.0]] * 3, down_s=DOWN_S),) * 6
    short, plain = (trained(config(download_codec=codec), slow) for codec in ("int8", "float32"))
    assert plain.points[-1].down == 3 * 6
    assert short.points[-1].down == pytest.approx(3 * (1 + 5 * OWN))
    saved_s = plain.points[-1].seconds - short.points[-1].seconds
    assert saved_s == pytest.approx(5 * DOWN_S * (1 - OWN))


def test_clients_are_sent_whole_models_where_no_update_counts():
    """Krum refuses to choose among three updates of which nine may be hostile."""
    settings = config(aggregator="krum", aggregator_options="f=9")
    done = trained(settings)
    assert np.array_equal(done.model, CommonModel(TASK, settings).first())
    assert done.points[-1].down == 3 * 6


def test_run_without_training_counts_same_downloads():
    model = ClientModel(lambda _: working([[1.0]] * 3, down_s=DOWN_S), [1.0])
    played = play(config(), TimedClients(("a", "b", "c"), model, 1000, 0), 6)
    assert played.down == pytest.approx(3 * (1 + 5 * INT8))


def test_fragments_are_refused():
    with pytest.raises(BadSetting, match=r"training: saw links.fragments = 2, needed 1$"):
        trained(config(fragments=2, link="session"))
