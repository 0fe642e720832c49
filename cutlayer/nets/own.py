"""A network of your own as a `Net`: a function that makes it, and where to cut."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from ..core.outside.source import called
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
        return f"Own(make={called(self.make)}, at={self.at!r}, back={self.back!r})"

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

    def whole_tail(self) -> nn.Module:
        """The tail, whatever number of classes it was made for."""
        return self._parts().tail

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
