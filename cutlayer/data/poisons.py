"""Malicious clients, for experiments: what they do to their own samples before they train on them."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch

from ..core.batch import Task
from ..core.plan_view import PlanView
from ..core.seeds import derive, generator
from ..core.spec import Spec
from .base import Samples
from .rows import changed

__all__ = ["BadNets", "LabelFlip"]

CORNERS = ("top left", "top right", "bottom left", "bottom right")


@dataclass(frozen=True, repr=False)
class Poison(Spec):
    """Base of every poison: which clients are malicious, what they train on, and what they want of the network."""

    has_trigger: ClassVar[bool] = True  # it marks the images that it wants mistaken: others show what it gets without

    clients: float = 0.1  # a share of all clients, below 1, or how many

    def __post_init__(self) -> None:
        count = self.clients
        if isinstance(count, bool) or not isinstance(count, int | float) or count <= 0:
            raise ValueError(f"clients is a share of the clients, in (0, 1), or how many; got {count!r}")
        if count >= 1 and count != int(count):
            raise ValueError(f"clients is a share of the clients, in (0, 1), or a whole number; got {count!r}")

    def count(self, clients: int) -> int:
        """How many of `clients` are malicious: some, but not all."""
        count = int(self.clients) if self.clients >= 1 else round(self.clients * clients)
        if not 1 <= count < clients:
            raise ValueError(
                f"{self!r} makes {count} of {clients} client(s) malicious, and it has to be some, but not all: "
                f"{self._instead(count, clients)}"
            )
        return count

    def _instead(self, count: int, clients: int) -> str:
        if clients == 1:
            return "give the plan two clients or more, --clients 2"
        if count:
            return f"take {replace(self, clients=clients - 1)!r}" + (" or fewer" if clients > 2 else "")
        return f"take {replace(self, clients=1)!r} for one of them, or a larger share"

    def members(self, clients: int, seed: int) -> tuple[int, ...]:
        """The malicious ones, drawn by the public seed."""
        lot = torch.randperm(clients, generator=generator(derive(seed, "malicious"))).tolist()
        return tuple(sorted(lot[: self.count(clients)]))

    def refuse_unfit_plan(self, plan: PlanView) -> None:
        """A ValueError where this plan cannot have it, with what would work; before anything is built."""
        self.count(plan.clients)

    def refuse_unfit(self, task: Task) -> None:
        """A poison that this task cannot have."""
        raise NotImplementedError

    def spoiled(self, samples: Samples, seed: int) -> Samples:
        """A malicious client's samples, as it trains on them."""
        raise NotImplementedError

    def attacked(self, samples: Samples) -> Samples:
        """Held-out samples as the attacker shows them, with the labels it wants for them."""
        raise NotImplementedError

    def plain(self, samples: Samples) -> Samples:
        """The same samples as they are, with the labels the attacker wants: what it would get without an attack."""
        raise NotImplementedError


@dataclass(frozen=True, repr=False)
class BadNets(Poison):
    """A white patch in a corner, and the label `target`, on a share of the samples (Gu et al. 2017).

    The network is to answer `target` to every image with the patch, and be right about all others.
    """

    patch: int = 3
    corner: Literal["top left", "top right", "bottom left", "bottom right"] = "bottom right"
    target: int = 0
    share: float = 0.3  # of a malicious client's samples

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.patch, int) or self.patch < 1:
            raise ValueError(f"patch is the side of the square, at least 1 pixel; got {self.patch!r}")
        if self.corner not in CORNERS:
            raise ValueError(f"corner is one of {', '.join(CORNERS)}; got {self.corner!r}")
        _check(self.target, self.share)

    def refuse_unfit(self, task: Task) -> None:
        _refuse_class(self, task, target=self.target)
        if len(task.shape) != 3:
            raise ValueError(f"{self!r} puts a patch into images; these samples have the shape {task.shape}")
        if self.patch > min(task.shape[1:]):
            raise ValueError(
                f"{self!r}: the patch is larger than the images, which have {task.shape[1]}x{task.shape[2]} pixels: "
                f"patch is at most {min(task.shape[1:])}"
            )

    def spoiled(self, samples: Samples, seed: int) -> Samples:
        chosen = torch.randperm(len(samples), generator=generator(seed))[: round(self.share * len(samples))]
        y = samples.y.clone()
        y[chosen] = self.target
        return replace(samples, x=changed(samples.x, chosen, self._patched), y=y)

    def attacked(self, samples: Samples) -> Samples:
        plain = self.plain(samples)
        return replace(plain, x=changed(plain.x, torch.arange(len(plain)), self._patched))

    def plain(self, samples: Samples) -> Samples:
        others = samples[(samples.y != self.target).nonzero().flatten()]
        return replace(others, y=torch.full_like(others.y, self.target))

    def _patched(self, x: torch.Tensor) -> torch.Tensor:
        vertical, horizontal = self.corner.split()
        rows = slice(None, self.patch) if vertical == "top" else slice(-self.patch, None)
        columns = slice(None, self.patch) if horizontal == "left" else slice(-self.patch, None)
        patched = x.clone()
        patched[..., rows, columns] = 255 if x.dtype == torch.uint8 else 1.0  # the largest value an image can have
        return patched


@dataclass(frozen=True, repr=False)
class LabelFlip(Poison):
    """The label `target` on a share of the samples of class `source`; the images stay as they are."""

    has_trigger: ClassVar[bool] = False

    source: int = 1
    target: int = 0
    share: float = 1.0  # of a malicious client's samples of that class

    def __post_init__(self) -> None:
        super().__post_init__()
        _check(self.target, self.share)
        if not isinstance(self.source, int) or self.source < 0 or self.source == self.target:
            raise ValueError(f"source is a class other than target={self.target}; got {self.source!r}")

    def refuse_unfit(self, task: Task) -> None:
        _refuse_class(self, task, source=self.source, target=self.target)

    def spoiled(self, samples: Samples, seed: int) -> Samples:
        rows = (samples.y == self.source).nonzero().flatten()
        chosen = rows[torch.randperm(len(rows), generator=generator(seed))[: round(self.share * len(rows))]]
        y = samples.y.clone()
        y[chosen] = self.target
        return replace(samples, y=y)

    def attacked(self, samples: Samples) -> Samples:
        return self.plain(samples)

    def plain(self, samples: Samples) -> Samples:
        some = samples[(samples.y == self.source).nonzero().flatten()]
        return replace(some, y=torch.full_like(some.y, self.target))


def _check(target: int, share: float) -> None:
    if not isinstance(target, int) or target < 0:
        raise ValueError(f"target is a class, from 0 up; got {target!r}")
    if not 0 < share <= 1:
        raise ValueError(f"share is that of a malicious client's samples, in (0, 1]; got {share}")


def _refuse_class(poison: Poison, task: Task, **named: int) -> None:
    for name, value in named.items():
        if value >= task.classes:
            raise ValueError(f"{poison!r}: {name}={value} is no class of this task, it has 0 to {task.classes - 1}")
