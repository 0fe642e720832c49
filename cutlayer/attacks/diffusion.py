"""A picture that explains the message and looks like an image: search with a diffusion prior."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from ..core.batch import Task
from ..core.message import Kind, Message
from ..core.seeds import derive, seeded
from ..metrics.images import ncc, ssim
from ..metrics.readers import SMALLEST_FOR_SSIM, fit
from .base import Attack, Attacker, Knowledge
from .parts.denoiser import Denoiser, learn_to_denoise
from .parts.kept import kept
from .parts.keyed import WHITE, Keyed, Made, made
from .parts.substitute import Substitute

HELD = 16  # auxiliary images that settings are chosen on
TRIED = 4  # that are asked whether the guard has a gradient
NOISIEST, QUIETEST = 1.0, 0.05  # noise the denoiser is asked about, from the first step to the last
SHIFT, LAST = 0.1, 0.01  # rate of the search, from the first step to the last
NO_SEARCH = float("inf")  # in the place of a weight: the picture stays what it starts as
Send = Callable[[Tensor, int], Tensor]


@dataclass(frozen=True, repr=False)
class DiffusionPrior(Keyed):
    """White-box search for pictures that would be sent as the message seen and that a diffusion model finds likely.

    The model learns from the auxiliary images alone, once for all guards. Each picture starts as the auxiliary image
    whose message is nearest; every step pulls it towards the message, through the client's head and guard with fresh
    noise of the guard's, and towards what the model makes of the picture with noise on it (RED-diff, Mardani et al.
    2023). How strong the second pull is, of `weights`, is chosen on held-out auxiliary images. A guard without a
    gradient, one that mixes samples and one with a secret key are passed through a stand-in learnt from pairs.
    """

    steps: int = 120  # of the search
    prior_steps: int = 1500  # of the diffusion model's training
    width: int = 32  # of the diffusion model
    batch: int = 32
    weights: tuple[float, ...] = (0.03, 0.3, 3.0, 30.0)
    most_images: int | None = 64  # type: ignore[misc]

    def __post_init__(self) -> None:
        super().__post_init__()
        whole = ("steps", "prior_steps", "width", "batch", "most_images")
        if any(not isinstance(getattr(self, name), int) or getattr(self, name) < 1 for name in whole):
            raise ValueError(f"{self}: {', '.join(whole)} are whole numbers from 1 up")
        if self.width % 8:
            raise ValueError(f"{self}: width is a multiple of 8")
        if not self.weights or min(self.weights) < 0:
            raise ValueError(f"{self}: weights are numbers from 0 up, at least one")

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(dict.fromkeys((*super().needs, "guard")))

    @classmethod
    def sized(cls, budget: str) -> Self:
        """A minute or two on one core, or a model of a few million weights for a GPU."""
        if budget == "paper":
            return cls(steps=400, prior_steps=40_000, width=128, batch=128, most_images=128)
        return cls(steps=60, prior_steps=300, width=16, most_images=32) if budget == "quick" else cls()

    @classmethod
    def suite(cls, budget: str, task: Task, labels_stay_home: bool) -> list[Attack]:
        """Not in a quick audit: a model that draws worse than the readers' averages would only cost time."""
        return [] if budget == "quick" else super().suite(budget, task, labels_stay_home)

    def attacker(self, knowledge: Knowledge, seed: int) -> Attacker:
        return _Search(self, knowledge, seed)


