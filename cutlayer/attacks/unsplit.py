"""UnSplit: no data at all. Guess the images, guess the client's head, and improve one guess by the other in turn."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar, Self

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from ..core.guard import GuardModule, Shape
from ..core.message import Message
from ..core.seeds import derive, seeded
from ..core.stepping import adam
from ..guards.base import Guard
from ..metrics.images import minmax
from ..nets.base import check_choice
from .base import EVERY, FORMS, Attack, Attacker, Knowledge, smashed
from .parts.view import View
from .parts.viewing import Viewing

CLONES = ("shared", "own")
AT_ONCE = 64  # images that are guessed together
GREY = 0.5  # where every pixel starts, as in the authors' code


@dataclass(frozen=True, repr=False)
class UnSplit(Viewing):
    """Inversion without any data: images and a clone of the client's head are guessed in turn. Architecture known.

    Images start grey, the clone with fresh weights. In each round the images learn to be what the clone would send as
    the message seen, then the clone learns to send it (Erdogan, Kupcu and Cicek 2022). `tv` and `l2` weigh smoothness
    and darkness of the images. `clones`: "shared", one for all images, or "own", one for each, as if there were no
    other. `bounded` keeps pixels in [0, 1], `stretch` gives each finished image its full contrast; the paper has
    neither on digits.
    """

    knows: str = EVERY
    rounds: int = 60
    input_steps: int = 50  # of each round
    clone_steps: int = 50
    rate: float = 1e-3
    tv: float = 0.1
    l2: float = 1.0
    clones: str = "shared"
    bounded: bool = True
    stretch: bool = True
    most_images: int | None = 32  # type: ignore[misc]
    needs: ClassVar[tuple[str, ...]] = ("task", "net", "observed", "guard")
    # It has no reader to gain from maps, and a mean over the larger shape of the cut weighs less against its priors.
    quick_forms: ClassVar[tuple[str, ...]] = ("oblivious", "matched", "matched+lift")

    def __post_init__(self) -> None:
        super().__post_init__()
        whole = ("rounds", "input_steps", "clone_steps", "most_images")
        if any(not isinstance(getattr(self, name), int) or getattr(self, name) < 1 for name in whole):
            raise ValueError(f"{self}: {', '.join(whole)} are whole numbers from 1 up")
        if self.rate <= 0 or min(self.tv, self.l2) < 0:
            raise ValueError(f"{self}: rate is above 0, tv and l2 are 0 or more")
        for name, known in (("knows", (*FORMS, EVERY)), ("clones", CLONES)):
            if getattr(self, name) not in known:
                raise ValueError(
                    f"UnSplit: {name} is one of {', '.join(filter(None, known))}; got {getattr(self, name)!r}"
                )

    @classmethod
    def sized(cls, budget: str) -> Self:
        """A first look, a report, or the steps of the paper (five minutes an image on one core)."""
        check_choice("budget", budget, ("quick", "standard", "paper"))
        if budget == "quick":
            return cls(rounds=20, most_images=16)
        if budget == "standard":
            return cls()
        return cls(rounds=1000, input_steps=100, clone_steps=100, most_images=10)

    def bar(self, data: str, net: str) -> tuple[str, float] | None:
        return ("ncc", 0.8) if data == "Digits()" and net == "MnistNet()" else None

    def against(self, guard: Guard, shape: Shape) -> list[Attack]:
        # A row that stands for a group is guessed as one image, so a copy that forms groups has nothing to add.
        public = guard.public_part()
        alone = public.mixes_samples and len(public.stages()) == 1
        return [self.base()] if alone else super().against(guard, shape)

    def attacker(self, knowledge: Knowledge, seed: int) -> Attacker:
        return _Inversion(self, knowledge, seed)


class Clone(nn.Module):
    """The architecture the client is known to have. `own` is the shape of what leaves, `cut` what the guard reads.

    Where the two differ and the guard is none of the attacker's business, one linear layer stands for it.
    """

    def __init__(self, head: nn.Module, cut: Shape, own: Shape):
        super().__init__()
        self.head, self.channels = head, cut[0]
        self.last: nn.Module = nn.Identity()
        if own != cut:
            maps = len(own) == len(cut) == 3 and own[1:] == cut[1:]
            self.last = nn.Conv2d(cut[0], own[0], 1) if maps else _linear(cut, own)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.head(x)[:, : self.channels])  # a bypass keeps the other channels home


def _linear(cut: Shape, own: Shape) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(cut), prod(own)), nn.Unflatten(1, own))


class _Inversion(Attacker):
    def __init__(self, spec: UnSplit, knowledge: Knowledge, seed: int):
        assert knowledge.task is not None and knowledge.net is not None and knowledge.guard is not None
        if len(knowledge.task.shape) != 3:
            raise ValueError(f"UnSplit rebuilds images; these inputs have the shape {tuple(knowledge.task.shape)}")
        self.spec, self.seed = spec, derive(seed, "clone")
        self.net, self.image, self.cut = knowledge.net, knowledge.task.shape, knowledge.guard.shape
        self.view = View(spec.knows, spec.keys, knowledge, seed)
        _one_image_a_row(self.view, knowledge.guard.spec)
        self.match = float("nan")
        self.clones: list[Clones] = []  # of the pictures last rebuilt

    def reconstruct(self, messages: Sequence[Message]) -> Tensor:
        seen, self.clones = smashed(messages), []
        self.view.to(seen.device)
        with torch.no_grad():
            target = self.view.read(seen)
        guesses, errors = zip(*(self._invert(chunk) for chunk in target.split(AT_ONCE)), strict=True)
        self.match = float(torch.cat(errors).mean())
        images = torch.cat(guesses).clamp(0, 1)
        return minmax(images) if self.spec.stretch else images

    @torch.no_grad()
    def read(self, messages: Sequence[Message]) -> Tensor:
        """What was received, in the space where the clone's messages are compared with it."""
        return self.view.read(smashed(messages))

    @torch.no_grad()
    def features(self, images: Tensor) -> Tensor:
        """What the clones would send for these images, each for those in the places of its own; once they are there.

        With a clone for each row, an image without a row of its own has none."""
        sent = []
        for clones, x in zip(self.clones, images.split(AT_ONCE), strict=False):
            x = x if clones.stacked is None else x[: clones.count]
            sent.append(self.view.sent(clones(x), x, None, 0))
        return torch.cat(sent)

    def remarks(self) -> dict[str, object]:
        # Without it a picture says nothing: where the clone never came near the message, the priors drew it.
        return {"match": round(self.match, 4), **self.view.remarks()}

    def _invert(self, target: Tensor) -> tuple[Tensor, Tensor]:
        """Images behind these rows, and how much of each row the clone fails to explain, as a share of its energy."""
        spec = self.spec
        with seeded(self.seed):  # the same first clone for every chunk, and for an image alone
            clone = Clone(self.net.head(self.image), self.cut, self.view.own).to(target)
        clones = Clones(clone, len(target) if spec.clones == "own" else None)
        x = torch.full((len(target), *self.image), GREY).to(target)
        energy = target.square().flatten(1).mean(1).clamp_min(1e-12)
        draw_images = _adam([x], spec.rate)
        # A cut at the input leaves the client no weights: there is no clone to guess, and images alone learn.
        draw_clones = _adam(clones.parameters, spec.rate) if clones.parameters else None

        def error(step: int) -> Tensor:
            """Mean squared, one value an image."""
            return (self.view.sent(clones(x), x, None, step) - target).square().flatten(1).mean(1)

        for number in range(spec.rounds):
            first = number * (spec.input_steps + spec.clone_steps)
            clones.learn(False)
            x.requires_grad_(True)
            for step in range(first, first + spec.input_steps):
                loss = error(step) + spec.tv * variation(x) + spec.l2 * x.square().flatten(1).mean(1)
                _descend(draw_images, loss.sum())
                if spec.bounded:
                    with torch.no_grad():
                        x.clamp_(0, 1)
            x.requires_grad_(False)
            if draw_clones is None:
                continue
            clones.learn(True)
            for step in range(first + spec.input_steps, first + spec.input_steps + spec.clone_steps):
                _descend(draw_clones, error(step).sum())
        with torch.no_grad():
            self.clones.append(clones)
            return x, error(spec.rounds * (spec.input_steps + spec.clone_steps)) / energy


