"""Test messages: each validates its fields when it is made."""

import dataclasses
import math
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgc import messages
from fedgc.errors import BadMessage
from fedgc.messages import (
    LARGEST_PACKET,
    SKETCH_NUMBERS,
    Adapter,
    Add,
    Advert,
    Announced,
    Begin,
    Close,
    Closing,
    Codeword,
    Command,
    Continue,
    Deal,
    Enrolled,
    Event,
    Failed,
    Fetched,
    Held,
    Initialize,
    Joined,
    Kept,
    Layout,
    Leaving,
    Loaded,
    Lost,
    Mix,
    ModelEvent,
    Offered,
    Open,
    Persist,
    Pool,
    Progress,
    Published,
    Refuse,
    Repair,
    Report,
    Reveal,
    Ring,
    Roster,
    Scored,
    Shares,
    Signed,
    Skip,
    StepsGranted,
    Stop,
    Survivors,
    Take,
    TensorSpec,
    Tick,
    ToClient,
    Uncover,
    Unmask,
    UpdateDue,
    Validate,
    Work,
)

MIX = Mix((3, 1), ((1.0, 0.5), (0.0, -2.0)))
SKETCH = (0.25,) * SKETCH_NUMBERS

ADAPTER = Adapter('{"r": 4}', ("w", ""), "v")
LAYOUT = Layout(
    (TensorSpec("weight", "float32", (2, 3)), TensorSpec("mean", "float32", (3,))), 1, "0f" * 32, ADAPTER
)
GOOD = (
    Held("left", 1),
    Kept(2, 3, 4, SKETCH),
    MIX,
    Ring(5, 16),
    Joined(1.0, "a", True, (Held("left", 1), Held("right", 5)), (Kept(0, 0, 1),)),
    Lost(1.0, "a"),
    Loaded(1.0, "a", 2, 0.5, 4),
    Failed(1.0, "a", 1, "out of memory", (0, 2)),
    Progress(1.0, "a", 1, 2, 3, 0.5, 10, 2.0, -1.5, SKETCH),
    Report(1.0, "a", 1, 3, 10, 0.5, 2.0, -1.5),
    Codeword(1.0, "a", 1, 0, 0.5, 4),
    Offered(1.0, "a", 1, 0),
    Leaving(1.0, "a", 20.0),
    Fetched(1.0, "a", 2, 400, 0.5),
    Closing(1.0, "a", 600.0),
    Closing(1.0, "a", 600.0, ((0.0, 600.0), (7200.0, 9000.0))),
    LAYOUT,
    LAYOUT.tensors[0],
    ADAPTER,
    Announced(1.0, "a", LAYOUT),
    Scored(1.0, "a", 2, 5, (("accuracy", 0.5),)),
    Enrolled(1.0, "a", bytes(32), 0, 0, bytes(64)),
    Advert(1.0, "a", 1, b"l"),
    Deal(1.0, "a", 1, b"l"),
    Signed(1.0, "a", 1, bytes(64)),
    Shares(1.0, "a", 1, b"l"),
    Published(1.0, 2, bytes(32)),
    Tick(1.0),
    Stop(1.0, "enough"),
    StepsGranted(1.0, "5f", 16, 32),
    UpdateDue(1.0),
    Pool(1, 2, (("a", ("left",)), ("b", ("right",)))),
    Work("a", 1, 0, 4, (2, 0), ((0, "left"), (2, "right")), 7, 60.0),
    Skip("a", 1, 0),
    Take("a", 1, (0,)),
    Continue("a", 1, 8, (2, 0), 60.0),
    Reveal("a", 1, 0, "coded", MIX),
    Repair("a", 1, 1, "b", MIX),
    Initialize("a"),
    Validate("a", 1, 2),
    Refuse("a", 1, "late"),
    Open("a", 1, b"l"),
    Roster("a", 1, b"l"),
    Begin("a", 1, b"l"),
    Survivors("a", 1, b"l"),
    Unmask("a", 1, b"l"),
    Persist("a", 1, b"r"),
    Close("a", 1, "synced", True),
    Add("a", 1, 0, (1.0, -0.5)),
    Uncover(1, ((bytes(32), True),)),
)

