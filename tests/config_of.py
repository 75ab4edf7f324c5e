"""Settings for tests: a table with the names of Python fields, as `RunConfig` takes them."""

from collections.abc import Mapping

from fedgc.config import KEYS, RunConfig


def config_of(settings: Mapping[str, object]) -> RunConfig:
    """Return the settings; unlike `RunConfig(**settings)` it takes integers for floats, as tables do."""
    return RunConfig.read(table_of(settings))


def table_of(settings: Mapping[str, object]) -> dict[str, object]:
    """Return the same settings under their names in tables; other names are unchanged."""
    return {KEYS.get(name, name): value for name, value in settings.items()}
