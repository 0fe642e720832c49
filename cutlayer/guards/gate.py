"""Gate: a learned encoder lets so many bits of a sample through, and a learned lift at the server reads them."""

from dataclasses import dataclass
from math import ceil, prod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ..core.batch import Batch, Task
from ..core.guard import Guarded, GuardModule, Shape
from ..core.search import Between, Search
from ..core.seeds import derive, generator, seeded
from ..wire.codecs.entropy import MOST_BITS, Coded
from ..wire.codecs.parts.gridded import Gridded, grid_type
from ..wire.codecs.parts.smallest import Smallest
from .base import Guard, need_task
from .parts.claims import Claim, Sent
from .parts.code_nets import encoder, lift, multiply_accumulates, widest

ROUNDINGS = ("nearest", "stochastic")
REACH = 2.0  # deviations of a number that the levels cover
HEADER = 26  # bytes a message, at most: how codes are packed, and where their grid begins and steps
LEAST_ROWS = 4  # of a batch: from fewer, means and deviations of the numbers are mostly chance
SPREAD = 1e-3  # added to a variance: numbers that are all alike have none, and gradients would explode


@dataclass(frozen=True, repr=False)
class Gate(Guard):
    """A learned code of `numbers` · `bits` bits is all that leaves of a sample, whatever the cut.

    An encoder gives the numbers, standardised over the batch and rounded to 2^bits fixed levels; gradients pass
    straight through. It is as wide as `budget` multiply-accumulates a sample allow (0: one linear layer). The server
    lifts the code back through a hidden layer of `hidden`, learnt with the body. `rounding="stochastic"` draws
    between the two nearest levels. `home` weighs the loss of a linear classifier of the code that stays with the
    client: with it the encoder can learn without a server (`SendOnce`). `entropy`: frequent levels take fewer bits
    (extra `entropy`).
    """

    numbers: int = 32
    bits: int = 2
    budget: int = 4_200_000
    rounding: str = "nearest"
    hidden: int = 512
    home: float = 0.0
    entropy: bool = False
    always_shown: ClassVar[int] = 2
    fills_zeros: ClassVar[bool] = True
    only_compresses: ClassVar[bool] = True
    packs: ClassVar[bool] = True
    has_to_learn: ClassVar[bool] = True
    search: ClassVar[Search] = {"numbers": Between(4, 128, log=True), "bits": Between(1, 4)}

    def __post_init__(self) -> None:
        for name, least in {"numbers": 1, "budget": 0, "hidden": 1}.items():
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise ValueError(f"Gate's {name} is a whole number from {least} up; got {value!r}")
        if type(self.bits) is not int or not 1 <= self.bits <= MOST_BITS:
            raise ValueError(f"Gate's bits, of each number, are 1 to {MOST_BITS}; got {self.bits!r}")
        if self.rounding not in ROUNDINGS:
            raise ValueError(f"Gate's rounding is one of {', '.join(ROUNDINGS)}; got {self.rounding!r}")
        if not isinstance(self.home, int | float) or not 0 <= self.home < float("inf"):
            raise ValueError(f"Gate's home is the weight of a loss, a number from 0 up; got {self.home!r}")

    # What it is follows from its fields. (Class variables elsewhere, so the type checker objects.)
    @property
    def capturable(self) -> bool:  # type: ignore[override]
        return self.rounding == "nearest"

    @property
    def reads_samples(self) -> bool:  # type: ignore[override]
        return bool(self.home)

    @property
    def reads_classes(self) -> bool:  # type: ignore[override]
        return bool(self.home)

    @property
    def learns_at_home(self) -> bool:  # type: ignore[override]
        return bool(self.home)

    @property
    def draws_anew(self) -> bool:
        return True  # BatchNorm: a number hangs on the batch it is in, and on an encoder that goes on learning

    @property
    def bits_of_a_sample(self) -> int:
        return self.numbers * self.bits

    def message_bits(self, shape: Shape) -> int:
        return self.bits_of_a_sample

    def out_shape(self, shape: Shape) -> Shape:
        if self.numbers > prod(shape):
            raise ValueError(
                f"{self} would send more numbers than the {prod(shape)} of the cut {shape}: take fewer numbers"
            )
        return (self.numbers,)

    @property
    def least_to_learn(self) -> int:
        return LEAST_ROWS

    def build(self, shape: Shape, public: int, private: int, task: Task | None = None) -> GuardModule:
        classes = need_task(self, task).classes if self.home else 0
        with seeded(private):
            return _Gated(self, self._encoder(shape), classes, private)

    def lift(self, shape: Shape, public: int) -> nn.Module:
        with seeded(derive(public, "lift")):
            return lift(shape, self.numbers, self.hidden)

    def _encoder(self, shape: Shape) -> nn.Sequential:
        self.out_shape(shape)
        return encoder(shape, self.numbers, widest(shape, self.numbers, self.budget))

    def multiply_accumulates(self, shape: Shape) -> int:
        """What the encoder costs a client for each sample."""
        return multiply_accumulates(shape, self.numbers, widest(shape, self.numbers, self.budget))

    def claims(self, shape: Shape) -> tuple[Claim, ...]:
        begin, step = _grid(self.bits)

        def holds(sent: Sent) -> bool:
            if not torch.isfinite(sent.seen).all():  # then all that is said is that numbers were lost
                return bool(sent.seen.isnan().all())
            place = (sent.seen.detach() - begin) / step
            whole = bool(((place == place.round()) & (place >= 0) & (place < 2**self.bits)).all())
            fits = sent.size <= HEADER + ceil(self.bits_of_a_sample * len(sent.seen) / 8)
            return whole and fits and sent.seen[:1].numel() <= self.numbers

        return (
            Claim(
                f"one message of a sample carries at most {self.bits_of_a_sample} bits, those of E epochs E times "
                "that, and the class is in them; du, labels, weights and whatever else travels beside z, and who is "
                "in a batch, are not covered",
                holds,
            ),
        )

    def public_part(self) -> Guard:
        """What its encoder is like and how it learns is the client's own business. Whether it can at home, a schedule
        hangs on."""
        return Gate(numbers=self.numbers, bits=self.bits, hidden=self.hidden, home=float(bool(self.home)))


