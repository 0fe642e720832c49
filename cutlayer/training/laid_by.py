"""What is asked for once a round, out of memory until then."""

import os
import tempfile

import torch

from ..core.files import write_all
from ..core.state import State

IN_MEMORY = 64 << 20  # bytes that all of it may take there
_ALIGNED = 64


def laid_by(state: State, others: int) -> State:
    """The same tensors. Where this state and so many others like it are too much to hold, they lie in a file without
    a name, which is gone with them; the system reads what is looked at.

    Who writes into them writes into memory. Where there is no room for a file they stay there altogether.
    """
    sizes = [tensor.nbytes for tensor in state.values()]
    if sum(sizes) * (1 + others) <= IN_MEMORY or not all(tensor.is_cpu for tensor in state.values()):
        return state
    if os.name != "posix":
        return state  # files keep their names there as long as somebody reads them
    try:
        lying = _in_a_file(state)
    except (OSError, RuntimeError):  # torch's own, where the system maps no more files
        return state
    found, at = {}, 0
    for (name, tensor), size in zip(state.items(), sizes, strict=True):
        row = lying[at : at + size].view(tensor.dtype)
        found[name] = row.as_strided(tensor.shape, _dense(tensor).stride(), row.storage_offset())
        at += _padded(size)
    return found


def _in_a_file(state: State) -> torch.Tensor:
    """All numbers one after the other, not read yet."""
    number, path = tempfile.mkstemp(prefix="cutlayer-")  # that nobody else may read
    try:
        for tensor in state.values():
            row = _dense(tensor).as_strided((tensor.numel(),), (1,))
            write_all(number, row.view(torch.uint8).numpy().data)
            os.lseek(number, _padded(tensor.nbytes) - tensor.nbytes, os.SEEK_CUR)
        length = os.lseek(number, 0, os.SEEK_CUR)
        os.ftruncate(number, length)
        return torch.from_file(path, shared=False, size=length, dtype=torch.uint8)
    finally:
        os.close(number)
        os.unlink(path)


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """Without gaps, in the order in which it lies in memory."""
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()


def _padded(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED
