"""What masks cost in simulated training: time and bytes are counted, and nothing is masked.

The seconds were measured by `python -m benchmarks secagg` for 5 to 40 sites, on one core of an AMD EPYC at
2.6 GHz. The bytes are those of its packets, set-up included.
"""

from dataclasses import dataclass, replace
from typing import Final

from fedgc.config import RunConfig
from fedgc.errors import BadSetting
from fedgc.secagg import Federation
from fedgc.sim.clock import Line, Scenario

OWN_S: Final = 2.3e-9  # of a client for each number: quantizing,
PEER_S: Final = 0.48e-9  # and the mask that it shares with a peer
PACKET_S: Final = 7e-4  # of a client for its packets,
MEMBER_S: Final = 1.05e-4  # and for what they hold of each member
SUM_S: Final = 2.5e-9  # of the server for each number,
ADDED_S: Final = 0.8e-9  # for each number of each member,
OPENED_S: Final = 1.8e-5  # and for each pair of members
PACKET_BYTES: Final = 133  # of a client's packets,
MEMBER_BYTES: Final = 148  # and what they hold of each peer
LATENCIES: Final = 4  # of the two requests after the upload: for signatures, and for shares


@dataclass(frozen=True, slots=True)
class Masks:
    """The masks of a federation whose models have this many numbers."""

    members: int
    peers: int  # with whom a client shares masks
    ring_bits: int
    numbers: int

    @classmethod
    def of(cls, federation: Federation, clients: int, numbers: int) -> "Masks":
        """Return the masks of these clients; raise BadSetting unless all are members."""
        members, graph = len(federation.members), federation.graph
        if members != clients:
            raise BadSetting(
                f"setting federation: saw {members} members, needed one for each of {clients} clients"
            )
        if federation.privacy is not None:
            raise BadSetting(
                "setting federation: saw noise, which is not simulated, needed a descriptor without"
            )
        peers = members - 1 if graph is None else min(members - 1, 2 * graph.neighbors)
        return cls(members, peers, federation.quantizer.ring, numbers)

    @property
    def client_s(self) -> float:
        """The seconds of a client in an exchange."""
        return self.numbers * (OWN_S + PEER_S * self.peers) + PACKET_S + MEMBER_S * self.members

    @property
    def server_s(self) -> float:
        """The seconds of the server in an exchange."""
        summing_s = self.numbers * (SUM_S + ADDED_S * self.members)
        return summing_s + OPENED_S * self.members * (self.peers + 1)

    @property
    def share(self) -> float:
        """The size of what a client sends, as a share of a vector of float32."""
        sent = self.ring_bits // 8 * self.numbers + PACKET_BYTES + MEMBER_BYTES * (self.peers + 1)
        return sent / (4 * self.numbers)

    def line(self, line: Line) -> Line:
        """Return the server's link for masked vectors."""
        return replace(line, update_s=line.update_s * self.share)

    def scenario(self, scenario: Scenario) -> Scenario:
        """Return the rounds with what an exchange adds; a unit of work is what a client does in a round."""
        spent_s = self.client_s + self.server_s
        return tuple(
            replace(
                each,
                pace_wk=each.pace_wk + (spent_s + LATENCIES * each.control_s_w)[:, None],
                up_s_w=each.up_s_w * self.share,
            )
            for each in scenario
        )


def unmasked(config: RunConfig) -> RunConfig:
    """Return the settings of an open run that trains as the masked one."""
    rule = config.chosen_rule
    return replace(config, secrecy="open", federation="", lockstep="on", aggregator=rule)
