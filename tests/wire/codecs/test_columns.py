"""Columns: bytes are those that were counted, values come back bit for bit, and damage is refused."""

import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cutlayer.core.message import Kind, Message
from cutlayer.core.seeds import generator
from cutlayer.wire import frames
from cutlayer.wire.codecs import BY_TAG
from cutlayer.wire.codecs.columns import Columned, Columns


def columned(rows=5, length=12, kept=7, ends=6, dtype=torch.float32, seed=0, most=15):
    draw = generator(seed)
    at = torch.randperm(length, generator=draw)[:kept].sort().values
    widths = torch.randint(0, most + 1, (kept,), generator=draw)
    graded = int((widths > 0).sum())
    one, other = (torch.randint(0, 1 << ends, (graded,), generator=draw) for _ in range(2))
    codes = [torch.randint(0, 1 << int(w), (rows,), generator=draw) for w in widths if w]
    return Columned(
        at=at,
        widths=widths,
        means=torch.randint(0, 1 << ends, (kept - graded,), generator=draw),
        low=torch.minimum(one, other),
        high=torch.maximum(one, other),
        codes=torch.stack(codes) if codes else torch.empty(0, rows, dtype=torch.int64),
        grids=torch.rand(4, generator=draw),
        ends=ends,
        rows=rows,
        length=length,
        dtype=dtype,
    )


def slowly(made):
    """The value from its definition, a number at a time."""
    kind = np.float32 if made.dtype == torch.float32 else np.float64
    begin0, step0, begin1, step1 = (kind(one) for one in made.grids.numpy())
    out, mean, graded = np.zeros((made.rows, made.length), kind), 0, 0
    for column, width in zip(made.at.tolist(), made.widths.tolist(), strict=True):
        if width == 0:
            out[:, column] = kind(made.means[mean].item()) * step0 + begin0
            mean += 1
            continue
        first, last = (kind(code[graded].item()) * step1 + begin1 for code in (made.low, made.high))
        step = (last - first) / kind(2**width - 1)
        for row in range(made.rows):
            out[row, column] = kind(made.codes[graded, row].item()) * step + first
        graded += 1
    return torch.from_numpy(out)


@settings(deadline=None, max_examples=120)
@given(
    st.integers(1, 9), st.integers(1, 40), st.floats(0, 1), st.integers(1, 16), st.integers(0, 15),
    st.sampled_from([torch.float32, torch.float64]), st.integers(0, 99),
)  # fmt: skip
def test_round_trip_is_bit_exact_and_of_the_size_that_was_counted(rows, length, share, ends, most, dtype, seed):
    kept = round(share * length)
    made = columned(rows, length, kept, ends, dtype, seed, most)
    data = bytes(made.encode())
    indices = kept * (length - 1).bit_length()
    bits = min(length, indices) + 4 * kept + ends * (kept + len(made.low)) + rows * int(made.widths.sum())
    assert len(data) == made.size() == 14 + 16 + -(-bits // 8)
    back = Columns().decode(memoryview(data), dtype, (rows, length))
    assert back.dtype == dtype and torch.equal(back, made.value()) and torch.equal(back, slowly(made))


def test_a_message_travels_in_these_bytes_and_the_ledger_knows_it():
    made = columned(16, 64, 20, most=3)
    message = Message(Kind.FORWARD, 0, 0, {"z": made.value().reshape(16, 4, 4, 4)}, {"z": made})
    frame = frames.encode(message)
    assert len(frame) == frames.size(message) < 16 * 20 * 4
    assert torch.equal(frames.decode(frame)["z"], message["z"])
    assert BY_TAG[4] == Columns()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d[:-1], "take"),
        (lambda d: d + b"\0", "take"),
        (lambda d: d[:34], "take more than"),
        (lambda d: b"\1" + d[1:], "not written in form 1"),
        (lambda d: d[:1] + b"\0" + d[2:], "ends of 0 bits"),
        (lambda d: d[:1] + b"\x11" + d[2:], "ends of 17 bits"),
        (lambda d: d[:2] + struct.pack("<I", 4) + d[6:], "are not 4 rows"),
        (lambda d: d[:10] + struct.pack("<I", 13) + d[14:], "13 of 12 columns"),
        (lambda d: d[:10] + struct.pack("<I", 6) + d[14:], "places for 6"),
        (lambda d: d[:14] + struct.pack("<f", float("inf")) + d[18:], "outside of the numbers"),
        (lambda d: d[:-1] + bytes([d[-1] | 0x80]), "behind the last code"),
    ],
)
def test_damage_is_refused(change, words):
    data = bytes(columned(seed=3).encode())
    assert Columns().decode(memoryview(data), torch.float32, (5, 12)).shape == (5, 12)
    with pytest.raises(ValueError, match=words):
        Columns().decode(memoryview(change(data)), torch.float32, (5, 12))


def test_indices_that_do_not_increase_and_ends_that_are_turned_round_are_refused():
    made = columned(3, 200, 4, seed=1)
    turned = Columned(**{**vars(made), "at": made.at.flip(0)})
    with pytest.raises(ValueError, match="have to increase"):
        Columns().decode(memoryview(bytes(turned.encode())), torch.float32, (3, 200))
    made = columned(seed=0)
    turned = Columned(**{**vars(made), "low": made.high, "high": made.low})
    assert (made.low < made.high).any()
    with pytest.raises(ValueError, match="ends before it begins"):
        Columns().decode(memoryview(bytes(turned.encode())), torch.float32, (5, 12))


def test_it_is_of_floats_and_of_the_shape_it_claims():
    data = memoryview(bytes(columned().encode()))
    for dtype in (torch.int64, torch.float16):
        with pytest.raises(ValueError, match="columns of torch"):
            Columns().decode(data, dtype, (5, 12))
    for shape in ((12, 5), (5, 11), (60,), (), (1 << 20, 1 << 20)):
        with pytest.raises(ValueError):
            Columns().decode(data, torch.float32, shape)
    with pytest.raises(NotImplementedError):
        Columns().encode(torch.ones(2, 2))


def test_random_bytes_and_random_flips_never_do_more_than_raise():
    good, draw = bytes(columned(8, 40, 9).encode()), np.random.default_rng(0)
    for _ in range(1500):
        bad = bytearray(good)
        for place in draw.integers(0, len(bad), draw.integers(1, 4)):
            bad[place] ^= 1 << draw.integers(0, 8)
        bad = bad[: draw.integers(0, len(bad) + 1)] if draw.random() < 0.3 else bad
        try:
            found = Columns().decode(memoryview(bytes(bad)), torch.float32, (8, 40))
        except (ValueError, struct.error):
            continue
        assert found.shape == (8, 40)
