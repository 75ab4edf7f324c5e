"""Finds a task by the setting `task`: the name of a shipped task, or `module:attribute`.

The attribute is a `Task`, or a function that makes one from the `RunConfig`, such as one that cuts its data
into `config.chunks` chunks. If the function has a parameter `client`, it gets the client's own settings.
"""

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType, ModuleType
from typing import Final

from fedgc.config import RunConfig
from fedgc.config.fields import Value
from fedgc.errors import BadSetting, BadTask, FedgcError, nearest, words_of
from fedgc.training.tasks.breast_cancer import breast_cancer
from fedgc.training.tasks.digits import digits
from fedgc.training.tasks.task import Task

SHIPPED: Final[Mapping[str, Callable[[RunConfig], Task]]] = MappingProxyType(
    {"digits": digits, "breast-cancer": breast_cancer}
)


ENDS: Final = (
    ', since it parses a command line or ends by itself: put that under `if __name__ == "__main__":`'
)
NO_CLIENT: Final[Mapping[str, Value]] = MappingProxyType({})  # the settings of no client, as on the server


def named(name: str, config: RunConfig, client: Mapping[str, Value] = NO_CLIENT) -> Task:
    """Return the task called `name`, made for the settings in `config`.

    Args:
        name: The name of a shipped task, or `module:attribute`.
        config: The settings of the run.
        client: The client's own settings, for a function with a parameter `client`; empty on the server.

    >>> named("digit", RunConfig())
    Traceback (most recent call last):
    ...
    fedgc.errors.BadSetting: setting task: saw 'digit', needed digits, breast-cancer or module:attribute; \
did you mean digits?
    """
    found = imported(name)
    return found if isinstance(found, Task) else _task(_made(found, config, client, name), name)


def imported(name: str) -> Task | Callable[..., object]:
    """Return a task, or the function that makes it, without a call of it; raise BadTask if it is neither."""
    check_name(name)
    if name in SHIPPED:
        return SHIPPED[name]
    module, _, attribute = name.partition(":")
    found = _attribute(_module(module, name), attribute, name)
    return found if callable(found) else _task(found, name)


def _task(made: object, name: str) -> Task:
    if not isinstance(made, Task):
        what = f"a {type(made).__name__}"
        raise BadTask(f"task {name}: saw {what}, needed a Task or a function of RunConfig that returns one")
    return made


def must_be_task(task: object) -> None:
    """Raise BadTask if an app was made with anything but a task.

    >>> must_be_task(named)
    Traceback (most recent call last):
    ...
    fedgc.errors.BadTask: task: saw a function, needed a Task; a function is named by the setting task
    """
    if task is not None and not isinstance(task, Task):
        what = type(task).__name__
        raise BadTask(f"task: saw a {what}, needed a Task; a function is named by the setting task")


def check_name(name: str) -> None:
    """Raise BadSetting if no task can have this name, without importing the user's module."""
    module, _, attribute = name.partition(":")
    if name not in SHIPPED and not (module and attribute):
        needed = f"{', '.join(SHIPPED)} or module:attribute"
        hint = nearest(name, SHIPPED)
        if not hint and name.isidentifier():
            hint = f", as in {name}:task"
        raise BadSetting(f"setting task: saw {name!r}, needed {needed}{hint}")


def _made(
    function: Callable[..., object], config: RunConfig, client: Mapping[str, Value], name: str
) -> object:
    try:
        takes_client = "client" in inspect.signature(function).parameters
        return function(config, client=MappingProxyType(client)) if takes_client else function(config)
    except FedgcError:
        raise
    except (Exception, SystemExit) as error:  # the user's function may raise anything
        raise BadTask(f"task {name}: the function raised {words_of(error)}") from error


def _module(module: str, name: str) -> ModuleType:
    try:
        return import_module(module)
    except (Exception, SystemExit) as error:  # the user's module may raise anything while it is imported
        hint = ENDS if isinstance(error, SystemExit) else ""
        raise BadTask(f"task {name}: importing {module} raised {words_of(error)}{hint}") from error


def _attribute(module: ModuleType, attribute: str, name: str) -> object:
    try:
        return getattr(module, attribute)
    except AttributeError as error:
        hint = nearest(attribute, vars(module))
        raise BadTask(f"task {name}: {module.__name__} has no {attribute!r}{hint}") from error
