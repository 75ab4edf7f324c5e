"""The settings of a task's own: a frozen mapping that `RunConfig` carries to the server and every client."""

from collections.abc import Iterator, Mapping

from fedgc.config.fields import IN_64_BITS, TASK, Value, is_too_large
from fedgc.errors import BadSetting


class TaskSettings(Mapping[str, Value]):
    """The settings of a task by their names, without `task.`; read-only and hashable.

    Raises:
        BadSetting: A name is empty or no text, or a value is not text, a number, true or false.

    Example:
        >>> own = TaskSettings({"rank": 8})
        >>> own["rank"], own.get("alpha", 0.5)
        (8, 0.5)
    """

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, Value] | None = None) -> None:
        self._values = dict(values or {})
        for name, value in self._values.items():
            if not name or not isinstance(name, str) or not isinstance(value, str | int | float):
                raise BadSetting(
                    f"setting {TASK}{name}: saw {value!r}, needed a name, and text, a number, true or false"
                )
            if is_too_large(value):
                raise BadSetting(f"setting {TASK}{name}: saw {value!r}, needed {IN_64_BITS}")

    def __getitem__(self, name: str) -> Value:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return hash(frozenset(self._values.items()))

    def __repr__(self) -> str:
        return f"TaskSettings({self._values!r})"
