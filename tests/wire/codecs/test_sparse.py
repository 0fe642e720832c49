"""Sparse: its exact bytes, against a second way of writing them, and what it refuses."""

import struct

import pytest
import torch

from cutlayer.core.seeds import generator
from cutlayer.wire.codecs import Raw, Sparse

BITMAP, INDICES = 0, 1


def with_nonzeros(elements, kept, dtype=torch.float32, seed=0):
    tensor = torch.zeros(elements, dtype=dtype)
    tensor[torch.randperm(elements, generator=generator(seed))[:kept]] = torch.arange(1, kept + 1).to(dtype)
    return tensor


def by_hand(tensor, form):
    """The format as docs/wire.md has it, one bit after the other."""
    flat = tensor.reshape(-1)
    at = [i for i, raw in enumerate(bytes_of(flat)) if any(raw)]
    width = (len(flat) - 1).bit_length()
    if form == BITMAP:
        bits, number = len(flat), sum(1 << i for i in at)
    else:
        bits, number = len(at) * width, sum(index << (width * place) for place, index in enumerate(at))
    places = number.to_bytes(-(-bits // 8), "little")
    return struct.pack("<BII", form, len(flat), len(at)) + places + b"".join(bytes_of(flat)[i] for i in at)


def bytes_of(flat):
    raw, each = bytes(Raw().encode(flat)), flat.element_size()
    return [raw[i : i + each] for i in range(0, len(raw), each)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.uint8], ids=str)
@pytest.mark.parametrize(
    ("elements", "kept", "form"),
    [(1000, 300, BITMAP), (1000, 101, BITMAP), (1000, 99, INDICES), (1025, 4, INDICES), (1024, 0, INDICES),
     (9, 9, BITMAP), (70_000, 10, INDICES), (2, 1, BITMAP), (1, 1, INDICES)],
)  # fmt: skip
def test_the_bytes_are_those_of_the_format(elements, kept, form, dtype):
    tensor = with_nonzeros(elements, kept).bool().to(dtype)
    data = bytes(Sparse().encode(tensor))
    assert data == by_hand(tensor, form)
    places = -(-elements // 8) if form == BITMAP else -(-kept * (elements - 1).bit_length() // 8)
    assert len(data) == Sparse().size(tensor) == 9 + places + kept * dtype.itemsize


def test_a_tenth_of_32768_values():
    """90 % pruned, as PRISM does it: a bitmap of 4,096 bytes and 13,108 bytes of values instead of 131,072."""
    tensor = with_nonzeros(32768, 3277)
    assert Sparse().size(tensor) == 4096 + 13108 + 9


def test_128_of_4096_values():
    """Indices of 12 bits and values: 704 bytes instead of 16,384; a bitmap alone would take 512 of them."""
    assert Sparse().size(with_nonzeros(4096, 128)) == 192 + 512 + 9


def test_minus_zero_is_a_value_and_zero_is_not():
    assert Sparse().size(torch.full((800,), -0.0)) == 9 + 100 + 3200
    assert Sparse().size(torch.zeros(800)) == 9


def bitmap(elements=16, kept=3, places=b"\x07\x00", values=12):
    return struct.pack("<BII", BITMAP, elements, kept) + places + bytes([1]) * values


def indices(*at, elements=1000, kept=None):
    number = sum(index << (10 * place) for place, index in enumerate(at))
    places = number.to_bytes(-(-10 * len(at) // 8), "little")
    return struct.pack("<BII", INDICES, elements, len(at) if kept is None else kept) + places + b"\1" * 4 * len(at)


def test_the_frames_made_by_hand_are_good_before_they_are_damaged():
    assert Sparse().decode(memoryview(bitmap()), torch.float32, (4, 4)).count_nonzero() == 3
    at = Sparse().decode(memoryview(indices(3, 500, 999)), torch.float32, (1000,)).nonzero().flatten()
    assert at.tolist() == [3, 500, 999]


@pytest.mark.parametrize(
    ("data", "shape", "words"),
    [
        (bitmap(places=b"\x03\x00"), (16,), "2 places for 3 values"),
        (bitmap(places=b"\x0f\x00"), (16,), "4 places for 3 values"),
        (bitmap(elements=15, places=b"\x03\x80"), (15,), "padded with zeros"),
        (bitmap(kept=17, values=68), (16,), "17 of 16"),
        (bitmap(kept=(1 << 32) - 1), (16,), "4294967295 of 16"),
        (bitmap(values=11), (16,), "the frame has 22"),
        (bitmap(), (4, 5), "not a shape of 16"),
        (b"\2" + bitmap()[1:], (16,), "form 2"),
        (bitmap(1000, 1, bytes(125), 4), (1000,), "not written in form 0"),
        (indices(3, 500, 500), (1000,), "increase"),
        (indices(3, 500, 499), (1000,), "increase"),
        (indices(3, 500, 1000), (1000,), "below 1000"),
        (indices(3, 500, kept=3), (1000,), "the frame has"),
        (indices(3)[:10] + b"\xfc" + indices(3)[11:], (1000,), "padded with zeros"),
        (struct.pack("<BII", INDICES, 1 << 31, 0), (1 << 31,), "more than the"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_does_not_fit_is_refused(data, shape, words):
    with pytest.raises(ValueError, match=words):
        Sparse().decode(memoryview(data), torch.float32, shape)
