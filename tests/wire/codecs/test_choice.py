"""The codec a tensor gets when none is named: the smallest, found by counting."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cutlayer.core.message import Kind, Message, through
from cutlayer.core.remote import Remote
from cutlayer.core.seeds import generator
from cutlayer.core.server import Server
from cutlayer.guards import Quantize
from cutlayer.guards.base import Support
from cutlayer.wire import frames
from cutlayer.wire.choice import fewest_bytes, smallest, smallest_later
from cutlayer.wire.codecs import Half, Prefix, Raw, Sparse
from cutlayer.wire.counting import OFTEN
from cutlayer.wire.later import settled

ALL = (Raw(), Sparse(), Prefix(), Half())


def some(shape, share, seed=0):
    """Of this many values a `share` is not zero. (A product with a mask would have -0.0 among its zeros.)"""
    dice = generator(seed)
    return torch.where(torch.rand(shape, generator=dice) < share, torch.randn(shape, generator=dice), 0.0)


def low_pass(rows, length, most, seed=0):
    """Rows that end in zeros."""
    kept = torch.randint(most + 1, (rows, 1), generator=generator(seed))
    return torch.where(torch.arange(length) < kept, some((rows, length), 0.99, seed), 0.0)


@pytest.mark.parametrize(
    ("tensor", "codec"),
    [
        (some((64, 20, 12, 12), 1), Raw()),
        (some((64, 20, 12, 12), 0.98), Raw()),  # a bit an element is a 32nd: so many have to be zero at least
        (some((64, 20, 12, 12), 0.95), Sparse()),
        (some((8, 4096), 0.5), Sparse()),
        (some((8, 4096), 0.001), Sparse()),
        (torch.zeros(64, 4096), Sparse()),
        (low_pass(512, 64, 64), Prefix()),
        (low_pass(512, 64, 5), Prefix()),
        (low_pass(512, 64, 64).double(), Prefix()),
        (low_pass(512, 64, 64).bfloat16().reshape(2, 16, 16, 64), Prefix()),
        (low_pass(512, 64, 64).flip(1), Sparse()),
        (low_pass(512, 64, 64).T, Sparse()),
        # The rows looked at first are as Prefix wants them and the others are not, and the other way round.
        (torch.cat([low_pass(2, 64, 9), some((14, 64), 0.6)]), Sparse()),
        (torch.cat([some((1, 64), 0.6), low_pass(63, 64, 60)]), Prefix()),
        (some((64, 4096), 1).bfloat16().float(), Half()),
        (some((64, 4096), 0.6).bfloat16().double(), Half()),
        (some((64, 4096), 0.3).bfloat16().float(), Sparse()),
        (torch.zeros(63), Raw()),
        (torch.zeros(1000, dtype=torch.int64), Raw()),
    ],
)
def test_who_gets_which(tensor, codec):
    chosen, count = smallest(tensor)
    assert (chosen, count) == (codec, codec.size(tensor))


@settings(deadline=None, max_examples=150)
@given(
    st.integers(1, 40), st.integers(1, 40), st.sampled_from([0, 0.03, 0.3, 0.7, 0.9, 0.95, 1]), st.integers(0, 40),
    st.sampled_from([torch.float16, torch.float32, torch.float64]), st.integers(0, 99),
)  # fmt: skip
def test_it_is_the_smallest_of_all(rows, length, share, most, dtype, seed):
    tensor = some((rows, length), share, seed).to(dtype)
    if seed % 3:
        tensor[low_pass(rows, length, most, seed + 1) == 0] = 0
    codec, count = smallest(tensor)
    assert count == codec.size(tensor) == len(codec.encode(tensor))
    assert count >= fewest_bytes(tensor.numel(), tensor.element_size(), int((tensor != 0).sum()))
    if tensor.numel() >= 64:
        assert count == min(other.size(tensor) for other in ALL)
    else:
        assert codec == Raw()


@pytest.mark.parametrize("share", [0, 0.02, 0.1, 0.3, 0.6, 1])
@pytest.mark.parametrize("bits", [1, 2, 4, 8, 12, 16])
def test_who_brings_fewer_bytes_than_there_can_be_is_not_compared(bits, share, monkeypatch):
    """And the frame is what it is after comparing."""
    tensor, packed = Quantize(bits=bits).compress(some((32, 120), share))
    message = Message(Kind.FORWARD, 0, 0, {"z": tensor}, {"z": packed})
    asked = []
    monkeypatch.setattr(frames, "smallest", lambda *given: asked.append(given) or smallest(*given))
    found = frames.encode(message)
    quick = not asked
    monkeypatch.setattr(frames, "fewest_bytes", lambda *given: 0)
    assert frames.encode(message) == found and asked
    assert quick or bits * share < 1 or bits == 16, "as it mostly is"


def test_weights_go_raw_and_everything_else_by_content():
    tensors = {"w": torch.zeros(100, 100)}
    assert frames.size(Message(Kind.WEIGHTS, 0, 0, tensors)) > 40_000
    for kind in (Kind.FORWARD, Kind.BACKWARD, Kind.LOSS, Kind.PREDICT):
        assert frames.size(Message(kind, 0, 0, tensors)) < 100


def test_the_answer_to_a_sparse_question_is_as_sparse():
    """Forward and back: what a guard left out costs nothing on the way back either, whatever the gradient's sign."""
    net = torch.nn.Sequential(Support(), torch.nn.Linear(200, 10))
    server, told = Server(net), []

    def listen(message, handle):
        told.extend((message, answer := handle(message)))
        return answer

    z = some((32, 200), 0.1).requires_grad_()
    Remote(0, through([listen], server.handle)).body(z).square().sum().backward()
    places = 32 * 200 // 8 + 9
    assert int((z.grad != 0).sum()) == int((z != 0).sum())
    for message, name in ((told[0], "z"), (told[3], "dz")):
        assert frames.size(message) <= 64 + places + 4 * int((z != 0).sum())
        assert torch.equal(frames.decode(frames.encode(message))[name], message[name])


