"""Frames to the byte. Both sides may agree on a mistake and still not understand a peer of another release."""

import re
import struct

import pytest
import torch

from cutlayer.core.message import Kind, Message
from cutlayer.wire import frames as wire
from cutlayer.wire import transcript
from cutlayer.wire.codecs import BY_TAG


def from_hex(text):
    """The bytes of lines of hex with comments."""
    return bytes.fromhex(re.sub("#.*", "", text))


EVERY_DTYPE = from_hex("""
    43 4c 01 01                     # "CL", version 1, FORWARD
    04 03 02 01                     # client 0x01020304
    0c 0b 0a 09 08 07 06 05         # step 0x05060708090a0b0c
    0a 00                           # ten tensors: name, dtype, codec, memory format, dimensions, bytes, shape
    03 66 33 32     00 00 00 02  0c 00 00 00  01 00 00 00 03 00 00 00   # f32
    03 66 36 34     01 00 00 01  10 00 00 00  02 00 00 00               # f64
    03 66 31 36     02 00 00 01  06 00 00 00  03 00 00 00               # f16
    04 62 66 31 36  03 00 00 01  06 00 00 00  03 00 00 00               # bf16
    03 69 36 34     04 00 00 01  10 00 00 00  02 00 00 00               # i64
    03 69 33 32     05 00 00 01  08 00 00 00  02 00 00 00               # i32
    03 69 31 36     06 00 00 01  04 00 00 00  02 00 00 00               # i16
    02 69 38        07 00 00 01  02 00 00 00  02 00 00 00               # i8
    02 75 38        08 00 00 01  02 00 00 00  02 00 00 00               # u8
    04 62 6f 6f 6c  09 00 00 01  03 00 00 00  03 00 00 00               # bool
                                          00 00 00 00 00 00 00 00 00 00
    00 00 c0 3f  00 00 00 c0  cd cc cc 3d                   00 00 00 00 # 1.5, -2, 0.1
    00 00 00 00 00 00 f8 3f  9a 99 99 99 99 99 b9 bf                    # 1.5, -0.1
    00 3e  00 c0  66 2e                   00 00 00 00 00 00 00 00 00 00 # 1.5, -2, 0.1
    c0 3f  00 c0  cd 3d                   00 00 00 00 00 00 00 00 00 00 # 1.5, -2, 0.1
    fe ff ff ff ff ff ff ff  08 07 06 05 04 03 02 01                    # -2, 0x0102030405060708
    fe ff ff ff  04 03 02 01                    00 00 00 00 00 00 00 00 # -2, 0x01020304
    fe ff  02 01                    00 00 00 00 00 00 00 00 00 00 00 00 # -2, 0x0102
    fe  7f                    00 00 00 00 00 00 00 00 00 00 00 00 00 00 # -2, 127
    01  ff                    00 00 00 00 00 00 00 00 00 00 00 00 00 00 # 1, 255
    01  00  01                                                          # True, False, True
""")
TENSORS = {
    "f32": torch.tensor([[1.5, -2.0, 0.1]], dtype=torch.float32),
    "f64": torch.tensor([1.5, -0.1], dtype=torch.float64),
    "f16": torch.tensor([1.5, -2.0, 0.1], dtype=torch.float16),
    "bf16": torch.tensor([1.5, -2.0, 0.1], dtype=torch.bfloat16),
    "i64": torch.tensor([-2, 0x0102030405060708], dtype=torch.int64),
    "i32": torch.tensor([-2, 0x01020304], dtype=torch.int32),
    "i16": torch.tensor([-2, 0x0102], dtype=torch.int16),
    "i8": torch.tensor([-2, 127], dtype=torch.int8),
    "u8": torch.tensor([1, 255], dtype=torch.uint8),
    "bool": torch.tensor([True, False, True]),
}
CHANNELS_LAST = from_hex("""
    43 4c 01 04  03 00 00 00  09 00 00 00 00 00 00 00                   # PREDICT, client 3, step 9
    01 00
    01 7a  00 00 01 04  18 00 00 00  01 00 00 00 03 00 00 00 01 00 00 00 02 00 00 00   # z: 1 x 3 x 1 x 2, as it lies
                                                            00 00 00 00
    00 00 80 3f  00 00 40 40  00 00 a0 40                               # 1, 3, 5: all channels of a pixel,
    00 00 00 40  00 00 80 40  00 00 c0 40                               # 2, 4, 6: then those of the next
""")
SPARSE = from_hex("""
    43 4c 01 02  03 00 00 00  09 00 00 00 00 00 00 00                   # BACKWARD, client 3, step 9
    01 00
    02 64 75  00 01 00 02  13 00 00 00  08 00 00 00 08 00 00 00         # du: 8 x 8, sparse, 19 bytes
                                             00 00 00 00 00 00 00 00 00 00 00
    01  40 00 00 00  02 00 00 00                                        # indices, 64 elements, 2 of them not zero
    ca 0f                                                               # 10 and 63, six bits each
    00 00 c0 3f  00 00 00 c0                                            # 1.5, -2
""")


