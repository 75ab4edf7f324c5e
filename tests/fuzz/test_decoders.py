"""Test every decoder with mutated inputs; `make fuzz` tries a million of other seeds."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from fedgc.config.names import flat
from fedgc.deploy.app_folder import MANIFEST, app_in
from fedgc.errors import BadSetting, EdgeFailed, FedgcError, Unusable
from fedgc.store import checkpoint
from fedgc.store.columns import counts_in, mapping_in, metrics_in
from fedgc.training.loop.environment import VARIABLE, ScriptEnvironment
from tests.fuzz.decoders import decoders
from tests.fuzz.decoding import CONSTANT, Decoder, check, decode, traced

INPUTS = 6_000
DEEP = 5000  # nested more deeply than Python's stack


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sequence[Decoder]]:
    with decoders(tmp_path_factory.mktemp("decoders")) as found:
        yield found


@pytest.mark.filterwarnings("ignore")  # numpy's, of the numbers in damaged files
def test_mutated_inputs_are_read_or_refused(every: Sequence[Decoder]) -> None:
    for seed in range(INPUTS):
        decode(every, seed)


def test_valid_encodings_are_read(every: Sequence[Decoder]) -> None:
    for decoder in every:
        read = [_reads(decoder, seed) for seed in decoder.seeds]
        assert any(read) or decoder.name in ("codeword of an answer", "lines of a script"), decoder.name


def _reads(decoder: Decoder, seed: bytes) -> bool:
    try:
        decoder.decode(seed)
    except FedgcError:
        return False
    return True


def test_check_finds_foreign_errors_and_greed() -> None:
    with pytest.raises(AssertionError, match="raised ValueError"):
        check(Decoder("number", [], int), b"x")
    with traced(), pytest.raises(AssertionError, match="1 bytes took"):
        check(Decoder("greedy", [], lambda _: bytes(2 * CONSTANT)), b"x")
    check(Decoder("lax", [], lambda _: bytes(2 * CONSTANT)), b"x")


def test_header_length_of_checkpoint_is_bounded_by_its_file(tmp_path: Path) -> None:
    path = tmp_path / "model-0000000001.fedgc"
    path.write_bytes(checkpoint.MAGIC + (1 << 27).to_bytes(8, "little") + b"{}")
    with pytest.raises(Unusable, match=r"saw a header of 134217728 bytes, needed at most \d\d"):
        checkpoint.load(tmp_path)


def test_settings_nested_too_deeply_are_refused(tmp_path: Path) -> None:
    table: dict[str, object] = {}
    for _ in range(DEEP):
        table = {"a": table}
    with pytest.raises(BadSetting, match="nested deeper than"):
        dict(flat(table))
    (tmp_path / MANIFEST).write_text("a = " + "[" * DEEP)
    with pytest.raises(Unusable, match="cannot be read"):
        app_in(tmp_path)


def test_environment_nested_too_deeply_is_refused() -> None:
    with pytest.raises(EdgeFailed, match="which no client of fedgc writes"):
        ScriptEnvironment.read({VARIABLE: "[" * 10 * DEEP})


@pytest.mark.parametrize("text", ["", "{", "[" * 10 * DEEP, "7", '"x"', "null", "1" * DEEP])
def test_damaged_column_is_empty(text: str) -> None:
    assert (dict(mapping_in(text)), metrics_in(text), counts_in(text)) == ({}, {}, ())
