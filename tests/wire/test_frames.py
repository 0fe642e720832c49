"""Frames: overhead, alignment, memory format, and what happens to damaged ones."""

import random
import struct
import time

import pytest
import torch

from cutlayer.core.message import Kind, Message
from cutlayer.wire import frames
from cutlayer.wire.codecs import Prefix, Raw, Sparse


def message(*shapes):
    return Message(Kind.FORWARD, 3, 9, {f"t{n}": torch.randn(shape) for n, shape in enumerate(shapes)})


@pytest.mark.parametrize("shape", [(64, 512), (64, 64, 8, 8), (64, 20, 12, 12), ()])
def test_a_message_costs_at_most_64_bytes_more_than_its_tensor(shape):
    sent = message(shape)
    assert frames.size(sent) <= sent["t0"].numel() * 4 + 64


def test_every_buffer_starts_at_a_multiple_of_16():
    sent = message((3,), (5,), (7, 2))
    frame = bytes(frames.encode(sent))
    for tensor in sent.tensors.values():
        assert frame.index(tensor.numpy().tobytes()) % frames.ALIGNMENT == 0


def test_the_memory_format_travels():
    maps = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    back = frames.decode(frames.encode(Message(Kind.FORWARD, 0, 0, {"z": maps})))["z"]
    assert torch.equal(back, maps)
    assert back.is_contiguous(memory_format=torch.channels_last) and not back.is_contiguous()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool], ids=str)
@pytest.mark.parametrize(("shape", "strides"), [((1, 1), (2, 2)), ((3, 1), (1, 3)), ((2, 3), (6, 2)), ((1,), (0,))])
def test_a_tensor_crosses_however_it_lies(shape, strides, dtype):
    """What guards make of complex numbers, and slices of longer rows, have strides of their own."""
    tensor = torch.arange(1, 13).to(dtype).as_strided(shape, strides)
    back = frames.decode(frames.encode(Message(Kind.FORWARD, 0, 0, {"z": tensor})))["z"]
    assert torch.equal(back, tensor)


def test_a_message_lies_in_one_process_as_it_arrives_on_another_machine():
    maps = torch.randn(2, 3, 4, 5)
    last = maps.to(memory_format=torch.channels_last)
    for tensor in (maps, last, maps[..., ::2], maps.mT, maps[:1].expand_as(maps)):
        sent = Message(Kind.FORWARD, 0, 0, {"z": tensor})
        back = frames.decode(frames.encode(sent))["z"]
        assert torch.equal(sent["z"], tensor) and sent["z"].stride() == back.stride()
    assert Message(Kind.FORWARD, 0, 0, {"z": maps})["z"] is maps


def test_a_decoded_tensor_owns_its_memory():
    frame = frames.encode(message((4,)))
    back = frames.decode(frame)["t0"]
    kept = back.clone()
    frame[:] = bytes(len(frame))
    assert torch.equal(back, kept)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda f: f[:-1], "should have"),
        (lambda f: f + b"\0", "should have"),
        (lambda f: b"", "damaged frame of 0 bytes"),
        (lambda f: b"XX" + f[2:], "not a cutlayer frame"),
        (lambda f: f[:2] + b"\x63" + f[3:], "wire version 99"),
        (lambda f: f[:3] + b"\x63" + f[4:], "unknown kind 99"),
    ],
    ids=["cut short", "too long", "empty", "foreign", "other version", "other kind"],
)
def test_a_damaged_frame_is_refused_in_words(damage, words):
    with pytest.raises(frames.WireError, match=words):
        frames.decode(damage(bytes(frames.encode(message((4, 4))))))


def test_random_damage_never_gets_past_the_decoder_as_another_error():
    draw = random.Random(5)
    whole = bytes(frames.encode(message((4, 4), (3,))))
    refused = 0
    for _ in range(3000):
        frame = bytearray(whole)
        for _ in range(draw.randint(1, 4)):
            frame[draw.randrange(len(frame))] = draw.randrange(256)
        if draw.random() < 0.3:
            del frame[draw.randrange(len(frame)) :]
        try:
            frames.decode(frame)
        except frames.WireError:
            refused += 1
    assert refused > 1000


