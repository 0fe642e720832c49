"""LoRA (Hu et al. 2022): beside a frozen linear layer the product of two narrow matrices, which alone train.

A module of our own, not peft's: the core runs with torch and numpy alone, head and body are built apart and know
nothing of a whole model that peft could wrap, and the base keeps its names, so that files of weights fit as before.
"""

import copy
import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from ..core.seeds import derive, seeded
from ..core.spec import Spec
from ..core.state import fix, unfix

__all__ = ["LoRA"]

DOWN, UP = ".down", ".up"  # how the names of adapters end
CLIENT, SERVER = ("head", "tail"), ("body",)


@dataclass(frozen=True, repr=False)
class LoRA(Spec):
    """Adapters of a rank at the linear layers whose names end so, over a head and body that never train.

    `rank=(4, 8)`: clients have these in turn, as their devices can, and the server the largest. `side`: whose layers
    get them. Of the base only the layers named in `whole` train, and the tail, unless it is
    frozen, too: a classifier of new classes. What an adapter adds is scaled by alpha / rank, and is nothing at first.
    """

    rank: int | tuple[int, ...] = 8
    at: str = "query,value"
    side: Literal["client", "server", "both"] = "both"
    alpha: float = 16.0
    whole: str = ""

    def __post_init__(self) -> None:
        if not self._ranks or any(type(one) is not int or one < 1 for one in self._ranks):
            raise ValueError(f"LoRA: rank is a whole number above 0, or a tuple of such; got {self.rank!r}")
        if self.side not in ("client", "server", "both"):
            raise ValueError(f"LoRA: side is 'client', 'server' or 'both'; got {self.side!r}")
        if not isinstance(self.alpha, int | float) or not 0 < self.alpha < float("inf"):
            raise ValueError(f"LoRA: alpha is a number above 0; got {self.alpha!r}")
        if not isinstance(self.at, str) or not _names(self.at):
            raise ValueError(f"LoRA: at names linear layers, e.g. at='query,value'; got {self.at!r}")

    @property
    def _ranks(self) -> tuple[int, ...]:
        return self.rank if isinstance(self.rank, tuple) else (self.rank,)

    @property
    def largest(self) -> int:
        return max(self._ranks)

    def rank_of(self, client: int) -> int:
        """The rank of one client's adapters."""
        return self._ranks[client % len(self._ranks)]

    def put_on(self, name: str, part: nn.Module, seed: int, client: int | None = None) -> None:
        """Fix a part of the network, and put adapters where this one's side has them. Draws from `seed`.

        None: the part is the server's.
        """
        fix(part)
        rank = self.largest if client is None else self.rank_of(client)
        for path, layer in list(part.named_modules()):
            if _ends_with(path, self.whole):
                unfix(layer)
                layer.requires_grad_(True)
            elif self._is_adapted(name) and _ends_with(path, self.at):
                part.set_submodule(path, AdaptedLinear(layer, rank, self.alpha / self.largest, derive(seed, path)))

    def _is_adapted(self, name: str) -> bool:
        return self.side == "both" or name in (CLIENT if self.side == "client" else SERVER)

    def refuse_unfit(self, parts: Mapping[str, nn.Module]) -> None:
        """A ValueError where a name is no layer's that could be adapted; `parts` are those that never train."""
        reached = {name: part for name, part in parts.items() if self._is_adapted(name)}
        layers = {path: (layer, part) for part in reached.values() for path, layer in _layers(part)}
        linear_ones = [path for path, (layer, _) in layers.items() if _is_linear(layer)]
        for wanted in _names(self.at):
            found = [path for path in layers if _ends_with(path, wanted)]
            if not found:
                near = _near(wanted, linear_ones)
                raise ValueError(f"{self!r}: no layer of the {_where(reached)} is called {wanted!r}; {near}")
            for path in found:
                self._refuse_layer(path, *layers[path])

    def _refuse_layer(self, path: str, layer: nn.Module, part: nn.Module) -> None:
        above = part.get_submodule(path.rpartition(".")[0])
        if isinstance(above, nn.MultiheadAttention | nn.TransformerEncoderLayer):
            raise ValueError(
                f"{self!r}: {type(above).__name__} of torch reads the weights of {path!r} itself and would pass the "
                "adapter by: take a network whose attention calls its layers"
            )
        if not _is_linear(layer):
            raise ValueError(f"{self!r}: {path!r} is a {type(layer).__name__}, and adapters sit on linear layers")
        sizes = [int(side) for side in layer.get_parameter("weight").shape]
        if min(sizes) < self.largest:
            raise ValueError(f"{self!r}: {path!r} is {sizes[0]} x {sizes[1]}, so rank is at most {min(sizes)} there")


class AdaptedLinear(nn.Module):
    """y = Wx + b + scale · up(down(x)), where W and b, under the names they had, are frozen. At first up is 0."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, base: Any, rank: int, scale: float, seed: int):
        super().__init__()
        self.weight, self.bias, self.scale, self._on_its_side = base.weight, base.bias, scale, _on_its_side(base)
        fix(self)
        wide, narrow = self._weight().shape
        with seeded(seed):
            self.down = nn.Parameter(torch.empty(rank, narrow))
            nn.init.kaiming_uniform_(self.down, a=5**0.5)  # as the paper's code has it, and torch for linear layers
        self.up = nn.Parameter(torch.zeros(wide, rank))

    def _weight(self) -> Tensor:
        return self.weight.T if self._on_its_side else self.weight

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self._weight(), self.bias) + linear(linear(x, self.down), self.up) * self.scale

    def fold(self) -> None:
        """Let the frozen weight alone do the same, to rounding, and give the adapter up."""
        self._weight().add_(self.scale * self.up @ self.down)
        del self.down, self.up

    def extra_repr(self) -> str:
        return f"rank={len(self.down)}, scale={self.scale:g}"


@torch.no_grad()
def folded(part: nn.Module) -> nn.Module:
    """A part whose adapters went into the weights: its state is as files of weights have it."""
    if not any(isinstance(layer, AdaptedLinear) for layer in part.modules()):
        return part
    part = copy.deepcopy(part)
    for layer in part.modules():
        if isinstance(layer, AdaptedLinear):
            layer.fold()
    return part


def _is_linear(layer: nn.Module) -> bool:
    return type(layer) is nn.Linear or _on_its_side(layer)


def _on_its_side(layer: nn.Module) -> bool:
    """GPT-2's linear layers in transformers have their weight the other way round, and a name of their own."""
    return type(layer).__name__ == "Conv1D" and {name for name, _ in layer.named_parameters()} == {"weight", "bias"}


def _names(text: str) -> list[str]:
    return [name for one in text.split(",") if (name := one.strip())]


def _ends_with(path: str, names: str) -> bool:
    return any(path == name or path.endswith(f".{name}") for name in _names(names))


def _layers(part: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    return ((path, layer) for path, layer in part.named_modules() if path)


def _where(parts: Mapping[str, nn.Module]) -> str:
    return " and ".join(parts) or "network"


def _near(wanted: str, paths: list[str]) -> str:
    last = list(dict.fromkeys(path.rpartition(".")[2] for path in paths))
    near = difflib.get_close_matches(wanted, [*last, *paths], n=2)
    if near:
        return f"did you mean {' or '.join(map(repr, near))}?"
    return f"its linear layers end in {', '.join(map(repr, last[:6]))}" if last else "it has no linear layer"
