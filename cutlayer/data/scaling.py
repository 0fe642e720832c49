"""Inputs far from 0 to 1 are standardised: one rule for vectors and series, and what was done is kept.

Networks learn badly from raw measurements (years, millivolts, incomes), and nothing else would say so. Each client
goes by its own training rows; the test rows and whatever is predicted later are put on the same scale.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .samples import Loaded, Samples

FAR = 10.0  # values beyond are no longer those of something standardised, or of a share


@dataclass(frozen=True)
class Scale:
    """What was subtracted from each feature (of a series: each channel), and what it was divided by."""

    mean: tuple[float, ...]
    spread: tuple[float, ...]
    why: str = ""

    @classmethod
    def of(cls, x: Tensor, why: str = "") -> "Scale":
        """The mean and the standard deviation of these rows; a feature that never changes is only centred."""
        rows = x.double() if x.dim() == 2 else x.double().transpose(1, 2).flatten(0, 1)
        spread = rows.std(0, correction=0)
        return cls(tuple(rows.mean(0).tolist()), tuple(torch.where(spread > 0, spread, 1.0).tolist()), why)

    def apply(self, x: Tensor, before: "Scale | None" = None) -> Tensor:
        """Rows on this scale, which were on the scale `before`; None: as they were measured."""
        features = x.shape[1]
        if features != len(self.mean):
            raise ValueError(
                f"this run learnt from {len(self.mean)} features and keeps the scale of each; the data have "
                f"{features}: give it the same columns"
            )
        wide = (-1, *[1] * (x.dim() - 2))
        measured = x.double()
        if before is not None:
            measured = measured * torch.tensor(before.spread, dtype=torch.float64).reshape(wide)
            measured = measured + torch.tensor(before.mean, dtype=torch.float64).reshape(wide)
        mean, spread = (torch.tensor(one, dtype=torch.float64).reshape(wide) for one in (self.mean, self.spread))
        return ((measured - mean) / spread).float()

    def as_dict(self) -> dict[str, Any]:
        return {"mean": list(self.mean), "spread": list(self.spread), "why": self.why}

    @classmethod
    def from_dict(cls, told: Any) -> "Scale":
        return cls(tuple(told["mean"]), tuple(told["spread"]), told["why"])


AS_THEY_ARE = Scale((), ())  # of a run whose inputs called for nothing: what it is given later is not scaled, either


def on_scale(loaded: Loaded, known: Scale | None = None) -> Loaded:
    """The set on the `known` scale of a run; without one on its own, if its numbers call for that."""
    if known == AS_THEY_ARE or (known is None and (loaded.scale is not None or not _is_far(loaded))):
        return loaded
    if known is None:
        low, high = (float(end) for end in loaded.train.x.aminmax())
        known = Scale.of(loaded.train.x, f"its numbers run from {low:.4g} to {high:.4g}")
    train, test = (_moved(samples, known, loaded.scale) for samples in (loaded.train, loaded.test))
    return replace(loaded, train=train, test=test, scale=known)


def _moved(samples: Samples, known: Scale, before: Scale | None) -> Samples:
    columns = tuple(
        one if one.values else replace(one, mean=known.mean[one.first], spread=known.spread[one.first])
        for one in samples.columns
    )
    return replace(samples, x=known.apply(samples.x, before), columns=columns)


def _is_far(loaded: Loaded) -> bool:
    x = loaded.train.x
    # Pictures have a range of their own, which is checked; token ids are no floats.
    if x.dim() == 4 or not x.is_floating_point():
        return False
    low, high = (float(end) for end in x.aminmax())
    return max(abs(low), abs(high)) > FAR
