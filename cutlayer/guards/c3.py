"""Several samples in one row: each bound to a key by circular convolution, and all added up."""

from dataclasses import dataclass
from math import prod
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..core.batch import Batch, Task
from ..core.guard import Guarded, GuardModule, Shape
from ..core.search import Between, Search
from ..core.seeds import generator
from .base import Guard


@dataclass(frozen=True, repr=False)
class C3(Guard):
    """Groups of `ratio` samples leave as one row, from which the server reads each by its public key (C3-SL).

    The others of its group are noise on what it reads. A last group that is not full is filled up with zeros.
    """

    ratio: int = 2
    mixes_samples: ClassVar[bool] = True
    fills_zeros: ClassVar[bool] = True
    search: ClassVar[Search] = {"ratio": Between(2, 16, log=True)}

    def __post_init__(self) -> None:
        if not isinstance(self.ratio, int) or not 2 <= self.ratio <= 1024:
            raise ValueError(f"C3: `ratio` samples share a row, a whole number from 2 to 1024; got {self.ratio!r}")

    @property
    def fan_out(self) -> int:
        return self.ratio

    def build(self, shape: Shape, public: int, private: int, task: Task | None = None) -> GuardModule:
        return _Bind(self.ratio, shape, public)

    def lift(self, shape: Shape, public: int) -> nn.Module:
        return Unbind(self.ratio, shape, public)


class _Bind(GuardModule):
    def __init__(self, ratio: int, shape: Shape, public: int):
        super().__init__()
        self.fan_out, self.unbind = ratio, Unbind(ratio, shape, public)

    def forward(self, z: Tensor, batch: Batch) -> Guarded:
        ratio, keys = self.fan_out, self.unbind.spectra(z)
        rows, groups = z.flatten(1), -(-len(z) // ratio)
        full = torch.cat([rows, rows.new_zeros(groups * ratio - len(rows), rows.shape[1])])
        bound = torch.fft.rfft(full.reshape(groups, ratio, -1)) * keys
        seen = torch.fft.irfft(bound.sum(1), n=rows.shape[1]).reshape(groups, *z.shape[1:])
        if self.training:
            with torch.no_grad():
                lost = (self.unbind(seen)[: len(z)] - z).square().sum() / z.square().sum().clamp_min(1e-30)
            self.notes = {"crosstalk": float(lost)}  # squared error of what the server reads, over what there was
        return Guarded(seen, rows=torch.arange(len(z), device=z.device) // ratio)

    def unmixed(self, seen: Tensor, rows: Tensor | None) -> tuple[Tensor, Tensor | None]:
        return self.unbind(seen), rows if rows is None else torch.arange(len(rows), device=seen.device)


class Unbind(nn.Module):
    """The server's half: correlation with each key in turn makes `ratio` rows of one, in the order of samples."""

    keys: Tensor
    takes_apart = True

    def __init__(self, ratio: int, shape: Shape, public: int):
        super().__init__()
        drawn = torch.randn(ratio, prod(shape), generator=generator(public), dtype=torch.float64)
        keys = drawn / torch.linalg.vector_norm(drawn, dim=1, keepdim=True)
        self.register_buffer("keys", keys.to(torch.get_default_dtype()), persistent=False)

    def spectra(self, like: Tensor) -> Tensor:
        return torch.fft.rfft(self.keys.to(like.dtype))

    def forward(self, seen: Tensor) -> Tensor:
        rows = seen.flatten(1)
        apart = torch.fft.rfft(rows)[:, None] * self.spectra(rows).conj()
        return torch.fft.irfft(apart, n=rows.shape[1]).reshape(-1, *seen.shape[1:])
