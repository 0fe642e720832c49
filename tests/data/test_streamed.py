"""Rows on disk read as they are asked for: the same as in memory, whatever is kept and whoever decodes."""

import os
import pickle
import subprocess
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from cutlayer.core.batch import NO_LABEL
from cutlayer.data import BadNets, ImageFolder, Npz, overlap
from cutlayer.data.base import CorruptData, parts
from cutlayer.data.paths import Paths
from cutlayer.data.room import DECODERS, MEMORY, decoders, image_memory
from cutlayer.data.rows import Rows, Store
from cutlayer.data.streamed import Streamed

SIDE, EACH = 6, 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three classes of twenty small pictures."""
    root, random = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for name in ("ant", "bee", "cat"):
        (root / name).mkdir()
        for number in range(EACH):
            pixels = random.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / name / f"{number}.png")
    return root


@pytest.fixture
def both(folder, monkeypatch):
    """The same folder in memory and on disk, the latter with room for ten images and no other process."""
    whole = ImageFolder(str(folder)).load()
    monkeypatch.setenv(MEMORY, str(10 * 3 * SIDE * SIDE))
    monkeypatch.setenv(DECODERS, "0")
    return whole, ImageFolder(str(folder)).load()


def test_a_set_that_does_not_fit_is_on_disk_and_reads_the_same(both):
    whole, disk = both
    assert isinstance(disk.train.x, Rows) and not isinstance(whole.train.x, Rows)
    for kept, there in ((whole.train, disk.train), (whole.test, disk.test)):
        assert there.x.shape == kept.x.shape and there.x.dtype == kept.x.dtype and there.x.dim() == kept.x.dim()
        for _ in range(2):  # the second time some come out of the cache
            assert torch.equal(there.images(), kept.images())
        index = torch.tensor([3, 0, 3, 1])
        assert torch.equal(there.x[index], kept.x[index]) and torch.equal(there.x[2], kept.x[2])
        assert all(torch.equal(a, b) for a, b in zip(there.x, kept.x, strict=True))


def test_the_holdout_is_the_same_and_nothing_is_read_for_it(both):
    whole, disk = both
    kept, there = (parts(one, aux=9, val=0.2, seed=3) for one in both)
    assert all(part.x.store._count == 0 for part in (there.private, there.val, there.aux, there.test))
    for name in ("private", "val", "aux", "test"):
        one, other = getattr(kept, name), getattr(there, name)
        assert torch.equal(one.x, other.x[:]) and torch.equal(one.y, other.y)
    assert overlap(there.private, there.aux) == 0 and overlap(there.aux, kept.aux) == 9
    assert torch.equal(ImageFolder.load(disk_of(disk), None).train.x[:], whole.train.x)


def disk_of(loaded):
    root = loaded.train.x.store.store.paths[0].parents[1]
    return ImageFolder(str(root))


def test_a_limit_keeps_the_same_rows(folder, both):
    on_disk = ImageFolder(str(folder), limit=7).load()
    assert isinstance(on_disk.train.x, Rows)
    assert len(on_disk.train) == 7
    whole = both[0].train
    rows = {row.numpy().tobytes() for row in whole.x}
    assert all(row.numpy().tobytes() in rows for row in on_disk.train.x)


def test_a_poison_changes_what_is_read(both):
    kept, there = (BadNets(clients=1, share=0.5).spoiled(one.train, seed=4) for one in both)
    assert not torch.equal(kept.x, both[0].train.x)
    assert torch.equal(kept.x, there.x[:]) and torch.equal(kept.y, there.y)
    shown = [BadNets(clients=1).attacked(one.test) for one in both]
    assert torch.equal(shown[0].x, shown[1].x[:])


class Counted(Store):
    """Rows that say their number, and how many were made."""

    shape, dtype = (2,), torch.uint8

    def __init__(self, count):
        self.count, self.made = count, []

    def __len__(self):
        return self.count

    def task(self, which):
        self.made += which.tolist()
        return lambda: which.to(torch.uint8)[:, None].expand(-1, 2).clone()


def test_what_fits_is_kept_and_never_more():
    store = Counted(50)
    rows = Rows(Streamed(store, memory=2 * 10, workers=0))
    for _ in range(3):
        assert torch.equal(rows[:][:, 0].long(), torch.arange(50))
    assert len(store.made) == 50 + 2 * 40  # ten rows fit, and stay
    again = rows[torch.tensor([4, 4, 49, 49])]
    assert again[:, 1].tolist() == [4, 4, 49, 49] and store.made[-2:] == [49, 49]


def test_a_row_asked_for_twice_at_once_is_kept_once():
    store = Counted(5)
    rows = Rows(Streamed(store, memory=2 * 3, workers=0))
    rows[torch.tensor([1, 1, 1, 2])]
    store.made.clear()
    assert rows[torch.tensor([2, 1, 0])][:, 0].tolist() == [2, 1, 0]
    assert store.made == [0]


def test_threads_that_read_at_once_get_their_own():
    """Clients of one process: a row must not be kept in two places, nor two rows in one."""
    rows = Rows(Streamed(Counted(200), memory=2 * 150, workers=0))

    def read(seed):
        draw = torch.Generator().manual_seed(seed)
        index = torch.randint(0, 200, (40, 20), generator=draw)
        return all(torch.equal(rows[one][:, 0].long(), one) for one in index)

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(read, range(16)))
    kept = rows.store._place[rows.store._place >= 0]
    assert len(kept) == len(kept.unique()) == rows.store._count == 150


def test_other_processes_decode_the_same_and_are_asked_ahead(folder, both, monkeypatch):
    monkeypatch.setenv(DECODERS, "1")
    whole, disk = both[0], ImageFolder(str(folder)).load()
    order = torch.randperm(len(disk.train), generator=torch.Generator().manual_seed(0)).split(8)
    for place, index in enumerate(order):
        disk.train.soon(order[place : place + 3])
        assert 1 <= len(disk.train.x.store._coming) <= 3
        assert torch.equal(disk.train.x[index], whole.train.x[index])
    assert not disk.train.x.store._coming  # all that was foretold was asked for
    # Told what never comes, it still gives what is asked.
    disk.train.soon([torch.tensor([1, 2, 3, 50])])
    assert torch.equal(disk.train.x[order[0]], whole.train.x[order[0]])
    copy = pickle.loads(pickle.dumps(disk.train.x))
    assert torch.equal(copy[:5], whole.train.x[:5])
    broken = Streamed(disk.train.x.store.store, 0, 1)
    broken.store.paths[0].rename(folder / "gone.png")
    try:
        with pytest.raises(CorruptData, match=r"ant/\d+\.png is not usable: not a picture that can be read"):
            broken.read(torch.arange(8))
    finally:
        (folder / "gone.png").rename(broken.store.paths[0])


def test_a_run_whose_decoders_died_decodes_by_itself(both, monkeypatch):
    from concurrent.futures.process import BrokenProcessPool

    def dead(*given):
        raise BrokenProcessPool

    monkeypatch.setattr("cutlayer.data.streamed.pool", dead)
    rows = Streamed(both[1].train.x.store.store, 0, 2)
    with pytest.warns(UserWarning, match="have ended, so this one decodes: .*__main__"):
        assert torch.equal(rows.read(torch.arange(9)), both[0].train.x[:9])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rows.read(torch.arange(9))


@pytest.mark.parametrize(("told", "bytes_"), [("500", 500), ("2KB", 2048), ("1.5 MiB", 3 << 19), ("3g", 3 << 30)])
def test_memory_is_told_in_words(monkeypatch, told, bytes_):
    monkeypatch.setenv(MEMORY, told)
    assert image_memory() == bytes_


def test_settings_that_mean_nothing_are_refused(monkeypatch):
    monkeypatch.setenv(MEMORY, "lots")
    with pytest.raises(ValueError, match=r"e\.g\. 4GB or 500MB; got 'lots'"):
        image_memory()
    monkeypatch.setenv(DECODERS, "-1")
    with pytest.raises(ValueError, match="from 0 up; got '-1'"):
        decoders()


def test_paths_take_little_memory_and_stay_what_they_were():
    names = [f"a/ü{number}.png" for number in range(1000)]
    paths = Paths.joined([Paths.of(names[:400]), Paths.of(names[400:])])
    assert [str(path) for path in paths] == names
    assert [str(path) for path in paths.at(torch.tensor([5, 999, 5]))] == [names[5], names[999], names[5]]
    assert len(pickle.dumps(paths)) < 40 * len(names)


@pytest.fixture
def arrays(tmp_path):
    """A folder of .npy files and one archive of the same."""
    random = np.random.default_rng(2)
    x, y = random.integers(0, 256, (40, 5, 6, 3), dtype=np.uint8), np.arange(40) % 4
    maps = np.arange(40 * 30).reshape(40, 5, 6) % 3
    maps[:, 0] = 255

    def write(name, **given):
        (tmp_path / name).mkdir()
        np.savez(tmp_path / f"{name}.npz", **given)
        for key, value in given.items():
            np.save(tmp_path / name / f"{key}.npy", value)
        return str(tmp_path / name)

    return (
        write("classes", x=x, y=y, s_even=y % 2),
        write("maps", x=x, y=maps.astype(np.uint8)),
        write("floats", x=(x / 255).astype(np.float32), y=y),
    )


@pytest.mark.parametrize(("which", "more"), [(0, {}), (1, {"ignore": 255}), (2, {})])
def test_a_folder_of_arrays_reads_as_the_archive_does_whether_it_fits_or_not(arrays, monkeypatch, which, more):
    archive, small = (Npz(arrays[which] + end, **more).load() for end in (".npz", ""))
    monkeypatch.setenv(MEMORY, "100")
    large = Npz(arrays[which], **more).load()
    assert isinstance(large.train.x, Rows) and not isinstance(small.train.x, Rows)
    assert isinstance(large.train.y, Rows) == (which == 1)
    for part in ("train", "test"):
        one, *others = (getattr(loaded, part) for loaded in (archive, small, pickle.loads(pickle.dumps(large))))
        for other in others:
            assert torch.equal(one.x, other.x[:]) and torch.equal(one.y, other.y[:])
            assert all(torch.equal(one.s[name], other.s[name]) for name in one.s)
    assert archive.classes == large.classes


def test_pixels_to_be_ignored_have_no_label(arrays):
    loaded = Npz(arrays[1], ignore=255).load()
    assert (loaded.train.y[:, 0] == NO_LABEL).all() and loaded.classes == ("0", "1", "2")
    with pytest.raises(ValueError, match=r"labels of .* must run from 0 without a gap, but 3 is missing and 255"):
        Npz(arrays[1]).load()
    with pytest.raises(
        ValueError, match=r"ignore=3 is a label of pixels, and y of .* has one a sample: leave it out"
    ):
        Npz(arrays[0], ignore=3).load()


def test_arrays_in_files_are_refused_by_name(arrays, monkeypatch, tmp_path):
    monkeypatch.setenv(MEMORY, "100")
    np.save(tmp_path / "floats" / "x.npy", np.full((40, 5, 6), 7.0, np.float32))
    with pytest.raises(CorruptData, match=r"x\.npy is not usable: images given as floats must lie in \[0, 1\]"):
        Npz(arrays[2]).load().train.images(torch.tensor([0]))
    (tmp_path / "classes" / "y.npy").write_bytes(b"numbers")
    with pytest.raises(CorruptData, match=r"y\.npy is not usable: not a \.npy file"):
        Npz(arrays[0]).load()
    (tmp_path / "maps" / "y.npy").unlink()
    with pytest.raises(CorruptData, match="it has no array 'y', only x"):
        Npz(arrays[1]).load()


_WAITING = """
import os, sys, time
import torch
from cutlayer.data import ImageFolder
from cutlayer.data.streamed import pool
if __name__ == "__main__":
    ImageFolder(sys.argv[1]).load().train.x[torch.arange(32)]
    print(*pool(1, os.getpid())._processes, flush=True)
    time.sleep(600)
"""


@pytest.mark.campaign
def test_decoders_end_with_a_run_that_is_killed(folder, tmp_path):
    script = tmp_path / "waiting.py"
    script.write_text(_WAITING)
    own = {**os.environ, MEMORY: "1KB", DECODERS: "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    run = subprocess.Popen([sys.executable, script, folder], stdout=subprocess.PIPE, text=True, env=own)
    workers = [int(pid) for pid in run.stdout.readline().split()]
    assert workers and all(Path(f"/proc/{pid}").exists() for pid in workers)
    run.kill()
    run.wait()
    for _ in range(100):
        if not any(Path(f"/proc/{pid}").exists() for pid in workers):
            return
        time.sleep(0.1)
    raise AssertionError(f"{workers} are still there")
