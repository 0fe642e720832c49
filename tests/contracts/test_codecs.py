"""Laws that hold for every codec, and for frames made with it. A new codec adds one line to CODECS."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cutlayer.core.message import Kind, Message
from cutlayer.core.seeds import generator
from cutlayer.core.spec import spec
from cutlayer.wire import frames
from cutlayer.wire.codecs import BY_TAG, Half, Prefix, Raw, Sparse

CODECS = [Raw(), Sparse(), Prefix(), Half()]
all_codecs = pytest.mark.parametrize("codec", CODECS, ids=repr)
DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
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


ODD = [float("nan"), float("inf"), -float("inf"), -0.0, 0.0]


def draw(shape, dtype, seed, share, tail):
    """Some values, odd ones among them; `share` of the others are zero, and the last `tail` of every row."""
    dice = generator(seed)
    tensor = torch.randn(shape, generator=dice).mul(50)
    if dtype.is_floating_point:
        tensor = torch.where(torch.rand(shape, generator=dice) < 0.2, ODD[seed % len(ODD)], tensor)
    tensor = torch.where(torch.rand(shape, generator=dice) < share, 0.0, tensor)
    if tail and shape:
        tensor[..., max(0, shape[-1] - tail) :] = 0
    return tensor.to(dtype)


def tensors(most=4, dtypes=DTYPES):
    shapes = st.lists(st.integers(0, most), max_size=4).map(tuple)
    return st.builds(
        draw,
        shapes,
        st.sampled_from(dtypes),
        st.integers(0, 99),
        st.sampled_from([0, 0.5, 0.9, 1]),
        st.integers(0, 4),
    )


@all_codecs
@settings(deadline=None, max_examples=60)
@given(tensor=tensors())
def test_round_trip_is_bit_exact_and_costs_at_most_16_bytes_and_a_bit_per_element_more(codec, tensor):
    data = codec.encode(tensor)
    assert same(codec.decode(memoryview(bytes(data)), tensor.dtype, tuple(tensor.shape)), tensor)
    places = 0 if codec == Raw() else -(-tensor.numel() // 8)
    assert codec.size(tensor) == len(data) <= tensor.numel() * tensor.element_size() + places + 16


@all_codecs
def test_odd_tensors(codec):
    odd = [
        torch.tensor([float("nan"), -0.0, float("inf")]),
        torch.tensor([0x7FC00000, 0x7F800001, -0x3FFFFF, 1, 0], dtype=torch.int32).view(torch.float32),  # payloads
        torch.arange(24.0).reshape(4, 6).T,  # not contiguous
        torch.arange(24.0)[::2],
        torch.tensor([0.0, 2.0]).expand(3, 2),
        torch.arange(2.0 * 3 * 4 * 5).reshape(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.tensor(3.0),
        torch.tensor(0.0),
        torch.tensor(-0.0),
        torch.zeros(0),
        torch.zeros(3, 0),
        torch.zeros(0, 3),
        torch.ones(1, 3, requires_grad=True),
    ]
    for tensor in odd:
        data = codec.encode(tensor)
        assert len(data) == codec.size(tensor)
        assert same(codec.decode(memoryview(bytes(data)), tensor.dtype, tuple(tensor.shape)), tensor)


@all_codecs
@settings(deadline=None, max_examples=60)
@given(tensor=tensors().filter(lambda t: t.numel() > 0))
def test_other_lengths_and_other_shapes_are_refused(codec, tensor):
    data, dtype, shape = bytes(codec.encode(tensor)), tensor.dtype, tuple(tensor.shape)
    for damaged in (data[:-1], data + b"\0", data[: len(data) // 2], b""):
        with pytest.raises(ValueError):
            codec.decode(memoryview(damaged), dtype, shape)
    for claimed in ((*shape, 2), (1 << 20, 1 << 20), (0,)):
        with pytest.raises(ValueError):
            codec.decode(memoryview(data), dtype, claimed)


@all_codecs
def test_it_is_known_by_its_tag_and_its_text(codec):
    assert BY_TAG[codec.tag] == codec
    assert spec(repr(codec), "codecs") == codec


@pytest.mark.parametrize("codec", [None, *CODECS], ids=repr)
@settings(deadline=None, max_examples=60)
@given(st.lists(tensors(), max_size=3), st.integers(0, 2**32 - 1), st.integers(0, 2**63))
def test_a_frame_is_the_message(codec, parts, client, step):
    message = Message(Kind.FORWARD, client, step, {f"t{n}": tensor for n, tensor in enumerate(parts)})
    frame = frames.encode(message, codec)
    assert len(frame) == frames.size(message, codec)
    back = frames.decode(frame)
    assert (back.kind, back.client, back.step, list(back.tensors)) == (
        message.kind,
        client,
        step,
        list(message.tensors),
    )
    assert all(same(back[name], message[name]) for name in message.tensors)


@settings(deadline=None, max_examples=100)
@given(tensors(most=9, dtypes=DTYPES[:4]), st.booleans())
def test_a_frame_by_itself_takes_the_fewest_bytes_and_never_more_than_raw(tensor, channels_last):
    if channels_last and tensor.dim() == 4:
        tensor = tensor.to(memory_format=torch.channels_last)
    message = Message(Kind.BACKWARD, 1, 2, {"dz": tensor})
    frame = frames.encode(message)
    assert len(frame) == frames.size(message) <= frames.size(message, Raw())
    if tensor.numel() >= 64:
        assert len(frame) == min(len(frames.encode(message, codec)) for codec in CODECS)
    assert same(frames.decode(frame)["dz"], tensor)
