"""Test that a client keeps to the policy of its site: at joining, in exchanges, for figures and hours."""

import hashlib
import io
import json
import os
import re
import tempfile
import time
import tomllib
import zipfile
from dataclasses import replace
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from flwr.app import Context, RecordDict

from fedgc.config import RunConfig
from fedgc.deploy.local_federation import write_app
from fedgc.errors import NotAllowed, Unusable
from fedgc.flower import app_bundle, app_guard
from fedgc.flower.client import _client
from fedgc.flower.client_loop import LEFT
from fedgc.flower.departure import Departure
from fedgc.flower.message_work import MessageWork
from fedgc.flower.site_policy import SitePolicy, request_of, site_policy
from fedgc.links.byte_counts import Amounts
from fedgc.links.message.packets import Packet, write_packet
from fedgc.messages import (
    Close,
    Failed,
    Leaving,
    Lost,
    Progress,
    Report,
    Reveal,
    Scored,
    Survivors,
    Unmask,
    Work,
)
from fedgc.policy import SentApp, Totals, check, read_policy, verify
from fedgc.policy.digests import app_digest, files_in_bundle, task_digest
from fedgc.secagg import Federation, Privacy, Quantizer
from fedgc.secagg.federation import member_list
from fedgc.secagg.renyi import Release
from fedgc.training import CacheFiles
from tests.config_of import config_of
from tests.flower.test_client_loop import serving, work
from tests.links.conftest import WAIT_S

RUN = "ward@7"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return tmp_path / "site.toml"


def policy_of(site: Path, text: str, now: float | None = None) -> SitePolicy:
    site.write_text(text)
    request = request_of(RunConfig(), RUN, None)
    return SitePolicy(read_policy(site), "north", request, (lambda: now) if now else time.time)


def logged(site: Path) -> list[dict[str, object]]:
    log = site.with_name("site.audit.jsonl")
    assert verify(log).lines
    return [json.loads(line) for line in log.read_text().splitlines()]


def context_of(node: dict[str, object], **settings: object) -> Context:
    return Context(1, 2, {"name": "north", **node}, RecordDict(), settings)


def test_refused_run_names_rule_before_its_code_runs(site: Path, tmp_path: Path):
    site.write_text('[allow]\ntasks = ["digits"]\n')
    context = context_of({"policy": str(site), "identity": str(tmp_path / "key")}, task="no.such.module:task")
    with pytest.raises(NotAllowed) as refused, _client(context, None, RUN):
        pass
    said = "client north: site.toml, line 2 (allow.tasks): saw the task 'no.such.module:task', digest unknown"
    assert str(refused.value).startswith(said)
    assert refused.value.client
    assert [(each["what"], each["run"]) for each in logged(site)] == [("refused", "ward")]


def test_contradicting_policy_refuses_every_run(site: Path, tmp_path: Path):
    site.write_text("[limits]\nbytes-per-day = 0\n")
    context = context_of({"policy": str(site), "identity": str(tmp_path / "key")})
    with pytest.raises(Unusable, match=r"line 2 \(limits.bytes-per-day\)"), _client(context, None, RUN):
        pass


def test_limits_hold_over_restarts(site: Path):
    text = "[limits]\nexchanges-per-day = 2\nbytes-per-day = 1000\n"
    first = policy_of(site, text)
    first.admit()
    first.send(1, 400)
    first.moved(Amounts(up_bytes=400, down_bytes=150))
    first.settle(1)
    again = policy_of(site, text)
    again.admit()
    with pytest.raises(NotAllowed, match=r"bytes-per-day\): saw 1001 today with one more") as refused:
        again.send(2, 451)
    assert 0 < refused.value.again_s <= 90_000
    again.send(2, 450)
    with pytest.raises(NotAllowed, match="exchanges-per-day"):
        again.admit()
    kinds = [each["what"] for each in logged(site)]
    assert kinds == ["joined", "exchange", "round", "joined", "refused", "exchange", "refused"]


