"""Drop whole channels at the cut, so that no single sample leaves in full."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cutlayer import Batch, Task
from cutlayer.guards import Guard, Guarded, GuardModule, Shape, derive, generator


@dataclass(frozen=True, repr=False)
class ChannelDropout(Guard):
    """Each channel of each sample leaves with probability `keep`, scaled by 1/keep."""

    keep: float

    def __post_init__(self) -> None:
        if not 0 < self.keep <= 1:
            raise ValueError(f"keep is the share of channels sent, in (0, 1]; got {self.keep}")

    @property
    def draws_anew(self) -> bool:
        return self.keep < 1  # other channels of a sample in every epoch: an audit reads several messages together

    def build(self, shape: Shape, public: int, private: int, task: Task | None = None) -> GuardModule:
        return _Drop(self.keep, private)

    def undo(self, shape: Shape, public: int) -> nn.Module:
        return nn.Identity()  # what was sent has the shape of the cut; an attacker reads a chain through it


class _Drop(GuardModule):
    def __init__(self, keep: float, private: int):
        super().__init__()
        self.keep, self.private = keep, private

    def forward(self, z: Tensor, batch: Batch) -> Guarded:
        # A function of the client's secret and the step: a replayed step drops the same channels, and no
        # other client drops them too.
        draw = generator(derive(self.private, batch.seed))
        mask = torch.rand(z.shape[:2], generator=draw).to(z) < self.keep
        return Guarded(z * mask.reshape(*mask.shape, *[1] * (z.dim() - 2)) / self.keep)
