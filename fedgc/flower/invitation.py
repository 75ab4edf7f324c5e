"""The Flower message that opens a session, written by the server and read by the device."""

from typing import Any, Final

from flwr.app import ConfigRecord, Message, RecordDict

from fedgc.flower.wire import Invitation

TYPE: Final = "train.session"
RECORD: Final = "session"


def invite(invitation: Invitation, node: int, ttl_s: float) -> Message:
    """Return the Flower message that carries an invitation."""
    record = ConfigRecord(
        {
            "address": invitation.address,
            "certificate": invitation.certificate,
            "token": invitation.token,
            "run": invitation.run,
            "authority": invitation.authority,
        }
    )
    return Message(
        content=RecordDict({RECORD: record}),
        dst_node_id=node,
        message_type=TYPE,
        ttl=ttl_s,
        group_id="session",
    )


def invited(message: Message) -> Invitation:
    """Return the invitation that a message carries."""
    record: Any = message.content[RECORD]
    return Invitation(*(record[name] for name in ("address", "certificate", "token", "run", "authority")))
