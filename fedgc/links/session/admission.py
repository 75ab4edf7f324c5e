"""Admission of clients: one token per client and lease, exchanged at the first welcome for a resume ticket.

A hello proves, by a signature over a fresh challenge and the server's certificate, that the client holds its
key; the token proves that Flower delivered the invitation to it. A token is spent only when its client has
its ticket: a lost welcome must not shut the client out.
"""

import hmac
from typing import Final

from fedgc.errors import NotAdmitted
from fedgc.links import identity
from fedgc.links.frames import Hello
from fedgc.links.session.peer import Peer
from fedgc.messages import WIRE_VERSION

EARLIEST: Final = 0.75  # leases end between this share of their time and all of it: not all renew at once


class Admission:
    """The tokens of one run."""

    def __init__(self, run: str, server: bytes, lease_s: float) -> None:
        """`server` is the fingerprint of the listener's certificate."""
        self.run: Final = run
        self._server = server
        self._lease_s = lease_s
        self._tokens: dict[bytes, Peer | None] = {}

    def expect(self, token: bytes) -> None:
        """Admit one client that shows this token."""
        self._tokens[token] = None

    def opened(self, token: bytes) -> bool:
        """Whether a session began with this token."""
        return self._tokens.get(token) is not None

    def cancel(self, token: bytes) -> Peer | None:
        """Void this token, and the ticket of the peer that it has admitted; return that peer, if any."""
        peer = self._tokens.pop(token, None)
        if peer is not None:
            peer.may_return = False
        return peer

    def used(self, token: bytes, peer: Peer) -> None:
        """Note that this token has admitted this peer."""
        self._tokens[token] = peer

    def check(self, hello: Hello, nonce: bytes) -> str:
        """Return the identity that a hello proves, or raise NotAdmitted."""
        if hello.run != self.run:
            raise NotAdmitted("hello: it is meant for another run")
        signed = identity.statement(WIRE_VERSION, self.run, hello.credential, nonce, self._server)
        return identity.check(hello.key, hello.signature, signed)

    def is_new(self, hello: Hello, client: str, peer: Peer | None) -> bool:
        """Return whether a hello begins a session or resumes that of `peer`; or raise NotAdmitted."""
        if hello.credential in self._tokens:
            used_by = self._tokens[hello.credential]
            if used_by is None and hello.heard == 0:
                return True
            if peer is not None and used_by is peer and not peer.confirmed:
                return False
            raise NotAdmitted(f"hello of {client}: this token was used before")
        if peer is None or not (peer.may_return and hmac.compare_digest(hello.credential, peer.ticket)):
            raise NotAdmitted(f"hello of {client}: its token or ticket is not one of this run")
        peer.confirmed = True
        return False

    def lease_s(self, client: str) -> float:
        """Return how long this client's session lasts."""
        share: float = int(client, 16) / 16.0 ** len(client)
        return self._lease_s * (EARLIEST + (1 - EARLIEST) * share)
