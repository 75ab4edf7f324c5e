"""Every decoder of bytes or text that a peer or a file gives, with valid encodings to mutate.

A decoder returns a value or raises an error of `fedgc.errors`, without the help of a guard, and allocates at
most ten times its input and a constant.
"""

import asyncio
import hashlib
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from sqlalchemy import text

from fedgc import messages as m
from fedgc.cli.settings import parse
from fedgc.deploy.app_folder import MANIFEST, app_in
from fedgc.deploy.superlink import CONFIG, connection
from fedgc.flower.app_config import submitted_name
from fedgc.links import frames, typed_json
from fedgc.links.frames import Ack, Bye, Challenge, Grant, Hello, Offer, Piece, Position, StreamId, Welcome
from fedgc.links.identity import Identity
from fedgc.links.message import packets
from fedgc.links.pieces import Form, shortened
from fedgc.messages import Layout, TensorSpec
from fedgc.run.outputs import RunState
from fedgc.secagg import packets as secret
from fedgc.secagg.canonical import pack, unpack
from fedgc.secagg.state import Turn
from fedgc.sim.traces import read_links, read_table
from fedgc.store import checkpoint
from fedgc.store.database import Store
from fedgc.store.records import Audited, Evaluated, Seen, from_line, to_line
from fedgc.training import CacheFiles
from fedgc.training.cache import Saved
from fedgc.training.cache_files import TrajectoryInfo
from fedgc.training.local_update import Residual
from fedgc.training.loop.environment import VARIABLE, ScriptEnvironment
from fedgc.training.loop.protocol import LineSocket
from fedgc.training.script.connection import ScriptFacts
from fedgc.training.script.script_loop import ScriptLoop
from fedgc.web.access import Entry
from fedgc.web.app import make_app
from tests.config_of import config_of
from tests.fuzz.decoding import TOML, Decoder
from tests.party import Party
from tests.web.run_of_four import tell_a_run

NUMBERS: Final = 40
WHO: Final = Identity(bytes(range(32)))
STREAM: Final = StreamId("codeword", 3, 1)


# ---- messages


ADAPTER = m.Adapter('{"r": 4, "target_modules": ["q", "v"]}', ("w", ""), "v")


def _said() -> Sequence[object]:
    """A line of every kind."""
    sketch, layout = (0.5,) * m.SKETCH_NUMBERS, Layout((TensorSpec("w", "float32", (2, 3)),), 1, "0f" * 32)
    mix, offer = m.Mix((0, 3), ((1.0, 0.5), (2.0, -1.0))), Offer(STREAM, 160, bytes(32))
    return (
        m.Joined(0.0, "x", True, (m.Held("a", 7), m.Held("b", 9, "d1")), (m.Kept(2, 1, 4, sketch),)),
        m.Failed(0.0, "x", 3, "a reason", (1, 2)),
        m.Progress(0.0, "x", 3, 1, 4, 0.5, 8, 1.5, 0.25, sketch),
        m.Report(0.0, "x", 3, 4, 8, 0.5, 1.0, 0.25),
        m.Announced(0.0, "x", layout),
        m.Scored(0.0, "x", 2, 9, (("loss", 0.5),)),
        m.Enrolled(0.0, "x", bytes(32), 1, 2, bytes(64)),
        m.Advert(0.0, "x", 3, b"packet"),
        m.Signed(0.0, "x", 3, bytes(64)),
        m.Work("x", 3, 2, 4, (0, 1), ((0, "a"), (1, "b")), 7, 60.0),
        m.Continue("x", 3, 8, (0, 1), 60.0),
        m.Reveal("x", 3, 1, "coded", mix),
        m.Reveal("x", 3, 1, "masked", None, ring=m.Ring(41, 32)),
        m.Close("x", 3, "synced", True),
        m.Skip("x", 3, 1),
        m.Take("x", 3, (1, 2)),
        m.Begin("x", 3, b"packet"),
        Hello(m.WIRE_VERSION, "run", b"token", WHO.public, bytes(64), "me", 5, (Position(STREAM, 9),)),
        Challenge(m.WIRE_VERSION, bytes(32)),
        Welcome(b"ticket", 60.0, 4),
        Ack(STREAM, 40),
        Grant(STREAM, 40),
        offer,
        Bye("over", True),
        packets.Shelved(3, "d" * 64),
    )  # fmt: skip


