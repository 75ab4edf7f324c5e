"""The transition table of a round: by state and event, the method that handles it, and what may follow.

An event without a row is refused.
"""

from typing import Final

from fedgc.messages import (
    Codeword,
    Failed,
    Joined,
    Leaving,
    Loaded,
    Lost,
    Offered,
    Progress,
    Report,
    Shares,
    Signed,
    Stop,
    Tick,
    UpdateDue,
)
from fedgc.round.states import State, table_of

_W, _C, _A, _U, _X = State
_ON, _OVER = (_W, _C, _X), (_X,)
_REPAIR, _AGREE, _UNMASK = (_C, _A, _X), (_A, _X), (_U, _X)

TABLE: Final = table_of(
    {
        State.WORKING: {
            Joined: ("_joined", _ON),  # it gets work
            Loaded: ("_loaded", (_W,)),  # it has the model: its working time begins
            Leaving: ("_leaving", _ON),  # its vector is collected before it goes
            Lost: ("_lost", _ON),  # its work does not count any more
            Failed: ("_failed", _ON),  # it is live, but cannot give this
            Progress: ("_reported", _ON),  # coded, a replica: skip, take, ask the gate, collect
            Report: ("_reported", _ON),  # local, its steps are done: ask the gate, collect
            Tick: ("_time_passed", _ON),  # at the deadline: collect what is finished
            UpdateDue: ("_asked", _ON),  # of a site: its consortium asks for it
            Stop: ("_stopped", _OVER),
        },
        State.COLLECTING: {
            Offered: ("collecting.offered", (_C,)),  # local: it is waited for until the upload deadline
            Codeword: ("collecting.received", _REPAIR),  # added to the sum, once
            Joined: ("collecting.returned", _REPAIR),  # it may send what it owes, or finish what is missing
            Loaded: ("collecting.loaded", (_C,)),
            Leaving: ("collecting.leaving", _REPAIR),  # it does no more work, but sends what it owes
            Lost: ("collecting.lost", _REPAIR),  # coded: what it owes is repaired; local: it is left out
            Failed: ("collecting.failed", _REPAIR),  # the same for what it cannot give
            Progress: ("collecting.reported", _REPAIR),  # coded: a repair may have waited for it
            Report: ("collecting.reported", _REPAIR),  # local: the steps of the update that it sends next
            Tick: (
                "collecting.time_passed",
                _REPAIR,
            ),  # others replace late clients; all of them at the deadline
            Stop: ("_stopped", _OVER),
        },
        State.AGREEING: {
            Signed: ("_signed", (_A, _U, _X)),  # with enough signatures, shares are asked for
            Shares: ("_shared", _AGREE),  # refused: none were asked for
            Joined: ("_back", (_A,)),  # it is asked again for what it has not answered
            Loaded: ("_passed_over", (_A,)),
            Leaving: ("_passed_over", (_A,)),  # it signs and gives its shares before it goes
            Lost: ("_away", _AGREE),  # its vector stays in the sum, if enough are left to unmask it
            Failed: ("_failed_last", _AGREE),  # the same
            Progress: ("_passed_over", (_A,)),
            Report: ("_passed_over", (_A,)),
            Tick: ("_too_late", _OVER),  # aborted
            Stop: ("_stopped", _OVER),
        },
        State.UNMASKING: {
            Signed: ("_passed_over", (_U,)),  # more signatures than were needed
            Shares: ("_shared", _UNMASK),  # with enough shares, the masks are known
            Joined: ("_back", (_U,)),
            Loaded: ("_passed_over", (_U,)),
            Leaving: ("_passed_over", (_U,)),
            Lost: ("_away", _UNMASK),
            Failed: ("_failed_last", _UNMASK),
            Progress: ("_passed_over", (_U,)),
            Report: ("_passed_over", (_U,)),
            Tick: ("_too_late", _OVER),
            Stop: ("_stopped", _OVER),
        },
        State.CLOSED: {},
    }
)