def masked_policy(site: Path, text: str, run: str = RUN, key: int = 0) -> SitePolicy:
    """Return the policy for a masked run whose sites add noise; the descriptor is another for each `key`."""
    site.write_text(text)
    members = member_list([(name, bytes([number + key]) * 32) for number, name in enumerate("abc")])
    pinned = Federation(members, 3, 3, 8, Quantizer(1.0, 20, 32, 10), Privacy(1.0, 4.0, 20, 1e-6))
    config = config_of({"secrecy": "masked", "federation": "all.fed", "work": "local"})
    return SitePolicy(read_policy(site), "north", request_of(config, run, pinned))


def test_update_of_round_zero_is_charged(site: Path):
    """The numbers of rounds are the server's."""
    policy = masked_policy(site, "[privacy]\nepsilon = 1.5\n")
    policy.send_first_model(100)
    policy.send(0, 100)
    with pytest.raises(NotAllowed, match=r"privacy\.epsilon"):
        policy.send(0, 100)
    told = [(each["what"], each["secrecy"], each["noise"]) for each in logged(site)]
    assert told == [("exchange", "open", 0.0), ("exchange", "masked", 4.0), ("refused", "masked", 0.0)]


def test_runs_of_descriptor_share_releases_that_it_declares(site: Path):
    """Another descriptor is charged on top, at joining and for each update."""
    text = "[privacy]\nepsilon = 6.0\ndelta = 1e-6\n"  # 20 releases with noise 4 spend 5.927
    first, second = masked_policy(site, text), masked_policy(site, text, "second@8")
    other = masked_policy(site, text, "third@9", key=3)
    other.admit()
    first.admit()
    for number in range(4):
        first.send(number, 100)
    second.admit()
    said = (
        r"\(privacy\.epsilon\): saw a descriptor of 20 releases with noise 4, after which all runs have spent"
    )
    with pytest.raises(NotAllowed, match=rf"{said} 6\.58, needed at most 6"):
        other.admit()
    for number in range(16):
        second.send(number, 100)
    first.admit()
    for spender in (first, second, other):
        with pytest.raises(NotAllowed, match="with this update, needed at most 6"):
            spender.send(20, 100)
    assert len({each["descriptor"] for each in logged(site)}) == 2


def test_site_ends_exchange_whose_update_was_last_of_day(site: Path, tmp_path: Path):
    """Over Flower messages each packet finds a new process; the others have sent their updates too."""
    site.write_text("[limits]\nexchanges-per-day = 1\n")
    node = {"policy": str(site), "identity": str(tmp_path / "key"), "cache": str(tmp_path / "cache")}
    context = context_of(node, task="digits")

    def admitted(order: tuple[int, ...], *commands: object) -> None:
        job = Work("north", 1, 0, 4, order, ((0, "chunk-0"),), 7, 60.0)
        content = write_packet(Packet(RUN, bytes(16), 60.0, (job, *commands)))
        with _client(context, None, RUN, content) as client:
            if order:
                client.policy.send(1, 400)

    ends = (Survivors("north", 1, b"packet"), Unmask("north", 1, b"packet"))
    admitted((0,))
    for each in ends:
        admitted((), each)
    for order, commands in (((0,), ends), ((), (*ends, Reveal("north", 1, 0, "local", None))), ((), ())):
        with pytest.raises(NotAllowed, match="exchanges-per-day"):
            admitted(order, *commands)
    assert [each["what"] for each in logged(site)] == ["joined", "exchange", *["refused"] * 3]


