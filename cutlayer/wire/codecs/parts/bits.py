"""Tensors as integer words, and small numbers packed into as few bits as the largest of them needs."""

import warnings
from math import prod
from struct import Struct
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ....core.layout import in_rows

# Unpacking takes memory beside the tensor. Larger tensors go raw, and a packed frame that claims one is refused.
MOST_ELEMENTS = 1 << 28

ALIGNED = 16  # bytes: as the wire has it, and every allocator
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_NUMPY_WORDS = {1: np.uint8, 2: np.int16, 4: np.int32, 8: np.int64}


def words(tensor: Tensor) -> Tensor:
    """The elements' bits as integers, row by row, on the tensor's own device. A word is 0 if no bit is set.

    So -0.0 is no zero, and no NaN loses its payload: what a codec leaves out comes back bit for bit.
    """
    return in_rows(tensor.detach().view(_WORDS[tensor.element_size()]))


def on_host(tensor: Tensor) -> NDArray[Any]:
    """Its words as one flat array. In few calls: the ledger asks for it at every message."""
    tensor = tensor.detach() if tensor.requires_grad else tensor
    tensor = (tensor if tensor.is_cpu else tensor.cpu()).contiguous()
    if tensor.dtype == torch.bfloat16:  # numpy has no such numbers
        tensor = tensor.view(torch.int16)
    return tensor.numpy().reshape(-1).view(_NUMPY_WORDS[tensor.element_size()])


def values(data: bytes | memoryview, dtype: torch.dtype, count: int = -1, start: int = 0) -> NDArray[Any]:
    """Words read from a buffer: `count` of them (all) from this byte on.

    Where they lie unaligned they are copied first: placed one by one from there they take numpy twice as long.
    """
    found = np.frombuffer(data, f"i{dtype.itemsize}", count, start)
    return found if found.flags.aligned else found.copy()


def placed(at: NDArray[np.int64], found: NDArray[Any], dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """Zeros of this shape, with the words `found` at the flat positions `at`."""
    tensor = torch.zeros(shape, dtype=dtype)
    flat = tensor.reshape(-1).view(_WORDS[dtype.itemsize]).numpy()
    flat[at] = found.view(flat.dtype)
    return tensor


def nonzeros(found: Tensor) -> int:
    """How many words are not 0. On a device it is counted there, and one number comes over."""
    # numpy takes half of torch's time on the CPU, and the ledger counts at every message.
    return int(np.count_nonzero(found.numpy())) if found.device.type == "cpu" else int(torch.count_nonzero(found))


def packed_size(count: int, width: int) -> int:
    """Bytes of `count` numbers of `width` bits."""
    return -(-count * width // 8)


def pack(numbers: NDArray[np.int64], width: int) -> NDArray[np.uint8]:
    """Numbers below 2^width, one after the other, lowest bit first."""
    whole = numbers.astype("<u4").view(np.uint8).reshape(-1, 4)[:, : packed_size(1, width)]
    bits = np.unpackbits(whole, axis=1, bitorder="little")
    return np.packbits(bits[:, :width], bitorder="little")


def unpack(data: memoryview, count: int, width: int) -> NDArray[np.int64]:
    """The inverse of `pack`."""
    whole = np.zeros((count, 4), dtype=np.uint8)
    bits = flags(data, count * width).reshape(count, width)
    whole[:, : packed_size(1, width)] = np.packbits(bits, axis=1, bitorder="little")
    return whole.view("<u4").reshape(-1).astype(np.int64)


def flags(data: memoryview, count: int) -> NDArray[np.bool_]:
    """The first `count` bits of a buffer; the rest of its last byte has to be empty."""
    bits = np.unpackbits(np.frombuffer(data, dtype=np.uint8), bitorder="little")
    if len(bits) != 8 * packed_size(count, 1) or any(bits[count:].tolist()):
        raise ValueError(f"{count} bits were expected, padded with zeros to whole bytes; got {len(data)} bytes")
    return bits[:count].view(np.bool_)


def joined(*parts: Any) -> memoryview:
    """Arrays and bytes, one after the other."""
    return memoryview(b"".join(parts))


def read_header(form: Struct, data: memoryview) -> tuple[Any, ...]:
    """The numbers a buffer begins with."""
    if len(data) < form.size:
        raise ValueError(f"a buffer of {len(data)} bytes, its header alone takes {form.size}")
    return form.unpack_from(data)


def counted(shape: tuple[int, ...]) -> int:
    """The elements of a shape that a frame claims, if they may be unpacked."""
    if prod(shape) > MOST_ELEMENTS:
        raise ValueError(f"{tuple(shape)} has more than the {MOST_ELEMENTS} elements that are unpacked")
    return prod(shape)


def rows_of(shape: tuple[int, ...]) -> tuple[int, int]:
    """(rows, length of a row) along the last dimension. A single number is a row of one; nothing is no rows."""
    if not prod(shape):
        return 0, 0
    length = shape[-1] if shape else 1
    return prod(shape) // length, length


def own_bytes(tensor: Tensor) -> memoryview:
    """A tensor's numbers, little endian, row by row."""
    flat = in_rows(tensor.detach().cpu()).reshape(-1)
    return flat.view(torch.uint8).numpy().data if flat.numel() else memoryview(b"")


def from_own_bytes(data: memoryview, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    _refuse_other_length(data, dtype, shape)
    # A copy of its own: autograd counts versions per storage, and the frame's buffer will be reused.
    return (
        torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape)
        if len(data)
        else torch.empty(shape, dtype=dtype)
    )


def in_own_bytes(data: memoryview, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """As `from_own_bytes`, in the buffer itself, which is nobody else's any more. A copy where it lies unaligned."""
    _refuse_other_length(data, dtype, shape)
    if not len(data):
        return torch.empty(shape, dtype=dtype)
    found = torch.frombuffer(data, dtype=dtype)
    return found.reshape(shape) if found.data_ptr() % ALIGNED == 0 else from_own_bytes(data, dtype, shape)


def _refuse_other_length(data: memoryview, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    wanted = prod(shape) * dtype.itemsize
    if len(data) != wanted:
        raise ValueError(f"{tuple(shape)} of {dtype} takes {wanted} bytes, the frame has {len(data)}")


with warnings.catch_warnings():
    # torch says once a process that nothing keeps a tensor from writing into `bytes`. Here nobody reads them again.
    warnings.simplefilter("ignore")
    torch.frombuffer(b"0", dtype=torch.uint8)