class Clones:
    """One clone for all images, or `count` of them, each image through its own: the same arithmetic, many at a time.

    In evaluation mode: BatchNorm is then the affine map of its fresh layer, which learns like any other. The client's
    own is one too, for the statistics of a whole batch hardly follow a single image; those of the few guessed images,
    grey at first, are another thing altogether.
    """

    def __init__(self, clone: nn.Module, count: int | None):
        self.clone = clone.eval()
        self.stacked: tuple[dict[str, Tensor], dict[str, Tensor]] | None = None
        self.count = count
        if count is not None:
            self.stacked = stack_module_state([copy.deepcopy(clone) for _ in range(count)])  # type: ignore[assignment]
        own = self.stacked[0].values() if self.stacked is not None else clone.parameters()
        self.parameters = list(own)

    def learn(self, yes: bool) -> None:
        for parameter in self.parameters:
            parameter.requires_grad_(yes)

    def __call__(self, x: Tensor) -> Tensor:
        return self.clone(x) if self.stacked is None else vmap(self._alone)(*self.stacked, x)

    def _alone(self, parameters: dict[str, Tensor], buffers: dict[str, Tensor], image: Tensor) -> Tensor:
        return functional_call(self.clone, (parameters, buffers), (image[None],))[0]


def variation(images: Tensor) -> Tensor:
    """Total variation as in the authors' code: mean squared differences of neighbours, down plus across."""
    down, across = images.diff(dim=2), images.diff(dim=3)
    return down.square().flatten(1).mean(1) + across.square().flatten(1).mean(1)


def _adam(parameters: list[Tensor], rate: float) -> torch.optim.Adam:
    return adam(parameters, rate, amsgrad=True)


def _descend(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def _one_image_a_row(view: View, guard: Guard) -> None:
    """Nobody can tell the members of a group apart, so a row is guessed as one image: no groups in the copies."""
    for place, part in enumerate(guard.stages()):
        for number, module in enumerate(view.copies if part.mixes_samples else ()):
            assert isinstance(module, GuardModule)
            view.copies[number] = guard.without(module, place)
