"""A walk through autograd in two passes: the gradient of the input first, those of the weights later.

Whoever waits for dz need not wait for what the weights get: that is about half of the walk, and hangs on nothing but
the gradients that came by. (A pipeline fills its bubbles so: Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024.)
Each node is asked for the same numbers as in one pass, for some of them later: no bit differs. Until then the graph
and the gradients between its layers are held.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

Given = tuple[Tensor | None, ...]
# What their weights get falls out of what their input gets: cheaper by the way than once more.
_AT_ONCE = {
    "MkldnnRnnLayerBackward0",
    "NativeBatchNormBackward0",
    "NativeGroupNormBackward0",
    "NativeLayerNormBackward0",
    "PreluKernelBackward0",
}


def input_first(result: Tensor, gradient: Tensor, z: Tensor) -> Callable[[], None] | None:
    """Walk from `result` to `z` alone, which has its gradient then. What is returned walks to the weights.

    None: nothing was done, since one pass is all there is, or is not surely the same as two.
    """
    if type(result) is not Tensor or not result.is_cpu or result.grad_fn is None:
        return None
    fed = _fed_on_the_way(result.grad_fn, z)
    if not fed:
        return None
    by_the_way = [weight for node, weights in fed.items() if node.name() in _AT_ONCE for weight in weights]
    later = [(node, weights, _Seen()) for node, weights in fed.items() if node.name() not in _AT_ONCE]
    for node, _, seen in later:
        node.register_prehook(seen)
    _walk((result,), (gradient,), (z, *by_the_way))

    def rest() -> None:
        while later:  # what a pass has read is not held any longer
            node, weights, seen = later.pop()
            there = [place for place, one in enumerate(seen.given or ()) if one is not None]
            if there:
                assert seen.given is not None
                _walk(
                    tuple(GradientEdge(node, place) for place in there),
                    tuple(seen.given[place] for place in there),
                    tuple(weights),
                )

    return rest


class _Seen:
    """The gradients that came to a node. Not the node: it holds this."""

    given: Given | None = None

    def __call__(self, gradients: Given) -> Given:
        if self.given is None:
            self.given = gradients
        return self.given  # the second time hooks of others have seen them, and may change them, once more


def _walk(roots: tuple[Any, ...], gradients: Given, leaves: tuple[Tensor, ...]) -> None:
    """Add to `leaves` what comes to them, and keep the graph for whoever comes after."""
    torch.autograd.Variable._execution_engine.run_backward(
        roots, gradients, True, False, leaves, allow_unreachable=True, accumulate_grad=True
    )


def _fed_on_the_way(root: Node, z: Tensor) -> dict[Node, list[Tensor]] | None:
    """Nodes on the way from `root` to `z` that feed weights beside it, and these.

    None where a weight is fed from several places, whose order in a sum would not be the same, or where a node is
    somebody's own function, which may do anything when it is asked twice.
    """
    leads: dict[Node, bool] = {}  # whether z is reached from a node
    for node in _leaves_first(root):
        if isinstance(node, torch._C._FunctionBase):
            return None
        leads[node] = getattr(node, "variable", None) is z or any(leads[to] for to in _next(node))
    found: dict[Node, list[Tensor]] = {}
    met: set[Node] = set()
    for node in [node for node, does in leads.items() if does]:
        beside = dict.fromkeys(one for to in _next(node) if not leads[to] for one in _leaves_first(to))
        if weights := [one.variable for one in beside if hasattr(one, "variable")]:  # type: ignore[attr-defined]
            if not met.isdisjoint(beside):
                return None
            met.update(beside)
            found[node] = weights
    return found


def _leaves_first(root: Node) -> Iterator[Node]:
    """All nodes under this one, each once and after those that it leads to."""
    begun, waits = set[Node](), [(root, False)]
    while waits:
        node, known = waits.pop()
        if known:
            yield node
        elif node not in begun:
            begun.add(node)
            waits.append((node, True))
            waits += [(to, False) for to in _next(node)]


def _next(node: Node) -> list[Node]:
    return [to for to, _ in node.next_functions if to is not None]
