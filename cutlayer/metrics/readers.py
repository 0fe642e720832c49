"""Three ways to read an image out of smashed data: closed form, convolutional, and fully connected.

Readers are plain modules: an attacker that holds one can be pickled.
"""

import copy
import time
from collections.abc import Callable, Sequence
from math import inf, prod
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..core.seeds import derive, seeded
from ..core.stepping import adamw
from .images import ncc, ssim

Reader = Callable[[Tensor], Tensor]
SMALLEST_FOR_SSIM = 11
RATE_ON = 1e-3  # of a reader that goes on learning


class Chosen(NamedTuple):
    """The reader that did best on held-out auxiliary images, and how well each did."""

    read: Reader
    name: str
    scores: dict[str, float]


def best_reader(
    spec: object,
    names: Sequence[str],
    seen: Tensor,
    seed: int,
    train: Callable[[str], Reader | None],
    score: Callable[[Reader], float],
) -> Chosen:
    """Train each reader under a seed of its own and keep the best. `train` gives None for one that cannot read it."""
    scores: dict[str, float] = {}
    best: tuple[Reader, str] | None = None
    for name in names:
        with seeded(derive(seed, name), seen.device):
            reader = train(name)
        if reader is None:
            continue
        scores[name] = score(reader)
        if scores[name] == max(scores.values()):
            best = reader, name
    if best is None:
        raise ValueError(f"{spec} has no reader for messages of shape {tuple(seen.shape[1:])}: add 'mlp' or 'ridge'")
    return Chosen(*best, scores)


def picture_quality(guess: Tensor, truth: Tensor) -> float:
    """What readers of pictures are compared by: what the judge scores."""
    measure = ssim if min(truth.shape[2:]) >= SMALLEST_FOR_SSIM else ncc
    return float(measure(guess, truth).mean())


def ridge(seen: Tensor, images: Tensor, held_seen: Tensor, held_images: Tensor, *, clamp: bool = True) -> "Linear":
    """Linear regression from what was sent to pixels; its strength is chosen on held-out auxiliary images."""
    X, Y = seen.flatten(1).double(), images.flatten(1).double()
    x_mean, y_mean = X.mean(0), Y.mean(0)
    X, Y = X - x_mean, Y - y_mean
    # The dual (n x n) or the primal (d x d) system, whichever is smaller; both give the same map.
    dual = X.shape[1] > len(X)
    gram = X @ X.T if dual else X.T @ X
    scale = (gram.trace() / len(X)).clamp_min(1e-12)  # the trace is the same in both forms
    wanted = Y if dual else X.T @ Y
    # Held-out images are few, and so are their guesses: weights are worked out for the strength that is chosen alone.
    held = held_seen.flatten(1).double() - x_mean
    known, missing = held @ X.T if dual else held, y_mean - held_images.flatten(1)
    best, best_error = None, float("inf")
    for strength in (1e-5, 1e-4, 1e-3, 1e-2, 1e-1):
        factor, broken = torch.linalg.cholesky_ex(gram + strength * scale * torch.eye(len(gram)).to(gram))
        if broken:
            continue
        error = float((torch.cholesky_solve(known.T, factor).T @ wanted + missing).square().mean())
        if error < best_error:
            best, best_error = factor, error
    if best is None:  # whatever was sent, the mean is the best guess
        weights = torch.zeros(X.shape[1], Y.shape[1], dtype=X.dtype, device=X.device)
    else:
        weights = X.T @ torch.cholesky_solve(wanted, best) if dual else torch.cholesky_solve(wanted, best)
    return Linear(weights, x_mean, y_mean, tuple(images.shape[1:]), clamp)


class Linear(nn.Module):
    """An affine map from what was sent to pixels, in float64; pixels are cut to [0, 1]."""

    weights: Tensor
    x_mean: Tensor
    y_mean: Tensor

    def __init__(self, weights: Tensor, x_mean: Tensor, y_mean: Tensor, image: tuple[int, ...], clamp: bool):
        super().__init__()
        self.image, self.clamp = image, clamp
        for name, tensor in (("weights", weights), ("x_mean", x_mean), ("y_mean", y_mean)):
            self.register_buffer(name, tensor)

    @torch.no_grad()
    def forward(self, z: Tensor) -> Tensor:
        pixels = (z.flatten(1).double() - self.x_mean) @ self.weights + self.y_mean
        return (pixels.clamp(0, 1) if self.clamp else pixels).to(z.dtype).reshape(-1, *self.image)


class Standardised(nn.Module):
    """A trained network behind the means and deviations of the inputs it was trained on. Reads, never learns."""

    mean: Tensor
    std: Tensor

    def __init__(self, network: nn.Module, mean: Tensor, std: Tensor):
        super().__init__()
        self.network = network.requires_grad_(False).eval()
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    @torch.no_grad()
    def forward(self, z: Tensor) -> Tensor:
        return torch.cat([self.network((chunk - self.mean) / self.std) for chunk in z.split(256)])


class Before(nn.Module):
    """A reader behind a fixed step, e.g. the public map back to the cut. None: nothing to do first."""

    def __init__(self, step: nn.Module | None, reader: nn.Module):
        super().__init__()
        self.step, self.reader = step, reader

    @torch.no_grad()
    def forward(self, z: Tensor) -> Tensor:
        return self.reader(z if self.step is None else self.step(z))


