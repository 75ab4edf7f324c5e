"""Test the display of a run from a store that is filled step by step."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from fedgc.cli import view
from fedgc.cli.follow import (
    LOG_S,
    MOST_WARNED,
    NOTHING,
    UNSETTLED,
    Follower,
    Log,
    Warned,
    _Lines,
    fault_in,
    follow,
    print_tables,
    show_on,
    why_incomplete,
)
from fedgc.config import RunConfig
from fedgc.errors import EdgeFailed
from fedgc.history import ClientRow, RoundRow
from fedgc.store.database import Store
from fedgc.store.records import Appended, Begun, Decided, Ended, Evaluated, Present, Scored, Seen
from fedgc.store.views import Round

ROW = RoundRow(
    round=1, version=0, started=100.0, working_s=1.0, collecting_s=0.5, outcome="synced", chunks=8, covered=8,
    short=(), replicas=2, blocks=2, needed=2, amplification=1.5, error=None, loss=0.5, samples=80, skips=3,
    takes=2, pruned=1, repairs=0, reason="drift 0.3",
    clients=(ClientRow("aa", finished=8, counted=6, up_bytes=2_000_000, down_bytes=500_000),),
)  # fmt: skip
PRESENT = {
    "round": 3, "rounds": 9, "phase": "working", "covered": 3, "chunks": 8, "replicas": 2,
    "clients": [
        {"client": "aa", "name": "quick", "present": True, "finished": 3, "held": 4, "link": "session"},
        {"client": "bb", "name": "", "present": False, "finished": 0, "held": 4, "link": ""},
    ],
}  # fmt: skip


@pytest.fixture
def store():
    with Store.open("sqlite://") as opened:
        yield opened


def tell(store: Store, *numbers: int) -> None:
    for number in numbers:
        store.write(Appended(100.0 + number, "r", replace(ROW, round=number, started=100.0 + 4 * number)))


def shown(console_is: bool, steps, rounds: int = 9) -> str:
    out = io.StringIO()
    console = Console(file=out, markup=False, force_terminal=console_is, width=150, color_system=None)
    with show_on(console, rounds) as show:
        for seen, notes in steps:
            show.update(seen, notes)
    return out.getvalue()


def test_rounds_after_return_to_earlier_model_are_seen(store: Store):
    store.write(Begun(100.0, "r", RunConfig(work="coded").table()))
    tell(store, *range(1, 4 * UNSETTLED))
    follower = Follower(store, "r")
    follower.look()
    again = replace(ROW, round=3, started=900.0)
    store.write(Appended(1000.0, "r", again))
    assert [each.row.started for each in follower.look().rounds] == [104.0, 108.0, 900.0]


def test_server_that_has_told_nothing_yet_is_waited_for():
    console = Console(file=io.StringIO(), width=150)
    console.print(view.live_view(9, {"server": {}}, (), ()))
    assert "None" not in console.file.getvalue()


def test_incremental_and_single_queries_agree(store: Store):
    follower = Follower(store, "r")
    assert follower.look().run is None
    store.write(Begun(100.0, "r", RunConfig(work="coded").table()))
    for number in range(1, 4 * UNSETTLED):
        tell(store, number)
        store.write(Evaluated(100.0, "r", number, {"accuracy": number / 100}))
        assert follower.look().rounds == Follower(store, "r").look().rounds == store.rounds("r")
    store.write(Seen(100.0, "aa", "quick"))
    assert follower.whole().names["aa"] == "quick"
    assert len(follower.whole().rows["aa"]) == 4 * UNSETTLED - 1


def test_without_terminal_round_prints_one_line_after_evaluation(store: Store):
    store.write(Begun(100.0, "r", RunConfig(work="coded").table()))
    follower, steps = Follower(store, "r"), []
    tell(store, 1)
    steps.append((follower.look(), ()))
    assert shown(False, steps) == shown(False, [(follower.look(), ())])  # at the end it is said all the same
    store.write(Evaluated(100.0, "r", 1, {"accuracy": 0.5}))
    tell(store, 2)
    steps.append((follower.look(), ("a note",)))
    tell(store, 3)
    steps += [(follower.look(), ("a note",))] * 2
    lines = shown(False, steps).splitlines()
    assert lines[0] == "a note"
    assert [line.split(":")[0] for line in lines[1:]] == ["round 1", "round 2", "round 3"]
    assert lines[1].endswith("accuracy 0.500")
    assert "6 of 8 finished chunks counted" in lines[2]


def test_notes_precede_lines_of_their_rounds(store: Store):
    store.write(Begun(100.0, "r", RunConfig(work="coded").table()))
    follower, out, now = Follower(store, "r"), io.StringIO(), [0.0]
    lost, killed, late = "round 1: north is lost", "round 2: SIGKILL to west", "round 3: no disk"

    def after(seconds: float, *notes: str) -> list[str]:
        now[0] += seconds
        show.update(follower.look(), notes)
        return [line[:8] for line in out.getvalue().splitlines()]

    with _Lines(Console(file=out, width=150), NOTHING, lambda: now[0]) as show:
        tell(store, 1)
        store.write(Evaluated(100.0, "r", 1, {"accuracy": 0.5}))
        assert not after(0.0), "the log may still tell of this round"
        assert not after(LOG_S / 2, killed), "it is on a later round"
        assert after(LOG_S / 2, killed, lost) == ["round 1:"] * 2 + ["round 2:"]
        tell(store, 2)
        assert len(after(LOG_S, killed, lost)) == 3, "its evaluation may still come"
        assert len(after(0.0, killed, lost, late)) == 3
        assert len(after(LOG_S, killed, lost, late)) == 4, "the note does not wait for the evaluation"
        store.write(Evaluated(100.0, "r", 2, {"accuracy": 0.75}))
        assert len(after(0.0, killed, lost, late)) == 5
        tell(store, 3)
        assert len(after(0.0, killed, lost, late, "stopping the run")) == 6
    told = out.getvalue().splitlines()
    assert [told[each] for each in (0, 2, 3, 5)] == [lost, killed, late, "stopping the run"]
    assert [told[each][:15] for each in (1, 4)] == ["round 1: synced", "round 2: synced"]
    assert told[4].endswith("accuracy 0.750")
    assert told[6].startswith("round 3: synced")


@pytest.mark.parametrize("outcome", ["empty", "aborted"])
def test_line_of_fruitless_round_does_not_await_next_round(store: Store, outcome: str):
    store.write(Begun(100.0, "r", RunConfig().table()))
    store.write(Appended(101.0, "r", replace(ROW, round=1, outcome=outcome)))
    follower, out, now = Follower(store, "r"), io.StringIO(), [0.0]
    with _Lines(Console(file=out, width=150), NOTHING, lambda: now[0]) as show:
        show.update(follower.look(), ())
        now[0] = LOG_S
        show.update(follower.look(), ())
        assert out.getvalue().startswith(f"round 1: {outcome} ")


def test_resumed_run_shows_only_rounds_of_its_own_start(store: Store):
    store.write(Begun(100.0, "r", RunConfig(work="coded").table()))
    tell(store, 1, 2)
    follower, out = Follower(store, "r"), io.StringIO()
    with show_on(Console(file=out, width=150), 9, follower.look()) as show:
        show.update(follower.look(), ())
        store.write(
            Appended(20.0, "r", replace(ROW, round=2, started=12.0, outcome="empty"))
        )  # clock set back
        show.update(follower.look(), ())
    assert [line[:14] for line in out.getvalue().splitlines()] == ["round 2: empty"]


def test_terminal_shows_rounds_clients_gate_bytes_and_time(store: Store):
    store.write(Begun(100.0, "r", RunConfig(work="coded").table()))
    tell(store, 1, 2)
    store.write(Evaluated(100.0, "r", 2, {"accuracy": 0.75}))
    store.write(Present(103.0, "r", PRESENT))
    said = shown(True, [(Follower(store, "r").look(), ["client bb was killed"])])
    assert "2 of 9, about 28 s left" in said
    assert "working: 3 of 8 chunks have a replica (2 aimed for)" in said
    assert "accuracy 0.750; up 4.00 MB, down 1.00 MB; gate: 2 synced (drift 0.3)" in said
    assert "3 of 4 chunks, session" in said
    assert [line.split()[-1] for line in said.splitlines() if line.startswith("bb")] == ["gone"]
    assert "client bb was killed" in said


def test_unstarted_run_shows_nothing():
    said = shown(True, [(Follower.look, ())][:0])
    assert said.strip() == "" or "\x1b" in said
    assert "no round yet" in str(view._figures(()))


@pytest.mark.parametrize(
    ("starts", "total", "said"),
    [
        ((), 9, ""), ((0.0,), 9, ""), ((0.0, 4.0, 5.0, 9.0), 9, "20 s"), ((0.0, 60.0), 9, "7 min"),
        ((0.0, 1.0), 2, ""),
    ],
)  # fmt: skip
def test_time_left_is_median_recent_round_times_rounds_left(starts, total, said):
    rounds = [
        Round(replace(ROW, round=n, started=start), 1, 1, 1, 0, 0, 0) for n, start in enumerate(starts, 1)
    ]
    assert view.time_left(total, rounds) == said


def test_log_is_printed_in_whole_lines(tmp_path: Path):
    path = tmp_path / "log"
    path.write_text("one\ntw")
    log = Log(path)
    assert log.lines() == ["one"]
    with path.open("a") as file:
        file.write("o\n\x1b[92mthree\x1b[0m\n")
    assert log.lines() == ["two", "three"]
    assert log.lines() == []
    assert log.text().count("\n") == 3


def test_server_warnings_are_listed_once_up_to_limit(tmp_path: Path):
    path = tmp_path / "log"
    path.write_text(
        "\x1b[93mWARNING\x1b[0m :     round 1: client-0: no labels [red]\n"
        "INFO :      round 1 synced\nWARNING :   of Flower's own\n"
    )
    warned = Warned(Log(path))
    first = "round 1: client-0: no labels [red]"
    assert warned.notes() == [first]
    with path.open("a") as file:
        file.write("WARNING : round 2: client-0: no labels [red]\nINFO :   round 2 synced\n")
        file.write("INFO :   round 3: client-0: back\n")
        file.writelines(f"WARNING : round 3: client-{number}: lost\n" for number in range(99))
    assert warned.notes()[:3] == [first, "round 3: client-0: back", "round 3: client-0: lost"]
    assert len(warned.notes()) == MOST_WARNED
    assert (
        shown(False, [(Follower(Store.open("sqlite://"), "r").look(), warned.notes()[:1])]).strip() == first
    )


def test_every_return_to_earlier_model_is_noted(tmp_path: Path):
    path = tmp_path / "run.log"
    lost = [f"round 1: client-{number}: lost" for number in range(MOST_WARNED)]
    said = (
        "mae 0.88 after 1.79: the run goes back to the model of round 3; updates since then came from north"
    )
    returns = [f"round {number}: {said}" for number in (5, 8)]
    path.write_text("".join(f"WARNING :   {line}\n" for line in (*lost, *returns)))
    assert Warned(Log(path)).notes() == [*lost, *returns]


def test_skipped_checkpoint_is_noted(tmp_path: Path):
    path, said = tmp_path / "run.log", "checkpoint model-2.fedgc: skipped: saw 3 bytes, needed 9"
    path.write_text(f"WARNING :   {said}\nWARNING :   of Flower's own\n")
    assert Warned(Log(path)).notes() == [said]


@pytest.mark.parametrize(
    "said",
    [
        "rows kept aside in /state/aside.jsonl: No space left on device, needed space for 9 bytes; they wait",
        "3 records are lost: store sqlite:////state/fedgc.db: the disk is full; 3 records wait, 0 are lost",
    ],
)
def test_rows_that_are_not_kept_aside_are_noted(tmp_path: Path, said: str):
    path = tmp_path / "run.log"
    path.write_text(f"WARNING :   {said}\n")
    assert Warned(Log(path)).notes() == [said]


def test_settings_that_resume_changes_are_noted(tmp_path: Path):
    path = tmp_path / "run.log"
    said = "the run goes on with other settings than before: learning-rate was 0.1, is 0.02"
    path.write_text(f"WARNING :   {said}\n")
    assert Warned(Log(path)).notes() == [said]


def test_client_that_does_not_take_part_is_noted(tmp_path: Path):
    path = tmp_path / "run.log"
    said = "client south: no data: it does not take part (its app failed with Flower's code 2)"
    path.write_text(f"WARNING :   {said}\nWARNING :   refused by its site: site.toml: no\n")
    assert Warned(Log(path)).notes() == [said, "refused by its site: site.toml: no"]


def test_other_source_is_used_while_run_is_not_in_store(store: Store):
    asked, left = [], iter([True, True, True, False])

    def going() -> bool:
        return next(left)

    def unknown() -> None:
        asked.append(1)
        if len(asked) == 2:
            store.write(Begun(100.0, "r", RunConfig(work="coded").table()))

    console = Console(file=io.StringIO(), force_terminal=False)
    with show_on(console, 3) as show:
        follow(Follower(store, "r"), show, going, unknown)
    assert len(asked) == 2


def test_run_is_shown_on_while_its_store_fails(store: Store, monkeypatch):
    """As while PostgreSQL is restarted: with clients on this machine, the end of the display ends the run."""
    store.write(Begun(100.0, "r", RunConfig(work="coded").table()))
    tell(store, 1)
    follower, looks, run = Follower(store, "r"), [], Store.run

    def away(self: Store, key: str):
        raise EdgeFailed("store: the connection was closed")

    def going() -> bool:
        looks.append(follower.run_lately())
        monkeypatch.setattr(Store, "run", away if len(looks) == 2 else run)
        if len(looks) == 3:
            tell(store, 2)
        return len(looks) < 5

    out = io.StringIO()
    with show_on(Console(file=out, force_terminal=False), 3) as show:
        follow(follower, show, going)
    assert out.getvalue().count("synced in") == 2
    assert all(each is not None and each.run == "r" for each in looks)


def test_final_summary_counts_skipped_rounds_with_reasons(store: Store):
    store.write(Begun(100.0, "r", RunConfig(work="local", gate="every", gate_period=3).table()))
    for number in range(1, 4):
        row = replace(ROW, round=number, outcome="synced" if number == 3 else "skipped")
        store.write(Appended(100.0 + number, "r", row))
    out = io.StringIO()
    print_tables(Console(file=out, width=150), Follower(store, "r").whole(), 1.0)
    assert "2 of 3 rounds were skipped by the gate (every, gate.period 3)" in out.getvalue()


def test_failure_reason_is_that_of_run_or_last_log_error(store: Store):
    store.write(Begun(100.0, "r", RunConfig(work="coded").table()))
    flowers = (
        "\x1b[92mINFO \x1b[0m:      Start `flwr-serverapp` process\n"
        "\x1b[91mERROR \x1b[0m:     task no.such:thing: importing no.such raised an error\n"
        "\x1b[91mERROR \x1b[0m:     Exit Code: 201\n\nAn unhandled exception occurred in the ServerApp.\n\n"
        "For more information, visit: <https://flower.ai/docs>\n"
    )
    found = why_incomplete(Follower(store, "r").look(), flowers)
    assert found == "task no.such:thing: importing no.such raised an error"
    boxed = "INFO : round 4 evaluated\n╭── Error ──╮\n│ (exit 608) │\n╰───────────╯\n"
    assert why_incomplete(Follower(store, "r").look(), boxed) == "(exit 608)"
    installing = "ERROR :     ServerApp raised an exception\nERROR :     Exit Code: 608\n"
    found = why_incomplete(Follower(store, "r").look(), installing)
    assert found is not None
    assert found.endswith("start flower-superlink with --disable-runtime-dependency-installation")
    store.write(Ended(101.0, "r", "failed", "no client came"))
    assert why_incomplete(Follower(store, "r").look(), "b") == "no client came"
    store.write(Ended(101.0, "r", "completed", ""))
    assert why_incomplete(Follower(store, "r").look(), "b") is None


def test_error_of_own_server_app_is_named_with_its_place():
    log = """\