def _grid(bits: int) -> tuple[float, float]:
    """Where the levels begin, and how far they are apart: in the middle of 2^bits equal parts of ±REACH."""
    step = 2 * REACH / 2**bits
    return step / 2 - REACH, step


class _Gated(GuardModule):
    """Encoder, rounding and, where it learns at home, a classifier of the code."""

    def __init__(self, spec: Gate, network: nn.Sequential, classes: int, private: int):
        super().__init__()
        self.spec, self.encoder, self.private = spec, network, private
        self.standardise = nn.BatchNorm1d(spec.numbers, eps=SPREAD, affine=False)
        self.classifier = nn.Linear(spec.numbers, classes) if classes else None

    def forward(self, z: Tensor, batch: Batch) -> Guarded:
        soft = self.standardise(self.encoder(z)).clamp(-REACH, REACH)
        hard, self.packed = self._rounded(soft.detach(), batch.seed)
        # Exactly `hard`, with the gradient of `soft`: a straight-through estimate.
        seen = hard + (soft - soft.detach())
        if self.classifier is None or not self.training:
            return Guarded(seen)
        return Guarded(seen, {"Gate at home": self.spec.home * cross_entropy(self.classifier(seen), batch.y)})

    def _rounded(self, soft: Tensor, seed: int) -> tuple[Tensor, Any]:
        bits = self.spec.bits
        begin, step = _grid(bits)
        place = (soft - begin) / step
        if self.spec.rounding == "stochastic":
            place = place + torch.rand(place.shape, generator=generator(derive(self.private, seed))).to(place) - 0.5
        # A half is rounded up: to the even one, as torch does, levels would not be alike.
        codes = (place + 0.5).floor().clamp(0, 2**bits - 1).to(torch.int32)
        own = grid_type(soft.dtype)
        grid = Gridded(codes, soft.new_full((1,), begin, dtype=own), soft.new_full((1,), step, dtype=own), bits)
        value = grid.value().to(soft)
        lost = ~torch.isfinite(soft).all()
        if soft.is_cpu and lost:
            # Codes would look as if nothing had happened. Alike for all rows: which number was lost is not told.
            return torch.full_like(value, torch.nan), None
        packed = Smallest((grid, Coded(grid))) if self.spec.entropy else grid
        # A device is not waited for: numbers that are lost there spoil the loss, and that is looked at.
        return value if soft.is_cpu else torch.where(lost, torch.nan, value), packed
