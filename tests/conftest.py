"""How properties are searched: the same examples every time, new ones by `make fuzz`.

A test run that finds what another did not is no verdict on a change. What a search finds becomes an
example of its own, written into the test.
"""

from hypothesis import settings

settings.register_profile("same", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None, derandomize=False, print_blob=True)
settings.load_profile("same")
