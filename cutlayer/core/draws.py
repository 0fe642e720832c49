"""Which networks draw no random numbers, for sure: a step of theirs need not be seeded, which takes as long as many a
layer of a small network.

Only layers are trusted that are known by their very type, torch's below and ours that say so (`draws_nothing`), and
only while nothing hangs on them: hooks may do anything.
"""

from collections.abc import Iterator
from operator import attrgetter
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.nn.modules import module as torchs

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


class _Known(NamedTuple):
    """A network of such layers, and where it would show that it is another one by now."""

    empty: tuple[dict[Any, Any], ...]  # hooks, and the parts of layers that have none
    parts: tuple[tuple[dict[str, Any], tuple[Any, ...]], ...]  # of the others
    parameters: tuple[nn.Parameter, ...]


_known: WeakKeyDictionary[nn.Module, _Known | None] = WeakKeyDictionary()


def is_still(network: nn.Module) -> bool:
    """Whether neither its forward nor its backward pass can draw. Asked at every step: what it is made of is kept."""
    try:
        known = _known[network]
    except KeyError:
        known = _known[network] = _walked(network)
    if known is None or any(known.empty):
        return False
    if any(map(_HOOKS, known.parameters)) or any(map(_AFTER, known.parameters)):
        return False
    for parts, before in known.parts:
        if tuple(parts.values()) != before:
            del _known[network]
            return is_still(network)
    return True


def steps_still(optimizer: torch.optim.Optimizer | None) -> bool:
    """Whether a step of it cannot draw."""
    if optimizer is None:
        return True
    hooks = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
    return type(optimizer) in _OPTIMIZERS and not hooks


def _walked(network: nn.Module) -> _Known | None:
    inside = list(network.modules())
    if not all(map(_is_trusted, inside)):
        return None
    empty = [*_FOR_ALL, *(hooks for one in inside for hooks in _OF_ONE(one)), *_parts(inside, False)]
    parts = [(one, tuple(one.values())) for one in _parts(inside, True)]
    return _Known(tuple(empty), tuple(parts), tuple(network.parameters()))


def _is_trusted(module: nn.Module) -> bool:
    kind = type(module)
    known = kind in STILL or kind.__dict__.get("draws_nothing", False)  # what a subclass does its base cannot say
    return bool(known) and "forward" not in module.__dict__


def _parts(inside: list[nn.Module], some: bool) -> Iterator[dict[str, Any]]:
    return (one._modules for one in inside if bool(one._modules) == some)
