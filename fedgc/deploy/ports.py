"""Ports of a server that is about to start: one that is not free is named before anything is written."""

import socket
from collections.abc import Mapping

from fedgc.errors import EdgeFailed


def must_be_free(host: str, ports: Mapping[str, int]) -> None:
    """Raise unless each of these ports, by what listens there, can be bound at an address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for what, port in ports.items():
        try:
            socket.create_server((host, port), family=family).close()
        except OSError as error:
            why = (error.strerror or str(error)).partition(" (while")[0]
            raise EdgeFailed(
                f"--host (FEDGC_HOST) {host}: port {port} of {what}: saw {why}, needed it free: end what "
                "listens there (`ss -ltnp` names it), or give another address by --host"
            ) from error
