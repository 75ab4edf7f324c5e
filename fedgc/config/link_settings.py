"""The settings of clients and of what travels: `[client]`, `[links]`, `[quota]`, and secrecy."""

import re
from dataclasses import dataclass
from typing import Final, Literal

from fedgc.codecs import EXACT
from fedgc.config.fields import AUTO, Auto, count, not_negative, positive, setting

SHORT_BYTES: Final = 2**17  # of a vector that is uploaded without a slot
DEVICE: Final = re.compile(r"auto|(cpu|cuda|mps)(:[0-9]+)?")


@dataclass(frozen=True)
class LinkSettings:
    """How clients compute, how vectors travel, and who may read them."""

    __slots__ = ()

    # Clients
    device: str = setting(
        "client.device",
        AUTO,
        "cpu, cuda, cuda:0, mps; auto: the best there is",
        lambda name: DEVICE.fullmatch(name) is not None,
        "auto, cpu, cuda, cuda:N or mps",
    )
    precision: Literal["float32", "bf16"] = setting(
        "client.precision", "float32", "bf16: local steps under autocast"
    )
    threads: int = setting(
        "client.threads",
        0,
        "CPU threads of a client's engine (0: torch decides; clients on one machine share its cores)",
        not_negative,
        "0 or more",
    )
    memory_mb: int = setting(
        "client.memory-mb",
        1024,
        "finished updates a client keeps in memory before it spills to disk",
        count,
        "at least 1",
    )

    # Links
    client_app: Literal["fedgc", "stock"] = setting(
        "client.app",
        "fedgc",
        "stock: unmodified Flower ClientApps, which are sent Flower's own train and evaluate messages",
    )
    link: Literal["auto", "session", "messages"] = setting(
        "links.kind",
        AUTO,
        "session: one lasting connection per client; messages: Flower messages alone; "
        "auto: sessions, and messages for each client whose session does not connect",
    )
    connect_s: float = setting(
        "links.connect-s",
        10.0,
        "how long a client tries to connect its session before it falls back to messages",
        positive,
        "above 0",
    )
    bind: str = setting(
        "links.bind", "127.0.0.1:0", "address the session listener binds to (port 0: any free one)"
    )
    advertise: str = setting("links.advertise", "", "address that clients connect to (empty: the bound one)")
    authority: str = setting(
        "links.authority",
        "",
        "file of the authority that signed the proxy's certificate, for a proxy that terminates TLS "
        "(empty: the listener's own certificate)",
    )
    lease_s: float = setting(
        "links.lease-s", 3600.0, "a session's life before it is renewed", positive, "above 0"
    )
    grace_s: float = setting(
        "links.grace-s", 10.0, "how long a broken session may take to come back", positive, "above 0"
    )
    codec: str = setting(
        "links.codec", EXACT, "local work: how an update travels; its options follow the name"
    )
    download_codec: Literal["float32", "int8"] = setting(
        "links.download-codec",
        EXACT,
        "how a new model travels to a client that has the one before; int8: as the difference from it, in 8 "
        "bits, whose error the server adds to the next difference (a client without that model gets all of "
        "it as float32)",
    )
    fragments: int = setting(
        "links.fragments",
        1,
        "local work: parts of the model that rounds exchange in turn, while clients train on (Streaming "
        "DiLoCo); 1: every round exchanges all of it",
        count,
        "at least 1",
    )
    fragment_mixing: float = setting(
        "links.fragment-mixing",
        0.5,
        "with fragments: share of a client's own values in a part of the new model that arrives after the "
        "client has trained on",
        lambda v: 0 <= v <= 1,
        "0 to 1",
    )
    receivers: int | Auto = setting(
        "links.receivers",
        AUTO,
        "processes of the server that share the sessions of its clients; a port that is given is followed by "
        "those of the others; auto: one for every 250 of `min-clients` and every two cores that the "
        "server may use, at most 4, and 1 where a port is given",
        count,
        "at least 1",
    )
    upload_slots: int = setting(
        "links.upload-slots",
        2,
        "clients that upload at the same time, and as many with late updates besides; vectors of up to "
        "128 KiB need no slot",
        count,
        "at least 1",
    )
    piece_kb: int = setting(
        "links.piece-kb",
        1024,
        "size of the pieces in which vectors travel",
        lambda v: 1 <= v <= 4096,
        "1 to 4096",
    )
    lines_per_s: float = setting(
        "quota.lines-per-s",
        5000.0,
        "control lines that one client may send a second, and ten times as many at once; a client that sends "
        "more is excluded for a while",
        positive,
        "above 0",
    )
    bytes_per_s: float = setting(
        "quota.bytes-per-s",
        4e6,
        "bytes of control lines that one client may send a second; vectors are not counted",
        positive,
        "above 0",
    )

    # Secrecy between sites
    secrecy: Literal["open", "masked"] = setting(
        "secrecy", "open", "masked: the server learns sums over sites, no update of one; needs a descriptor"
    )
    federation: str = setting("federation", "", "masked: the descriptor's file, on the server")
