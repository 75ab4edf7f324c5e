"""Test the queue of runs: its order, who takes an entry, and what is refused."""

import json
import subprocess
import sys

import pytest

from fedgc.errors import Unusable
from fedgc.store.liveness import this_process
from fedgc.store.records import Begun
from fedgc.store.run_queue import AGAIN, INTERRUPTED, RUNNING, WAITING

HERE = this_process().words()
GONE = {**HERE, "began": 0}  # a process of this machine that has ended
ELSEWHERE = {**HERE, "where": "another machine"}


def added(store, *entries):
    for run, priority in entries:
        store.queue.add(run, "/apps/ward", {"run": run, "rounds": 3}, priority, 1000.0)


def runs(store):
    return [each.run for each in store.queue.entries()]


def test_queue_gives_highest_priority_then_oldest(store):
    added(store, ("a", 0), ("b", 5), ("c", 0), ("d", 5))
    assert runs(store) == ["b", "d", "a", "c"]
    taken = []
    while (entry := store.queue.take(HERE, 1001.0)) is not None:
        taken.append(entry.run)
        store.queue.finish(entry.id, "completed", "", 1002.0)
    assert taken == ["b", "d", "a", "c"]


def test_added_entry_is_returned_whole(store):
    added(store, ("a", 2))
    (entry,) = store.queue.entries()
    assert (entry.folder, dict(entry.settings), entry.priority) == (
        "/apps/ward",
        {"run": "a", "rounds": 3},
        2,
    )
    assert (entry.state, entry.added, entry.began, entry.ended) == (WAITING, 1000.0, None, None)


@pytest.mark.parametrize("process", [GONE, ELSEWHERE], ids=["gone", "elsewhere"])
def test_begun_entry_is_taken_again_before_higher_priority(store, process):
    added(store, ("a", 0))
    store.queue.take(process, 1001.0)
    added(store, ("b", 9))
    entry = store.queue.take(HERE, 1002.0)
    assert (entry.run, entry.state, entry.began, dict(entry.process)) == ("a", RUNNING, 1001.0, HERE)


@pytest.mark.parametrize(("process", "state"), [(HERE, RUNNING), (ELSEWHERE, RUNNING), (GONE, INTERRUPTED)])
def test_begun_entry_whose_server_is_gone_is_interrupted(store, process, state):
    added(store, ("a", 0))
    store.queue.take(process, 1001.0)
    (entry,) = store.queue.entries()
    assert (entry.state, entry.reason) == (state, AGAIN if state == INTERRUPTED else "")


def test_entry_of_stopped_server_is_interrupted_from_anywhere(store):
    added(store, ("a", 0), ("b", 0))
    entry = store.queue.take(ELSEWHERE, 1001.0)
    before = store.queue.entries()
    store.queue.interrupt(entry.id)
    assert [each.state for each in before] == [RUNNING, WAITING]
    assert [each.state for each in store.queue.entries()] == [INTERRUPTED, WAITING]
    with pytest.raises(Unusable, match="run a: saw it in the queue already"):
        added(store, ("a", 0))
    again = store.queue.take(HERE, 1002.0)
    assert (again.run, again.state, again.reason, again.began) == ("a", RUNNING, "", 1001.0)


def test_second_server_of_queue_is_refused(store):
    added(store, ("a", 0), ("b", 0))
    store.queue.take(HERE, 1001.0)
    with pytest.raises(Unusable, match=f"saw process {HERE['pid']} serving run a"):
        store.queue.take({**HERE, "pid": 1}, 1002.0)


def test_finished_entry_is_listed_with_reason_and_not_taken(store):
    added(store, ("a", 0), ("b", 0))
    store.queue.finish(store.queue.take(HERE, 1001.0).id, "failed", "north: no disk", 1002.0)
    assert runs(store) == ["b", "a"]
    over = store.queue.entries()[-1]
    assert (over.state, over.reason, over.ended) == ("failed", "north: no disk", 1002.0)
    assert store.queue.take(HERE, 1003.0).run == "b"


def test_run_is_added_again_only_after_its_end(store):
    added(store, ("a", 0))
    with pytest.raises(Unusable, match="run a: saw it in the queue already, as entry 1"):
        added(store, ("a", 3))
    store.queue.finish(store.queue.take(HERE, 1001.0).id, "completed", "", 1002.0)
    added(store, ("a", 0))
    assert [each.state for each in store.queue.entries()] == [WAITING, "completed"]


def test_entry_is_removed_unless_its_server_lives(store):
    added(store, ("a", 0), ("b", 0))
    store.queue.take(HERE, 1001.0)
    with pytest.raises(Unusable, match="saw entry 1 running"):
        store.queue.remove(1)
    assert store.queue.remove(2).run == "b"
    with pytest.raises(Unusable, match="saw no entry 2"):
        store.queue.remove(2)
    added(store, ("c", 0))
    assert [each.id for each in store.queue.entries()] == [1, 3], "numbers are not given again"


def test_pulse_of_run_changes_with_queue(store):
    store.write(Begun(1000.0, "a", {"task": "digits"}))
    pulses = [store.pulse()]
    added(store, ("b", 0))
    pulses.append(store.pulse())
    entry = store.queue.take(HERE, 1001.0)
    pulses.append(store.pulse())
    store.queue.interrupt(entry.id)
    pulses.append(store.pulse())
    store.queue.finish(entry.id, "completed", "", 1002.0)
    pulses.append(store.pulse())
    store.queue.remove(entry.id)
    pulses.append(store.pulse())
    assert len({each.marks for each in pulses[1:5]}) == 4
    assert pulses[0].marks != pulses[1].marks
    assert pulses[5].marks != pulses[4].marks


def test_pulse_changes_when_server_of_queue_is_killed(store):
    store.write(Begun(1000.0, "a", {"task": "digits"}))
    added(store, ("b", 0))
    tells = "import json, sys\nfrom fedgc.store.liveness import this_process\n"
    tells += "print(json.dumps(this_process().words()), flush=True)\nsys.stdin.read()"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", tells], stdin=pipe, stdout=pipe) as server:
        store.queue.take(json.loads(server.stdout.readline()), 1001.0)
        before = store.pulse()
        assert store.pulse() == before
        server.kill()
    assert [each.state for each in store.queue.entries()] == [INTERRUPTED]
    assert store.pulse().marks != before.marks
