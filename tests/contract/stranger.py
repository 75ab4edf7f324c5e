"""An unknown peer at the session port: hand-made frames over real TLS."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import grpc
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedgc.links import frames as wire
from fedgc.links import identity
from fedgc.links.frames import Challenge, Hello, Numbered
from fedgc.links.identity import Identity
from fedgc.links.session.certificate import SERVER_NAME, fingerprint
from fedgc.messages import WIRE_VERSION

WAIT_S = 30.0
Says = Callable[[Challenge], bytes | None]  # what it answers to the challenge, if anything


@dataclass(frozen=True)
class Stranger:
    """A peer that knows the port; `certificate` is the server certificate that it expects."""

    address: str
    certificate: bytes
    run: str

    def talk(self, says: Says) -> tuple[list[bytes], grpc.StatusCode | None]:
        """Open a stream, answer its challenge, and return all messages and the error that ended it."""
        challenged, over = threading.Event(), threading.Event()
        answers: list[bytes] = []
        options = [("grpc.ssl_target_name_override", SERVER_NAME), ("grpc.max_send_message_length", -1)]

        def frames() -> Iterator[bytes]:
            challenged.wait(WAIT_S)
            first = wire.decode(answers[0], wire.FROM_SERVER, now=0.0, client="stranger")
            assert isinstance(first, Numbered)
            frame = says(first.value)
            if frame is not None:
                yield frame
            over.wait(WAIT_S)

        credentials = grpc.ssl_channel_credentials(self.certificate)
        with grpc.secure_channel(self.address, credentials, options=options) as channel:
            try:
                for answer in channel.stream_stream(wire.METHOD)(frames(), timeout=WAIT_S):
                    answers.append(answer)
                    challenged.set()
            except grpc.RpcError as error:
                return answers, error.code()
            finally:
                challenged.set()
                over.set()
        return answers, None

    def hello(self, *, token: bytes, server: bytes = b"") -> Says:
        """Say hello with this token, signed for a certificate with this fingerprint."""
        who = Identity(Ed25519PrivateKey.generate())

        def says(challenge: Challenge) -> bytes:
            meant = server or fingerprint(self.certificate)
            signed = identity.statement(WIRE_VERSION, self.run, token, challenge.nonce, meant)
            return wire.encode(
                Hello(WIRE_VERSION, self.run, token, who.public, who.sign(signed), "stranger", 0)
            )

        return says
