"""The descriptor of a federation as a file: written atomically, refused unless signed by a member."""

from pathlib import Path

from fedgc.errors import FedgcError, Unusable, system_errors
from fedgc.files import SHARED, whole
from fedgc.secagg import Descriptor


def read_descriptor(path: Path) -> Descriptor:
    """Return the descriptor in a file, or raise Unusable."""
    try:
        return Descriptor.unpack(path.read_bytes())
    except OSError as error:
        raise Unusable(f"descriptor {path}: {error.strerror}, needed a file to read") from error
    except FedgcError as error:
        raise Unusable(f"descriptor {path}: {error}") from error


def write_descriptor(path: Path, descriptor: Descriptor) -> None:
    """Replace the descriptor in a file, or raise EdgeFailed and leave the file as it was."""
    with system_errors(f"descriptor {path}", "a place to write"), whole(path, SHARED) as part:
        part.write_bytes(descriptor.pack())
