"""Message <-> bytes: a small header and plain buffers. No pickle, and nothing that could run.

A frame is

    header  "CL", version, kind, client (u32), step (u64)                                16 bytes
    table   count, then per tensor: name, dtype, codec, memory format, dimensions, bytes
    data    one buffer per tensor, in the codec that takes the fewest bytes: most zeros need not travel

Header and every buffer but the last are padded to 16 bytes: kernels choose their path by alignment, and an
unaligned tensor gives other last bits than the one that was sent. The memory format travels for the same reason.
"""

import math
import struct
from collections.abc import Sequence
from functools import lru_cache, partial
from math import prod

import torch
from torch import Tensor

from ..core.message import Kind, Message
from .choice import fewest_bytes, smallest, smallest_later
from .codecs import BY_TAG, Codec, Prepared, Raw
from .codecs.parts.bits import ALIGNED, in_own_bytes
from .codecs.parts.smallest import size_later as prepared_later
from .later import Later, together
from .pieces import Pieces

VERSION = 1
ALIGNMENT = ALIGNED
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
# Tensors of a message at most: each costs time and memory to build, however empty it is.
_STEP, _MANY = 16, 1 << 14
_MOST = {Kind.FORWARD: _STEP, Kind.BACKWARD: _STEP, Kind.LOSS: _STEP, Kind.PREDICT: _STEP}
_RAW = Raw()


class WireError(ValueError):
    """Bytes that are not one of our frames."""


def encode(message: Message, codec: Codec | None = None) -> bytearray:
    """The frame of `message`. Without a `codec`, every tensor gets the one that takes the fewest bytes."""
    # Joined, every byte is written once; a frame of zeros that is filled in would be written twice.
    return bytearray().join(pieces(message, codec).parts)


def pieces(message: Message, codec: Codec | None = None) -> Pieces:
    """The same frame, not joined yet: dense tensors are still where they were, and nobody may write into them."""
    if not (0 <= message.client < 1 << 32 and 0 <= message.step < 1 << 64):
        raise WireError(f"{message} cannot be framed: client is a u32, step a u64")
    table = bytearray(_COUNT.pack(len(message.tensors)))
    buffers: list[memoryview] = []
    for name, tensor in message.tensors.items():
        if tensor.dtype not in _DTYPES:
            raise WireError(f"tensor {name!r} has dtype {tensor.dtype}, which does not travel")
        format, sent = _as_sent(tensor)
        ready = None if codec else _ready(message, name, sent)
        used = codec or ready or _best(message.kind, sent)[0]
        data = used.encode(sent) if isinstance(used, Codec) else used.encode()
        # Whoever prepared bytes wrote rows: the tensor comes back row by row.
        table += _entry(name, tensor, used.tag, _ROWS if ready else format, len(data))
        buffers.append(data)
    top = _HEADER.pack(b"CL", VERSION, message.kind, message.client, message.step) + table
    top += bytes(_aligned(len(top)) - len(top))
    parts, at = [memoryview(top)], len(top)
    for end, data in zip(_ends(at, [len(data) for data in buffers]), buffers, strict=True):
        parts += [memoryview(bytes(end - len(data) - at)), data]
        at = end
    return Pieces([part for part in parts if len(part)])


def size(message: Message, codec: Codec | None = None) -> int:
    """`len(encode(message))` without encoding: what the ledger counts when nothing has to be sent."""
    if len(message.tensors) == 1 and not message.packed and codec is None:  # nearly all: in few calls
        ((name, tensor),) = message.tensors.items()
        if tensor.is_contiguous() and message.kind is not Kind.WEIGHTS:
            return _behind_table((name, tensor.dim())) + smallest(tensor)[1]
    lengths = []
    for name, tensor in message.tensors.items():
        sent = tensor if tensor.is_contiguous() else _as_sent(tensor)[1]
        ready = _ready(message, name, sent) if message.packed and not codec else None
        lengths.append(codec.size(sent) if codec else ready.size() if ready else _best(message.kind, sent)[1])
    return _end(_start(message), lengths)


def size_later(message: Message) -> int | Later:
    """`size(message)` without waiting for the device its tensors are on."""
    lengths: list[int | Later] = []
    for name, tensor in message.tensors.items():
        sent, ready = _as_sent(tensor)[1], message.packed.get(name) if message.packed else None
        plain = _RAW.size(sent) if message.kind is Kind.WEIGHTS else smallest_later(sent)
        lengths.append(plain if ready is None else together([plain, prepared_later(ready)], min))
    return together(lengths, partial(_end, _start(message)))


def _start(message: Message) -> int:
    """Where the first buffer begins."""
    return _behind_table(*[(name, tensor.dim()) for name, tensor in message.tensors.items()])


@lru_cache(maxsize=256)  # a run has a dozen kinds of tables, and every message asks
def _behind_table(*entries: tuple[str, int]) -> int:
    """Where the first buffer begins, behind a table of tensors with these names and dimensions."""
    table = sum(1 + len(name.encode()) + _ENTRY.size + 4 * dimensions for name, dimensions in entries)
    return _aligned(_HEADER.size + _COUNT.size + table)


def _end(start: int, lengths: Sequence[int]) -> int:
    """Where the last of such buffers ends."""
    return start + lengths[0] if len(lengths) == 1 else ([start, *_ends(start, lengths)])[-1]


