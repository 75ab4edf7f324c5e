"""Test the display of local work and of clients with unusual names."""

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from fedgc.cli import view
from fedgc.config import RunConfig
from fedgc.history import BestModel, ClientRow, RoundRow, Score
from fedgc.store.views import Round


def round_of(
    number: int, outcome: str, *, blocks: int = 0, up: int = 0, down: int = 0, counted: int = 0
) -> Round:
    row = RoundRow(
        round=number, version=0, started=0.0, working_s=1.0, collecting_s=0.5, outcome=outcome,
        chunks=4, covered=4, short=(), replicas=1, blocks=blocks, needed=2, amplification=None, error=None,
        loss=None, samples=40, skips=0, takes=0, pruned=0, repairs=0, reason="",
    )  # fmt: skip
    return Round(row, 2, counted, counted, up, down, 10)


def cells(table) -> list[list[str]]:
    return [list(column.cells) for column in table.columns]


def test_local_work_savings_are_counted_from_exchanges():
    rounds = [
        round_of(1, "skipped"),
        round_of(2, "synced", up=3_000, down=1_000, counted=40),
        round_of(3, "skipped"),
        round_of(4, "approximate", up=1_000, down=1_000, counted=37),
    ]
    rows = {
        "a": [(1, ClientRow("a")), (2, ClientRow("a", 32, 32)), (4, ClientRow("a", 35, 35))],
        "b": [(1, ClientRow("b")), (2, ClientRow("b", 8, 8)), (4, ClientRow("b", 5, 5))],
    }
    names, values = cells(view.gate_table(rounds, rows, round_steps=16))
    assert values == ["2 of 4", "6.00 kB", "13"]
    assert "dropping server" in names[2]


def test_model_that_is_sent_in_skipped_round_is_cost_of_its_exchange():
    rounds = [
        round_of(1, "skipped", down=1_000),
        round_of(2, "synced", up=1_000),
        round_of(3, "skipped", down=1_000),
        round_of(4, "synced", up=1_000),
    ]
    assert cells(view.gate_table(rounds, {}, round_steps=16))[1][:2] == ["2 of 4", "4.00 kB"]


def test_round_line_counts_round_contents():
    assert "4 of 4 local steps counted" in view.round_line(round_of(1, "synced", counted=4))
    assert "4 of 4 finished chunks counted, 2 blocks" in view.round_line(
        round_of(1, "synced", blocks=2, counted=4)
    )
    assert "counted" not in view.round_line(round_of(1, "skipped"))


def test_round_line_says_why_update_is_left_out():
    row = round_of(1, "synced", counted=4).row.without_update("the run goes back to the model of round 4")
    line = view.round_line(Round(row, 2, 35, 0, 0, 0, 10))
    assert "0 of 35 local steps counted" in line
    assert line.endswith("  (the mean update is left out: the run goes back to the model of round 4)")


def test_round_line_says_why_round_is_aborted():
    why = "exchange 2: saw 2 vectors, needed 3; aborted"
    assert view.round_line(with_row(round_of(2, "aborted"), reason=why)).endswith(f"  ({why})")


def test_work_is_counted_in_steps_without_blocks():
    assert view.unit_of([round_of(1, "skipped")]) == "chunks"
    assert view.unit_of([round_of(1, "synced", blocks=1)]) == "chunks"
    assert view.unit_of([round_of(1, "skipped"), round_of(2, "synced")]) == "local steps"
    assert view.unit_of([round_of(1, "empty")], RunConfig(work="local")) == "local steps"
    assert view.unit_of([round_of(1, "synced")], RunConfig(client_app="stock")) == "answers"


def with_row(each: Round, **changes) -> Round:
    return replace(each, row=replace(each.row, **changes))


def test_local_run_shows_no_rows_of_coded_work_and_own_figures():
    rounds = [round_of(1, "synced", counted=4), round_of(2, "synced", counted=4)]
    rounds[1] = with_row(rounds[1], metrics={"error": 0.25}, short=(0,))
    names, values = cells(view.summary(rounds, 9.0))
    assert "chunks skipped, taken" not in names
    assert "uploads pruned, repaired" not in names
    assert dict(zip(names, values, strict=True))["figures"] == "error 0.25"
    assert "short of" not in view.round_line(rounds[1])
    assert "error 0.25" in view._figures(rounds)
    names, _ = cells(view.summary([round_of(1, "synced", blocks=2)], 9.0))
    assert {"accuracy", "chunks skipped, taken", "uploads pruned, repaired"} <= set(names)


