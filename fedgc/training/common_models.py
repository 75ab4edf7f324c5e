"""The common models that a client holds."""

from collections.abc import Collection, Iterator, Mapping

from fedgc.codecs.model_change import Changed
from fedgc.errors import BadMessage
from fedgc.messages import Validate, Work
from fedgc.training.flat import Vector


class CommonModels(Mapping[int, Vector]):
    """The common models by version."""

    def __init__(self) -> None:
        self._known: dict[int, Vector] = {}
        self.changed: Changed | None = None  # where the last model differs from an earlier one

    def __getitem__(self, version: int) -> Vector:
        return self._known[version]

    def __iter__(self) -> Iterator[int]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)

    def keep(self, versions: Collection[int]) -> None:
        """Discard all other versions."""
        self._known = {version: model for version, model in self._known.items() if version in versions}

    def put(self, version: int, model: Vector, changed: Changed | None) -> None:
        """Enter a model; `changed` says where it differs from an earlier one, if that is known."""
        self._known[version], self.changed = model, changed

    def of(self, command: Work | Validate) -> Vector:
        """Return the model that a command names; raise BadMessage if it is not here."""
        model = self._known.get(command.version)
        if model is None:
            here = f"only {sorted(self._known)}" if self._known else "none"
            what = "work" if isinstance(command, Work) else "validation"
            raise BadMessage(
                f"{what} of round {command.round}: needed model version {command.version}, saw {here}"
            )
        return model
