"""Numbers that fit into two bytes although they stand in four or eight."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .base import Codec
from .parts.bits import counted, from_own_bytes, joined, own_bytes, words

PLAIN, BFLOAT16, FLOAT16 = 0, 1, 2  # forms: the number's own bytes, the upper half of a float32, IEEE's half
_SAMPLE = 64  # numbers that are looked at before all are: most tensors end here
_LOWER = 0xFFFF
_BELOW = {4: (1 << 13) - 1, 8: (1 << 42) - 1}  # by bytes of a word: what is left of its 23 or 52 bits after ten


@dataclass(frozen=True, repr=False)
class Half(Codec):
    """Two bytes a number where all of them are bfloat16 or float16 numbers, exactly; their own bytes otherwise.

    A byte that names the form, then the numbers in order. As bfloat16 a float32 loses bits that are all zero, so
    infinities, signed zeros and payloads of NaN come back as they were.
    """

    tag: ClassVar[int] = 9

    def encode(self, tensor: Tensor) -> memoryview:
        tensor = tensor.detach()
        form = form_of(tensor)
        if form == PLAIN:
            return joined(bytes([form]), own_bytes(tensor))
        if form == FLOAT16:
            return joined(bytes([form]), own_bytes(tensor.to(torch.float16)))
        upper = words(tensor.to(torch.float32).cpu()).reshape(-1).numpy().view(np.uint16)[1::2]
        return joined(bytes([form]), np.ascontiguousarray(upper).view(np.uint8))

    def size(self, tensor: Tensor) -> int:
        return self.size_of(tensor.numel(), tensor.element_size(), form_of(tensor.detach()))

    def size_of(self, elements: int, each: int, form: int) -> int:
        """Bytes for so many numbers of `each` bytes in this form."""
        return 1 + elements * (each if form == PLAIN else 2)

    def decode(self, data: memoryview, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        if not len(data):
            raise ValueError("a buffer without the byte that names its form")
        form = data[0]
        if form == PLAIN:
            return from_own_bytes(data[1:], dtype, shape)
        if form not in (BFLOAT16, FLOAT16) or dtype not in (torch.float32, torch.float64):
            raise ValueError(f"numbers of two bytes for {dtype} in form {form}")
        wanted = 1 + 2 * counted(shape)
        if len(data) != wanted:
            raise ValueError(f"{tuple(shape)} takes {wanted} bytes at two a number, the frame has {len(data)}")
        found = np.frombuffer(data[1:], dtype=np.uint16)
        if form == FLOAT16:
            return torch.from_numpy(found.copy().view(np.float16)).to(dtype).reshape(shape)
        whole: NDArray[np.uint16] = np.zeros((len(found), 2), dtype=np.uint16)
        whole[:, 1] = found
        return torch.from_numpy(whole.view(np.float32)).to(dtype).reshape(shape)


def may_fit(found: NDArray[Any]) -> bool:
    """Whether the first of these words of four or eight bytes leave it open that two bytes a number do.

    In either form a number has ten bits behind the point at most, so all bits below these are zero.
    """
    lowest = _BELOW[found.itemsize]
    if int(found[0]) & lowest:  # mostly the first number tells
        return False
    return not any(word & lowest for word in found[:_SAMPLE].tolist())


def form_of(tensor: Tensor) -> int:
    """The form in which a tensor fits into two bytes a number, PLAIN where none does."""
    if tensor.dtype not in (torch.float32, torch.float64) or not tensor.numel():
        return PLAIN
    flat = tensor.detach().reshape(-1)
    first = flat[:: max(1, len(flat) // _SAMPLE)].cpu()  # one wait for a device, whatever is asked of them
    for form, fits in ((BFLOAT16, _is_bfloat16), (FLOAT16, _is_float16)):
        if fits(first) and fits(flat):
            return form
    return PLAIN


def misfits_there(tensor: Tensor) -> tuple[Tensor, ...]:
    """For each form whether some number does not fit into it, as truth values that are still on the tensor's device;
    none: no form is for such tensors."""
    if tensor.dtype not in (torch.float32, torch.float64):
        return ()
    found = tensor.detach()
    # NaN equals nothing, and signs of zeros survive: equal numbers are equal bits here.
    as_float16 = (found.to(torch.float16) != found).any()
    if found.dtype == torch.float64:
        return as_float16, (found.to(torch.bfloat16) != found).any()
    return as_float16, words(found).view(torch.int16)[..., ::2].any()  # lower halves, side by side in memory


def _is_bfloat16(flat: Tensor) -> bool:
    if flat.dtype == torch.float64:
        return _survives(flat, torch.bfloat16)
    if flat.device.type != "cpu":
        return not bool((words(flat) & _LOWER).any())
    # Numbers of a dense tensor lie side by side: their lower halves are every second one of the halves.
    lower: NDArray[Any] = words(flat).numpy().view(np.uint16)[::2]
    return not lower.any()


def _is_float16(flat: Tensor) -> bool:
    return _survives(flat, torch.float16)


def _survives(flat: Tensor, small: torch.dtype) -> bool:
    """Whether every number is one of `small` too. Machines convert NaN in their own ways, so none may be there."""
    return torch.equal(words(flat.to(small).to(flat.dtype)), words(flat)) and not bool(flat.isnan().any())
