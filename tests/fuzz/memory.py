"""The size of a state machine in memory: all that it refers to, without code."""

import gc
import sys
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

CODE = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType)


def size_of(root: Any) -> int:
    """Return the bytes of an object and of everything that it refers to, except code."""
    seen, due, total = {id(root)}, [root], 0
    while due:
        each = due.pop()
        total += sys.getsizeof(each)
        for other in gc.get_referents(each):
            if id(other) not in seen and not isinstance(other, CODE):
                seen.add(id(other))
                due.append(other)
    return total
