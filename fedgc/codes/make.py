"""Look up a code by name; all codes are entry points of the group `fedgc.codes`."""

from typing import Final

from fedgc import plugins
from fedgc.codes.code import Code

GROUP: Final = "fedgc.codes"


def code_named(name: str) -> type[Code]:
    """Return the class of the code of this name.

    >>> code_named("gaussian").summary
    'a Gaussian column for each client (arXiv 2405.19509)'
    """
    found: type[Code] = plugins.subclass(Code, GROUP, name, "code.name")
    return found
