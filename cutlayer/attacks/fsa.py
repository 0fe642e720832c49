"""Feature sniffing: the client's features and the attacker's are translated into each other, as CycleGAN does it."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..core.guard import Shape
from ..core.message import Message
from ..core.seeds import derive
from ..core.stepping import adam
from .base import EVERY, FORMS, Attacker, Knowledge, smashed
from .parts.autoencoder import INVERSES, Autoencoder, some
from .parts.critic import Critic, gradient_penalty
from .parts.view import View
from .parts.viewing import Viewing

AT_ONCE = 256  # rows


@dataclass(frozen=True, repr=False)
class FeatureSniffer(Viewing):
    """Translates what the client sends into features of the attacker's own autoencoder, without a single pair.

    FSA: an autoencoder learns auxiliary images; then, offline, a CycleGAN in feature space runs between X, the stored
    messages, and Y, the encoder's features of auxiliary images: two translators and two critics (WGAN-GP), and there
    and back must be the same row (L1). The picture is decoder(G(z)).

    What differs from the published one: X and Y are standardised by channel, and translators have no BatchNorm.
    "matched" puts the guard's copy behind F, the way into the client's space: a cycle from Y then trains G to undo
    the guard.
    """

    steps: int = 600
    width: int = 32
    hidden: int = 512
    blocks: int = 1
    warm: int = 300  # steps of the autoencoder
    inverse: str = "auto"
    penalty: float = 50.0
    cycle: float = 10.0
    rate: float = 1e-3
    batch: int = 32
    knows: str = EVERY
    needs: ClassVar[tuple[str, ...]] = ("task", "aux", "observed", "guard")

    def __post_init__(self) -> None:
        super().__post_init__()
        whole = ("steps", "width", "hidden", "blocks", "warm", "batch")
        if any(not isinstance(getattr(self, name), int) or getattr(self, name) < 1 for name in whole):
            raise ValueError(f"{self}: {', '.join(whole)} are whole numbers from 1 up")
        if self.rate <= 0 or min(self.penalty, self.cycle) < 0:
            raise ValueError(f"{self}: rate is above 0, penalty and cycle are weights from 0 up")
        if self.inverse not in INVERSES or self.knows not in (*FORMS, EVERY):
            raise ValueError(f"inverse is one of {', '.join(INVERSES)}, knows one of {', '.join(FORMS)}; got {self}")

    @classmethod
    def sized(cls, budget: str) -> "FeatureSniffer":
        if budget == "paper":
            return cls(steps=5000, width=128, hidden=1024, blocks=2, warm=5000, rate=1e-4, batch=256)
        if budget == "quick":
            return cls(steps=200, width=24, warm=150)
        return cls(steps=1200, width=64, warm=600, batch=64)

    def bar(self, data: str, net: str) -> tuple[str, float] | None:
        # Measured for MNIST-5000: 0.94.
        return ("ssim", 0.75) if (data, net) == ("Digits()", "MnistNet()") else None

    def attacker(self, knowledge: Knowledge, seed: int) -> Attacker:
        return _Sniffer(self, knowledge, seed)


class _Sniffer(Attacker):
    def __init__(self, spec: FeatureSniffer, knowledge: Knowledge, seed: int):
        assert knowledge.task is not None and knowledge.aux is not None
        assert knowledge.guard is not None and knowledge.observed is not None
        aux = knowledge.aux.to(torch.get_default_dtype())
        self.view = view = View(spec.knows, spec.keys, knowledge, derive(seed, "view")).to(aux)
        # Rows of the shape of the cut are what a head makes; those a guard made have both signs, as lifted ones have.
        positive = view.own == knowledge.guard.shape and spec.knows != "lift"
        self.auto = Autoencoder(
            knowledge.task.shape, view.own, spec.width, spec.hidden, spec.inverse, positive=positive
        ).to(aux)
        self.auto.learn(aux, spec.warm, 3 * spec.rate, spec.batch)
        with torch.no_grad():
            theirs = view.read(smashed(knowledge.observed).to(aux))
            own = torch.cat([self.auto.encoder(chunk) for chunk in aux.split(AT_ONCE)])
        self.x, self.y = Standard(theirs), Standard(own)
        self.translate = Translator(tuple(theirs.shape[1:]), view.own, spec.width, spec.hidden).to(aux)
        self.figures = self._learn(spec, view, aux, theirs)

    def _learn(self, spec: FeatureSniffer, view: View, aux: Tensor, theirs: Tensor) -> dict[str, object]:
        """Train G, the way to the attacker's features; F and the critics are only its teachers."""
        G, F = self.translate, _ToClient(self.x, spec, view, theirs).to(aux)
        D_X, D_Y = (
            Critic(shape, spec.width if len(shape) == 3 else spec.hidden, spec.blocks).to(aux)
            for shape in (tuple(theirs.shape[1:]), view.own)
        )
        pupils = [p for p in (*G.parameters(), *F.parameters()) if p.requires_grad]
        translators = adam(pupils, spec.rate, betas=(0.5, 0.999))
        critics = adam([*D_X.parameters(), *D_Y.parameters()], spec.rate, betas=(0.5, 0.999))
        rates = [torch.optim.lr_scheduler.LinearLR(each, 1.0, 0.01, spec.steps) for each in (translators, critics)]
        for step in range(spec.steps):
            images = some(aux, spec.batch)
            x, y = self.x(some(theirs, spec.batch)), self.y(self.auto.encoder(images))
            as_y, as_x = G(x), F(y, images, step)
            around = (F(as_y, images, step) - x).abs().mean() + (G(as_x) - y).abs().mean()
            # Critics are low for what is real.
            loss = D_Y(as_y).mean() + D_X(as_x).mean() + spec.cycle * around
            translators.zero_grad()
            loss.backward(inputs=pupils)  # critics learn below, by themselves
            translators.step()
            as_x, as_y = as_x.detach(), as_y.detach()
            gap = _gap(D_Y, as_y, y) + _gap(D_X, as_x, x)
            slopes = gradient_penalty(D_Y, as_y, y) + gradient_penalty(D_X, as_x, x)
            critics.zero_grad()
            (spec.penalty * slopes - gap).backward()
            critics.step()
            for rate in rates:
                rate.step()
        G.requires_grad_(False)
        return {
            "autoencoder_mse": round(self.auto.error, 5),
            "cycle_error": round(float(around.detach()), 4),
            "gap": round(float(gap.detach()), 4),
        }

    @torch.no_grad()
    def reconstruct(self, messages: Sequence[Message]) -> Tensor:
        return torch.cat([self.auto.inverse(chunk) for chunk in self.read(messages).split(AT_ONCE)])

    @torch.no_grad()
    def read(self, messages: Sequence[Message]) -> Tensor:
        """What was received, translated into features of the attacker's own encoder."""
        chunks = smashed(messages).to(self.x.mean).split(AT_ONCE)
        return torch.cat([self.y.back(self.translate(self.x(self.view.read(chunk)))) for chunk in chunks])

    @torch.no_grad()
    def features(self, images: Tensor) -> Tensor:
        """What that encoder makes of these images: a translation that were right would give the same."""
        return torch.cat([self.auto.encoder(chunk) for chunk in images.to(self.x.mean).split(AT_ONCE)])

    def remarks(self) -> dict[str, object]:
        """Errors of the autoencoder and of the cycle, and what the critics still see between the two kinds."""
        return {**self.figures, **self.view.remarks()}


