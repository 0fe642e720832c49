"""RateBottleneck: a learned code of whole numbers whose bits are part of the loss."""

from dataclasses import dataclass
from math import prod
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..core.batch import Batch, Task
from ..core.guard import Guarded, GuardModule, Shape
from ..core.search import Between, Search
from ..core.seeds import derive, generator, seeded
from .base import Guard, need_task
from .parts.latents import Encoder, check_sizes, check_weight, decoder, latent_shape

UNITS = ("feature", "pixel")


@dataclass(frozen=True, repr=False)
class RateBottleneck(Guard):
    """A learned code of whole numbers, entropy coded by a scale hyperprior; the loss has weight · bits.

    Ballé et al. (2018): an encoder at the cut gives `channels` numbers at each place of a grid that `stride` makes
    coarser, rounded; a decoder at the server makes activations of them. `hyper` more numbers for each `coarse` x
    `coarse` places tell how far the others spread (0: each channel has one spread for good, a factorised prior). The
    rate is the expected bits of both, per `per` ("feature": number at the cut, "pixel": of the input). It is learnt
    with noise in the place of rounding; what leaves is rounded in training, too, and gradients pass straight through.
    """

    channels: int = 8
    stride: int = 2
    weight: float = 1.0
    per: str = "feature"
    hyper: int = 1
    coarse: int = 2
    width: int = 32
    always_shown: ClassVar[int] = 3
    fills_zeros: ClassVar[bool] = True
    only_compresses: ClassVar[bool] = True
    packs: ClassVar[bool] = True
    search: ClassVar[Search] = {"channels": Between(2, 32, log=True), "weight": Between(0.01, 10.0, log=True)}

    def __post_init__(self) -> None:
        check_sizes(
            self, channels=self.channels, stride=self.stride, hyper=self.hyper, coarse=self.coarse, width=self.width
        )
        check_weight(self, "weight", self.weight)
        if self.hyper > self.channels:
            raise ValueError(f"RateBottleneck's hyper is at most its channels, {self.channels}; got {self.hyper}")
        if self.per not in UNITS:
            raise ValueError(f"RateBottleneck counts bits per {' or per '.join(UNITS)}; got {self.per!r}")

    def out_shape(self, shape: Shape) -> Shape:
        return latent_shape(self, shape, self.channels, self.stride)

    def build(self, shape: Shape, public: int, private: int, task: Task | None = None) -> GuardModule:
        over = prod(shape) if self.per == "feature" else prod(need_task(self, task).shape[1:])
        with seeded(private):
            encoder = Encoder(shape, self.channels, self.stride, self.width, self.hyper, self.coarse)
        return _Rated(encoder, self.weight / over, private)

    def lift(self, shape: Shape, public: int) -> nn.Module:
        with seeded(derive(public, "lift")):
            return decoder(shape, self.channels, self.stride, self.width)

    def public_part(self) -> Guard:
        """How the client weighs its bits, and how it codes them, is its own business: the bytes tell."""
        return RateBottleneck(channels=self.channels, stride=self.stride, width=self.width, hyper=0)


class _Rated(GuardModule):
    def __init__(self, encoder: Encoder, weight: float, private: int):
        super().__init__()
        self.encoder, self.weight, self.private = encoder, weight, private

    def forward(self, z: Tensor, batch: Batch) -> Guarded:
        learns = self.training and torch.is_grad_enabled()
        if learns:
            self.encoder.start(z)
        soft, seen, self.packed = self.encoder(z)
        if self.packed is None or not learns:
            return Guarded(seen)
        bits = self.encoder.bits(soft, generator(derive(self.private, batch.seed)))
        self.notes = {"bits a sample": bits.detach()}
        return Guarded(seen, {"rate": self.weight * bits})
