"""A sensitive attribute, classified from what was sent: no picture is needed to learn somebody's gender."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from ..core.batch import Task
from ..core.message import Message
from ..metrics.readers import Before, best_reader, fit, ridge
from .base import ANY_INPUT, Attack, Attacker, Knowledge, smashed
from .parts.keyed import Keyed, made

READERS = ("ridge", "conv", "mlp")
FEW_PLACES, WIDEST = 4, 256  # a side, and channels: where convolutions stop
MOST_VALUES = 16  # of an attribute that is a kind; one with more, such as an age in years, is a measure
SIZES = {"quick": {"steps": 200}, "standard": {}, "paper": {"steps": 2000, "width": 64, "hidden": 1024}}


@dataclass(frozen=True, repr=False)
class AttributeInference(Keyed):
    """A sensitive attribute of each sample: ridge, convolutional and MLP classifiers of messages; the best counts.

    They learn from the attacker's own messages (guarded head(aux)) and the auxiliary images' attributes; the best is
    chosen on held-out ones. Right answers are compared with always naming the commonest value.
    """

    attribute: str
    steps: int = 600
    width: int = 32
    hidden: int = 256
    readers: tuple[str, ...] = READERS
    secret: ClassVar[str] = "attribute"
    inputs: ClassVar[tuple[str, ...]] = ANY_INPUT
    told: ClassVar[tuple[str, ...]] = ("aux", "aux_labels", "aux_attributes")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.attribute, str) or not self.attribute:
            raise ValueError(f"attribute names what to find out, e.g. 'gender'; got {self.attribute!r}")
        if min(self.steps, self.width, self.hidden) < 1:
            raise ValueError(f"{self}: steps, width and hidden are whole numbers from 1 up")
        if not self.readers or set(self.readers) - set(READERS):
            raise ValueError(f"readers are among {', '.join(READERS)}; got {self.readers}")

    @classmethod
    def sized(cls, budget: str) -> Self:
        raise NotImplementedError("an attribute has to be named: AttributeInference(attribute='gender')")

    @classmethod
    def suite(cls, budget: str, task: Task, labels_stay_home: bool) -> list[Attack]:
        # A measure is left out of images; in a table it is guessed in bins.
        small = {name for name, values in task.attributes.items() if values <= MOST_VALUES}
        kinds = [name for name in task.attributes if name in small or task.kind != "images"]
        return [cls(name, **SIZES[budget]).within(budget) for name in kinds]  # type: ignore[arg-type]

    def why_not(self, task: Task, labels_stay_home: bool) -> str | None:
        if self.attribute in task.attributes:
            return None
        there = f"they have {', '.join(sorted(task.attributes))}" if task.attributes else "they have none"
        return f"{self} needs an attribute {self.attribute!r} of the data; {there}"

    def attacker(self, knowledge: Knowledge, seed: int) -> Attacker:
        return _Classifying(self, knowledge, seed)


class _Classifying(Attacker):
    def __init__(self, spec: AttributeInference, knowledge: Knowledge, seed: int):
        known = knowledge.aux_attributes or {}
        if spec.attribute not in known:
            there = f"it has {', '.join(sorted(known))}" if known else "it has none"
            raise ValueError(f"{spec}: the attacker's data has no attribute {spec.attribute!r}; {there}")
        values = known[spec.attribute].long()
        self.undo = knowledge.undo
        own = made(spec.keys, knowledge, seed)
        truth, held = values[own.rows], values[own.held_rows]
        count = int(values.max()) + 1
        self.recovered = {} if spec.keys != "recovered" else {"key_empty": own.key_empty}
        self.read, self.best, self.scores = best_reader(
            spec, spec.readers, own.seen, seed,
            lambda name: self._train(name, spec, own.seen, truth, own.held, held, count),
            lambda reader: float((reader(own.held).argmax(1) == held).double().mean()),
        )  # fmt: skip

    def infer(self, messages: Sequence[Message]) -> Tensor:
        return self.read(smashed(messages)).argmax(1)

    def remarks(self) -> dict[str, object]:
        return {
            "reader": self.best,
            "readers": {name: round(score, 4) for name, score in self.scores.items()},
            **self.recovered,
        }

    def _train(
        self,
        name: str,
        spec: AttributeInference,
        seen: Tensor,
        values: Tensor,
        held_seen: Tensor,
        held: Tensor,
        count: int,
    ) -> nn.Module | None:
        if name == "ridge":
            wanted = [one_hot(some, count).to(seen.dtype) for some in (values, held)]
            return ridge(seen, wanted[0], held_seen, wanted[1], clamp=False)
        step, network = nn.Flatten(), _mlp(seen[0].numel(), spec.hidden, count)
        if name == "conv":
            maps = seen[:1] if self.undo is None else self.undo(seen[:1])
            if maps.dim() != 4:
                return None
            step, network = self.undo or nn.Identity(), _conv(tuple(maps.shape[1:]), spec.width, count)  # type: ignore[assignment]
        with torch.no_grad():
            inputs = step(seen)
        trained = fit(network.to(seen), inputs, values, steps=spec.steps, rate=1e-3, loss=cross_entropy, decay=1e-2)
        return Before(step, trained)


def _mlp(inputs: int, width: int, count: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Dropout(0.5), nn.Linear(width, count))


def _conv(maps: tuple[int, ...], width: int, count: int) -> nn.Module:
    """Convolutions down to a few places, which keep their own weights: where something lies may be what tells."""
    channels, *sides = maps
    layers: list[nn.Module] = [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
    while max(sides) > FEW_PLACES:
        layers += [nn.Conv2d(width, min(2 * width, WIDEST), 3, stride=2, padding=1), nn.ReLU()]
        width, sides = min(2 * width, WIDEST), [(side + 1) // 2 for side in sides]
    return nn.Sequential(*layers, nn.Flatten(), nn.Dropout(0.5), nn.Linear(width * prod(sides), count))