COUNTS = (
    "version", "chunk", "reached", "count", "round", "steps", "attempt", "size_bytes", "seed", "member",
    "epoch",
)  # fmt: skip
AMOUNTS = ("now", "seconds", "squared_norm", "lease_s", "grace_s")


def fields_named(*names: str) -> list[tuple[object, str]]:
    return [
        (message, field.name)
        for message in GOOD
        for field in dataclasses.fields(message)
        if field.name in names
    ]


def label(value: object) -> str:
    return value if isinstance(value, str) else type(value).__name__


def test_every_message_has_valid_example():
    said = {*get_args(Event | ModelEvent), *get_args(Command), Held, Kept, Mix, Pool, Ring, Persist}
    said |= {Layout, TensorSpec, Adapter}
    assert {type(message) for message in GOOD} == said


def test_every_message_is_frozen_slotted_comparable_and_hashable():
    for message in GOOD:
        assert dataclasses.replace(message) == message
        assert hash(dataclasses.replace(message)) == hash(message)
        assert not hasattr(message, "__dict__")
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(message, dataclasses.fields(message)[0].name, 1.0)


def test_every_event_has_time_and_every_command_has_client():
    for event in get_args(Event):
        assert "now" in {field.name for field in dataclasses.fields(event)}
    for command in get_args(Command):
        assert command is Uncover or "client" in {field.name for field in dataclasses.fields(command)}


def test_driver_only_messages_are_not_sent_over_links():
    assert set(get_args(Command)) - set(get_args(ToClient)) == {Add, Uncover}


def test_site_secrets_are_never_sent():
    assert Persist not in get_args(ToClient)


@pytest.mark.parametrize("message", [m for m in GOOD if hasattr(m, "packet")], ids=label)
def test_packet_size_fits_line_and_bytes_are_hidden(message):
    assert dataclasses.replace(message, packet=bytes(LARGEST_PACKET)).packet
    for size in (0, LARGEST_PACKET + 1):
        with pytest.raises(BadMessage, match=f"saw a packet of {size} bytes"):
            dataclasses.replace(message, packet=bytes(size))
    assert "packet" not in repr(message)


@pytest.mark.parametrize("name", ["", "a" * 101, "\x1b[2Jaccuracy", "accuracy\nround 9"])
def test_names_of_figures_can_be_shown(name):
    assert Scored(1.0, "a", 2, 5, (("Genauigkeit (Fläche)", 0.5),)).figures
    with pytest.raises(BadMessage, match="printable names of figures"):
        Scored(1.0, "a", 2, 5, ((name, 0.5),))


def test_signature_and_descriptor_have_fixed_length():
    for message, name in (
        (Signed(0.0, "a", 1, bytes(64)), "signature"),
        (Enrolled(0.0, "a", bytes(32), 0, 0, bytes(64)), "descriptor"),
        (Enrolled(0.0, "a", bytes(32), 0, 0, bytes(64)), "signature"),
    ):
        with pytest.raises(BadMessage, match=name):
            dataclasses.replace(message, **{name: bytes(63)})


@pytest.mark.parametrize(("message", "name"), fields_named(*COUNTS), ids=label)
def test_count_below_0_is_refused(message, name):
    with pytest.raises(BadMessage, match=f"needed ({name} of 0 or more|an attempt after the first)"):
        dataclasses.replace(message, **{name: -1})


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf, -1e-9])
@pytest.mark.parametrize(("message", "name"), fields_named(*AMOUNTS), ids=label)
def test_amount_is_finite_and_not_below_0(message, name, wrong):
    if isinstance(message, Report) and name == "squared_norm":
        return  # a gate leaves it out, and names its client
    with pytest.raises(BadMessage, match=f"needed a finite {name} of 0 or more"):
        dataclasses.replace(message, **{name: wrong})


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("message", [m for m in GOOD if hasattr(m, "loss")], ids=label)
def test_loss_is_finite_but_may_be_below_0(message, wrong):
    assert message.loss < 0
    with pytest.raises(BadMessage, match="needed a loss up to"):
        dataclasses.replace(message, loss=wrong)


