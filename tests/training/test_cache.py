import numpy as np
import pytest
import torch

from fedgc.errors import EdgeFailed
from fedgc.training.cache import ClientCache, Saved

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
    cache = ClientCache(2 * saved(0).size_bytes, parent)
    for chunk in range(4):
        assert cache.put(chunk, saved(chunk)) == ""
    assert files(tmp_path) == ["0.npy", "0.pt", "1.npy", "1.pt"]
    for chunk in range(4):
        assert np.array_equal(cache.vector(chunk), saved(chunk).vector)
        back = cache.take(chunk)
        assert np.array_equal(back.vector, saved(chunk).vector)
        assert back.unsent == saved(chunk).unsent
        momentum = back.optimizer["state"][0]["momentum_buffer"]
        assert torch.equal(momentum, torch.full((NUMBERS,), float(chunk)))
        assert cache.take(chunk) is None
    assert files(tmp_path) == []
    cache.close()
    assert list(parent.iterdir()) == []


def test_what_is_put_again_takes_the_place_of_what_was(tmp_path):
    cache = ClientCache(0, tmp_path)
    for value in (1, 2):
        cache.put(7, saved(value))
    assert np.array_equal(cache.vector(7), saved(2).vector)
    assert files(tmp_path) == ["7.npy", "7.pt"]
    cache.clear()
    assert files(tmp_path) == []
    cache.close()


def test_the_folder_is_private_and_made_only_when_it_is_needed(tmp_path):
    cache = ClientCache(saved(0).size_bytes, tmp_path)
    cache.put(0, saved(0))
    assert list(tmp_path.iterdir()) == []
    cache.put(1, saved(1))
    [folder] = tmp_path.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    cache.close()


@pytest.mark.parametrize("failing", ["numpy.save", "torch.save"])
def test_what_a_disk_refuses_stays_until_it_is_given_up_or_something_else_is_dropped(
    tmp_path, monkeypatch, failing
):
    cache = ClientCache(saved(0).size_bytes, tmp_path)
    cache.put(0, saved(0))

    def full(*_):
        raise (OSError if failing == "numpy.save" else RuntimeError)("disk full")

    monkeypatch.setattr(failing, full)
    assert cache.put(1, saved(1)) == cache.make_room() == "disk full"
    assert [cache.saved(chunk).vector[0] for chunk in (0, 1)] == [0, 1]
    assert files(tmp_path) == []
    cache.drop(1)
    assert cache.make_room() == ""
    assert cache.put(1, saved(1)) == "disk full"
    lost = cache.give_up()
    assert list(lost) == [0]
    assert "disk full" in lost[0]
    assert cache.take(0) is None
    assert cache.take(1) is not None
    assert files(tmp_path) == []
    cache.close()


def test_a_file_that_is_gone_or_spoilt_is_named(tmp_path):
    cache = ClientCache(0, tmp_path)
    cache.put(3, saved(3))
    [vector] = tmp_path.rglob("3.npy")
    vector.write_bytes(b"spoilt")
    with pytest.raises(EdgeFailed, match="chunk 3 cannot be read back"):
        cache.vector(3)
    vector.unlink()
    with pytest.raises(EdgeFailed, match="chunk 3 cannot be read back"):
        cache.vector(3)
    cache.close()


@pytest.mark.parametrize("kind", ["npy", "pt"])
def test_spilled_file_with_one_bit_flipped_is_not_read(tmp_path, kind):
    cache = ClientCache(0, tmp_path)
    cache.put(3, saved(3))
    (path,) = tmp_path.rglob(f"3.{kind}")
    whole = path.read_bytes()
    for at in range(0, len(whole), 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        with pytest.raises(EdgeFailed, match="chunk 3 cannot be read back"):
            cache.saved(3)
    cache.close()
