"""What learned bottlenecks share: an encoder to whole numbers, what these cost, and a decoder for the server."""

from math import log
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ...core.guard import Shape
from ...core.spec import Spec
from ...wire.codecs.latents import (
    LIMIT,
    MOST_HYPER,
    MOST_SIDE,
    SMALLEST,
    STEP,
    TABLES,
    UNIT,
    Latent,
    Spreads,
    table_of,
)
from ...wire.codecs.parts.entropy_coder import library
from ..base import need_maps

FIRST_SPREAD = 1.0
FIRST_WEIGHT = 4.0  # tables that a hyper-latent adds: one more makes a spread 1.4 times as wide
# Tables that a parameter of 1 adds. A step of Adam moves a parameter by its learning rate, whatever the gradient, and
# spreads should follow the encoder over some of the 64 tables in a few hundred steps.
SPEED, WEIGHT_SPEED = 64.0, 8.0
# How far the numbers of the first batch spread, whatever the size of z is: numbers that all round to 0 teach nobody,
# and once the rate has learnt that they do, they stay there.
FIRST_SIZE = 1.0


def check_sizes(guard: Spec, **settings: int) -> None:
    """Refuse widths and strides that cannot be built; called with the fields of that meaning."""
    ranges = {"channels": (1, MOST_SIDE), "width": (1, 4096), "stride": (1, 3), "hyper": (0, MOST_HYPER)}
    for name, value in settings.items():
        least, most = ranges.get(name, (1, 3))
        if type(value) is not int or not least <= value <= most:
            raise ValueError(
                f"{type(guard).__name__}'s {name} is a whole number from {least} to {most}; got {value!r}"
            )


def check_weight(guard: Spec, name: str, value: object) -> None:
    if not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise ValueError(f"{type(guard).__name__}'s {name} is a weight, a number from 0 up; got {value!r}")


def latent_shape(guard: Spec, shape: Shape, channels: int, stride: int) -> Shape:
    """The shape of the numbers. Whoever lacks the coder hears of it here, before anything is built."""
    need_maps(guard, shape)
    if max(shape[1:]) > MOST_SIDE:
        raise ValueError(f"{guard} codes maps of at most {MOST_SIDE} a side; this cut is {shape}")
    library()
    return (channels, *((side - 1) // stride + 1 for side in shape[1:]))


def decoder(shape: Shape, channels: int, stride: int, width: int) -> nn.Sequential:
    """From numbers back to maps of exactly this shape."""
    missing = [(side - 1) % stride for side in shape[1:]]
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1),
        nn.ReLU(),
        nn.ConvTranspose2d(width, shape[0], 3, stride, 1, output_padding=(missing[0], missing[1])),
    )


class Code(NamedTuple):
    soft: Tensor  # what the encoder gives
    seen: Tensor  # the whole numbers, with the gradient of `soft` (a straight-through estimate)
    packed: Latent | None  # None: these are no numbers any more


