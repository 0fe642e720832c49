"""How the numbers of a tensor lie in memory: products sum them in another order where they lie otherwise."""

import torch
from torch import Tensor


def in_rows(tensor: Tensor) -> Tensor:
    """The same numbers, row by row. torch calls a dimension of one contiguous whatever its stride is, but does not
    view such a tensor as bytes."""
    tensor = tensor.contiguous()
    if not tensor.dim() or tensor.stride(-1) == 1:
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


def as_it_arrives(tensor: Tensor) -> Tensor:
    """As it lies when it comes out of a frame: in rows, or with channels last."""
    if tensor.dim() == 4 and not tensor.is_contiguous() and tensor.is_contiguous(memory_format=torch.channels_last):
        return tensor
    return in_rows(tensor)
