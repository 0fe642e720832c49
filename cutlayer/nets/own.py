"""A network of your own as a `Net`: a function that makes it, and where to cut."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from .base import Net, Shape, out_shape
from .cut import Parts, cut


@dataclass(frozen=True, repr=False)
class Own(Net):
    """A network of your own: `make` builds it, `at` and `back` say where to cut."""

    make: Callable[[], nn.Module]
    at: str
    back: str | None = None

    tail_name: ClassVar[str | None] = ""  # the parts keep the model's names

    def __repr__(self) -> str:
        # A function's repr holds its address; two processes have to agree on a plan's text.
        make = getattr(self.make, "__qualname__", type(self.make).__name__)
        return f"Own(make={make}, at={self.at!r}, back={self.back!r})"

    def head(self, shape: Shape) -> nn.Module:
        return self._parts().head

    def body(self, shape: Shape) -> nn.Module:
        return self._parts().body

    def tail(self, shape: Shape, classes: int) -> nn.Module:
        parts = self._parts()
        found = self._out_shape(nn.Sequential(*parts), shape)
        if found != (classes,):
            raise ValueError(f"{self!r} gives {found} for a sample; {classes} classes need ({classes},)")
        return parts.tail

    def check(self, shape: Shape) -> None:
        self._out_shape(nn.Sequential(*self._parts()), shape)

    def _parts(self) -> Parts:
        # Factories read numbers out of tensors or load files, so they never run on the meta device.
        if torch.get_default_device().type == "meta":
            with torch.device("cpu"):
                return cut(self.make(), self.at, self.back)
        return cut(self.make(), self.at, self.back)

    def _out_shape(self, module: nn.Module, shape: Shape) -> Shape:
        try:
            return out_shape(module, shape)
        except Exception as error:  # whatever a user's forward raises
            raise ValueError(f"{self!r} cannot take inputs of shape {tuple(shape)}: {error}") from error