def test_figures_and_losses_that_must_not_leave_are_removed(site: Path):
    policy = policy_of(site, '[metrics]\nnames = ["accuracy"]\nsmallest-group = 10\n')
    scored = Scored(0.0, "x", 2, 10, (("accuracy", 0.5), ("age", 61.0)))
    assert policy.filtered(scored).figures == (("accuracy", 0.5),)
    assert "age, which may not leave" in policy.filtered(scored).problem
    few = Scored(0.0, "x", 2, 9, (("accuracy", 0.5),))
    assert policy.filtered(few).figures == ()
    assert policy.filtered(Report(0.0, "x", 1, 2, 99, 0.5, 1.0, 0.7)).loss == 0.0
    assert policy.filtered(Progress(0.0, "x", 1, 0, 4, 0.5, 99, 1.0, 0.7)).loss == 0.0
    whats = [(each["what"], each["figures"]) for each in logged(site)]
    assert whats == [("withheld", []), ("figures", ["accuracy"]), ("figures", ["accuracy"]), ("withheld", [])]
    report = Report(0.0, "x", 1, 2, 99, 0.5, 1.0, 0.7)
    for group, loss in ((32, 0.7), (33, 0.0)):  # samples of a batch
        allowed = policy_of(site, f'[metrics]\nnames = ["loss"]\nsmallest-group = {group}\n')
        assert allowed.filtered(report).loss == loss
    assert request_of(RunConfig(script="train.py"), RUN, None).batch_samples == 0


def test_hours_end_like_request_to_leave(site: Path):
    now = datetime(2026, 11, 25, 5, 59, 50, tzinfo=UTC).timestamp()
    policy = policy_of(site, '[hours]\nopen = ["20:00-06:00"]\n', now)
    assert (policy.closes_s(), policy.opens_s()) == (10.0, 10.0 + 14 * 3600)
    assert policy.windows()[:2] == ((0.0, 10.0), (10.0 + 14 * 3600, 10.0 + 24 * 3600))
    assert Departure(20.0, closes_s=policy.closes_s).left_s == 10.0
    assert not Departure(5.0, closes_s=policy.closes_s).asked
    closed = policy_of(site, '[hours]\nopen = ["20:00-06:00"]\n', now + 10)
    assert Departure(20.0, closes_s=closed.closes_s).left_s == 0.0
    with pytest.raises(NotAllowed, match=r"hours.open\): .* opens in 14 h 0 min") as refused:
        closed.admit()
    assert refused.value.again_s == 14 * 3600


def test_hours_end_by_clock_that_was_set_back(site: Path):
    clock = [datetime(2026, 11, 25, 23, tzinfo=UTC).timestamp()]
    site.write_text('[hours]\nopen = ["20:00-06:00"]\n')
    policy = SitePolicy(read_policy(site), "north", wall=lambda: clock[0])
    assert policy.closes_s() == 7 * 3600
    clock[0] -= 8 * 3600
    assert policy.closes_s() == 0.0
    assert Departure(20.0, closes_s=policy.closes_s).asked


def test_client_without_policy_logs_nothing(tmp_path: Path):
    policy = site_policy(RunConfig(), {}, "north", RUN, None)
    policy.admit()
    policy.send(1, 10**12)
    assert policy.closes_s() is None
    assert not list(tmp_path.iterdir())


def test_loop_refuses_exchange_beyond_limit_and_ends(link, site: Path) -> None:
    policy = policy_of(site, "[limits]\nexchanges-per-day = 1\n")
    policy.send(1, 1)
    with serving(link, policy=policy) as (_, client, ended):
        link.listener.publish(0, link.vector())
        link.listener.send(work(client))
        link.event(Progress)
        link.listener.send(Reveal(client, 1, 0, "local", None))
        said = (
            "site.toml, line 2 (limits.exchanges-per-day): saw 2 today with one more exchange, "
            "needed at most 1; a day ends at 24:00 UTC"
        )
        assert link.event(Failed).reason == said
        link.event(Lost)
        link.eventually(lambda: ended)
        assert ended == [said]


