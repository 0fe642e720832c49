"""Weights, statistics and optimizer state by name: what parties keep, hand on and merge."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

State = dict[str, Tensor]


def freeze(module: nn.Module) -> None:
    """No gradients, and BatchNorm normalises by the batch without remembering it.

    With `track_running_stats` off torch keeps the buffers, leaves them alone while training and still uses them in
    evaluation.
    """
    module.requires_grad_(False)
    for inner in module.modules():
        if isinstance(inner, nn.modules.batchnorm._BatchNorm):
            inner.track_running_stats = False


def named(module: nn.Module, copies: bool = True) -> State:
    """Copies of its parameters ("net.") and of its statistics, counters and other buffers ("stat.").

    Without `copies`, what `module` itself has.
    """
    learnt = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    found = {f"{'net.' if name in learnt else 'stat.'}{name}": t for name, t in module.state_dict().items()}
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
