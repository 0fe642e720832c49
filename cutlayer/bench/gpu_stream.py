"""Whether pictures are decoded as fast as a GPU learns from them; left out without one."""

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ..data.image_files import PictureRows
from ..data.room import decoders
from ..data.streamed import Streamed, soon_of
from ..nets import ResNet50
from .measurement import Measured
from .stream import FRAME, photographs

BATCH, SHAPE, CLASSES = 64, (3, 224, 224), 1000


def stream_gpu(quick: bool) -> Measured | None:
    """ResNet-50 learns on a GPU from photographs as they are decoded, against the same from memory; batch 64."""
    if not torch.cuda.is_available():
        return None
    steps = 8 if quick else 24
    with tempfile.TemporaryDirectory() as folder:
        paths = photographs(Path(folder), 32)
        if paths is None:
            return None
        many = [paths[number % len(paths)] for number in range(steps * BATCH)]
        rows = Streamed(PictureRows(many, FRAME), memory=0, workers=decoders())
        order = list(torch.arange(len(many)).split(BATCH))
        kept = rows.read(order[0])
        learn = _learner()
        streamed, memory = [], []
        for _ in range(2 if quick else 4):
            streamed.append(_seconds(learn, _decoded(rows, order)))
            memory.append(_seconds(learn, iter([kept] * steps)))
    seconds = median(streamed[1:])
    what = f"the same pictures in memory ({rows.workers} processes decode)"
    return Measured(steps * BATCH / seconds, "images/s", median(memory[1:]) / seconds, what, ">= 0.9")


ENTRIES: dict[str, Callable[[bool], Measured | None]] = {"stream.gpu": stream_gpu}


def _decoded(rows: Streamed, order: list[Tensor]) -> Iterator[Tensor]:
    for place, index in enumerate(order):
        rows.soon(soon_of(order, place))
        yield rows.read(index)


def _learner() -> Callable[[Tensor], None]:
    net = ResNet50(depth=2)
    whole = nn.Sequential(net.head(SHAPE), net.body(SHAPE), net.tail(SHAPE, CLASSES)).cuda().train()
    optimizer, labels = torch.optim.SGD(whole.parameters(), lr=0.01), torch.arange(BATCH, device="cuda")

    def learn(pictures: Tensor) -> None:
        loss = cross_entropy(whole(pictures.cuda().float() / 255), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return learn


def _seconds(learn: Callable[[Tensor], None], batches: Iterator[Tensor]) -> float:
    began = time.perf_counter()
    for one in batches:
        learn(one)
    torch.cuda.synchronize()
    return time.perf_counter() - began