def test_channels_last_rows_are_those_of_the_memory():
    """Trailing channels are zero: rows of the tensor as it lies in memory, not of its shape."""
    maps = some((4, 16, 6, 6), 1).to(memory_format=torch.channels_last)
    maps[:, 9:] = 0
    message = Message(Kind.FORWARD, 0, 0, {"z": maps})
    frame = frames.encode(message)
    assert len(frame) == frames.size(message) == frames.size(message, Prefix()) < frames.size(message, Sparse())
    back = frames.decode(frame)["z"]
    assert torch.equal(back, maps) and back.stride() == maps.stride()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_tensor_on_a_gpu_is_counted_there():
    for tensor in (some((64, 4096), 1), some((64, 4096), 0.1), low_pass(512, 64, 64), torch.zeros(64, 64)):
        far = tensor.cuda()
        assert smallest(far) == smallest(tensor)
        assert all(codec.size(far) == codec.size(tensor) for codec in ALL)
        assert all(bytes(codec.encode(far)) == bytes(codec.encode(tensor)) for codec in ALL)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="graphs are CUDA's")
def test_counts_of_a_form_that_comes_often_are_those_of_each_tensor():
    kept = [some((64, 256), share).cuda() for share in (1, 0.5, 0.1, 0.0)] + [low_pass(64, 16, 16).cuda()]
    tensors = [kept[place % 4] for place in range(3 * OFTEN)] + [kept[4]] * (OFTEN + 2)
    found = [smallest_later(one) for one in tensors]
    assert len(found[-1].facts) == 1 < len(found[0].facts)  # the last ones were counted by a graph
    assert settled(found) == [smallest(one.cpu())[1] for one in tensors]
