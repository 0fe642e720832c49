"""EntropicStudent: a small code that first learns to imitate the activations of a finished network."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from ..core.batch import Batch, Task
from ..core.guard import Guarded, GuardModule, Shape
from ..core.search import Between, Search
from ..core.seeds import derive, generator, seeded
from .base import Guard
from .parts.latents import Encoder, check_sizes, check_weight, decoder, latent_shape


@dataclass(frozen=True, repr=False)
class EntropicStudent(Guard):
    """A coded bottleneck in two stages: it imitates a trained network's cut, then the server adapts to its codes.

    Matsubara et al. (2022), "Supervised compression": for `stage` steps encoder, entropy model and a decoder at the
    client learn (decoded - z)² + beta · bits per number of z. No gradient of the task reaches them. The decoder
    replaces the server's every `freq` steps, and at the end of the stage. From then on the encoder is fixed, and the
    server's decoder and body learn the task. Meant for `Plan(frozen_parts=("head",), start=Pretrained(...))`: z is
    the teacher.
    """

    channels: int = 8
    stride: int = 2
    beta: float = 0.1
    stage: int = 200
    freq: int = 20
    width: int = 32
    always_shown: ClassVar[int] = 3
    fills_zeros: ClassVar[bool] = True
    only_compresses: ClassVar[bool] = True
    packs: ClassVar[bool] = True
    exchange: ClassVar[str] = "replace"
    post_hoc: ClassVar[bool] = True
    search: ClassVar[Search] = {"channels": Between(2, 32, log=True), "beta": Between(0.01, 1.0, log=True)}

    def __post_init__(self) -> None:
        check_sizes(self, channels=self.channels, stride=self.stride, width=self.width)
        check_weight(self, "beta", self.beta)
        for name in ("stage", "freq"):
            if type(getattr(self, name)) is not int or getattr(self, name) < 1:
                raise ValueError(
                    f"EntropicStudent's {name} counts steps, a whole number from 1 up; got {getattr(self, name)!r}"
                )

    def out_shape(self, shape: Shape) -> Shape:
        return latent_shape(self, shape, self.channels, self.stride)

    def build(self, shape: Shape, public: int, private: int, task: Task | None = None) -> GuardModule:
        ours = self.lift(shape, public)  # both sides start from the same one
        with seeded(private):
            return _Student(self, Encoder(shape, self.channels, self.stride, self.width), ours, prod(shape), private)

    def lift(self, shape: Shape, public: int) -> nn.Module:
        with seeded(derive(public, "lift")):
            return decoder(shape, self.channels, self.stride, self.width)

    def public_part(self) -> Guard:
        """How the client weighs its terms is its own business; its steps tell when it is done."""
        return EntropicStudent(channels=self.channels, stride=self.stride, width=self.width)


class _Student(GuardModule):
    steps: Tensor
    age: Tensor
    handed: Tensor

    def __init__(self, spec: EntropicStudent, encoder: Encoder, ours: nn.Module, features: int, private: int):
        super().__init__()
        self.spec, self.encoder, self.decoder = spec, encoder, ours
        self.features, self.private = features, private
        # Persistent: whoever takes over a relay goes on from here.
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.register_buffer("age", torch.zeros((), dtype=torch.long))  # of the server's decoder
        self.register_buffer("handed", torch.tensor(False))  # the decoder as it was at the end of the first stage

    @property
    def imitates(self) -> bool:
        return int(self.steps) < self.spec.stage

    def lift_due(self, step: int) -> dict[str, Tensor] | None:
        due = int(self.age) >= self.spec.freq if self.imitates else not self.handed
        return {name: t.detach().clone() for name, t in self.decoder.state_dict().items()} if due else None

    def take_lift(self, state: Mapping[str, Tensor]) -> None:
        self.age.zero_()
        self.handed.fill_(not self.imitates)

    def forward(self, z: Tensor, batch: Batch) -> Guarded:
        # An attacker looks through a copy of it, which learns nothing and is no teacher's student.
        if z.requires_grad and not any(parameter.requires_grad for parameter in self.parameters()):
            _, seen, self.packed = self.encoder(z)
            return Guarded(seen)
        learns = self.training and torch.is_grad_enabled()
        if learns:
            self.encoder.start(z)
        with torch.set_grad_enabled(learns and self.imitates):
            # The head is the teacher: it learns from nothing here.
            soft, seen, self.packed = self.encoder(z.detach())
        if self.packed is None or not learns or not self.imitates:
            return Guarded(seen.detach())
        bits = self.encoder.bits(soft, generator(derive(self.private, batch.seed)))
        self.notes = {"bits a sample": bits.detach()}
        # As the sum over a sample, both terms grow alike with the size of the cut; so do their means.
        terms = {
            "imitation": mse_loss(self.decoder(seen), z.detach()),
            "rate": self.spec.beta * bits / self.features,
        }
        self.steps += 1
        self.age += 1
        return Guarded(seen.detach(), terms)
