"""Two bytes a number: every bit pattern comes back, nothing else is taken for one, and damage is refused."""

import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cutlayer.core.message import Kind, Message
from cutlayer.core.seeds import generator
from cutlayer.wire import frames
from cutlayer.wire.choice import smallest
from cutlayer.wire.codecs import Half, Raw
from cutlayer.wire.codecs.half import BFLOAT16, FLOAT16, PLAIN, form_of, may_fit
from cutlayer.wire.codecs.parts.bits import on_host


def from_bits(numbers):
    """float32 numbers with these bits."""
    return torch.tensor(numbers, dtype=torch.int64).to(torch.int32).view(torch.float32)


EVERY_BFLOAT16 = torch.arange(1 << 16).bitwise_left_shift(16).to(torch.int32).view(torch.float32)  # NaN and all


def back_again(tensor):
    data = bytes(Half().encode(tensor))
    assert len(data) == Half().size(tensor)
    back = Half().decode(memoryview(data), tensor.dtype, tuple(tensor.shape))
    assert back.dtype == tensor.dtype and torch.equal(back.view(torch.uint8), tensor.contiguous().view(torch.uint8))
    return data


def test_every_bfloat16_there_is_comes_back_bit_for_bit():
    assert form_of(EVERY_BFLOAT16) == BFLOAT16
    data = back_again(EVERY_BFLOAT16)
    assert len(data) == 1 + 2 * (1 << 16)
    assert struct.unpack("<65536H", data[1:]) == tuple(range(1 << 16)), "a bfloat16 is the upper half of a float32"


def test_every_finite_float16_comes_back_and_none_that_is_no_number():
    every = torch.arange(1 << 16).to(torch.int16).view(torch.float16)
    numbers = every[~every.isnan()]
    for dtype in (torch.float32, torch.float64):
        assert form_of(numbers.to(dtype)) == FLOAT16
        assert len(back_again(numbers.to(dtype))) == 1 + 2 * len(numbers)
        assert form_of(torch.tensor([1 + 2**-9, float("nan")], dtype=dtype)) == PLAIN, "NaN in IEEE's half"


def test_the_first_look_passes_over_no_number_that_fits():
    every = torch.arange(1 << 16).to(torch.int16).view(torch.float16)
    for numbers in (EVERY_BFLOAT16, every[~every.isnan()].float()):
        for dtype in (torch.float32, torch.float64):
            some = numbers[~numbers.isnan()].to(dtype)
            assert all(may_fit(on_host(some[at : at + 64])) for at in range(0, len(some), 64))
    for dtype in (torch.float32, torch.float64):
        assert not may_fit(on_host(torch.tensor([0.0, 1 + 2**-11], dtype=dtype))), "an eleventh bit behind the point"


def test_one_number_that_does_not_fit_keeps_all_in_their_own_bytes():
    z = torch.randn(40, 300, generator=generator(0)).bfloat16().float()
    for at in (0, 1, 5_000, 11_999):
        other = z.clone().reshape(-1)
        other[at] = other[at] * (1 + 2**-20)
        assert form_of(other) == PLAIN and len(back_again(other)) == 1 + 4 * len(other)
        assert smallest(other)[0] == Raw()
    assert form_of(z) == BFLOAT16 and form_of(z.T) == BFLOAT16
    assert form_of(from_bits([0x7F800001] * 64)) == PLAIN, "a payload in the lower half"


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(0, 2**32 - 1), max_size=40), st.booleans())
def test_any_bits_come_back(numbers, upper_only):
    back_again(from_bits([number & 0xFFFF0000 if upper_only else number for number in numbers]))


def test_the_wire_chooses_it_by_itself_in_float32_and_float64():
    z = torch.randn(8, 3, 4, 4, generator=generator(1)).bfloat16()
    for dtype in (torch.float32, torch.float64):
        for format in (torch.contiguous_format, torch.channels_last):
            message = Message(Kind.BACKWARD, 0, 0, {"dz": z.to(dtype).contiguous(memory_format=format)})
            frame = frames.encode(message)
            assert len(frame) == frames.size(message) == 48 + 1 + 2 * z.numel()
            back = frames.decode(frame)["dz"]
            assert torch.equal(back, message["dz"]) and back.stride() == message["dz"].stride()


@pytest.mark.parametrize(
    ("data", "dtype", "words"),
    [
        (b"", torch.float32, "names its form"),
        (b"\1" + bytes(11), torch.float32, "takes 13 bytes"),
        (b"\1" + bytes(13), torch.float32, "takes 13 bytes"),
        (b"\0" + bytes(12), torch.float32, "takes 24 bytes"),
        (b"\3" + bytes(12), torch.float32, "form 3"),
        (b"\2" + bytes(12), torch.int64, "two bytes for torch.int64"),
        (b"\1" + bytes(12), torch.bfloat16, "two bytes for torch.bfloat16"),
    ],
)
def test_damage_is_refused(data, dtype, words):
    with pytest.raises(ValueError, match=words):
        Half().decode(memoryview(data), dtype, (2, 3))


def test_claims_of_huge_shapes_are_refused_before_anything_is_made():
    for shape in ((1 << 20, 1 << 20), (1 << 29,)):
        with pytest.raises(ValueError, match="elements that are unpacked"):
            Half().decode(memoryview(b"\1" + bytes(12)), torch.float32, shape)
