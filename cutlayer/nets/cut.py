"""`cut` your own network by the names of its layers; the parts share its weights and give the same bits."""

import difflib
import operator
from typing import NamedTuple

from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node

from .trace import read_forward

HEAD, BODY, TAIL = 0, 1, 2


class Parts(NamedTuple):
    head: nn.Module
    body: nn.Module
    tail: nn.Module


def cut(model: nn.Module, at: str, back: str | None = None) -> Parts:
    """Split `model` after its module `at` and, for the U shape, before its module `back`.

    Names are those of `model.named_modules()`, dots included. `tail(body(head(x)))` equals `model(x)` bit for
    bit; the parts hold the model's own modules, no copies. Without `back` the tail does nothing. Modules that
    `forward` never calls belong to no part.
    """
    first = _find(model, at)
    last = None if back is None else _find(model, back)
    if last is not None and (last in set(first.modules()) or first in set(last.modules())):
        raise ValueError(f"back has to come after at, and not inside it; got at={at!r}, back={back!r}")
    nodes = list(read_forward(model, [first] if last is None else [first, last]).nodes)
    z = _call(model, nodes, first, at)
    final = None if last is None else _call(model, nodes, last, str(back))
    start, stop = nodes.index(z), len(nodes) if final is None else nodes.index(final)
    if stop < start:
        raise ValueError(f"back has to come after at, but forward calls {back!r} before {at!r}")
    side = {node: HEAD if i <= start else BODY if i < stop else TAIL for i, node in enumerate(nodes)}
    if not any(side[node] == BODY and node.op not in ("get_attr", "output") for node in nodes):
        end = "the end" if back is None else repr(back)
        raise ValueError(f"the body is empty: nothing is computed between {at!r} and {end}")
    _place_parameters(nodes, side)
    _refuse_shared_state(model, nodes, side)
    result = nodes[-1].args[0]
    if not isinstance(result, Node):
        raise ValueError(f"the model has to return exactly one tensor; its forward returns {result}")
    _one_crosses(nodes, side, BODY, z, f"after {at!r}")
    head = _part(model, nodes, side, HEAD, nodes[0], z)
    if final is None:
        return Parts(head, _part(model, nodes, side, BODY, z, result), nn.Identity())
    u = next(iter(final.all_input_nodes), z)
    _one_crosses(nodes, side, TAIL, u, f"before {back!r}")
    return Parts(head, _part(model, nodes, side, BODY, z, u), _part(model, nodes, side, TAIL, u, result))


def _find(model: nn.Module, name: str) -> nn.Module:
    known = {path: module for path, module in model.named_modules(remove_duplicate=False) if path}
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=3)
    hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    children = ", ".join(path for path, _ in model.named_children()) or "none"
    raise ValueError(f"{type(model).__name__} has no module {name!r}; {hint}its children are: {children}")


def _call(model: nn.Module, nodes: list[Node], module: nn.Module, name: str) -> Node:
    calls = [n for n in nodes if n.op == "call_module" and model.get_submodule(str(n.target)) is module]
    if not calls:
        raise ValueError(f"{name!r} exists, but forward never calls it; name a module that it calls")
    if len(calls) > 1:
        raise ValueError(f"{name!r} is called {len(calls)} times; name a module that is called once")
    return calls[0]


def _place_parameters(nodes: list[Node], side: dict[Node, int]) -> None:
    # A parameter that forward reads by itself belongs where it is used, not where it was first mentioned.
    for node in nodes:
        if node.op == "get_attr" and node.users:
            side[node] = min(side[user] for user in node.users)


def _refuse_shared_state(model: nn.Module, nodes: list[Node], side: dict[Node, int]) -> None:
    sides: dict[Tensor, set[int]] = {}
    for node in nodes:
        used = {side[user] for user in node.users} if node.op == "get_attr" else {side[node]}
        for name, tensor in _state(model, node).items():
            sides.setdefault(tensor, set()).update(used)
            if len(sides[tensor]) > 1:
                raise ValueError(f"{name!r} is used on both sides of a cut; each part needs its own")


def _state(model: nn.Module, node: Node) -> dict[str, Tensor]:
    name = str(node.target)
    if node.op == "call_module":
        module = model.get_submodule(name)
        return {f"{name}.{key}": t for key, t in [*module.named_parameters(), *module.named_buffers()]}
    if node.op == "get_attr":
        path, _, key = name.rpartition(".")
        return {name: getattr(model.get_submodule(path), key)}
    return {}


def _one_crosses(nodes: list[Node], side: dict[Node, int], into: int, expected: Node, where: str) -> None:
    sources = [source for node in nodes if side[node] >= into for source in node.all_input_nodes]
    crossing = dict.fromkeys(source for source in sources if side[source] < into)
    for value in crossing:
        if value is expected and side[value] == into - 1:
            continue
        if _is_size(value) or all(_is_size(user) for user in value.users if side[user] >= into):
            raise ValueError(
                f"cannot cut {where}: a size read before the cut is used after it ({_name(value)}); "
                "read it after the cut, or write x.flatten(1)"
            )
        raise ValueError(
            f"cannot cut {where}: a skip connection from {_name(value)} passes over the cut, and exactly "
            "one tensor may cross; cut where the paths have met, for example after a whole block"
        )
    if expected not in crossing:
        raise ValueError(f"cannot cut {where}: the output of {_name(expected)} is not used after the cut")
    # x[0] on a batch of samples makes no sense; on an LSTM's answer it does.
    if any(user.target is operator.getitem and isinstance(user.args[1], int) for user in expected.users):
        raise ValueError(f"cannot cut {where}: {_name(expected)} gives several values; exactly one may cross")


def _is_size(node: Node) -> bool:
    if node.op == "call_method":
        return node.target in ("size", "dim", "numel")
    if node.target is getattr:
        return node.args[1] in ("shape", "ndim")
    arithmetic = node.op == "call_function" and getattr(node.target, "__module__", "") == "_operator"
    return arithmetic and all(_is_size(source) for source in node.all_input_nodes)


def _name(node: Node) -> str:
    if node.op == "placeholder":
        return "the input"
    return repr(node.target) if node.op == "call_module" else f"the result of {node.name}"


def _part(
    model: nn.Module, nodes: list[Node], side: dict[Node, int], which: int, source: Node, result: Node
) -> GraphModule:
    graph = Graph()
    copies = {source: graph.placeholder("x")}
    for node in nodes:
        if side[node] == which and node.op not in ("placeholder", "output"):
            copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(copies[result])
    return GraphModule(model, graph, ("Head", "Body", "Tail")[which])
