"""Convolutions of small maps as matrix products (im2col): the same sums in another order.

Libraries choose their kernels for large maps. Of maps of 8 x 8 places and fewer, the gradients that cuDNN computes in
float32 took more than half of a ResNet-18's step, at a twentieth of the GPU's speed; a matrix product is near it.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

MOST_PLACES = 64  # of a map that comes out: each is a row of k x k x channels, so larger ones would take memory


class Im2colConv2d(nn.Conv2d):
    """`nn.Conv2d` that multiplies matrices where its map is small."""

    draws_nothing = True

    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if x.dim() != 4 or not 0 < _places(self, x) <= MOST_PLACES or x.dtype != weight.dtype or _autocast(x):
            return super()._conv_forward(x, weight, bias)
        stride, padding = self.stride[0], self.padding[0]
        found = _Convolved.apply(x, weight, stride, int(padding))
        return found if bias is None else found + bias.reshape(-1, 1, 1)


def multiply(part: nn.Module) -> None:
    """Let a network's convolutions be matrix products. In place: names, weights and optimizers stay as they are."""
    for conv in _fitting(part.modules()):
        conv.__class__ = Im2colConv2d


def _fitting(modules: Iterable[nn.Module]) -> list[nn.Conv2d]:
    """Square, dense, padded with zeros that were counted out."""
    return [one for one in modules if type(one) is nn.Conv2d and _is_plain(one)]


def _is_plain(conv: nn.Conv2d) -> bool:
    square = all(len(set(pair)) == 1 for pair in (conv.kernel_size, conv.stride, conv.dilation, conv.padding))
    return square and conv.groups == conv.dilation[0] == 1 and conv.padding_mode == "zeros" and conv.padding != "same"


def _autocast(x: Tensor) -> bool:
    return torch.is_autocast_enabled(x.device.type)


def _places(conv: nn.Conv2d, x: Tensor) -> int:
    height, width = (_out(side, conv.kernel_size[0], conv.stride[0], int(conv.padding[0])) for side in x.shape[2:])
    return max(0, height) * max(0, width)


def _out(side: int, kernel: int, stride: int, padding: int) -> int:
    return (side + 2 * padding - kernel) // stride + 1


class _Convolved(torch.autograd.Function):
    """y = columns(x) W; dW = columns(x)' dy; dx is a convolution too, of dy with the turned kernel."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, stride: int, padding: int) -> Tensor:
        out, _, kernel, _ = weight.shape
        columns, (count, height, width) = _columns(_last(x), kernel, stride, (padding, padding), (padding, padding))
        ctx.save_for_backward(x, weight)
        ctx.stride, ctx.padding = stride, padding
        return (columns @ _matrix(weight)).view(count, height, width, out).permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (x, weight), stride, padding, dy = ctx.saved_tensors, ctx.stride, ctx.padding, _last(grads[0])
        out, channels, kernel, _ = weight.shape
        dx = dw = None
        if ctx.needs_input_grad[1]:
            columns, _ = _columns(_last(x), kernel, stride, (padding, padding), (padding, padding))
            found = columns.T @ dy.reshape(-1, out)
            dw = found.view(kernel, kernel, channels, out).permute(3, 2, 0, 1).contiguous()
        if ctx.needs_input_grad[0]:
            before = kernel - 1 - padding
            apart, rests = _apart(dy, stride), []
            for side, there in zip(x.shape[2:], apart.shape[1:3], strict=True):
                rests.append((before, side - there + kernel - 1 - before))
            columns, (count, height, width) = _columns(apart, kernel, 1, *rests)
            turned = weight.flip(2, 3).permute(2, 3, 0, 1).reshape(-1, channels)
            dx = (columns @ turned).view(count, height, width, channels).permute(0, 3, 1, 2)
        return dx, dw, None, None


def _last(maps: Tensor) -> Tensor:
    """Channels last, where a copy of k neighbouring places is one run of numbers."""
    return maps.permute(0, 2, 3, 1).contiguous()


def _matrix(weight: Tensor) -> Tensor:
    return weight.permute(2, 3, 1, 0).reshape(-1, len(weight))


def _columns(
    maps: Tensor, kernel: int, stride: int, rows: tuple[int, int], columns: tuple[int, int]
) -> tuple[Tensor, tuple[int, int, int]]:
    """Of maps (count, height, width, channels) and zeros before and after, a row for each place that comes out: what
    the kernel sees there; and how many there are."""
    if any((*rows, *columns)):
        maps = pad(maps, (0, 0, *columns, *rows))
    seen = maps.unfold(1, kernel, stride).unfold(2, kernel, stride)  # count, height, width, channels, k, k
    count, height, width, channels = seen.shape[:4]
    return seen.permute(0, 1, 2, 4, 5, 3).reshape(-1, kernel * kernel * channels), (count, height, width)


def _apart(dy: Tensor, stride: int) -> Tensor:
    """With the zeros between that a stride has left out."""
    if stride == 1:
        return dy
    count, height, width, channels = dy.shape
    wide = dy.new_zeros(count, (height - 1) * stride + 1, (width - 1) * stride + 1, channels)
    wide[:, ::stride, ::stride] = dy
    return wide
