"""What training costs a client in memory, by purpose: counted, not sampled."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from ...core.batch import Batch, Task, made_up
from ...core.features import Features, features
from ...core.guard import GuardModule
from ...core.message import Handler, Kind, Message
from ...core.remote import Remote
from ...core.seeds import generator
from ..build import build_client
from ..labels import label_shape
from ..plan.plan import Plan
from ..plan.roles import Role
from ..plan.shapes import cut_shapes
from ..step import ClientNetwork, feed

PURPOSES = ("parameters", "gradients", "optimizer", "activations", "working")
MODES = {
    "active": "learns",
    "checkpointed": "learns, and computes the head's activations again for the backward pass",
    "frozen": "runs forward only",
}
ON_TOP = "while backward runs, gradients of activations come on top, and what libraries work with in any case"
Bytes = dict[str, int]
Held = dict[int, Tensor]  # by address; a freed storage could lend its address to the next, so all are kept


def client_memory(client: ClientNetwork, batch: Batch, u: tuple[int, ...], mode: str = "active") -> Bytes:
    """Bytes one step needs: parameters, gradients, optimizer state, activations kept for backward.

    `working` is what goes into the largest layer and comes out of it, kept or not. The step runs on a copy against a
    server that answers zeros of shape `u`: nothing is learnt or sent.
    """
    if mode not in MODES:
        raise ValueError(f"a client is {', '.join(MODES)}; got {mode!r}")
    split, learns = copy.deepcopy(client.split).train(), mode != "frozen"
    remote = Remote(client.number, far_away(batch, u, split.guard.fan_out))
    parameters = list(split.parameters())
    trained = [parameter for parameter in parameters if parameter.requires_grad] if learns else []
    weights = {_address(tensor) for tensor in [*parameters, *split.buffers()]}
    apart = any(isinstance(one, GuardModule) and one.takes_gradients_apart for one in split.guard.modules())
    with _layers_of(split, weights) as layers:
        if not learns:
            kept = _total(_saved(lambda: feed(ClientNetwork(client.number, split, None, remote), batch), weights))
        else:
            if mode == "checkpointed":
                split.head = _Checkpointed(split.head, weights)
            kept = _total(_saved(lambda: split.terms(batch, remote), weights))
            if isinstance(split.head, _Checkpointed):
                kept += split.head.again
    return {
        "parameters": _bytes(parameters),
        "gradients": _bytes(trained) * (1 + len(batch) if apart else 1),
        "optimizer": _optimizer_state(client.optimizer, trained) if learns else 0,
        "activations": kept,
        "working": max(layers, default=0),
    }


def layer_bytes(client: ClientNetwork, batch: Batch, u: tuple[int, ...]) -> list[int]:
    """Of each call of a layer in one step, in their order: what goes in and comes out. The largest is `working`."""
    split = copy.deepcopy(client.split).train()
    remote = Remote(client.number, far_away(batch, u, split.guard.fan_out))
    weights = {_address(tensor) for tensor in [*split.parameters(), *split.buffers()]}
    with torch.no_grad(), _layers_of(split, weights) as layers:
        split.terms(batch, remote)
    return layers


def total(sizes: Bytes) -> int:
    """All of it; what a layer works with is mostly among what is kept, so only the larger of the two counts."""
    kept = sum(sizes[name] for name in PURPOSES[:3])
    return kept + max(sizes["activations"], sizes["working"])


def breakdown(plan: Plan, task: Task) -> dict[str, Bytes]:
    """The memory of one client of a plan in every mode there is; any weights and any inputs will do."""
    client = build_client(replace(plan, private_seed=0), task, 0, lambda message: message)
    batch = made_up_batch(plan, task)
    u = cut_shapes(plan, task).u
    modes = [mode for mode in MODES if mode != "frozen" or plan.protocol.crosses]
    found = {mode: client_memory(client, batch, u, mode) for mode in modes}
    if plan.rounds.ahead:
        found["active"]["activations"] = _kept_ahead(client, batch, u)
    return found


def made_up_batch(plan: Plan, task: Task) -> Batch:
    """A batch of a plan as its data could have it: what is counted of it hangs on its shapes alone."""
    labels = label_shape(plan, task)
    y = torch.arange(plan.batch_size) % task.classes
    return Batch(
        made_up(task, plan.batch_size, generator(0)),
        y.reshape(-1, *[1] * len(labels)).expand(-1, *labels).contiguous(),
        {name: torch.arange(plan.batch_size) % values for name, values in task.attributes.items()},
    )


def _kept_ahead(client: ClientNetwork, batch: Batch, u: tuple[int, ...]) -> int:
    """Of the step and its copies of the weights, or of two batches before the cut, whichever is more."""
    split = copy.deepcopy(client.split).train()
    remote = Remote(client.number, far_away(batch, u, split.guard.fan_out))
    whole = _total(_saved(lambda: split.terms(batch, remote), set()))
    return max(whole, 2 * _total(_saved(lambda: split.guarded(batch), set())))


def by_role(plan: Plan, task: Task) -> dict[str, Bytes]:
    """The same of the roles that clients of this plan have."""
    roles = plan.roles.at(0, plan.clients, plan.seed)
    found = breakdown(plan, task)
    return {role.value: found[role.value] for role in (Role.ACTIVE, Role.FROZEN) if role in roles}


# ------------------------------------------------------------------------------ counting
def _saved(run: Callable[[], Any], weights: set[int]) -> Held:
    """The tensors that autograd keeps of what `run` does, weights apart."""
    held: Held = {}

    def keep(tensor: Tensor) -> Tensor:
        if _address(tensor) not in weights:
            held[_address(tensor)] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        alive = run()
    del alive
    return held


class _Checkpointed(nn.Module):
    """A head that keeps the inputs of its segments alone, and runs a segment again when its gradients are due.

    A head is a chain of its children; of all ways to cut it into segments of about one length (Chen et al. 2016) the
    one that needs least is taken. `again` is what the largest segment keeps when it runs for the second time.
    """

    def __init__(self, head: nn.Module, weights: set[int]):
        super().__init__()
        self.parts = list(head.children()) if type(head) is nn.Sequential else [head]
        self.weights, self.again = weights, 0

    def forward(self, x: Tensor) -> Any:
        inputs, held = [x], list[Held]()
        for part in self.parts:
            held.append(_saved(lambda part=part: inputs.append(part(inputs[-1])), self.weights))  # type: ignore[misc]
        ways = [self._cut(inputs, held, count) for count in range(1, len(held) + 1)]
        kept, self.again = min(ways, key=lambda way: _total(way[0]) + way[1])
        z, beside = features(inputs[-1])
        z = _Keeps.apply(z, *kept.values())  # type: ignore[no-untyped-call]
        return Features(z, beside) if beside else z

    def _cut(self, inputs: list[Tensor], held: list[Held], count: int) -> tuple[Held, int]:
        """(inputs kept, bytes of the largest segment beside them) with so many segments."""
        ends = [round(len(held) * place / count) for place in range(count + 1)]
        kept = {_address(inputs[end]): inputs[end].detach() for end in ends[:-1]}
        again = []
        for first, last in pairwise(ends):
            segment = {place: tensor for one in held[first:last] for place, tensor in one.items()}
            again.append(_total({place: tensor for place, tensor in segment.items() if place not in kept}))
        return kept, max(again)


class _Keeps(torch.autograd.Function):
    """Stands for the head in the graph; keeps these tensors for backward, which never comes."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, *kept: Tensor) -> Tensor:
        ctx.save_for_backward(*kept)
        return z.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise NotImplementedError


