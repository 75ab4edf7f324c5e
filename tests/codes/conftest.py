"""How long an example takes depends on who else uses the machine: no test here is about time."""

from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
