"""What the bytes of a tensor hang on, counted on the device it is on, and without waiting for it."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .codecs.half import misfits_there
from .codecs.parts.bits import rows_of, words

OFTEN = 32  # messages of one form after which counting them is captured as a graph: that takes as long as many steps
MOST_FORMS, MOST_BYTES = 16, 1 << 27  # how many are kept, and of how many bytes: each has a tensor of its own


def counted_there(tensor: Tensor) -> tuple[Tensor, ...]:
    """Values that are not zero, those up to the last one of their row, and for each form of two bytes whether some do
    not fit into it; still on the device.

    Every message of a step comes here, and each operation is a launch that the plain loop has not: of forms that
    come often, all of them are one CUDA graph.
    """
    if not tensor.is_cuda or torch.cuda.is_current_stream_capturing():
        return _counts(tensor)
    stream = torch.cuda.current_stream(tensor.device).cuda_stream
    return _here.counting(tensor, stream)


def _counts(tensor: Tensor) -> tuple[Tensor, ...]:
    rows, length = rows_of(tuple(tensor.shape))
    is_kept = words(tensor).reshape(rows, length) != 0
    last = (is_kept * _positions(length, tensor.device)).amax(1)
    return is_kept.sum(), last.sum(), *misfits_there(tensor)


# Never let go: graphs that were captured read them where they lie.
_places: dict[tuple[int, torch.device], Tensor] = {}


def _positions(length: int, device: torch.device) -> Tensor:
    """1, 2, … for a row. What is made inside a capture is there only once that is replayed, so it is not kept."""
    if (known := _places.get((length, device))) is not None:
        return known
    small = torch.int16 if length < 1 << 15 else torch.int32  # a whole tensor of them is written and read
    made = torch.arange(1, length + 1, dtype=small, device=device)
    if not (made.is_cuda and torch.cuda.is_current_stream_capturing()):
        _places[length, device] = made
    return made


class _Counting:
    """The counts of tensors like this one, in a copy, a graph, and a copy of what comes of it."""

    def __init__(self, like: Tensor):
        self._tensor, self._graph = like.detach().clone(memory_format=torch.preserve_format), torch.cuda.CUDAGraph()
        self.nbytes = self._tensor.nbytes
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            self._found = torch.stack([fact.long() for fact in _counts(self._tensor)])

    def __call__(self, tensor: Tensor) -> tuple[Tensor]:
        self._tensor.copy_(tensor.detach())
        self._graph.replay()
        return (self._found.clone(),)  # the next one is counted into the same memory


class Graphs(threading.local):
    """A thread's own graphs, since they write where they were captured; those that were used last."""

    def __init__(self) -> None:
        self.met: dict[Any, int] = {}  # how often a form came that has no graph
        self.graphs: OrderedDict[Any, Any] = OrderedDict()

    def counting(
        self, tensor: Tensor, stream: int, capture: Callable[[Tensor], Any] = _Counting
    ) -> tuple[Tensor, ...]:
        form = tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device, stream
        if form not in self.graphs:
            self.met[form] = self.met.get(form, 0) + 1
            if self.met[form] <= OFTEN or tensor.nbytes > MOST_BYTES:
                return _counts(tensor)
            del self.met[form]
            while self.graphs and (len(self.graphs) == MOST_FORMS or self._bytes() + tensor.nbytes > MOST_BYTES):
                self.graphs.popitem(last=False)
            self.graphs[form] = capture(tensor)
        self.graphs.move_to_end(form)
        return self.graphs[form](tensor)

    def _bytes(self) -> int:
        return sum(graph.nbytes for graph in self.graphs.values())


_here = Graphs()
