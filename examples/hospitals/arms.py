"""The ways to train that are compared, each with what it asks of an operator.

    FedAvg, waits       a round waits for all (McMahan et al., arXiv:1602.05629): the null arm
    FedAvg, deadline    a round ends when the quick sites are done; what is not finished is dropped
    FedAvgM             momentum on the server (Hsu et al., arXiv:1909.06335), waiting or with a deadline
    FedProx             a proximal term (Li et al., arXiv:1812.06127). As published, partial work counts at
                        the deadline; frameworks ship the term alone, and drop partial work
    FedBuff             asynchronous, four updates make a model (Nguyen et al., arXiv:2106.06639), as
                        published, and with updates weighted by samples
    TimelyFL            a slow site trains the layers next to the output (Zhang et al., arXiv:2304.06947; what
                        was reproduced: `benchmarks.local_rules`)
    SCAFFOLD, waits     control variates (Karimireddy et al., arXiv:1910.06378)
    FedCM, waits        shared momentum (Xu et al., arXiv:2106.10874)
    ..., 4 steps        shorter rounds, for arms that the slow site can follow; FedProx also with fedgc's 16
    fedgc               partial steps count, uploads and downloads in 8 bits, an exchange in each round; all
                        else by default, also the local steps

Each arm is tuned over as many learning rates (`comparison`), and gives up an upload after `ROUND_S`, a quick
site's round, where fedgc's default follows from the measured links.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.arms import ALONE, Arm
from benchmarks.asynchronous import Buffered
from benchmarks.local_rules import Proximal, Scaffold, Timely
from examples.hospitals.scene import HOURS, ROUND_S, SITES, SLOWER, STEPS, TRANSFER_S
from fedgc.codecs import EXACT, share_of
from fedgc.config.training_settings import LOCAL_STEPS

SHORT: Final = 4  # steps
DEADLINE: Final = 1.2  # times a quick site's round
STEP_S: Final = SLOWER * ROUND_S / STEPS  # of the slow site
QUICK_HOURS: Final = HOURS / 5  # of arms that do not wait for the slow site
TUNING_HOURS: Final = HOURS / 10  # of these, in tuning

RAISE: Final = "raise the timeout above the slowest site's round; restart the job when a site is lost"
GUESS: Final = "guess a deadline; find out that the largest site never counted"
NOTHING: Final = "nothing"


@dataclass(frozen=True, slots=True)
class Entry:
    """An arm of the comparison."""

    arm: Arm
    operator: str
    waits: bool = False
    drops: bool = False  # whether it leaves out what a slow site has not finished

    @property
    def name(self) -> str:
        """Return the name in tables."""
        return self.arm.name

    @property
    def hours(self) -> float:
        """Return how long it trains."""
        return HOURS if self.waits else QUICK_HOURS

    @property
    def tuning_hours(self) -> float:
        """Return how long it trains when it is tuned."""
        return HOURS if self.waits else TUNING_HOURS

    @property
    def round_s(self) -> float:
        """Return how long a round takes about; for asynchronous arms, as many updates as there are sites."""
        quick_s = ROUND_S * self.arm.look / STEPS
        shares = [share_of(self.arm.settings.get(each, EXACT)) for each in ("codec", "download_codec")]
        links_s = self.arm.vectors * TRANSFER_S * sum(shares)
        if self.arm.rule is not None:
            return SITES / ((SITES - 1) / (quick_s + links_s) + 1 / (SLOWER * quick_s + links_s))
        if self.waits:
            return SLOWER * quick_s + links_s
        ended_s = STEP_S * math.ceil(quick_s / STEP_S) if self.arm.partial else quick_s
        return ended_s + links_s


def _settings(**others: Any) -> dict[str, Any]:  # noqa: ANN401  settings are of any kind
    long_s = 2 * SLOWER * ROUND_S
    usual = {"gate": "every", "local_steps": STEPS, "upload_deadline_s": ROUND_S, "evaluate_every": 1}
    return {**usual, "deadline_s": long_s, **others}


def _rival(**others: Any) -> dict[str, Any]:  # noqa: ANN401  the same
    return _settings(**{"largest_share": 1.0, "quorum": 1.0, **ALONE, **others})


def _waiting(name: str, *, local_rule: Any = None, **others: Any) -> Entry:  # noqa: ANN401  the same
    settings = _rival(**others)
    return Entry(Arm(name, settings, partial=False, local_rule=local_rule), RAISE, waits=True)


def _with_deadline(steps: int = STEPS, **others: Any) -> dict[str, Any]:  # noqa: ANN401  the same
    deadline_s = DEADLINE * ROUND_S * steps / STEPS
    return _rival(deadline_s=deadline_s, quorum=(SITES - 1) / SITES, local_steps=steps, **others)


def _dropping(name: str, *, local_rule: Any = None, **others: Any) -> Entry:  # noqa: ANN401  the same
    arm = Arm(name, _with_deadline(**others), partial=False, local_rule=local_rule)
    return Entry(arm, GUESS, drops=True)


def _proximal(mu: float, steps: int = STEPS) -> Entry:
    name = f"FedProx {mu:g}" if steps == STEPS else f"FedProx {mu:g}, {steps} steps"
    arm = Arm(name, _with_deadline(steps), local_rule=Proximal(mu))
    return Entry(arm, "guess a deadline; write clients that stop at it")


def _buffered(name: str, rule: Buffered) -> Entry:
    arm = Arm(name, _rival(), rule=rule)
    return Entry(arm, "choose the buffer; find out that the largest site hardly counted")


WAITS: Final = "FedAvg, waits"
DROPS: Final = "FedAvg, deadline"
OURS: Final = "fedgc"
OURS_SETTINGS: Final[Mapping[str, Any]] = {
    "local_steps": LOCAL_STEPS, "gate": "every", "codec": "int8", "download_codec": "int8", "patience": 0.25,
    "upload_deadline_s": ROUND_S, "evaluate_every": 1,
}  # fmt: skip
ENTRIES: Final = (
    _waiting(WAITS),
    _waiting("FedAvg, waits, 4 steps", local_steps=SHORT),
    _waiting("FedAvgM, waits", server_momentum=0.9),
    _waiting("FedCM, waits", shared_momentum="auto"),
    _waiting("FedCM, waits, 4 steps", shared_momentum="auto", local_steps=SHORT),
    _waiting("SCAFFOLD, waits", local_rule=Scaffold()),
    _waiting("SCAFFOLD, waits, 4 steps", local_rule=Scaffold(), local_steps=SHORT),
    _dropping(DROPS),
    _dropping("FedAvgM, deadline", server_momentum=0.9),
    _dropping("FedProx 0.1, drops", local_rule=Proximal(0.1)),
    *(_proximal(mu) for mu in (0.1, 1.0)),
    *(_proximal(0.1, steps) for steps in (SHORT, LOCAL_STEPS)),
    _buffered("FedBuff", Buffered(4)),
    _buffered("FedBuff, by samples", Buffered(4, by_samples=SITES)),
    Entry(
        Arm("TimelyFL", _rival(), partial=False, local_rule=Timely(SITES - 1)),
        "measure every site's speed; name the layers that a slow site trains",
    ),
    Entry(Arm(OURS, OURS_SETTINGS, ours=True), NOTHING),
)


def named(*names: str) -> tuple[Entry, ...]:
    """Return the entries with these names."""
    by_name = {entry.name: entry for entry in ENTRIES}
    return tuple(by_name[name] for name in names)
