"""Laws that hold for every codec, and for frames made with it. A new codec adds one line to CODECS.

Some codecs take any tensor. Others cannot look for what a tensor is made of: bytes come from whoever made it, so they
meet the laws through the guards that write them, one line in WRITTEN.
"""

import random
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import TASK, batches

from cutlayer.core.message import Kind, Message
from cutlayer.core.seeds import generator, seeded
from cutlayer.core.spec import spec
from cutlayer.guards import HEVC, JPEG, Chain, EntropicStudent, FedLite, Quantize, RateBottleneck, SplitFC, TopK
from cutlayer.wire import frames
from cutlayer.wire.codecs import (
    BY_TAG,
    Codebook,
    Codec,
    Columns,
    Entropy,
    Grid,
    Half,
    Latents,
    Pictures,
    Prefix,
    Prepared,
    Raw,
    Sparse,
    SparseGrid,
)

OF_ANY = [Raw(), Sparse(), Prefix(), Half()]
# Codecs of prepared bytes: guards that write them, and the shape these read.
MAPS, GREY, COLOUR = (4, 5, 5), (1, 12, 9), (3, 12, 9)
WRITTEN = {
    Grid(): [(Quantize(bits=8), MAPS), (Quantize(bits=3, rounding="stochastic"), MAPS), (Quantize(bits=1), (7,))],
    SparseGrid(): [
        (Chain(TopK(share=0.2), Quantize(bits=4)), MAPS),
        (Chain(TopK(share=0.03), Quantize(bits=3, rounding="stochastic")), (99,)),  # so few that places are listed
    ],
    Columns(): [
        (SplitFC(ratio=2, budget=3), MAPS),
        (SplitFC(ratio=10, budget=2), MAPS),  # so few that their places are listed
        (SplitFC(ratio=1.5, budget=8, ends=5), (9,)),
    ],
    Codebook(): [(FedLite(parts=10, groups=2, centroids=4), MAPS), (FedLite(parts=3, centroids=3), (7,))],
    Entropy(): [(Quantize(bits=2, entropy=True), MAPS), (Quantize(bits=4, entropy=True), (99,))],
    Latents(): [
        (RateBottleneck(channels=3, width=4), MAPS),
        (RateBottleneck(channels=2, hyper=0, width=4), MAPS),
        (EntropicStudent(channels=3, width=4), MAPS),
    ],
    Pictures(): [(JPEG(quality=60), GREY), (JPEG(quality=95), COLOUR), (HEVC(quality=60), COLOUR)],
}
CODECS = [*OF_ANY, *WRITTEN]
all_codecs = pytest.mark.parametrize("codec", CODECS, ids=repr)
codecs_of_any = pytest.mark.parametrize("codec", OF_ANY, ids=repr)
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


