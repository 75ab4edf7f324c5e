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


def test_kept_bytes_are_counted_whole():
    assert saved(1).size_bytes == NUMBERS * 4 + 8 + NUMBERS * 4


def test_oldest_entries_spill_over_limit_and_return_equal(tmp_path):
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


def test_repeated_put_replaces_entry(tmp_path):
    cache = ClientCache(0, tmp_path)
    for value in (1, 2):
        cache.put(7, saved(value))
    assert np.array_equal(cache.vector(7), saved(2).vector)
    assert files(tmp_path) == ["7.npy", "7.pt"]
    cache.clear()
    assert files(tmp_path) == []
    cache.close()


def test_folder_is_private_and_made_on_demand(tmp_path):
    cache = ClientCache(saved(0).size_bytes, tmp_path)
    cache.put(0, saved(0))
    assert list(tmp_path.iterdir()) == []
    cache.put(1, saved(1))
    [folder] = tmp_path.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    cache.close()


@pytest.mark.parametrize("failing", ["numpy.save", "torch.save"])
def test_entry_refused_by_disk_stays_until_dropped(tmp_path, monkeypatch, failing):
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
    lost = cache.discard_oldest()
    assert list(lost) == [0]
    assert "disk full" in lost[0]
    assert cache.take(0) is None
    assert cache.take(1) is not None
    assert files(tmp_path) == []
    cache.close()


def test_missing_or_damaged_file_is_named(tmp_path):
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
def test_spilled_file_with_flipped_bit_is_not_read(tmp_path, kind):
    cache = ClientCache(0, tmp_path)
    cache.put(3, saved(3))
    (path,) = tmp_path.rglob(f"3.{kind}")
    whole = path.read_bytes()
    for at in range(0, len(whole), 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        with pytest.raises(EdgeFailed, match="chunk 3 cannot be read back"):
            cache.saved(3)
    cache.close()
