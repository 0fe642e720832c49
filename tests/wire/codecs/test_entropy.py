"""Entropy-coded grids: near the entropy, bit for bit, and damaged ones are refused."""

import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cutlayer.core.message import Kind, Message
from cutlayer.core.seeds import generator
from cutlayer.guards import Quantize
from cutlayer.wire import frames
from cutlayer.wire.codecs.entropy import Coded, Entropy
from cutlayer.wire.codecs.parts.gridded import Gridded


def coded(rows, length, bits, seed=0, dtype=torch.float32, shares=None):
    draw = generator(seed)
    shares = torch.rand(2**bits, generator=draw).pow(4) + 1e-6 if shares is None else torch.tensor(shares)
    count = rows * length
    codes = torch.multinomial(shares, count, replacement=True, generator=draw) if count else torch.empty(0)
    begin, step = torch.randn(rows, generator=draw).to(dtype), torch.rand(rows, generator=draw).to(dtype)
    return Coded(Gridded(codes.reshape(rows, length).to(torch.int32), begin, step, bits))


@settings(deadline=None, max_examples=80)
@given(
    st.integers(0, 5), st.integers(1, 40), st.integers(1, 8), st.integers(0, 99),
    st.sampled_from([torch.float32, torch.float64]),
)  # fmt: skip
def test_round_trip_is_bit_exact(rows, length, bits, seed, dtype):
    made = coded(rows, length, bits, seed, dtype)
    data = made.encode()
    assert len(data) == made.size()
    back = Entropy().decode(memoryview(bytes(data)), dtype, (rows, length))
    assert torch.equal(back, made.grid.value()) and back.dtype == dtype


@pytest.mark.parametrize("shares", [[0.8, 0.2], [0.65, 0.35], [0.7, 0.2, 0.05, 0.05], [0.9] + [0.1 / 15] * 15])
def test_it_takes_at_most_two_percent_more_than_the_entropy(shares):
    bits = len(shares).bit_length() - 1
    made = coded(64, 512, bits, shares=shares)
    found = torch.bincount(made.grid.codes.flatten(), minlength=len(shares)).double() / made.grid.codes.numel()
    entropy = float(-(found * found.clamp_min(1e-12).log2()).sum()) * made.grid.codes.numel() / 8
    header = 14 + 2 * 64 * 4 + 2 * 2**bits
    assert entropy <= made.size() - header <= 1.02 * entropy + 8
    assert made.size() < made.grid.size()


def test_a_message_travels_coded_where_that_is_smaller():
    skewed = torch.randn(64, 512, generator=generator(0)).clamp_min(0)  # behind a ReLU half are one level
    for tensor, tag in ((skewed, Coded.tag), (torch.rand(3, 40, generator=generator(1)), Gridded.tag)):
        seen, packed = Quantize(bits=4, entropy=True).compress(tensor)
        assert packed.tag == tag
        message = Message(Kind.FORWARD, 0, 0, {"z": seen}, {"z": packed})
        frame = frames.encode(message)
        assert len(frame) == frames.size(message) and torch.equal(frames.decode(frame)["z"], seen)
    plain = Quantize(bits=4).compress(skewed)
    assert torch.equal(plain[0], Quantize(bits=4, entropy=True).compress(skewed)[0])  # the numbers are the same


def words_of(data):
    return struct.unpack_from("<I", data, 10)[0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d[:-4], "the frame has"),
        (lambda d: d + b"\0\0\0\0", "the frame has"),
        (lambda d: b"\x09" + d[1:], "9 bits"),
        (lambda d: d[:1] + b"\2" + d[2:], "form 2"),
        (lambda d: d[:2] + struct.pack("<II", 6, 10) + d[10:], "are not 6 rows"),
        (lambda d: d[:14] + struct.pack("<f", float("inf")) + d[18:], "outside of the numbers"),
        (lambda d: d[: 14 + 40] + b"\0\0" + d[14 + 42 :], "empty level"),
        (lambda d: d[:10] + struct.pack("<I", words_of(d) + 9) + d[14:] + b"\x5a" * 36, "more words than 60"),
    ],
)
def test_damage_is_refused(change, words):
    data = bytes(coded(5, 12, 2, shares=[0.7, 0.1, 0.1, 0.1]).encode())
    assert Entropy().decode(memoryview(data), torch.float32, (5, 12)).shape == (5, 12)
    with pytest.raises(ValueError, match=words):
        Entropy().decode(memoryview(change(data)), torch.float32, (5, 12))


def test_flipped_bits_never_give_another_shape_or_crash():
    data = bytes(coded(4, 30, 3, seed=3).encode())
    draw = generator(5)
    for _ in range(400):
        damaged = bytearray(data)
        at = int(torch.randint(len(data) * 8, (1,), generator=draw))
        damaged[at // 8] ^= 1 << at % 8
        try:
            found = Entropy().decode(memoryview(damaged), torch.float32, (4, 30))
        except ValueError:
            continue
        assert found.shape == (4, 30)
