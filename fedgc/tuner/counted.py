"""What a chunk must count where its only holder often does not come to it.

The weights are those of Horvitz and Thompson (1952), `codes.inverse_weights`; what belongs here is where the
chances come from: the rounds that a device did, and the chunks that it did in each.

May import: codes, history.
"""

from collections.abc import Sequence

from fedgc.codes import Placement, completion_probability, inverse_weights
from fedgc.history import WINDOW, RoundRow


def chances(rows: Sequence[RoundRow], devices: Sequence[str], placement: Placement) -> tuple[float, ...]:
    """Return for each device the chance that a chunk it holds is finished in a round.

    A round in which a device was absent says nothing of it. One without any history is taken at its word.
    """
    recent = rows[-WINDOW:]
    finished: dict[str, list[int]] = {device: [] for device in devices}
    for row in recent:
        for seen in row.devices:
            if seen.device in finished:
                finished[seen.device].append(seen.finished)
    found = []
    for device, load in zip(devices, placement.loads, strict=True):
        found.append(
            completion_probability([min(count, load) for count in finished[device]], load) if load else 1.0
        )
    return tuple(found)


def chunk_weights(
    rows: Sequence[RoundRow], devices: Sequence[str], placement: Placement
) -> tuple[float, ...]:
    """Return what each chunk must count, so that a slow device alone with its data is not left out.

    Only chunks that lie with one device are weighed: of others a second holder does what the first does not.
    """
    weights = inverse_weights(placement, chances(rows, devices, placement))
    alone = placement.holds.sum(axis=0) == 1
    return tuple(weight if only else 1.0 for weight, only in zip(weights, alone.tolist(), strict=True))