def sparse_message():
    """A tensor for each codec: dense, sparse with a bitmap, sparse with indices, rows that end in zeros."""
    dice = torch.Generator().manual_seed(4)
    dense = torch.randn(12, 10, generator=dice)
    pruned = torch.where(torch.rand(12, 10, generator=dice) < 0.4, dense, 0.0)
    few = torch.where(torch.rand(12, 10, generator=dice) < 0.04, dense, 0.0)
    ends = torch.where(torch.arange(10) < torch.arange(12)[:, None] % 7, dense, 0.0)
    return Message(Kind.FORWARD, 3, 9, {"dense": dense, "pruned": pruned, "few": few, "ends": ends})


def tags(frame):
    """Codec tags and bytes of a frame's tensors, read by hand."""
    at, found = 18, []
    for _ in range(struct.unpack_from("<H", frame, 16)[0]):
        at += 1 + frame[at]
        found.append(struct.unpack_from("<xBxxI", frame, at))
        at += 8 + 4 * frame[at + 3]
    return found


def test_every_tensor_has_the_codec_that_suits_it():
    sent = sparse_message()
    codecs = [Raw(), Sparse(), Sparse(), Prefix()]
    assert tags(frames.encode(sent)) == [
        (codec.tag, codec.size(tensor)) for codec, tensor in zip(codecs, sent.tensors.values(), strict=True)
    ]


@pytest.mark.parametrize("which", ["dense", "pruned", "few", "ends", None])
def test_random_damage_of_packed_tensors_never_gives_another_shape(which):
    draw = random.Random(7)
    sent = sparse_message()
    if which:
        sent = Message(sent.kind, 3, 9, {which: sent[which]})
    whole = bytes(frames.encode(sent))
    shapes = sorted(tuple(tensor.shape) for tensor in sent.tensors.values())
    refused, changes = 0, 1500
    for _ in range(changes):
        frame = bytearray(whole)
        for _ in range(draw.choice([1, 1, 2, 4])):  # half of the damage in the header and the table, where it hurts
            frame[draw.randrange(min(len(frame), draw.choice([64, 1 << 20])))] = draw.randrange(256)
        if draw.random() < 0.1:
            del frame[draw.randrange(len(frame)) :]
        try:
            back = frames.decode(frame)
        except frames.WireError:
            refused += 1
        else:
            assert sorted(tuple(tensor.shape) for tensor in back.tensors.values()) == shapes
    assert changes / 3 < refused < changes


@pytest.mark.parametrize("which", ["dense", "pruned", "few", "ends"])
def test_every_other_byte_of_a_tables_shape_is_refused(which):
    """One byte of the number of dimensions or of a dimension, all values: no other shape gets through."""
    sent = sparse_message()
    whole = bytes(frames.encode(Message(sent.kind, 3, 9, {which: sent[which]})))
    first = 18 + 1 + len(which) + 3
    for at in [first, *range(first + 5, first + 5 + 8)]:
        for value in set(range(256)) - {whole[at]}:
            with pytest.raises(frames.WireError):
                frames.decode(whole[:at] + bytes([value]) + whole[at + 1 :])


def claim(shape, codec, data, copies=1):
    """A frame of tensors that claim a shape."""
    entries = b"".join(
        b"\1" + bytes([65 + n, 0, codec.tag, 0, len(shape)]) + struct.pack(f"<I{len(shape)}I", len(data), *shape)
        for n in range(copies)
    )
    frame = struct.pack("<2sBBIQH", b"CL", 1, Kind.WEIGHTS, 0, 0, copies) + entries
    for _ in range(copies):
        frame += bytes(-len(frame) % 16) + data
    return frame


NOTHING = struct.pack("<BII", 1, 1 << 27, 0)  # 2^27 elements, all zero: 512 MiB


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (claim((1 << 31, 1 << 9), Sparse(), struct.pack("<BII", 1, 0, 0)), "over the limit"),
        (claim((1 << 29, 2), Sparse(), struct.pack("<BII", 1, 1 << 30, 0)), "over the limit"),
        (claim((1 << 27,), Sparse(), NOTHING, copies=5), "over the limit"),
        (claim((1 << 29,), Sparse(), struct.pack("<BII", 1, 1 << 29, 0)), "more than the"),
        (claim((1, 1 << 29), Prefix(), struct.pack("<III", 1, 1 << 29, 0)), "more than the"),
        (claim((1 << 31, 1 << 31, 1 << 31, 0), Sparse(), struct.pack("<BII", 1, 0, 0)), "damaged"),
        (claim((2,) * 200, Sparse(), struct.pack("<BII", 1, 0, 0)), "over the limit"),
    ],
    ids=["2^40", "2^30", "five times 2^27", "2^29", "a row of 2^29", "strides", "200 dimensions"],
)
def test_a_short_frame_cannot_claim_a_huge_tensor(frame, words):
    assert len(frame) < 1000
    with pytest.raises(frames.WireError, match=words):
        frames.decode(frame)


