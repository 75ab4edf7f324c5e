"""Test which clients may take part in a run whose clients bring the model."""

import pytest

from fedgc.messages import Announced, Initialize, Layout, Refuse, TensorSpec
from fedgc.run.initialization import Initialization

TENSORS = (TensorSpec("lora_A", "float32", (2, 3)),)
ONE, OTHER = "0123456789abcdef" * 4, "fedcba9876543210" * 4


def announced(client: str, frozen: str) -> Announced:
    return Announced(0.0, client, Layout(TENSORS, 1, frozen))


@pytest.mark.parametrize(("seen", "shown"), [(OTHER, "fedcba987654"), ("", "none")])
def test_client_with_other_base_is_refused_with_both_digests(seen: str, shown: str):
    start = Initialization()
    assert start.handle(announced("a", ONE)) == (Initialize("a"),)
    (refusal,) = start.handle(announced("b", seen))
    assert isinstance(refusal, Refuse)
    assert (refusal.client, refusal.round) == ("b", 0)
    assert (
        f"the run's, which a has: frozen parameters: saw digest {shown}, needed 0123456789ab"
        in refusal.reason
    )
    assert "; load the same base model" in refusal.reason
    assert start.last_refusal == f"b was refused: {refusal.reason}"


def test_client_that_comes_back_with_right_base_takes_part():
    start = Initialization(Layout(TENSORS, 1, ONE))
    start.handle(announced("b", OTHER))
    assert not any(isinstance(each, Refuse) for each in start.handle(announced("b", ONE)))
    assert not start.last_refusal


def test_source_that_is_started_again_is_asked_again():
    start = Initialization()
    assert start.handle(announced("a", ONE)) == (Initialize("a"),)
    assert start.handle(announced("b", ONE)) == ()
    assert start.handle(announced("a", ONE)) == (Initialize("a"),)
    assert start.handle(announced("b", ONE)) == ()
    assert start.without("a") == (Initialize("b"),)
    assert start.without("b") == (), "b was asked once"


def test_reason_repeats_foreign_names_shortened_and_printable():
    start = Initialization(Layout(TENSORS, 1))
    name = "weight\n\x1b[31mERROR" + 900 * "x"
    spec = TensorSpec(name, "float32", 64 * (1 << 40,))
    (refusal,) = start.handle(Announced(0.0, "b", Layout((spec,), 1)))
    assert isinstance(refusal, Refuse)
    assert refusal.reason.isprintable()
    assert "saw weight [31mERRORxxx" in refusal.reason
    assert "needed lora_A float32[2, 3]" in refusal.reason
    assert len(start.last_refusal) < 400
