"""Flower's own SecAgg+ on one machine without its messages, as a baseline.

The client's part is Flower's modifier, stage by stage; the server's part calls the functions of Flower's
workflow in its order, on the complete graph. Flower's time for messages and records is excluded. The set-up
is reused between rounds of the same sites, although Flower repeats it in each round: it does not depend on
the vector, so it is timed once.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

import numpy as np
from flwr.client.mod.secure_aggregation.secaggplus_mod import (
    SecAggPlusState,
    _collect_masked_vectors,
    _setup,
    _share_keys,
    _unmask,
)
from flwr.common import bytes_to_ndarray, ndarrays_to_parameters
from flwr.common.secure_aggregation.crypto.shamir import combine_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import generate_shared_key
from flwr.common.secure_aggregation.ndarrays_arithmetic import (
    factor_extract,
    get_parameters_shape,
    parameters_addition,
    parameters_mod,
    parameters_subtraction,
)
from flwr.common.secure_aggregation.quantization import dequantize
from flwr.common.secure_aggregation.secaggplus_constants import Key
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen
from flwr.supercore.primitives.asymmetric import bytes_to_private_key, bytes_to_public_key
from numpy.typing import NDArray

from fedgc.errors import NotRecoverable

Float = NDArray[np.float32]
Arrays = list[NDArray[Any]]

CLIP: Final = 8.0  # these three are the defaults of Flower's workflow
STEPS: Final = 1 << 22
MODULUS: Final = 1 << 32


class PlusSites:
    """Some sites under SecAgg+, numbered from 1 as Flower's nodes are."""

    def __init__(self, count: int, threshold: int, max_weight: float) -> None:
        self._threshold = threshold
        self._settings: dict[str, Any] = {
            Key.SAMPLE_NUMBER: count,
            Key.SHARE_NUMBER: count,
            Key.THRESHOLD: threshold,
            Key.CLIPPING_RANGE: CLIP,
            Key.TARGET_RANGE: STEPS,
            Key.MOD_RANGE: MODULUS,
            Key.MAX_WEIGHT: max_weight,
        }
        self.numbers: Final = range(1, count + 1)
        self._states = {number: SecAggPlusState(nid=number) for number in self.numbers}
        self._public: dict[int, tuple[bytes, bytes]] = {}
        self._sealed: dict[int, list[tuple[int, bytes]]] = {number: [] for number in self.numbers}

    def open(self, number: int) -> int:
        """Make a site's keys; return the number of bytes that it sends."""
        # Flower's own code calls it with these settings
        said: dict[str, Any] = _setup(self._states[number], self._settings)  # type: ignore[arg-type]  # Flower types it narrower
        self._public[number] = (said[Key.PUBLIC_KEY_1], said[Key.PUBLIC_KEY_2])
        return sum(map(len, self._public[number]))

    def share(self, number: int) -> int:
        """Share a site's secrets among all, once all have keys; return the number of bytes that it sends."""
        known: Any = {str(each): keys for each, keys in self._public.items()}
        said: dict[str, Any] = _share_keys(self._states[number], known)
        parcels = list(zip(said[Key.DESTINATION_LIST], said[Key.CIPHERTEXT_LIST], strict=True))
        for target, parcel in parcels:
            self._sealed[target].append((number, parcel))
        return sum(len(parcel) for _, parcel in parcels)

    def mask(self, number: int, vector: Float, weight: int) -> list[bytes]:
        """Return the upload of a site."""
        sources, parcels = zip(*self._sealed[number], strict=True)
        packet: Any = {Key.SOURCE_LIST: list(sources), Key.CIPHERTEXT_LIST: list(parcels)}
        parameters = ndarrays_to_parameters([vector])
        said: dict[str, Any] = _collect_masked_vectors(self._states[number], packet, weight, parameters)
        uploaded: list[bytes] = said[Key.MASKED_PARAMETERS]
        return uploaded

    def unlock(self, number: int, survivors: Collection[int]) -> list[tuple[int, bytes]]:
        """Return a survivor's shares of the secrets that unmask the sum."""
        lost = [each for each in self.numbers if each not in survivors]
        packet: Any = {Key.ACTIVE_NODE_ID_LIST: list(survivors), Key.DEAD_NODE_ID_LIST: lost}
        said: dict[str, Any] = _unmask(self._states[number], packet)
        return list(zip(said[Key.NODE_ID_LIST], said[Key.SHARE_LIST], strict=True))

    def total(self, uploads: Iterable[list[bytes]]) -> Arrays:
        """Return the masked sum: the first half of the server's work."""
        total: Arrays | None = None
        for upload in uploads:
            arrays: Arrays = [bytes_to_ndarray(each) for each in upload]
            total = arrays if total is None else parameters_addition(total, arrays)
        if total is None:
            raise NotRecoverable("SecAgg+: saw no vector, needed those of the survivors")
        return parameters_mod(total, MODULUS)

    def mean(
        self, total: Arrays, opened: Sequence[list[tuple[int, bytes]]], survivors: Collection[int]
    ) -> NDArray[np.float64]:
        """Return the weighted mean from the masked sum: the other half."""
        shares: dict[int, list[bytes]] = {number: [] for number in self.numbers}
        for packet in opened:
            for owner, share in packet:
                shares[owner].append(share)
        for number, parts in shares.items():
            secret = combine_shares(parts)
            if number in survivors:
                mask = pseudo_rand_gen(secret, MODULUS, get_parameters_shape(total))
                total = parameters_subtraction(total, mask)
            else:
                total = self._without(total, number, secret)
        weight, steps = factor_extract(parameters_mod(total, MODULUS))
        mean: NDArray[np.float64]
        (mean,) = dequantize(steps, CLIP, STEPS)
        mean += -(len(survivors) - 1) * CLIP
        mean *= STEPS / weight
        return mean

    def _without(self, total: Arrays, lost: int, secret: bytes) -> Arrays:
        key = bytes_to_private_key(secret)
        for other in self.numbers:
            if other == lost:
                continue
            shared = generate_shared_key(key, bytes_to_public_key(self._public[other][0]))
            mask = pseudo_rand_gen(shared, MODULUS, get_parameters_shape(total))
            join = parameters_addition if lost > other else parameters_subtraction
            total = join(total, mask)
        return total
