"""Numbers of samples by client, as text (`aggregation.samples`)."""

from fedgc.errors import BadSetting

MOST: int = 10**15  # samples: sums stay exact


def parse_pins(text: str) -> dict[str, int]:
    """Return the samples of each client that the text names.

    >>> parse_pins("north=5000, 5f1c9a7e30d2b846=300")
    {'north': 5000, '5f1c9a7e30d2b846': 300}
    >>> parse_pins("north")
    Traceback (most recent call last):
    ...
    fedgc.errors.BadSetting: setting aggregation.samples: saw 'north', needed CLIENT=samples, CLIENT=samples
    """
    pins: dict[str, int] = {}
    for part in text.split(",") if text.strip() else ():
        name, equals, number = (each.strip() for each in part.rpartition("="))
        if not (name and equals and number.isascii() and number.isdigit()):
            raise _bad(part.strip(), "CLIENT=samples, CLIENT=samples")
        samples = int(number) if len(number) <= len(str(MOST)) else MOST + 1
        if not 1 <= samples <= MOST:
            raise _bad(part.strip(), f"1 to {MOST:g} samples")
        if name in pins:
            raise _bad(f"{name} twice", "each client once")
        pins[name] = samples
    return pins


def _bad(seen: str, needed: str) -> BadSetting:
    return BadSetting(f"setting aggregation.samples: saw {seen!r}, needed {needed}")
