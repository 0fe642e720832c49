"""Images as the files that a picture codec makes of them (JPEG, HEIF), one for each sample."""

import io
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .base import Codec
from .parts.bits import counted, joined, read_header

_HEADER = struct.Struct("<BBII")  # format, bytes of a length, pictures, bytes that all of them begin with
JPEG, HEIF = 0, 1
MODES = {1: "L", 3: "RGB"}  # by channels
MOST_SIDE = 65535  # pixels: a JPEG cannot say more
# A picture may take this many bytes more than its pixels; above it, it carries something else.
_ROOM = 1 << 16


@dataclass(frozen=True)
class Album:
    """The files of a batch of pictures. What all of them begin with (sizes, tables) travels once."""

    files: tuple[bytes, ...]
    format: int
    tag: ClassVar[int] = 8

    def size(self) -> int:
        begin, wide = self._shared
        rest = sum(map(len, self.files)) - len(self.files) * len(begin)
        return _HEADER.size + len(begin) + len(self.files) * wide + rest

    def encode(self) -> memoryview:
        begin, wide = self._shared
        header = _HEADER.pack(self.format, wide, len(self.files), len(begin))
        lengths = np.array([len(file) - len(begin) for file in self.files], dtype=f"<u{wide}")
        return joined(header, begin, lengths.tobytes(), *(file[len(begin) :] for file in self.files))

    @cached_property
    def _shared(self) -> tuple[bytes, int]:
        begin = _common(self.files)
        longest = max((len(file) for file in self.files), default=0) - len(begin)
        return begin, 2 if longest < 1 << 16 else 4


