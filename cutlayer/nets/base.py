"""What a network is here: three parts that are built apart, and figures that need no weights and no data."""

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from ..core.features import Form, features
from ..core.plan_view import PlanView
from ..core.spec import Spec

Shape = tuple[int, ...]  # one sample: the batch dimension is left out everywhere
NOTHING: Mapping[str, Form] = {}


class Net(Spec, ABC):
    """A network in three parts. `shape` is always the shape of the network's input, e.g. `(1, 28, 28)`.

    Each method builds its own part and nothing else: a server never holds a head, a client never a body.
    """

    # Where head and body have the parameter names of a published checkpoint: the name of the tail in it ("" if the
    # tail's own names are the published ones, too). None: there is no such checkpoint.
    tail_name: ClassVar[str | None] = None
    unread: ClassVar[tuple[str, ...]] = ()  # beginnings of names in that checkpoint which no part here has
    # Where a published network is part of this one: what its names begin with here. Its own file fills it alone.
    backbone: ClassVar[str] = ""

    @abstractmethod
    def head(self, shape: Shape) -> nn.Module:
        """The client's first layers: input to `z`."""

    def head_of(self, client: int, shape: Shape) -> nn.Module:
        """One client's first layers, where devices differ: as many as it can."""
        return self.head(shape)

    @abstractmethod
    def body(self, shape: Shape) -> nn.Module:
        """The server's layers: `z` to `u`."""

    @abstractmethod
    def tail(self, shape: Shape, classes: int) -> nn.Module:
        """The last layers, on the client in the U shape: `u` to one score a class (and pixel, in segmentation)."""

    def in_tokens(self, shape: Shape) -> bool:
        """Whether `z` is (tokens, features), as attention has it, and not (channels, places)."""
        return False

    @abstractmethod
    def check(self, shape: Shape) -> None:
        """Raise ValueError if the network cannot take inputs of this shape."""

    def check_vocabulary(self, vocabulary: int) -> None:
        """Raise ValueError if the network cannot take inputs that are token ids, so many; 0: that are amounts."""
        return

    def refuse_unfit_plan(self, plan: PlanView) -> None:
        """A ValueError where a plan cannot have this network; before anything is built."""

    def written(self, parts: Mapping[str, nn.Module]) -> Mapping[str, nn.Module]:
        """These parts as a file of weights has them."""
        return parts


class Shapes(NamedTuple):
    """What crosses the cut, one sample: the head's output and the body's output."""

    z: Shape
    u: Shape


def shapes(net: Net, shape: Shape) -> Shapes:
    """The shapes of `z` and `u`, from a run without storage or arithmetic; draws no random number."""
    return _probe(net, shape)[0]


def beside(net: Net, shape: Shape) -> Mapping[str, Form]:
    """What crosses beside `z`, by name; most networks have nothing there."""
    return _probe(net, shape)[1]


def _probe(net: Net, shape: Shape) -> tuple[Shapes, Mapping[str, Form]]:
    # Many clients ask for those of one network.
    return (_known_forms if hashable(net) else _forms)(net, tuple(shape))


def _forms(net: Net, shape: Shape) -> tuple[Shapes, Mapping[str, Form]]:
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        head, body = net.head(shape).to("meta"), net.body(shape).to("meta")
    z, named = crossing(head, shape)
    return Shapes(z, out_shape(body, z, named)), named


_known_forms = lru_cache(maxsize=8)(_forms)


def crossing(head: nn.Module, shape: Shape) -> tuple[Shape, dict[str, Form]]:
    """What a head makes of one sample: the shape of `z`, and the forms of what is beside it."""
    z, others = features(_one_sample(head, shape))
    return tuple(z.shape[1:]), {name: Form(tuple(t.shape[1:]), t.dtype) for name, t in others.items()}


def hashable(net: Net) -> bool:
    """A network with a list or a dict among its fields is not."""
    try:
        hash(net)
    except TypeError:
        return False
    return True


def scores_shape(net: Net, shape: Shape, classes: int) -> Shape:
    """The shape of one sample's scores: (classes,), or (classes, height, width) where every pixel has some."""
    return (_known_scores if hashable(net) else _scores_shape)(net, tuple(shape), classes)


def _scores_shape(net: Net, shape: Shape, classes: int) -> Shape:
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        tail = net.tail(shape, classes).to("meta")
    return out_shape(tail, shapes(net, shape).u, beside(net, shape))


_known_scores = lru_cache(maxsize=8)(_scores_shape)


def out_shape(module: nn.Module, shape: Shape, beside: Mapping[str, Form] = NOTHING) -> Shape:
    """The shape of one sample after `module`, with these beside it."""
    return tuple(features(_one_sample(module, shape, beside)).z.shape[1:])


def count_parameters(module: nn.Module) -> int:
    """Trained numbers; buffers such as running means are not counted."""
    return sum(parameter.numel() for parameter in module.parameters())


@contextmanager
def counting() -> Iterator[FlopCounterMode]:
    """Counts multiplications and additions. Attention is made of plain products here: torch counts no fused ones."""
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            yield counter
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)


def count_macs(module: nn.Module, shape: Shape, beside: Mapping[str, Form] = NOTHING) -> int:
    """Multiply-accumulates of one sample in convolutions and matrix products, written as modules or not."""
    with counting() as counter:
        _one_sample(module, shape, beside)
    return counter.get_total_flops() // 2  # torch counts the multiplication and the addition


def check_image(name: str, shape: Shape, smallest: int, published: Shape) -> None:
    """Raise unless `shape` is an image of at least `smallest` pixels a side."""
    if len(shape) != 3 or min(shape) < 1 or min(shape[1:]) < smallest:
        others = ". For rows of features take MLP, for (channels, length) SignalNet, for texts TextEncoder"
        raise ValueError(
            f"{name} reads (channels, height, width) of at least {smallest}x{smallest} pixels, "
            f"published for {published}; got {tuple(shape)}{others if len(shape) < 3 else ''}"
        )


def normalise(kind: str, channels: int, *, dims: int = 2, eps: float = 1e-5, momentum: float = 0.1) -> nn.Module:
    """A normalisation layer over `dims` dimensions beside the channels (0 and 1 share one class), or none.

    GroupNorm keeps samples apart, so clients can share one pass of the body.
    """
    if kind == "none":
        return nn.Identity()
    if kind == "group":
        # 32 groups as in Wu & He 2018, or the most that divide both (20 channels: 4 groups).
        return nn.GroupNorm(math.gcd(32, channels), channels)
    return nn.BatchNorm2d(channels, eps, momentum) if dims == 2 else nn.BatchNorm1d(channels, eps, momentum)


def check_choice(name: str, value: object, allowed: tuple[object, ...]) -> None:
    """Raise unless `value` is one of `allowed`; `name` says what it is."""
    if value not in allowed:
        raise ValueError(f"{name} is {' or '.join(map(repr, allowed))}; got {value!r}")


def _one_sample(module: nn.Module, shape: Shape, beside: Mapping[str, Form] = NOTHING) -> Tensor:
    # A copy, in eval mode and without storage: the caller's module keeps its mode, statistics and hooks.
    twin = copy.deepcopy(module).to("meta").eval()
    with torch.no_grad(), torch.device("meta"):
        others = {name: torch.empty(1, *form.shape, dtype=form.dtype) for name, form in beside.items()}
        return twin(torch.empty(1, *shape), **others)