@pytest.mark.parametrize("windows", [((5.0, 1.0),), ((-1.0, 2.0),), ((0.0, 1e6),), ((0.0, 1.0),) * 65])
def test_disordered_windows_are_refused(windows):
    with pytest.raises(BadMessage, match="windows of a week, in order"):
        Closing(1.0, "a", 600.0, windows)


@pytest.mark.parametrize("message", [m for m in GOOD if hasattr(m, "sketch")], ids=label)
def test_sketch_is_whole_and_finite_or_absent(message):
    assert dataclasses.replace(message, sketch=()).sketch == ()
    for length in (1, SKETCH_NUMBERS - 1, SKETCH_NUMBERS + 1):
        with pytest.raises(BadMessage, match="16 sketch numbers, or none"):
            dataclasses.replace(message, sketch=(0.0,) * length)
    for wrong in (math.nan, math.inf, -1e61):
        with pytest.raises(BadMessage, match="needed a sketch up to 1e\\+60"):
            dataclasses.replace(message, sketch=(*SKETCH[1:], wrong))


@pytest.mark.parametrize("event", [m for m in GOOD if type(m) in get_args(Event)], ids=label)
def test_client_event_names_client(event):
    if isinstance(event, Tick | Stop | Published | StepsGranted | UpdateDue):
        assert not hasattr(event, "client")
    else:
        with pytest.raises(BadMessage, match="needed a client"):
            dataclasses.replace(event, client="")


@pytest.mark.parametrize(
    ("message", "name"), [*fields_named("order"), (GOOD[7], "chunks"), (GOOD[4], "kept")], ids=label
)
def test_chunk_list_has_unique_non_negative_numbers(message, name):
    def listed(*chunks: int) -> object:
        return tuple(Kept(0, chunk, 1) for chunk in chunks) if name == "kept" else chunks

    assert getattr(dataclasses.replace(message, **{name: listed(2, 0)}), name) == listed(2, 0)
    with pytest.raises(BadMessage, match=f"each chunk once in {name}"):
        dataclasses.replace(message, **{name: listed(2, 0, 2)})
    with pytest.raises(BadMessage, match=r"chunks? of 0 or more"):
        dataclasses.replace(message, **{name: listed(-1)})


def test_held_chunk_has_name_and_at_least_one_sample():
    with pytest.raises(BadMessage, match="a chunk's name"):
        Held("", 1)
    for samples in (0, -1):
        with pytest.raises(BadMessage, match="at least one sample"):
            Held("left", samples)


def test_joining_client_has_name_and_unique_chunks():
    with pytest.raises(BadMessage, match="needed a client"):
        Joined(0.0, "", True, ())
    with pytest.raises(BadMessage, match="each chunk once"):
        Joined(0.0, "a", True, (Held("left", 1), Held("left", 2)))
    assert Joined(0.0, "a", False, ()).holds == ()


@pytest.mark.parametrize(
    ("chunks", "matrix", "needed"),
    [
        ((), (), "one row for each of at least one chunk"),
        ((1,), (), "one row for each of at least one chunk"),
        ((1,), ((1.0,), (1.0,)), "one row for each of at least one chunk"),
        ((1, 1), ((1.0,), (1.0,)), "each chunk once"),
        ((-1,), ((1.0,),), "chunks of 0 or more"),
        ((1,), ((),), "rows of one length"),
        ((1, 2), ((1.0,), (1.0, 2.0)), "rows of one length"),
        ((1,), ((math.nan,),), "finite factors"),
        ((1, 2), ((1.0,), (math.inf,)), "finite factors"),
    ],
)
def test_mix_has_one_finite_equal_length_row_per_chunk(chunks, matrix, needed):
    with pytest.raises(BadMessage, match=needed):
        Mix(chunks, matrix)


@given(
    chunks=st.lists(st.integers(0, 50), min_size=1, max_size=6, unique=True),
    blocks=st.integers(1, 5),
    factor=st.floats(-1e6, 1e6),
)
def test_mix_gives_number_of_blocks(chunks, blocks, factor):
    assert Mix(tuple(chunks), ((factor,) * blocks,) * len(chunks)).blocks == blocks


