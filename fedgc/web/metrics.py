"""A run in Prometheus's format, read from the store at each request.

Counters are the store's totals over the run, so that they continue after a restart of the server. Clients are
counted by their totals at the task, which survive folding.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from fedgc.messages import SUMMED
from fedgc.store.database import Store
from fedgc.store.liveness import state_of
from fedgc.store.views import MeasuredSpeeds, Round, Run, Stretch
from fedgc.web.next_plan import WantedClients
from fedgc.web.snapshot import now_of

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST
_OF_CLIENT: Final = ("client", "name", "site")


def exposition(store: Store, key: str, wanted: WantedClients) -> bytes:
    """Return the metrics of a run in Prometheus's text format; `wanted` counts the clients worth having."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Reading(store, key, wanted))
    return generate_latest(registry)


class _Reading(Collector):
    """Collects metrics, with one read of the store per request."""

    def __init__(self, store: Store, key: str, wanted: WantedClients) -> None:
        self._store = store
        self._key = key
        self._wanted = wanted

    def collect(self) -> Iterable[Metric]:
        """Return every metric."""
        run = self._store.run(self._key)
        totals = self._store.stretches(run.run, 1)
        last = self._store.rounds(run.run, after=(run.last_round or 0) - 1)
        yield from _of_run(run)
        says = "Clients worth having: each shortens the round."
        yield from _gauge("clients_wanted", says, run.run, self._wanted.of(self._store, run))
        if totals:
            yield from _of_rounds(run.run, totals[0])
        if last:
            yield from _of_last_round(run.run, last[-1])
        yield from _of_clients(self._store.paces(run.task))
        yield from _of_scores(self._store, run)


def _gauge(name: str, says: str, run: str, value: float | None) -> Iterator[Metric]:
    if value is not None:
        family = GaugeMetricFamily(f"fedgc_{name}", says, labels=["run"])
        family.add_metric([run], value)
        yield family


def _of_run(run: Run) -> Iterator[Metric]:
    about = GaugeMetricFamily("fedgc_run_info", "The run: 1.", labels=["run", "task", "state"])
    state = state_of(run)
    about.add_metric([run.run, run.task, state], 1.0)
    yield about
    yield from _gauge("run_started_timestamp_seconds", "When the run began.", run.run, run.started)
    yield from _gauge("run_heard_timestamp_seconds", "When it last gave a sign of life.", run.run, run.heard)
    wanted = run.settings.get("rounds")
    yield from _gauge("rounds_wanted", "Rounds to run.", run.run, wanted if isinstance(wanted, int) else None)
    here = now_of(run, ()).present if state == "running" else 0
    yield from _gauge("clients_present", "Clients that are there.", run.run, here)


def _of_rounds(run: str, total: Stretch) -> Iterator[Metric]:
    rounds = CounterMetricFamily("fedgc_rounds", "Rounds that are over.", labels=["run", "outcome"])
    others = total.rounds - total.synced - total.approximate - total.skipped
    for outcome in ("synced", "approximate", "skipped"):
        rounds.add_metric([run, outcome], getattr(total, outcome))
    rounds.add_metric([run, "empty or stopped"], others)
    yield rounds
    moved = CounterMetricFamily("fedgc_bytes", "Bytes that crossed the line.", labels=["run", "direction"])
    for direction in ("up", "down", "control"):
        moved.add_metric([run, direction], getattr(total, f"{direction}_bytes"))
    yield moved
    chunks = CounterMetricFamily("fedgc_chunks", "Finished replicas of chunks.", labels=["run", "result"])
    chunks.add_metric([run, "counted"], total.counted)
    chunks.add_metric([run, "discarded"], total.finished - total.counted)
    yield chunks
    spent = CounterMetricFamily("fedgc_round_seconds", "Seconds spent in rounds.", labels=["run", "phase"])
    spent.add_metric([run, "working"], total.working_s)
    spent.add_metric([run, "collecting"], total.collecting_s)
    yield spent
    repairs = CounterMetricFamily("fedgc_repairs", "Lost uploads made good by others.", labels=["run"])
    repairs.add_metric([run], total.repairs)
    yield repairs
    measured = GaugeMetricFamily("fedgc_measure", "What the model was worth.", labels=["run", "measure"])
    for name, value in sorted(total.metrics.items()):
        measured.add_metric([run, name], value)
    yield measured


def _of_last_round(run: str, last: Round) -> Iterator[Metric]:
    row = last.row
    yield from _gauge("round", "The newest round that is over.", run, row.round)
    yield from _gauge("model_version", "The newest model.", run, row.version + (row.outcome in SUMMED))
    yield from _gauge("last_round_working_seconds", "Its working phase.", run, row.working_s)
    yield from _gauge("last_round_collecting_seconds", "Its collecting phase.", run, row.collecting_s)
    yield from _gauge("last_round_missing_chunks", "Chunks that its sum lacks.", run, len(row.short))
    yield from _gauge("last_round_blocks", "Parts that an update was cut in.", run, row.blocks)
    yield from _gauge("last_round_amplification", "Of noise, by its code.", run, row.amplification)
    yield from _gauge("loss", "Mean loss over its chunks.", run, row.loss)


def _of_scores(store: Store, run: Run) -> Iterator[Metric]:
    scores, best = store.last_scores(run.run), store.best(run.run)
    names = {each.client: (each.name, each.site) for each in store.clients()}
    labels = ["run", *_OF_CLIENT, "measure"]
    family = GaugeMetricFamily("fedgc_client_measure", "The model on a client's data.", labels=labels)
    for each in scores:
        for name, value in sorted(each.metrics.items()):
            family.add_metric([run.run, each.client, *names.get(each.client, ("", "")), name], value)
    if scores:
        yield family
    if best is not None:
        yield from _gauge("best_model_version", "The best model so far.", run.run, best.version)
        yield from _gauge("best_model_measure", "Its figure of validate.best.", run.run, best.value)


def _of_clients(paces: Iterable[MeasuredSpeeds]) -> Iterator[Metric]:
    step = GaugeMetricFamily("fedgc_client_step_seconds", "Median of late steps.", labels=_OF_CLIENT)
    seen = GaugeMetricFamily("fedgc_client_seen_timestamp_seconds", "When last seen.", labels=_OF_CLIENT)
    finished = CounterMetricFamily("fedgc_client_finished_chunks", "Chunks it finished.", labels=_OF_CLIENT)
    counted = CounterMetricFamily("fedgc_client_counted_chunks", "Of these, in a sum.", labels=_OF_CLIENT)
    failures = CounterMetricFamily("fedgc_client_failures", "Rounds in which it failed.", labels=_OF_CLIENT)
    for pace in paces:
        words = [pace.client.client, pace.client.name, pace.client.site]
        if pace.speed is not None:
            step.add_metric(words, pace.speed.step_s)
        seen.add_metric(words, pace.client.last_seen)
        finished.add_metric(words, pace.finished)
        counted.add_metric(words, pace.counted)
        failures.add_metric(words, pace.failures)
    yield from (step, seen, finished, counted, failures)
