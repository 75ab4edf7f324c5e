"""Test that a change of an audit log is found, and that limits survive a restart."""

import hashlib
import json
import math
import os
import threading
from collections.abc import Callable
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from fedgc.errors import EdgeFailed
from fedgc.policy import AuditLog, Entry, Totals, verify
from fedgc.policy.totals import DAYS_KEPT

UTC = ZoneInfo("UTC")
NOW = 1_700_000_000.0
DAY_S = 24 * 3600.0


def wall() -> float:
    return NOW


def part_of(log: Path) -> Path:
    """Return the name under which the head of a log is written."""
    return log.with_name(f".{log.name}.head.{os.getpid()}.part")


@pytest.fixture
def log(tmp_path: Path) -> AuditLog:
    log = AuditLog(tmp_path / "site.audit.jsonl", UTC, wall)
    log.append(Entry("joined", "north", "ward"))
    log.append(Entry("exchange", "north", "ward", 1, bytes=500, exchanges=1, secrecy="masked", noise=2.0))
    log.append(Entry("refused", "north", "ward", rule="limits.bytes-per-day"))
    return log


def test_totals_survive_restart(log: AuditLog):
    again = AuditLog(log.path, UTC, wall)
    assert again.totals() == Totals("2023-11-14", 500, 1, {"ward": 0.25})
    again.append(Entry("exchange", "south", "ward", 2, bytes=100, exchanges=1))
    assert (again.totals().bytes, verify(log.path).lines) == (600, 4)
    assert log.path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("mode", [0o600, 0o640])
def test_head_has_mode_of_its_log(log: AuditLog, mode: int):
    log.path.chmod(mode)
    log.append(Entry("joined", "south", "ward"))
    head = log.path.with_name("site.audit.jsonl.head")
    assert (head.stat().st_mode & 0o777, log.path.stat().st_mode & 0o777) == (mode, mode)


def test_clock_that_is_set_back_gives_no_day_twice(log: AuditLog):
    def append(days: float) -> tuple[int, int]:
        again = AuditLog(log.path, UTC, lambda: NOW + days * DAY_S)
        again.append(Entry("exchange", "north", "ward", 2, bytes=100, exchanges=1))
        return again.totals().bytes, again.totals().exchanges

    assert [append(days) for days in (-19_000, 0, 0, 4_000, 0, 1, 1, 0)] == [
        (100, 1), (600, 2), (700, 3), (100, 1), (800, 4), (100, 1), (200, 2), (900, 5),
    ]  # fmt: skip
    assert [append(days)[1] for days in range(2, 40)] == [1] * 38
    assert len(log.totals().earlier) == DAYS_KEPT
    head = log.path.with_name("site.audit.jsonl.head")
    about = json.loads(head.read_text())
    del about["totals"]["earlier"]  # as an earlier version wrote it
    head.write_text(json.dumps(about))
    assert verify(log.path).totals.bytes == 100
    assert log.totals().earlier == {}


def test_steps_on_records_add_up_in_totals(log: AuditLog):
    steps = ((1.0, 0.1, 5), (1.0, 0.2, 1))
    log.append(Entry("exchange", "north", "ward", 1, exchanges=1, steps=steps))
    log.append(Entry("round", "north", "ward", 2, steps=steps[:1]))
    assert AuditLog(log.path, UTC, wall).totals().steps == {"ward": [[1.0, 0.1, 10], [1.0, 0.2, 1]]}
    assert verify(log.path).lines == 5


def test_long_texts_are_cut_so_that_log_stays_readable(log: AuditLog):
    long = "\x00é" * 40_000
    log.append(Entry("refused", long, long, rule=long, figures=("loss", *[long] * 9)))
    log.append(Entry("refused", "north", "ward", figures=tuple(map(str, range(100_000)))))
    assert verify(log.path).lines == 5
    last = [json.loads(line) for line in log.path.read_text().splitlines()][3]
    assert (len(last["rule"]), last["figures"]) == (2000, ["loss"])


