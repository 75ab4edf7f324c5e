"""Test Prometheus metrics with Prometheus's own parser against the store."""

from prometheus_client.parser import text_string_to_metric_families

from fedgc.config import RunConfig
from fedgc.store.liveness import this_process
from fedgc.store.records import Begun, Decided, Ended, Present, Scored, Seen
from fedgc.store.work import settled
from fedgc.web.metrics import exposition
from fedgc.web.next_plan import WantedClients
from tests.web.run_of_four import NAMES, START


def samples(said: bytes) -> dict[tuple[str, frozenset], float]:
    families = text_string_to_metric_families(said.decode())
    return {
        (one.name, frozenset(one.labels.items())): one.value for family in families for one in family.samples
    }


def test_counters_are_totals_of_run(told):
    found, rounds = samples(exposition(told, "latest", WantedClients())), told.rounds("spring")
    run = ("run", "spring")
    for outcome in ("synced", "skipped"):
        count = sum(each.row.outcome == outcome for each in rounds)
        assert found["fedgc_rounds_total", frozenset({run, ("outcome", outcome)})] == count
    for direction in ("up", "down", "control"):
        sent = sum(getattr(each, f"{direction}_bytes") for each in rounds)
        assert found["fedgc_bytes_total", frozenset({run, ("direction", direction)})] == sent
    _, counted = settled(rounds, local=False)
    assert found["fedgc_chunks_total", frozenset({run, ("result", "counted")})] == counted
    assert found["fedgc_loss", frozenset({run})] == rounds[-1].row.loss
    assert found["fedgc_clients_present", frozenset({run})] == 3


def test_no_client_is_present_once_run_is_over(told):
    told.write(Ended(START + 99, "spring", "completed"))
    found = samples(exposition(told, "spring", WantedClients()))
    assert found["fedgc_clients_present", frozenset({("run", "spring")})] == 0


def test_crashed_server_is_no_running_run(told):
    gone = {"server": {**this_process().words(), "began": 0}, "clients": {"aa": {"present": True}}}
    told.write(Present(START + 99, "spring", gone))
    found = samples(exposition(told, "spring", WantedClients()))
    words = {"run": "spring", "task": "digits", "state": "crashed"}
    assert found["fedgc_run_info", frozenset(words.items())] == 1
    assert found["fedgc_clients_present", frozenset({("run", "spring")})] == 0


def test_every_client_has_step_and_failure_metrics(told):
    found = samples(exposition(told, "spring", WantedClients()))
    for pace in told.paces("digits"):
        words = {"client": pace.client.client, "name": NAMES[pace.client.client], "site": "north"}
        at = frozenset(words.items())
        assert found["fedgc_client_failures_total", at] == pace.failures
        assert pace.speed is not None
        assert found["fedgc_client_step_seconds", at] == pace.speed.step_s


def test_state_of_other_version_does_not_stop_metrics(told):
    told.write(Present(START + 99, "spring", {"clients": ["aa", {"name": "x"}]}))
    assert (
        samples(exposition(told, "spring", WantedClients()))[
            "fedgc_clients_present", frozenset({("run", "spring")})
        ]
        == 0
    )


def test_wanted_clients_are_computed_once_per_minute(told, monkeypatch):
    wanted, run = WantedClients(), frozenset({("run", "spring")})
    first = samples(exposition(told, "spring", wanted))["fedgc_clients_wanted", run]
    assert first > 3, "16 chunks of 2 replicas are work for more than the three that are there"
    monkeypatch.setattr("fedgc.web.next_plan.clients_wanted", lambda *_: 1)
    assert samples(exposition(told, "spring", wanted))["fedgc_clients_wanted", run] == first
    assert samples(exposition(told, "spring", WantedClients()))["fedgc_clients_wanted", run] == 1


def test_wanted_clients_of_several_runs_are_kept(told, monkeypatch):
    told.write(Begun(START, "other", RunConfig(task="digits", work="coded").table()))
    wanted, run = WantedClients(), frozenset({("run", "spring")})
    first = samples(exposition(told, "spring", wanted))["fedgc_clients_wanted", run]
    monkeypatch.setattr("fedgc.web.next_plan.clients_wanted", lambda *_: 1)
    exposition(told, "other", wanted)
    assert samples(exposition(told, "spring", wanted))["fedgc_clients_wanted", run] == first
    monkeypatch.setattr("fedgc.web.next_plan.RUNS_KEPT", 1)
    told.write(Begun(START, "third", RunConfig(task="digits", work="coded").table()))
    for each in ("third", "other", "spring"):
        exposition(told, each, wanted)
    assert samples(exposition(told, "spring", wanted))["fedgc_clients_wanted", run] == 1


def test_local_work_wants_no_clients(empty):
    empty.write(Begun(START, "new", RunConfig(task="digits").table()))
    empty.write(Seen(START, "aa", "quick"))
    names = {name for name, _ in samples(exposition(empty, "new", WantedClients()))}
    assert "fedgc_clients_wanted" not in names


def test_run_without_rounds_has_metrics(empty):
    empty.write(Begun(START, "new", {"task": "digits"}))
    found = samples(exposition(empty, "new", WantedClients()))
    words = {"run": "new", "task": "digits", "state": "running"}
    assert found["fedgc_run_info", frozenset(words.items())] == 1


def test_figures_of_clients_and_best_model_are_metrics(told):
    client, name = next(iter(NAMES.items()))
    told.write(Scored(START, "spring", 3, client, 10, {"accuracy": 0.7}))
    basis = {"figure": "accuracy", "version": 3, "round": 3, "value": 0.7}
    told.write(Decided(START, "spring", 3, "best", basis))
    found = samples(exposition(told, "spring", WantedClients()))
    words = {"run": "spring", "client": client, "name": name, "site": "north", "measure": "accuracy"}
    assert found["fedgc_client_measure", frozenset(words.items())] == 0.7
    assert found["fedgc_best_model_version", frozenset({("run", "spring")})] == 3
    assert found["fedgc_best_model_measure", frozenset({("run", "spring")})] == 0.7
