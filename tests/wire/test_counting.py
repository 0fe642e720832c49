"""Counts of what lies on a device: which of their graphs are kept, and for how long."""

import pytest
import torch

from cutlayer.wire import counting
from cutlayer.wire.counting import MOST_BYTES, MOST_FORMS, OFTEN, Graphs


class Fake:
    """A graph, so to speak."""

    def __init__(self, like):
        self.nbytes = like.nbytes

    def __call__(self, tensor):
        return ("a graph's",)


def often(graphs, tensor, times=OFTEN + 1):
    return [graphs.counting(tensor, 0, Fake) == ("a graph's",) for _ in range(times)]


def test_a_form_that_comes_often_gets_a_graph():
    graphs = Graphs()
    assert often(graphs, torch.ones(2, 3), OFTEN + 2) == [False] * OFTEN + [True, True]
    assert often(graphs, torch.ones(3, 2), 1) == [False]


def test_forms_of_a_later_run_get_graphs_as_well_and_the_oldest_go():
    graphs = Graphs()
    for width in range(1, MOST_FORMS + 4):
        assert often(graphs, torch.ones(1, width))[-1]
        often(graphs, torch.ones(1, 1), 1)  # in use all the time
    assert len(graphs.graphs) == MOST_FORMS and not graphs.met
    assert often(graphs, torch.ones(1, 1), 1) == [True] and often(graphs, torch.ones(1, 2), 1) == [False]


def test_what_they_keep_is_bounded(monkeypatch):
    monkeypatch.setattr(counting, "MOST_BYTES", 100)
    graphs = Graphs()
    for width in (10, 11, 12):
        assert often(graphs, torch.ones(width))[-1]
        assert sum(one.nbytes for one in graphs.graphs.values()) <= 100
    assert len(graphs.graphs) == 2 and MOST_BYTES >= 1 << 20
    assert not any(often(graphs, torch.ones(26)))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="graphs are CUDA's")
def test_positions_that_a_capture_made_are_not_kept():
    graph, length = torch.cuda.CUDAGraph(), 12_345
    counting.counted_there(torch.ones(2, 3, device="cuda"))
    with torch.cuda.graph(graph):
        counting._counts(torch.ones(2, length, device="cuda"))
    assert (length, torch.device("cuda", 0)) not in counting._places
