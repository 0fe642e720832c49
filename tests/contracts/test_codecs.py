"""Laws that hold for every codec, and for frames made with it. A new codec adds one line to CODECS."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cutlayer import wire
from cutlayer.codecs import BY_TAG, Raw
from cutlayer.message import Kind, Message
from cutlayer.seeds import generator
from cutlayer.spec import spec

CODECS = [Raw()]
all_codecs = pytest.mark.parametrize("codec", CODECS, ids=repr)
DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int8,
    torch.uint8,
    torch.bool,
]


def same(a, b):
    """Equal bits, NaN payloads and signed zeros included."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if not a.numel():
        return True
    return torch.equal(*(t.contiguous().reshape(-1).view(torch.uint8) for t in (a, b)))


def tensors():
    shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple)
    return st.builds(
        lambda shape, dtype, seed: torch.randn(shape, generator=generator(seed)).mul(50).to(dtype),
        shapes, st.sampled_from(DTYPES), st.integers(0, 99),
    )  # fmt: skip


@all_codecs
@settings(deadline=None, max_examples=60)
@given(tensor=tensors())
def test_round_trip_is_bit_exact_and_never_larger_than_raw_plus_16(codec, tensor):
    data = codec.encode(tensor)
    assert same(codec.decode(memoryview(bytes(data)), tensor.dtype, tuple(tensor.shape)), tensor)
    assert codec.size(tensor) == len(data) <= tensor.numel() * tensor.element_size() + 16


@all_codecs
def test_odd_tensors(codec):
    odd = [
        torch.tensor([float("nan"), -0.0, float("inf")]),
        torch.arange(24.0).reshape(4, 6).T,  # not contiguous
        torch.arange(24.0)[::2],
        torch.tensor(3.0),
    ]
    for tensor in odd:
        assert same(codec.decode(memoryview(bytes(codec.encode(tensor))), tensor.dtype, tuple(tensor.shape)), tensor)


@all_codecs
def test_it_is_known_by_its_tag_and_its_text(codec):
    assert BY_TAG[codec.tag] == codec
    assert spec(repr(codec), "codecs") == codec


@all_codecs
@settings(deadline=None, max_examples=60)
@given(st.lists(tensors(), max_size=3), st.integers(0, 2**32 - 1), st.integers(0, 2**63))
def test_a_frame_is_the_message(codec, parts, client, step):
    message = Message(Kind.FORWARD, client, step, {f"t{n}": tensor for n, tensor in enumerate(parts)})
    frame = wire.encode(message, codec)
    assert len(frame) == wire.size(message, codec)
    back = wire.decode(frame)
    assert (back.kind, back.client, back.step, list(back.tensors)) == (
        message.kind,
        client,
        step,
        list(message.tensors),
    )
    assert all(same(back[name], message[name]) for name in message.tensors)
