"""What clients need not wait for each other for, and what they need not wait for the body for."""

import threading

import pytest
from toys import TASK, tiny_parts, tiny_plan

from cutlayer.engines.grpc.carrier import GrpcCarrier, side_by_side
from cutlayer.engines.local.run import LocalRun


def test_orders_reach_clients_side_by_side_and_answers_keep_their_order():
    meeting = threading.Barrier(3, timeout=10.0)  # one after the other, nobody would ever meet

    def work(number):
        meeting.wait()
        return -number

    assert side_by_side(work, [1, 2, 3]) == [-1, -2, -3]


def test_one_at_a_time_where_somebody_listens():
    heard = []
    side_by_side(heard.append, list(range(50)), at_once=1)
    assert heard == list(range(50))


def test_everybody_comes_to_an_end_before_the_first_error_is_raised():
    ended, go_on = [], threading.Event()

    def work(number):
        if number == 0:
            go_on.set()
            raise ValueError("lost")
        go_on.wait(10.0)
        ended.append(number)

    with pytest.raises(ValueError, match="lost"):
        side_by_side(work, [0, 1, 2])
    assert sorted(ended) == [1, 2]


def test_who_only_counts_does_not_wait_for_the_body():
    run = LocalRun(tiny_plan(clients=3), tiny_parts(), classes=TASK.classes)
    counted = threading.Event()

    def count():
        GrpcCarrier._learnt(run, 1)
        counted.set()

    with run.coordinator.lock:  # a body computes
        threading.Thread(target=count, daemon=True).start()
        assert counted.wait(10.0)
    assert run.coordinator.progress.step == 1
