"""`cut` your own network by the names of its layers; the parts share its weights and give the same bits."""

import difflib
import operator
from typing import NamedTuple

from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node

from ..core.features import Features, Unchanged
from .sized import Shape, batch_of, device_of, free_of_data, made_from, nothing_like, padding_of
from .trace import Call, plain_call, read_forward

HEAD, BODY, TAIL, ANYWHERE = 0, 1, 2, 3


class Parts(NamedTuple):
    head: nn.Module
    body: nn.Module
    tail: nn.Module


def cut(
    model: nn.Module, at: str, back: str | None = None, *, shape: Shape | None = None, call: Call = plain_call
) -> Parts:
    """Split `model` after its module `at` and, for the U shape, before its module `back`.

    Names are those of `model.named_modules()`, dots included. `tail(body(head(x)))` equals `model(x)` bit for
    bit; the parts hold the model's own modules, no copies. Without `back` the tail does nothing. Modules that
    `forward` never calls belong to no part. An answer that is an object or a dictionary stands for its `logits`, else
    its `last_hidden_state`, else its only tensor.

    `shape` is that of one sample: with it the parts are made for that shape, and code between the layers may read
    sizes. `call(model, x)` is what is cut, where a model takes more than x to be called.
    """
    return cut_graph(model, read_for(model, at, back, shape, call), at, back)


def read_for(model: nn.Module, at: str, back: str | None, shape: Shape | None, call: Call) -> Graph:
    """What the model computes, with both modules among its calls."""
    first = find_layer(model, at)
    last = None if back is None else find_layer(model, back)
    if last is not None and (last in set(first.modules()) or first in set(last.modules())):
        raise ValueError(f"back has to come after at, and not inside it; got at={at!r}, back={back!r}")
    return read_forward(model, [first] if last is None else [first, last], shape, call)


def cut_graph(model: nn.Module, graph: Graph, at: str, back: str | None) -> Parts:
    """The parts of a model whose forward has been read, with both modules among its calls."""
    nodes = list(graph.nodes)
    z = _output(_call(model, nodes, at))
    final = None if back is None else _call(model, nodes, back)
    start, stop = nodes.index(z), len(nodes) if final is None else nodes.index(final)
    if stop < start:
        raise ValueError(f"back has to come after at, but forward calls {back!r} before {at!r}")
    side = {node: HEAD if i <= start else BODY if i < stop else TAIL for i, node in enumerate(nodes)}
    if not any(side[node] == BODY and node.op not in ("get_attr", "output") for node in nodes):
        end = "the end" if back is None else repr(back)
        raise ValueError(f"the body is empty: nothing is computed between {at!r} and {end}")
    _place_unread(nodes, side)
    _place_parameters(nodes, side)
    free = free_of_data(graph)
    side |= dict.fromkeys(free, ANYWHERE)
    mask = next((node for node in nodes if node.target is padding_of), None)
    if mask is not None:
        side |= dict.fromkeys(made_from(graph, mask, free), ANYWHERE)
    _refuse_shared_state(model, nodes, side)
    result = nodes[-1].args[0]
    assert isinstance(result, Node)
    _one_crosses(nodes, side, BODY, z, f"after {at!r}", mask)
    head = _part(model, nodes, side, HEAD, nodes[0], z, mask)
    if final is None:
        nothing = nn.Identity() if mask is None else Unchanged()
        return Parts(head, _part(model, nodes, side, BODY, z, result, mask), nothing)
    u = next((node for node in final.all_input_nodes if side[node] != ANYWHERE), z)
    _one_crosses(nodes, side, TAIL, u, f"before {back!r}", mask)
    body, tail = _part(model, nodes, side, BODY, z, u, mask), _part(model, nodes, side, TAIL, u, result, mask)
    return Parts(head, body, tail)


def find_layer(model: nn.Module, name: str) -> nn.Module:
    """A module of the model by its name, or the names that come near it."""
    known = {path: module for path, module in model.named_modules(remove_duplicate=False) if path}
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=3)
    hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    children = ", ".join(path for path, _ in model.named_children()) or "none"
    raise ValueError(f"{type(model).__name__} has no module {name!r}; {hint}its children are: {children}")


def _call(model: nn.Module, nodes: list[Node], name: str) -> Node:
    module = find_layer(model, name)
    calls = [n for n in nodes if n.op == "call_module" and model.get_submodule(str(n.target)) is module]
    if not calls:
        raise ValueError(f"{name!r} exists, but forward never calls it; name a module that it calls")
    if len(calls) > 1:
        raise ValueError(f"{name!r} is called {len(calls)} times; name a module that is called once")
    return calls[0]


def _output(call: Node) -> Node:
    """What a module gives: where it answers with several values and one of them alone is read, that one."""
    read = [user for user in call.users if user.users]
    if len(read) == 1 and read[0].target in (operator.getitem, getattr) and isinstance(read[0].args[1], int | str):
        return call if _is_size(read[0]) else read[0]
    return call


def _place_unread(nodes: list[Node], side: dict[Node, int]) -> None:
    # Of an answer with several values those that nobody reads cross nothing.
    for node in nodes:
        if node.target in (operator.getitem, getattr) and not node.users and isinstance(node.args[0], Node):
            side[node] = side[node.args[0]]