def _gap(critic: nn.Module, made: Tensor, real: Tensor) -> Tensor:
    """How far apart a critic sees them, in one pass."""
    low, high = critic(torch.cat([made, real])).chunk(2)
    return low.mean() - high.mean()


class _ToClient(nn.Module):
    """F: from the attacker's features to what the client sends, through the guard where the attacker has a copy."""

    def __init__(self, x: "Standard", spec: FeatureSniffer, view: View, theirs: Tensor):
        super().__init__()
        self.x, self.view, self.scale = x, view, float(theirs.std())
        target = view.own if len(view.copies) else tuple(theirs.shape[1:])
        self.translate = Translator(view.own, target, spec.width, spec.hidden)

    def forward(self, y: Tensor, images: Tensor, step: int) -> Tensor:
        made = self.translate(y)
        if not len(self.view.copies):
            return made
        # Activations before the guard, about as large as what came out of it; F learns the rest.
        return self.x(self.view.sent(self.scale * made, images, None, step))


class Translator(nn.Module):
    """From rows of one kind to rows of another: three convolutions between maps of one size, else linear layers."""

    def __init__(self, source: Shape, target: Shape, width: int, hidden: int):
        super().__init__()
        if len(source) == len(target) == 3 and source[1:] == target[1:]:
            self.layers = nn.Sequential(
                nn.Conv2d(source[0], width, 3, padding=1), nn.LeakyReLU(0.1),
                nn.Conv2d(width, width, 3, padding=1), nn.LeakyReLU(0.1),
                nn.Conv2d(width, target[0], 3, padding=1),
            ).to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # fmt: skip
        else:
            self.layers = nn.Sequential(
                nn.Flatten(), nn.Linear(prod(source), hidden), nn.LeakyReLU(0.1),
                nn.Linear(hidden, prod(target)), nn.Unflatten(1, target),
            )  # fmt: skip

    def forward(self, rows: Tensor) -> Tensor:
        return self.layers(rows)


class Standard(nn.Module):
    """Rows with mean 0 and deviation 1 by channel, and back."""

    mean: Tensor
    std: Tensor

    def __init__(self, rows: Tensor):
        super().__init__()
        over = (0, *range(2, rows.dim()))
        self.register_buffer("mean", rows.mean(over, keepdim=True))
        self.register_buffer("std", rows.std(over, keepdim=True).clamp_min(1e-6))

    def forward(self, rows: Tensor) -> Tensor:
        return (rows - self.mean) / self.std

    def back(self, rows: Tensor) -> Tensor:
        return rows * self.std + self.mean
