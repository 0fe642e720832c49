"""The white-box reference: a decoder trained on the victim's own encoder. What it cannot read, few can."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from ..core.guard import Shape
from ..core.message import Message
from ..data.augment import nudged
from ..guards.base import Guard
from ..metrics.readers import Before, Reader, Standardised, best_reader, fit_on
from ..metrics.row_readers import Pairs
from .base import ANY_INPUT, Attack, Attacker, Knowledge, smashed
from .parts.code_readers import CODES, code_reader, is_code
from .parts.keyed import Keyed, Made, made
from .parts.other_words import ids_of, with_other_words
from .parts.pictures import quality as quality_of
from .parts.pictures import reader_of, refuse_strange

READERS = ("ridge", "conv", "mlp", "augmented")
BATCH = 32
ROUNDS = 8  # of augmented images, at most
LEAST_FRESH, MOST_FRESH = 128, 4096  # messages of a round: guards need company, and they have to fit into memory


@dataclass(frozen=True, repr=False)
class Decoder(Keyed):
    """White-box decoder: ridge, convolutional and MLP readers trained on the victim's own head; the best counts.

    A fourth, "augmented", is the better of the networks after as many steps more, for SSIM, on auxiliary images that
    are moved and, in colour, mirrored: the attacker holds the head, so it makes their messages afresh.

    It trains on (guarded head(aux), aux), so it knows the guard, and is judged on private images it never saw. The
    best reader is chosen on held-out auxiliary images, as an attacker would have to.
    Against a guard with a secret key it comes in four forms: keys="true" is told the client's and is a ceiling;
    "own", "mixture" and "recovered" know the head but have to find a key themselves; "cosine" is there to be asked
    for. Records of a table, series and texts have readers of their own; a convolution reads series alone. Of texts
    "ridge" reads each token by itself, "conv" with its neighbours (attention), "mlp" all of a message at once, and
    "augmented" is the best of these after learning from texts as well in which half of the words are others, so that
    it has met every word.
    A code of few levels meets three more: "levels", two readers of each level by itself, "prior", which mixes what
    the likely classes look like, and "search", which changes the best picture (record, series) until the encoder
    makes the code of it.
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
        refuse_strange(self.readers, (*READERS, *CODES))
        if "augmented" in self.readers and not {"conv", "mlp"} & set(self.readers):
            raise ValueError(f"{self}: 'augmented' goes on where another reader ends: name 'conv' or 'mlp' as well")

    @classmethod
    def sized(cls, budget: str) -> Self:
        if budget == "paper":
            return cls(steps=4000, width=128, hidden=2048)
        return cls(steps=150) if budget == "quick" else cls()

    def against(self, guard: Guard, shape: Shape) -> list[Attack]:
        more = CODES if self.readers == READERS and is_code(guard, shape) else ()
        return [replace(one, **{"readers": (*self.readers, *more)}) for one in super().against(guard, shape)]

    def base(self) -> Self:
        plain = tuple(name for name in self.readers if name not in CODES)
        return replace(super().base(), readers=plain or READERS)

    def bar(self, data: str, net: str) -> tuple[str, float] | None:
        # Measured for MNIST-5000 on MnistNet at both cuts.
        return ("ssim", 0.90) if data == "Digits()" and net.startswith("MnistNet") else None

    def attacker(self, knowledge: Knowledge, seed: int) -> Attacker:
        return _Reading(self, knowledge, seed)


class _Reading(Attacker):
    def __init__(self, spec: Decoder, knowledge: Knowledge, seed: int):
        assert knowledge.aux is not None
        own = made(spec.keys, knowledge, seed)
        images, held = knowledge.aux[own.rows], knowledge.aux[own.held_rows]
        self.recovered = {} if spec.keys != "recovered" else {"key_empty": own.key_empty}
        networks: dict[str, Before] = {}
        texts = not images.is_floating_point()
        pairs, tried = Pairs(own.seen, images, own.held, held), list[Reader]()

        def train(name: str) -> Reader | None:
            reader = of_code(name) if name in CODES else plain(name)
            tried.extend([] if reader is None else [reader])
            return reader

        def of_code(name: str) -> Reader | None:
            if knowledge.aux_labels is None:
                return None
            best = max(tried, key=quality, default=None)
            return code_reader(name, spec, pairs, knowledge.aux_labels[own.rows], own.encode, best)

        def plain(name: str) -> Reader | None:
            if name == "augmented":  # records and series are not turned or shifted
                best = max(networks, key=lambda one: quality(networks[one]), default=None)
                if best is None:
                    return None
                if not texts:
                    return _augmented(networks[best], spec, own, knowledge)
                seen, more = _more_words(own, images, knowledge)
                return reader_of(best, spec, Pairs(seen, more, own.held, held), knowledge.undo)
            reader = reader_of(name, spec, pairs, knowledge.undo)
            if isinstance(reader, Before) and (images.dim() == 4 or texts):
                networks[name] = reader
            return reader

        def quality(reader: Reader) -> float:
            return quality_of(reader(own.held), held)

        in_order = [name for name in (*READERS, *CODES) if name in spec.readers]
        self.read, self.best, self.scores = best_reader(spec, in_order, own.seen, seed, train, quality)

    def reconstruct(self, messages: Sequence[Message]) -> Tensor:
        return self.read(smashed(messages))

    def remarks(self) -> dict[str, object]:
        return {
            "reader": self.best,
            "readers": {name: round(score, 4) for name, score in self.scores.items()},
            **self.recovered,
        }


def _augmented(reader: Before, spec: Decoder, own: Made, knowledge: Knowledge) -> Before:
    """The same reader after as many steps more, half on the auxiliary images and half on ones made of them."""
    aux, labels = knowledge.aux, knowledge.aux_labels
    assert aux is not None and labels is not None and isinstance(reader.reader, Standardised)
    known = own.rows.unique()
    # No more than are learnt from: some guards take their time over a message.
    rounds = max(1, min(ROUNDS, spec.steps * BATCH // LEAST_FRESH))
    count = min(max(LEAST_FRESH, spec.steps * BATCH // rounds), MOST_FRESH) // 2

    @torch.no_grad()
    def fresh() -> tuple[Tensor, Tensor]:
        pick = known[torch.randperm(len(known))[:count].to(known.device)]
        # Mirrored writing is no writing; most of what is in colour has no sides.
        images = torch.cat([aux[pick], nudged(aux[pick], mirror=aux.shape[1] > 1)])
        seen = own.encode(images, labels[pick].repeat(2, *[1] * (labels.dim() - 1)))
        return (seen if reader.step is None else reader.step(seen)), images

    return Before(reader.step, fit_on(reader.reader, fresh, steps=spec.steps, rounds=rounds, batch=BATCH))


@torch.no_grad()
def _more_words(own: Made, texts: Tensor, knowledge: Knowledge) -> tuple[Tensor, Tensor]:
    """The attacker's messages and texts, and as many again of texts with other words in them."""
    assert knowledge.aux_labels is not None
    changed = with_other_words(texts, ids_of(knowledge))
    return torch.cat([own.seen, own.encode(changed, knowledge.aux_labels[own.rows])]), torch.cat([texts, changed])
