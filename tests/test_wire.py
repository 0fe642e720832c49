"""Frames: overhead, alignment, memory format, and what happens to damaged ones."""

import random

import pytest
import torch

from cutlayer import wire
from cutlayer.message import Kind, Message


def message(*shapes):
    return Message(Kind.FORWARD, 3, 9, {f"t{n}": torch.randn(shape) for n, shape in enumerate(shapes)})


@pytest.mark.parametrize("shape", [(64, 512), (64, 64, 8, 8), (64, 20, 12, 12), ()])
def test_a_message_costs_at_most_64_bytes_more_than_its_tensor(shape):
    sent = message(shape)
    assert wire.size(sent) <= sent["t0"].numel() * 4 + 64


def test_every_buffer_starts_at_a_multiple_of_16():
    sent = message((3,), (5,), (7, 2))
    frame = bytes(wire.encode(sent))
    for tensor in sent.tensors.values():
        assert frame.index(tensor.numpy().tobytes()) % wire.ALIGNMENT == 0


def test_the_memory_format_travels():
    maps = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    back = wire.decode(wire.encode(Message(Kind.FORWARD, 0, 0, {"z": maps})))["z"]
    assert torch.equal(back, maps)
    assert back.is_contiguous(memory_format=torch.channels_last) and not back.is_contiguous()


def test_a_decoded_tensor_owns_its_memory():
    frame = wire.encode(message((4,)))
    back = wire.decode(frame)["t0"]
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
    with pytest.raises(wire.WireError, match=words):
        wire.decode(damage(bytes(wire.encode(message((4, 4))))))


def test_random_damage_never_gets_past_the_decoder_as_another_error():
    draw = random.Random(5)
    whole = bytes(wire.encode(message((4, 4), (3,))))
    refused = 0
    for _ in range(3000):
        frame = bytearray(whole)
        for _ in range(draw.randint(1, 4)):
            frame[draw.randrange(len(frame))] = draw.randrange(256)
        if draw.random() < 0.3:
            del frame[draw.randrange(len(frame)) :]
        try:
            wire.decode(frame)
        except wire.WireError:
            refused += 1
    assert refused > 1000


def test_a_dtype_that_does_not_travel_is_refused_when_sent():
    with pytest.raises(wire.WireError, match="complex64, which does not travel"):
        wire.encode(Message(Kind.FORWARD, 0, 0, {"z": torch.zeros(2, dtype=torch.complex64)}))
