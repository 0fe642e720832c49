"""Codebooks: words and their numbers take the bytes that were counted, come back exactly, and damage is refused."""

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
from cutlayer.wire.codecs.codebook import Codebook, Worded, book_of


def worded(rows=5, words=6, books=2, each=5, wide=3, cut=1, dtype=torch.float32, seed=0):
    draw = generator(seed)
    numbers = torch.randint(0, each, (rows, words), generator=draw)
    return Worded(torch.randn(books, each, wide, generator=draw), numbers, words * wide - cut, dtype)


@settings(deadline=None, max_examples=120)
@given(
    st.integers(1, 7), st.integers(1, 12), st.integers(1, 12), st.integers(1, 40), st.integers(1, 6),
    st.integers(0, 5), st.sampled_from([torch.float32, torch.float64]), st.integers(0, 99),
)  # fmt: skip
def test_round_trip_is_bit_exact_and_of_the_size_that_was_counted(rows, words, books, each, wide, cut, dtype, seed):
    books, cut = min(books, words), min(cut, wide - 1)
    made = worded(rows, words, books, each, wide, cut, dtype, seed)
    data = bytes(made.encode())
    assert len(data) == made.size() == 24 + 4 * books * each * wide + -(-rows * words * (each - 1).bit_length() // 8)
    back = Codebook().decode(memoryview(data), dtype, (rows, words * wide - cut))
    assert back.dtype == dtype and torch.equal(back, made.value())
    for row in range(rows):
        for place in range(words * wide - cut):
            word = place // wide
            expected = made.books[word * books // words, made.numbers[row, word], place % wide]
            assert back[row, place] == expected.to(dtype)


def test_books_have_neighbours_and_nearly_equal_shares():
    for words, books in ((10, 3), (7, 7), (288, 16)):
        which = book_of(words, books)
        assert (which.diff() >= 0).all() and which.unique().tolist() == list(range(books))
        assert which.bincount().max() - which.bincount().min() <= 1


def test_a_message_travels_in_these_bytes_and_the_ledger_knows_it():
    made = worded(64, 16, 1, 16, 4, 0)
    message = Message(Kind.FORWARD, 0, 0, {"z": made.value().reshape(64, 4, 4, 4)}, {"z": made})
    frame = frames.encode(message)
    assert len(frame) == frames.size(message) < 64 * 64 * 4 / 10
    assert torch.equal(frames.decode(frame)["z"], message["z"])
    assert BY_TAG[5] == Codebook()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d[:-1], "take"),
        (lambda d: d + b"\0", "take"),
        (lambda d: struct.pack("<I", 4) + d[4:], "are not 4 rows"),
        (lambda d: d[:8] + struct.pack("<I", 7) + d[12:], "do not make a row"),
        (lambda d: d[:12] + struct.pack("<I", 7) + d[16:], "7 books"),
        (lambda d: d[:12] + struct.pack("<I", 0) + d[16:], "0 books"),
        (lambda d: d[:16] + struct.pack("<I", 1 << 20) + d[20:], "1048576 words"),
        (lambda d: d[:20] + struct.pack("<I", 1 << 30) + d[24:], "do not make a row"),
        (lambda d: d[:24] + struct.pack("<f", float("nan")) + d[28:], "outside of the numbers"),
        (lambda d: d[:-12] + b"\x07" + d[-11:], "word 7 of a book of 5"),
        (lambda d: d[:-1] + bytes([d[-1] | 0x80]), "padded with zeros"),
    ],
)
def test_damage_is_refused(change, words):
    data = bytes(worded().encode())
    assert Codebook().decode(memoryview(data), torch.float32, (5, 17)).shape == (5, 17)
    with pytest.raises(ValueError, match=words):
        Codebook().decode(memoryview(change(data)), torch.float32, (5, 17))


def test_it_is_of_floats_and_of_the_shape_it_claims():
    data = memoryview(bytes(worded().encode()))
    with pytest.raises(ValueError, match=r"torch\.int64"):
        Codebook().decode(data, torch.int64, (5, 17))
    for shape in ((17, 5), (5, 18), (85,), (), (1 << 20, 1 << 20)):
        with pytest.raises(ValueError):
            Codebook().decode(data, torch.float32, shape)
    with pytest.raises(NotImplementedError):
        Codebook().encode(torch.ones(2, 2))


def test_random_flips_never_do_more_than_raise():
    good, draw = bytes(worded(8, 10, 2, 5, 4, 0).encode()), np.random.default_rng(0)
    for _ in range(1500):
        bad = bytearray(good)
        for place in draw.integers(0, len(bad), draw.integers(1, 4)):
            bad[place] ^= 1 << draw.integers(0, 8)
        bad = bad[: draw.integers(0, len(bad) + 1)] if draw.random() < 0.3 else bad
        try:
            found = Codebook().decode(memoryview(bytes(bad)), torch.float32, (8, 40))
        except (ValueError, struct.error):
            continue
        assert found.shape == (8, 40)
