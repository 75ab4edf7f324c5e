"""Encrypted exchange between sites: the server learns the sum, and nothing of any one of them.

    client      the site's machine            server      the other side, and the sum
    packets     what they write to each other        rules       what both compute and check alike
    state       what a site must not forget  federation  what everybody agreed on before
    quantizer   float32 to the ring and back         keystream   masks
    shamir      shares of secrets                    keys        signatures, agreement, sealing
    privacy     noise and its account                canonical   one spelling for everything

No disk, no network, no clock, no chance: bytes that must be secret and fresh are arguments.
"""

from fedgc.secagg.client import Client, Pad, Reply, Step
from fedgc.secagg.federation import Descriptor, Federation, Member, promises, silences
from fedgc.secagg.keys import Identity
from fedgc.secagg.privacy import Privacy, clip_factors
from fedgc.secagg.quantizer import Quantizer
from fedgc.secagg.server import Epoch, Exchange, RingSum, SetUp, Terms
from fedgc.secagg.state import Changes

__all__ = [
    "Changes", "Client", "Descriptor", "Epoch", "Exchange", "Federation", "Identity", "Member", "Pad",
    "Privacy", "Quantizer", "Reply", "RingSum", "SetUp", "Step", "Terms", "clip_factors", "promises",
    "silences",
]  # fmt: skip
