"""Sizes that a device is still counting are those of the frames, and nothing is kept alive for them."""

import gc
import weakref
from functools import partial

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from cutlayer.core.batch import Batch, Task
from cutlayer.core.message import Kind, Message
from cutlayer.guards import Quantize, TopK
from cutlayer.guards.chain import Chain
from cutlayer.wire import frames, ledger
from cutlayer.wire.later import Later, settled, together


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def without_ends(tensor):
    tensor[:, tensor.shape[1] // 3 :] = 0
    return tensor


TENSORS = {
    "dense": drawn(4, 64),
    "after a ReLU": drawn(4, 3, 8, 8).relu(),
    "few values": drawn(4, 256) * (drawn(4, 256, seed=1) > 2),
    "rows that end early": without_ends(drawn(8, 90)),
    "nothing but zeros": torch.zeros(4, 64),
    "zeros with a sign": -torch.zeros(4, 64),
    "bfloat16 numbers": drawn(4, 64).bfloat16().float(),
    "float16 numbers": drawn(4, 64).half().float(),
    "float16 numbers and NaN": torch.cat([drawn(4, 64).half().float(), torch.full((1, 64), torch.nan)]),
    "bfloat16 in float64": drawn(4, 64).bfloat16().double(),
    "float64": drawn(4, 64).double(),
    "half": drawn(4, 64).half(),
    "channels last": drawn(4, 3, 8, 8).to(memory_format=torch.channels_last).relu(),
    "few": drawn(5),
    "labels": torch.arange(100),
}


def now(found):
    return settled([found])[0] if isinstance(found, Later) else found


@pytest.mark.parametrize("name", TENSORS)
def test_later_the_size_is_that_of_the_frame(name):
    message = Message(Kind.FORWARD, 0, 0, {"z": TENSORS[name], "y": torch.arange(4)})
    assert now(frames.size_later(message)) == frames.size(message) == len(frames.encode(message))


@pytest.mark.parametrize("guard", [Quantize(bits=4), Chain(TopK(share=0.1), Quantize(bits=4))], ids=str)
def test_prepared_bytes_are_counted_later_too(guard):
    z = drawn(8, 4, 6, 6).relu()
    module = guard.build((4, 6, 6), 0, 1, Task((1, 8, 8), 10))
    seen = module(z, Batch(torch.zeros(8, 1, 8, 8), torch.zeros(8, dtype=torch.long))).seen.detach()
    assert module.packed is not None
    message = Message(Kind.FORWARD, 0, 0, {"z": seen}, {"z": module.packed})
    assert now(frames.size_later(message)) == len(frames.encode(message))


def test_a_ledger_reads_many_sizes_at_once_and_keeps_no_tensor(monkeypatch):
    waits = []
    monkeypatch.setattr(ledger, "_size", frames.size_later)
    monkeypatch.setattr(ledger, "settled", lambda waiting: waits.append(len(waiting)) or settled(waiting))
    monkeypatch.setattr(ledger, "MOST_WAITING", 10)
    book, sizes, alive = ledger.Ledger(), [], []
    for step in range(14):
        message = Message(Kind.FORWARD, 0, step, {"z": drawn(4, 64, seed=step).relu()})
        alive.append(weakref.ref(message["z"]))
        sizes.append(frames.size(message))
        book.note(message, "up")
    del message
    gc.collect()
    assert waits == [10] and not any(one() is not None for one in alive)
    assert book.bytes["FORWARD", "up"] == sum(sizes) and waits == [10, 4]
    restored = ledger.Ledger()
    restored.take(ledger.Ledger.from_dict(book.as_dict()))
    assert restored.bytes == book.bytes and restored.messages == book.messages


class Computing(TorchDispatchMode):
    """Counts operations that compute, and would be launches on a device; views are none."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        self.count += not (func.is_view or func in (torch.ops.aten.detach.default, torch.ops.aten.alias.default))
        return found


def test_counting_a_message_takes_few_launches():
    message = Message(Kind.FORWARD, 0, 0, {"z": TENSORS["after a ReLU"]})
    frames.size_later(message)  # positions are kept from here on
    with Computing() as seen:
        frames.size_later(message)
    assert 0 < seen.count <= 9


def test_sizes_of_parts_come_together_in_their_order():
    both = torch.tensor([3, 4]), torch.tensor(True)
    counted = [Later(both, partial(max)), 7, Later((torch.tensor(5),), lambda facts: facts[0])]
    assert now(together(counted, lambda lengths: int("".join(map(str, lengths))))) == 475
    assert together([1, 2], sum) == 3