@dataclass(frozen=True, repr=False)
class Pictures(Codec):
    """Files of JPEG or HEIF, values from 0 to 1 in steps of 1/255. Only who made them can write it."""

    tag: ClassVar[int] = 8

    def encode(self, tensor: Tensor) -> memoryview:
        raise NotImplementedError("a picture codec loses something: whoever chose it prepares the bytes")

    def decode(self, data: memoryview, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        format, wide, count, shared = read_header(_HEADER, data)
        if not dtype.is_floating_point or len(shape) != 4 or shape[1] not in MODES or count != shape[0]:
            raise ValueError(f"{count} pictures for {dtype} of {tuple(shape)}")
        if format not in _READERS or wide not in (2, 4) or not all(1 <= side <= MOST_SIDE for side in shape[2:]):
            raise ValueError(f"pictures of {tuple(shape[2:])} in format {format} with lengths of {wide} bytes")
        counted(shape)
        begin, files = _files(data[_HEADER.size :], wide, count, shared)
        most = shape[1] * shape[2] * shape[3] + _ROOM
        if any(len(begin) + len(file) > most for file in files):
            raise ValueError(f"a picture of more than {most} bytes for {tuple(shape[1:])} values")
        read = _READERS[format]
        return values([read(begin + bytes(file), shape[1:]) for file in files], dtype, shape)


def _common(files: Sequence[bytes]) -> bytes:
    """What all of them begin with: as much as the first and the last in the order of the alphabet do."""
    one, other = (np.frombuffer(pick(files, default=b""), dtype=np.uint8) for pick in (min, max))
    length = min(len(one), len(other))
    different = np.flatnonzero(one[:length] != other[:length])
    return one[: different[0] if len(different) else length].tobytes()


def _files(data: memoryview, wide: int, count: int, shared: int) -> tuple[bytes, list[memoryview]]:
    """What all files begin with, and how each goes on. Lengths have to add up before anything is copied."""
    start = shared + count * wide
    if len(data) < start:
        raise ValueError(f"{count} pictures take at least {start} bytes, the frame has {len(data)}")
    ends = start + np.cumsum(np.frombuffer(data[shared:start], dtype=f"<u{wide}").astype(np.int64))
    if len(data) != (int(ends[-1]) if count else start):
        raise ValueError(f"{count} pictures that do not take the {len(data)} bytes of the frame")
    return bytes(data[:shared]), [data[a:b] for a, b in zip([start, *ends[:-1]], ends, strict=True)] if count else []


def values(pictures: Sequence[NDArray[np.uint8]], dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """Pixels as the numbers that cross: rows x channels x height x width, from 0 to 1."""
    found = torch.from_numpy(np.stack(pictures)) if len(pictures) else torch.empty(shape, dtype=torch.uint8)
    return found.to(dtype) / 255


def pixels(values: Tensor) -> NDArray[np.uint8]:
    """Numbers from 0 to 1 as rows x channels x height x width of 256 levels."""
    return (values.detach() * 255).round().to(torch.uint8).cpu().numpy()


def jpeg(picture: NDArray[np.uint8], quality: int) -> bytes:
    """The JPEG file of channels x height x width. Without tables of its own, so that a batch shares them."""
    file = io.BytesIO()
    _image(picture).save(file, "JPEG", quality=quality)
    return file.getvalue()


def heif(picture: NDArray[np.uint8], quality: int) -> bytes:
    """The HEIF file, coded by HEVC."""
    file = io.BytesIO()
    library().from_pillow(_image(picture)).save(file, quality=quality)
    return file.getvalue()


def _image(picture: NDArray[np.uint8]) -> Any:
    from PIL import Image

    return Image.fromarray(picture[0] if len(picture) == 1 else np.ascontiguousarray(picture.transpose(1, 2, 0)))


def read_jpeg(file: bytes, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """The pixels in a JPEG file, if it is nothing but one picture of this shape."""
    from PIL.JpegImagePlugin import JpegImageFile

    _check_jpeg(file, shape)
    try:
        return _pixels(JpegImageFile(io.BytesIO(file)), shape)
    except (OSError, SyntaxError, EOFError, IndexError, KeyError, TypeError, struct.error) as error:
        raise ValueError(f"a damaged picture: {error}") from error


def read_heif(file: bytes, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """The pixels in a HEIF file with one picture of this shape."""
    opened = library()
    try:
        found = opened.open_heif(io.BytesIO(file), convert_hdr_to_8bit=True)
        if len(found) != 1 or tuple(found.size) != (shape[2], shape[1]):
            raise ValueError(f"{len(found)} pictures, the first of {found.size}, for {shape[2], shape[1]}")
        return _pixels(found.to_pillow(), shape)
    except (OSError, EOFError, RuntimeError, SyntaxError, IndexError, KeyError, TypeError, struct.error) as error:
        raise ValueError(f"a damaged picture: {error}") from error


def _pixels(image: Any, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Size and kind are looked at before a pixel is decoded."""
    if image.size != (shape[2], shape[1]) or image.mode != MODES[shape[0]]:
        raise ValueError(f"a picture of {image.size} in {image.mode} for {shape}")
    found = np.asarray(image)
    return found[None] if shape[0] == 1 else found.transpose(2, 0, 1)


# Segments that a baseline JPEG may have before its one scan: tables, the frame, and the marker of the file format.
_SCAN, _END, _FRAME = 0xDA, 0xD9, 0xC0
_PLAIN = {0xC4, 0xDB, 0xE0}
_FILE_MARKER = 18  # bytes of it: more would be a thumbnail


def _check_jpeg(file: bytes, shape: tuple[int, ...]) -> None:
    """Refuse, before a decoder sees it, what is not one baseline picture of this shape from first to last byte."""
    if file[:2] != b"\xff\xd8" or file[-2:] != bytes((0xFF, _END)):
        raise ValueError("a picture that is no whole JPEG file")
    at, frames = 2, 0
    while True:
        if at + 4 > len(file) or file[at] != 0xFF:
            raise ValueError("a JPEG file whose segments do not follow each other")
        marker, length = file[at + 1], int.from_bytes(file[at + 2 : at + 4], "big")
        if marker == _SCAN:
            break
        if marker == _FRAME:
            precision, height, width, components = struct.unpack_from(">BHHB", file, at + 4)
            frames += 1
            if (precision, components, height, width) != (8, *shape):
                raise ValueError(f"a picture of {components} x {height} x {width} for {shape}")
        elif marker not in _PLAIN or (marker == 0xE0 and length + 2 != _FILE_MARKER):
            raise ValueError(f"a JPEG file with a segment 0x{marker:02X}, which is none of a plain picture")
        at += 2 + length
    if frames != 1:
        raise ValueError(f"a JPEG file with {frames} frames")
    coded = np.frombuffer(file, dtype=np.uint8)[at + 2 + length : -2]
    if (coded[1:][coded[:-1] == 0xFF] != 0).any() or (len(coded) and coded[-1] == 0xFF):
        raise ValueError("a JPEG file with more than one scan")


def library() -> Any:
    """The HEIF coder, or an error that names the extra."""
    try:
        import pillow_heif
    except ImportError as error:
        raise ValueError("HEVC needs pillow-heif: pip install 'cutlayer[hevc]'") from error
    return pillow_heif


_READERS = {JPEG: read_jpeg, HEIF: read_heif}
