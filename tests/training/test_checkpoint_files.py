"""Files of a run are the old ones or the new ones, whenever the writing of them is broken off."""

import os
from contextlib import contextmanager

import pytest
import safetensors.torch
import torch

from cutlayer.core import files
from cutlayer.training import checkpoint
from cutlayer.wire.transcript import Recorder

OLD = {"net.weight": torch.arange(6.0).reshape(2, 3), "net.bias": torch.ones(2)}
NEW = {name: tensor + 10 for name, tensor in OLD.items()}


class Killed(BaseException):
    """Nothing catches it, as nothing catches a kill."""


@contextmanager
def killed_halfway():
    """Whoever writes a file is killed when half of it is there."""
    write_whole, save_whole = files.write_all, safetensors.torch.save_file

    def write(number, content):
        write_whole(number, content[: len(content) // 2])
        raise Killed

    def save(tensors, path, metadata=None):
        save_whole(tensors, path, metadata=metadata)
        os.truncate(path, os.path.getsize(path) // 2)
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "write_all", write)
        patch.setattr(safetensors.torch, "save_file", save)
        with pytest.raises(Killed):
            yield


def save_checkpoint(path, new):
    checkpoint.save(path, NEW if new else OLD, {"step": 2 if new else 1})


def save_text(path, new):
    checkpoint.write_text(path, "the new history\n" * 9 if new else "the old history\n")


def save_bytes(path, new):
    checkpoint.write_bytes(path, b"new" * 99 if new else b"old")


def save_recording(path, new):
    recorder = Recorder()
    recorder.keep(b"the first frame")
    if new:
        recorder.keep(b"the second frame")
    recorder.save(path)


WAYS = [save_checkpoint, save_text, save_bytes, save_recording]
every_file = pytest.mark.parametrize("save", WAYS, ids=lambda save: save.__name__)


# ------------------------------------------------------------------------------------- broken off
@pytest.mark.parametrize("save", [save_checkpoint, save_text, save_bytes], ids=lambda save: save.__name__)
def test_a_file_whose_writing_was_broken_off_is_the_old_one(save, tmp_path):
    path = tmp_path / "file"
    save(path, new=False)
    before = path.read_bytes()
    with killed_halfway():
        save(path, new=True)
    assert path.read_bytes() == before
    save(path, new=True)  # what was left behind is in nobody's way
    assert path.read_bytes() != before


def test_a_checkpoint_whose_writing_was_broken_off_can_be_resumed_from(tmp_path):
    path = tmp_path / "last.safetensors"
    save_checkpoint(path, new=False)
    with killed_halfway():
        save_checkpoint(path, new=True)
    tensors, facts = checkpoint.load(path)
    assert facts == {"step": 1} and all(torch.equal(tensors[name], OLD[name]) for name in OLD)


def test_a_recording_whose_writing_was_broken_off_is_the_old_one(tmp_path):
    class Frame(bytes):
        def __len__(self):
            raise Killed

    path = tmp_path / "transcript.bin"
    save_recording(path, new=False)
    before = path.read_bytes()
    recorder = Recorder()
    recorder.keep(b"the first frame of many" * 9)
    recorder._frames.append(Frame())
    with pytest.raises(Killed):
        recorder.save(path)
    assert path.read_bytes() == before


def test_the_first_checkpoint_is_whole_or_not_there(tmp_path):
    path = tmp_path / "last.safetensors"
    with killed_halfway():
        save_checkpoint(path, new=True)
    assert not path.exists()


@every_file
def test_who_reads_the_old_file_while_the_new_one_is_written_reads_it_to_its_end(save, tmp_path):
    path = tmp_path / "file"
    save(path, new=False)
    before = path.read_bytes()
    with path.open("rb") as reader:
        save(path, new=True)
        assert reader.read() == before
    assert path.read_bytes() != before and [file.name for file in tmp_path.iterdir()] == ["file"]


@every_file
def test_a_file_gets_its_name_when_its_contents_are_on_the_disk(save, tmp_path, monkeypatch):
    """Else a power cut leaves the name with nothing behind it, and the old file gone. Then the name is kept, too."""
    done, sync, replace = [], os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda file: (done.append(os.fstat(file).st_ino), sync(file)))
    monkeypatch.setattr(os, "replace", lambda old, new: (done.append((os.stat(old).st_ino, new)), replace(old, new)))
    path = tmp_path / "file"
    save(path, new=True)
    number = path.stat().st_ino
    assert done == [number, (number, path), tmp_path.stat().st_ino]


# -------------------------------------------------------------------------------------- snapshots
def snapshots(folder, *numbers):
    kept = checkpoint.Snapshots(folder)
    for number in numbers:
        kept.save(number, OLD, {"number": number})
    return kept


def test_the_last_two_snapshots_stay(tmp_path):
    kept = snapshots(tmp_path, 0, 1, 2, 3)
    assert kept.numbers() == [2, 3] and [kept.load(number)[1]["number"] for number in (2, 3)] == [2, 3]


def test_ten_comes_after_nine(tmp_path):
    assert snapshots(tmp_path, 8, 9, 10).numbers() == [9, 10]


def test_a_snapshot_whose_writing_was_broken_off_costs_no_other_one(tmp_path):
    kept = snapshots(tmp_path, 4, 5)
    with killed_halfway():
        kept.save(6, NEW, {"number": 6})
    assert kept.numbers() == [4, 5]
    with killed_halfway():
        kept.save(4, NEW, {"number": 4})
    assert kept.numbers() == [4, 5] and [kept.load(number)[1]["number"] for number in (4, 5)] == [4, 5]


def test_snapshots_of_another_past_are_gone_once_it_is_written_anew(tmp_path):
    kept = snapshots(tmp_path, 4, 5)
    kept.save(4, NEW, {"number": 4})
    assert kept.numbers() == [4] and torch.equal(kept.load(4)[0]["net.bias"], NEW["net.bias"])
