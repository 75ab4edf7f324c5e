"""Codes: the exact sum of all chunk updates from whatever each client has finished."""

from fedgc.codes.adopt import adopt
from fedgc.codes.code import Code
from fedgc.codes.complete import estimate_correlation
from fedgc.codes.decoder import Decoder
from fedgc.codes.encode import Coefficients, block_size, encode, fold
from fedgc.codes.frame_code import FrameCode
from fedgc.codes.frames import Worst, frame_for, harmonic_frame, worst
from fedgc.codes.gaussian_code import GaussianCode
from fedgc.codes.make import code_named
from fedgc.codes.matching import matched
from fedgc.codes.order import most_before_cover, orders_for_round
from fedgc.codes.place import place
from fedgc.codes.placement import Holders, Placement
from fedgc.codes.private import carry_on, completion_probability, inverse_weights
from fedgc.codes.repair import Repair, Repairs, repair
from fedgc.codes.running_sum import RunningSum
from fedgc.codes.solution import Solution
from fedgc.codes.stop import amplification_limit, best_blocks, next_chunk

__all__ = [
    "Holders",
    "Placement",
    "place",
    "adopt",
    "matched",
    "orders_for_round",
    "most_before_cover",
    "Code",
    "FrameCode",
    "GaussianCode",
    "code_named",
    "Solution",
    "Coefficients",
    "encode",
    "fold",
    "block_size",
    "Decoder",
    "RunningSum",
    "Repair",
    "Repairs",
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
    "Worst",
    "worst",
]
