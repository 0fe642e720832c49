"""Shredder: noise that a finished network has learnt to live with."""

from dataclasses import dataclass
from math import prod
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..core.batch import Batch, Task
from ..core.guard import Guarded, GuardModule, Shape
from ..core.search import Between, Search
from ..core.seeds import derive, generator
from .base import Guard


@dataclass(frozen=True, repr=False)
class Shredder(Guard):
    """Learned additive noise for a trained, frozen network: one of several tensors is drawn for each sample.

    Shredder (Mireshghallah et al., 2020): loss CE - weight · Σ|noise|, all weights frozen; here that is
    `Plan(frozen_parts=("head", "body", "tail"), start=Pretrained(...))`. Each tensor starts as Laplace noise of
    `scale`, and learns from the samples that drew it. Σ|noise| has no upper end, so a tensor stops growing once
    var(noise) / mean(z²) reaches `target`; from there on it only learns to harm the task less. Whoever knows the few
    tensors (they are the client's, and go with its weights) subtracts them: nothing here is differential privacy.
    """

    tensors: int = 8
    weight: float = 0.01
    target: float = 1.0
    scale: float = 0.1
    fills_zeros: ClassVar[bool] = True
    post_hoc: ClassVar[bool] = True
    search: ClassVar[Search] = {"target": Between(0.1, 10.0, log=True), "weight": Between(0.001, 0.1, log=True)}

    def __post_init__(self) -> None:
        if type(self.tensors) is not int or self.tensors < 1:
            raise ValueError(f"Shredder draws from so many noise tensors, from 1 up; got tensors={self.tensors!r}")
        for name, what in (("weight", "the pull towards more noise"), ("target", "noise over signal")):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 <= value < float("inf"):
                raise ValueError(f"Shredder's {name} is {what}, a number from 0 up; got {value!r}")
        if not isinstance(self.scale, int | float) or not 0 < self.scale < float("inf"):
            raise ValueError(f"Shredder's scale is that of the first noise, a number above 0; got {self.scale!r}")

    @property
    def draws_anew(self) -> bool:
        return self.tensors > 1

    def build(self, shape: Shape, public: int, private: int, task: Task | None = None) -> GuardModule:
        return _AddNoise(self, shape, private)


class _AddNoise(GuardModule):
    def __init__(self, spec: Shredder, shape: Shape, private: int):
        super().__init__()
        self.weight, self.target, self.private = spec.weight, spec.target, private
        uniform = torch.rand(spec.tensors, prod(shape), generator=generator(private), dtype=torch.float64) - 0.5
        # The inverse of Laplace's distribution function.
        laplace = -spec.scale * uniform.sign() * torch.log1p(-2 * uniform.abs())
        self.noise = nn.Parameter(laplace.to(torch.get_default_dtype()).reshape(-1, *shape))

    def forward(self, z: Tensor, batch: Batch) -> Guarded:
        draw = generator(derive(self.private, batch.seed))
        drawn = torch.randint(len(self.noise), (len(z),), generator=draw).to(z.device)
        # As a product: each tensor's gradient is then summed in one order, on a GPU as well.
        choice = nn.functional.one_hot(drawn, len(self.noise)).to(z)
        seen = z + (choice @ self.noise.flatten(1)).reshape(z.shape)
        if not (self.training and torch.is_grad_enabled()):
            return Guarded(seen)
        with torch.no_grad():
            ratio = self.noise.flatten(1).var(1, correction=0) / z.square().mean().clamp_min(1e-12)
            growing = (ratio < self.target).to(z)
        self.notes = {"noise_to_signal": ratio.mean()}
        size = self.noise.flatten(1).abs().sum(1)
        return Guarded(seen, {"Shredder": -self.weight * (choice @ (growing * size)).mean()})
