"""One folder, one process: who comes second hears whose it is, and nothing is left of what was never begun."""

import contextlib
import os
import signal

import pytest

from cutlayer.audit import matrix
from cutlayer.core.errors import Interrupted
from cutlayer.data.digits import Digits
from cutlayer.engines import taken as room
from cutlayer.engines.folder import load_plan
from cutlayer.engines.local import start
from cutlayer.engines.taken import AT_ONCE, LOCK, FolderLock, taken
from cutlayer.training.plan.plan import Plan

PLAN = Plan(data=Digits(limit=40), epochs=1, batch_size=10, clients=2, private_seed=5)
AUDIT = ["--data", "Digits(limit=200)", "--epochs", "1", "--threads", "1", "--attack", "Decoder(steps=5)"]
AUDIT += ["--no-alone", "--images", "16"]


@contextlib.contextmanager
def another_process(folder):
    """One that has taken a folder, killed at the end; its number."""
    heard, told = os.pipe()
    number = os.fork()
    if number == 0:
        with taken(folder, "train"):
            os.write(told, b"!")
            signal.pause()
    try:
        assert os.read(heard, 1) == b"!"
        yield number
    finally:
        os.kill(number, signal.SIGKILL)
        os.waitpid(number, 0)
        os.close(heard)
        os.close(told)


def test_a_second_process_hears_who_has_the_folder_and_a_crash_frees_it(tmp_path):
    with another_process(tmp_path / "a") as number:
        for resume in (None, tmp_path / "a"):
            with (
                pytest.raises(BlockingIOError, match=rf"another process \({number}\) goes on in .*/a: wait until"),
                taken(tmp_path / "a", "train", resume),
            ):
                pass
    assert (tmp_path / "a" / LOCK).exists(), "it was killed, and could not clean up"
    with taken(tmp_path / "a", "train") as folder:
        (folder / "result.json").write_text("{}")
    assert [path.name for path in folder.iterdir()] == ["result.json"]


@pytest.mark.parametrize("command_line", [["train"], ["audit"], ["compare", "--with", "clients={2,3}"], ["costs"]])
def test_no_command_writes_where_another_process_does(command, tmp_path, command_line):
    with another_process(tmp_path / "a") as number:
        code, out, err = command(*command_line, "--data", "Digits(limit=200)", "--out", tmp_path / "a")
        assert code == 1 and out == "" and f"another process ({number}) goes on in" in err, err
        assert [path.name for path in (tmp_path / "a").iterdir()] == [LOCK]


def test_a_run_is_not_resumed_twice_at_once(tmp_path):
    folder, asked = tmp_path / "a", iter([False, True])
    with pytest.raises(Interrupted):
        start.train(PLAN, folder, follow=start.Following(stop=lambda: next(asked)))
    said = []

    def again(run):
        with pytest.raises(BlockingIOError) as found:
            start.train(load_plan(folder), folder, resume=True)
        said.append(str(found.value))

    start.train(load_plan(folder), folder, resume=True, follow=start.Following(on_start=again))
    assert f"({os.getpid()}) goes on in {folder}" in said[0] and not (folder / LOCK).exists()


def test_an_audit_has_its_folder_before_its_first_cell(command, tmp_path, monkeypatch):
    said, usual = [], matrix.Matrix.marks

    def second(self, open_cut):
        monkeypatch.setattr(matrix.Matrix, "marks", usual)
        said.append(command("audit", *AUDIT, "--out", tmp_path / "a"))
        return usual(self, open_cut)

    monkeypatch.setattr(matrix.Matrix, "marks", second)
    code, _, err = command("audit", *AUDIT, "--out", tmp_path / "a")
    assert said[0][0] == 1 and "goes on in" in said[0][2] and code == 0, err


def test_two_that_begin_in_one_second_have_folders_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    class Still(room.datetime):
        @classmethod
        def now(cls):
            return cls(2026, 1, 2, 3, 4, 5)

    monkeypatch.setattr(room, "datetime", Still)
    with taken(None, "train") as first, taken(None, "train") as second:
        (second / "plan.json").write_text("{}")
        assert [str(first), str(second)] == ["runs/train-20260102-030405", "runs/train-20260102-030405-2"]
    assert not first.exists() and (second / "plan.json").exists()


def test_what_was_made_for_nothing_is_gone_and_what_was_there_stays(tmp_path):
    (tmp_path / "mine").mkdir()
    for out in ("new", "deep/er/new", "mine"):
        with contextlib.suppress(ValueError), taken(tmp_path / out, "train") as folder:
            assert [path.name for path in folder.iterdir()] == [LOCK]
            raise ValueError("data that nobody has")
    assert [path.name for path in tmp_path.rglob("*")] == ["mine"]


def test_what_killed_processes_left_half_written_is_not_in_the_way(tmp_path):
    (tmp_path / "last.safetensors.77.writing").write_bytes(b"half")
    (tmp_path / "ab.writing").mkdir()
    (tmp_path / "ab.writing" / "report.html").write_bytes(b"half")
    with taken(tmp_path, "train") as folder:
        assert [path.name for path in folder.iterdir()] == [LOCK]


def test_a_lock_that_was_taken_away_meanwhile_is_another_one(tmp_path, monkeypatch):
    """Between opening and locking the file its holder removed it: who then holds it holds nothing."""
    usual, first = room._flock, FolderLock(tmp_path)

    def late(number):
        if not first._file.closed:
            first.release()
        usual(number)

    monkeypatch.setattr(room, "_flock", late)
    second = FolderLock(tmp_path)
    monkeypatch.setattr(room, "_flock", usual)
    with pytest.raises(BlockingIOError):
        FolderLock(tmp_path)
    second.release()
    second.release()
    assert list(tmp_path.iterdir()) == []


def test_where_there_are_no_locks_nobody_is_kept_out(tmp_path, monkeypatch):
    import errno
    import fcntl

    def none(number, how):
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    with taken(tmp_path / "a", "train"):
        FolderLock(tmp_path / "a").release()


@pytest.mark.parametrize("kind", sorted(AT_ONCE))
def test_a_command_that_never_goes_on_names_no_option_for_it(tmp_path, kind, command):
    (tmp_path / "note").write_text("mine")
    with pytest.raises(FileExistsError, match=r"is not empty: choose another --out$"), taken(tmp_path, kind):
        pass
    assert "--resume" not in command(kind, "--help")[1]


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("note", "note is a file, and results go into a folder"),
        ("note/deeper", "note is a file, and results go into a folder"),
        ("full", "exists and is not empty: choose another --out, or go on in it with --resume"),
        ("gone", "no permission to write in"),
    ],
)
def test_a_folder_that_cannot_be_is_refused_and_untouched(tmp_path, monkeypatch, path, said):
    (tmp_path / "note").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "note").write_text("mine")
    if path == "gone":
        monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write everywhere: this is said for it
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(OSError, match=said), taken(tmp_path / path, "train"):
        pass
    assert sorted(tmp_path.rglob("*")) == before
