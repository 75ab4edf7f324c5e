"""Secure aggregation between sites (Bonawitz et al. 2017): the server learns only the sum of the updates.

    client      the site's state machine      server      the server's state machine, and the sum
    packets     messages of the protocol      rules       computations and checks of both sides
    state       the site's durable state      federation  the descriptor that all members agreed on
    quantizer   float32 to the ring and back  keystream   masks
    shamir      secret sharing                keys        signatures, key agreement, sealing
    privacy     noise and its accounting      canonical   canonical encoding of values
    graph       neighbors in a large federation
    masked_vector   an update as it is sent

The package has no disk, network, clock or randomness; fresh secret bytes are arguments.
"""

from fedgc.secagg.client import Client, Reply, Step
from fedgc.secagg.federation import Descriptor, Federation, Member, TaskPin, guarantees, limits
from fedgc.secagg.keys import Identity
from fedgc.secagg.masked_vector import MaskedVector
from fedgc.secagg.privacy import Privacy
from fedgc.secagg.quantizer import Quantizer
from fedgc.secagg.server import Epoch, Exchange, RingSum, SetUp, Terms
from fedgc.secagg.state import Changes

__all__ = [
    "Changes", "Client", "Descriptor", "Epoch", "Exchange", "Federation", "Identity", "MaskedVector",
    "Member", "Privacy", "Quantizer", "Reply", "RingSum", "SetUp", "Step", "TaskPin", "Terms",
    "guarantees", "limits",
]  # fmt: skip
