"""The setting `data.partition`: how one dataset is divided into the data of clients."""

import math
from dataclasses import dataclass
from typing import Final, Self

from fedgc.errors import BadSetting

NEEDS: Final = "iid, owner, dirichlet:ALPHA, quantity:ALPHA or shards:COUNT"
WITH_AMOUNT: Final = ("dirichlet", "quantity", "shards")
WITH_COLUMN: Final = ("dirichlet", "shards", "owner")


@dataclass(frozen=True, slots=True)
class Partition:
    """A way to divide samples, as text: its kind, its number, and the column that it goes by.

    >>> Partition.read("dirichlet:0.3"), Partition.read("owner:writer")
    (Partition(kind='dirichlet', amount=0.3, column=''), Partition(kind='owner', amount=0.0, column='writer'))
    >>> Partition.read("dirichlet")
    Traceback (most recent call last):
    ...
    fedgc.errors.BadSetting: setting data.partition: saw 'dirichlet', needed iid, owner, dirichlet:ALPHA, \
quantity:ALPHA or shards:COUNT
    """

    kind: str
    amount: float = 0.0
    column: str = ""

    @classmethod
    def read(cls, text: str) -> Self:
        """Return the partition that a text describes; raise BadSetting for any other text."""
        kind, *rest = (each.strip() for each in text.split(":"))
        amount = rest.pop(0) if kind in WITH_AMOUNT and rest else ""
        column = rest.pop(0) if kind in WITH_COLUMN and rest else ""
        fits = _is_amount(kind, amount) if kind in WITH_AMOUNT else kind in ("iid", "owner")
        if rest or not fits:
            raise BadSetting(f"setting data.partition: saw {text!r}, needed {NEEDS}")
        return cls(kind, float(amount or 0.0), column)

    @classmethod
    def allows(cls, text: str) -> bool:
        """Return whether a text describes a partition."""
        try:
            cls.read(text)
        except BadSetting:
            return False
        return True


def _is_amount(kind: str, text: str) -> bool:
    if kind == "shards":
        return text.isascii() and text.isdigit() and len(text) < 9 and int(text) >= 1
    try:
        return math.isfinite(float(text)) and float(text) > 0
    except ValueError:
        return False
