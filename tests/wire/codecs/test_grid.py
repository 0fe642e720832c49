"""Grids: packed codes take the bits they claim, come back bit for bit, and damaged ones are refused."""

import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cutlayer.core.message import Kind, Message
from cutlayer.core.seeds import generator
from cutlayer.wire import frames
from cutlayer.wire.codecs.grid import Grid
from cutlayer.wire.codecs.parts.gridded import Gridded, packed_codes, unpacked_codes


def gridded(rows, length, bits, dtype=torch.float32, seed=0, one=False):
    draw = generator(seed)
    codes = torch.randint(0, 2**bits, (rows, length), generator=draw, dtype=torch.int32)
    grids = 1 if one else rows
    begin, step = torch.randn(grids, generator=draw).to(dtype), torch.rand(grids, generator=draw).to(dtype)
    return Gridded(codes, begin, step, bits)


@settings(deadline=None, max_examples=150)
@given(st.integers(0, 40), st.integers(1, 16), st.integers(0, 99))
def test_codes_take_their_bits_and_come_back(count, bits, seed):
    codes = torch.randint(0, 2**bits, (count,), generator=generator(seed)).numpy()
    data = packed_codes(codes, bits)
    assert len(data) == -(-count * bits // 8)
    assert np.array_equal(unpacked_codes(memoryview(bytes(data)), count, bits), codes)


@settings(deadline=None, max_examples=100)
@given(
    st.integers(0, 5), st.integers(1, 9), st.integers(1, 16), st.sampled_from([torch.float32, torch.float64]),
    st.integers(0, 99), st.booleans(),
)  # fmt: skip
def test_round_trip_is_bit_exact(rows, length, bits, dtype, seed, one):
    made = gridded(rows, length, bits, dtype, seed, one)
    data = made.encode()
    assert len(data) == made.size() == 10 + 2 * len(made.begin) * dtype.itemsize + -(-rows * length * bits // 8)
    back = Grid().decode(memoryview(bytes(data)), dtype, (rows, length))
    assert torch.equal(back, made.value()) and back.dtype == dtype


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_numbers_of_two_bytes_have_a_grid_of_float32(dtype):
    """Sixteen bits are more than either type can count."""
    made = gridded(3, 50, 16)
    back = Grid().decode(memoryview(bytes(made.encode())), dtype, (3, 50))
    assert back.dtype == dtype and torch.equal(back, made.value().to(dtype))


def test_a_message_travels_in_prepared_bytes_and_the_ledger_knows_it():
    made = gridded(6, 64, 4)
    message = Message(Kind.FORWARD, 0, 0, {"z": made.value().reshape(6, 4, 4, 4)}, {"z": made})
    frame = frames.encode(message)
    assert len(frame) == frames.size(message) < 6 * 64 * 4 / 5
    back = frames.decode(frame)
    assert torch.equal(back["z"], message["z"]) and back["z"].shape == (6, 4, 4, 4)


def test_bytes_that_are_larger_than_the_tensor_are_not_used():
    made = gridded(3, 2, 16)
    message = Message(Kind.FORWARD, 0, 0, {"z": made.value()}, {"z": made})
    assert (
        frames.size(message)
        == frames.size(Message(Kind.FORWARD, 0, 0, {"z": made.value()}))
        == len(frames.encode(message))
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d[:-1], "take"),
        (lambda d: d + b"\0", "take"),
        (lambda d: b"\0" + d[1:], "0 bits"),
        (lambda d: b"\x11" + d[1:], "17 bits"),
        (lambda d: d[:1] + b"\2" + d[2:], "form 2"),
        (lambda d: d[:2] + struct.pack("<II", 4, 9) + d[10:], "are not 4 rows"),
        (lambda d: d[:10] + struct.pack("<f", float("nan")) + d[14:], "outside of the numbers"),
        (lambda d: d[:-1] + b"\xff", "padded with zeros"),
    ],
)
def test_damage_is_refused(change, words):
    data = bytes(gridded(5, 5, 4).encode())
    assert Grid().decode(memoryview(data), torch.float32, (5, 5)).shape == (5, 5)
    with pytest.raises(ValueError, match=words):
        Grid().decode(memoryview(change(data)), torch.float32, (5, 5))


def test_a_grid_is_of_floats_and_of_the_shape_it_claims():
    data = memoryview(bytes(gridded(4, 6, 4).encode()))
    with pytest.raises(ValueError, match=r"grid of torch\.int64 "):
        Grid().decode(data, torch.int64, (4, 6))
    for shape in ((6, 4), (4, 5), (24,), (1 << 20, 1 << 20)):
        with pytest.raises(ValueError):
            Grid().decode(data, torch.float32, shape)
