"""Which networks draw no random numbers, for sure: a step of theirs need not be seeded, which takes as long as many a
layer of a small network.

Only layers are trusted that are known by their very type, torch's below and ours that say so (`draws_nothing`), and
only while nothing hangs on them: hooks may do anything.
"""

from operator import attrgetter
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.nn.modules import module as torchs
from torch.utils.hooks import RemovableHandle

STILL: frozenset[type] = frozenset(
    (
        nn.Sequential, nn.ModuleList, nn.Identity, nn.Flatten, nn.Unflatten,
        nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d, nn.Embedding,
        nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Hardswish, nn.Hardsigmoid, nn.Tanh, nn.Sigmoid,
        nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d,
        nn.BatchNorm1d, nn.BatchNorm2d, nn.GroupNorm, nn.LayerNorm, nn.Upsample,
    )
)  # fmt: skip
_OPTIMIZERS = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)
_FOR_ALL = (
    torchs._global_forward_hooks, torchs._global_forward_pre_hooks,
    torchs._global_backward_hooks, torchs._global_backward_pre_hooks,
)  # fmt: skip
_OF_ONE = attrgetter("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_HOOKS, _AFTER = attrgetter("_backward_hooks"), attrgetter("_post_accumulate_grad_hooks")


class _Known:
    """A network of such layers, and where it would show that it is another one by now."""

    __slots__ = ("handles", "hooks", "leaves", "parameters", "parts")

    def __init__(self, inside: list[nn.Module]):
        self.handles: int | None = None  # how many hooks there had ever been when none hung here
        self.hooks = (*_FOR_ALL, *(hooks for one in inside for hooks in _OF_ONE(one)))
        self.parameters = tuple(one._parameters for one in inside if one._parameters)
        self.leaves = tuple(one._modules for one in inside if not one._modules)
        self.parts = tuple((one._modules, tuple(one._modules.values())) for one in inside if one._modules)

    @property
    def is_whole(self) -> bool:
        """Whether it has the parts that were looked at, and no others."""
        return not any(self.leaves) and all(tuple(parts.values()) == before for parts, before in self.parts)

    @property
    def has_hooks(self) -> bool:
        """To look at all of them takes half as long as to seed a step: not before one more was made somewhere."""
        handles = getattr(RemovableHandle, "next_id", None)
        if handles is not None and handles == self.handles:
            return False
        parameters = [p for own in self.parameters for p in own.values() if p is not None]
        if any(self.hooks) or any(map(_HOOKS, parameters)) or any(map(_AFTER, parameters)):
            return True
        self.handles = handles
        return False


_known: WeakKeyDictionary[nn.Module, _Known | None] = WeakKeyDictionary()


def is_still(network: nn.Module) -> bool:
    """Whether neither its forward nor its backward pass can draw. Asked at every step: what it is made of is kept."""
    try:
        known = _known[network]
        if known is not None and not known.is_whole:
            known = _known[network] = _walked(network)
    except KeyError:
        known = _known[network] = _walked(network)
    return known is not None and not known.has_hooks


def steps_still(optimizer: torch.optim.Optimizer | None) -> bool:
    """Whether a step of it cannot draw."""
    if optimizer is None:
        return True
    hooks = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
    return type(optimizer) in _OPTIMIZERS and not hooks


def _walked(network: nn.Module) -> _Known | None:
    inside = list(network.modules())
    return _Known(inside) if all(map(_is_trusted, inside)) else None


def _is_trusted(module: nn.Module) -> bool:
    kind = type(module)
    known = kind in STILL or kind.__dict__.get("draws_nothing", False)  # what a subclass does its base cannot say
    return bool(known) and "forward" not in module.__dict__
