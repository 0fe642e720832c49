"""The first weights of a run: one client brings them and all others start from them, so they are held to the plan.

Later ones are compared with those before. Of the first the server knows what a network of this plan is like.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..core.batch import Task
from ..core.errors import OffPlan
from ..core.message import Message
from ..core.seeds import derive
from ..core.state import State, optimizer_state
from ..rules.base import NET, OPTIMIZER, SEAL, STAT
from .build import build_client
from .moves import groups, length
from .plan.plan import Plan
from .seals import NAME, Seal
from .step import ClientNetwork, export

FARTHEST = 8.0  # times as long as before, or as with numbers of size 1, whichever is more, a tensor may come
GUARD = (f"{NET}guard.", f"{STAT}guard.")  # of a guard there may be more at the client than the server knows of


class _Like(NamedTuple):
    """A network of this plan that was drawn anew, without its numbers."""

    state: State  # shapes and types alone
    optimizer: State  # as it is after a step
    lengths: dict[str, float]


class FirstWeights:
    """What a client of a plan may bring first."""

    def __init__(self, plan: Plan, task: Task):
        """`plan`: the public part will do."""
        # Whose numbers they are does not matter: only how long they are is looked at.
        self._plan, self._task = replace(plan, private_seed=derive(plan.seed, "like")), task
        self._known: dict[int, _Like] = {}

    def why_not(self, client: int, weights: Mapping[str, Tensor], sealed: bool) -> str:
        """Why these are none of the plan's; empty if they are. `sealed`: clients seal what others start from."""
        like = self._like(client)
        own = {name: t for name, t in weights.items() if name.startswith((NET, STAT)) and not name.startswith(GUARD)}
        expected = like.state
        if not self._plan.rounds.merges:
            expected = expected | self._fitting(like.optimizer, weights)
            own |= {name: t for name, t in weights.items() if name.startswith(OPTIMIZER)}
        others = weights.keys() - own.keys() - {name for name in weights if name.startswith(GUARD)}
        if extra := sorted(others - ({NAME} if sealed else set())):
            return f"{extra[0]} is nothing that a client brings in this plan"
        if sealed and (why := _no_seal(weights)):
            return why
        return _unlike(expected, own) or too_long(own, like.lengths)

    def _fitting(self, whole: State, weights: Mapping[str, Tensor]) -> State:
        """An optimizer's state is there or not, parameter by parameter, and there as a whole. Where a guard that the
        server does not know has parameters, too, nobody here can say which are whose: any of its names will do."""
        if any(name.startswith(GUARD) for name in weights):
            return {name: t.to("meta") for name, t in weights.items() if name.startswith(OPTIMIZER)}
        there = {_place(name) for name in weights if name.startswith(OPTIMIZER)}
        return {name: t for name, t in whole.items() if _place(name) in there}

    def _like(self, client: int) -> _Like:
        alike = not self._plan.unequal_ranks and self._plan.guarded_clients is None
        client = 0 if alike else client
        if client not in self._known:
            network = build_client(self._plan, self._task, client, _nobody)
            state = {name: t for name, t in export(network, optimizer=False).items() if not name.startswith(GUARD)}
            forms = {name: t.to("meta") for name, t in state.items()}
            self._known[client] = _Like(forms, self._stepped(network), lengths(state))
        return self._known[client]

    def _stepped(self, network: ClientNetwork) -> State:
        """The forms of what its optimizer keeps, from a step on copies that leads nowhere."""
        if self._plan.rounds.merges:
            return {}
        copies = [nn.Parameter(p.detach().clone(), p.requires_grad) for p in network.split.parameters()]
        optimizer = self._plan.client_optimizer.build(copies)
        if optimizer is None:
            return {}
        for parameter in copies:
            parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
        optimizer.step()
        return {name: t.to("meta") for name, t in optimizer_state(optimizer).items()}


def too_long(weights: Mapping[str, Tensor], before: Mapping[str, float]) -> str:
    """Which of these weights have numbers beyond reason, after such `lengths` before; empty if none has.

    It need not be NaN to be the end of whoever goes on from it. What trains only, and no guard's: statistics are of
    the size of what was measured.
    """
    for group, names in _kernels(weights).items():
        usual = max(before.get(group, 0.0), sum(weights[name].numel() for name in names) ** 0.5)
        if (found := length(weights, names)) > FARTHEST * usual:
            beyond = f"{group} is {found:.3g} long, more than {FARTHEST:g} times {usual:.3g}"
            return f"{beyond}: its numbers, or a rate, are too large"
    return ""


def lengths(weights: Mapping[str, Tensor]) -> dict[str, float]:
    """How long each kernel is, and all biases together."""
    return {group: length(weights, names) for group, names in _kernels(weights).items()}


def _kernels(weights: Mapping[str, Tensor]) -> dict[str, list[str]]:
    return groups({name: t for name, t in weights.items() if name.startswith(NET) and not name.startswith(GUARD)})


def _unlike(expected: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> str:
    if missing := sorted(expected.keys() - found.keys()):
        return f"{missing[0]} is missing"
    if extra := sorted(found.keys() - expected.keys()):
        return f"{extra[0]} is unknown in this plan"
    for name, tensor in found.items():
        if (tensor.shape, tensor.dtype) != (expected[name].shape, expected[name].dtype):
            like = f"{expected[name].dtype} of {tuple(expected[name].shape)}"
            return f"{name} is {tensor.dtype} of {tuple(tensor.shape)}, not {like}"
    return ""


def _no_seal(weights: Mapping[str, Tensor]) -> str:
    """Whether it is good only clients can tell; one that cannot be read is none."""
    if NAME not in weights:
        return f"{SEAL}… is missing: clients seal the weights that others start from"
    try:
        Seal.read(weights[NAME])
    except OffPlan:
        return f"{NAME} is no seal"
    return ""


def _place(name: str) -> str:
    return ".".join(name.split(".", 2)[:2])


def _nobody(message: Message) -> Message:
    raise AssertionError("this network is looked at, and asks nothing")
