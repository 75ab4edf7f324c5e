"""What is known of an adapter of PEFT beside its tensors, so that it can be written in PEFT's own format."""

import json
from collections.abc import Mapping
from typing import Any, Final

from fedgc.errors import BadMessage
from fedgc.values import value

LONGEST_CONFIG: Final = 1 << 16  # characters
SHOWN: Final = 40  # characters of a setting that a message repeats
SCALES: Final = ("peft_type", "lora_alpha", "alpha_pattern", "use_rslora", "use_dora")
# Settings of a configuration that change what an adapter computes, and not the shapes of its tensors.


@value
class Adapter:
    """The configuration of an adapter, and the names under which PEFT saves the tensors of the vector."""

    config: str  # JSON text, as in PEFT's adapter_config.json
    names: tuple[str, ...]  # in the order of the layout; empty: PEFT does not save the tensor
    lacks: str = ""  # a tensor that PEFT saves and that is not in the vector

    def __post_init__(self) -> None:
        if len(self.config) > LONGEST_CONFIG:
            seen = f"a configuration of {len(self.config)} characters"
            raise BadMessage(f"adapter: saw {seen}, needed at most {LONGEST_CONFIG}")
        named = [each for each in self.names if each]
        if len(set(named)) != len(named):
            raise BadMessage(f"adapter: saw a name twice among {len(named)}, needed each once")
        self.settings()

    def settings(self) -> Mapping[str, Any]:
        """Return the configuration as a table."""
        try:
            settings = json.loads(self.config)
        except (ValueError, RecursionError) as error:
            raise BadMessage(f"adapter: saw {self.config[:SHOWN]!r}, needed JSON") from error
        if not isinstance(settings, dict):
            raise BadMessage(f"adapter: saw {self.config[:SHOWN]!r}, needed an object of JSON")
        return settings

    def fields(self) -> dict[str, Any]:
        """Return the adapter as plain texts, by name."""
        return {"config": self.config, "names": list(self.names), "lacks": self.lacks}

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> "Adapter":
        """Return the adapter of these fields; an error of any kind if they are of another form."""
        return cls(str(fields["config"]), tuple(map(str, fields["names"])), str(fields["lacks"]))

    def difference(self, other: "Adapter") -> str:
        """Return the first setting in which another adapter computes differently; empty if none does.

        >>> one = Adapter('{"lora_alpha": 8, "revision": "a"}', ())
        >>> one.difference(Adapter('{"lora_alpha": 16, "revision": "b"}', ()))
        'adapter: saw lora_alpha = 16, needed 8'
        """
        needed, seen = self.settings(), other.settings()
        for name in SCALES:
            if name in needed and name in seen and needed[name] != seen[name]:
                values = [repr(each)[:SHOWN] for each in (seen[name], needed[name])]
                return f"adapter: saw {name} = {values[0]}, needed {values[1]}"
        return ""
