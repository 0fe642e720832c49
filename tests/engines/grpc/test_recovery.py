"""Who goes away again and again is left out, and a snapshot that all have is a new beginning."""

from types import SimpleNamespace

import pytest

from cutlayer.engines.grpc.admission import LOSSES, STRIKES, banned
from cutlayer.engines.grpc.recovery import Recovery


@pytest.fixture
def recovery(tmp_path):
    coordinator = SimpleNamespace(progress=SimpleNamespace(step=3), snapshot=lambda kept: ({}, {}))
    clients = [SimpleNamespace(name=name, strikes=0, absences=0) for name in "ab"]
    attendance = SimpleNamespace(connections=clients, lose=lambda one: left.append(one.name), skipped=[], exact=True)
    made = Recovery(SimpleNamespace(coordinator=coordinator), attendance, SimpleNamespace(known=[]), tmp_path)
    made.left_out = left = []
    return made


def test_a_client_that_is_lost_too_often_is_left_out(recovery):
    for _ in range(LOSSES):
        recovery.lost("a")
        recovery.lost("b")
    assert recovery.left_out == [] and recovery.astray
    recovery.lost("a")
    assert recovery.left_out == ["a"]


def test_losses_count_from_one_snapshot_to_the_next(recovery):
    for _ in range(3):
        recovery._write(recovery.kept + 1)
        for _ in range(LOSSES):
            recovery.lost("a")
    assert recovery.left_out == []


def test_a_client_that_was_refused_too_often_is_left_out_at_once(recovery):
    recovery.attendance.connections[1].strikes = STRIKES
    recovery.lost("b")
    assert recovery.left_out == ["b"]


def test_who_is_back_at_once_to_be_lost_again_is_struck_for_it(recovery):
    """It was left out and let in again in every round, and the others were led back to the same snapshot for ever."""
    for _ in range(LOSSES + STRIKES):
        assert not banned(recovery.attendance.connections[0])
        recovery.lost("a")
    assert banned(recovery.attendance.connections[0])
