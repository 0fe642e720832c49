"""The attacker's own data as an axis: how much, which classes are missing, and from which other set."""

from dataclasses import dataclass, field, replace

import torch
from torch.nn.functional import interpolate

from ..core.batch import Task
from .base import Loaded, Parts, Samples


@dataclass(frozen=True)
class Auxiliary:
    """What becomes of the auxiliary images a plan sets aside (`aux_samples` says how many)."""

    other: Loaded | None = field(default=None, repr=False)  # another data set in their place
    without: tuple[int, ...] = ()  # labels the attacker has no images of
    name: str = ""  # of the other set: an audit that was interrupted goes on with the same one only

    def apply(self, data: Parts, task: Task) -> Parts:
        aux = data.aux if self.other is None else _like(self.other.train, task, len(data.aux))
        if self.without:
            if strange := [label for label in self.without if not 0 <= label < task.classes]:
                raise ValueError(f"labels are 0 to {task.classes - 1}; the attacker cannot lack {strange[0]}")
            there = ~torch.isin(aux.y, torch.tensor(self.without))
            if not there.any():
                raise ValueError("the attacker is left without any image: leave some classes in")
            aux = aux[there.nonzero().flatten()]
        return replace(data, aux=aux)


def _like(samples: Samples, task: Task, count: int) -> Samples:
    """Images of another set in the shape of this one. Their labels mean nothing here and are folded into range."""
    if samples.x.dim() != 4:
        raise ValueError(
            f"the attacker's other data must be images; these have inputs of shape {tuple(samples.x.shape[1:])}"
        )
    images = samples.images(torch.arange(min(count or len(samples), len(samples))))
    channels, size = task.shape[0], task.shape[1:]
    if images.shape[1] != channels:
        images = images.mean(1, keepdim=True).expand(-1, channels, -1, -1)
    if tuple(images.shape[2:]) != size:
        images = interpolate(images, size=size, mode="bilinear", antialias=True).clamp(0, 1)
    return Samples(images.contiguous(), samples.y[: len(images)] % task.classes)
