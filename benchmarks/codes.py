"""`python -m benchmarks codes`: conditioning, error and speed of the codes.

Figures:

    worst_condition       {"replicas,blocks": worst condition of `blocks` replicas}; the rows also have the
                          amplification, so that a rescaled row does not count as a better frame
    copies_differ_frame   relative error of the decoded sum if replicas differ by 1e-3, at (8, 4): worst draw
    copies_differ_gaussian  the same for the published Gaussian code: median draw
    solve_ms, place_ms    10,000 chunks on 1000 clients, 8 replicas, 4 blocks: median
    encode_over_memory    time of encode / time in which numpy reads the same updates and writes a codeword
    decode_over_memory    time of the running sum / time in which numpy reads a codeword and adds to the sum
    unbiased_gain         squared error of least squares / of the unbiased completion, correlation 0.5
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import Final

import numpy as np

from benchmarks.baselines import cyclic
from benchmarks.codewords import codeword_of, decode
from benchmarks.report import Figure, Report, Value, machine
from benchmarks.worst import worst
from fedgc.codecs import EPSILON, Wire, pack, unpack
from fedgc.codes import (
    Code,
    FrameCode,
    GaussianCode,
    Placement,
    RunningSum,
    fold,
    frame_for,
    orders_for_round,
    place,
)
from fedgc.training.update import BLOCK

SIZES: Final = ((4, 2), (8, 2), (8, 3), (8, 4), (12, 4), (16, 4))
CLIENTS: Final = 200
DRAWS: Final = 10
REPEATS: Final = 7
NUMBERS: Final = 10_000_000
MIXED: Final = 8  # chunks in a codeword

Row = dict[str, Value]


def bench_codes(*, quick: bool = False) -> Report:
    """Run the benchmark; `quick` uses fewer draws and smaller vectors."""
    draws, numbers = (3, NUMBERS // 10) if quick else (DRAWS, NUMBERS)
    conditions = list(_conditions())
    errors = list(_errors(draws))
    times = {str(row["what"]): row for row in (*_solving(quick=quick), *_vectors(numbers))}
    gain = _unbiased_gain(draws)
    frames, gaussians = ([row for row in errors if row["code"] == name] for name in ("frame", "gaussian"))
    figures: dict[str, Figure] = {
        "worst_condition": {f"{r},{b}": worst(frame_for(r, b)).condition for r, b in SIZES},
        "copies_differ_frame": max(_numbers(frames, "copies differ by 0.001")),
        "copies_differ_gaussian": median(_numbers(gaussians, "copies differ by 0.001")),
        "solve_ms": times["solve"]["ms"],
        "place_ms": times["place"]["ms"],
        "encode_over_memory": times["encode"]["over_memory"],
        "decode_over_memory": times["decode"]["over_memory"],
        "unbiased_gain": gain,
    }
    return Report(figures, [*conditions, *errors, *times.values()], machine(), range(draws))


def _numbers(rows: list[Row], what: str) -> list[float]:
    return [float(row["error"] or 0.0) for row in rows if row["what"] == what]


def _conditions() -> Iterator[Row]:
    for replicas, blocks in SIZES:
        found = worst(frame_for(replicas, blocks))
        yield {
            "what": "condition",
            "replicas": replicas,
            "blocks": blocks,
            "condition": found.condition,
            "amplification": found.amplification,
            "median_condition": found.median_condition,
            "median_amplification": found.median_amplification,
        }


# ---- errors


def _errors(draws: int) -> Iterator[Row]:
    placement = place(CLIENTS, [1.0] * CLIENTS, 8)
    for draw in range(draws):
        rng = np.random.default_rng(draw)
        done = _just_enough(placement, 4, rng)
        for name, code in (("frame", FrameCode(placement, 4)), ("gaussian", GaussianCode(placement, 4, rng))):
            for mismatch in (1e-3, 1e-7):
                error = _error(code, done, rng, mismatch=mismatch, wire=None)
                yield {"what": f"copies differ by {mismatch:g}", "code": name, "draw": draw, "error": error}
            for wire in Wire:
                error = _error(code, done, rng, mismatch=0.0, wire=wire)
                yield {"what": f"{wire} on the wire", "code": name, "draw": draw, "error": error}
        yield from _fixed_code(draw, rng)


def _just_enough(placement: Placement, blocks: int, rng: np.random.Generator) -> np.ndarray:
    done = np.zeros_like(placement.holds)
    for chunk in range(placement.chunks):
        done[rng.permutation(np.flatnonzero(placement.holds[:, chunk]))[:blocks], chunk] = True
    return done


def _error(
    code: Code, done: np.ndarray, rng: np.random.Generator, *, mismatch: float, wire: Wire | None
) -> float:
    """Return the relative error of the decoded sum if every client has noisy replicas of its own."""
    size = 256 * code.blocks
    updates = rng.standard_normal((done.shape[1], size))
    solution = code.solve(done)
    codewords = {}
    for w in solution.needed:
        own = updates + mismatch * rng.standard_normal(updates.shape) if mismatch else updates
        sent = codeword_of(solution, w, dict(enumerate(own)))
        codewords[w] = unpack(pack(sent, wire, rng), wire, sent.size) if wire else sent
    total = updates.sum(axis=0)
    return float(np.linalg.norm(decode(solution, codewords, size) - total) / np.linalg.norm(total))


def _fixed_code(draw: int, rng: np.random.Generator) -> Iterator[Row]:
    """Measure the cyclic code (Tandon; Ye-Abbe above one block), which uses complete clients only."""
    for blocks in (1, 4):
        code = cyclic(CLIENTS, 8, blocks, rng)
        answered = np.ones(CLIENTS, np.bool_)
        answered[rng.permutation(CLIENTS)[: code.stragglers]] = False
        noise = code.amplification(answered) ** 0.5
        yield {
            "what": "bf16 on the wire",
            "code": f"cyclic, {blocks} blocks",
            "draw": draw,
            "error": EPSILON[Wire.BF16] * noise,
        }


def _unbiased_gain(draws: int) -> float:
    """Return the ratio of mean squared errors, summed over placements and cuts."""
    least_squares = without_bias = 0.0
    for draw in range(draws):
        rng = np.random.default_rng([draw, 3])
        placement = place(CLIENTS, [1.0] * CLIENTS, 6, seed=draw)
        updates = np.sqrt(0.5) * (rng.standard_normal(32) + rng.standard_normal((CLIENTS, 32)))
        done = np.zeros_like(placement.holds)
        part = np.minimum(0.35 / (1.0 + rng.exponential(1.0, CLIENTS)), 1.0)
        for w, order in enumerate(orders_for_round(placement, draw)):
            done[w, list(order[: round(part[w] * len(order))])] = True
        code = FrameCode(placement, 1)
        least_squares += _squared_error(code, done, updates, 0.0)
        without_bias += _squared_error(code, done, updates, None)
    return least_squares / without_bias


def _squared_error(code: Code, done: np.ndarray, updates: np.ndarray, correlation: float | None) -> float:
    solution = code.solve(done, correlation=correlation)
    held = dict(enumerate(updates))
    codewords = {w: codeword_of(solution, w, held) for w in solution.needed}
    total = updates.sum(axis=0)
    return float(
        np.square(decode(solution, codewords, updates.shape[1]) - total).sum() / np.square(total).sum()
    )


# ---- times


def _ms(work: Callable[[], object], repeats: int = REPEATS) -> float:
    """Return the median milliseconds of some runs, after one warm-up run."""
    work()
    taken = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        taken.append(1e3 * (time.perf_counter() - began))
    return median(taken)


def _solving(*, quick: bool) -> Iterator[Row]:
    clients_w, chunks = (100, 1000) if quick else (1000, 10_000)
    speeds = [1.0] * clients_w
    placement = place(chunks, speeds, 8)
    code = FrameCode(placement, 4)
    done = placement.holds & (np.random.default_rng(0).random(placement.holds.shape) < 0.8)
    yield {
        "what": "place",
        "ms": _ms(lambda: place(chunks, speeds, 8)),
        "clients_w": clients_w,
        "chunks": chunks,
    }
    yield {"what": "solve", "ms": _ms(lambda: code.solve(done)), "clients_w": clients_w, "chunks": chunks}
    yield {"what": "prune", "ms": _ms(lambda: code.prune(done)), "clients_w": clients_w, "chunks": chunks}
    gaussian = GaussianCode(placement, 4, np.random.default_rng(0))
    yield {"what": "solve gaussian", "ms": _ms(lambda: gaussian.solve(done), 3), "clients_w": clients_w}


def _mix(updates: Mapping[int, np.ndarray], matrix: Sequence[Sequence[float]], codeword: np.ndarray) -> None:
    """Make a codeword as a client does: block by block of all updates."""
    codeword[...] = 0.0
    for first in range(0, updates[0].size, BLOCK):
        for chunk, row in enumerate(matrix):
            fold(row, updates[chunk][first : first + BLOCK], codeword, first)


def _vectors(numbers: int) -> Iterator[Row]:
    """Time the vector operations of a round, beside one pass of numpy over the same bytes."""
    rng = np.random.default_rng(0)
    updates = {chunk: rng.standard_normal(numbers, np.float32) for chunk in range(MIXED)}
    matrix = tuple(map(tuple, rng.standard_normal((MIXED, 4)).tolist()))
    codeword = np.empty(numbers // 4, np.float32)
    encode_ms = _ms(lambda: _mix(updates, matrix, codeword))
    read_ms = _ms(lambda: ([update.sum() for update in updates.values()], codeword.__imul__(0)))
    yield {"what": "encode", "ms": encode_ms, "memory_ms": read_ms, "over_memory": encode_ms / read_ms}
    total = RunningSum(numbers, 4, np.float32)
    sums, part = np.zeros(numbers, np.float32), rng.standard_normal(numbers // 4, np.float32)
    decode_ms = _ms(lambda: total.add((1.0, 2.0, 3.0, 4.0), part))
    add_ms = _ms(lambda: (part.sum(), np.add(sums, 1.0, out=sums)))
    yield {"what": "decode", "ms": decode_ms, "memory_ms": add_ms, "over_memory": decode_ms / add_ms}