@contextmanager
def _layers_of(split: nn.Module, weights: set[int]) -> Iterator[list[int]]:
    """Bytes that go into and come out of one layer at a time, call by call: no forward pass is without the most."""
    calls = list[int]()

    def look(module: nn.Module, given: tuple[Any, ...], found: Any) -> None:
        calls.append(_total({_address(t): t for t in _tensors((given, found)) if _address(t) not in weights}))

    hooks = [module.register_forward_hook(look) for module in split.modules() if not list(module.children())]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


def _tensors(value: Any) -> Iterator[Tensor]:
    """Those in it: layers that go along a sequence give tuples of them."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for one in value:
            yield from _tensors(one)


def far_away(batch: Batch, u: tuple[int, ...], fan_out: int = 1) -> Handler:
    """A server of which a client sees nothing but answers: zeros, for samples like those of `batch`."""
    sent: dict[int, Tensor] = {}  # by step: pieces of a batch are in flight at once

    def answer(message: Message) -> Message:
        if message.kind is Kind.BACKWARD:
            return message.reply(dz=torch.zeros_like(sent.pop(message.step)))
        sent[message.step] = message["z"]
        if message.kind is Kind.LOSS:
            return message.reply(loss=message["z"].new_zeros(()))
        return message.reply(u=message["z"].new_zeros(fan_out * len(message["z"]), *u))

    return answer


def _optimizer_state(optimizer: torch.optim.Optimizer | None, trained: list[nn.Parameter]) -> int:
    """What it carries from step to step; where no step was made, what it will carry after one."""
    if optimizer is None:
        return 0
    if not optimizer.state:
        optimizer = type(optimizer)(trained, **optimizer.defaults)
        for parameter in trained:
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
    return _bytes([v for entry in optimizer.state.values() for v in entry.values() if isinstance(v, Tensor)])


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _total(held: Held) -> int:
    return sum(tensor.untyped_storage().nbytes() for tensor in held.values())


def _bytes(tensors: list[Tensor] | list[nn.Parameter]) -> int:
    return sum(tensor.element_size() * prod(tensor.shape) for tensor in tensors)