def test_refused_exchange_is_not_logged(log: AuditLog):
    def never(totals: Totals) -> None:
        raise EdgeFailed(f"{totals.bytes} bytes")

    with pytest.raises(EdgeFailed, match="500 bytes"):
        log.append(Entry("exchange", "north", "ward", exchanges=1), never)
    assert verify(log.path).lines == 3


CHANGES: dict[str, Callable[[list[str]], list[str]]] = {
    "edited": lambda lines: [lines[0], lines[1].replace("500", "400"), lines[2]],
    "edited at its end": lambda lines: [*lines[:2], lines[2].replace("north", "south")],
    "removed": lambda lines: [lines[0], lines[2]],
    "removed at its end": lambda lines: lines[:2],
    "removed at its start": lambda lines: lines[1:],
    "repeated": lambda lines: [*lines, lines[2]],
    "exchanged": lambda lines: [lines[1], lines[0], lines[2]],
    "no JSON": lambda lines: [*lines, "nonsense\n"],
    "no JSON and too long": lambda lines: [*lines, "x" * 70_000, "\n"],
    "no entry": lambda lines: [*lines, "[]\n"],
    "emptied": lambda _: [],
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_changed_log_is_found(log: AuditLog, change: str):
    log.path.write_text("".join(CHANGES[change](log.path.read_text().splitlines(keepends=True))))
    with pytest.raises(EdgeFailed, match=r"^audit log .*site\.audit\.jsonl"):
        verify(log.path)


def test_cut_log_allows_nothing(log: AuditLog):
    log.path.write_text("".join(log.path.read_text().splitlines(keepends=True)[:2]))
    with pytest.raises(EdgeFailed, match="it was cut"):
        log.totals()
    log.path.with_name("site.audit.jsonl.head").unlink()
    with pytest.raises(EdgeFailed, match="no head"):
        log.append(Entry("joined", "north", "ward"))


@pytest.mark.parametrize(
    "change",
    [
        {"bytes": "500"}, {"exchanges": None}, {"day": 3}, {"privacy": {"ward": "1"}}, {"privacy": [1]},
        {"steps": {"ward": [[1.0, 2.0]]}}, {"earlier": {"2026-01-01": [1]}}, {"earlier": {"2026-01-01": 1}},
    ],
)  # fmt: skip
def test_head_of_other_types_allows_nothing(log: AuditLog, change: dict[str, object]):
    head = log.path.with_name("site.audit.jsonl.head")
    about = json.loads(head.read_text())
    about["totals"] |= change
    head.write_text(json.dumps(about))
    with pytest.raises(EdgeFailed, match=r"its head .* cannot be read"):
        log.append(Entry("exchange", "north", "ward", 2, bytes=1, exchanges=1), lambda totals: None)


@pytest.mark.parametrize("name", ["lines", "size_bytes", "digest"])
def test_head_without_end_of_log_allows_nothing(log: AuditLog, name: str):
    head = log.path.with_name("site.audit.jsonl.head")
    head.write_text(json.dumps(json.loads(head.read_text()) | {name: [1]}))
    with pytest.raises(EdgeFailed, match=r"its head .* cannot be read"):
        log.totals()


def test_changed_totals_are_found(log: AuditLog):
    head = log.path.with_name("site.audit.jsonl.head")
    about = json.loads(head.read_text())
    about["totals"]["bytes"] = 0
    head.write_text(json.dumps(about))
    with pytest.raises(EdgeFailed, match="totals"):
        verify(log.path)


def test_path_that_fails_is_named_once(log: AuditLog):
    head, new = log.path.with_name("site.audit.jsonl.head"), part_of(log.path)
    new.mkdir()
    with pytest.raises(EdgeFailed, match=rf"^audit log {log.path}: Is a directory: {new}$"):
        log.append(Entry("joined", "north", "ward"))
    apart = AuditLog(head / "log", UTC, wall)
    with pytest.raises(EdgeFailed, match=rf"^audit log {apart.path}: File exists: {head}$"):
        apart.totals()
    head.unlink()
    head.mkdir()
    with pytest.raises(EdgeFailed, match=rf"its head {head.name} cannot be read: Is a directory$"):
        verify(log.path)
    with pytest.raises(EdgeFailed, match=r"^audit log (\S+): No such file or directory$"):
        verify(log.path.with_name("none"))


def test_log_and_head_cut_together_are_found_by_noted_digest(log: AuditLog):
    noted = verify(log.path).digest
    cut = AuditLog(log.path.with_name("cut.jsonl"), UTC, wall)
    cut.append(Entry("joined", "north", "ward"))
    assert verify(cut.path).lines == 1
    with pytest.raises(EdgeFailed, match="noted"):
        verify(cut.path, noted)
    log.append(Entry("joined", "north", "ward"))
    assert verify(log.path, noted).lines == 4


def test_crash_between_line_and_head_is_repaired(log: AuditLog):
    head = log.path.with_name("site.audit.jsonl.head")
    before = head.read_text()
    log.append(Entry("exchange", "north", "ward", 2, bytes=7, exchanges=1))
    head.write_text(before)
    with log.path.open("a") as file:
        file.write('{"at": 17')  # the process ended in the middle of a line
    log.append(Entry("joined", "south", "ward"))
    assert (verify(log.path).lines, log.totals().bytes) == (5, 507)


def test_log_without_place_for_its_head_is_whole(tmp_path: Path):
    log = AuditLog(tmp_path / "site.audit.jsonl", UTC, wall)
    new = part_of(log.path)
    log.append(Entry("joined", "north", "ward"))
    new.mkdir()
    with pytest.raises(EdgeFailed, match="Is a directory"):
        log.append(Entry("exchange", "north", "ward", 1, bytes=7, exchanges=1))
    new.rmdir()
    with log.path.open("a") as file:
        file.write('{"at": 17')  # the process ended in the middle of a line
    head = verify(log.path)
    assert (head.lines, head.totals.bytes) == (2, 7)
    log.append(Entry("joined", "south", "ward"))
    assert verify(log.path).lines == 3


def test_first_line_without_place_for_its_head_is_not_written(tmp_path: Path):
    log = AuditLog(tmp_path / "site.audit.jsonl", UTC, wall)
    part_of(log.path).mkdir()
    with pytest.raises(EdgeFailed, match="Is a directory"):
        log.append(Entry("joined", "north", "ward"))
    part_of(log.path).rmdir()
    log.append(Entry("joined", "north", "ward"))
    assert verify(log.path).lines == 1


def test_log_is_verified_while_client_appends(log: AuditLog):
    def append() -> None:
        for number in range(100):
            log.append(Entry("exchange", "south", "ward", number, bytes=1, exchanges=1))

    thread = threading.Thread(target=append)
    thread.start()
    seen = [verify(log.path).lines]
    while thread.is_alive():
        seen.append(verify(log.path).lines)
    thread.join()
    assert seen == sorted(seen)
    assert verify(log.path).lines == 103


@pytest.mark.parametrize(
    "spent",
    [{"privacy": {"ward": math.nan}}, {"privacy": {"ward": -1.0}}, {"steps": {"ward": [[0.0, 0.5, 3]]}}],
    ids=str,
)
def test_head_with_impossible_privacy_allows_nothing(log: AuditLog, spent: dict[str, object]):
    """With NaN every epsilon would be within the limit."""
    head = log.path.with_name("site.audit.jsonl.head")
    about = json.loads(head.read_text())
    about["totals"] |= spent
    head.write_text(json.dumps(about))
    with pytest.raises(EdgeFailed, match="cannot be read: privacy that no run can have spent"):
        log.totals()


@pytest.mark.parametrize(
    "spent", [{"noise": math.nan}, {"noise": 1e-200}, {"noise": -1.0}, {"steps": [[1.0, 2.0, 1]]}], ids=str
)
def test_line_with_impossible_privacy_allows_nothing(log: AuditLog, spent: dict[str, object]):
    lines = log.path.read_bytes().splitlines(keepends=True)
    about = json.loads(lines[1]) | {"before": hashlib.sha256(lines[-1]).hexdigest(), **spent}
    log.path.write_bytes(b"".join(lines) + json.dumps(about).encode() + b"\n")
    with pytest.raises(EdgeFailed, match="line 4: saw no entry of this log"):
        log.totals()
