"""The Flower message that opens a session, written by the server and read by the client."""

import math
from types import MappingProxyType
from typing import Any, Final

from flwr.app import ConfigRecord, Message, RecordDict

from fedgc.errors import BadMessage, NotAllowed
from fedgc.links.frames import Invitation

TYPE: Final = "train.session"
RECORD: Final = "session"
FIELDS: Final = MappingProxyType(
    {"address": str, "certificate": bytes, "token": bytes, "run": str, "authority": bytes}
)


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


def refusal(refused: NotAllowed) -> ConfigRecord:
    """Return the reply of a client whose site does not allow the run, or not now."""
    again = {"again_s": refused.again_s} if math.isfinite(refused.again_s) else {}
    return ConfigRecord({"ended": str(refused), "client": refused.client, "refused": True, **again})


def invited(content: RecordDict) -> Invitation:
    """Return the invitation that a message carries, or raise BadMessage."""
    record: Any = content.config_records.get(RECORD, {})
    for name, kind in FIELDS.items():
        if type(record.get(name)) is not kind:
            seen = type(record.get(name)).__name__
            raise BadMessage(f"invitation: saw {seen} as {name}, needed {kind.__name__}")
    return Invitation(*(record[name] for name in FIELDS))
