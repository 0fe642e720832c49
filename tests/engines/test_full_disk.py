"""A disk that fills up, at whichever operation: one sentence, nothing lost, and the run goes on with more room."""

import errno
import resource
import signal

import pytest
import torch
from full_disk import full_disk

from cutlayer.core import files
from cutlayer.core.errors import DiskFull
from cutlayer.data.digits import Digits
from cutlayer.engines.books import Books
from cutlayer.engines.folder import load_plan
from cutlayer.engines.local import start
from cutlayer.training import checkpoint
from cutlayer.training.plan.plan import Plan

PLAN = Plan(data=Digits(limit=40), epochs=2, batch_size=10, clients=2, private_seed=5)
ENDLESS = 10**9


def trained(folder, room=ENDLESS):
    """Train on a disk with so much room, then with all of it; whether it was too little, and what was done in all."""
    with full_disk(room, where=str(folder)) as disk:
        try:
            start.train(PLAN, folder)
            return False, disk.done
        except DiskFull as error:
            told = str(error)
    assert "make room" in told
    left = {path.name for path in folder.iterdir()} if folder.exists() else set()
    assert not any(name.endswith(files.WRITING) for name in left), "half a file takes up room"
    if "result.json" in left:
        return True, disk.done  # the last thing that was missing is that its name would survive a power cut
    if "last.safetensors" in left:
        start.train(load_plan(folder), folder, resume=True)
    else:
        assert not left, "nothing was begun, and the next command must not find a folder in its way"
        start.train(PLAN, folder)
    return True, disk.done


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("full") / "whole"
    _, operations = trained(folder)
    return checkpoint.load(folder / "last.safetensors")[0], operations


def as_the_undisturbed(folder, whole):
    found, _ = checkpoint.load(folder / "last.safetensors")
    assert found.keys() == whole[0].keys() and all(torch.equal(found[name], whole[0][name]) for name in found)
    assert (folder / "result.json").exists() and not list(folder.glob("*.writing"))


@pytest.mark.parametrize("place", [0.2, 0.55, 0.98])
def test_a_training_run_goes_on_after_a_full_disk(place, whole, tmp_path):
    full, _ = trained(tmp_path / "run", int(place * whole[1]))
    assert full
    as_the_undisturbed(tmp_path / "run", whole)


@pytest.mark.campaign
def test_a_training_run_goes_on_after_a_full_disk_at_every_operation(whole, tmp_path):
    stopped = 0
    for room in range(whole[1]):
        folder = tmp_path / str(room)
        stopped += trained(folder, room)[0]
        as_the_undisturbed(folder, whole)
    assert stopped == whole[1]


def test_the_command_ends_with_one_sentence_and_its_own_exit_code(tmp_path, command):
    out = tmp_path / "run"
    wanted = ("--data", "Digits(limit=40)", "--epochs", 2, "--batch-size", 10, "--clients", 2)
    with full_disk(40, where=str(out)):
        code, _, err = command("train", *wanted, "--out", out)
    assert code == 8 and "make room" in err and "Traceback" not in err and err.count("error:") == 1
    code, _, err = command("train", "--resume", out)
    assert code == 0, err


def test_a_real_limit_on_files_is_told_as_a_full_disk(tmp_path):
    """What the system and safetensors themselves say, not our double of them."""
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
        with pytest.raises(DiskFull, match="no room left for"):
            checkpoint.save(tmp_path / "weights.safetensors", {"a": torch.zeros(10_000)}, {})
        with pytest.raises(DiskFull, match="no room left for"):
            files.write_text(tmp_path / "history.jsonl", "x" * 10_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert list(tmp_path.iterdir()) == []


def test_another_trouble_of_a_disk_is_not_called_a_full_one(tmp_path):
    with pytest.raises(OSError) as found, files.room_for(tmp_path):
        raise OSError(errno.EROFS, "read-only")
    assert not isinstance(found.value, DiskFull)


@pytest.mark.parametrize("room", range(1, 9))
def test_what_the_books_could_not_write_down_does_not_leave(room, tmp_path):
    """At any operation of a turn and its messages; what they then have on disk is what was let go."""
    books, gone = Books(tmp_path, epochs=1, batches=4), []
    with full_disk(room) as disk:
        try:
            for step in range(4):
                books.turn(step, 0, step, step + 1)
                books.release(("FORWARD", step), b"message %d" % step)
                gone.append(step)
                books.snapshots([0, step + 1])
        except DiskFull:
            pass
    assert disk.done > room
    books.close()
    again = Books(tmp_path, epochs=1, batches=4)
    assert again.spent()["batches"] >= len(gone)
    for step in gone:
        assert again.release(("FORWARD", step), b"other") == b"message %d" % step
    again.turn(len(gone), 0, len(gone), len(gone) + 1)
    assert again.release(("FORWARD", len(gone)), b"new") == b"new", "half a message is none"
    again.close()


def test_a_nearly_full_disk_takes_part_of_a_line(tmp_path, monkeypatch):
    """`write` then says how much by its count alone."""
    import os

    real = os.write
    monkeypatch.setattr(os, "write", lambda number, data: real(number, data[:3]))
    books = Books(tmp_path, epochs=1, batches=4)
    books.turn(0, 0, 0, 2)
    assert books.release(("FORWARD", 0), b"message") == b"message"
    books.close()
    again = Books(tmp_path, epochs=1, batches=4)
    assert again.spent()["batches"] == 2 and again.release(("FORWARD", 0), b"other") == b"message"
    again.close()


# ----------------------------------------------------------------------------------- damaged files
def test_a_run_goes_on_from_the_older_checkpoint_where_the_newest_is_truncated(whole, tmp_path, caplog):
    folder = tmp_path / "run"
    asked = iter([False] * 7 + [True])
    with pytest.raises(RuntimeError, match="--resume"):
        start.train(PLAN, folder, follow=start.Following(stop=lambda: next(asked)))
    newest = folder / "last.safetensors"
    newest.write_bytes(newest.read_bytes()[:-50])
    start.train(load_plan(folder), folder, resume=True)
    as_the_undisturbed(folder, whole)
    assert "going on from the one before it" in caplog.text and not list(folder.glob("older*"))


def test_an_emptied_secret_is_named_with_what_can_still_be_done(whole, tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(RuntimeError):
        start.train(PLAN, folder, follow=start.Following(stop=lambda: True))
    (folder / "private.json").write_text("")
    with pytest.raises(ValueError, match=r"private\.json is empty or damaged.*if you chose the seed yourself"):
        load_plan(folder)
    (folder / "private.json").write_text('{"private_seed": 5}')  # what the sentence says
    start.train(load_plan(folder), folder, resume=True)
    as_the_undisturbed(folder, whole)


def test_a_damaged_snapshot_is_set_aside_for_the_older_one(tmp_path, caplog):
    kept = checkpoint.Snapshots(tmp_path)
    for number in (4, 5):
        kept.save(number, {"a": torch.ones(9)}, {})
    for number, left in ((5, [4]), (4, [])):
        path = tmp_path / f"snapshot-{number}.safetensors"
        path.write_bytes(path.read_bytes()[:-9])
        if left:
            kept.set_aside_damaged()
            assert kept.numbers() == left and "damaged snapshot" in caplog.text
    with pytest.raises(checkpoint.CorruptCheckpoint, match="put back a copy"):
        kept.set_aside_damaged()
