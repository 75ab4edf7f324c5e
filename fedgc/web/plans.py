"""The plans of a run: what each predicted, and what its rounds took."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from fedgc.store.records import Decided
from fedgc.store.views import Round
from fedgc.web.fleet import whole


@dataclass(frozen=True, slots=True)
class PlanMade:
    """A plan, its reason, its prediction, and what its rounds took."""

    round: int
    at: float
    reason: str
    replicas: int | None
    most_blocks: int | None
    deadline_s: float | None
    measured: bool
    predicted_s: float | None
    band_s: tuple[float, float] | None
    took_s: float | None


def plans_made(
    decided: Sequence[Decided], rounds: Sequence[Round], names: Mapping[str, str]
) -> tuple[PlanMade, ...]:
    """Return the plans, newest first, with clients by name in their reasons.

    What a plan took is the median of those of `rounds` that it was made for.
    """
    made = []
    until = math.inf
    for each in reversed(decided):
        took = [
            one.row.working_s + one.row.collecting_s for one in rounds if each.round <= one.row.round < until
        ]
        until = each.round
        basis = each.basis
        band = basis.get("band_s")
        made.append(
            PlanMade(
                round=each.round,
                at=each.now,
                reason="".join(names.get(word) or word for word in re.split(r"(\W+)", each.reason)),
                replicas=whole(basis.get("replicas")),
                most_blocks=whole(basis.get("most_blocks")),
                deadline_s=basis.get("deadline_s"),
                measured=bool(basis.get("measured")),
                predicted_s=basis.get("predicted_s"),
                band_s=(float(band[0]), float(band[1])) if band else None,
                took_s=median(took) if took else None,
            )
        )
    return tuple(made)


def model_bytes_of(plans: Sequence[Decided]) -> int | None:
    """Return the size of the model, as the newest plan that states it."""
    return next((found for each in reversed(plans) if (found := whole(each.basis.get("model_bytes")))), None)
