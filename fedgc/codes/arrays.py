"""Array types of this package.

Shape letters: w clients, n chunks, c columns (classes of clients), b blocks, p patterns of finished
classes, d parameters.
"""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Float: TypeAlias = NDArray[np.float64]
Bool: TypeAlias = NDArray[np.bool_]
Int: TypeAlias = NDArray[np.int64]
Vector: TypeAlias = NDArray[np.floating[Any]]  # float32 or float64, the type that training uses
