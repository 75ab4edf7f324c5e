"""Test the parts of the soak: recomputed sums, the schedule of faults, figures by hand."""

from dataclasses import fields, replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from benchmarks import soak_sums as sums
from benchmarks.counting import CHUNKS, LOCAL_SAMPLES, SMALL, Counter, write_step
from benchmarks.soak import Kept, Soaked, bench_soak, figures, kept_of, rows
from benchmarks.soak_faults import OF_CLIENT, Happened, Kind, schedule
from benchmarks.soak_processes import Sample, leaked_files, slope_percent
from fedgc.history import RoundRow

COUNTED = ({0: 16, 1: 16, 2: 9, 5: 3}, {0: 16, 3: 20}, dict.fromkeys(range(6), 16))
PATTERN = 1.0 + np.arange(SMALL // CHUNKS) % 7


def local_models() -> dict[int, sums.Model]:
    """The models of a run that counted these steps, as the server computes them in float32."""
    made = {0: np.zeros(SMALL, np.float32)}
    for version, counted in enumerate(COUNTED):
        total, weight = np.zeros((CHUNKS, SMALL // CHUNKS), np.float32), np.float32(0)
        for part, count in counted.items():
            total[part] += np.float32(LOCAL_SAMPLES[part]) * np.float32(count) * PATTERN.astype(np.float32)
            weight += np.float32(LOCAL_SAMPLES[part])
        made[version + 1] = made[version] + (total / weight).ravel()
    return made


def told() -> list[sums.Exchange]:
    return [sums.Exchange(n + 1, n, "synced", 10.0 * (n + 1), counted) for n, counted in enumerate(COUNTED)]


def steps(folder: Path, made: dict[int, sums.Model]) -> dict[int, sums.Steps]:
    """What the clients wrote down: exactly the steps that were counted."""
    for version, counted in enumerate(COUNTED):
        for part, count in counted.items():
            for step in range(count):
                write(folder, part, made[version], step)
    return {part: sums.steps_of(folder / f"part-{part}", part, made) for part in range(6)}


def write(folder: Path, part: int, base: sums.Model, step: int) -> None:
    module = Counter(SMALL)
    module.counts.data += module.counts.new_tensor(base)
    module.part(part).data += step * module.pattern
    write_step(folder / f"part-{part}", module)


def test_local_recomputation_accepts_true_sums(tmp_path: Path):
    made = local_models()
    assert list(sums.wrong_local_sums(told(), made, steps(tmp_path, made))) == []


def test_local_recomputation_finds_step_counted_once_more(tmp_path: Path):
    made = local_models()
    off = np.zeros((CHUNKS, SMALL // CHUNKS), np.float32)
    off[0] = np.float32(LOCAL_SAMPLES[0] / sum(LOCAL_SAMPLES)) * PATTERN  # the lightest client's, in one sum
    known = steps(tmp_path, made)
    made[3] = made[3] + off.ravel()
    (wrong,) = sums.wrong_local_sums(told(), made, known)
    assert wrong.startswith("round 3, version 3: part 0 moved by 1.259, needed 1.185")


def test_local_recomputation_finds_false_history(tmp_path: Path):
    made, claimed = local_models(), told()
    claimed[1] = replace(claimed[1], counted={0: 16, 3: 19})
    assert [line[:7] for line in sums.wrong_local_sums(claimed, made, steps(tmp_path, made))] == ["round 2"]


def test_local_recomputation_finds_steps_that_were_not_done(tmp_path: Path):
    made = local_models()
    known = steps(tmp_path, made)
    path = tmp_path / "part-2"
    path.write_bytes(path.read_bytes()[: -17 * sums.STEP.itemsize])  # all of the last round, one before
    known[2] = sums.steps_of(path, 2, made)
    found = list(sums.wrong_local_sums(told(), made, known))
    assert found == [
        "round 1, version 1: part 2: 9 steps are counted, 8 were done",
        "round 3, version 3: part 2: 16 steps are counted, 0 were done",
    ]


def test_coded_recomputation_finds_codeword_added_twice():
    made = {n: (n * np.tile(PATTERN, CHUNKS)).astype(np.float32) for n in range(4)}
    exact = [sums.Exchange(n + 1, n, "synced", 0.0) for n in range(3)]
    assert list(sums.wrong_coded_sums(exact, made)) == []
    made[2] = made[2].copy()
    made[2][:256] += PATTERN.astype(np.float32)
    assert [line.partition(",")[0] for line in sums.wrong_coded_sums(exact, made)] == ["round 2", "round 3"]


def row(round_: int, version: int, outcome: str = "synced") -> RoundRow:
    zero = {each.name: 0 for each in fields(RoundRow)}
    return RoundRow(**{**zero, "round": round_, "version": version, "outcome": outcome, "clients": ()})


def test_lost_and_repeated_rounds_are_found():
    made = dict.fromkeys(range(4), np.zeros(8, np.float32))
    whole = [row(1, 0), row(2, 1), row(3, 2, "skipped"), row(4, 2)]
    assert (sums.rounds_lost(whole, made), sums.rounds_twice(whole)) == (0, 0)
    assert sums.rounds_lost([whole[0], *whole[2:]], made) == 2, "a round and its version"
    del made[2]
    assert sums.rounds_lost(whole, made) == 1
    assert sums.rounds_twice([*whole, row(5, 2)]) == 1


def test_schedule_is_reproducible_by_seed():
    first, again, other = (list(islice(schedule(seed, ["a", "b"]), 50)) for seed in (3, 3, 4))
    assert first == again != other
    assert {each.client for each in first} == {"a", "b"}
    assert {each.kind for each in first[:4]} == {*OF_CLIENT, Kind.SERVER}
    assert {each.kind for each in first[4:8]} == {*OF_CLIENT, Kind.SUPERLINK}


def test_steps_kept_are_those_that_were_not_done_again(tmp_path: Path):
    made = local_models()
    for step in range(7):
        write(tmp_path, 2, made[0], step)
    at = sums.steps_of(tmp_path / "part-2", 2, made).at[-1]
    killed = Happened(Kind.KILL, "client-2", at, at)
    for step in range(4):
        write(tmp_path, 2, made[0], step)  # its new process begins again
    known = {2: sums.steps_of(tmp_path / "part-2", 2, made)}
    exchange = sums.Exchange(1, 0, "synced", at + 60.0, {2: 4})
    assert list(kept_of([killed], [exchange], known)) == [Kept(killed, 7, 0)]
    exchange = replace(exchange, counted={2: 11})
    assert list(kept_of([killed], [exchange], known)) == [Kept(killed, 7, 7)]
    assert list(kept_of([killed], [replace(exchange, ended=at - 1.0)], known)) == [], "nothing was at stake"


def life(memory: list[float], files: list[int]) -> list[Sample]:
    return [Sample(float(n), n, *each) for n, each in enumerate(zip(memory, files, strict=True))]


def test_slope_is_of_lives_and_not_between_them():
    grows = [1000.0 + (n / 10 if n >= 10 else 5 * n) for n in range(110)]
    low, high = life(grows, [5] * 110), life([each + 4000.0 for each in grows], [5] * 110)
    assert slope_percent([low[:25]]) is None
    assert slope_percent([low]) == pytest.approx(100 * 10.0 / 1006.0, rel=1e-3)
    assert slope_percent([low, high]) == pytest.approx(100 * 10.0 / 3006.0, rel=1e-3)


def test_leaked_files_are_those_above_level_after_warm_up():
    steady = [40] * 10 + [50, 51] * 50
    assert leaked_files([life([1.0] * 110, steady)]) == 0
    leaks = [n // 10 for n in range(110)]
    assert leaked_files([life([1.0] * 110, leaks)]) == 7
    assert leaked_files([life([1.0] * 25, leaks[:25])]) == 0, "too short"


def test_figures_and_rows_are_of_all_work():
    kill, leave = (Happened(kind, "client-1", 1.0, 1.0, 4.0) for kind in (Kind.KILL, Kind.LEAVE))
    local = Soaked("local", faults=[kill, leave], completed=[0.0, 1.0, 8.5], rows=[row(1, 0)], wrong=["no"])
    local.kept = [Kept(kill, 8, 0), Kept(leave, 6, 6)]
    coded = Soaked("coded", completed=[0.0, 2.0], rows=[row(1, 0, "approximate")], lost=2)
    found = figures([local, coded])
    assert found["wrong_sums"] == 1
    assert found["rounds_lost"] == 2
    assert found["rounds"] == 2
    assert found["approximate"] == 1
    assert found["longest_gap_s"] == 7.5
    assert found["steps_kept_per_kill"] == {"SIGTERM": 6.0, "SIGKILL": 0.0}
    told = [each for each in rows(local) if each["times"]]
    assert [(each["fault"], each["steps_kept"]) for each in told] == [
        ("client: SIGKILL", 0),
        ("client: SIGTERM", 6),
    ]


@pytest.mark.contract
@pytest.mark.slow
def test_soak_loses_no_round_and_makes_no_wrong_sum():
    found = bench_soak(2.0, 0).figures
    names = ("wrong_sums", "rounds_lost", "rounds_twice", "tracebacks")
    assert {name: found[name] for name in names} == dict.fromkeys(names, 0)
