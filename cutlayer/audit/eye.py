"""The judge's eye: a small classifier of the task, which says what class a reconstruction still shows.

Patches of images as filters, and a ridge classifier on where they fit (Coates, Lee and Ng 2011, without whitening):
closed form, in a second, and the same every time.
"""

from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, conv2d, one_hot, unfold

from ..core.seeds import derive, seeded
from ..data.base import Parts, Samples

MOST_SAMPLES = 2048  # of the test set, that it learns from
LARGEST = 24  # pixels a side; larger pictures are averaged down, as if seen from further away
FILTERS, PATCH, PLACES = 32, 5, 3  # how many, of so many pixels a side, looked for in so many places a side
STRENGTH = 1e-2  # of the ridge, as a share of what a feature varies


class Named(NamedTuple):
    """How often the eye names the class right: of reconstructions, of their originals, and by the commonest class."""

    reconstructions: float
    originals: float
    chance: float


def named(data: Parts, truth: Tensor, recon: Tensor, y: Tensor) -> Named | None:
    """None where an image has no class, or there is nothing to learn classes from."""
    if y.dim() != 1 or len(data.test) < 2:
        return None
    eye = _eye_of(data.test, truth.device)
    right = [float((eye(images) == y.to(truth.device)).double().mean()) for images in (recon, truth)]
    return Named(right[0], right[1], float(y.bincount().max() / len(y)))


class Eye:
    """Images to classes. It learns from pictures and negatives alike: whoever sees the negative sees the picture."""

    def __init__(self, images: Tensor, y: Tensor):
        small = _seen(images)
        patches = unfold(small[: FILTERS * 4], PATCH).transpose(1, 2).flatten(0, 1)
        patches = patches[torch.randperm(len(patches))[:FILTERS].to(patches.device)]
        patches = patches - patches.mean(1, keepdim=True)
        patches = patches / patches.norm(dim=1, keepdim=True).clamp_min(1e-3)
        self.filters = patches.reshape(-1, images.shape[1], PATCH, PATCH)
        found = self._found(small)
        rows = torch.cat([_places(found), _places(-found)]).double()
        wanted = one_hot(y).double().repeat(2, 1)
        self.mean, self.share = rows.mean(0), wanted.mean(0)
        rows = rows - self.mean
        gram = rows.T @ rows
        ridge = STRENGTH * gram.diagonal().mean().clamp_min(1e-9) * torch.eye(len(gram)).to(gram)
        self.weights = torch.linalg.solve(gram + ridge, rows.T @ (wanted - self.share))

    def __call__(self, images: Tensor) -> Tensor:
        rows = torch.cat([_places(self._found(_seen(some.to(self.filters)))) for some in images.split(256)]).double()
        return ((rows - self.mean) @ self.weights + self.share).argmax(1)

    def _found(self, small: Tensor) -> Tensor:
        return conv2d(small, self.filters)


def _places(found: Tensor) -> Tensor:
    """How well each filter, and its negative, fits in each part of a picture."""
    return adaptive_avg_pool2d(torch.cat([found.relu(), (-found).relu()], 1), PLACES).flatten(1)


def _seen(images: Tensor) -> Tensor:
    """Every picture at mean 0 and deviation 1, so that contrast says nothing."""
    high, wide = (min(LARGEST, side) for side in images.shape[2:])
    x = adaptive_avg_pool2d(images.clamp(0, 1), (high, wide))
    mean, std = x.mean((1, 2, 3), keepdim=True), x.std((1, 2, 3), keepdim=True)
    return (x - mean) / std.clamp_min(1e-3)


_EYES: WeakKeyDictionary[Samples, Eye] = WeakKeyDictionary()  # all cells of a seed are looked at with the same one


def _eye_of(samples: Samples, device: torch.device) -> Eye:
    if samples not in _EYES:
        with seeded(derive(0, "the judge's eye"), device):
            pick = torch.randperm(len(samples))[:MOST_SAMPLES]
            images, y = samples.images(pick.to(samples.y.device)), samples.y[pick]
            _EYES[samples] = Eye(images.to(device), y.to(device))
    return _EYES[samples]
