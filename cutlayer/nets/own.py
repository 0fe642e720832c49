"""A network of your own as a `Net`: what makes it, and where to cut."""

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import nn

from ..core.outside.makers import maker, without_place
from ..core.outside.origin import is_plain
from ..core.outside.source import called
from .at_layers import CutAtLayers
from .base import Shape


@dataclass(frozen=True, repr=False)
class Own(CutAtLayers):
    """A network of your own, cut at named layers: Own('my.py:Model(width=8)', at='stem', back='fc').

    `make` builds it: a class or a function without arguments, or the text that says where one is, with literals as
    arguments ('my.py:Model', 'package.module:Model(width=8)').
    """

    make: str | Callable[[], nn.Module]
    at: str = ""
    back: str | None = None
    factory: Callable[[], nn.Module] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Found now, not when it is first needed: a text from elsewhere must not import anything later, either.
        object.__setattr__(self, "factory", maker(self.make) if isinstance(self.make, str) else self.make)

    def __repr__(self) -> str:
        make = called(self.make) if not isinstance(self.make, str) else repr(self.make)
        if isinstance(self.make, str) and is_plain():
            make = repr(without_place(self.make))
        return f"Own(make={make}, at={self.at!r}, back={self.back!r})"

    def model(self, shape: Shape | None, classes: int | None) -> nn.Module:
        try:
            made = self.factory()
        except Exception as error:  # whatever a user's code raises
            raise ValueError(
                f"{self!r} cannot be made: {type(error).__name__}: {error}; name a class or a function, with its "
                "arguments: 'my.py:Model(width=8)'"
            ) from error
        if not isinstance(made, nn.Module):
            raise ValueError(f"{self!r} makes a {type(made).__name__}, not a torch.nn.Module")
        return made
