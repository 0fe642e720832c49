"""Guards one after another: the client applies them left to right, the server lifts right to left."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ..batch import Batch
from ..seeds import derive
from .base import Guard, Guarded, GuardModule, NoGuard, Shape


@dataclass(frozen=True, repr=False, init=False)
class Chain(Guard):
    """Guards in sequence, e.g. Chain(LightSplit(ratio=8), WCC(weight=0.01))."""

    parts: tuple[Guard, ...]

    def __init__(self, *parts: Guard):
        strange = [part for part in parts if not isinstance(part, Guard)]
        if strange or not parts:
            raise ValueError(f"Chain takes guards, e.g. Chain(LightSplit(ratio=8), WCC(weight=0.01)); got {parts}")
        flat = [inner for part in parts for inner in (part.parts if isinstance(part, Chain) else (part,))]
        object.__setattr__(self, "parts", tuple(flat))

    def __repr__(self) -> str:
        return f"Chain({', '.join(map(repr, self.parts))})"

    def out_shape(self, shape: Shape) -> Shape:
        for part in self.parts:
            shape = part.out_shape(shape)
        return shape

    def build(self, shape: Shape, public: int, private: int) -> GuardModule:
        modules = [
            part.build(before, seed, derive(private, place))
            for place, (part, before, seed) in enumerate(self._steps(shape, public))
        ]
        return _InTurn(modules)

    def lift(self, shape: Shape, public: int) -> nn.Module:
        lifts = [part.lift(before, seed) for part, before, seed in self._steps(shape, public) if not part.client_only]
        return nn.Sequential(*reversed(lifts))

    def undo(self, shape: Shape, public: int) -> nn.Module | None:
        undos: list[nn.Module] = []
        for part, before, seed in self._steps(shape, public):
            undo = part.undo(before, seed)
            if undo is not None:
                undos.append(undo)
            elif part.out_shape(before) != before:
                return None  # what this part did to the shape cannot be undone
        return nn.Sequential(*reversed(undos)) if undos else None

    def public_part(self) -> Guard:
        shown = [part for part in self.parts if not part.client_only]
        return Chain(*shown) if len(shown) > 1 else shown[0] if shown else NoGuard()

    def _steps(self, shape: Shape, public: int) -> list[tuple[Guard, Shape, int]]:
        """(part, shape it reads, its public seed). Client-only parts must not shift the seeds of the others:
        the server, which does not know of them, has to arrive at the same ones."""
        steps, place = [], 0
        for part in self.parts:
            steps.append((part, shape, derive(public, place) if place else public))
            shape, place = part.out_shape(shape), place + (not part.client_only)
        return steps


class _InTurn(GuardModule):
    def __init__(self, modules: Sequence[GuardModule]):
        super().__init__()
        self.inner = nn.ModuleList(modules)

    def forward(self, z: Tensor, batch: Batch) -> Guarded:
        penalties: dict[str, Tensor] = {}
        kepts = []
        for module in self.inner:
            z, penalty, kept = module(z, batch)
            for name, term in penalty.items():
                # The same penalty at two stages counts twice, under one name.
                penalties[name] = penalties[name] + term if name in penalties else term
            kepts.append(kept)
        return Guarded(z, penalties, kepts)

    def restore(self, u: Tensor, kept: Any) -> Tensor:
        for module, own in zip(reversed(list(self.inner)), reversed(kept), strict=True):
            u = module.restore(u, own)  # type: ignore[operator]
        return u
