"""Test what server and clients learn of one client, by all bytes that they are sent: the page's table."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from fedgc.secagg import Privacy
from tests.recorded_run import SAMPLES, Run, holds_numbers, holds_text, run

PAGE = Path(__file__).parents[2] / "docs" / "threat-model.md"
MODES: Mapping[str, Mapping[str, object]] = {
    "plain": {"aggregator": "weighted-mean"},
    "`[privacy]`": {"privacy_noise": 1.0, "privacy_clip": 0.5},
    "`unit = record`": {
        "privacy_noise": 1.0, "privacy_unit": "record", "aggregator": "weighted-mean"
    },
    "masked": {"masked": True},
    "masked, `unit = record`": {"masked": True, "privacy_noise": 1.0, "privacy_unit": "record"},
    "masked, `--site-clip`": {"masked": True, "privacy": Privacy(0.5, 1.0, 10, 1e-6)},
}  # fmt: skip
CLEAR = {True: "with noise", False: "yes"}  # what an update is that is sent as it is, by noise in each step
FACTS = ("the update of one client", "its training loss", "its number of samples", "the mean of all updates")
NEAR = 1e-5  # of a mean: rounding under masks


def learned(mode: str, made: Run) -> dict[tuple[str, str], str]:
    """What the server learns of the first client, and what the second one does, by party and fact."""
    about, other = made.clients[0], made.clients[1]
    trained, said, clear = made.first - about.updates[0], {True: "yes", False: "no"}, CLEAR["record" in mode]
    found = {}
    for party, sent in (("the server", about.sent), ("another client", other.received)):
        has_update = holds_numbers(sent, about.updates[0]) or holds_numbers(sent, trained)
        words = (
            clear if has_update else "no",
            said[any(holds_text(sent, each) for each in about.losses)],
            said[holds_text(sent, SAMPLES[0])],
            clear if has_update or is_mean(made) else "with noise",
        )
        found |= {(party, fact): word for fact, word in zip(FACTS, words, strict=True)}
    return found


def is_mean(made: Run) -> bool:
    """Whether the models that a client was sent tell the mean of the updates of the first round."""
    before, after = made.clients[1].models[:2]
    return any(
        np.abs(before - after - made.mean(weights)).max() < NEAR for weights in (SAMPLES, (1,) * len(SAMPLES))
    )


def table(found: Mapping[str, Mapping[tuple[str, str], str]]) -> str:
    """The table of the page."""
    lines = [f"| who learns | of | {' | '.join(found)} |", "|---|---|" + "---|" * len(found)]
    for party in ("the server", "another client"):
        lines += [
            f"| {party} | {fact} | {' | '.join(each[party, fact] for each in found.values())} |"
            for fact in FACTS
        ]
    return "\n".join(lines)


@pytest.mark.slow
def test_table_of_threat_model_is_that_of_recorded_runs(tmp_path: Path) -> None:
    found = {}
    for number, (mode, settings) in enumerate(MODES.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        made = run(folder, **settings)
        assert all(len(each.updates) == len(each.models) == 2 for each in made.clients)
        found[mode] = learned(mode, made)
    assert table(found) in PAGE.read_text(), table(found)