def _place_parameters(nodes: list[Node], side: dict[Node, int]) -> None:
    # A parameter that forward reads by itself belongs where it is used, not where it was first mentioned.
    for node in nodes:
        if node.op == "get_attr" and node.users:
            side[node] = min(side[user] for user in node.users)


def _refuse_shared_state(model: nn.Module, nodes: list[Node], side: dict[Node, int]) -> None:
    sides: dict[Tensor, set[int]] = {}
    first: dict[Tensor, str] = {}
    for node in nodes:
        used = {side[user] for user in node.users} if node.op == "get_attr" else {side[node]}
        used -= {ANYWHERE}
        for name, tensor in _state(model, node).items():
            sides.setdefault(tensor, set()).update(used)
            if len(sides[tensor]) > 1:
                other = first.get(tensor, name)
                tied = "" if other == name else f"{other!r} and {name!r} are tied, one tensor by two names: "
                raise ValueError(f"{tied}{name!r} is used on both sides of a cut; each part needs its own")
            first.setdefault(tensor, name)


def _state(model: nn.Module, node: Node) -> dict[str, Tensor]:
    name = str(node.target)
    if node.op == "call_module":
        module = model.get_submodule(name)
        return {f"{name}.{key}": t for key, t in [*module.named_parameters(), *module.named_buffers()]}
    if node.op == "get_attr":
        path, _, key = name.rpartition(".")
        return {name: getattr(model.get_submodule(path), key)}
    return {}


def _one_crosses(
    nodes: list[Node], side: dict[Node, int], into: int, expected: Node, where: str, mask: Node | None
) -> None:
    crossing = dict.fromkeys(
        source for node in nodes if into <= side[node] < ANYWHERE for source in node.all_input_nodes
        if side[source] < into and source is not mask
    )  # fmt: skip
    others = [value for value in crossing if value is not expected or side[value] != into - 1]
    for value in others:
        if _is_size(value) or all(_is_size(user) for user in value.users if into <= side[user] < ANYWHERE):
            raise ValueError(
                f"cannot cut {where}: a size read before the cut is used after it ({_name(value)}); "
                "read it after the cut, or write x.flatten(1)"
            )
    if others:
        raise ValueError(
            f"cannot cut {where}: a skip connection from {' and from '.join(map(_name, others))} passes over the "
            "cut, and exactly one tensor may cross; cut where the paths have met, for example after a whole block"
        )
    if expected not in crossing:
        raise ValueError(f"cannot cut {where}: the output of {_name(expected)} is not used after the cut")
    # x[0] on a batch of samples makes no sense; on an LSTM's answer it does.
    if any(user.target is operator.getitem and isinstance(user.args[1], int) for user in expected.users):
        raise ValueError(f"cannot cut {where}: {_name(expected)} gives several values; exactly one may cross")


def _is_size(node: Node) -> bool:
    if node.op == "call_method":
        return node.target in ("size", "dim", "numel")
    if node.target in (batch_of, device_of):
        return True
    if node.target is getattr:
        return node.args[1] in ("shape", "ndim")
    arithmetic = node.op == "call_function" and getattr(node.target, "__module__", "") == "_operator"
    return arithmetic and all(_is_size(source) for source in node.all_input_nodes)


def _name(node: Node) -> str:
    if node.op == "placeholder":
        return "the input"
    return repr(node.target) if node.op == "call_module" else f"the result of {node.name}"


def _part(
    model: nn.Module,
    nodes: list[Node],
    side: dict[Node, int],
    which: int,
    source: Node,
    result: Node,
    mask: Node | None = None,
) -> GraphModule:
    """With a `mask`, the head makes it and gives it beside z, and the others take it as a keyword."""
    graph = Graph()
    x = graph.placeholder("x")
    copies, wanted = {source: x}, _wanted(nodes, side, which)
    if mask is not None and which != HEAD:
        copies[mask] = graph.placeholder("mask", default_value=None)
    for node in nodes:
        if node not in wanted:
            continue
        if node.target in (batch_of, device_of, nothing_like) and side[node] == ANYWHERE:
            # Every part has these of its own input: one row is one sample everywhere.
            asked = copies.get(node.all_input_nodes[0], x)
            copies[node] = graph.call_function(node.target, (asked, *node.args[1:]))  # type: ignore[arg-type]
        else:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    made = copies[result]
    if mask is not None and which == HEAD:
        made = graph.call_function(Features, (made, {"mask": copies[mask]}))
    graph.output(made)
    return GraphModule(model, graph, ("Head", "Body", "Tail")[which])


def _wanted(nodes: list[Node], side: dict[Node, int], which: int) -> set[Node]:
    """The nodes of one part, and of those that may be anywhere the ones it needs."""
    wanted = {node for node in nodes if side[node] == which and node.op not in ("placeholder", "output")}
    for node in reversed(nodes):
        if node in wanted:
            wanted |= {source for source in node.all_input_nodes if side[source] == ANYWHERE}
    return wanted