def test_the_frames_that_claim_are_good_with_a_shape_that_fits():
    back = frames.decode(claim((1 << 10, 2), Sparse(), struct.pack("<BII", 1, 1 << 11, 0), copies=2))
    assert {name: tuple(t.shape) for name, t in back.tensors.items()} == {"A": (1024, 2), "B": (1024, 2)}


def test_two_tensors_of_one_name_and_filled_gaps_are_refused():
    frame = bytes(frames.encode(message((3,), (3,))))
    with pytest.raises(frames.WireError, match="same name"):
        frames.decode(frame.replace(b"\2t1", b"\2t0"))
    # The last byte before the first buffer, before the second one, and of a frame without tensors.
    for sent, gap in ((message((3,)), 47), (message((3,), (3,)), 63), (empty(), 31)):
        frame = bytearray(frames.encode(sent))
        frame[gap] += 1
        assert frame[gap] == 1
        with pytest.raises(frames.WireError, match="not filled with zeros"):
            frames.decode(frame)


def empty():
    return Message(Kind.BACKWARD, 0, 0)


def test_a_dtype_that_does_not_travel_is_refused_when_sent():
    with pytest.raises(frames.WireError, match="complex64, which does not travel"):
        frames.encode(Message(Kind.FORWARD, 0, 0, {"z": torch.zeros(2, dtype=torch.complex64)}))
    for codec in (Raw(), Sparse(), Prefix()):
        with pytest.raises(frames.WireError, match="complex128, which does not travel"):
            frames.encode(Message(Kind.FORWARD, 0, 0, {"z": torch.zeros(99, dtype=torch.complex128)}), codec)


@pytest.mark.parametrize("kind", [Kind.FORWARD, Kind.BACKWARD, Kind.LOSS, Kind.PREDICT, Kind.WEIGHTS])
def test_a_message_of_thousands_of_empty_tensors_is_refused_before_any_is_built(kind):
    """A megabyte of them took seconds to read, while nobody else was answered."""
    count = 65_535
    entries = b"".join(b"\5" + b"%05d" % n + struct.pack("<BBBBII", 0, 0, 0, 1, 0, 0) for n in range(count))
    head = struct.pack("<2sBBIQH", b"CL", 1, kind, 0, 0, count)
    frame = head + entries + bytes(-len(head + entries) % 16)
    began = time.thread_time()  # others may have the core for longer
    with pytest.raises(frames.WireError, match="65535 tensors; there are"):
        frames.decode(frame)
    assert time.thread_time() - began < 0.05


def test_pieces_are_the_frame_and_any_stretch_of_it():
    sent = sparse_message()
    found, frame = frames.pieces(sent), bytes(frames.encode(sent))
    assert len(found) == len(frame) and bytes(found) == frame
    for start, end in [(0, 5), (3, 3), (10, 200), (0, len(frame)), (len(frame) - 1, len(frame) + 9)]:
        assert b"".join(found.between(start, end)) == frame[start:end]


@pytest.mark.parametrize(("kind", "stays"), [(Kind.FORWARD, True), (Kind.WEIGHTS, False)])
def test_tensors_of_a_step_lie_in_a_frame_that_was_given_away(kind, stays):
    sent = Message(kind, 3, 9, {"z": torch.randn(12, 10)})
    frame = frames.encode(sent)
    back = frames.decode(frame, in_place=True)["z"]
    assert torch.equal(back, sent["z"])
    frame[-40:] = bytes(40)
    assert bool((back[-1] == 0).all()) is stays


def test_what_lies_unaligned_is_copied():
    """Kernels choose their path by alignment, and other paths give other last bits."""
    sent = Message(Kind.FORWARD, 3, 9, {"z": torch.randn(12, 10)})
    frame = frames.encode(sent)
    for shift in range(1, 16):
        moved = bytearray(shift + len(frame))
        moved[shift:] = frame
        back = frames.decode(memoryview(moved)[shift:], in_place=True)["z"]
        assert torch.equal(back, sent["z"]) and back.data_ptr() % 16 == 0


def test_nothing_is_said_of_a_frame_that_nobody_else_writes_into(recwarn):
    back = frames.decode(bytes(frames.encode(Message(Kind.FORWARD, 3, 9, {"z": torch.ones(9)}))), in_place=True)["z"]
    assert torch.equal(back, torch.ones(9)) and not recwarn.list
