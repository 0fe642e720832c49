"""Picture files on the wire: the pictures of both sides are the same, and no claim of a file is believed."""

import io
import struct

import numpy as np
import pytest
import torch
from PIL import Image

from cutlayer.core.message import Kind, Message
from cutlayer.core.seeds import generator
from cutlayer.wire import frames
from cutlayer.wire.codecs.image_file import (
    HEIF,
    JPEG,
    Album,
    Pictures,
    heif,
    jpeg,
    pixels,
    read_heif,
    read_jpeg,
    values,
)

HEADER = 10
CODERS = {JPEG: (jpeg, read_jpeg), HEIF: (heif, read_heif)}


def images(rows=3, channels=1, height=20, width=17):
    coarse = torch.rand(rows, channels, 4, 4, generator=generator(rows))
    return torch.nn.functional.interpolate(coarse, size=(height, width), mode="bilinear")


def album(format=JPEG, quality=60, **sizes):
    x = images(**sizes)
    files = tuple(CODERS[format][0](picture, quality) for picture in pixels(x))
    seen = values([CODERS[format][1](file, tuple(x.shape[1:])) for file in files], x.dtype, tuple(x.shape))
    return x, seen, Album(files, format)


@pytest.mark.parametrize("format", [JPEG, HEIF])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("rows", [1, 2, 7])
def test_both_sides_have_the_same_pictures(format, channels, rows):
    x, seen, made = album(format, rows=rows, channels=channels)
    data = made.encode()
    assert len(data) == made.size()
    for dtype in (torch.float32, torch.float64):
        back = Pictures().decode(memoryview(bytes(data)), dtype, tuple(x.shape))
        assert back.dtype == dtype and torch.equal((back * 255).round(), (seen * 255).round())
    assert torch.equal(Pictures().decode(memoryview(bytes(data)), x.dtype, tuple(x.shape)), seen)
    assert (seen - x).abs().mean() < 0.05
    message = Message(Kind.PREDICT, 0, 0, {"z": seen}, {"z": made})
    frame = frames.encode(message)
    assert len(frame) == frames.size(message) and torch.equal(frames.decode(frame)["z"], seen)


def test_no_pictures_are_no_bytes_but_the_header():
    made = Album((), JPEG)
    assert made.size() == len(made.encode()) == HEADER
    assert Pictures().decode(made.encode(), torch.float32, (0, 1, 5, 5)).shape == (0, 1, 5, 5)


def test_what_files_begin_with_travels_once():
    made = album(rows=6)[2]
    begin = 0
    while len({file[: begin + 1] for file in made.files}) == 1:
        begin += 1
    assert begin > 300, "tables and sizes of a JPEG"
    assert made.size() == HEADER + begin + sum(2 + len(file) - begin for file in made.files)


def test_pixels_are_the_nearest_of_256_levels():
    x = torch.tensor([0.0, 1.0, 0.5 / 255, 0.499 / 255, 100.4 / 255, 100.6 / 255]).reshape(1, 1, 2, 3)
    assert pixels(x).ravel().tolist()[:2] == [0, 255] and pixels(x).ravel().tolist()[3:] == [0, 100, 101]
    every = torch.arange(256).to(torch.uint8).reshape(1, 1, 16, 16)
    assert (pixels(values(list(every.numpy()), torch.float32, (1, 1, 16, 16))) == every.numpy()).all()


def packed(file, format=JPEG, claimed=1):
    """One file in a buffer, whatever is in it."""
    return memoryview(struct.pack("<BBII", format, 2, claimed, 0) + struct.pack("<H", len(file)) + file)


def picture(mode="L", size=(17, 20), kind="JPEG", **settings):
    file = io.BytesIO()
    Image.new(mode, size, 90 if mode == "L" else None).save(file, kind, **settings)
    return file.getvalue()


SHAPE = (1, 1, 20, 17)


def sized(file, height, width):
    """The same file with another size in its header."""
    at = file.index(b"\xff\xc0")
    return file[: at + 5] + struct.pack(">HH", height, width) + file[at + 9 :]


