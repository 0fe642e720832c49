"""Weights, statistics and optimizer state by name: what parties keep, hand on and merge."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

State = dict[str, Tensor]
_FIXED = "fixed_here"  # where a module has the names of its own tensors that never change


def freeze(module: nn.Module) -> None:
    """No gradients, and BatchNorm normalises by the batch without remembering it.

    With `track_running_stats` off torch keeps the buffers, leaves them alone while training and still uses them in
    evaluation.
    """
    module.requires_grad_(False)
    for inner in module.modules():
        if isinstance(inner, nn.modules.batchnorm._BatchNorm):
            inner.track_running_stats = False


def fix(module: nn.Module) -> None:
    """Freeze it for good: what is in it now is known wherever it was built, and need not travel, be kept or merged.

    What is added later (adapters) is not meant.
    """
    freeze(module)
    for inner in module.modules():
        own = [*inner.named_parameters(recurse=False), *inner.named_buffers(recurse=False)]
        setattr(inner, _FIXED, frozenset(name for name, _ in own))


def unfix(module: nn.Module) -> None:
    """Its frozen numbers are no longer those it was built with: they go wherever the others go."""
    for inner in module.modules():
        if hasattr(inner, _FIXED):
            delattr(inner, _FIXED)


def fixed_names(module: nn.Module) -> set[str]:
    """Of parameters and buffers that were fixed, by their names in `module`."""
    inside = module.named_modules(remove_duplicate=False)
    return {f"{path}.{name}" if path else name for path, inner in inside for name in getattr(inner, _FIXED, ())}


def changing(module: nn.Module) -> State:
    """The part of its state dict that a training may change."""
    fixed = fixed_names(module)
    return {name: tensor for name, tensor in module.state_dict().items() if name not in fixed}


def load_changing(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Take over what `changing` once was; what was fixed stays, and all else has to be there."""
    fixed = fixed_names(module)
    kept = {name: t for name, t in module.state_dict().items() if name in fixed} if fixed else {}
    module.load_state_dict({**kept, **state})


def named(module: nn.Module, copies: bool = True) -> State:
    """Copies of its parameters ("net.") and of its statistics, counters and other buffers ("stat."), as far as they
    may change.

    Without `copies`, what `module` itself has.
    """
    learnt = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    found = {f"{'net.' if name in learnt else 'stat.'}{name}": t for name, t in changing(module).items()}
    return {name: t.clone() for name, t in found.items()} if copies else found


def unnamed(state: Mapping[str, Tensor]) -> State:
    """The state dict of a module, from `named`; whatever else is in `state` is left out."""
    return {name.split(".", 1)[1]: t for name, t in state.items() if name.startswith(("net.", "stat."))}


def optimizer_state(optimizer: torch.optim.Optimizer | None) -> State:
    """The tensors an optimizer carries from step to step, by parameter number and name."""
    if optimizer is None:
        return {}
    return {
        f"optimizer.{number}.{name}": value.detach().clone()
        for number, entries in optimizer.state_dict()["state"].items()
        for name, value in entries.items()
        if isinstance(value, Tensor)
    }


def load_optimizer(optimizer: torch.optim.Optimizer | None, state: Mapping[str, Tensor]) -> None:
    if optimizer is None:
        return
    if not any(key.startswith("optimizer.") for key in state):
        optimizer.state.clear()  # as below, in fewer steps: a client that is woken up comes here
        return
    entries: dict[int, State] = {}
    for key, value in state.items():
        if key.startswith("optimizer."):
            _, number, name = key.split(".", 2)
            # torch keeps the tensors it is given; without a copy two clients would share their momentum.
            entries.setdefault(int(number), {})[name] = value.clone()
    optimizer.load_state_dict({"state": entries, "param_groups": optimizer.state_dict()["param_groups"]})


def drop_gradients(optimizer: torch.optim.Optimizer) -> None:
    """`optimizer.zero_grad()`, which wraps these lines in as much again: every step of both sides comes here."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None
