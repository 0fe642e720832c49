"""A client does not believe its server: what it orders and what it answers is looked at before anything is done."""

from collections.abc import Mapping
from typing import Any

import torch

from ...core.batch import Task
from ...core.errors import ProtocolError
from ...core.lost_numbers import finite
from ...core.message import Kind, Message
from ...nets.base import scores_shape
from ...rules.base import OPTIMIZER
from ...training.client import Client
from ...training.growing_text import GROWS
from ...training.loop import BEST
from ...training.orders import numbers, weights_in
from ...training.plan.plan import Plan
from ...training.plan.shapes import cut_shapes
from ...training.step import export
from ...training.suspicion import COUNTS, Suspicion
from ...wire import frames
from . import certs
from .session import Frame


def suspicion_of(plan: Plan, identity: certs.Identity | None, number: int, batches: int) -> Suspicion | None:
    """Without certificates, on one machine, there is no key that the server does not have."""
    if identity is None or not plan.hands_on or plan.unequal_ranks:
        return None  # what has several ranks the server cuts to size for each: no seal survives that
    if identity.weights is None:
        raise ValueError(
            f"there is no {certs.WEIGHTS_KEY} in this client's folder of certificates, by which clients know "
            "each other's weights: `cutlayer certs` with the same names adds it; copy the folder again"
        )
    return Suspicion(plan, number, batches, identity.weights)


def refuse_wrong_order(order: Message, plan: Plan, client: Client) -> None:
    """A server may order what the plan says and no more: own heads stay at home, and no others are put in."""
    weights = weights_in(order)
    what = {Kind.TURN: "turn", Kind.WEIGHTS: "turn", Kind.EVALUATE: "what"}.get(order.kind, "number")
    known = {COUNTS} if plan.rounds.merges and order.kind is Kind.WEIGHTS else set()
    if set(order.tensors) - known != {what, *weights}:
        raise ProtocolError(f"{order} carries {sorted(order.tensors)[:4]}; {what!r} was expected")
    if not plan.hands_on and (weights or order.kind is Kind.WEIGHTS):
        raise ProtocolError(f"{order} is about weights, and in this plan every client keeps its own")
    if weights and order.kind not in (Kind.WEIGHTS, Kind.EVALUATE, Kind.END):
        raise ProtocolError(f"{order} brings weights that were not asked for")
    own = export(client.network) if weights else {}
    net = _form(weights, "net.", "stat.")
    if net != _form(own, "net.", "stat."):
        raise ProtocolError(f"{order} brings weights of another network")
    try:
        plan.rule.refuse_unfit_state(weights)
    except ValueError as error:
        raise ProtocolError(f"{order} brings {error}") from error
    optimizer = client.network.optimizer
    kept = [p for group in optimizer.param_groups for p in group["params"]] if optimizer is not None else []
    for name in (name for name in weights if name.startswith(OPTIMIZER)):
        _, place, _ = (*name.split(".", 2), "", "")[:3]
        of = kept[int(place)] if place.isdecimal() and int(place) < len(kept) else None
        if of is None or weights[name].shape not in (of.shape, ()):
            raise ProtocolError(f"{order} brings {name!r}, which is nothing of this optimizer's")
    if any(t.is_floating_point() and not finite(t) for t in order.tensors.values()):
        raise ProtocolError(f"{order} brings weights that hold NaN or infinity")
    if what == "turn":
        epoch, first, end, frozen = numbers(order, what, 4)
        if not 0 <= epoch < plan.epochs:
            raise ProtocolError(f"{order} is of an epoch the plan does not have")
        if frozen not in (0, 1) or (frozen and first < end and not plan.roles.freezes):
            raise ProtocolError(f"{order} freezes a client of a plan in which all are active")
    if order.kind is Kind.KEEP and numbers(order, what, 1)[0] < BEST:
        raise ProtocolError(f"{order}: snapshots are numbered from 0")


def answered_shape(plan: Plan, task: Task) -> tuple[int, ...]:
    """The shape of one row that the server sends back: features, or logits where it has the classifier."""
    return (
        cut_shapes(plan, task).u
        if plan.protocol.labels_stay_home
        else scores_shape(plan.net, task.shape, task.classes)
    )


def decoded(frame: Frame, limit: int) -> Message:
    """A message of the server."""
    try:
        return frames.decode(frame, limit, in_place=True)
    except frames.WireError as error:
        raise ProtocolError(f"the server sent what cannot be read: {error}") from error


def refuse_wrong_answer(
    asked: Message,
    reply: Message,
    row: tuple[int, ...],
    crossed: tuple[int, ...] = (),
    forward_only: bool = False,
    fan_out: int = 1,
) -> None:
    """A server is not believed either: another step, another shape, or numbers that are none.

    Its half of the guard makes `fan_out` rows of each that left.
    """
    if (reply.kind, reply.client, reply.step) != (asked.kind, asked.client, asked.step):
        raise ProtocolError(f"the server answered {asked} with {reply}")
    if asked.kind is Kind.LIFT:
        _refuse_wrong_lift(asked, reply)
        return
    if asked.kind is Kind.BACKWARD:
        if forward_only:
            if reply.tensors:
                raise ProtocolError(f"the server answered {asked} with {sorted(reply.tensors)[:4]}; frozen: nothing")
            return
        name, shape = "dz", crossed
    elif asked.kind is Kind.LOSS:
        name, shape = "loss", ()
    else:
        # To a reference the rows come back that were referred to: the labels they are compared with have as many.
        rows = fan_out * len(asked["z"]) if "z" in asked.tensors else len(reply.tensors.get("u", ()))
        name, shape = "u", (rows, *row)
        if GROWS in asked.tensors:
            if not reply.tensors:  # the server has this text no longer
                return
            shape = (rows, asked["z"].shape[1], *row[1:])
    if set(reply.tensors) != {name}:
        raise ProtocolError(f"the server answered {asked} with {sorted(reply.tensors)[:4]}; {name} was expected")
    tensor = reply[name]
    if tuple(tensor.shape) != shape or tensor.dtype != torch.get_default_dtype():
        raise ProtocolError(f"the server answered {asked} with {name} of {tensor.dtype}, {tuple(tensor.shape)}")
    if not finite(tensor):
        raise ProtocolError(f"the server answered {asked} with {name} that holds NaN or infinity")


def _refuse_wrong_lift(asked: Message, reply: Message) -> None:
    """A copy of the server's half of a guard, or nothing where it was replaced. Its shapes the guard compares."""
    if bool(reply.tensors) == bool(asked.tensors) or not all(name.startswith("lift.") for name in reply.tensors):
        raise ProtocolError(f"the server answered {asked} with {sorted(reply.tensors)[:4]}")
    if any(t.is_floating_point() and not finite(t) for t in reply.tensors.values()):
        raise ProtocolError(f"the server answered {asked} with weights that hold NaN or infinity")


def _form(state: Mapping[str, torch.Tensor], *kinds: str) -> dict[str, Any]:
    return {name: (t.shape, t.dtype) for name, t in state.items() if name.startswith(kinds)}
