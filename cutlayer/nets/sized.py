"""Stand-ins for tensors that know their sizes while a forward is traced, so that code may read them.

The batch stays open; every other size is that of the input a network is built for. What hangs on sizes alone (a row
of positions, a mask) is no data: each part of a cut model can work it out by itself.
"""

import copy
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, Node, Proxy, Tracer
from torch.fx.node import map_arg

Shape = tuple[int, ...]
ROWS_ARE_SAMPLES = "rows are samples"
_UNKNOWN = object()
# They make tensors out of sizes; torch calls them without asking whether an argument is a stand-in.
_MAKERS = ("arange", "zeros", "ones", "full", "empty", "eye", "linspace", "tril", "triu")


def batch_of(x: Tensor) -> int:
    return x.shape[0]


def device_of(x: Tensor) -> torch.device:
    return x.device


class Sizes:
    """What each node of a trace would be for a batch of so many samples: shapes without numbers."""

    def __init__(self, model: nn.Module, shape: Shape, batch: int):
        self.batch = batch
        self.busy = False  # a module that runs here is not being traced
        self._twin = copy.deepcopy(model).to("meta")
        self._input = torch.empty(batch, *shape, device="meta")
        self._known: dict[Node, Any] = {}

    def note(self, node: Node) -> None:
        self.busy = True
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]), torch.device("meta"):
                self._known[node] = self._run(node)
        except Exception:  # a user's code; without a size the trace goes on as it would have
            self._known[node] = _UNKNOWN
        finally:
            self.busy = False

    def of(self, node: Node) -> Any:
        """The value of a node, with tensors on no device; None: not known."""
        value = self._known.get(node, _UNKNOWN)
        return None if value is _UNKNOWN else value

    def are_samples(self, value: Tensor) -> bool:
        return value.shape[0] == self.batch

    def _run(self, node: Node) -> Any:
        if node.op == "placeholder":
            return self._input
        if node.op == "get_attr":
            return operator.attrgetter(str(node.target))(self._twin)
        args, kwargs = map_arg(node.args, self._value), map_arg(node.kwargs, self._value)
        if node.op == "call_module":
            return self._twin.get_submodule(str(node.target))(*args, **kwargs)
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        if node.target is device_of:
            return torch.device("meta")
        assert callable(node.target)
        return node.target(*args, **kwargs)

    def _value(self, node: Node) -> Any:
        if self._known.get(node, _UNKNOWN) is _UNKNOWN:
            raise LookupError(node.name)
        return self._known[node]


class SizedProxy(Proxy):
    """A stand-in whose sizes are numbers, but for the batch."""

    def __init__(self, node: Node, tracer: Tracer, sizes: Sizes):
        super().__init__(node, tracer)
        self.__dict__["_sizes"] = sizes

    def _tensor(self) -> Tensor | None:
        value = self._sizes.of(self.node)
        return value if isinstance(value, Tensor) else None

    @property
    def shape(self) -> Any:
        known = self._tensor()
        if known is None or not known.dim():
            return self.__getattr__("shape")
        rows = self._read(batch_of)
        # Where samples were folded into other rows, only this very tensor can be asked.
        rows.node.meta[ROWS_ARE_SAMPLES] = self._sizes.are_samples(known)
        return (rows, *known.shape[1:])

    def size(self, dim: int | None = None) -> Any:
        known = self._tensor()
        if known is None or not known.dim():
            return self.tracer.create_proxy("call_method", "size", (self,) if dim is None else (self, dim), {})
        return self.shape if dim is None else self.shape[dim]

    @property
    def ndim(self) -> Any:
        known = self._tensor()
        return self.__getattr__("ndim") if known is None else known.dim()

    def dim(self) -> Any:
        known = self._tensor()
        return self.tracer.create_proxy("call_method", "dim", (self,), {}) if known is None else known.dim()

    @property
    def dtype(self) -> Any:
        known = self._tensor()
        return self.__getattr__("dtype") if known is None else known.dtype

    @property
    def device(self) -> Any:
        return self.__getattr__("device") if self._tensor() is None else self._read(device_of)

    def _read(self, reader: Callable[[Tensor], Any]) -> Any:
        return self.tracer.create_proxy("call_function", reader, (self,), {})


@contextmanager
def sizes_make_tensors(tracer: Tracer) -> Iterator[None]:
    """torch.arange and its like, given a stand-in, become part of the graph."""
    with torch.device("meta"):
        torch.empty(0)  # torch lists its makers at the first use of a device, and must not find ours
    before = {name: getattr(torch, name) for name in _MAKERS}

    def recorded(make: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(make)
        def call(*args: Any, **kwargs: Any) -> Any:
            if any(isinstance(one, Proxy) for one in _flat([*args, *kwargs.values()])):
                return tracer.create_proxy("call_function", make, args, kwargs)
            return make(*args, **kwargs)

        return call

    try:
        for name, make in before.items():
            setattr(torch, name, recorded(make))
        yield
    finally:
        for name, make in before.items():
            setattr(torch, name, make)


def _flat(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, tuple | list):
            yield from _flat(value)
        else:
            yield value


READS_SIZES_ONLY = (
    "reads_sizes_only"  # a module with this attribute takes of its inputs where they lie and their type
)


def nothing_like(x: Tensor, dtype: torch.dtype) -> Tensor:
    """No numbers, on the device of x."""
    return torch.empty(0, device=x.device, dtype=dtype)


def padding_of(ids: Any, pad: int) -> Any:
    """The mask of a text, true where a token is no padding. In a graph it is a step of its own, by which a cut knows
    what may cross beside z."""
    if isinstance(ids, Proxy):
        return ids.tracer.create_proxy("call_function", padding_of, (ids, pad), {})
    return ids != pad


def made_from(graph: Graph, source: Node, free: set[Node]) -> set[Node]:
    """Nodes that follow from one node, and from what is `free` of data, alone."""
    found: set[Node] = set()
    for node in graph.nodes:
        known, inputs = found | {source}, set(node.all_input_nodes)
        if node.op in ("call_function", "call_method") and inputs & known and inputs <= known | free:
            found.add(node)
    return found


def free_of_data(graph: Graph) -> set[Node]:
    """Nodes that follow from the batch size and the device alone; they are the same on every side of a cut."""
    free: set[Node] = set()
    for node in graph.nodes:
        reads = node.target in (device_of, nothing_like) or bool(node.meta.get(ROWS_ARE_SAMPLES))
        computes = node.op in ("call_function", "call_method") or bool(node.meta.get(READS_SIZES_ONLY))
        computes = computes and bool(node.all_input_nodes)
        if reads or (computes and all(source in free for source in node.all_input_nodes)):
            free.add(node)
    return free