@codecs_of_any
@settings(deadline=None, max_examples=60)
@given(tensor=tensors())
def test_round_trip_is_bit_exact_and_costs_at_most_16_bytes_and_a_bit_per_element_more(codec, tensor):
    data = codec.encode(tensor)
    assert same(codec.decode(memoryview(bytes(data)), tensor.dtype, tuple(tensor.shape)), tensor)
    places = 0 if codec == Raw() else -(-tensor.numel() // 8)
    assert codec.size(tensor) == len(data) <= tensor.numel() * tensor.element_size() + places + 16


@codecs_of_any
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


@codecs_of_any
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


@pytest.mark.parametrize("codec", [None, *OF_ANY], ids=repr)
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
        assert len(frame) == min(len(frames.encode(message, codec)) for codec in OF_ANY)
    assert same(frames.decode(frame)["dz"], tensor)


# ------------------------------------------------------------------ bytes that were prepared
class Ready(NamedTuple):
    """What a guard sends, and the bytes it says that takes."""

    codec: Codec
    value: torch.Tensor
    packed: Prepared


def ready(dtype=torch.float32, batch=6):
    """One of each line of WRITTEN. What a guard lets through is by definition what the server reads back.

    Most numbers are small, as behind a ReLU: some levels are frequent, which is what entropy coding is for.
    """
    made = []
    for codec, writers in WRITTEN.items():
        for guard, shape in writers:
            with seeded(7):
                module = guard.build(shape, public=1, private=2, task=TASK).to(dtype)
                value = module(torch.rand(batch, *shape).pow(8).to(dtype), batches(1, batch)[0]).seen.detach()
            assert module.packed.tag == codec.tag, f"{guard} writes codec {module.packed.tag} here, not {codec}"
            made.append(Ready(codec, value, module.packed))
    return made


def is_refused(one, data, dtype=None, shape=None):
    """Whether a ValueError says why. What is read instead must have the form that was asked for."""
    dtype, shape = dtype or one.value.dtype, tuple(one.value.shape) if shape is None else shape
    try:
        found = one.codec.decode(memoryview(data), dtype, shape)
    except ValueError as error:
        return bool(str(error).strip())
    assert (found.dtype, tuple(found.shape)) == (dtype, shape)
    return False


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_prepared_bytes_are_the_value_bit_for_bit_and_of_the_size_that_was_counted(dtype):
    for one in ready(dtype):
        data = bytes(one.packed.encode())
        assert one.packed.size() == len(data), one.codec
        assert same(one.codec.decode(memoryview(data), dtype, tuple(one.value.shape)), one.value), one.codec


def test_a_frame_with_prepared_bytes_is_the_message():
    """Bytes that take more than those of another codec stay home; the tensor is the same either way."""
    prepared = []
    for one in ready(batch=40):
        message = Message(Kind.FORWARD, 1, 2, {"z": one.value}, {"z": one.packed})
        frame = frames.encode(message)
        assert len(frame) == frames.size(message) <= frames.size(Message(Kind.FORWARD, 1, 2, {"z": one.value}))
        assert same(frames.decode(frame)["z"], one.value), one.codec
        prepared += [one.codec] * (bytes(one.packed.encode()) in frame)
    assert {*prepared} == {*WRITTEN}, "of these the wire never took the prepared bytes"


def test_prepared_bytes_that_are_too_short_or_too_long_are_refused():
    for one in ready():
        data = bytes(one.packed.encode())
        for cut in {*range(min(64, len(data))), *range(0, len(data), 7), len(data) - 1}:
            assert is_refused(one, data[:cut]), f"{one.codec} reads {cut} of {len(data)} bytes"
        for more in (b"\0", b"\xff", bytes(4), data):
            assert is_refused(one, data + more), f"{one.codec} reads {len(more)} bytes too many"


def test_prepared_bytes_of_another_shape_or_of_whole_numbers_are_refused():
    for one in ready():
        data, shape = bytes(one.packed.encode()), tuple(one.value.shape)
        for claimed in ((*shape, 2), shape[:-1], (shape[0] + 1, *shape[1:]), (1 << 20, 1 << 20), (0,), ()):
            assert is_refused(one, data, shape=claimed), f"{one.codec} reads {shape} as {claimed}"
        for dtype in (torch.int64, torch.int32):  # of these one is as wide as what was sent
            assert is_refused(one, data, dtype=dtype), f"{one.codec} reads floats as whole numbers"


def test_garbage_is_refused_and_damage_never_gives_anything_of_another_form():
    dice = random.Random(3)
    for one in ready():
        data = bytes(one.packed.encode())
        for length in (1, 9, 17, 64, len(data)):
            assert is_refused(one, dice.randbytes(length)), f"{one.codec} reads {length} bytes of garbage"
        refused = 0
        for _ in range(250):
            damaged = bytearray(data)
            # Claims stand at the beginning, where damage does most.
            damaged[dice.randrange(min(len(data), dice.choice([24, 64, len(data)])))] ^= 1 << dice.randrange(8)
            refused += is_refused(one, bytes(damaged))
        assert refused > 25, f"{one.codec} believes nearly everything"


@pytest.mark.parametrize("codec", WRITTEN, ids=repr)
def test_who_only_reads_prepared_bytes_says_so(codec):
    with pytest.raises(NotImplementedError, match="prepares the bytes"):
        codec.encode(torch.zeros(2, 3))
