"""Search for well-conditioned frames: minimize the worst condition of `blocks` columns.

The objective over unit columns is the soft maximum (1 / h) log sum cond(R_S)^h over all S of `blocks`
columns, with the hardness h increasing during the search. The gradient of log cond is u_1 v_1' / s_1 minus
u_b v_b' / s_b of the singular value decomposition. Columns keep unit length: a longer column does not lower
the noise, it only changes the condition number.

Run `python -m tools.search_frames 8,3 8,4 --starts 40` to print the table of `fedgc/codes/frame_table.py`.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Final

import numpy as np

from benchmarks.worst import just_enough, worst
from fedgc.codes.arrays import Bool, Float
from fedgc.codes.frames import harmonic_frame
from fedgc.errors import BadSetting

HARDNESS: Final = (4.0, 400.0)  # first and last: the last is a maximum to within 2%
STEP: Final = (0.03, 0.0003)  # first and last length of a step of a column


def polish(frame: Float, steps: int) -> Float:
    """Return a frame whose worst condition is lower, or the one given.

    >>> start = np.array([[1.0, 0.8, 0.6], [0.0, 0.6, 0.8]])
    >>> bool(worst(polish(start, 300)).condition < 1.8 < worst(start).condition)
    True
    """
    members = just_enough(frame.shape[1], len(frame))
    best, best_condition = frame, worst(frame).condition
    mean, square = np.zeros_like(frame), np.zeros_like(frame)
    for step in range(steps):
        done = step / max(steps - 1, 1)
        hardness = HARDNESS[0] * (HARDNESS[1] / HARDNESS[0]) ** done
        step_up, condition = slope(frame, members, hardness)
        if condition < best_condition:
            best, best_condition = frame, condition
        mean = 0.9 * mean + 0.1 * step_up
        square = 0.99 * square + 0.01 * step_up**2
        size = STEP[0] * (STEP[1] / STEP[0]) ** done
        moved = frame - size * mean / (np.sqrt(square) + 1e-12)
        frame = moved / np.linalg.norm(moved, axis=0)
    return best


def slope(frame: Float, members: Bool, hardness: float) -> tuple[Float, float]:
    """Return the gradient of the soft maximum of log cond, and the worst cond.

    >>> slope(np.eye(2), just_enough(2, 2), 4.0)[1]
    1.0
    """
    index_kb = np.nonzero(members)[1].reshape(len(members), -1)
    left, value_kb, right = np.linalg.svd(np.moveaxis(frame[:, index_kb], 0, 1))
    log_k = np.log(value_kb[:, 0] / value_kb[:, -1])
    share_k = np.exp(hardness * (log_k - log_k.max()))
    share_k /= share_k.sum()
    high_kbb = left[:, :, 0, None] * right[:, None, 0, :] / value_kb[:, 0, None, None]
    low_kbb = left[:, :, -1, None] * right[:, None, -1, :] / value_kb[:, -1, None, None]
    part_kbb = share_k[:, None, None] * (high_kbb - low_kbb)
    slope_cb = np.zeros(frame.T.shape)
    np.add.at(slope_cb, index_kb, np.swapaxes(part_kbb, 1, 2))
    across = slope_cb.T - frame * (slope_cb.T * frame).sum(axis=0)  # lengthening a column is no gain
    return across, float(np.exp(log_k.max()))


def search(columns: int, blocks: int, starts: int, steps: int, seed: int = 0) -> Float:
    """Return the best frame of many starts: half random, half near the harmonic frame.

    >>> worst(search(5, 3, starts=2, steps=100)).condition <= worst(harmonic_frame(5, 3)).condition
    True
    """
    rng = np.random.default_rng([seed, columns, blocks])
    near = harmonic_frame(columns, blocks)
    best = near
    for start in range(starts):
        draw = rng.standard_normal(near.shape)
        frame = draw if start % 2 else near + 0.1 * draw * (start > 0)
        found = polish(frame / np.linalg.norm(frame, axis=0), steps)
        if worst(found).condition < worst(best).condition:
            best = found
    return best


def main(arguments: Sequence[str]) -> None:
    """Print the table for the sizes on the command line.

    >>> main(["2,1", "--starts", "1", "--steps", "1"])
        (2, 1): (  # condition 1.00, amplification 1.0
            (1.000000000, 1.000000000),
        ),
    """
    parser = argparse.ArgumentParser(prog="python -m tools.search_frames", description=__doc__)
    parser.add_argument("sizes", nargs="+", help="columns,blocks")
    parser.add_argument("--starts", type=int, default=40)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args(arguments)
    for size in chosen.sizes:
        columns, _, blocks = size.partition(",")
        if not (columns.isdigit() and blocks.isdigit()):
            raise BadSetting(f"size {size!r}: columns,blocks is needed, as in 8,4")
        found = search(int(columns), int(blocks), chosen.starts, chosen.steps, chosen.seed)
        figures = worst(found)
        sys.stdout.write(
            f"    ({columns}, {blocks}): (  # condition {figures.condition:.2f}, "
            f"amplification {figures.amplification:.1f}\n"
        )
        for row in found:
            sys.stdout.write(f"        ({', '.join(f'{value:.9f}' for value in row)}),\n")
        sys.stdout.write("    ),\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
