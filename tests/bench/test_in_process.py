"""The benchmark of one process compares a split network with the same one unsplit: it refuses others, and runs."""

from cutlayer import Task
from cutlayer.bench.run import _in_process
from cutlayer.nets import LeNet


def test_a_split_step_is_measured_against_the_same_network_unsplit():
    measured = _in_process(LeNet(), Task((1, 28, 28), 10), steps=3, goal=0.9)
    assert measured.ratio > 0