def _frames() -> Sequence[bytes]:
    piece = Piece(STREAM, 4, 160, memoryview(bytes(range(100))))
    lines = [frames.encode(each, number) for number, each in enumerate(_said())]
    return [*lines, b"".join(frames.encode_piece(piece))]


def _answer_of(data: bytes) -> object:
    """An answer of a client that signs what it says."""
    asked = packets.introduction("run", b"n" * 16)
    content = packets.write_answer(asked, WHO, "me", [], {})
    lines = data.split(b"\n\n")
    about = ConfigRecord({
        "name": "me", "key": WHO.public, "lines": lines,
        "signature": WHO.sign(packets._signed("run", asked.nonce, lines)),
    })  # fmt: skip
    return packets.read_answer(RecordDict({**content, "packet": about}), asked, 1.0)


def _packet_of(data: bytes) -> object:
    asked = packets.write_packet(packets.Packet("run", b"n" * 16, 60.0, (), (3, np.ones(8, np.float32))))
    asked["packet"]["lines"] = data.split(b"\n\n")
    return packets.read_packet(asked, "x")


def _model_of(data: bytes) -> object:
    array = Array(dtype="float32", shape=(8,), stype="numpy.ndarray", data=data)
    asked = packets.write_packet(packets.introduction("run", b"n" * 16))
    asked["model"] = ArrayRecord({"3": array})
    return packets.read_packet(asked, "x")


def _codeword_of(data: bytes) -> object:
    array = Array(dtype="float32", shape=(NUMBERS,), stype="numpy.ndarray", data=data)
    return packets.codeword(Offer(STREAM, 4 * NUMBERS, bytes(32)), array, Form(NUMBERS))


