"""What a chain is follows from its parts, and what cannot work is refused when it is written down."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from toys import batches

from cutlayer.core.guard import Guarded, GuardModule
from cutlayer.guards import (
    BF16,
    DPSGD,
    LFQ,
    WCC,
    Chain,
    FedLite,
    LightSplit,
    NoGuard,
    Quantize,
    RateBottleneck,
    SplitFC,
    Subset,
    TopK,
)
from cutlayer.guards.base import Bound, Guard, Release


class _Marks(GuardModule):
    def forward(self, z, batch):
        self.notes = {"largest": float(z.max())}
        return Guarded(2 * z, {"size": z.sum()}, torch.zeros(len(z), dtype=torch.long), z)


@dataclass(frozen=True, repr=False)
class Plain(Guard):
    def build(self, shape, public, private, task=None):
        return _Marks()


@dataclass(frozen=True, repr=False)
class Mixing(Plain):
    mixes_samples: ClassVar[bool] = True

    @property
    def least_batch(self):
        return 3


@dataclass(frozen=True, repr=False)
class Zeros(Plain):
    makes_zeros: ClassVar[bool] = True


@dataclass(frozen=True, repr=False)
class Holding(Plain):
    holds_back: ClassVar[bool] = True

    @property
    def attributes(self):
        return ("odd",)


@dataclass(frozen=True, repr=False)
class Needy(Plain):
    """Wants to be told how far a sample moves the batch."""

    settled: float = 0.0

    def calibrated(self, before):
        if before.moves is None:
            raise ValueError(before.why)
        return Needy(before.moves)

    def bound(self, before):
        return before._replace(release=Release("gaussian", 1 / self.settled))


@dataclass(frozen=True, repr=False)
class Bounding(Plain):
    def bound(self, before):
        return Bound(norm=1.5, moves=3.0)


def test_a_chain_is_what_its_parts_are():
    chain = Chain(Holding(), Mixing())
    assert chain.mixes_samples and chain.holds_back and not chain.post_hoc
    assert chain.least_batch == 3 and chain.attributes == ("odd",)
    assert not Chain(Plain(), NoGuard()).mixes_samples and Chain(Plain()).least_batch == 1


def test_rows_home_and_notes_come_out_of_a_chain():
    z = torch.rand(4, 2, 3, 3)
    module = Chain(Mixing(), NoGuard()).build((2, 3, 3), 1, 2)
    seen, penalty, rows, home = module(z, batches(1)[0])
    assert torch.equal(seen, 2 * z) and torch.equal(home, z) and rows.tolist() == [0] * 4
    assert module.notes == {"largest": float(z.max())} and set(penalty) == {"size"}


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ((Mixing(), Mixing()), "both mix the samples"),
        ((Zeros(), LightSplit(ratio=4)), "the zeros are gone"),
        ((Mixing(), WCC(weight=0.1)), "put WCC(weight=0.1) before it"),
        ((Holding(), Holding()), "already kept"),
        ((LFQ(bits=3), Quantize(bits=4)), "LFQ(groups=1, bits=3) has packed what leaves"),
        (
            (RateBottleneck(), WCC(weight=0.1), BF16()),
            "BF16() behind it would have to send other numbers in more bytes",
        ),
        ((SplitFC(), TopK()), "leave one of them out"),
        ((Quantize(bits=4), LFQ()), "leave one of them out"),
        ((TopK(), FedLite()), "the zeros are gone"),
        ((DPSGD(), DPSGD(clip=2.0)), "both replace the gradients"),
        ((Plain(), Needy()), "put Clip"),
        ((Bounding(), Plain(), Needy()), f"nothing is known of how far {Plain()}"),
    ],
)
def test_what_cannot_work_is_refused_with_the_reason(parts, words):
    with pytest.raises(ValueError) as error:
        Chain(*parts)
    assert words in str(error.value)


def test_orders_that_do_work():
    Chain(LightSplit(ratio=4), Zeros())
    Chain(WCC(weight=0.1), Mixing())
    Chain(Zeros(), Subset(ratio=2))


def test_a_guard_that_holds_back_must_read_the_whole_cut():
    with pytest.raises(ValueError, match="put it first"):
        Chain(LightSplit(ratio=4), Holding()).out_shape((4, 5, 5))


def test_parts_are_calibrated_by_what_stands_before_them():
    chain = Chain(Bounding(), LightSplit(ratio=4), Needy())
    assert chain._calibrated()[-1] == Needy(settled=3.0)
    assert chain.bound(Bound()).release == Release("gaussian", 1 / 3)
    assert repr(chain) == f"Chain({Bounding()!r}, LightSplit(ratio=4), {Needy()!r})", (
        "what was asked for is what is shown"
    )


def test_claims_name_the_part_they_are_of():
    assert Chain(LightSplit(ratio=4), WCC(weight=1.0)).claim((4, 5, 5)) == "LightSplit: rank 25 of 100"
    assert Chain(WCC(weight=1.0)).claim((4, 5, 5)) == "none: empirical"
