"""Latents with spreads of their own: bit for bit, near what their distributions say, and damaged ones are refused."""

import struct
from hashlib import sha256

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from cutlayer.core.message import Kind, Message
from cutlayer.wire import frames
from cutlayer.wire.codecs import latents
from cutlayer.wire.codecs.latents import (
    LIMIT,
    SMALLEST,
    STEP,
    TABLES,
    Latent,
    Latents,
    Spreads,
    frequencies,
    spread,
    table_of,
)

HEADER = 16


def made(rows=5, channels=4, height=5, width=6, hypers=2, coarse=2, seed=0, wild=1.0):
    """Numbers drawn with the spreads that their own hyper-latents tell, in units of the float64 formula."""
    dice = np.random.default_rng(seed)
    own, base = dice.integers(10, 40, hypers), dice.integers(0, 50, channels)
    weight = dice.integers(-40, 41, (channels, hypers))
    spreads = Spreads(own.astype(np.uint8), base.astype(np.uint8), weight.astype(np.int8), coarse)
    grid = (rows, hypers, *spreads.coarse_sides(height, width))
    hyper = np.round(dice.normal(size=grid) * [[[spread(t)]] for t in own] if hypers else np.zeros(grid))
    hyper = np.clip(hyper, -LIMIT, LIMIT).astype(np.int64)
    sigma = SMALLEST * np.exp(STEP * told(hyper, base, weight, coarse, height, width))
    numbers = np.clip(np.round(wild * dice.normal(size=sigma.shape) * sigma), -LIMIT, LIMIT)
    return Latent(torch.from_numpy(numbers).to(torch.int32), torch.from_numpy(hyper), spreads)


