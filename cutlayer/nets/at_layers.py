"""Networks that are made whole and cut by the names of their layers."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import nn
from torch.fx import Graph

from ..core.features import Chained
from .base import Net, Shape, out_shape
from .cut import Parts, cut_graph, read_for

MOST_REMEMBERED = 32
_MEMORY: dict[Any, Any] = {}


class CutAtLayers(Net):
    """A model of somebody else's: `at` is the last layer of the head, `back` the first of the tail.

    Without `back` the tail does nothing: all that follows `at` is the server's.
    """

    at: str
    back: str | None
    tail_name: ClassVar[str | None] = ""  # the parts keep the model's names

    @abstractmethod
    def model(self, shape: Shape | None, classes: int | None) -> nn.Module:
        """The whole model. None: whatever it is made for if nothing is said."""

    def call(self, model: Any, x: Any) -> Any:
        """What the model makes of a batch."""
        return model.forward(x)

    def in_tokens(self, shape: Shape) -> bool:
        # Asked where z has two dimensions: without a convolution along the second one they are tokens and features.
        return bool(_remembered((self, tuple(shape), "tokens"), lambda: not _slides(self.parts(shape))))

    def usual_shape(self) -> Shape | None:
        """The shape of an input to name the parts' parameters with; None: no shape is needed to cut it."""
        return None

    def head(self, shape: Shape) -> nn.Module:
        return self.parts(shape).head

    def body(self, shape: Shape) -> nn.Module:
        return self.parts(shape).body

    def tail(self, shape: Shape, classes: int) -> nn.Module:
        parts = self.parts(shape, classes)
        found = self._out_shape(Chained(*parts), shape)
        if found != (classes,):
            raise ValueError(f"{self!r} gives {found} for a sample; {classes} classes need ({classes},)")
        return parts.tail

    def check(self, shape: Shape) -> None:
        _remembered((self, tuple(shape), "check"), lambda: self._out_shape(Chained(*self.parts(shape)), shape))

    def parts(self, shape: Shape | None = None, classes: int | None = None) -> Parts:
        """A fresh model, cut."""
        # Factories read numbers out of tensors or load files, so they never run on the meta device.
        if torch.get_default_device().type == "meta":
            with torch.device("cpu"):
                return self.parts(shape, classes)
        if not self.at:
            raise ValueError(f"{self!r} does not say where to cut: at='NAME'. `cutlayer layers` lists the places")
        model = self.model(shape, classes)
        graph = self._graph(model, shape, classes)
        try:
            return cut_graph(model, graph, self.at, self.back)
        except ValueError as error:
            raise ValueError(f"{error}; `cutlayer layers` lists where it can be cut") from error

    def _graph(self, model: nn.Module, shape: Shape | None, classes: int | None) -> Graph:
        """What the model computes."""
        key = (self, shape and tuple(shape), classes, torch.get_default_dtype(), repr(model))
        return _remembered(key, lambda: read_for(model, self.at, self.back, shape, self.call))

    def _out_shape(self, module: nn.Module, shape: Shape) -> Shape:
        try:
            return out_shape(module, shape)
        except Exception as error:  # whatever a user's forward raises
            raise ValueError(f"{self!r} cannot take inputs of shape {tuple(shape)}: {error}") from error


def _slides(parts: Parts) -> bool:
    return any(isinstance(module, nn.Conv1d) for part in parts[:2] for module in part.modules())


def _remembered(key: Any, work: Callable[[], Any]) -> Any:
    """What was worked out once, since many clients have the same network; newest kept."""
    try:
        known = key in _MEMORY
    except TypeError:  # a network with a list among its fields has no hash
        return work()
    if not known:
        found = work()
        while len(_MEMORY) >= MOST_REMEMBERED:
            del _MEMORY[next(iter(_MEMORY))]
        _MEMORY[key] = found
    return _MEMORY[key]