def test_models_with_less_than_all_samples_are_counted():
    rounds = [round_of(number, "synced", counted=4) for number in (1, 2, 3, 4)]
    assert view.partial_rounds(rounds) == ""
    for at, counted in ((0, 40), (1, 30), (2, 20)):
        rounds[at] = with_row(rounds[at], known_samples=40, counted_samples=counted)
    rounds.append(with_row(round_of(5, "empty"), known_samples=40))
    said = "2 of them with less than all samples (62% on average)"
    assert view.partial_rounds(rounds) == said
    assert said in dict(zip(*cells(view.summary(rounds, 9.0)), strict=True))["samples counted"]


def test_resumed_run_tells_time_of_its_starts_apart():
    names, values = cells(view.summary([round_of(1, "synced")], 1.0, resumed=True))
    assert values[names.index("time")] == "1.0 s since the resume; rounds of all starts 1.5 s"


@pytest.mark.parametrize(
    ("failures", "said"),
    [
        (["", ""], "none"),
        (["", "lost", "lost"], "lost in round 2"),
        (["lost", "", "no disk", "no disk"], "lost in round 1, back in round 2; no disk"),
        (["lost", "", "", "lost"], "lost 2 times, last in round 4"),
    ],
)
def test_lost_client_is_shown_with_its_return(failures, said):
    assert view.faults_of((at, ClientRow("a", failure=each)) for at, each in enumerate(failures, 1)) == said


def test_client_and_figure_may_have_any_name(capsys):
    rows = {"a": [(1, ClientRow("a", 3, 2, failure="[/bold] no disk"))], "b": [(1, ClientRow("b"))]}
    measured = round_of(1, "synced")
    measured = replace(measured, row=replace(measured.row, metrics={"accuracy[site]": 0.5, "x [/x]": 1.0}))
    console = view.terminal()
    console.print(view.clients_table(rows, {"a": "[/x]", "b": "[red]b :cat:"}, {}))
    console.print(view.summary([measured], 1.0))
    console.print(view.scores_table("Model of [run]", SCORES, {}, {}))
    said = capsys.readouterr().out
    names = ("[/x]", "[red]b :cat:", "[/bold] no disk", "accuracy[site] 0.5, x [/x] 1", "Model of [run]")
    assert all(each in said for each in names)


SCORES = [Score(3, "a", 10, {"accuracy": 0.5}), Score(2, "b", 30, {"accuracy": 0.9, "f1": 0.25})]


def test_scores_are_shown_with_mean_of_newest_round():
    table = view.scores_table("Figures", SCORES, {"a": "north", "b": "south"}, view.mean_of(SCORES, None))
    rows = list(zip(*cells(table), strict=True))
    assert [[str(cell) for cell in row] for row in rows] == [
        ["north", "3", "10", "0.5", "-"],
        ["south", "2", "30", "0.9", "0.25"],
        ["mean", "3", "10", "0.5", "-"],
    ]


def test_live_view_shows_figures_of_clients_and_best_model():
    clients = [{"client": each, "name": each * 2, "present": True, "finished": 1} for each in ("a", "b")]
    best = BestModel("accuracy", 2, 2, 0.8)
    said = StringIO()
    shown = view.live_view(9, {"clients": clients}, [round_of(1, "synced")], (), SCORES, best)
    Console(file=said, width=200).print(shown)
    assert "best model: version 2, round 2, accuracy 0.8" in said.getvalue()
    assert "accuracy 0.5 after round 3" in said.getvalue()
    assert "accuracy 0.9, f1 0.25 after round 2" in said.getvalue()


def test_summary_names_best_model_and_figures():
    measured = replace(round_of(1, "synced"), row=replace(round_of(1, "synced").row, metrics={"f1": 0.75}))
    names, values = cells(view.summary([measured], 1.0, BestModel("f1", 1, 1, 0.75)))
    facts = dict(zip(names, values, strict=True))
    assert facts["best model"] == "version 1, round 1, f1 0.75"
    assert facts["figures"] == "f1 0.75"
    assert "accuracy" not in facts