def test_models_alone_end_session_at_limit_of_bytes(link, site: Path) -> None:
    """Whatever the server sends, and though it asks for no update."""
    policy = policy_of(site, "[limits]\nbytes-per-day = 20_000\n")
    model = link.vector()
    with serving(link, policy=policy) as (_, client, ended):
        for number in range(1, 20_000 // model.nbytes + 2):
            link.listener.publish(number, model + number)
            link.listener.send(replace(work(client), round=number, version=number))
            while not isinstance(said := link.event(), Progress | Failed | Lost):
                pass
            if isinstance(said, Progress):
                link.listener.send(Close(client, number, "empty", True))
        link.eventually(lambda: ended)
        assert re.search(r"bytes-per-day\): saw \d+ today, needed at most 20000; a day ends", ended[0])
    moved = sum(int(str(each["bytes"])) for each in logged(site))
    assert 20_000 < moved <= 20_000 + 2 * model.nbytes


def test_exchange_may_end_beyond_limit_of_bytes(site: Path):
    policy = policy_of(site, "[limits]\nbytes-per-day = 1000\n")
    policy.send(1, 990)
    policy.moved(Amounts(up_bytes=990, control_bytes=30))
    policy.keep_to_bytes(1, 100)
    policy.moved(Amounts(control_bytes=90))
    for spare in (100, 0):
        with pytest.raises(NotAllowed, match="saw 1110 today, needed at most 1000"):
            policy.keep_to_bytes(1, spare)


def test_loop_announces_end_of_hours_and_leaves_by_then(link, site: Path) -> None:
    clock = [datetime(2026, 11, 25, 5, 0, tzinfo=UTC).timestamp()]
    policy = policy_of(site, '[hours]\nopen = ["20:00-06:00"]\n')
    policy._wall = lambda: clock[0]
    with serving(link, Departure(WAIT_S, closes_s=policy.closes_s), policy=policy) as (engine, client, ended):
        link.listener.publish(0, link.vector())
        link.listener.send(work(client))
        link.event(Progress)
        engine.has_work = False
        clock[0] += 3599.0
        assert link.event(Leaving).grace_s == 1.0
        link.event(Lost)
        link.eventually(lambda: ended)
        assert ended == [LEFT]


# ---- the app


def bundle_of(files: dict[str, bytes]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as bundle:
        for name, data in files.items():
            bundle.writestr(name, data)
    return content.getvalue()


def test_app_is_checked_before_flower_installs_it(
    site: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    good, bad = ({"client/app.py": code, "pyproject.toml": b"x = 1"} for code in (b"good", b"bad"))
    site.write_text(f'[allow]\napps = ["{app_digest(good)}"]\n')
    node = {"policy": str(site), "name": "north"}
    installed: list[bytes] = []
    running = ModuleType("running")
    running.pull_task_input = lambda _: (
        "message",
        SimpleNamespace(node_config=node),
        SimpleNamespace(run_id=5),
        "fab",
    )
    running.install_from_fab = lambda bundle, **_: installed.append(bundle)
    running.get_load_client_app_fn = None
    monkeypatch.setattr(app_guard, "import_module", lambda _: running)
    monkeypatch.setattr(app_guard, "_checked", [])
    app_guard.guard()
    running.pull_task_input(None)
    context = context_of({"policy": str(site), "identity": str(tmp_path / "key")})
    with pytest.raises(NotAllowed, match="not checked"), _client(context, None, RUN):
        pass
    for content in (bundle_of(bad), b"no bundle"):
        with pytest.raises((NotAllowed, Unusable)):
            running.install_from_fab(content, skip_prompt=True)
    assert installed == []
    assert {each["run"] for each in logged(site)} == {"ward", "Flower's run 5"}


def test_guard_fits_installed_flower():
    from flwr.supernode.runtime.run_clientapp import (
        get_load_client_app_fn,
        get_project_dir,
        install_from_fab,
        pull_task_input,
        run_clientapp,
    )

    used = (get_load_client_app_fn, get_project_dir, install_from_fab, pull_task_input)
    assert {each.__name__ for each in used} <= set(run_clientapp.__code__.co_names)


@pytest.mark.parametrize("version", ["", "/../../../planted", "9"])
def test_flower_loads_app_that_was_checked(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
):
    """And not what lies where Flower would have found it, or where the server's version leads."""
    running = import_module("flwr.supernode.runtime.run_clientapp")
    bundle = app_bundle.bundle_of(write_app(tmp_path / "app", {}))
    sent = files_in_bundle(bundle)
    site.write_text(f'[allow]\napps = ["{app_digest(sent)}"]\n')
    project = tomllib.loads(sent["pyproject.toml"].decode())
    fab_id = f"{project['tool']['flwr']['app']['publisher']}/{project['project']['name']}"
    fab = SimpleNamespace(hash_str=hashlib.sha256(bundle).hexdigest())
    run = SimpleNamespace(run_id=5, fab_id=fab_id, fab_version=project["project"]["version"] + version)
    context = SimpleNamespace(node_config={"policy": str(site), "name": "north"})
    monkeypatch.setenv("FLWR_HOME", str(home := tmp_path / "home"))
    monkeypatch.setattr(running, "pull_task_input", lambda _: ("message", context, run, fab))
    monkeypatch.setattr(running, "install_from_fab", running.install_from_fab)
    monkeypatch.setattr(running, "get_load_client_app_fn", lambda: running.get_project_dir)
    monkeypatch.setattr(app_guard, "_checked", [])
    named = (run.fab_id, run.fab_version, fab.hash_str)
    planted = running.get_project_dir(*named)
    planted.mkdir(parents=True)
    app_guard.guard()
    running.pull_task_input(None)
    if version:
        said = "client north: app: saw an id, version or hash of another one, needed those of the app that"
        with pytest.raises(NotAllowed, match=said):
            running.install_from_fab(bundle, skip_prompt=True)
        return
    running.install_from_fab(bundle, skip_prompt=True)
    loaded = running.get_load_client_app_fn()(*named)
    assert (loaded / "client" / "app.py").read_bytes() == sent["client/app.py"]
    assert not loaded.is_relative_to(home)
    assert os.environ["FLWR_HOME"] == str(home)
    with _client(context_of({"policy": str(site), "identity": str(tmp_path / "key")}), None, RUN):
        pass
    (loaded / "client" / "app.py").write_bytes(b"other")
    with pytest.raises(NotAllowed, match="client north: app: saw"):
        app_guard._must_be_installed(SentApp.of(sent), loaded, lambda: loaded, context.node_config)


def test_folder_of_killed_process_is_removed_by_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (stale := tmp_path / "fedgc-app-killed" / "apps").mkdir(parents=True)
    used = [Path(app_guard._fresh_folder()) for _ in range(2)]
    assert not stale.parent.exists()
    assert sorted(tmp_path.iterdir()) == sorted(used)


def test_policy_of_apps_refuses_other_commands_and_modules(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    files = {"ward/task.py": b"", "pyproject.toml": b""}
    site.write_text(f'[allow]\napps = ["{app_digest(files)}"]\n')
    monkeypatch.setattr(app_guard, "_checked", [])
    node = {"policy": str(site), "identity": str(tmp_path / "key")}
    app_guard.must_be_allowed(bundle_of(files), node, RUN)
    for settings, named in (
        ({"script": f"sh -c {os.devnull}"}, "line 1 (allow.scripts): saw the script 'sh -c "),
        ({"task": "no.such.module:task"}, "line 1 (allow.tasks): saw the task 'no.such.module:task'"),
    ):
        with pytest.raises(NotAllowed) as refused, _client(context_of(node, **settings), None, RUN):
            pass
        assert named in str(refused.value)
    own = {**node, "script": "python train.py"}
    with _client(context_of(own, script=os.devnull), None, RUN):
        pass
    for task in ("digits", "fedgc.training.tasks.digits:digits", "ward.task:task"):
        request = request_of(RunConfig(task=task), RUN, None)
        assert check(read_policy(site), request, Totals(), 0.0) == ()


def test_digest_of_task_is_that_of_file_python_imports():
    digest = task_digest("tests.contract.stepping:task", [str(Path(__file__).parents[2])])
    assert digest.startswith("sha256:")


def protected(*undelivered: Release) -> SimpleNamespace:
    records = SimpleNamespace(undelivered=undelivered, forbids=lambda _: "")
    records.heed = lambda forbids: setattr(records, "forbids", forbids)
    records.deliver = lambda: setattr(records, "undelivered", ())
    return records


def test_steps_of_killed_process_are_logged_at_start(site: Path):
    policy, records = policy_of(site, "[privacy]\nepsilon = 2.5\n"), protected((1.0, 0.01, 900))
    policy.watch(records)
    assert [each["steps"] for each in logged(site)] == [[[1.0, 0.01, 900]]]
    assert records.forbids(((1.0, 0.01, 400),))


def test_measure_leaves_after_its_steps_are_logged(link, site: Path) -> None:
    """Also if its round is skipped; beyond the budget of the site it does not leave."""
    policy, records = policy_of(site, "[privacy]\nepsilon = 2.5\n"), protected()
    policy.watch(records)
    with serving(link, policy=policy) as (engine, client, ended):
        engine.step = lambda: setattr(engine, "idle", True) or Report(0.0, client, 1, 5, 8, 0.5, 1.0, 0.5)
        records.undelivered = ((1.0, 0.01, 900),)
        link.listener.publish(0, link.vector())
        link.listener.send(work(client))
        assert link.event(Report).steps == 5
        assert [each["steps"] for each in logged(site)] == [[[1.0, 0.01, 900]]]
        records.undelivered = ((1.0, 0.01, 400),)
        engine.idle = False
        assert "privacy.epsilon): saw 2.7 spent" in link.event(Failed).reason
        link.eventually(lambda: ended)


@pytest.mark.parametrize("source", ["step", "keep"])
def test_measure_over_messages_keeps_to_budget_of_site(site: Path, tmp_path: Path, source: str):
    policy, other = (policy_of(site, "[privacy]\nepsilon = 2.5\n") for _ in range(2))
    report, records = Report(0.0, "me", 1, 5, 8, 0.5, 1.0, 0.5), protected()
    policy.watch(records)
    engine = SimpleNamespace(answer=lambda _: None, keep=lambda: [report] if source == "keep" else [])
    engine.step = lambda: setattr(engine, "idle", True) or report
    for spent, kind in ((0, Report), (500, Failed)):
        other.watch(protected((1.0, 0.01, spent)))
        records.undelivered = ((1.0, 0.01, 400),)
        engine.idle = source == "keep"
        made = MessageWork(engine, CacheFiles(tmp_path / "cache"), "me", time.monotonic, policy=policy)
        made.run(Packet(RUN, b"", 1.0, (Reveal("me", 1, 0, "local", None),)))
        assert [type(each) for each in made.lines] == [kind]
    assert "privacy.epsilon): saw 2.7 spent by all runs" in made.lines[0].reason


def test_steps_of_other_client_count_from_next_work(link, site: Path) -> None:
    text, step = "[privacy]\nepsilon = 2.5\n", ((1.0, 0.01, 400),)
    policy, other, records = policy_of(site, text), policy_of(site, text), protected()
    policy.watch(records)
    with serving(link, policy=policy) as (_, client, _):
        other.watch(protected((1.0, 0.01, 900)))
        assert records.forbids(step) == ""
        link.listener.publish(0, link.vector())
        link.listener.send(work(client))
        link.event(Progress)
        assert "saw 2.7 spent by all runs" in records.forbids(step)


def test_steps_on_records_are_logged_whether_update_leaves_or_not(site: Path):
    """No step is allowed that would exceed what the site has left; an update of other steps is refused."""
    policy = policy_of(site, "[privacy]\nepsilon = 2.5\n")
    records = protected()
    policy.watch(records)
    records.undelivered, forbids = ((1.0, 0.01, 900),), records.forbids
    assert forbids(((1.0, 0.01, 900),)) == ""
    policy.send(1, 100)
    assert records.undelivered == ()
    assert forbids(((1.0, 0.01, 1),)) == ""
    said = r"privacy.epsilon\): saw 2.7 spent by all runs with this update"
    assert re.search(said, forbids(((1.0, 0.01, 400),)))
    records.undelivered = ((1.0, 0.01, 400),)
    with pytest.raises(NotAllowed, match=said):
        policy.send(2, 100)
    policy.settle(2)
    assert [(each["what"], each["steps"]) for each in logged(site)] == [
        ("exchange", [[1.0, 0.01, 900]]), ("refused", []), ("refused", []), ("round", [[1.0, 0.01, 400]]),
    ]  # fmt: skip
    policy.settle(3)
    assert len(logged(site)) == 4
