"""The white-box reference: a decoder trained on the victim's own encoder. What it cannot read, few can."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from ..core.message import Message
from ..metrics.images import ncc, ssim
from ..metrics.readers import SMALLEST_FOR_SSIM, Before, ConvReader, MLPReader, Reader, best_reader, fit, ridge
from ..metrics.row_readers import Pairs, Size, likeness, train_reader
from .base import ANY_INPUT, Attacker, Knowledge, smashed
from .parts.keyed import Keyed, made

READERS = ("ridge", "conv", "mlp")


@dataclass(frozen=True, repr=False)
class Decoder(Keyed):
    """White-box decoder: ridge, convolutional and MLP readers trained on the victim's own head; the best counts.

    It trains on (guarded head(aux), aux), so it knows the guard, and is judged on private images it never saw. The
    best reader is chosen on held-out auxiliary images, as an attacker would have to.
    Against a guard with a secret key it comes in four forms: key="true" is told the client's and is a ceiling;
    "guessed", "mixture" and "recovered" know the head but have to find a key themselves. Records of a table and
    series have readers of their own; a convolution reads series alone.
    """

    steps: int = 400
    width: int = 64
    hidden: int = 1024
    readers: tuple[str, ...] = READERS
    inputs: ClassVar[tuple[str, ...]] = ANY_INPUT

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.steps, self.width, self.hidden) < 1:
            raise ValueError(f"{self}: steps, width and hidden are whole numbers from 1 up")
        if not self.readers or set(self.readers) - set(READERS):
            raise ValueError(f"readers are among {', '.join(READERS)}; got {self.readers}")

    @classmethod
    def sized(cls, budget: str) -> Self:
        if budget == "paper":
            return cls(steps=4000, width=128, hidden=2048)
        return cls(steps=150) if budget == "quick" else cls()

    def bar(self, data: str, net: str) -> tuple[str, float] | None:
        # Measured for MNIST-5000 on MnistNet at both cuts.
        return ("ssim", 0.90) if data == "Digits()" and net.startswith("MnistNet") else None

    def attacker(self, knowledge: Knowledge, seed: int) -> Attacker:
        return _Reading(self, knowledge, seed)


class _Reading(Attacker):
    def __init__(self, spec: Decoder, knowledge: Knowledge, seed: int):
        assert knowledge.aux is not None
        self.undo = knowledge.undo
        own = made(spec.key, knowledge, seed)
        images, held = knowledge.aux[own.rows], knowledge.aux[own.held_rows]
        self.recovered = {} if spec.key != "recovered" else {"key_empty": own.key_empty}
        self.read, self.best, self.scores = best_reader(
            spec, spec.readers, own.seen, seed,
            lambda name: self._train(name, spec, own.seen, images, own.held, held),
            lambda reader: _quality(reader(own.held), held),
        )  # fmt: skip

    def reconstruct(self, messages: Sequence[Message]) -> Tensor:
        return self.read(smashed(messages))

    def remarks(self) -> dict[str, object]:
        return {
            "reader": self.best,
            "readers": {name: round(score, 4) for name, score in self.scores.items()},
            **self.recovered,
        }

    def _train(
        self, name: str, spec: Decoder, seen: Tensor, images: Tensor, held_seen: Tensor, held_images: Tensor
    ) -> Reader | None:
        if images.dim() != 4:  # records or series
            pairs = Pairs(seen, images, held_seen, held_images)
            return train_reader(name, Size(spec.steps, spec.width, spec.hidden), pairs, self.undo)
        image = tuple(images.shape[1:])
        if name == "ridge":
            return ridge(seen, images, held_seen, held_images)
        if name == "mlp":
            flat = seen.flatten(1)
            mlp = fit(MLPReader(tuple(flat.shape[1:]), image, spec.hidden).to(seen), flat, images, steps=spec.steps)
            return Before(nn.Flatten(), mlp)
        # A convolution reads a map: undo the guard's public transform first, if there is one.
        maps = self._maps(seen)
        if maps.dim() != 4:
            return None
        conv = fit(ConvReader(tuple(maps.shape[1:]), image, spec.width).to(seen), maps, images, steps=spec.steps)
        return Before(self.undo, conv)

    @torch.no_grad()
    def _maps(self, seen: Tensor) -> Tensor:
        return self.undo(seen) if self.undo is not None else seen


def _quality(guess: Tensor, truth: Tensor) -> float:
    if truth.dim() != 4:
        return float(likeness(truth, guess).mean())
    measure = ssim if min(truth.shape[2:]) >= SMALLEST_FOR_SSIM else ncc
    return float(measure(guess, truth).mean())
