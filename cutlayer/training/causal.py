"""A network that names the next token must not have seen it: does anything at the cut carry later places back?"""

from functools import lru_cache

import torch

from ..core.batch import Batch, Task
from ..core.guard import Shape
from ..core.seeds import generator, seeded
from ..core.split import each
from ..guards import Guard
from .plan.plan import Plan
from .plan.shapes import cut_shapes


def why_looks_ahead(plan: Plan, task: Task) -> str | None:
    """Why a network would know the token it has to name, as one sentence; None: it knows what came before alone.

    A network that looks ahead learns to copy: its perplexity is near 1, and it writes nothing of sense.
    """
    if not plan.protocol.keeps_places:
        return (
            f"{plan.protocol} mixes the places of a text, so that each would know the token it has to name: take "
            "UShaped"
        )
    if _mixes_places(plan.guard, cut_shapes(plan, task).shared, task.classes, task.vocabulary):
        return (
            f"{plan.guard} mixes the places of a text, so that each would know the token it has to name: take a "
            "guard that works on each token by itself, such as Gaussian, Quantize or SEAL(dims=1)"
        )
    return None


@lru_cache(maxsize=64)  # every client asks
def _mixes_places(guard: Guard, shape: Shape, classes: int, vocabulary: int) -> bool:
    """Whether an earlier place of what the server reads has a slope in a later one of z."""
    count, half = max(4, 2 * guard.least_batch), shape[0] // 2
    draw = generator(0)
    z = torch.rand(count, *shape, generator=draw).requires_grad_()
    x = torch.randint(1, vocabulary, (count, shape[0]), generator=draw)
    task = Task((shape[0],), classes, vocabulary=vocabulary)
    with seeded(0):
        made = guard.build(shape, 1, 2, task)(z, Batch(x, x))
        read = each(guard.lift(shape, 1)(made.seen), made.rows)
    if not read.requires_grad:
        return False
    weights = torch.rand(read[:, :half].shape, generator=draw)
    (slope,) = torch.autograd.grad((read[:, :half] * weights).sum(), z)
    return bool(slope[:, half:].any())
