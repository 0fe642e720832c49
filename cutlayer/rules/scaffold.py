"""SCAFFOLD (Karimireddy et al. 2020, Alg. 1, option II): control variates that cancel what pulls clients apart."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..core.lost_numbers import finite
from ..core.plan_view import PlanView
from .base import CONTROL, NET, STAT, Update, check_number
from .parts.correction import Correction, add_to_gradient
from .parts.merging import Merging, State, like

OWN = "own."


@dataclass(frozen=True, repr=False)
class Scaffold(Merging):
    """FedAvg of clients whose gradients are corrected by c − cᵢ: the mean client's direction, less their own.

    `share` is the share of all clients that a round hears (|S|/N); a run of a plan sets it round by round. Clients
    count once each, not by samples: only then is c the mean of all cᵢ. The clients' cᵢ are estimated from how far
    they moved, (x − yᵢ)/(K · lr), which is their mean gradient under plain SGD only: SGD(momentum=0) for them. An
    update that the server leaves out has moved its client's cᵢ all the same.
    """

    travels: ClassVar[tuple[str, ...]] = (NET, STAT, CONTROL)

    lr: float = 1.0
    share: float = 1.0

    def __post_init__(self) -> None:
        check_number(self, "lr", 0, inf, fix=" (1: the mean itself)")
        if not isinstance(self.share, int | float) or not 0 < self.share <= 1:
            raise ValueError(f"Scaffold: share is that of the clients in a round, in (0, 1]; got {self.share!r}")

    def __call__(self, current: Mapping[str, Tensor], updates: Sequence[Update]) -> State:
        after = super().__call__(current, updates)
        if not updates:
            return after
        for name, now in current.items():
            control = CONTROL + name.removeprefix(NET)
            moves = [update.state[control] for update in updates if control in update.state]
            if name.startswith(NET) and (moves or control in current):
                c = current[control].double() if control in current else torch.zeros_like(now, dtype=torch.float64)
                for move in moves:  # a client that brings none has not changed its own
                    c = c + move.to(c) * (self.share / len(updates))
                after[control] = like(now, c)
        return after

    def refuse_unfit_plan(self, plan: PlanView) -> None:
        super().refuse_unfit_plan(plan)
        if plan.rounds.own_bodies and plan.protocol.crosses:
            raise ValueError(
                f"{self!r} remembers something of every client, and clients' bodies are the server's: "
                "take rounds=SplitFed(version=2), or protocol=Federated()"
            )
        if not plan.client_optimizer.plain:
            raise ValueError(
                f"{self!r} tells a client's gradient from how far it moved, as in plain descent: take "
                f"client_optimizer=SGD(momentum=0.0), not {plan.client_optimizer!r}"
            )

    def refuse_unfit_state(self, state: Mapping[str, Tensor]) -> None:
        for name, tensor in state.items():
            if name.startswith(CONTROL):
                of = state.get(NET + name.removeprefix(CONTROL))
                if of is None or (of.shape, of.dtype) != (tensor.shape, tensor.dtype):
                    raise ValueError(f"{name!r}, which is nothing of this rule's")

    def among(self, heard: int, clients: int) -> "Scaffold":
        return replace(self, share=heard / clients)

    def shares(self, current: Mapping[str, Tensor], updates: Sequence[Update]) -> list[float]:
        super().shares(current, updates)  # refuses a round without samples
        return [1 / len(updates)] * len(updates)

    def step(self, name: str, now: Tensor, g: Tensor, current: Mapping[str, Tensor]) -> State:
        return {NET + name: like(now, now.double() - self.lr * g)}

    def correction(self) -> Correction:
        return ControlVariate()


class ControlVariate(Correction):
    """One client's cᵢ, kept from one of its turns to the next."""

    def __init__(self) -> None:
        self._own: State = {}  # c_i, once there is one
        self._all: State = {}  # c, as the order brought it
        self._began: State = {}  # x

    def start(self, parameters: Mapping[str, nn.Parameter], state: Mapping[str, Tensor]) -> None:
        self._began = {name: p.detach().clone() for name, p in parameters.items() if p.requires_grad}
        self._all = {
            name: state[CONTROL + name].to(began) if CONTROL + name in state else torch.zeros_like(began)
            for name, began in self._began.items()
        }
        self._own = {
            name: self._own[name].to(began) if name in self._own else torch.zeros_like(began)
            for name, began in self._began.items()
        }

    def adjust(self, parameters: Mapping[str, nn.Parameter]) -> None:
        for name in self._began:
            add_to_gradient(parameters[name], self._all[name] - self._own[name])

    def brought(self, parameters: Mapping[str, nn.Parameter], steps: int, lr: float) -> State:
        """How cᵢ changes: cᵢ⁺ − cᵢ = (x − yᵢ)/(K · lr) − c."""
        if steps < 1 or lr <= 0:
            return {}
        moves = {
            name: (began - parameters[name].detach()) / (steps * lr) - self._all[name]
            for name, began in self._began.items()
        }
        # An update that is not finite is rejected whole; remembering it would spoil this client for good.
        if not all(map(finite, moves.values())):
            return {}
        self._own = {name: self._own[name] + move for name, move in moves.items()}
        return {CONTROL + name: move for name, move in moves.items()}

    def tensors(self) -> State:
        return {OWN + name: tensor.clone() for name, tensor in self._own.items()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self._own = {name.removeprefix(OWN): t.clone() for name, t in tensors.items() if name.startswith(OWN)}
