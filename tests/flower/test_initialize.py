"""Test the wait for a model that clients bring: who is asked for it, and for how long."""

import logging

import numpy as np
import pytest

from fedgc.errors import EdgeFailed, Unusable
from fedgc.flower.initialize import Events, announced_model
from fedgc.messages import Announced, Codeword, Initialize, Layout, LinkEvent, Lost, Refuse, TensorSpec
from fedgc.training import AnnouncedModel
from tests.config_of import config_of
from tests.flower.test_scoring import Played
from tests.links.test_links import PlainLink

LAYOUT = Layout((TensorSpec("weight", "float32", (1,)),), 1)


class Clients(PlainLink):
    """Clients that send the model once they are asked for it, unless they are silent."""

    def __init__(self, played: Played, silent: str) -> None:
        super().__init__("s")
        self.played, self.silent = played, silent

    def expect(self, numbers: int, buffers: int) -> None:
        assert (numbers, buffers) == (LAYOUT.size, LAYOUT.buffer_size)

    def send(self, command) -> None:
        super().send(command)
        if isinstance(command, Initialize) and command.client not in self.silent:
            self.played.events.append(Codeword(self.played.now, command.client, 0, 0))


def announced(client: str) -> Announced:
    return Announced(0.0, client, LAYOUT)


def fits(numbers: int) -> None:
    if numbers > LAYOUT.size:
        raise Unusable(f"the server has no room for a model of {numbers} numbers")


def brought(silent: str, *events: LinkEvent) -> tuple[AnnouncedModel, Clients]:
    played = Played(*events)
    clients, config = Clients(played, silent), config_of({"script": "train.py", "start_timeout_s": 60.0})
    log = logging.getLogger("test")
    return announced_model(config, Events(played, lambda: played.now, log), clients, fits), clients


def test_next_client_is_asked_if_first_one_is_silent(caplog: pytest.LogCaptureFixture) -> None:
    model, clients = brought("a", announced("a"), announced("b"), announced("c"))
    assert clients.sent == [Initialize("a"), Initialize("b")]
    np.testing.assert_array_equal(model.first(), [0.0])
    assert [type(each) for each in clients.played.events] == [Announced, Announced, Announced]
    assert caplog.messages == ["s has not sent its model within 60 s: another client is asked"]


def test_model_that_comes_late_is_taken() -> None:
    late = [announced("a"), announced("b"), *(Lost(0.0, "x") for _ in range(300)), Codeword(0.0, "a", 0, 0)]
    model, clients = brought("ab", *late)
    assert clients.sent == [Initialize("a"), Initialize("b")]
    assert clients.taken == [("a", 0, 0)]
    np.testing.assert_array_equal(model.first(), [0.0])


def test_run_ends_if_every_client_is_silent() -> None:
    with pytest.raises(EdgeFailed, match="waited 60 s for its vector"):
        brought("ab", announced("a"), announced("b"))


HUGE = Layout((TensorSpec("weight", "float32", (1 << 40,)),), 1)
NO_ROOM = f"the server has no room for a model of {1 << 40} numbers"


def test_model_without_room_is_refused_before_any_is_reserved() -> None:
    model, clients = brought("", Announced(0.0, "a", HUGE), announced("b"))
    assert clients.sent == [Refuse("a", 0, NO_ROOM), Initialize("b")]
    np.testing.assert_array_equal(model.first(), [0.0])


def test_run_whose_only_model_has_no_room_names_that() -> None:
    with pytest.raises(EdgeFailed, match=f"waited 60 s for .*; a was refused: {NO_ROOM}"):
        brought("", Announced(0.0, "a", HUGE))


def test_events_do_not_extend_wait() -> None:
    with pytest.raises(EdgeFailed, match="waited 60 s for a client that announces its model"):
        brought("", *(Lost(0.0, "x") for _ in range(1000)), announced("a"))