class Encoder(nn.Module):
    """Maps to whole numbers, and how many bits these take.

    Each number has a normal distribution around 0 (Ballé et al., 2018, Sec. 3). Its spread is that of its channel,
    times what hyper-latents say of its neighbourhood; these have one spread for each of their channels.
    """

    started: Tensor

    def __init__(self, shape: Shape, channels: int, stride: int, width: int, hyper: int = 0, coarse: int = 2):
        super().__init__()
        last = nn.Conv2d(width, channels, 3, stride, 1)
        self.analysis = nn.Sequential(nn.Conv2d(shape[0], width, 3, padding=1), nn.ReLU(), last)
        self.coarse = coarse
        # Persistent: whoever takes over a relay goes on from here.
        self.register_buffer("started", torch.tensor(False))
        self.hyper = (
            nn.Sequential(
                nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU(), nn.Conv2d(channels, hyper, 3, coarse, 1)
            )
            if hyper
            else None
        )
        # How far spreads are from where they start.
        self.base_moved = nn.Parameter(torch.zeros(channels))
        self.weight_moved = nn.Parameter(torch.zeros(channels, hyper))
        self.own_moved = nn.Parameter(torch.zeros(hyper))

    @property
    def base(self) -> Tensor:
        """The spread of each channel, counted in tables of the codec."""
        return table_of(FIRST_SPREAD) + SPEED * self.base_moved

    @property
    def own(self) -> Tensor:
        return table_of(FIRST_SPREAD) + SPEED * self.own_moved

    @property
    def weight(self) -> Tensor:
        """Channels x hyper-channels: how many tables a hyper-latent adds."""
        return FIRST_WEIGHT + WEIGHT_SPEED * self.weight_moved

    @torch.no_grad()
    def start(self, z: Tensor) -> None:
        """On the first batch that is learnt from: numbers of a size that rounding leaves something of."""
        if self.started:
            return
        size = self.analysis(z).std()
        if torch.isfinite(size) and size > 0:
            for parameter in self.analysis[-1].parameters():
                parameter.mul_(FIRST_SIZE / size)
            self.started.fill_(True)

    def forward(self, z: Tensor) -> Code:
        soft = self.analysis(z).contiguous()
        if not torch.isfinite(soft).all():
            return Code(soft, soft, None)  # whole numbers would look as if nothing had happened
        numbers = _rounded(soft)
        hyper = _rounded(self._hyper(soft.detach()))
        # Exactly the numbers, and never -0.0: that is how they come out of the bytes.
        seen = numbers.to(soft) + (soft - soft.detach())
        return Code(soft, seen, Latent(numbers, hyper, self.spreads()))

    def spreads(self) -> Spreads:
        """What the codec needs to know of the spreads, in few bits each."""

        def whole(tensor: Tensor, least: int, most: int, kind: Any) -> Any:
            return tensor.detach().round().clamp(least, most).cpu().numpy().astype(kind)

        own, base = (whole(one, 0, TABLES - 1, np.uint8) for one in (self.own, self.base))
        return Spreads(own, base, whole(UNIT * self.weight, -128, 127, np.int8), self.coarse)

    def bits(self, soft: Tensor, draw: torch.Generator) -> Tensor:
        """Bits of a sample on average, as far as they can be learnt from: noise stands for rounding (Sec. 2)."""
        hyper, (height, width) = self._hyper(soft), soft.shape[2:]
        noisy, told = _noisy(soft, draw), _noisy(hyper, draw)
        tables = self.base[:, None, None] + torch.einsum("cg,nghw->nchw", self.weight, told)
        tables = tables.repeat_interleave(self.coarse, 2).repeat_interleave(self.coarse, 3)[:, :, :height, :width]
        return (_bits(noisy, tables).sum() + _bits(told, self.own[:, None, None]).sum()) / len(soft)

    def _hyper(self, soft: Tensor) -> Tensor:
        if self.hyper is None:
            sides = ((side - 1) // self.coarse + 1 for side in soft.shape[2:])
            return soft.new_zeros(len(soft), 0, *sides)
        found: Tensor = self.hyper(soft.abs())
        return found


def _rounded(soft: Tensor) -> Tensor:
    return soft.detach().round().clamp(-LIMIT, LIMIT).to(torch.int32)


def _noisy(soft: Tensor, draw: torch.Generator) -> Tensor:
    return soft + (torch.rand(soft.shape, generator=draw, dtype=torch.float32) - 0.5).to(soft)


def _bits(numbers: Tensor, tables: Tensor) -> Tensor:
    """-log2 of what a normal distribution has within half a unit around each number; finite however far out."""
    spread = SMALLEST * torch.exp(STEP * _Between.apply(tables))
    far = numbers.abs()
    above, below = (torch.special.log_ndtr((half - far) / spread) for half in (0.5, -0.5))
    return -(above + torch.log(-torch.expm1(below - above))) / log(2)


class _Between(torch.autograd.Function):
    """Between the first table and the last. Outside, gradients pass if they lead back: nothing gets stuck there."""

    @staticmethod
    def forward(ctx: Any, tables: Tensor) -> Tensor:
        ctx.save_for_backward(tables)
        return tables.clamp(0, TABLES - 1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        ((tables,), (grad,)) = ctx.saved_tensors, grads
        outwards = ((tables < 0) & (grad > 0)) | ((tables > TABLES - 1) & (grad < 0))
        return torch.where(outwards, 0.0, grad)