def decode(frame: bytes | bytearray | memoryview, limit: int = LARGEST_FRAME, *, in_place: bool = False) -> Message:
    """The message in `frame`. Anything but exactly one whole frame is refused, and more than `limit` bytes.

    `in_place`: the frame is given away; dense tensors of a step may stay where they lie in it. (Weights are
    kept for longer, some without the others: they would keep the whole frame.)
    """
    view = memoryview(frame)
    if len(view) > limit:
        raise WireError(f"a frame of {len(view)} bytes is over the limit of {limit}")
    try:
        return _decode(view, limit, in_place)
    except WireError:
        raise
    except (struct.error, IndexError, UnicodeDecodeError, ValueError, RuntimeError, MemoryError) as error:
        raise WireError(f"damaged frame of {len(view)} bytes: {error}") from error


def _decode(view: memoryview, limit: int, in_place: bool) -> Message:
    magic, version, kind, client, step = _HEADER.unpack_from(view, 0)
    if magic != b"CL":
        raise WireError("this is not a cutlayer frame")
    if version != VERSION:
        raise WireError(f"frame of wire version {version}, this side speaks {VERSION}: update the older side")
    if kind not in Kind._value2member_map_:
        raise WireError(f"unknown kind {kind}")
    (held,) = _COUNT.unpack_from(view, _HEADER.size)
    if held > (most := _MOST.get(Kind(kind), _MANY)):
        raise WireError(f"{Kind(kind).name} with {held} tensors; there are {most} at most")
    at, unpacked = _HEADER.size + _COUNT.size, 0
    entries = []
    for _ in range(held):
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
        # What codecs leave out takes no bytes in the frame, so a short frame could claim any shape.
        unpacked += prod(shape) * _DTYPES[dtype].itemsize
        if unpacked > limit:
            raise WireError(f"a frame that unpacks to {unpacked} bytes is over the limit of {limit}")
        entries.append((name, _DTYPES[dtype], tag, format, shape, count))
    if len({entry[0] for entry in entries}) != len(entries):
        raise WireError("two tensors of the frame have the same name")
    ends = _ends(_aligned(at), [entry[-1] for entry in entries])
    if len(view) != (ends[-1] if ends else _aligned(at)):
        raise WireError(f"the frame should have {ends[-1] if ends else _aligned(at)} bytes, it has {len(view)}")
    _refuse_filled_gaps(view, at, ends, [entry[-1] for entry in entries])
    tensors = {}
    for end, (name, dtype, tag, format, shape, count) in zip(ends, entries, strict=True):
        sent = _permuted(shape) if format == _CHANNELS_LAST else shape
        stays = in_place and tag == _RAW.tag and kind in _MOST
        decoded = in_own_bytes if stays else BY_TAG[tag].decode
        tensor = decoded(view[end - count : end], dtype, sent)
        tensors[name] = tensor.permute(0, 3, 1, 2) if format == _CHANNELS_LAST else tensor
    return Message(Kind(kind), client, step, tensors)


def _entry(name: str, tensor: Tensor, tag: int, format: int, count: int) -> bytes:
    spelled = name.encode()
    if len(spelled) > 255:
        raise WireError(f"a tensor's name has at most 255 bytes; got {len(spelled)}")
    fixed = _ENTRY.pack(_DTYPES.index(tensor.dtype), tag, format, tensor.dim(), count)
    return bytes([len(spelled)]) + spelled + fixed + struct.pack(f"<{tensor.dim()}I", *tensor.shape)


def _ready(message: Message, name: str, tensor: Tensor) -> Prepared | None:
    """The bytes that came with a tensor, where they are fewer than any codec would take."""
    ready: Prepared | None = message.packed.get(name) if message.packed else None
    if ready is None:
        return None
    size, kept = ready.size(), getattr(ready, "kept", None)
    if kept is not None and size < fewest_bytes(tensor.numel(), tensor.element_size(), kept):
        return ready  # as it mostly is: nothing has to be counted anew
    return ready if size < _best(message.kind, tensor, size)[1] else None


def _best(kind: Kind, tensor: Tensor, below: float = math.inf) -> tuple[Codec, int]:
    """The codec for a tensor, and the bytes it takes. Weights are dense: they go raw, and are not looked through."""
    return (_RAW, _RAW.size(tensor)) if kind is Kind.WEIGHTS else smallest(tensor, below)


def _as_sent(tensor: Tensor) -> tuple[int, Tensor]:
    """Its memory format, and the tensor in the order in which it lies there."""
    if tensor.is_contiguous() or tensor.dim() != 4 or not tensor.is_contiguous(memory_format=torch.channels_last):
        return _ROWS, tensor
    return _CHANNELS_LAST, tensor.permute(0, 2, 3, 1)


def _refuse_filled_gaps(view: memoryview, at: int, ends: Sequence[int], lengths: Sequence[int]) -> None:
    """Gaps are zeros. A table whose dimensions were damaged would leave its rest in the first of them."""
    starts = [end - length for end, length in zip(ends, lengths, strict=True)]
    for last, start in zip([at, *ends], [*starts, len(view)], strict=True):
        if any(view[last:start]):
            raise WireError(f"the gap before byte {start} is not filled with zeros")


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
