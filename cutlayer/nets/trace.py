"""A model's forward as a graph, opened only as far as the cut needs."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.fx import Graph, Node, Proxy, Tracer

from .answers import SeveralAnswers, only_tensor
from .sized import READS_SIZES_ONLY, Shape, SizedProxy, Sizes, nothing_like, sizes_make_tensors

_ELSE = "; or give head, body and tail directly as three modules"
_ONE_AT_A_TIME = threading.RLock()  # a trace changes what it means to call a module, for the whole process
Call = Callable[[Any, Any], Any]  # (model, input) -> its answer


def plain_call(model: nn.Module, x: Any) -> Any:
    return model.forward(x)


def read_forward(
    model: nn.Module, targets: list[nn.Module], shape: Shape | None = None, call: Call = plain_call
) -> Graph:
    """What `model` computes when it is called. Only modules that contain a target are opened.

    With the `shape` of a sample, code outside of layers may read sizes and decide by them.
    """
    before, numbers = set(vars(model)), torch.get_rng_state()
    try:
        train, evaluate = (_traced(model, targets, training, shape, call) for training in (True, False))
        one = _traced(model, targets, True, shape, call, batch=1) if shape is not None else train
    finally:
        # The tracer hangs tensors that forward created on the model, which is not ours to change.
        made = set(vars(model)) - before
        for name in made:
            delattr(model, name)
        drawn = not torch.equal(numbers, torch.get_rng_state())
        torch.set_rng_state(numbers)
    if made:
        raise ValueError(
            f"the forward of {type(model).__name__} creates a tensor, which would be drawn once and for all; "
            f"make it a buffer or move it into a module of its own{_ELSE}"
        )
    if drawn:
        raise ValueError(
            f"the forward of {type(model).__name__} draws random numbers between its layers (layer drop?), which a "
            f"graph would draw once and for all; turn that off, or move it into a module of its own{_ELSE}"
        )
    if node := _difference(train, evaluate):
        raise ValueError(
            f"the forward of {type(model).__name__} reads self.training (at {node.name}), which a graph "
            f"would fix; use the nn.Module form, such as nn.Dropout or nn.BatchNorm2d{_ELSE}"
        )
    if node := _difference(train, one):
        raise ValueError(
            f"the forward of {type(model).__name__} does something else for one sample than for several (at "
            f"{node.name}), which a graph would fix; let it read no size but that of a sample{_ELSE}"
        )
    return train


def _difference(one: Graph, other: Graph) -> Node | None:
    pairs = zip(one.nodes, other.nodes, strict=False)
    return next((node for node, twin in pairs if node.format_node() != twin.format_node()), None)


def _traced(
    model: nn.Module, targets: list[nn.Module], training: bool, shape: Shape | None, call: Call, batch: int = 2
) -> Graph:
    with _ONE_AT_A_TIME, _mode(model, training):
        try:
            sizes = Sizes(model, shape, batch) if shape is not None else None
            tracer = _Opener(model, targets, call, sizes)
            with sizes_make_tensors(tracer) if sizes is not None else nullcontext():
                return tracer.trace(model)
        except SeveralAnswers:
            raise
        except Exception as error:  # forward is the user's code and meets stand-ins for tensors
            raise ValueError(f"torch.fx cannot trace {type(model).__name__}: {error}{_ELSE}") from error


class _Opener(Tracer):
    proxy_buffer_attributes = True  # else arithmetic on a buffer is done once, while tracing

    def __init__(self, model: nn.Module, targets: list[nn.Module], call: Call, sizes: Sizes | None) -> None:
        super().__init__()
        self.inside, self.targets, self.call, self.sizes = set(model.modules()), targets, call, sizes
        self.thread = threading.get_ident()

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        inside = set(m.modules()) - {m}
        return not any(target in inside for target in self.targets)

    def create_args_for_root(
        self, root_fn: Callable[..., Any], is_module: bool, concrete_args: Any = None
    ) -> tuple[Any, list[Any]]:
        # One input; other arguments keep their defaults (as graph inputs they would never be None).
        x = self.create_proxy("placeholder", "x", (), {})
        return lambda model, given: only_tensor(self.call(model, given)), [self.root, x]

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if self._is_elsewhere():
            return forward(*args, **kwargs)
        if m not in self.inside and not m.state_dict():  # nn.ReLU()(x): made on the way, a function by its nature
            return forward(*args, **kwargs)
        if self.sizes is None or not getattr(m, READS_SIZES_ONLY, False):
            return super().call_module(m, forward, args, kwargs)
        answer = super().call_module(m, forward, tuple(map(self._bare, args)), kwargs)
        answer.node.meta[READS_SIZES_ONLY] = True
        return answer

    def _bare(self, given: Any) -> Any:
        """An input of a module that reads its type alone, without the numbers; whole numbers are positions."""
        known = self.sizes.of(given.node) if self.sizes is not None and isinstance(given, Proxy) else None
        if known is None or not known.is_floating_point():
            return given
        return self.create_proxy("call_function", nothing_like, (given, known.dtype), {})

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        if self._is_elsewhere():
            return attr_val
        return super().getattr(attr, attr_val, parameter_proxy_cache)

    def _is_elsewhere(self) -> bool:
        """Another thread computes, or a twin runs to find out a size: that is not part of the graph."""
        return threading.get_ident() != self.thread or (self.sizes is not None and self.sizes.busy)

    def create_node(self, *args: Any, **kwargs: Any) -> Node:
        node = super().create_node(*args, **kwargs)
        if self.sizes is not None and node.op != "output":
            self.sizes.note(node)
        return node

    def proxy(self, node: Node) -> Proxy:
        return SizedProxy(node, self, self.sizes) if self.sizes is not None else super().proxy(node)

    def to_bool(self, obj: Proxy) -> bool:
        # A decision by sizes is the same for every batch, or read_forward refuses.
        known = self.sizes.of(obj.node) if self.sizes is not None else None
        return known if isinstance(known, bool) else super().to_bool(obj)


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