\x1b[91mERROR \x1b[0m:     ServerApp raised an exception
Traceback (most recent call last):
  File "/lib/python3.11/site-packages/flwr/server/run_serverapp.py", line 60, in run
    server_app(grid=grid, context=context)
  File "/state/apps/me.ward.1.0.0.a06de794/ward/server_app.py", line 17, in main
    config = ConfigRecord({"lr": context.run_config["lr"]})
                                 ~~~~~~~~~~~~~~~~~~^^^^^^
  File "/lib/python3.11/importlib/__init__.py", line 126, in import_module
  File "<frozen importlib._bootstrap>", line 1204, in _gcd_import
KeyError: 'lr'
\x1b[91mERROR \x1b[0m:     Exit Code: 201
"""
    assert fault_in(log) == "ServerApp raised KeyError: 'lr' (ward/server_app.py, line 17)"
    without = log.replace("/state/apps/me.ward.1.0.0.a06de794", "/lib/site-packages")
    assert fault_in(without) == "ServerApp raised KeyError: 'lr'"
    assert fault_in(log.split("Traceback")[0]) == "ServerApp raised an exception"


@pytest.mark.parametrize("lacking", ["", "66% of the samples in the last round (1 client)"])
def test_last_line_of_completed_run_reports_data_coverage(store: Store, lacking: str):
    store.write(Begun(100.0, "r", RunConfig(work="coded").table()))
    tell(store, 1, 2)
    store.write(Ended(110.0, "r", "completed", lacking))
    out = io.StringIO()
    print_tables(Console(file=out, width=150, color_system=None), Follower(store, "r").whole(), 10.0)
    last = out.getvalue().splitlines()[-1]
    assert last == (f"completed: 2 rounds, {lacking}" if lacking else "completed: 2 rounds")


def test_round_line_reports_partial_data_coverage():
    row = replace(ROW, known_samples=120, counted_samples=80)
    assert "synced, 66% of the samples in" in view.round_line(Round(row, 1, 8, 6, 0, 0, 0))
    assert "of the samples" not in view.round_line(Round(ROW, 1, 8, 6, 0, 0, 0))


@pytest.mark.parametrize(
    "log", ["", " \n", "INFO :      round 4 evaluated: accuracy=0.9\n", "╰──────────────╯\n", "a\nb\n\n"]
)
def test_last_log_line_alone_is_not_failure_reason(store: Store, log: str):
    store.write(Begun(100.0, "r", RunConfig(work="coded").table()))
    why = "the server ended before its first round was over, and neither store nor log says why"
    assert why_incomplete(Follower(store, "r").look(), log) == why
    tell(store, 1, 2)
    found = why_incomplete(Follower(store, "r").look(), log + "ERROR :     Exit Code: 201\n")
    assert found is not None
    assert found.startswith("the server ended after round 2, with Flower's exit code 201")


def test_store_that_failed_is_shown_and_named_as_reason(store: Store, tmp_path: Path):
    why = "store sqlite:////state/fedgc.db: the disk is full; needed space to write"
    said = f"{why}; the run goes on, its rows are kept in /state/aside.jsonl"
    (tmp_path / "log").write_text(f"\x1b[93mWARNING \x1b[0m:   {said}\n\x1b[92mINFO \x1b[0m:      round 4\n")
    assert Warned(Log(tmp_path / "log")).notes() == [said]
    store.write(Begun(100.0, "r", RunConfig(work="coded").table()))
    tell(store, 1, 2)
    found = why_incomplete(Follower(store, "r").look(), (tmp_path / "log").read_text())
    assert found == f"the server ended after round 2, as far as is stored: {why}"


def test_tables_of_early_stop_show_last_figures_and_reason(store):
    store.write(Begun(100.0, "r", RunConfig(task="digits", work="coded").table()))
    store.write(Seen(100.0, "aa", "quick"))
    tell(store, 1, 2)
    stopped = replace(ROW, round=3, outcome="stopped")
    store.write(Appended(103.0, "r", stopped))
    store.write(Scored(104.0, "r", 2, "aa", 10, {"accuracy": 0.25}))
    basis = {"figure": "accuracy", "version": 1, "round": 1, "value": 0.5}
    store.write(Decided(104.0, "r", 1, "best", basis))
    store.write(Ended(105.0, "r", "completed", "accuracy has not improved for 1 evaluation"))
    out = io.StringIO()
    print_tables(Console(file=out, width=150, color_system=None), Follower(store, "r").whole(), 10.0)
    said = out.getvalue()
    assert "version 1, round 1, accuracy 0.5" in said
    assert ["quick", "2", "10", "0.25"] in [line.replace("│", " ").split() for line in said.splitlines()]
    assert "completed: 2 rounds, accuracy has not improved for 1 evaluation" in said
