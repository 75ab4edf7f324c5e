"""Test what a run needs: it grows with the state, the codec and the rule, and memory not with clients."""

import pytest

from fedgc.config import RunConfig, requirements
from fedgc.errors import Unusable

GIGABYTE = 250_000_000  # numbers
PLAIN = requirements(RunConfig(), GIGABYTE, 3)


def needs(clients: int = 3, **settings):
    return requirements(RunConfig(**settings), GIGABYTE, clients)


def test_memory_does_not_grow_with_clients():
    many = needs(clients=1000)
    assert (many.server_memory, many.client_memory) == (PLAIN.server_memory, PLAIN.client_memory)
    assert many.server_disk < 2 * PLAIN.server_disk


def test_rule_that_collects_needs_disk_for_every_client():
    assert needs(clients=1000, aggregator="median").server_scratch > 1000 * PLAIN.model
    assert needs(clients=1000, aggregator="median", clients_per_round=3).server_scratch < 10 * PLAIN.model
    assert needs(clients=1000, aggregator="weighted-mean", rollback="off").server_scratch == 2 * PLAIN.model


@pytest.mark.parametrize(("rule", "models"), [("sgd", 0), ("nesterov", 1), ("adam", 2)])
def test_state_of_optimizer_is_counted(rule: str, models: int):
    found = needs(server_optimizer=rule)
    assert found.server_memory - PLAIN.server_memory == 3 * models * PLAIN.model
    assert found.checkpoints == (1 + models) * PLAIN.checkpoints


def test_average_of_schedule_free_is_counted_where_it_is_evaluated():
    average, other = needs(server_optimizer="schedule-free"), needs(server_optimizer="nesterov")
    assert average.server_memory - other.server_memory == PLAIN.model
    assert average.checkpoints == other.checkpoints


def test_codec_shortens_uploads_and_costs_memory():
    found = needs(codec="int8")
    assert found.up < 0.3 * PLAIN.up
    assert found.down == PLAIN.down
    assert found.client_memory > PLAIN.client_memory


def test_fragments_and_download_codec_shorten_exchanges():
    parts = needs(fragments=4, link="session")
    assert (4 * parts.up, 4 * parts.down) == (PLAIN.up, PLAIN.down)
    short = needs(download_codec="int8")
    assert short.down < 0.3 * PLAIN.down
    assert short.server_memory > PLAIN.server_memory, "what differences leave out is kept"


def test_evaluation_on_server_needs_module():
    assert PLAIN.server_memory - needs(evaluate_every=0).server_memory == PLAIN.model
    assert needs(script="train.py").server_memory == needs(evaluate_every=0).server_memory


@pytest.mark.parametrize(("rule", "models"), [("sgd", 1), ("adam", 3)])
def test_models_to_go_back_to_need_disk(rule: str, models: int):
    kept, none = (needs(server_optimizer=rule, rollback=each).server_scratch for each in ("auto", "off"))
    assert kept - none == 2 * models * PLAIN.model
    unevaluated = needs(server_optimizer=rule, evaluate_every=0).server_scratch
    assert (
        needs(server_optimizer=rule, rollback="off", evaluate_every=0).server_scratch == unevaluated == none
    )


def test_run_without_checkpoints_or_momentum_needs_less():
    assert needs(keep_checkpoints=0).checkpoints == 0
    assert PLAIN.client_memory - needs(shared_momentum="off").client_memory == PLAIN.model


def test_coded_work_is_refused():
    with pytest.raises(Unusable, match="saw open coded work, needed open local work"):
        needs(work="coded")
