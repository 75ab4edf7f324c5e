import ast

import numpy as np
import pytest

from benchmarks.worst import just_enough, worst
from fedgc.codes import harmonic_frame
from fedgc.errors import BadSetting
from tools.search_frames import main, polish, search, slope


def test_slope_is_that_of_soft_maximum_on_sphere():
    rng = np.random.default_rng(0)
    frame = rng.standard_normal((3, 5))
    frame /= np.linalg.norm(frame, axis=0)
    members, hardness = just_enough(5, 3), 6.0

    def soft(moved):
        unit = moved / np.linalg.norm(moved, axis=0)
        log = [np.log(np.linalg.cond(unit[:, mask])) for mask in members]
        return np.log(np.exp(hardness * np.array(log)).sum()) / hardness

    found, condition = slope(frame, members, hardness)
    numeric = np.zeros_like(frame)
    for at in np.ndindex(frame.shape):
        step = np.zeros_like(frame)
        step[at] = 1e-6
        numeric[at] = (soft(frame + step) - soft(frame - step)) / 2e-6
    np.testing.assert_allclose(found, numeric, rtol=0, atol=1e-6)
    assert abs(condition - worst(frame).condition) < 1e-9


def test_polishing_never_makes_frame_worse():
    best = harmonic_frame(6, 2)  # nothing better exists
    assert worst(polish(best, 50)).condition <= worst(best).condition


def test_search_beats_harmonic_frame_and_is_repeatable():
    found = search(6, 3, starts=4, steps=400)
    assert worst(found).condition < worst(harmonic_frame(6, 3)).condition
    assert np.array_equal(found, search(6, 3, starts=4, steps=400))


def test_output_is_table(capsys):
    main(["5,3", "--starts", "2", "--steps", "200"])
    table = ast.literal_eval("{" + capsys.readouterr().out + "}")
    assert worst(np.array(table[5, 3])).condition < worst(harmonic_frame(5, 3)).condition


def test_invalid_size_is_refused():
    with pytest.raises(BadSetting, match="size '84'"):
        main(["84"])