class ConvReader(nn.Module):
    """Convolutions at the size of the cut, then up to the size of the image."""

    def __init__(self, cut: tuple[int, ...], image: tuple[int, ...], width: int):
        super().__init__()
        size, doublings = cut[1], 0
        while size * 2 ** (doublings + 1) <= image[1]:
            doublings += 1
        border, resize = _border(cut[1:], image, doublings)
        layers: list[nn.Module] = [border, nn.Conv2d(cut[0], width, 3, padding=1), _bend()]
        layers += [nn.Conv2d(width, width, 3, padding=1), _bend()]
        for _ in range(doublings):
            narrower = max(16, width // 4)  # most of the work stays at the small size
            layers += [nn.ConvTranspose2d(width, narrower, 4, 2, 1), _bend()]
            width = narrower
        layers += [resize, nn.Conv2d(width, width, 5, padding=2), _bend(), nn.Conv2d(width, image[0], 3, padding=1)]
        self.layers = nn.Sequential(*layers).to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, z: Tensor) -> Tensor:
        return self.layers(z.contiguous(memory_format=torch.channels_last)).sigmoid()


class MLPReader(nn.Module):
    """Fully connected, then polished by convolutions: no belief about where in a message a pixel lies.

    That is what a projection asks for: it mixes all positions.
    """

    def __init__(self, cut: tuple[int, ...], image: tuple[int, ...], width: int, polish: int = 16):
        super().__init__()
        self.image = image
        self.layers = nn.Sequential(nn.Linear(prod(cut), width), _bend(), nn.Linear(width, prod(image)))
        self.polish = nn.Sequential(
            nn.Conv2d(image[0], polish, 5, padding=2),
            _bend(),
            nn.Conv2d(polish, polish, 5, padding=2),
            _bend(),
            nn.Conv2d(polish, image[0], 5, padding=2),
        ).to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, z: Tensor) -> Tensor:
        rough = self.layers(z.flatten(1)).reshape(-1, *self.image)
        return (rough + self.polish(rough)).sigmoid()


def start_at(reader: nn.Module, images: Tensor) -> None:
    """Let a network that ends in a convolution and a sigmoid start with the images' own brightness, by channel.

    From half grey the way to mostly dark images leads into black, where a sigmoid no longer learns: whoever has found
    nothing in the messages by then, as behind a projection, draws one blank picture for good.
    """
    *_, last = (layer for layer in reader.modules() if isinstance(layer, nn.Conv2d))
    assert last.bias is not None
    with torch.no_grad():
        last.bias.copy_(torch.logit(images.mean((0, 2, 3)), eps=0.01))


def _bend() -> nn.Module:
    # A plain ReLU died on projected inputs: every reader then returned one blank picture.
    return nn.LeakyReLU(0.1)


def _border(cut: tuple[int, ...], image: tuple[int, ...], doublings: int) -> tuple[nn.Module, nn.Module]:
    """(what to do before the first layer, what to do after the last doubling) to end at the size of the image.

    Unpadded convolutions cut the border off. Putting it back at the cut keeps every pixel where it was; only where
    that is impossible is the rest taken for a scale.
    """
    whole, rest = divmod(image[1], 2**doublings)
    missing = whole - cut[0]
    if image[1] == image[2] and cut[0] == cut[1] and not rest and 0 <= missing < cut[0]:
        return nn.ZeroPad2d((missing // 2, missing - missing // 2) * 2), nn.Identity()
    return nn.Identity(), nn.Upsample(size=image[1:], mode="bilinear")


def fit(
    reader: nn.Module,
    seen: Tensor,
    images: Tensor,
    *,
    steps: int,
    rate: float = 3e-3,
    batch: int = 32,
    loss: Callable[[Tensor, Tensor], Tensor] | None = None,
    decay: float = 0.0,
    seconds: float = inf,
) -> Standardised:
    """Train `reader` on (seen, images). Inputs are standardised by what the attacker's own data gives.

    It ends early once it has used `seconds` of CPU time.
    """
    began = time.process_time()
    if isinstance(reader, ConvReader | MLPReader):
        start_at(reader, images)
    over = (0, *range(2, seen.dim()))  # by channel, or by number where there is nothing behind it
    mean, std = seen.mean(over, keepdim=True), seen.std(over, keepdim=True).clamp_min(1e-6)
    optimizer = adamw(reader.parameters(), rate, decay)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
    for _ in range(steps):
        pick = torch.randint(len(seen), (batch,)).to(seen.device)
        error = (loss or _loss)(reader((seen[pick] - mean) / std), images[pick])
        optimizer.zero_grad()
        error.backward()
        optimizer.step()
        schedule.step()
        if time.process_time() - began > seconds:
            break
    return Standardised(reader, mean, std)


def fit_on(
    reader: Standardised, fresh: Callable[[], tuple[Tensor, Tensor]], *, steps: int, rounds: int, batch: int
) -> Standardised:
    """A copy of a trained reader that has gone on learning, for SSIM above all, from pairs fresh in each round."""
    network = copy.deepcopy(reader.network).requires_grad_(True).train()
    optimizer = adamw(network.parameters(), RATE_ON)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE_ON, total_steps=steps)
    every = -(-steps // rounds)
    for step in range(steps):
        if step % every == 0:
            seen, images = fresh()
        pick = torch.randint(len(seen), (batch,)).to(seen.device)
        error = _structure_loss(network((seen[pick] - reader.mean) / reader.std), images[pick])
        optimizer.zero_grad()
        error.backward()
        optimizer.step()
        schedule.step()
    return Standardised(network, reader.mean, reader.std)


def _structure_loss(guess: Tensor, truth: Tensor) -> Tensor:
    error = (guess - truth).square().mean()
    return 1 - ssim(guess, truth).mean() + 0.1 * error if min(truth.shape[2:]) >= SMALLEST_FOR_SSIM else error


def _loss(guess: Tensor, truth: Tensor) -> Tensor:
    error = (guess - truth).square().mean()
    # The judge scores structure, so the strongest reader trains for it as well.
    return error + 0.1 * (1 - ssim(guess, truth).mean()) if min(truth.shape[2:]) >= SMALLEST_FOR_SSIM else error