def told(hyper, base, weight, coarse, height, width):
    """Which table each number has, written as loops."""
    rows, hypers = hyper.shape[:2]
    found = np.empty((rows, len(base), height, width))
    for n, c, i, j in np.ndindex(*found.shape):
        added = sum(int(weight[c, g]) * int(hyper[n, g, i // coarse, j // coarse]) for g in range(hypers))
        found[n, c, i, j] = min(max(int(base[c]) + (added + 4) // 8, 0), TABLES - 1)
    return found


@settings(deadline=None, max_examples=60)
@given(
    st.integers(0, 4), st.integers(1, 4), st.integers(1, 7), st.integers(1, 7), st.integers(0, 3), st.integers(1, 4),
    st.integers(0, 99), st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    st.sampled_from([0.0, 1.0, 9.0]),
)  # fmt: skip
def test_round_trip_is_bit_exact(rows, channels, height, width, hypers, coarse, seed, dtype, wild):
    one = made(rows, channels, height, width, min(hypers, channels), coarse, seed, wild)
    data = one.encode()
    assert len(data) == one.size()
    back = Latents().decode(memoryview(bytes(data)), dtype, tuple(one.numbers.shape))
    assert back.dtype == dtype and torch.equal(back, one.numbers.to(dtype))
    assert not (torch.signbit(back) & (back == 0)).any()


@pytest.mark.parametrize("hypers", [0, 1, 4])
def test_it_takes_at_most_two_percent_more_than_the_numbers_tell(hypers):
    one = made(rows=40, channels=6, height=8, width=8, hypers=hypers, seed=3)
    numbers, hyper, spreads = one.numbers.numpy(), one.hyper.numpy(), one.spreads
    sigma = SMALLEST * np.exp(STEP * told(hyper, spreads.base, spreads.weight, spreads.coarse, 8, 8))
    bits = -np.log2(norm.cdf(numbers + 0.5, scale=sigma) - norm.cdf(numbers - 0.5, scale=sigma)).sum()
    if hypers:
        sigma = np.array([spread(table) for table in spreads.own])[:, None, None]
        bits -= np.log2(norm.cdf(hyper + 0.5, scale=sigma) - norm.cdf(hyper - 0.5, scale=sigma)).sum()
    side = HEADER + hypers + 6 + 6 * hypers
    assert 0.999 * bits / 8 <= one.size() - side <= 1.02 * bits / 8 + 8


def test_tables_are_normal_distributions_and_the_same_everywhere():
    """No share may stand near a half: another library's last bits would round it differently, and decode garbage."""
    edge = 1.0
    for table in range(TABLES):
        shares = latents._shares(table)
        numbers = np.arange(-LIMIT, LIMIT + 1)
        expected = norm.cdf(numbers + 0.5, scale=spread(table)) - norm.cdf(numbers - 0.5, scale=spread(table))
        np.testing.assert_allclose(shares, expected, rtol=0, atol=1e-12)
        scaled = shares * latents._WHOLE
        edge = min(edge, np.abs(scaled - np.floor(scaled) - 0.5).min())
        assert frequencies(table).min() >= 1
    assert edge > 1e-4, "thousands of times what the last bits of a float64 make here"
    whole = b"".join(frequencies(table).astype("<i8").tobytes() for table in range(TABLES))
    assert sha256(whole).hexdigest()[:16] == "58f6a0245994ee8b"
    assert table_of(spread(17.5)) == pytest.approx(17.5)
    assert spread(0) == pytest.approx(0.11) and spread(TABLES - 1) == pytest.approx(32)


def test_a_message_travels_in_these_bytes():
    one = made(rows=16, seed=5)
    message = Message(Kind.FORWARD, 0, 0, {"z": one.numbers.float()}, {"z": one})
    frame = frames.encode(message)
    assert len(frame) == frames.size(message) and torch.equal(frames.decode(frame)["z"], one.numbers.float())
    assert len(frame) < 64 + one.size()


SHAPE = (5, 4, 5, 6)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d[:10], "header alone takes 16"),
        (lambda d: d[:-4], "the frame has"),
        (lambda d: d + b"\0\0\0\0", "the frame has"),
        (lambda d: b"\x05" + d[1:], "5 hyper-channels for 4"),
        (lambda d: d[:1] + b"\0" + d[2:], "standing for 0 places"),
        (lambda d: d[:2] + struct.pack("<H", 5) + d[4:], r"latents of \(5, 5, 5, 6\)"),
        (lambda d: d[:4] + struct.pack("<HH", 6, 5) + d[8:], r"latents of \(5, 4, 6, 5\)"),
        (lambda d: d[:8] + struct.pack("<I", 6) + d[12:], r"latents of \(6, 4, 5, 6\)"),
        (lambda d: d[:16] + b"\x40" + d[17:], "none of the 64"),
        (lambda d: d[:20] + b"\xff" + d[21:], "none of the 64"),
        (lambda d: d[:-4] + bytes(4), "a last word that is none"),
        (lambda d: d[:12] + struct.pack("<I", words_of(d) + 9) + d[16:] + b"\x5a" * 36, "more words than the 600"),
    ],
)  # fmt: skip
def test_damage_is_refused(change, words):
    data = bytes(made().encode())
    assert Latents().decode(memoryview(data), torch.float32, SHAPE).shape == SHAPE
    with pytest.raises(ValueError, match=words):
        Latents().decode(memoryview(change(data)), torch.float32, SHAPE)


def words_of(data):
    return struct.unpack_from("<I", data, 12)[0]


@pytest.mark.parametrize("shape", [(5, 4, 30), (4, 5, 5, 6), (5, 4, 6, 5), (1 << 20, 1 << 20), (600,), ()])
def test_other_shapes_and_whole_numbers_are_refused(shape):
    data = memoryview(bytes(made().encode()))
    with pytest.raises(ValueError, match="latents of"):
        Latents().decode(data, torch.float32, shape)
    with pytest.raises(ValueError, match="latents of"):
        Latents().decode(data, torch.int32, SHAPE)
    with pytest.raises(NotImplementedError, match="whoever made them"):
        Latents().encode(torch.zeros(SHAPE))


def test_claims_are_not_believed():
    """One word that claims four billion numbers; the wire's own limit is not asked here."""
    claimed = (1 << 16, 1 << 15, 1, 2)
    data = struct.pack("<BBHHHII", 0, 1, *claimed[1:], claimed[0], 1) + bytes(claimed[1]) + b"\1\0\0\0"
    with pytest.raises(ValueError, match="more than the"):
        Latents().decode(memoryview(data), torch.float32, claimed)
