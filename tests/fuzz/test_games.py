"""Test the two state machines under hostile events; `make fuzz` plays a million of other seeds."""

import pytest

from fedgc.messages import Add, Codeword, LinkEvent
from fedgc.round.coded.aggregator import CodedAggregator
from tests.fuzz.games import Game, MaskedGame, games, play
from tests.fuzz.memory import size_of

EVENTS = 8_000
LONG = 1500  # turns
SLACK_BYTES = 100_000


def test_hostile_events_neither_raise_nor_end_run() -> None:
    assert sum(games(0, EVENTS)) >= EVENTS


def test_same_seed_makes_same_game() -> None:
    assert play(7) == play(7)
    assert play(16) == play(16), "a masked one"


def test_games_reach_all_kinds_of_work_and_compare_sums() -> None:
    played = [Game(seed) for seed in range(1, 30)]
    for game in played:
        game.play()
    works = {(game.server.config.work, str(game.server.config.replicas)) for game in played}
    assert {work for work, _ in works} == {"local", "coded"}
    assert ("coded", "auto") in works
    assert sum(game.server.checked for game in played) > 20
    masked = MaskedGame(0)
    masked.play()
    assert masked.checked


def test_game_finds_vector_that_is_added_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    real = CodedAggregator.accept

    def forgetful(self, w: int, attempt: int):
        answer = real(self, w, attempt)
        return answer if isinstance(answer, Add) else Add("a", 1, 0, (1.0,))

    monkeypatch.setattr(CodedAggregator, "accept", forgetful)
    with pytest.raises(AssertionError, match=r"game \d+: .*; again: python -m tests.fuzz --game \d+"):
        list(games(1, EVENTS))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_memory_of_run_stays_bounded_under_hostile_events(seed: int) -> None:
    game = Game(seed, rounds=100_000)
    game.begin()
    sizes = []
    for _ in range(3):
        for _ in range(LONG):
            game.turn()
        assert not game.server.finished
        sizes.append(size_of(game.server.run))
    assert max(sizes[1:]) < sizes[0] + SLACK_BYTES


def test_every_class_of_event_is_played() -> None:
    game, seen = Game(3), set()
    for _ in range(2000):
        seen.add(type(game.hostile.event(5.0, "liar", 3, 2)))
    own = ("Tick", "Stop", "Published", "StepsGranted", "UpdateDue")  # of the server
    classes = {each for each in LinkEvent.__args__ if each.__name__ not in own}
    assert Codeword in classes
    assert classes <= seen
