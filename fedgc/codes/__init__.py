"""Gradient codes for partial work: the exact sum of all chunk updates from unfinished clients."""

from fedgc.codes.adopt import adopt
from fedgc.codes.code import Code
from fedgc.codes.complete import estimate_correlation
from fedgc.codes.encode import Coefficients, block_size, fold
from fedgc.codes.frame_code import FrameCode
from fedgc.codes.frames import frame_for, harmonic_frame
from fedgc.codes.gaussian_code import GaussianCode
from fedgc.codes.make import code_named, new_code
from fedgc.codes.order import orders_for_round
from fedgc.codes.place import place
from fedgc.codes.placement import Holders, Placement
from fedgc.codes.private import carry_on, completion_probability, inverse_weights
from fedgc.codes.repair import repair
from fedgc.codes.running_sum import RunningSum
from fedgc.codes.solution import Solution
from fedgc.codes.stop import amplification_limit, best_blocks, next_chunk
from fedgc.codes.waves import in_waves

__all__ = [
    "Holders",
    "Placement",
    "place",
    "adopt",
    "orders_for_round",
    "in_waves",
    "Code",
    "FrameCode",
    "GaussianCode",
    "code_named",
    "new_code",
    "Solution",
    "Coefficients",
    "fold",
    "block_size",
    "RunningSum",
    "repair",
    "estimate_correlation",
    "carry_on",
    "completion_probability",
    "inverse_weights",
    "next_chunk",
    "best_blocks",
    "amplification_limit",
    "frame_for",
    "harmonic_frame",
]