def test_work_has_target_and_name_per_chunk_in_order():
    work = Work("a", 1, 0, 1, (0,), ((0, "left"), (1, "may be asked for")), 0, 1.0)
    assert not work.lockstep
    with pytest.raises(BadMessage, match="a name for every chunk"):
        dataclasses.replace(work, order=(0, 2))
    for names in (((0, "left"), (1, "left")), ((0, "left"), (0, "right"))):
        with pytest.raises(BadMessage, match="each chunk once in names"):
            dataclasses.replace(work, names=names)
    for message in (work, Continue("a", 1, 1, (), 1.0)):
        for target in (0, -1):
            with pytest.raises(BadMessage, match="a target of at least one step"):
                dataclasses.replace(message, target=target)


@pytest.mark.parametrize("kind", get_args(messages.Kind))
def test_reveal_has_mix_exactly_for_coded_work(kind):
    right, wrong = (MIX, None) if kind == "coded" else (None, MIX)
    ring, none = (Ring(5, 8), None) if kind == "masked" else (None, Ring(5, 8))
    assert Reveal("a", 1, 0, kind, right, ring=ring).mix is right
    with pytest.raises(BadMessage, match="a mix exactly for coded work"):
        Reveal("a", 1, 0, kind, wrong, ring=ring)
    with pytest.raises(BadMessage, match="a ring exactly for a masked vector"):
        Reveal("a", 1, 0, kind, right, ring=none)


def test_ring_words_have_supported_bits():
    for words, bits in ((0, 8), (5, 24), (5, 0)):
        with pytest.raises(BadMessage, match="needed"):
            Ring(words, bits)


def test_repair_attempt_is_after_first():
    with pytest.raises(BadMessage, match="an attempt after the first"):
        Repair("a", 1, 0, "b", MIX)


def test_add_has_finite_weight_per_block():
    with pytest.raises(BadMessage, match="a weight for each block"):
        Add("a", 1, 0, ())
    for wrong in (math.nan, math.inf):
        with pytest.raises(BadMessage, match="finite weights"):
            Add("a", 1, 0, (1.0, wrong))


def test_refusal_shows_message_and_required_value():
    with pytest.raises(BadMessage) as caught:
        Skip("client 7", -3, 0)
    assert (
        str(caught.value)
        == "Skip(client='client 7', round=-3, chunk=0): needed round of 0 or more, at most 1e+15"
    )


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Held("a", 10**400), "at least one sample"),
        (lambda: TensorSpec("a", "float32", (1,) * 65), "at most 64 sides"),
        (
            lambda: dataclasses.replace(next(m for m in GOOD if isinstance(m, Progress)), seconds=1e200),
            "seconds",
        ),
        (
            lambda: dataclasses.replace(next(m for m in GOOD if isinstance(m, Progress)), samples=10**30),
            "samples",
        ),
    ],
)
def test_overflowing_client_claim_is_refused(make, said: str):
    with pytest.raises(BadMessage, match=said):
        make()


@pytest.mark.parametrize(
    ("values", "needed"),
    [
        ((0, 1, (("a", ("left",)),)), "one client that gives at least, and no more than all"),
        ((2, 1, (("a", ("left",)),)), "one client that gives at least, and no more than all"),
        ((1, 0, (("a", ("left",)),)), "at least one sample"),
        ((1, 1, (("a", ("left",)), ("a", ("right",)))), "each client once"),
        ((1, 1, (("a", ()),)), "a chunk for every client"),
    ],
)
def test_pool_has_givers_and_chunks(values, needed):
    with pytest.raises(BadMessage, match=needed):
        Pool(*values)


def test_pool_client_is_in_pool():
    pool = Pool(1, 1, (("b", ("left",)),))
    with pytest.raises(BadMessage, match="the client in its pool"):
        Work("a", 1, 0, 1, (0,), ((0, "left"),), 0, 1.0, kind="local", pool=pool)
