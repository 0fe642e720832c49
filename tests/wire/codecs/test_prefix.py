"""Prefix: its exact bytes, against a second way of writing them, and what it refuses."""

import struct
import tracemalloc

import pytest
import torch

from cutlayer.core.seeds import generator
from cutlayer.wire.codecs import Prefix, prefix


def cut_rows(lengths, length, dtype=torch.float32):
    """Rows that keep these lengths, with some zeros inside."""
    dice = generator(3)
    rows = torch.zeros(len(lengths), length, dtype=dtype)
    for row, kept in zip(rows, lengths, strict=True):
        row[:kept] = torch.randint(2, (kept,), generator=dice).to(dtype)
        row[kept - 1 : kept] = 1
    return rows


def by_hand(rows):
    """The format as docs/wire.md has it, one row after the other."""
    listed = rows.tolist()
    lengths = [max((i + 1 for i, value in enumerate(row) if value), default=0) for row in listed]
    width = rows.shape[1].bit_length()
    number = sum(kept << (width * place) for place, kept in enumerate(lengths))
    places = number.to_bytes(-(-len(lengths) * width // 8), "little")
    values = b"".join(row[:kept].numpy().tobytes() for row, kept in zip(rows, lengths, strict=True))
    return struct.pack("<II", *rows.shape) + places + values


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.uint8], ids=str)
@pytest.mark.parametrize("length", [1, 2, 3, 7, 8, 64, 255, 256, 40_000])
def test_the_bytes_are_those_of_the_format(length, dtype):
    lengths = [0, length, length // 2, 1, length - 1, 0, length // 3]
    rows = cut_rows(lengths, length, dtype)
    data = bytes(Prefix().encode(rows))
    assert data == by_hand(rows)
    bits = len(lengths) * length.bit_length()
    assert len(data) == Prefix().size(rows) == 8 + -(-bits // 8) + sum(lengths) * dtype.itemsize
    assert torch.equal(Prefix().decode(memoryview(data), dtype, tuple(rows.shape)), rows)


def test_ten_coefficients_of_64_maps():
    """Maps of 8x8 in zig-zag order, 10 of 64 coefficients each: 7 bits a map and the values."""
    maps = cut_rows([10] * 64 * 3, 64).reshape(3, 64, 64)
    assert Prefix().size(maps) == 8 + 3 * 64 * 7 // 8 + 3 * 64 * 10 * 4


def test_minus_zero_at_the_end_of_a_row_is_kept():
    row = torch.tensor([[1.0, 0.0, -0.0, 0.0]])
    back = Prefix().decode(Prefix().encode(row), torch.float32, (1, 4))
    assert Prefix().size(row) == 8 + 1 + 12
    assert back.signbit().tolist() == [[False, False, True, False]]


def packed(*lengths, length=5, rows=None, values=None):
    number = sum(kept << (3 * place) for place, kept in enumerate(lengths))
    head = struct.pack("<II", len(lengths) if rows is None else rows, length)
    places = number.to_bytes(-(-3 * len(lengths) // 8), "little")
    return head + places + b"\1" * 4 * (sum(lengths) if values is None else values)


def test_the_frame_made_by_hand_is_good_before_it_is_damaged():
    kept = Prefix().decode(memoryview(packed(0, 5, 2)), torch.float32, (3, 5)).count_nonzero(1)
    assert kept.tolist() == [0, 5, 2]


@pytest.mark.parametrize(
    ("data", "shape", "words"),
    [
        (packed(0, 6, 2), (3, 5), "a row of 5 cannot keep 6"),
        (packed(0, 5, 2, values=6), (3, 5), "take 38 bytes, not 34"),
        (packed(0, 5, 2, values=8), (3, 5), "take 38 bytes, not 42"),
        (packed(0, 5, 2), (3, 4), "does not have 3 rows of 5"),
        (packed(0, 5, 2), (5, 3), "does not have 3 rows of 5"),
        (packed(0, 5, 2, rows=6), (6, 5), "in 6 rows take"),  # the first values are read as lengths
        (packed(0, 5, 2)[:9], (3, 5), "the lengths of 3 rows take 10 bytes"),
        (packed(0, 5, 2)[:9] + b"\x80" + packed(0, 5, 2)[10:], (3, 5), "padded with zeros"),
        (struct.pack("<III", 1, 1 << 31, 0), (1, 1 << 31), "more than the"),
        (struct.pack("<II", 1 << 20, 1 << 8), (1 << 20, 1 << 8), "the lengths of 1048576 rows take"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_does_not_fit_is_refused(data, shape, words):
    with pytest.raises(ValueError, match=words):
        Prefix().decode(memoryview(data), torch.float32, shape)


@pytest.mark.parametrize("shape", [(25, 3), (5, 5, 3), (24, 1), (17, 40)])
def test_blocks_of_rows_are_read_like_all_at_once(shape, monkeypatch):
    rows = torch.randn(shape, generator=generator(3))
    rows[..., 1:] *= torch.rand(shape, generator=generator(4))[..., 1:] < 0.4
    data = Prefix().encode(rows)
    monkeypatch.setattr(prefix, "_BLOCK", 8)
    assert torch.equal(Prefix().decode(data, rows.dtype, shape), rows)
    for damaged in (data[:-1], memoryview(bytes(data) + b"\0")):
        with pytest.raises(ValueError):
            Prefix().decode(damaged, rows.dtype, shape)


def test_rows_that_take_a_bit_each_do_not_take_tens_of_bytes():
    """A frame of 512 KiB that claims 4 MiB: unpacked in one piece it took 160."""
    rows = 1 << 22
    data = memoryview(struct.pack("<II", rows, 1) + bytes(rows // 8))
    tracemalloc.start()
    Prefix().decode(data, torch.uint8, (rows, 1))
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 32 << 20


@pytest.mark.parametrize("length", [1, 6, 16, 17, 40])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_zeros_at_ends_are_all_counted_unless_they_are_sure_to_be_too_few(length, share):
    rows = cut_rows([number % (length + 1) if number >= 50 * share else 0 for number in range(50)], length).int()
    ends = sum(
        length - max((place + 1 for place, word in enumerate(row) if word), default=0) for row in rows.tolist()
    )
    for needed in (0, ends - 1, ends):
        assert prefix.zeros_at_ends(rows.numpy(), needed) == ends
    assert prefix.zeros_at_ends(rows.numpy(), ends + 1) <= ends


@pytest.mark.parametrize("length", [1, 2, 6, 40])
@pytest.mark.parametrize("count", [0, 2, 3, 50])
def test_zeros_before_values_are_never_more_than_those_that_are_no_ends(length, count):
    rows = torch.rand(count, length, generator=generator(length)).round().int()
    elsewhere = sum(
        sum(not word for word in row)
        - (length - max((place + 1 for place, word in enumerate(row) if word), default=0))
        for row in rows.tolist()
    )
    found = prefix.zeros_before_values(rows.numpy().reshape(-1) != 0, length)
    assert 0 <= found <= elsewhere
    assert found or count < 50 or length == 1
