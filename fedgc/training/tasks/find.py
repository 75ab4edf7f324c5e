"""Finding a task by the name that stands in the run's settings.

A name is that of a shipped task, or `module:attribute`. The attribute is a `Task`, or a function that makes
one from the `RunConfig`: a task whose data may be cut at will needs the number of chunks and the seed.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType, ModuleType
from typing import Final

from fedgc.config import RunConfig
from fedgc.errors import BadSetting, BadTask, nearest
from fedgc.training.tasks.breast_cancer import breast_cancer
from fedgc.training.tasks.digits import digits
from fedgc.training.tasks.task import Task

SHIPPED: Final[Mapping[str, Callable[[RunConfig], Task]]] = MappingProxyType(
    {"digits": digits, "breast-cancer": breast_cancer}
)


def named(name: str, config: RunConfig) -> Task:
    """Return the task called `name`, made for the settings in `config`.

    >>> named("digit", RunConfig())
    Traceback (most recent call last):
    ...
    fedgc.errors.BadSetting: setting task: saw 'digit', needed digits, breast-cancer or module:attribute; \
did you mean digits?
    """
    check_name(name)
    if name in SHIPPED:
        return SHIPPED[name](config)
    module, _, attribute = name.partition(":")
    found = _attribute(_module(module, name), attribute, name)
    made = found(config) if callable(found) and not isinstance(found, Task) else found
    if not isinstance(made, Task):
        what = f"a {type(made).__name__}"
        raise BadTask(f"task {name}: saw {what}, needed a Task or a function of RunConfig that returns one")
    return made


def check_name(name: str) -> None:
    """Raise BadSetting where no task can have this name; nothing of a user's is imported for it."""
    module, _, attribute = name.partition(":")
    if name not in SHIPPED and not (module and attribute):
        needed = f"{', '.join(SHIPPED)} or module:attribute"
        raise BadSetting(f"setting task: saw {name!r}, needed {needed}{nearest(name, SHIPPED)}")


def _module(module: str, name: str) -> ModuleType:
    try:
        return import_module(module)
    except Exception as error:  # the user's module may raise anything while it is imported
        raise BadTask(f"task {name}: importing {module} raised {type(error).__name__}: {error}") from error


def _attribute(module: ModuleType, attribute: str, name: str) -> object:
    try:
        return getattr(module, attribute)
    except AttributeError as error:
        hint = nearest(attribute, vars(module))
        raise BadTask(f"task {name}: {module.__name__} has no {attribute!r}{hint}") from error
