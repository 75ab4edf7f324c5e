"""Look up a code by name; all codes are entry points of the group `fedgc.codes`."""

from typing import Any, Final

import numpy as np

from fedgc import plugins
from fedgc.codes.code import Code
from fedgc.codes.placement import Placement
from fedgc.errors import ExtensionFailed
from fedgc.guards import guarded

GROUP: Final = "fedgc.codes"


def code_named(name: str) -> type[Code]:
    """Return the class of the code of this name.

    >>> code_named("gaussian").summary
    'a Gaussian column for each client (arXiv 2405.19509)'
    """
    found: type[Code] = plugins.subclass(Code, GROUP, name, "code.name")
    return found


def new_code(name: str, placement: Placement, blocks: int, seed: int) -> Code:
    """Return the code of this name for a placement.

    Raises:
        ExtensionFailed: It raised, or its columns are not finite numbers, one column for each client.
    """
    where, shape = f"code.name {name}, {blocks} blocks", (blocks, placement.clients_w)
    with guarded(where, error=ExtensionFailed):
        code: object = code_named(name).make(placement, blocks, seed)
        columns: Any = code.matrix_bw if isinstance(code, Code) else None
    if not isinstance(code, Code):
        raise ExtensionFailed(f"{where}: make returned {plugins.returned(code)}, needed a code")
    numbers = isinstance(columns, np.ndarray) and columns.dtype.kind == "f" and columns.shape == shape
    if not (numbers and np.isfinite(columns).all()):
        seen = "numbers that are not finite" if numbers else plugins.returned(columns)
        needed = f"needed finite floats of shape {shape}, a column for each client"
        raise ExtensionFailed(f"{where}: matrix_bw returned {seen}, {needed}")
    return code
