"""What Prometheus reads, parsed by its own parser, against the store."""

from prometheus_client.parser import text_string_to_metric_families

from fedgc.store.records import Begun, Present
from fedgc.web.metrics import exposition
from tests.web.run_of_four import NAMES, START


def samples(said: bytes) -> dict[tuple[str, frozenset], float]:
    families = text_string_to_metric_families(said.decode())
    return {
        (one.name, frozenset(one.labels.items())): one.value for family in families for one in family.samples
    }


def test_counters_are_the_totals_of_the_run(told):
    found, rounds = samples(exposition(told, "latest")), told.rounds("spring")
    run = ("run", "spring")
    for outcome in ("synced", "skipped"):
        count = sum(each.row.outcome == outcome for each in rounds)
        assert found["fedgc_rounds_total", frozenset({run, ("outcome", outcome)})] == count
    for direction in ("up", "down", "control"):
        sent = sum(getattr(each, f"{direction}_bytes") for each in rounds)
        assert found["fedgc_bytes_total", frozenset({run, ("direction", direction)})] == sent
    counted = sum(each.counted for each in rounds)
    assert found["fedgc_chunks_total", frozenset({run, ("failure", "counted")})] == counted
    assert found["fedgc_loss", frozenset({run})] == rounds[-1].row.loss
    assert found["fedgc_clients_present", frozenset({run})] == 3


def test_every_client_has_its_step_and_its_failures(told):
    found = samples(exposition(told, "spring"))
    for pace in told.paces("digits"):
        words = {"client": pace.client.client, "name": NAMES[pace.client.client], "site": "north"}
        at = frozenset(words.items())
        assert found["fedgc_client_failures_total", at] == pace.failures
        assert pace.speed is not None
        assert found["fedgc_client_step_seconds", at] == pace.speed.step_s


def test_a_state_that_another_version_wrote_does_not_stop_the_metrics(told):
    told.write(Present(START + 99, "spring", {"clients": ["aa", {"name": "x"}]}))
    assert samples(exposition(told, "spring"))["fedgc_clients_present", frozenset({("run", "spring")})] == 0


def test_a_run_without_rounds_has_metrics_too(empty):
    empty.write(Begun(START, "new", {"task": "digits"}))
    found = samples(exposition(empty, "new"))
    words = {"run": "new", "task": "digits", "state": "running"}
    assert found["fedgc_run_info", frozenset(words.items())] == 1