def _links() -> Iterator[Decoder]:
    seeds = _frames()
    array = Array(np.arange(NUMBERS, dtype=np.float32)).data
    for name, kinds in (("client", frames.FROM_CLIENT), ("server", frames.FROM_SERVER)):
        yield Decoder(
            f"frame of a {name}",
            seeds,
            lambda data, kinds=kinds: frames.decode(data, kinds, now=1.0, client="x"),
            40,
        )
    batches = [
        b"".join(frames.join([(each,) for each in seeds[at : at + 3]])) for at in range(0, len(seeds), 3)
    ]
    yield Decoder("batch", batches, frames.split)
    hello = [each for each in seeds if b"Hello" in each]
    yield Decoder("hello", hello, frames.decode_hello)
    lines = [each for each in seeds if each[:1] == b"L"]
    together = [b"\n\n".join(lines[at : at + 3]) for at in range(len(lines))]
    yield Decoder("answer", together, _answer_of)
    yield Decoder("packet", together, _packet_of)
    yield Decoder("model of a packet", [array], _model_of)
    yield Decoder("codeword of an answer", [array], _codeword_of)
    for codec in ("float32", "bf16", "int8", "int4", "top-k share=0.1, block=20"):
        yield Decoder(f"codec {codec}", [_encoded(codec)], lambda data, codec=codec: _decoded(data, codec))
    for ring in (8, 16, 32):
        words = bytes(NUMBERS * ring // 8)
        yield Decoder(
            f"ring of {ring} bits",
            [words],
            lambda data, ring=ring: _form_read(data, Form(NUMBERS, ring=ring)),
            2,
        )


def _encoded(codec: str) -> bytes:
    vector = np.random.default_rng(1).normal(size=NUMBERS).astype(np.float32)
    return shortened(vector, codec, STREAM, "x").tobytes()


def _decoded(data: bytes, codec: str) -> object:
    return _form_read(data, Form(NUMBERS, codec))


def _form_read(data: bytes, form: Form) -> object:
    form.check_size(STREAM, len(data))
    return form.unpacked(np.frombuffer(data, np.uint8), STREAM)


# ---- secure aggregation


def _secagg() -> Iterator[Decoder]:
    party = Party(3)
    signed = replace(
        secret.Advert(party.federation.fid, 1, 0, 5, bytes(32), (bytes(32),), (bytes(32),)),
        signature=bytes(64),
    )
    values: Sequence[Any] = (
        secret.Open(party.federation.fid, 1),
        signed,
        secret.Roster(1, (signed, replace(signed, member=1))),
        secret.Deal(1, 0, (secret.Parcel(0, 1, b"blob", bytes(64)), secret.Parcel(0, 2, b"", b""))),
        secret.Begin(1, 0, (0, 1, 2), 9, b"settings", (secret.Delivery(1, b"blob", bytes(32)),)),
        signed.head,
        secret.Roster(1, (signed.head, replace(signed.head, member=1))),
        secret.Deal(1, 0, (secret.Parcel(0, 1, b"blob", bytes(64)),), (1,)),
        secret.Begin(
            1, 0, (0, 1), 9, b"s", (secret.Delivery(1, b"blob", bytes(32), (0, 2)),), ((1, bytes(32)),)
        ),
        secret.Agree(1, 0, (0, 1)),
        secret.Unlock(1, 0, ((0, bytes(64)), (1, bytes(64)))),
        secret.Opened(1, 0, 2, ((0, bytes(32)), (1, bytes(32)))),
        Turn(1, b"bound", (0, 1), 9, bytes(32)),
        party.federation,
    )
    seeds = [each.pack() for each in values]
    for each in values:
        kind = type(each)
        yield Decoder(f"secagg {kind.__name__}", [each.pack(), *seeds[:3]], kind.unpack, 3)
    yield Decoder("canonical", [*seeds, pack(1, "é", 0.5, (b"x", ()))], unpack, 3)


# ---- texts


def _utf8(decode: Callable[[str], object]) -> Callable[[bytes], object]:
    """A decoder of text, which its reader has decoded from bytes."""
    return lambda data: decode(data.decode(errors="replace"))


def _texts() -> Iterator[Decoder]:
    state = RunState(
        round=3, version=2, gate="{}", chunks=((0, "", "a", 7, "d"), (1, "x", "b", 9, "")), next_chunk=2,
        step_s=(("x", 0.1),), first_step=4, common_steps=0.0, clients=("x", "y"),
    )  # fmt: skip
    written = typed_json.dumps(typed_json.write(state))
    yield Decoder(
        "state of a run", [written], lambda data: typed_json.read(RunState, typed_json.loads(data), {})
    )
    layout = Layout(
        (TensorSpec("w", "float32", (2, 3)), TensorSpec("b", "bfloat16", ())), 2, "0f" * 32, ADAPTER
    )
    yield Decoder("layout", [layout.text().encode()], _utf8(Layout.read))
    records = [
        Seen(5.0, "a", "b"),
        Audited(5.0, "joined", "x", "y", "r"),
        Evaluated(5.0, "r", 3, {"loss": 0.5}),
    ]
    yield Decoder("record", [to_line(each, "s-1").encode() for each in records], _utf8(from_line))
    words = [
        b"rounds=3",
        b"task.rank=[1,2]",
        b"learning-rate=0.5",
        b"code.blocks=auto",
        b"gate.options=a=1, b=2",
    ]
    yield Decoder("setting", words, _utf8(lambda said: parse([said])))
    environment = ScriptEnvironment("/s", "secret", {"rounds": 3}, {"name": "x"}, "/f", 0.5).write()[VARIABLE]
    yield Decoder(
        "environment of a script",
        [environment.encode()],
        _utf8(lambda said: ScriptEnvironment.read({VARIABLE: said})),
    )


# ---- files


def _file(path: Path, read: Callable[[Path], object]) -> Callable[[bytes], object]:
    def decode(data: bytes) -> object:
        path.write_bytes(data)
        return read(path)

    return decode


TABLE: Final = b"client,round,chunk,seconds\na,0,0,1.5\na,1,0,2.5\nb,0,0,0.5\nb,1,0,0.25\n"
LINKS: Final = b'{"u1": {"up_u": 10.0, "up_sigma": 1, "down_u": 20, "down_sigma": 0.5}}'
MANIFEST_TEXT: Final = b"""[tool.flwr.app.components]
serverapp = "server.app:app"
[tool.flwr.app.config]
rounds = 3
run = "spring"
[tool.fedgc.task]
rank = 8
"""
CONNECTION: Final = b"""[superlink]
default = "here"
[superlink.here]
address = "127.0.0.1:9093"
insecure = true
"""


def _files(folder: Path) -> Iterator[Decoder]:
    yield Decoder("trace table", [TABLE], _file(folder / "times.csv", read_table))
    yield Decoder("trace of links", [LINKS], _file(folder / "links.json", read_links))
    app = _file(folder / MANIFEST, lambda path: app_in(path.parent))
    yield Decoder("manifest", [MANIFEST_TEXT], app, constant=TOML)
    name = _file(folder / MANIFEST, lambda path: submitted_name("run", {}, [str(path.parent)]))
    yield Decoder("name of a run", [MANIFEST_TEXT], name, 3, TOML)
    home = {"FLWR_HOME": str(folder)}
    here = _file(folder / CONFIG, lambda _: connection("here", home))
    yield Decoder("connection", [CONNECTION], here, constant=TOML)
    yield from _checkpoints(folder / "checkpoints")
    yield from _caches(folder / "cache")


def _checkpoints(folder: Path) -> Iterator[Decoder]:
    layout = Layout((TensorSpec("w", "float32", (8,)),), 1).text()
    made = checkpoint.Checkpoint(3, 2, np.arange(8, dtype=np.float32), b"optimizer", '{"a": 1}', layout)
    path = checkpoint.save(folder, made, 1)
    seed = path.read_bytes()[: -hashlib.sha256().digest_size]

    def decode(data: bytes) -> object:
        path.write_bytes(data + hashlib.sha256(data).digest())
        checkpoint.listed(folder)
        return checkpoint.load(folder)

    yield Decoder("checkpoint", [seed], decode)


def _caches(folder: Path) -> Iterator[Decoder]:
    cache = CacheFiles(folder)
    info = TrajectoryInfo(2, "m", 7, 1, "a", 8, 3, 0.5, 0.25, 0.0, 4, 0.0, "")
    cache.put(info, Saved(np.ones(8, np.float32), [torch.ones(2)], {"momentum": torch.ones(8)}))
    cache.put_residual(Residual((3, 0, "x"), np.ones(8), np.ones(8)))
    cache.put_private({"head": torch.ones(2)})
    reads: Mapping[str, Callable[[CacheFiles], object]] = {
        "chunk-1": CacheFiles.found, "rest": CacheFiles.residual, "private": CacheFiles.private
    }  # fmt: skip
    for stem, read in reads.items():
        (path,) = folder.glob(f"{stem}-*.pt")
        yield Decoder(f"cache file {stem}", [path.read_bytes()], _cached(folder / stem, stem, read), 2)


def _cached(folder: Path, stem: str, read: Callable[[CacheFiles], object]) -> Callable[[bytes], object]:
    def decode(data: bytes) -> object:
        folder.mkdir(exist_ok=True)
        digest = hashlib.blake2b(data, digest_size=16).hexdigest()
        path = folder / f"{stem}-{digest}.pt"
        path.write_bytes(data)
        try:
            return read(CacheFiles(folder))
        finally:
            path.unlink(missing_ok=True)

    return decode


# ---- a script, the store and the page


LINES: Final = (
    b'{"kind":"announce","tensors":[["w","float32",[2,3]]],"parameters":1,"samples":7,"validates":true}\n{"kind":"ready"}\n',
    b'{"kind":"reached","steps":4,"generation":1,"ask":0,"at_exit":false}\n',
    b'{"kind":"handed","steps":4,"generation":1,"ask":1,"at_exit":false}\n',
    b'{"kind":"left","steps":4,"generation":1,"ask":1,"at_exit":true}\n',
    b'{"kind":"scored","version":2,"samples":7,"figures":{"loss":0.5},"problem":""}\n',
)  # fmt: skip


def _script(folder: Path, stack: ExitStack) -> Iterator[Decoder]:
    facts = ScriptFacts(config_of({"script": "true", "work": "local"}), "x", {}, folder)

    def decode(data: bytes) -> None:
        loop = ScriptLoop(facts, lambda _: None)
        near, far = socket.socketpair()
        loop._script._line, loop._is_known = LineSocket(near), True
        try:
            far.sendall(data)
            far.shutdown(socket.SHUT_WR)
            for message in loop._script.lines():
                loop._heard(message)
        finally:
            far.close()
            loop.close()

    whole = [b"".join(LINES[: at + 1]) for at in range(len(LINES))]
    yield Decoder("lines of a script", [*whole, *LINES], decode, 3)


def _store(folder: Path, stack: ExitStack) -> Iterator[Decoder]:
    store = stack.enter_context(Store.open("sqlite://"))
    tell_a_run(store)
    columns = {
        "runs.present": b'{"phase": "working", "clients": []}',
        "runs.settings": b'{"rounds": 3}',
        "rounds.metrics": b'{"loss": 0.5}',
        "rounds.short": b"[1, 2]",
        "decisions.basis": b'{"figure": "loss"}',
    }
    for column, seed in columns.items():
        table, _, name = column.partition(".")
        yield Decoder(f"column {column}", [seed], _column(store, table, name), 1)


def _column(store: Store, table: str, name: str) -> Callable[[bytes], object]:
    def decode(data: bytes) -> object:
        said = data.decode(errors="replace").replace("\x00", "")
        with store._database.writing() as connection:  # it stays: the next one reads several damaged columns
            connection.execute(text(f"UPDATE {table} SET {name} = :said"), {"said": said})  # noqa: S608  own names
        return store.run(), store.rounds(limit=2), store.decisions(limit=2), store.best()

    return decode


def _page(folder: Path, stack: ExitStack) -> Iterator[Decoder]:
    store = stack.enter_context(Store.open("sqlite://"))
    tell_a_run(store)
    app = make_app(store, Entry(), lambda: True)
    loop = stack.enter_context(asyncio.Runner())

    def decode(data: bytes) -> int:
        line, _, rest = data.partition(b"\n")
        line = bytes(each for each in line if 0x21 <= each <= 0x7E)  # h11 refuses other bytes of a target
        path, _, query = line.partition(b"?")
        headers = [tuple(each.split(b":", 1)) for each in rest.split(b"\n") if b":" in each]
        scope = {
            "type": "http", "method": "GET", "path": path.decode(errors="replace"), "raw_path": path,
            "query_string": query, "headers": [(b"host", b"localhost"), *headers], "root_path": "",
            "client": ("127.0.0.1", 5), "server": ("localhost", 8600), "scheme": "http",
            "http_version": "1.1",
        }  # fmt: skip
        return loop.run(_status(app, scope))

    seeds = [
        b"/picture?run=latest&sort=name&find=a&page=0\nauthorization:Bearer abc\ncookie:fedgc_watch_8600=c",
        b"/round?round=1&run=latest",
        b"/page/page.js",
        b"/metrics?run=latest",
        b"/?token=0123456789abcdef",
    ]
    yield Decoder("request of the page", seeds, decode, 1)


async def _status(app: Any, scope: dict[str, Any]) -> int:
    found = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        found.append(message.get("status", 0))

    await app(scope, receive, send)
    return int(found[0])


# ---- all


@contextmanager
def decoders(folder: Path) -> Iterator[tuple[Decoder, ...]]:
    """Yield all decoders; their files are in this folder."""
    with ExitStack() as stack:
        yield (
            *_links(),
            *_secagg(),
            *_texts(),
            *_files(folder),
            *_script(folder, stack),
            *_store(folder, stack),
            *_page(folder, stack),
        )
