"""Message <-> bytes: a small header and raw buffers. No pickle, and nothing that could run.

A frame is

    header  "CL", version, kind, client (u32), step (u64)                                16 bytes
    table   count, then per tensor: name, dtype, codec, memory format, dimensions, bytes
    data    one buffer per tensor

Header and every buffer but the last are padded to 16 bytes: kernels choose their path by alignment, and an
unaligned tensor gives other last bits than the one that was sent. The memory format travels for the same reason.
"""

import struct
from collections.abc import Sequence

import torch
from torch import Tensor

from .codecs import BY_TAG, Codec, Raw
from .message import Kind, Message

VERSION = 1
ALIGNMENT = 16
LARGEST_FRAME = 1 << 31  # 2 GiB: above it a length is a mistake or an attack, not a batch

_HEADER = struct.Struct("<2sBBIQ")
_COUNT = struct.Struct("<H")  # tensors in the frame
_ENTRY = struct.Struct("<BBBBI")  # dtype, codec, memory format, dimensions, bytes

# Order is the wire's: append, never reorder.
_DTYPES: Sequence[torch.dtype] = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
)
_ROWS, _CHANNELS_LAST = 0, 1


class WireError(ValueError):
    """Bytes that are not one of our frames."""


def encode(message: Message, codec: Codec | None = None) -> bytearray:
    """The frame of `message`, one allocation and one copy of every tensor."""
    codec = codec or Raw()
    if not (0 <= message.client < 1 << 32 and 0 <= message.step < 1 << 64):
        raise WireError(f"{message} cannot be framed: client is a u32, step a u64")
    table = bytearray(_COUNT.pack(len(message.tensors)))
    buffers = []
    for name, tensor in message.tensors.items():
        format = _memory_format(tensor)
        data = codec.encode(tensor.permute(0, 2, 3, 1) if format == _CHANNELS_LAST else tensor)
        table += _entry(name, tensor, codec.tag, format, len(data))
        buffers.append(data)
    start = _aligned(_HEADER.size + len(table))
    ends = _ends(start, [len(data) for data in buffers])
    frame = bytearray(ends[-1] if ends else start)
    _HEADER.pack_into(frame, 0, b"CL", VERSION, message.kind, message.client, message.step)
    frame[_HEADER.size : _HEADER.size + len(table)] = table
    for end, data in zip(ends, buffers, strict=True):
        frame[end - len(data) : end] = data
    return frame


def size(message: Message, codec: Codec | None = None) -> int:
    """`len(encode(message))` without encoding: what the ledger counts when nothing has to be sent."""
    codec = codec or Raw()
    table = _COUNT.size + sum(
        1 + len(name.encode()) + _ENTRY.size + 4 * t.dim() for name, t in message.tensors.items()
    )
    start = _aligned(_HEADER.size + table)
    return ([start, *_ends(start, [codec.size(tensor) for tensor in message.tensors.values()])])[-1]


def decode(frame: bytes | bytearray | memoryview) -> Message:
    """The message in `frame`; anything else than exactly one whole frame is refused."""
    view = memoryview(frame)
    if len(view) > LARGEST_FRAME:
        raise WireError(f"a frame of {len(view)} bytes is over the limit of {LARGEST_FRAME}")
    try:
        return _decode(view)
    except WireError:
        raise
    except (struct.error, IndexError, UnicodeDecodeError, ValueError, RuntimeError) as error:
        raise WireError(f"damaged frame of {len(view)} bytes: {error}") from error


def _decode(view: memoryview) -> Message:
    magic, version, kind, client, step = _HEADER.unpack_from(view, 0)
    if magic != b"CL":
        raise WireError("this is not a cutlayer frame")
    if version != VERSION:
        raise WireError(f"frame of wire version {version}, this side speaks {VERSION}: update the older side")
    if kind not in Kind._value2member_map_:
        raise WireError(f"unknown kind {kind}")
    at = _HEADER.size + _COUNT.size
    entries = []
    for _ in range(_COUNT.unpack_from(view, _HEADER.size)[0]):
        length = view[at]
        name = bytes(view[at + 1 : at + 1 + length]).decode()
        dtype, tag, format, dimensions, count = _ENTRY.unpack_from(view, at + 1 + length)
        at += 1 + length + _ENTRY.size
        shape = struct.unpack_from(f"<{dimensions}I", view, at)
        at += 4 * dimensions
        if dtype >= len(_DTYPES) or tag not in BY_TAG or format not in (_ROWS, _CHANNELS_LAST):
            raise WireError(f"tensor {name!r} has an unknown dtype, codec or memory format")
        if format == _CHANNELS_LAST and dimensions != 4:
            raise WireError(f"tensor {name!r} claims channels-last with {dimensions} dimensions")
        entries.append((name, _DTYPES[dtype], tag, format, shape, count))
    ends = _ends(_aligned(at), [entry[-1] for entry in entries])
    if len(view) != (ends[-1] if ends else _aligned(at)):
        raise WireError(f"the frame should have {ends[-1] if ends else _aligned(at)} bytes, it has {len(view)}")
    tensors = {}
    for end, (name, dtype, tag, format, shape, count) in zip(ends, entries, strict=True):
        sent = _permuted(shape) if format == _CHANNELS_LAST else shape
        tensor = BY_TAG[tag].decode(view[end - count : end], dtype, sent)
        tensors[name] = tensor.permute(0, 3, 1, 2) if format == _CHANNELS_LAST else tensor
    return Message(Kind(kind), client, step, tensors)


def _entry(name: str, tensor: Tensor, tag: int, format: int, count: int) -> bytes:
    if tensor.dtype not in _DTYPES:
        raise WireError(f"tensor {name!r} has dtype {tensor.dtype}, which does not travel")
    spelled = name.encode()
    if len(spelled) > 255:
        raise WireError(f"a tensor's name has at most 255 bytes; got {len(spelled)}")
    fixed = _ENTRY.pack(_DTYPES.index(tensor.dtype), tag, format, tensor.dim(), count)
    return bytes([len(spelled)]) + spelled + fixed + struct.pack(f"<{tensor.dim()}I", *tensor.shape)


def _memory_format(tensor: Tensor) -> int:
    is_last = tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    return _CHANNELS_LAST if is_last and not tensor.is_contiguous() else _ROWS


def _permuted(shape: tuple[int, ...]) -> tuple[int, ...]:
    batch, channels, height, width = shape
    return batch, height, width, channels


def _aligned(length: int) -> int:
    return -(-length // ALIGNMENT) * ALIGNMENT


def _ends(start: int, lengths: Sequence[int]) -> list[int]:
    """Where each buffer ends, every one starting at a multiple of the alignment."""
    ends = []
    for length in lengths:
        start = _aligned(start) + length
        ends.append(start)
    return ends
