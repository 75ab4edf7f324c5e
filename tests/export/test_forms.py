"""Test exports by reading them back: CSV, Parquet, TensorBoard, MLflow."""

import csv
import sys
from pathlib import Path

import pytest

from fedgc.errors import EdgeFailed, Unusable
from fedgc.export.files import write_csv, write_parquet
from fedgc.export.mlflow import log_run
from fedgc.export.rows import measures, tables
from fedgc.export.tensorboard import write_events
from fedgc.store.records import Ended
from tests.web.run_of_four import START


def test_csv_is_read_back_as_rows(told, tmp_path: Path):
    rounds, clients = write_csv(tables(told, told.run()), tmp_path / "new" / "folder")
    with rounds.open(newline="") as opened:
        read = list(csv.DictReader(opened))
    for line, each in zip(read, told.rounds(), strict=True):
        assert int(line["round"]) == each.row.round
        assert float(line["loss"]) == each.row.loss
        assert int(line["up_bytes"]) == each.up_bytes
        assert line["measured_accuracy"] == str(each.row.metrics.get("accuracy", ""))
    with clients.open(newline="") as opened:
        assert sum(1 for _ in csv.reader(opened)) == 1 + sum(each.clients for each in told.rounds())


def test_parquet_equals_csv(told, tmp_path: Path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    paths = write_parquet(tables(told, told.run()), tmp_path)
    for path, table in zip(paths, tables(told, told.run()), strict=True):
        read = parquet.read_table(path)
        assert read.column_names == [column.name for column in table.columns]
        lines = [line for part in table.parts for line in part]
        assert [list(line.values()) for line in read.to_pylist()] == lines


def test_existing_file_is_not_replaced(told, tmp_path: Path):
    (tmp_path / "clients.csv").write_text("mine")
    with pytest.raises(Unusable, match=r"clients\.csv: saw a file there"):
        write_csv(tables(told, told.run()), tmp_path)
    assert not (tmp_path / "rounds.csv").exists()
    assert (tmp_path / "clients.csv").read_text() == "mine"


@pytest.mark.parametrize("write", [write_csv, write_parquet])
def test_tables_are_readable_by_their_owner_only(told, tmp_path: Path, write):
    """They have the losses and sample counts of single clients."""
    if write is write_parquet:
        pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    paths = write(tables(told, told.run()), tmp_path)
    assert [path.stat().st_mode & 0o777 for path in paths] == [0o600, 0o600]


def test_uncreatable_folder_gives_one_line_and_leaves_nothing(told, tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(EdgeFailed, match=rf"rounds\.csv: Not a directory: {tmp_path}/file/folder, needed"):
        write_csv(tables(told, told.run()), tmp_path / "file" / "folder")


def test_tensorboard_reads_back_every_metric(told, tmp_path: Path):
    loader = pytest.importorskip(
        "tensorboard.backend.event_processing.event_file_loader", reason="tensorboard is not installed"
    )
    folder = write_events(told.run(), told.rounds(), tmp_path)
    (path,) = folder.iterdir()
    read = [event for event in loader.LegacyEventFileLoader(str(path)).Load() if event.HasField("summary")]
    for event, each in zip(read, told.rounds(), strict=True):
        assert event.step == each.row.round
        assert event.wall_time == each.row.started + each.row.working_s + each.row.collecting_s
        found = {value.tag: value.simple_value for value in event.summary.value}
        assert found == pytest.approx(measures(each))
    with pytest.raises(Unusable, match="saw a run there"):
        write_events(told.run(), told.rounds(), tmp_path)


@pytest.mark.filterwarnings("ignore")  # MLflow's own warnings are not ours to answer
def test_mlflow_reads_back_settings_and_metrics(told, tmp_path: Path):
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    told.write(Ended(START + 99, "spring", "completed"))
    place = tmp_path / "mlflow.db"
    made = log_run(told.run(), told.rounds(), str(place))
    client = mlflow.MlflowClient(f"sqlite:///{place}")
    read = client.get_run(made)
    assert (read.info.run_name, read.info.status) == ("spring", "FINISHED")
    assert read.data.params == {name: str(value) for name, value in told.run().settings.items()}
    history = {one.step: one.value for one in client.get_metric_history(made, "train/loss")}
    assert history == {each.row.round: each.row.loss for each in told.rounds()}
    with pytest.raises(Unusable, match="saw run spring there"):
        log_run(told.run(), told.rounds(), str(place))
    client._tracking_client.store.engine.dispose()


@pytest.mark.filterwarnings("ignore")
def test_mlflow_gets_figures_of_any_name_and_no_half_of_run(told, tmp_path: Path):
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")

    place = tmp_path / "mlflow.db"

    def broken():
        yield from list(told.rounds())[:1]
        raise ConnectionError("gone")

    with pytest.raises(EdgeFailed, match="gone"):
        log_run(told.run(), broken(), str(place))
    figures = {"client/north/recall@10": 0.5, "client/north/recall_10": 0.25}
    made = log_run(told.run(), told.rounds(), str(place), {1: figures})
    client = mlflow.MlflowClient(f"sqlite:///{place}")
    for name, value in (("recall_10", 0.5), ("recall_10_2", 0.25)):
        assert [each.value for each in client.get_metric_history(made, f"client/north/{name}")] == [value]


def test_invalid_mlflow_location_gives_one_line(told, tmp_path: Path):
    pytest.importorskip("mlflow", reason="mlflow is not installed")
    (tmp_path / "text").write_text("no database\n" * 100)
    with pytest.raises(EdgeFailed, match="file is not a database") as said:
        log_run(told.run(), told.rounds(), str(tmp_path / "text"))
    assert "\n" not in str(said.value)


@pytest.mark.parametrize("name", ["pyarrow", "tensorboard", "mlflow"])
def test_missing_package_is_named(told, tmp_path: Path, monkeypatch, name: str):
    for loaded in [each for each in sys.modules if each.split(".")[0] == name]:
        monkeypatch.setitem(sys.modules, loaded, None)
    monkeypatch.setitem(sys.modules, name, None)
    write = {
        "pyarrow": lambda: write_parquet(tables(told, told.run()), tmp_path / "out"),
        "tensorboard": lambda: write_events(told.run(), told.rounds(), tmp_path / "out"),
        "mlflow": lambda: log_run(told.run(), told.rounds(), str(tmp_path / "out")),
    }[name]
    with pytest.raises(Unusable, match=f"pip install {name}"):
        write()
    assert not (tmp_path / "out").exists()
