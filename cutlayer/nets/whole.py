"""Whole: any network, cut at its input."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from .base import Net, Shape, beside
from .simple_cnn import SimpleCNN


@dataclass(frozen=True, repr=False)
class Whole(Net):
    """Any `net`, cut at its input: all but the tail is the server's, for guards that code pictures (JPEG, HEVC).

    Weights are read and written as those of `net`, so one file fits both.
    """

    net: Net = SimpleCNN()
    always_shown: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if not isinstance(self.net, Net):
            raise ValueError(f"Whole takes a network, e.g. Whole(net=SimpleCNN()); got {self.net!r}")

    @property
    def tail_name(self) -> str | None:  # type: ignore[override]  # a class variable elsewhere
        return self.net.tail_name

    @property
    def unread(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.net.unread

    @property
    def backbone(self) -> str:  # type: ignore[override]
        return self.net.backbone

    def check(self, shape: Shape) -> None:
        self.net.check(shape)
        if named := beside(self.net, shape):
            raise ValueError(
                f"Whole: {self.net!r} would make the {' and '.join(named)} at the server, and the tail at home lacks "
                "it: take a network that sends nothing beside z (pad='fixed')"
            )

    def head(self, shape: Shape) -> nn.Module:
        self.check(shape)
        return nn.Identity()

    def body(self, shape: Shape) -> nn.Module:
        return nn.Sequential(self.net.head(shape), self.net.body(shape))

    def tail(self, shape: Shape, classes: int) -> nn.Module:
        return self.net.tail(shape, classes)

    def written(self, parts: Mapping[str, nn.Module]) -> Mapping[str, nn.Module]:
        inner = {part: module for part, module in parts.items() if part != "head"}
        if "body" in inner:
            inner = {"head": inner["body"].get_submodule("0"), **inner, "body": inner["body"].get_submodule("1")}
        return self.net.written(inner)
