"""What a client keeps while its network is given up, and networks that change hands."""

from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...core.state import State, fixed_names
from ...training.step import ClientNetwork
from ...wire.codecs.parts.bits import on_host, values


class Layout:
    """Names, shapes and types of one client's state: alike for all clients of a plan, so it is kept once."""

    def __init__(self) -> None:
        self.known: dict[tuple[Any, ...], tuple[Any, ...]] = {}

    def of(self, state: Mapping[str, Tensor]) -> tuple[Any, ...]:
        return self.once(tuple((name, tuple(t.shape), t.dtype) for name, t in state.items()))

    def once(self, found: tuple[Any, ...]) -> tuple[Any, ...]:
        return self.known.setdefault(found, found)


class Asleep(NamedTuple):
    """What a client keeps while its network is given up: all its numbers in one array."""

    numbers: bytes = b""
    layout: tuple[Any, ...] = ()

    @classmethod
    def of(cls, state: Mapping[str, Tensor], layout: Layout) -> "Asleep":
        return cls(b"".join([on_host(t).data for t in state.values()]), layout.of(state))

    def state(self, device: torch.device) -> State:
        found, place = {}, 0
        for name, shape, dtype in self.layout:
            count = prod(shape)
            # Copies: what lies here stays as it is, and tensors of their own are aligned as kernels want them.
            found[name] = torch.empty(shape, dtype=dtype)
            on_host(found[name])[:] = values(self.numbers, dtype, count, place)
            place += count * dtype.itemsize
        return found if device.type == "cpu" else {name: t.to(device) for name, t in found.items()}


class Seat:
    """A network that one client leaves to the next. On the CPU numbers go out and in where they lie.

    Taking a state apart by name and loading it again costs half as much as a step of a small network.
    """

    def __init__(self, network: ClientNetwork, layouts: Layout):
        self.network, self._layouts = network, layouts
        learnt = {name for name, _ in network.split.named_parameters(remove_duplicate=False)}
        fixed, state = fixed_names(network.split), sorted(network.split.state_dict(keep_vars=True).items())
        named = {f"{'net.' if name in learnt else 'stat.'}{name}": t for name, t in state if name not in fixed}
        self._layout, self._tensors = layouts.of(named), list(named.values())
        self._here = all(tensor.is_cpu and tensor.is_contiguous() for tensor in self._tensors)
        self._words = [on_host(tensor) for tensor in self._tensors] if self._here else []
        self._places = [tensor.data_ptr() for tensor in self._tensors]

    @property
    def holds(self) -> bool:
        """Whether all tensors lie in this memory, each in one piece, and where they lay."""
        return self._here and [tensor.data_ptr() for tensor in self._tensors] == self._places

    def _moments(self) -> State:
        """What the optimizer remembers, itself."""
        optimizer = self.network.optimizer
        if optimizer is None or not optimizer.state:
            return {}
        parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
        return {
            f"optimizer.{number}.{name}": value
            for number, parameter in enumerate(parameters)
            for name, value in optimizer.state.get(parameter, {}).items()
            if isinstance(value, Tensor)
        }

    def _with(self, moments: State) -> tuple[Any, ...]:
        return self._layouts.once((*self._layout, *self._layouts.of(moments))) if moments else self._layout

    def lay_down(self) -> Asleep:
        """All that its client has learnt, to be taken up again."""
        moments = self._moments()
        words = [*self._words, *map(on_host, moments.values())]
        return Asleep(b"".join([one.data for one in words]), self._with(moments))

    def take_up(self, asleep: Asleep) -> bool:
        """Become the network of a client that laid this down; False: there is no place for some of it."""
        moments = self._moments()
        if moments and asleep.layout is self._layout:  # that client has not stepped yet
            moments = {}
        if asleep.layout is not self._with(moments) or not self.holds:
            return False
        if not moments and self.network.optimizer is not None:
            self.network.optimizer.state.clear()
        place = 0
        for words in (*self._words, *map(on_host, moments.values())):
            words[:] = np.frombuffer(asleep.numbers, words.dtype, len(words), place)
            place += words.nbytes
        for tensor in self._tensors:
            tensor.grad = None  # a step that was broken off has left some
        return True
