"""How many clients a fleet should have: a signal for autoscalers.

A client is worth having if it shortens the expected round by at least a given share. The wanted number is the
largest whose last clients do so, on average over any number of them:

    the n that minimizes  T(n) / (1 - share)^n

T(n) is the expected round of n clients with the present choice, replayed in the same futures for every n, as
for one more client in `advice`. The mean over several clients matters since T falls in stairs: 17 clients may
be no faster than 16 with 32 chunks. A smaller fleet has clients of evenly spaced speed; a larger one has all
clients, and copies of the median one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from fedgc.errors import BadSetting
from fedgc.history import Speed, Speeds
from fedgc.tuner.advice import mean_round_s
from fedgc.tuner.belief import believe
from fedgc.tuner.choose import CONFIRMED, COPIES, Choice, choose
from fedgc.tuner.history import ClientHistory
from fedgc.tuner.trial import Futures, Question, thinned

CLIENT_GAIN: Final = 0.02  # share of a round by which a client has to shorten it
RANGE: Final = 4  # times fewer, and times more clients than there are
GROWTH: Final = 1.2  # from one replayed size to the next; the sizes do not depend on the present one
COPY: Final = "another client"


def clients_wanted(
    question: Question,
    history: ClientHistory,
    before: Speeds,
    rng: np.random.Generator,
    share: float = CLIENT_GAIN,
) -> int | None:
    """Return the wanted number; None without history, or if not every client can load all data.

    It is at least a quarter of the present number, and at most four times as much.
    """
    check_gain(share)
    choice = choose(question, history, before, rng)
    if not choice.known or not question.free:
        return None
    futures = Futures(*believe(history, before).draw(CONFIRMED, rng))
    order = np.argsort([choice.speeds.known[client].step_s for client in question.clients], kind="stable")
    useful = len(question.fleet.chunks) * choice.setting.replicas
    sizes = list(_sizes(len(order), useful))
    costs = [
        np.log(_of_size(question, choice, futures, order.tolist(), size)) - size * np.log1p(-share)
        for size in sizes
    ]
    return sizes[int(np.argmin(costs))]


def check_gain(share: float) -> None:
    """Raise BadSetting unless this is a share of a round.

    >>> check_gain(1.5)
    Traceback (most recent call last):
        ...
    fedgc.errors.BadSetting: client gain: saw 1.5, needed a share of a round above 0 and below 1
    """
    if not 0 < share < 1:
        raise BadSetting(f"client gain: saw {share}, needed a share of a round above 0 and below 1")


def _sizes(present: int, most: int) -> Iterator[int]:
    """Yield the sizes to replay.

    >>> list(_sizes(4, 100))
    [1, 2, 3, 4, 5, 6, 8, 10, 12, 15]
    """
    size = 1
    while size <= max(1, min(RANGE * present, most)):
        if size * RANGE >= present:
            yield size
        size = max(size + 1, int(np.ceil(GROWTH * size)))


def _of_size(question: Question, choice: Choice, futures: Futures, order: Sequence[int], size: int) -> float:
    """Return the mean seconds of a round with this many clients; `order` sorts those there by speed."""
    here = len(order)
    places = ((np.arange(min(size, here)) + 0.5) * here / min(size, here)).astype(int).tolist()
    kept = [order[place] for place in places] + [order[here // 2]] * (size - min(size, here))
    names = [question.clients[w] if at < here else f"{COPY} {at}" for at, w in enumerate(kept)]
    known: dict[str, Speed] = {
        name: replace(choice.speeds.known[question.clients[w]], client=name)
        for name, w in zip(names, kept, strict=True)
    }
    every = question.fleet.holds[question.clients[0]]
    whole = replace(question, fleet=replace(question.fleet, holds=dict.fromkeys(names, every)))
    step_w = np.asarray([known[name].step_s for name in whole.clients])
    part, few = thinned(whole, step_w, Speeds(known), 2 * max(COPIES))
    columns = [(kept[names.index(whole.clients[w])], max(0, w - here + 1)) for w in few]
    own = Futures(
        *(
            np.column_stack([np.roll(drawn[:, w], turn) for w, turn in columns])  # copies fail on their own
            for drawn in (futures.step_bw, futures.dies_bw)
        )
    )
    return mean_round_s(part, replace(choice, speeds=Speeds(known)), own)
