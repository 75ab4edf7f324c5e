"""`fedgc plan` of local work: the quorum for these clients, and whether late updates should count."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from rich.table import Table

from fedgc.cli.view import terminal
from fedgc.codecs import make_codec
from fedgc.config import RunConfig
from fedgc.errors import BadSetting, Unusable
from fedgc.fragments import largest_fragment
from fedgc.history import Speed
from fedgc.tuner.local_rounds import LocalChoice, LocalClients, LocalRounds, choose_rounds

LATE: Final = "aggregation.late-updates"
GROUPS: Final = "aggregation.groups"


@dataclass(frozen=True, slots=True)
class LocalExplanation:
    """The choice, and what it was made from."""

    source: str
    choice: LocalChoice
    clients: int
    linked: int  # whose links were measured
    obstacle: str = ""  # the setting with which no update can count late
    in_groups: bool = False  # by the settings of the run

    @property
    def way(self) -> str:
        """Return the quickest possible way: sync, partial or late."""
        return self.choice.way_to_wait if self.obstacle else self.choice.way

    @property
    def chosen(self) -> LocalRounds:
        """Return the rounds of this way."""
        return self.choice.late if self.way == "late" else self.choice.rounds

    @property
    def has_groups(self) -> bool:
        """Whether the clients can train in groups by speed."""
        return not self.obstacle and len(self.choice.groups) > 1

    def show(self, *, as_json: bool) -> None:
        """Print it."""
        if as_json:
            sys.stdout.write(json.dumps(_figures(self), indent=1) + "\n")
            return
        table = Table(title=f"Local work, from {self.source}", show_header=False)
        table.add_column(no_wrap=True)
        table.add_column()
        for name, value in facts(self).items():
            table.add_row(name, value)
        terminal().print(table)


def explain_local(source: str, speeds: Sequence[Speed], config: RunConfig, numbers: int) -> LocalExplanation:
    """Return the explanation for clients with these speeds and a model of so many numbers."""
    if not speeds:
        raise Unusable(f"plan: saw no measured client in {source}, needed a round of local work")
    exchanged = largest_fragment(config.fragments, numbers)
    down_bytes = make_codec(config.download_codec).expected(exchanged)
    up_bytes = make_codec(config.codec).expected(exchanged)
    clients = LocalClients(
        np.array([each.step_s for each in speeds]),
        np.array([down_bytes / each.down_bytes_s if each.down_bytes_s else 0.0 for each in speeds]),
        np.array([up_bytes / each.up_bytes_s if each.up_bytes_s else 0.0 for each in speeds]),
        config.slots_for(up_bytes),
    )
    linked = sum(1 for each in speeds if each.up_bytes_s and each.down_bytes_s) if numbers else 0
    choice = choose_rounds(clients, config.round_steps)
    in_groups = config.groups == "speed"
    return LocalExplanation(source, choice, len(speeds), linked, _obstacle(config), in_groups=in_groups)


def _obstacle(config: RunConfig) -> str:
    """Return why updates cannot count late with these settings; empty if they can."""
    try:
        replace(config, late_updates="count")
    except BadSetting as error:
        return str(error)
    return ""


def _figures(of: LocalExplanation) -> dict[str, Any]:
    choice = of.choice
    return {
        "source": of.source,
        "way": of.way,
        "clients": of.clients,
        "clients_with_measured_links": of.linked,
        "quorum": of.chosen.quorum,
        "rounds": _of_rounds(choice.rounds),
        "waiting": _of_rounds(choice.waiting),
        "late": None if of.obstacle else _of_rounds(choice.late),
        "groups": {"clients": choice.groups, **_of_rounds(choice.grouped)} if of.has_groups else None,
    }


def _of_rounds(rounds: LocalRounds) -> dict[str, float]:
    return {"round_s": rounds.round_s, "update_s": rounds.update_s}


def facts(of: LocalExplanation) -> Mapping[str, str]:
    """Return what is shown, by name."""
    choice, lacks, is_late = of.choice, of.clients - of.linked, of.way == "late"
    off = f", {GROUPS} = off" if of.in_groups else ""
    waits = f"{_settings(choice.rounds)}{off}: {_words(choice.rounds)}"
    counts = of.obstacle or f"{_settings(choice.late)}, {LATE} = count{off}: {_words(choice.late)}"
    found = {
        "chosen": counts if is_late else waits,
        "waiting for all": _words(choice.waiting),
        f"{LATE} = {'wait' if is_late else 'count'}": waits if is_late else counts,
    }
    if of.has_groups:
        sizes = ", ".join(map(str, choice.groups))
        found[f"{GROUPS} = speed"] = (
            f"{_settings(choice.grouped)} of any one group, {LATE} = count, in groups of {sizes} clients: "
            f"{_words(choice.grouped)}"
        )
    if lacks:
        found["links"] = f"unknown for {lacks} of {of.clients} clients, whose transfers count as no time"
    return found


def _settings(rounds: LocalRounds) -> str:
    return f"timing.quorum = {rounds.quorum:g}"


def _words(rounds: LocalRounds) -> str:
    return f"rounds of {rounds.round_s:.3g} s, a whole update of a client in {rounds.update_s:.3g} s"