def pixels():
    return torch.tensor([1.0, 2, 3, 4, 5, 6]).reshape(1, 3, 1, 2).to(memory_format=torch.channels_last)


def two_of_64():
    du = torch.zeros(8, 8)
    du[1, 2], du[7, 7] = 1.5, -2.0
    return du


GOLDEN = {
    "every dtype": (EVERY_DTYPE, Message(Kind.FORWARD, 0x01020304, 0x05060708090A0B0C, TENSORS)),
    "channels last": (CHANNELS_LAST, Message(Kind.PREDICT, 3, 9, {"z": pixels()})),
    "sparse": (SPARSE, Message(Kind.BACKWARD, 3, 9, {"du": two_of_64()})),
}
golden = pytest.mark.parametrize(("frame", "message"), GOLDEN.values(), ids=GOLDEN)


@golden
def test_a_message_is_written_to_these_very_bytes(frame, message):
    assert bytes(wire.encode(message)).hex(" ") == frame.hex(" ")
    assert wire.size(message) == len(frame)


@golden
def test_these_very_bytes_are_read_as_this_message(frame, message):
    back = wire.decode(frame)
    assert (back.kind, back.client, back.step) == (message.kind, message.client, message.step)
    assert list(back.tensors) == list(message.tensors)
    for name, tensor in message.tensors.items():
        assert back[name].dtype == tensor.dtype and torch.equal(back[name], tensor)
        assert back[name].stride() == tensor.stride()


def test_there_is_a_golden_tensor_of_every_dtype_that_travels():
    assert [tensor.dtype for tensor in TENSORS.values()] == list(wire._DTYPES)


def test_numbers_of_kinds_and_codecs_never_change_meaning():
    """New ones get new numbers: a peer of another release would take one thing for another."""
    assert {kind.name: int(kind) for kind in Kind} == {
        "FORWARD": 1, "BACKWARD": 2, "LOSS": 3, "PREDICT": 4, "WEIGHTS": 5, "TURN": 6, "EVALUATE": 7, "KEEP": 8,
        "REWIND": 9, "END": 10, "LIFT": 11,
    }  # fmt: skip
    assert {tag: type(codec).__name__ for tag, codec in BY_TAG.items()} == {
        0: "Raw", 1: "Sparse", 2: "Prefix", 3: "Grid", 4: "Columns", 5: "Codebook", 6: "Entropy", 7: "Latents",
        8: "Pictures", 9: "Half", 10: "SparseGrid",
    }  # fmt: skip


def test_a_recording_is_its_mark_and_frames_behind_their_lengths(tmp_path):
    frames = [frame for frame, _ in GOLDEN.values()]
    recorder = transcript.Recorder()
    for frame in frames:
        recorder.keep(frame)
    recorder.save(tmp_path / "recording")
    written = b"CLT1" + b"".join(struct.pack("<I", len(frame)) + frame for frame in frames)
    assert (tmp_path / "recording").read_bytes() == written
    assert [message.kind for message in transcript.read(tmp_path / "recording")] == [
        Kind.FORWARD, Kind.PREDICT, Kind.BACKWARD,
    ]  # fmt: skip
