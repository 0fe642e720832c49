"""Rows made of words from small books: the books, and the number of each word."""

import struct
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .base import Codec
from .parts.bits import counted, joined, pack, packed_size, read_header, unpack

_HEADER = struct.Struct("<IIIIII")  # rows, length of a row, words in a row, books, words in a book, length of a word
MOST_WORDS = 1 << 16


@dataclass(frozen=True)
class Worded:
    """The bytes of rows of words: consecutive words of a row share a book, and a row is cut off at its length."""

    books: Tensor  # books x words x length of a word, float32
    numbers: Tensor  # rows x words in a row: which word of its book
    length: int  # of a row
    dtype: torch.dtype
    tag: ClassVar[int] = 5

    def value(self) -> Tensor:
        """The tensor itself, rows x length."""
        rows, words = self.numbers.shape
        which = book_of(words, len(self.books)).to(self.numbers.device)
        return self.books[which, self.numbers.long()].reshape(rows, -1)[:, : self.length].to(self.dtype)

    def size(self) -> int:
        return _size(self.numbers.numel(), self.books.numel(), self.books.shape[1])

    def encode(self) -> memoryview:
        header = _HEADER.pack(len(self.numbers), self.length, self.numbers.shape[1], *self.books.shape)
        books = self.books.detach().cpu().contiguous().numpy().astype("<f4")
        numbers = self.numbers.detach().cpu().reshape(-1).numpy()
        return joined(header, books.tobytes(), pack(numbers.astype("i8"), _width(self.books.shape[1])))


@dataclass(frozen=True, repr=False)
class Codebook(Codec):
    """Words from books that travel along. Only who made the books can write it, so this encodes nothing."""

    tag: ClassVar[int] = 5

    def encode(self, tensor: Tensor) -> memoryview:
        raise NotImplementedError("books are not looked for: whoever made them prepares the bytes")

    def decode(self, data: memoryview, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        rows, length, words, books, each, wide = read_header(_HEADER, data)
        if not dtype.is_floating_point or not 1 <= each <= MOST_WORDS or not 1 <= books <= words:
            raise ValueError(f"{books} books of {each} words for {words} words of {dtype} in a row")
        if rows * length != counted(shape) or not shape or rows != shape[0]:
            raise ValueError(f"{tuple(shape)} are not {rows} rows of {length}")
        # No word is left out at the end of a row: rows are not longer than they need to be.
        if not (words - 1) * wide < length <= words * wide:
            raise ValueError(f"{words} words of {wide} do not make a row of {length}")
        wanted = _size(rows * words, books * each * wide, each)
        if len(data) != wanted:
            raise ValueError(f"{books} books and {rows} rows of words take {wanted} bytes, the frame has {len(data)}")
        start = _HEADER.size + 4 * books * each * wide
        found = torch.frombuffer(bytearray(data[_HEADER.size : start]), dtype=torch.float32)
        if not torch.isfinite(found).all():
            raise ValueError("a word outside of the numbers")
        numbers = torch.from_numpy(unpack(data[start:], rows * words, _width(each))).reshape(rows, words)
        if rows and int(numbers.max()) >= each:
            raise ValueError(f"word {int(numbers.max())} of a book of {each}")
        return Worded(found.reshape(books, each, wide), numbers, length, dtype).value().reshape(shape)


def book_of(words: int, books: int) -> Tensor:
    """Which book each word of a row is from: neighbours share one, and no book has more than one word too many."""
    return torch.arange(words) * books // words


def _width(words: int) -> int:
    """ceil(log2 L): bits of the number of a word."""
    return (words - 1).bit_length()


def _size(numbers: int, values: int, each: int) -> int:
    return _HEADER.size + 4 * values + packed_size(numbers, _width(each))
