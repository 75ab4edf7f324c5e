import numpy as np
import pytest
import torch

from fedgc.errors import EdgeFailed
from fedgc.train.shelf import Saved, Shelf

NUMBERS = 100


def saved(value):
    momentum = {"state": {0: {"momentum_buffer": torch.full((NUMBERS,), float(value))}}, "param_groups": []}
    return Saved(np.full(NUMBERS, value, np.float32), [torch.tensor(value)], momentum)


def files(folder):
    return sorted(each.name for each in folder.rglob("*.*") if each.is_file())


def test_what_is_kept_is_counted_whole():
    assert saved(1).size_bytes == NUMBERS * 4 + 8 + NUMBERS * 4


def test_over_the_limit_the_oldest_go_to_disk_and_come_back_the_same(tmp_path):
    parent = tmp_path / "made when it is needed"
    shelf = Shelf(2 * saved(0).size_bytes, parent)
    for chunk in range(4):
        assert shelf.put(chunk, saved(chunk)) == ""
    assert files(tmp_path) == ["0.npy", "0.pt", "1.npy", "1.pt"]
    for chunk in range(4):
        assert np.array_equal(shelf.vector(chunk), saved(chunk).vector)
        back = shelf.take(chunk)
        assert np.array_equal(back.vector, saved(chunk).vector)
        assert back.unsent == saved(chunk).unsent
        momentum = back.optimiser["state"][0]["momentum_buffer"]
        assert torch.equal(momentum, torch.full((NUMBERS,), float(chunk)))
        assert shelf.take(chunk) is None
    assert files(tmp_path) == []
    shelf.close()
    assert list(parent.iterdir()) == []


def test_what_is_put_again_takes_the_place_of_what_was(tmp_path):
    shelf = Shelf(0, tmp_path)
    for value in (1, 2):
        shelf.put(7, saved(value))
    assert np.array_equal(shelf.vector(7), saved(2).vector)
    assert files(tmp_path) == ["7.npy", "7.pt"]
    shelf.clear()
    assert files(tmp_path) == []
    shelf.close()


def test_the_folder_is_private_and_made_only_when_it_is_needed(tmp_path):
    shelf = Shelf(saved(0).size_bytes, tmp_path)
    shelf.put(0, saved(0))
    assert list(tmp_path.iterdir()) == []
    shelf.put(1, saved(1))
    [folder] = tmp_path.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    shelf.close()


@pytest.mark.parametrize("failing", ["numpy.save", "torch.save"])
def test_what_a_disk_refuses_stays_until_it_is_given_up_or_something_else_is_dropped(
    tmp_path, monkeypatch, failing
):
    shelf = Shelf(saved(0).size_bytes, tmp_path)
    shelf.put(0, saved(0))

    def full(*_):
        raise (OSError if failing == "numpy.save" else RuntimeError)("disk full")

    monkeypatch.setattr(failing, full)
    assert shelf.put(1, saved(1)) == shelf.make_room() == "disk full"
    assert [shelf.saved(chunk).vector[0] for chunk in (0, 1)] == [0, 1]
    assert files(tmp_path) == []
    shelf.drop(1)
    assert shelf.make_room() == ""
    assert shelf.put(1, saved(1)) == "disk full"
    lost = shelf.give_up()
    assert list(lost) == [0]
    assert "disk full" in lost[0]
    assert shelf.take(0) is None
    assert shelf.take(1) is not None
    assert files(tmp_path) == []
    shelf.close()


def test_a_file_that_is_gone_or_spoilt_is_named(tmp_path):
    shelf = Shelf(0, tmp_path)
    shelf.put(3, saved(3))
    [vector] = tmp_path.rglob("3.npy")
    vector.write_bytes(b"spoilt")
    with pytest.raises(EdgeFailed, match="chunk 3 cannot be read back"):
        shelf.vector(3)
    vector.unlink()
    with pytest.raises(EdgeFailed, match="chunk 3 cannot be read back"):
        shelf.vector(3)
    shelf.close()


@pytest.mark.parametrize("kind", ["npy", "pt"])
def test_spilled_file_with_one_bit_flipped_is_not_read(tmp_path, kind):
    shelf = Shelf(0, tmp_path)
    shelf.put(3, saved(3))
    (path,) = tmp_path.rglob(f"3.{kind}")
    whole = path.read_bytes()
    for at in range(0, len(whole), 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        with pytest.raises(EdgeFailed, match="chunk 3 cannot be read back"):
            shelf.saved(3)
    shelf.close()
