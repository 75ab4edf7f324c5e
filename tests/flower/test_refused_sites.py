"""Test that a site of a masked run that is refused is named, in the log and in the reason of a run."""

import logging

from fedgc.flower.refused_sites import RefusedSites
from fedgc.flower.warn_once import WarnOnce
from fedgc.messages import Refuse

OTHER = Refuse("5e1f", 1, "saw descriptor 0a, needed 1b: compare the files\x1b[2J")


def test_refused_site_of_masked_run_is_warned_of_once(caplog):
    sites = RefusedSites(WarnOnce(logging.getLogger("test")), is_masked=True)
    for _ in range(3):
        sites.told(OTHER, "west")
    assert caplog.messages == ["round 1: west is refused: saw descriptor 0a, needed 1b: compare the files[2J"]
    assert sites.last.startswith("5e1f was refused: saw descriptor 0a")


def test_refusals_of_open_run_are_not_told(caplog):
    sites = RefusedSites(WarnOnce(logging.getLogger("test")), is_masked=False)
    sites.told(OTHER, "west")
    assert (caplog.messages, sites.last) == ([], "")
