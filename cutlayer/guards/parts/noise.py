"""Noise that is a function of a private seed and a step."""

from hashlib import blake2b
from math import sqrt

import numpy as np
import torch
from torch import Tensor

from ...core.layout import in_rows
from ...core.seeds import derive

SPREAD = {"gaussian": 1.0, "laplace": sqrt(2)}  # standard deviation at scale 1


def draw(kind: str, hidden: Tensor, private: int, *names: object) -> Tensor:
    """Noise of scale 1 for every number of `hidden`, a function of the secret, the names and `hidden` itself.

    Of `hidden`, too, because noise that comes twice cancels in the difference: a seed that is used again, for a test
    set after a validation set or by a loop that forgot it, must not undo what was promised. Not from torch: its CPU
    generator takes 32 bits of a seed, few enough to try them all, and some 77,000 steps would likely repeat one.
    """
    seen = in_rows(hidden.detach().cpu()).reshape(-1).view(torch.uint8).numpy().data
    seed = derive(private, *names, blake2b(seen, digest_size=16).hexdigest())
    dice, shape = np.random.Generator(np.random.Philox(key=seed)), tuple(hidden.shape)
    return torch.from_numpy(dice.standard_normal(shape) if kind == "gaussian" else dice.laplace(size=shape))
