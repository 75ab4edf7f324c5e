"""Test the reason that a client gives for the end of its script."""

import pytest

from fedgc.training.script.reason import reason_of

PEER = (
    "[rank0]: RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:538] Connection closed by peer "
    "[127.0.0.1]:1234\n"
)
TORCHRUN = """E1124 07:34 119 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: {code})
Traceback (most recent call last):
  File "torchrun", line 6, in <module>
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 11)
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  rank      : 1 (local_rank: 1)
  exitcode  : {code} (pid: 12)
  traceback : {traceback}
============================================================
"""
SEE = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
RAISED = (
    '[rank1]: Traceback (most recent call last):\n[rank1]:   File "train.py"\n[rank1]: ValueError: no data\n'
)
IGNORED = (
    "Exception ignored in: <function tqdm.__del__ at 0x7f>\nTraceback (most recent call last):\n"
    '  File "std.py", line 1154, in __del__\nAttributeError: no format_interval\n'
)


GROUP = """  + Exception Group Traceback (most recent call last):
  |   File "train.py", line 1, in <module>
  | ExceptionGroup: several (1 sub-exception)
  +-+---------------- 1 ----------------
    | {}
    +------------------------------------
"""


@pytest.mark.parametrize(
    ("status", "output", "says"),
    [
        (1, RAISED + PEER + TORCHRUN.format(code=1, traceback=SEE), "exit status 1: ValueError: no data"),
        (1, PEER + RAISED + TORCHRUN.format(code=1, traceback=SEE), "exit status 1: ValueError: no data"),
        (
            1,
            PEER + TORCHRUN.format(code=-9, traceback="Signal 9 (SIGKILL) received by PID 12"),
            "exit status 1: rank 1: Signal 9 (SIGKILL)",
        ),
        (1, PEER, "exit status 1: " + PEER.removeprefix("[rank0]: ").strip()),
        (1, "1: my.own.OddError: it is odd\nsubprocess.CalledProcessError: Command 'x'", "my.own.OddError"),
        (1, "ValueError: no data\n" + IGNORED, "exit status 1: ValueError: no data"),
        (1, IGNORED + "ValueError: no data\n", "exit status 1: ValueError: no data"),
        (1, "no data here\n" + IGNORED, "exit status 1: no data here"),
        (3, "loading\nnothing here\n", "exit status 3: nothing here"),
        (1, GROUP.format("ValueError: no data"), "exit status 1: ValueError: no data"),
        (1, GROUP.format("my.OutOfData: there is none"), "exit status 1: my.OutOfData: there is none"),
        (-9, "loading\n", "killed by SIGKILL"),
        (137, "loading\n", "killed by SIGKILL"),
        (255, "", "exit status 255"),
        (1, "ValueError: " + 1000 * "x", "ValueError: xxx"),
        (1, "fedgc.errors.BadTask: fedgc.join: saw an int", "ended: exit status 1: fedgc.join: saw an int"),
    ],
)
def test_reason_is_exception_that_others_followed(status: int, output: str, says: str):
    reason = reason_of(status, output)
    assert says in reason
    assert reason.startswith("the script ended: ")
    assert "\n" not in reason
    assert len(reason) < 400
