"""What the demo says of its plans, and when it kills; the demo itself is a contract test."""

from fedgc.cli.demo import COLLECTING, KILLED, LATEST, Story, reasons
from fedgc.store.records import Decided


class Killed:
    """A federation of which only the killing is asked."""

    def __init__(self) -> None:
        self.killed: list[str] = []

    def kill(self, name: str) -> list[int]:
        self.killed.append(name)
        return [1]

    def restart(self, name: str) -> None:
        self.killed.remove(name)


def test_the_first_and_the_last_plan_are_told_by_the_names_of_the_devices() -> None:
    decisions = [Decided(0.0, "r", number, "plan", {}, f"because of aa{number}") for number in (1, 4, 9)]
    decisions.insert(1, Decided(0.0, "r", 2, "gate", {}, "other"))
    first, last, count = reasons(decisions, {"aa": "north"})
    assert (first, last) == ("plan of round 1: because of north1", "plan of round 9: because of north9")
    assert "3 plans" in count
    assert len(list(reasons(decisions[:1], {}))) == 2
    assert not list(reasons([], {}))


def test_the_device_is_killed_while_codewords_are_collected() -> None:
    federation = Killed()
    story = Story(kill_after=5, return_after_s=1.0)
    for last, phase in ((4, COLLECTING), (5, "working"), (6, None)):
        story.act(federation, last, phase)
    assert not federation.killed
    story.act(federation, 6, COLLECTING)
    assert federation.killed == [KILLED]
    assert story.killed_in == 7


def test_the_killing_does_not_wait_for_ever() -> None:
    federation = Killed()
    Story(kill_after=5, return_after_s=1.0).act(federation, 5 + LATEST, "working")
    assert federation.killed == [KILLED]