@pytest.mark.parametrize(
    ("file", "words"),
    [
        (picture(size=(20, 17)), r"a picture of 1 x 17 x 20 for \(1, 20, 17\)"),
        (picture("RGB"), "a picture of 3 x 20 x 17"),
        (sized(picture(), 65500, 65500), "a picture of 1 x 65500 x 65500"),  # a bomb: 4 GB from 400 bytes
        (sized(picture(), 0, 17), "a picture of 1 x 0 x 17"),
        (picture(progressive=True), "segment 0xC2"),
        (picture(comment="hidden"), "segment 0xFE"),
        (picture(exif=b"Exif\0\0hidden"), "segment 0xE1"),
        (picture(kind="PNG"), "no whole JPEG file"),
        (picture()[:-2], "no whole JPEG file"),
        (picture() + b"\0", "no whole JPEG file"),
        (picture()[:200] + b"\xff\xd9", "segments do not follow"),
        (picture()[:-2] + picture()[2:], "more than one scan"),
        (b"\xff\xd8\xff\xd9", "segments do not follow"),
        (b"", "no whole JPEG file"),
    ],
)
def test_jpeg_files_that_are_not_one_plain_picture_of_this_size_are_refused(file, words):
    assert Pictures().decode(packed(picture()), torch.float32, SHAPE).shape == SHAPE
    with pytest.raises(ValueError, match=words):
        Pictures().decode(packed(file), torch.float32, SHAPE)


def test_heif_files_of_another_size_are_refused_before_they_are_decoded():
    good = heif(np.zeros((1, 20, 17), np.uint8), 50)
    assert Pictures().decode(packed(good, HEIF), torch.float32, SHAPE).shape == SHAPE
    for file in (good[:-9], good[:100], b"", picture(), heif(np.zeros((1, 17, 20), np.uint8), 50)):
        with pytest.raises(ValueError):
            Pictures().decode(packed(file, HEIF), torch.float32, SHAPE)
    with pytest.raises(ValueError, match="in RGB for"):
        Pictures().decode(packed(heif(np.zeros((3, 20, 17), np.uint8), 50), HEIF), torch.float32, SHAPE)


def test_a_large_picture_in_a_small_heif_file_is_refused():
    file = bytearray(heif(np.zeros((1, 1024, 1024), np.uint8), 10))
    struct.pack_into(
        ">II", file, file.index(b"ispe") + 8, 17, 20
    )  # the container claims our size, the stream does not
    with pytest.raises(ValueError, match="damaged picture"):
        Pictures().decode(packed(bytes(file), HEIF), torch.float32, SHAPE)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d[:5], "header alone takes 10"),
        (lambda d: d[:-1], "do not take the"),
        (lambda d: d + b"\0", "do not take the"),
        (lambda d: d[:200], "at least"),
        (lambda d: b"\2" + d[1:], "format 2"),
        (lambda d: d[:1] + b"\3" + d[2:], "lengths of 3 bytes"),
        (lambda d: d[:2] + struct.pack("<I", 4) + d[6:], "4 pictures for"),
        (lambda d: d[:6] + struct.pack("<I", 2**32 - 1) + d[10:], "at least"),
    ],
)
def test_damaged_buffers_are_refused(change, words):
    x, _, made = album(rows=3)
    data = bytes(made.encode())
    with pytest.raises(ValueError, match=words):
        Pictures().decode(memoryview(change(data)), x.dtype, tuple(x.shape))


@pytest.mark.parametrize("shape", [(3, 1, 340), (3, 2, 20, 17), (3, 1, 17, 20), (2, 1, 20, 17), (3, 1, 0, 17), ()])
def test_other_shapes_and_whole_numbers_are_refused(shape):
    data = memoryview(bytes(album(rows=3)[2].encode()))
    with pytest.raises(ValueError):
        Pictures().decode(data, torch.float32, shape)
    with pytest.raises(ValueError, match="pictures for"):
        Pictures().decode(data, torch.uint8, (3, 1, 20, 17))
    with pytest.raises(NotImplementedError, match="loses something"):
        Pictures().encode(torch.zeros(3, 1, 20, 17))


def test_a_picture_with_a_long_tail_of_something_else_is_refused():
    stuffed = picture()[:-2] + bytes(70_000) + b"\xff\xd9"
    data = struct.pack("<BBII", JPEG, 4, 1, 0) + struct.pack("<I", len(stuffed)) + stuffed
    with pytest.raises(ValueError, match="a picture of more than"):
        Pictures().decode(memoryview(data), torch.float32, SHAPE)
