"""The transition table of a round as a Mermaid state diagram, for the documentation.

>>> print(mermaid().splitlines()[0])
stateDiagram-v2
"""

from fedgc.round.machine import TABLE, State


def mermaid() -> str:
    """Return the diagram: an arrow from state to state names the events that may lead there.

    Events that leave the state as it is are not drawn.
    """
    lines = ["stateDiagram-v2", f"    [*] --> {State.WORKING.name}"]
    for state, row in TABLE.items():
        for after in State:
            kinds = [kind.__name__ for kind, transition in row.items() if after in transition.to]
            if kinds and after is not state:
                lines.append(f"    {state.name} --> {after.name}: {', '.join(kinds)}")
    return "\n".join([*lines, f"    {State.CLOSED.name} --> [*]", ""])