class _Search(Attacker):
    def __init__(self, spec: DiffusionPrior, knowledge: Knowledge, seed: int):
        assert knowledge.aux is not None and knowledge.aux_labels is not None and knowledge.guard is not None
        images = knowledge.aux
        if images.dim() != 4:
            raise ValueError(f"{spec} draws images (N, C, H, W); these inputs have the shape {tuple(images.shape)}")
        self.spec, self.seed = spec, derive(seed, "search")
        self.denoiser = denoiser_of(images, spec)
        own = made(spec.keys, knowledge, seed)
        self.images, self.seen = images[own.rows], own.seen
        self.spread = float(own.seen.var(0).mean().clamp_min(1e-12))
        self.gradient, self.send = self._sender(knowledge, own)
        self.recovered = {} if spec.keys != "recovered" else {"key_empty": own.key_empty}
        self.match = float("nan")
        truth, held = images[own.held_rows[:HELD]], own.held[:HELD]
        # Through a bad stand-in a search may lead away from where it started.
        self.tried = {weight: _quality(self._found(held, weight)[0], truth) for weight in (NO_SEARCH, *spec.weights)}
        self.weight = max(self.tried, key=lambda weight: self.tried[weight])

    def reconstruct(self, messages: Sequence[Message]) -> Tensor:
        """Message by message: those of one batch share its statistics."""
        found = [self._found(one["z"], self.weight) for one in messages if one.kind is not Kind.BACKWARD]
        self.match = float(torch.cat([error for _, error in found]).mean())
        return torch.cat([pictures for pictures, _ in found])

    def remarks(self) -> dict[str, object]:
        # Without it a picture says nothing: where no message like the one seen was found, the prior drew it.
        scores = {_called(weight): round(score, 4) for weight, score in self.tried.items()}
        through = f"search by {self.gradient}" if self.weight != NO_SEARCH else _called(NO_SEARCH)
        return {"reader": through, "readers": scores, "match": round(self.match, 4), **self.recovered}

    def _sender(self, knowledge: Knowledge, own: Made) -> tuple[str, Send]:
        """A way from pictures to messages that has a gradient, and what it is called."""
        assert knowledge.guard is not None and knowledge.aux_labels is not None
        if self.spec.keys in WHITE and not knowledge.guard.spec.mixes_samples:
            assert knowledge.encode is not None
            own_way = Encoded(knowledge.encode, tuple(knowledge.aux_labels.shape[1:]))
            if has_gradient(own_way, self.images[:TRIED]):
                return "the guard's own gradient", own_way
        return "a stand-in's gradient", StandIn(self.images, own.seen, self.spec)

    def _found(self, seen: Tensor, weight: float) -> tuple[Tensor, Tensor]:
        """Pictures behind rows of one message, and how much of each row they fail to explain."""
        spec = self.spec
        near = torch.cdist(seen.flatten(1), self.seen.flatten(1)).argmin(1)
        u = (2 * self.images[near] - 1).requires_grad_()
        optimizer = torch.optim.Adam([u], SHIFT)
        with seeded(self.seed, seen.device):
            for step in range(spec.steps if weight != NO_SEARCH else 0):
                done = step / max(1, spec.steps - 1)
                optimizer.param_groups[0]["lr"] = _between(SHIFT, LAST, done)
                level = torch.full((len(u),), _between(NOISIEST, QUIETEST, done)).to(u)
                with torch.no_grad():
                    noisy = u + level[:, None, None, None] * torch.randn(u.shape).to(u)
                    likely = self.denoiser(noisy, level).clamp(-1, 1)
                far = (u - likely).square().flatten(1).mean(1)
                (gradient,) = torch.autograd.grad((self._error(u, seen, step + 1) + weight * far).sum(), u)
                u.grad = gradient.nan_to_num()
                optimizer.step()
                with torch.no_grad():
                    u.clamp_(-1, 1)
            with torch.no_grad():
                return (u / 2 + 0.5).detach(), self._error(u, seen, spec.steps + 1)

    def _error(self, u: Tensor, seen: Tensor, draw: int) -> Tensor:
        """Mean squared, as a share of what messages vary. A fresh draw each time: the search is for its mean."""
        return (self.send(u / 2 + 0.5, draw) - seen).square().flatten(1).mean(1) / self.spread


class Encoded:
    """The client's own head and guard. Labels are not known, and what is sent of a sample by itself needs none."""

    def __init__(self, encode: Callable[..., Tensor], label: tuple[int, ...]):
        self.encode, self.label = encode, label

    def __call__(self, images: Tensor, draw: int) -> Tensor:
        return self.encode(images, torch.zeros(len(images), *self.label, dtype=torch.long).to(images.device), draw)


class StandIn:
    """A network in the place of a head and a guard that give no gradient, learnt from images and what became of them.

    Of a guard that draws or mixes it is the mean.
    """

    def __init__(self, images: Tensor, seen: Tensor, spec: DiffusionPrior):
        self.mean, self.spread = seen.mean(0), seen.std()
        network = Substitute(tuple(images.shape[1:]), tuple(seen.shape[1:]), spec.width, signed=True).to(images)
        wanted = (seen - self.mean) / self.spread.clamp_min(1e-6)
        trained = fit(network, images, wanted, steps=spec.prior_steps, batch=spec.batch, loss=_squared)
        self.network, self.at, self.by = trained.network, trained.mean, trained.std

    def __call__(self, images: Tensor, draw: int) -> Tensor:
        return self.network((images - self.at) / self.by) * self.spread + self.mean


def denoiser_of(images: Tensor, spec: DiffusionPrior) -> Denoiser:
    settings = f"denoiser {spec.width} {spec.prior_steps} {spec.batch}"
    return kept(
        images,
        settings,
        lambda: learn_to_denoise(images, spec.width, spec.prior_steps, spec.batch),
        lambda: Denoiser(tuple(images.shape[1:]), spec.width),
    )


def has_gradient(send: Send, images: Tensor) -> bool:
    """Whether what is sent changes with the images as far as a gradient can tell: rounding and coding leave none."""
    x = images.clone().requires_grad_()
    sent = send(x, 0)
    if not sent.requires_grad:
        return False
    (slope,) = torch.autograd.grad(sent.square().sum(), x, allow_unused=True)
    return slope is not None and bool(slope.isfinite().all()) and bool(slope.flatten(1).any(1).all())


def _called(weight: float) -> str:
    return "no search" if weight == NO_SEARCH else f"weight {weight:g}"


def _between(first: float, last: float, done: float) -> float:
    return float(first * (last / first) ** done)


def _squared(guess: Tensor, truth: Tensor) -> Tensor:
    return (guess - truth).square().mean()


def _quality(guess: Tensor, truth: Tensor) -> float:
    measure = ssim if min(truth.shape[2:]) >= SMALLEST_FOR_SSIM else ncc
    return float(measure(guess, truth).mean())
