"""An unknown peer at the session port: hand-made frames over real TLS."""

import secrets
import ssl
from collections.abc import Callable
from dataclasses import dataclass

from fedgc.links import frames as wire
from fedgc.links import identity
from fedgc.links.frames import Challenge, Hello, Numbered
from fedgc.links.identity import Identity
from fedgc.links.session.certificate import fingerprint
from fedgc.messages import WIRE_VERSION
from tests.links.raw_stream import RawStream

Says = Callable[[Challenge], bytes | None]  # what it answers to the challenge, if anything


@dataclass(frozen=True)
class Stranger:
    """A peer that knows the port; `certificate` is the server certificate that it expects."""

    address: str
    certificate: bytes
    run: str

    def talk(self, says: Says) -> list[bytes] | None:
        """Open a stream, answer its challenge, and return all messages; None where TLS fails."""
        try:
            with RawStream(self.address, self.certificate) as stream:
                stream.ask()
                challenge = stream.read() or b""
                first = wire.decode(challenge, wire.FROM_SERVER, now=0.0, client="stranger")
                assert isinstance(first, Numbered)
                frame = says(first.value)
                if frame is not None:
                    stream.send(frame)
                return [challenge, *stream.messages()]
        except ssl.SSLCertVerificationError:
            return None

    def hello(self, *, token: bytes, server: bytes = b"") -> Says:
        """Say hello with this token, signed for a certificate with this fingerprint."""
        who = Identity(secrets.token_bytes(32))

        def says(challenge: Challenge) -> bytes:
            meant = server or fingerprint(self.certificate)
            signed = identity.statement(WIRE_VERSION, self.run, token, challenge.nonce, meant)
            return wire.encode(
                Hello(WIRE_VERSION, self.run, token, who.public, who.sign(signed), "stranger", 0)
            )

        return says
