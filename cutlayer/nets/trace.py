"""A model's forward as a graph, opened only as far as the cut needs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.fx import Graph, Tracer

_ELSE = "; or give head, body and tail directly as three modules"


def read_forward(model: nn.Module, targets: list[nn.Module]) -> Graph:
    """The calls that `model.forward` makes. Only modules that contain a target are opened."""
    before = set(vars(model))
    try:
        train, evaluate = (_traced(model, targets, training) for training in (True, False))
    finally:
        # The tracer hangs tensors that forward created on the model, which is not ours to change.
        made = set(vars(model)) - before
        for name in made:
            delattr(model, name)
    if made:
        raise ValueError(
            f"the forward of {type(model).__name__} creates a tensor, which would be drawn once and for all; "
            f"make it a buffer or move it into a module of its own{_ELSE}"
        )
    for one, other in zip(train.nodes, evaluate.nodes, strict=False):
        if one.format_node() != other.format_node():
            raise ValueError(
                f"the forward of {type(model).__name__} reads self.training (at {one.name}), which a graph "
                f"would fix; use the nn.Module form, such as nn.Dropout or nn.BatchNorm2d{_ELSE}"
            )
    return train


def _traced(model: nn.Module, targets: list[nn.Module], training: bool) -> Graph:
    with _mode(model, training):
        try:
            return _Opener(targets).trace(model)
        except Exception as error:  # forward is the user's code and meets stand-ins for tensors
            raise ValueError(f"torch.fx cannot trace {type(model).__name__}: {error}{_ELSE}") from error


class _Opener(Tracer):
    proxy_buffer_attributes = True  # else arithmetic on a buffer is done once, while tracing

    def __init__(self, targets: list[nn.Module]) -> None:
        super().__init__()
        self.targets = targets

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        inside = set(m.modules()) - {m}
        return not any(target in inside for target in self.targets)

    def create_args_for_root(
        self, root_fn: Callable[..., Any], is_module: bool, concrete_args: Any = None
    ) -> tuple[Any, list[Any]]:
        # One input; other arguments keep their defaults (as graph inputs they would never be None).
        return root_fn, [self.root, self.create_proxy("placeholder", "x", (), {})]


@contextmanager
def _mode(model: nn.Module, training: bool) -> Iterator[None]:
    # The flags are set directly: train() may be overridden, and has to find them as they were.
    flags = {module: module.training for module in model.modules()}
    try:
        for module in flags:
            module.training = training
        yield
    finally:
        for module, flag in flags.items():
            module.training = flag
