import re
from pathlib import Path

import fedgc.secagg
from fedgc.secagg import Privacy
from fedgc.secagg.federation import least_threshold
from fedgc.secagg.graph import graph_for

README = Path(fedgc.secagg.__file__).with_name("README.md").read_text(encoding="utf-8")


def test_readme_thresholds_equal_code(kit):
    rows = re.findall(r"^\| (\d+) \| (\d+) \| (\d+)[^|]* \| (\d+) \|$", README, re.MULTILINE)
    assert len(rows) >= 7
    for row in rows:
        count, threshold, spare, colluders = map(int, row)
        federation = kit.federation(count)
        assert (threshold, spare) == (least_threshold(count), count - federation.quorum)
        assert colluders == federation.colluders


def test_readme_epsilons_equal_code():
    rows = re.findall(r"^\| (\d+) \| (\d+) \| (\d+\.\d+) \|$", README, re.MULTILINE)
    assert len(rows) >= 3
    for noise, exchanges, epsilon in rows:
        privacy = Privacy(1.0, float(noise), int(exchanges), 1e-6)
        assert f"{privacy.spent(int(exchanges)):.3f}" == epsilon


def test_readme_graphs_equal_code():
    row = r"^\| (\d+) \| (\d+) \| (\d+) \| (\d+), (\d+) \| (\d+), (\d+) \| (\d+) \|$"
    rows = re.findall(row, README, re.MULTILINE)
    assert len(rows) >= 6
    for members, threshold, colluders, *numbers in (tuple(map(int, row)) for row in rows):
        graph = graph_for(members, threshold, threshold, colluders, members // 20)
        found = [graph.neighbors, graph.present, graph.holders, graph.shares, graph.checked]
        assert numbers == found
