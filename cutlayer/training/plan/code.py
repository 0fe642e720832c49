"""Which code from outside the package a plan is made of: what the text of a plan does not say."""

import functools
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from hashlib import sha256
from typing import Any

import torch
from torch import nn

from ...core.outside import is_outside, written
from ...core.outside.source import Source, called, source_of
from ...core.spec import Spec
from ...nets.at_layers import CutAtLayers
from ...nets.base import Net
from ...nets.own import Own
from ...nets.text_blocks import Positions

# A network from outside says what its parameters are called where it is given an input. Which shape that is hangs on
# data that a server never sees, so both sides take the first of these that the network reads.
SHAPES = ((1, 28, 28), (3, 32, 32), (3, 64, 64), (3, 224, 224), (1, 12, 12), (1, 128), (16,), (64,), (784,))


def outside(value: Any) -> dict[str, Source]:
    """By the name it is written with: every class and function from outside that a spec, or what is in it, has."""
    return {name: _source(thing) for name, thing in sorted(_found(value), key=lambda one: one[0])}


def _found(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, tuple | list):
        for one in value:
            yield from _found(one)
    elif isinstance(value, Spec):
        if is_outside(type(value)):
            yield written(type(value)), type(value)
        if isinstance(value, Own) and isinstance(value.make, str):
            yield from _found(value.factory)
        for one in fields(value) if is_dataclass(value) else ():
            yield from _found(getattr(value, one.name))
    elif callable(value) and not (isinstance(value, type) and not is_outside(value)):
        yield called(value), value


def _source(thing: Any) -> Source:
    try:
        return _known(thing)
    except TypeError:  # a partial over a list is not hashable
        return source_of(thing)


_known = functools.lru_cache(maxsize=256)(source_of)  # what was imported does not change


def refuse_other_code(before: Mapping[str, str], now: Mapping[str, str], where: str) -> None:
    """`before` is what `where` says of the code it was made with. Paths may differ, digests may not."""
    then, here = ({name.rpartition(":")[2]: digest for name, digest in one.items()} for one in (before, now))
    for name, digest in then.items():
        if here.get(name, digest) != digest:
            raise ValueError(
                f"{where} was made with another source of {name} (digest {digest}; here it is {here[name]}): bring "
                "that one back, or start a new run"
            )


def net_parts(net: Net) -> dict[str, str]:
    """Of each part of a network how many parameters and buffers it has, and a digest of names, shapes and dtypes."""
    try:
        return _known_parts(net)
    except TypeError:
        return _parts(net)


def embeddings(net: Net, crosses: bool = True) -> tuple[str, ...]:
    """The tables of words and of places among a network's parameters, as clients and server name them.

    Where nothing crosses, head and body are the two parts of the client's head.
    """
    names = {} if crosses else {"head": "head.0", "body": "head.1"}
    return tuple(
        ".".join(filter(None, (names.get(part, part), name, "weight")))
        for part, module in _modules(net).items()
        for name, inner in module.named_modules()
        if isinstance(inner, nn.Embedding | nn.EmbeddingBag | Positions)
    )


def _parts(net: Net) -> dict[str, str]:
    return {name: _signature(module) for name, module in _modules(net).items()}


_known_parts = functools.lru_cache(maxsize=32)(_parts)


def _modules(net: Net) -> dict[str, nn.Module]:
    """Head, body and tail without their numbers; none where no shape is known that the network reads."""
    if isinstance(net, CutAtLayers):
        return _cut_modules(net)
    shape = usual_shape(net)
    if shape is None:
        return {}
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        # How many classes there are is the data's to say, too.
        return {"head": net.head(shape), "body": net.body(shape), "tail": net.tail(shape, 10)}


def usual_shape(net: Net) -> tuple[int, ...] | None:
    """A shape of inputs that a network reads; None: nothing tells."""
    if isinstance(net, CutAtLayers):
        return net.usual_shape()
    return next((one for one in SHAPES if _reads(net, one)), None)


def _cut_modules(net: CutAtLayers) -> dict[str, nn.Module]:
    """The same of a model that may need no shape to be cut, and is made for a number of classes."""
    for shape in (net.usual_shape(), *SHAPES):
        with suppress(ValueError), torch.random.fork_rng(devices=[]), torch.device("meta"):
            return net.parts(shape)._asdict()
    return {}


def _reads(net: Net, shape: tuple[int, ...]) -> bool:
    try:
        with torch.random.fork_rng(devices=[]):
            net.check(shape)
            with torch.device("meta"):
                net.head(shape), net.body(shape)
    except Exception:  # whatever a user's network raises at an input it was not made for
        return False
    return True


def _signature(module: nn.Module) -> str:
    state = {name: f"{tuple(tensor.shape)} {tensor.dtype}" for name, tensor in module.state_dict().items()}
    return f"{len(state)} tensors, {sha256(repr(state).encode()).hexdigest()[:12]}"
