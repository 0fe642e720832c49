"""Never silent: where there is no terminal a line a cell with its time and the time left; threads as asked."""

import re

import pytest
import torch

from cutlayer.audit import progress as room
from cutlayer.audit.jobs import Shown
from cutlayer.audit.parallel import threads_each
from cutlayer.audit.progress import Cells
from cutlayer.audit.rows import Event, Finished
from cutlayer.cli import terminal
from cutlayer.cli.terminal import Bar, CellLines, about
from cutlayer.training.device import prepare, threads_here

QUICK = ["--data", "Digits(limit=150)", "--epochs", "1", "--threads", "1"]


class Clock:
    """Time that passes only when somebody says so."""

    def __init__(self, patch, *modules):
        self.now = 0.0
        for module in modules:
            patch.setattr(module, "time", self)

    def perf_counter(self):
        return self.now

    monotonic = perf_counter


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch, room, terminal)


def test_cells_are_timed_by_their_kind_and_what_is_inside_counts_for_itself(clock):
    events = []
    cells = Cells(events.append, {"training": 2, "attack": 3})
    with cells.making("attack", "a"):
        clock.now += 3
        with cells.making("training", "t"):
            clock.now += 10
            assert cells.left() is None, "nothing was timed yet"
        assert cells.left() is None, "no attack was timed"
        clock.now += 1
    cells.there("attack")
    done = [event.finished for event in events if event.finished]
    assert done == [Finished(1, 5, 10, None), Finished(2, 5, 4, 10 + 2 * 4)]
    assert cells.left() == 10 + 4 and cells.done == 3


def test_the_first_cell_is_estimated_from_its_first_steps_and_once(clock):
    events = []
    cells = Cells(events.append, {"training": 4})
    with cells.making("training", "t"):
        cells("t", 0.5)  # it goes on from its middle
        clock.now += 0.5
        cells("t", 0.51)
        assert not any(event.estimate for event in events), "half a second of one percent tells nothing"
        clock.now += 1.5
        cells("t", 0.55)
        cells("t", 0.56)
    (told,) = [event.estimate for event in events if event.estimate]
    assert told.seconds == pytest.approx(2 / 0.05) and told.to_make == {"training": 4}


def test_without_a_terminal_there_is_a_line_a_cell(command, tmp_path):
    """An audit's are in test_cli.py, where one is run."""
    code, _, err = command(
        "compare", "--with", "batch_size=32", "--with", "batch_size=50", *QUICK, "--no-alone", "--out", tmp_path / "a"
    )
    assert code == 0
    assert re.findall(r"^(\d) of 2  batch_size=\d+, seed 0  \(\d+\.\d s.*\)$", err, re.MULTILINE) == ["1", "2"]
    assert re.search(r"a training takes about \d+ s here, estimated from its first steps; 2 trainings to make", err)


def test_training_says_about_how_long_it_takes(command, tmp_path):
    code, _, err = command("train", *QUICK, "--out", tmp_path / "a")
    assert code == 0 and re.search(r"about \d+ s to go here, estimated from the first \d+%", err)


@pytest.fixture
def lines(capsys):
    """What a bar writes where nobody watches."""
    return lambda: capsys.readouterr().err.splitlines()


def test_a_long_cell_says_that_it_is_still_there(clock, lines):
    with Bar() as bar:
        for minute in range(3):
            bar.show("FORA against none", 0.1 + minute / 100)
            clock.now += 61
    assert lines() == [" 11%  FORA against none", " 12%  FORA against none"]


def test_an_estimate_leaves_out_what_was_done_before(clock, lines):
    with Bar(estimates=True) as bar:
        bar.show("epoch 6", 0.5)
        clock.now += 10
        bar.show("epoch 7", 0.6)
    assert lines() == ["about 40 s to go here, estimated from the first 10%"]


def test_where_others_work_what_is_finished_is_counted(clock, lines):
    with Bar() as bar:
        told = CellLines(bar)
        for count in (2, 2, 3, 5):
            told.counted(Shown(count, 8, ["Decoder (here)"]))
            clock.now += 10
    assert lines() == [
        "2 of 8 jobs (time left unknown yet); now: Decoder (here)",
        "3 of 8 jobs (about 2 min left); now: Decoder (here)",
        "5 of 8 jobs (about 30 s left); now: Decoder (here)",
    ]


def test_a_finished_table_has_no_time_left(lines, clock):
    with Bar() as bar:
        CellLines(bar)(Event("x", 1.0, Finished(4, 4, 2.0, 0.0)))
    assert lines() == ["4 of 4  x  (2.0 s)"]


def test_durations_in_words():
    assert [about(s) for s in (0, 12.4, 119, 3600, 8000)] == ["1 s", "12 s", "2 min", "60 min", "2 h 13 min"]


# ------------------------------------------------------------------------------------------- threads
@pytest.mark.parametrize(
    ("typed", "environment", "found"), [(None, "3", 3), (2, "3", 2), (None, "5,2", 5), (2, None, 2)]
)
def test_threads_are_those_that_were_asked_for(monkeypatch, typed, environment, found):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if environment is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", environment)
    prepare(typed, "cpu")
    assert torch.get_num_threads() == found and threads_each(typed, 2) == max(1, found // 2)


@pytest.mark.parametrize("environment", ["", "many", "0", None])
def test_without_a_number_all_cores_are_taken(monkeypatch, environment):
    monkeypatch.setattr("os.sched_getaffinity", lambda who: set(range(7)), raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if environment is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", environment)
    assert threads_here(None) == 7


def test_what_is_trained_too_is_timed_by_trainings_until_one_was_made(monkeypatch):
    from cutlayer.audit import progress

    clock = iter(range(0, 100, 3))
    monkeypatch.setattr(progress.time, "perf_counter", lambda: float(next(clock)))
    told = []
    cells = progress.Cells(told.append, {"training": 2, "attack": 1, "baseline": 2})
    for kind in ("training", "attack", "baseline"):
        with cells.making(kind, kind):
            pass
    left = [event.finished.left for event in told]
    assert left == [None, 3.0 + 2 * 3.0, 3.0 + 3.0], "no attack was timed at first"
