"""What a prediction reads: the test samples of some data, or every row of data without labels."""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch

from ..core.batch import NO_LABEL
from ..data.base import Loaded, Samples, Source
from ..data.scaling import AS_THEY_ARE, Scale
from ..training.batches import task_of
from ..training.labels import refuse_unfit_labels
from ..training.plan.plan import Plan


@dataclass(frozen=True)
class Inputs:
    """Which samples are predicted, in their order, and how many of them are a message."""

    data: Source | None = None  # its test samples; None: those of the plan's data
    data_dir: Path | None = None
    limit: int = 0  # only so many; 0: all
    size: int = 64  # of a message
    stream: bool = False  # each sample is a message of its own, sent when the answer to the one before has come
    maps: bool = False  # refuse a network that gives no label maps

    def load(self, plan: Plan, scale: Scale | None = None) -> tuple[Loaded, Samples]:
        """The data, on the scale that the network learnt on, and what of it is predicted."""
        if self.stream:
            refuse_stream(plan)
        loaded, samples = self._read(plan, scale)
        if self.maps and samples.y.dim() < 3:
            raise ValueError(f"--masks are label maps, and {plan.net} gives one class a sample: leave it out")
        few = torch.arange(min(self.limit or len(samples), len(samples)))
        return loaded, samples[few] if self.limit else samples

    @cached_property  # the files are read for it
    def labelled(self) -> bool:
        """Whether somebody knows what is right."""
        return self.data is None or self.data.has_labels(self.data_dir)

    def _read(self, plan: Plan, scale: Scale | None) -> tuple[Loaded, Samples]:
        if self.data is not None and not self.labelled:
            return self._unlabelled(self.data, plan.data.load(self.data_dir, scale), scale)
        loaded = (self.data or plan.data).load(self.data_dir, scale)
        refuse_unfit_labels(plan, task_of(loaded.train, len(loaded.classes)), loaded.test.y)
        return loaded, loaded.test

    def _unlabelled(self, data: Source, known: Loaded, scale: Scale | None) -> tuple[Loaded, Samples]:
        """All rows of data whose labels nobody knows. What the classes are is known from the plan's data."""
        if known.vocabulary and known.train.y.dim() == 2:
            raise ValueError(
                f"the next tokens are the labels of a language model, and {data} has none: say next_token=True of "
                "texts, give an Npz an array y"
            )
        x = data.unlabelled_rows(self.data_dir, known)
        if x.shape[1:] != known.train.x.shape[1:]:
            raise ValueError(
                f"the samples of {data} are {_shape(x)}, and this network has learnt from {_shape(known.train.x)}: "
                "give them the form of the training data, and the settings that these have (signals, "
                "vocabulary, length, size)"
            )
        if x.is_floating_point() and scale is not None and scale != AS_THEY_ARE:
            x = scale.apply(x)
        new = replace(known.test, x=x, y=torch.zeros(len(x), *known.train.y.shape[1:], dtype=torch.int64))
        new = replace(new, s={}, identity=None, places=None)  # all rows, in the order of the file
        replace(known, test=new)  # which checks the values
        return known, replace(new, y=torch.full_like(new.y, NO_LABEL))


def _shape(x: torch.Tensor) -> str:
    return " x ".join(map(str, x.shape[1:]))


def refuse_stream(plan: Plan, alone: str = "a stream has one", way_out: str = "leave out --stream") -> None:
    """A guard that needs company cannot work on single samples; `alone` says why there is one."""
    guard = plan.guard
    if (least := guard.least_in_service) > 1:
        raise ValueError(f"{guard} needs {least} samples at a time, and {alone}: {way_out}")
    if guard.mixes_samples:
        raise ValueError(f"what leaves of a sample follows from its whole batch with {guard}, and {alone}: {way_out}")
