"""HeadSwap: a server that hands on a head of its own making, which passes its input through."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from ..core.message import Message
from ..core.state import State
from .base import Attack, Attacker, Knowledge, smashed

HEAD = "net.head"  # how the names begin of what lies before the cut
LIFTED = 4.0  # added behind a normalisation, in deviations: no rectifier then cuts anything off


@dataclass(frozen=True, repr=False)
class HeadSwap(Attack):
    """A head that copies the picture into the first channels of the cut, sent where clients expect shared weights.

    Kernels become deltas, normalisations shift everything above zero: what arrives is the picture, as small as the
    cut. It needs no auxiliary data and one batch. Active. Where one head is handed on, nothing stops it but checks by
    the clients: seals in a relay, `largest_move` where rounds merge. `checked=False`: clients that believe all.
    """

    checked: bool = True
    active: ClassVar[bool] = True
    hands_on: ClassVar[bool] = True
    needs: ClassVar[tuple[str, ...]] = ("task",)

    @classmethod
    def suite(cls, budget: str, task: object, labels_stay_home: bool) -> "list[Attack]":
        """None: clients refuse it. Ask for it by name."""
        return []

    def attacker(self, knowledge: Knowledge, seed: int) -> Attacker:
        assert knowledge.task is not None
        return _Swapper(tuple(knowledge.task.shape))


class _Swapper(Attacker):
    def __init__(self, shape: tuple[int, ...]):
        self.shape = shape

    def handed_on(self, weights: State) -> State:
        return swapped(weights)

    def reconstruct(self, messages: Sequence[Message]) -> Tensor:
        """The first channels, each stretched to [0, 1], as large as the picture."""
        z = smashed(messages)
        if z.dim() != 4:
            z = z.reshape(len(z), -1, 1, 1)
        picture = z[:, [channel % z.shape[1] for channel in range(self.shape[0])]]
        low = picture.amin((0, 2, 3), keepdim=True)
        spread = (picture.amax((0, 2, 3), keepdim=True) - low).clamp(min=1e-12)
        return interpolate((picture - low) / spread, self.shape[1:], mode="bilinear").clamp(0, 1)


def swapped(weights: State) -> State:
    """These weights with a head that copies: channel i of every layer is channel i of the one before."""
    return {name: _copying(name, tensor) if name.startswith(HEAD) else tensor for name, tensor in weights.items()}


def _copying(name: str, tensor: Tensor) -> Tensor:
    made = torch.zeros_like(tensor)
    if tensor.dim() == 4:  # out, in, height, width
        for channel in range(tensor.shape[0]):
            made[channel, channel % tensor.shape[1], tensor.shape[2] // 2, tensor.shape[3] // 2] = 1.0
    elif tensor.dim() == 2:
        for channel in range(tensor.shape[0]):
            made[channel, channel % tensor.shape[1]] = 1.0
    elif tensor.dim() == 1:
        made += 1.0 if name.endswith("weight") else LIFTED
    return made
