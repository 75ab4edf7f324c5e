"""A code by its name: all codes are entry points of the group `fedgc.codes`."""

from typing import Final

from fedgc import plugins
from fedgc.codes.code import Code
from fedgc.errors import BadSetting

GROUP: Final = "fedgc.codes"


def code_named(name: str) -> type[Code]:
    """Return the class of the code of this name.

    >>> code_named("gaussian").summary
    'a Gaussian column for each client (arXiv 2405.19509)'
    """
    found = plugins.load(GROUP, name, "setting code.name")
    if not (isinstance(found, type) and issubclass(found, Code)):
        raise BadSetting(f"setting code.name: {name!r} is {found!r}, needed a subclass of fedgc.codes.Code")
    return found
