"""What the bytes of a tensor hang on, counted on the device it is on, and without waiting for it."""

import threading
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from .codecs.half import misfits_there
from .codecs.parts.bits import rows_of, words

OFTEN = 32  # messages of one form after which counting them is captured as a graph: that takes as long as many steps
MOST_FORMS, MOST_BYTES = 16, 1 << 26  # how many forms are, and how large: each keeps a tensor of its own


def counted_there(tensor: Tensor) -> tuple[Tensor, ...]:
    """Values that are not zero, those up to the last one of their row, and for each form of two bytes whether some do
    not fit into it; still on the device.

    Every message of a step comes here, and each operation is a launch that the plain loop has not: of forms that
    come often, all of them are one CUDA graph.
    """
    if not tensor.is_cuda or torch.cuda.is_current_stream_capturing():
        return _counts(tensor)
    stream = torch.cuda.current_stream(tensor.device).cuda_stream
    form = tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device, stream
    met = _here.met.get(form, 0)
    if met < OFTEN or tensor.nbytes > MOST_BYTES:
        _here.met[form] = met + 1
        return _counts(tensor)
    if form not in _here.graphs:
        if len(_here.graphs) == MOST_FORMS:
            return _counts(tensor)
        _here.graphs[form] = _Counting(tensor)
    return _here.graphs[form](tensor)


def _counts(tensor: Tensor) -> tuple[Tensor, ...]:
    rows, length = rows_of(tuple(tensor.shape))
    is_kept = words(tensor).reshape(rows, length) != 0
    last = (is_kept * _positions(length, tensor.device)).amax(1)
    return is_kept.sum(), last.sum(), *misfits_there(tensor)


@lru_cache(maxsize=16)
def _positions(length: int, device: torch.device) -> Tensor:
    small = torch.int16 if length < 1 << 15 else torch.int32  # a whole tensor of them is written and read
    return torch.arange(1, length + 1, dtype=small, device=device)


class _Counting:
    """The counts of tensors like this one, in a copy, a graph, and a copy of what comes of it."""

    def __init__(self, like: Tensor):
        self._tensor, self._graph = like.detach().clone(memory_format=torch.preserve_format), torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            self._found = torch.stack([fact.long() for fact in _counts(self._tensor)])

    def __call__(self, tensor: Tensor) -> tuple[Tensor]:
        self._tensor.copy_(tensor.detach())
        self._graph.replay()
        return (self._found.clone(),)  # the next one is counted into the same memory


class _Here(threading.local):
    """A thread's own, since graphs write where they were captured: by form, how often it was met, and its graph."""

    def __init__(self) -> None:
        self.met: dict[Any, int] = {}
        self.graphs: dict[Any, _Counting] = {}


_here = _Here()
