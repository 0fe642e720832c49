"""A client's books by themselves: what a plan has leaves once, and what is asked for again leaves as it was."""

import pytest

from cutlayer.core.errors import OffPlan
from cutlayer.engines.books import JOURNAL, TAPES, Books
from cutlayer.wire.pieces import Pieces


def open_books(folder, **options):
    return Books(folder, epochs=2, batches=5, **options)


def test_a_batch_leaves_once_an_epoch(tmp_path):
    books = open_books(tmp_path)
    assert not books.turn(0, 0, 0, 5)
    assert not books.turn(0, 0, 0, 5), "a replay is at the same step"
    with pytest.raises(
        OffPlan, match="batch 0 of epoch 0 at step 5, and it was released at step 0: the plan has it once"
    ):
        books.turn(5, 0, 0, 5)
    books.turn(5, 1, 0, 3)
    with pytest.raises(OffPlan, match="batch 2 of epoch 1"):
        books.turn(8, 1, 2, 4)


@pytest.mark.parametrize("order", [(0, 2, 0, 1), (0, -1, 0, 1), (0, 0, 4, 6), (0, 0, -1, 1), (0, 0, 3, 2)])
def test_what_the_plan_does_not_have_is_refused(tmp_path, order):
    with pytest.raises(OffPlan, match="the plan has 5 batches in each of 2 epochs"):
        open_books(tmp_path).turn(*order)


def test_the_count_survives_the_process(tmp_path):
    books = open_books(tmp_path)
    books.turn(0, 0, 0, 5)
    books.evaluation("validate", 1)
    del books  # killed: nothing is closed
    (tmp_path / JOURNAL).open("ab").write(b'["turn", 5, 1, 0')  # half a line: nothing of it has left
    again = open_books(tmp_path)
    with pytest.raises(OffPlan):
        again.turn(5, 0, 0, 1)
    again.turn(5, 1, 0, 5)
    spent = again.spent()
    assert (spent["epochs"], spent["batches"], spent["batches_planned"]) == (2, 10, 10)
    assert spent["validate evaluations"] == 1


def test_books_that_cannot_be_read_are_not_begun_anew(tmp_path):
    (tmp_path / JOURNAL).write_text("nothing of ours\n")
    with pytest.raises(ValueError, match="damaged, so nobody knows what was released: take part anew"):
        open_books(tmp_path)


def test_a_replay_sends_the_same_bytes_whatever_was_computed_now(tmp_path):
    books = open_books(tmp_path)
    assert books.release(("FORWARD", 0, 0, 0), b"first") == b"first"
    assert books.release(("FORWARD", 0, 1, 1), b"second") == b"second"
    assert books.release(("FORWARD", 0, 0, 0), b"other") == b"first"
    again = open_books(tmp_path)
    assert again.release(("FORWARD", 0, 1, 1), b"another") == b"second"
    assert again.spent()["sent_again"] == 1


def test_half_a_message_at_the_end_has_not_left(tmp_path):
    books = open_books(tmp_path)
    books.release(("a",), b"whole")
    books.release(("b",), b"half of it")
    (tape,) = (tmp_path / TAPES).iterdir()
    tape.write_bytes(tape.read_bytes()[:-3])
    again = open_books(tmp_path)
    assert again.release(("b",), b"anew") == b"anew" and again.release(("a",), b"x") == b"whole"
    assert open_books(tmp_path).release(("b",), b"x") == b"anew"


def test_messages_are_kept_since_the_older_of_two_snapshots(tmp_path):
    books = open_books(tmp_path)
    for number in range(4):
        books.snapshots([max(0, number - 1), number])
        books.release((number,), b"%d" % number)
    assert sorted(path.name for path in (tmp_path / TAPES).iterdir()) == ["3-2.frames", "4-3.frames"]
    for one in (books, open_books(tmp_path)):
        assert [one.release((number,), b"new") for number in (2, 3)] == [b"2", b"3"]


def test_a_server_that_numbers_snapshots_backwards_wins_nothing(tmp_path):
    """Snapshots 7 and 8 make the books forget what was sent before them; snapshot 0 does not bring it back."""
    books = open_books(tmp_path)
    books.snapshots([0])
    books.evaluation("validate", 1)
    books.release(("validate", 1, 1), b"sent")
    for numbers in ([7], [7, 8], [0]):
        books.snapshots(numbers)
        one = open_books(tmp_path)
        try:
            one.evaluation("validate", 1)
        except OffPlan:
            continue
        assert one.release(("validate", 1, 1), b"other") == b"sent"
    with pytest.raises(OffPlan):
        books.evaluation("validate", 1)


def test_disks_are_not_filled_and_what_is_not_kept_is_not_computed_anew(tmp_path):
    books = open_books(tmp_path, most_kept=60)
    for number in range(50):
        books.release((number,), bytes(10))
    assert sum(path.stat().st_size for path in (tmp_path / TAPES).iterdir()) <= 100
    with pytest.raises(OffPlan, match="no longer kept"):
        books.release((49,), bytes(10))


def test_an_evaluation_is_one_an_epoch_and_one_a_test(tmp_path):
    books = open_books(tmp_path)
    for epoch in (1, 2, 2):
        books.evaluation("validate", epoch)
    books.evaluation("test", 2)
    books.evaluation("test best", 2)
    for purpose, epoch in (("validate", 3), ("validate", -1), ("test", 1), ("test best", 1)):
        with pytest.raises(OffPlan):
            books.evaluation(purpose, epoch)
    books.snapshots([4])
    books.snapshots([4, 5])  # what was sent for them is gone
    with pytest.raises(OffPlan, match="the plan has one"):
        books.evaluation("validate", 1)


def test_a_step_that_is_made_with_other_samples_draws_other_numbers(tmp_path):
    """A client that was away comes back to its snapshot, and the others are further on."""
    books = open_books(tmp_path)
    books.turn(0, 0, 0, 3)
    assert books.turn(1, 0, 4, 5), "step 1 was batch 1"
    assert not books.turn(3, 1, 0, 1)
    assert open_books(tmp_path).turn(1, 0, 4, 5), "and its replay draws what it drew"


def test_a_frame_in_pieces_is_on_disk_as_it_leaves(tmp_path):
    books, lies = open_books(tmp_path), bytearray(b"as it was then")
    frame = Pieces([b"top ", memoryview(lies)])
    assert books.release(("FORWARD", 0), frame) is frame
    lies[:] = bytes(len(lies))
    books.close()
    again = open_books(tmp_path)
    assert again.release(("FORWARD", 0), b"other") == b"top as it was then"
    again.close()
