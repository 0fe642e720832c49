"""Where a network can be cut: every place with its parts, or why it is none."""

import copy
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import torch
from torch import nn

from .at_layers import CutAtLayers
from .base import Net, Shape
from .cut import Parts, cut_graph, find_layer
from .trace import read_forward

OPTIONS = ("depth", "cut", "level")  # fields of reference networks that say where they are cut


class Place(NamedTuple):
    """One place: the name of a layer, or the option that cuts there; the parts, or why there are none."""

    name: str
    parts: Parts | None
    why_not: str = ""


def places(net: Net, shape: Shape, classes: int | None, inside_blocks: bool = False) -> Iterator[Place]:
    """In the order in which the network computes; `inside_blocks` also names the layers that blocks are made of."""
    if isinstance(net, CutAtLayers):
        yield from _of_layers(net, shape, classes, inside_blocks)
    else:
        yield from _of_options(net, shape, classes or 10)


def _of_options(net: Net, shape: Shape, classes: int) -> Iterator[Place]:
    for name, other in _variants(net).items():
        yield Place(name, Parts(other.head(shape), other.body(shape), other.tail(shape, classes)))


def _variants(net: Net) -> dict[str, Net]:
    """A reference network is cut where its options say; each value of one that can be typed."""
    hints = get_type_hints(type(net))
    known: dict[str, Net] = {}
    for field in fields(net):  # type: ignore[arg-type]
        if field.name in OPTIONS and get_origin(hints[field.name]) is Literal:
            for value in get_args(hints[field.name]):
                try:
                    other: Any = replace(net, **{field.name: value})  # type: ignore[type-var]
                except ValueError:  # options that do not go together
                    continue
                known[f"{field.name}={value}"] = other
    return known or {"as it is": net}


def _of_layers(net: CutAtLayers, shape: Shape, classes: int | None, inside_blocks: bool) -> Iterator[Place]:
    model = net.model(shape, classes)
    if net.back is not None:
        find_layer(model, net.back)
    levels = _levels(model, "", inside_blocks, in_block=False)
    found = {one.name: one for names in levels for one in _of_level(net, model, names, shape)}
    order = {name: turn for turn, name in enumerate(_finished(net, model, shape))}
    yield from sorted(found.values(), key=lambda one: order.get(one.name, len(order)))


def _finished(net: CutAtLayers, model: nn.Module, shape: Shape) -> list[str]:
    """The modules in the order in which they are done with their work; those that never run are not there."""
    twin, done = copy.deepcopy(model).to("meta").eval(), list[str]()
    for name, module in twin.named_modules():
        module.register_forward_hook(lambda *_, name=name: done.append(name))  # type: ignore[misc]
    with (
        torch.no_grad(),
        torch.device("meta"),
        suppress(Exception),
    ):  # a user's code; then in the order of their names
        net.call(twin, torch.empty(1, *shape))
    return done


def _levels(module: nn.Module, name: str, inside_blocks: bool, in_block: bool) -> Iterator[list[str]]:
    """Names of modules that are no part of each other, so that one reading of the model has them all."""
    row = isinstance(module, nn.Sequential) and not in_block
    if name and not (inside_blocks or row or any(map(_is_stack, module.modules()))):
        return
    prefix = f"{name}." if name else ""
    children = {f"{prefix}{child}": inner for child, inner in module.named_children()}
    if children:
        yield [*children]
    for inner_name, inner in children.items():
        yield from _levels(inner, inner_name, inside_blocks, in_block or _is_stack(module))


def _is_stack(module: nn.Module) -> bool:
    """Whether the children of a module are blocks, one behind the other: each is a place, and not what is in it."""
    if isinstance(module, nn.ModuleList):
        return True
    kinds = [type(layer) for layer in module.children()]
    alike = len(kinds) > 1 and len(set(kinds)) == 1 and kinds[0] is not nn.Sequential
    return isinstance(module, nn.Sequential) and alike and any(list(one.children()) for one in module.children())


def _of_level(net: CutAtLayers, model: nn.Module, names: list[str], shape: Shape) -> Iterator[Place]:
    modules = dict(model.named_modules(remove_duplicate=False))
    back = [] if net.back is None else [modules[net.back]]
    names = [
        name
        for name in names
        if not f"{net.back}.".startswith(f"{name}.") and not isinstance(modules[name], nn.ModuleList)
    ]
    try:
        graph = read_forward(model, [*(modules[name] for name in names), *back], tuple(shape), net.call)
    except ValueError as error:
        for name in names:
            yield Place(name, None, str(error))
        return
    for name in names:
        try:
            yield Place(name, cut_graph(model, graph, name, net.back))
        except ValueError as error:
            yield Place(name, None, _short(str(error), name))


def _short(error: str, name: str) -> str:
    """The reason alone: the name stands beside it."""
    return error.removeprefix(f"cannot cut after {name!r}: ").partition(", and exactly one")[0]
