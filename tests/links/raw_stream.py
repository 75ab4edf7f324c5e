"""A stream to a listener without any code of fedgc's client: what a stranger could send."""

import socket
import ssl
import struct
from collections.abc import Iterator
from typing import Self

from fedgc.links.session.certificate import SERVER_NAME
from fedgc.links.session.connection import PATH, PROTOCOL

WAIT_S = 60.0


class RawStream:
    """One connection. What it reads are the messages of the listener, until the listener ends it."""

    def __init__(self, address: str, certificate: bytes, *, buffer: int = 0) -> None:
        """`buffer` is how many bytes the system keeps of what is not read (0: as many as it likes)."""
        host, port = address.rsplit(":", 1)
        trusted = ssl.create_default_context(cadata=certificate.decode())
        plain = socket.socket()
        plain.settimeout(WAIT_S)
        if buffer:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        plain.connect((host, int(port)))
        self.line = trusted.wrap_socket(plain, server_hostname=SERVER_NAME)
        self.file = self.line.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()
        self.line.close()

    def ask(self, path: str = PATH, protocol: str = PROTOCOL) -> str:
        """Ask to change the protocol; return the first line of the answer."""
        headers = f"Host: here\r\nConnection: upgrade\r\nUpgrade: {protocol}\r\n\r\n"
        self.line.sendall(f"GET {path} HTTP/1.1\r\n{headers}".encode())
        first, *_ = [line.decode().strip() for line in iter(self.file.readline, b"\r\n") if line]
        return first

    def send(self, message: bytes) -> None:
        """Send a message."""
        self.line.sendall(framed(message))

    def read(self) -> bytes | None:
        """Return the next message, None at the end."""
        head = self.file.read(4)
        return self.file.read(struct.unpack("<I", head)[0]) if head else None

    def messages(self) -> Iterator[bytes]:
        """Yield messages until the end."""
        while (message := self.read()) is not None:
            yield message


def framed(message: bytes) -> bytes:
    """Return a message as it is sent: after its length."""
    return struct.pack("<I", len(message)) + message
