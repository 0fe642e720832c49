"""What a guard's claims are tried in: every claim is held against what leaves, alone and in chains."""

from collections.abc import Sequence

from ...core.guard import Shape
from ...guards import (
    DCT,
    LFQ,
    SEAL,
    Chain,
    Clip,
    Gate,
    Gaussian,
    Guard,
    KAnonymous,
    Laplace,
    LightSplit,
    Quantize,
    SplitFC,
    Subset,
)

# What a guard is tried behind and before: every claim that the package makes, and what breaks most of them.
COMPANY: tuple[Guard, ...] = (
    Clip(norm=1.0),
    LightSplit(ratio=4),
    Subset(ratio=4),
    KAnonymous(k=3),
    SEAL(),
    DCT(),
    LFQ(bits=2),
    Gate(numbers=8, bits=2, hidden=8),
    SplitFC(ratio=2, budget=3),
    Gaussian(scale=0.5),
    Laplace(scale=0.5),
    Quantize(bits=4),
)


def chains_with(guard: Guard, others: Sequence[Guard], shape: Shape) -> list[Guard]:
    """Chains of two, in either order, that are no mistake at this cut."""
    found: list[Guard] = []
    for other in others:
        for pair in ((other, guard), (guard, other)):
            try:
                chain = Chain(*pair)
                chain.out_shape(shape)
            except ValueError:
                continue
            found.append(chain)
    return found
