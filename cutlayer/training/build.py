"""From a plan to the parties: each side is built from what it may know, and never builds the other's part."""

import torch
from torch import nn

from ..core.compressor import compressing
from ..core.features import Chained
from ..core.lost_numbers import refuse_lost_numbers
from ..core.message import Handler
from ..core.remote import Remote
from ..core.seeds import derive, seeded
from ..core.server import Server
from ..core.state import fix
from ..core.state import freeze as freeze
from ..nets.server_network import ServerNetwork
from .bodies import RoundBodies
from .growing_text import keeping_texts
from .lift_exchange import LiftExchange
from .plan.plan import Plan, Task
from .plan.shapes import cut_shapes
from .send_once import keeping
from .step import ClientNetwork


def build_server(plan: Plan, task: Task, device: torch.device | str = "cpu") -> Server:
    """The server's side, from the public part alone: lift, body and, where labels travel, the classifier."""
    cut = cut_shapes(plan, task)
    guard = plan.guard.public_part()
    if not plan.protocol.crosses:  # the server only merges what clients bring
        return Server(nn.Identity(), bodies=RoundBodies(nn.Identity()))
    lift = guard.lift(cut.shared, derive(plan.seed, "guard"))
    with seeded(derive(plan.seed, "body")):
        body = plan.net.body(task.shape)
        tail = None if plan.protocol.labels_stay_home else plan.net.tail(task.shape, task.classes)
    _start_from_file(plan, task, body=body, tail=tail)
    _fix(plan, derive(plan.seed, "adapters"), None, body=body, tail=tail)
    whole = ServerNetwork(body, lift=lift, tail=tail, **plan.protocol.server_parts(cut)).to(device)
    bodies = plan.rounds.bodies(whole, plan.server_optimizer.build, plan.rule)
    return Server(
        whole,
        seed=plan.seed,
        micro_batches=plan.micro_batches,
        bodies=bodies,
        watchers=[
            *([LiftExchange(whole.lift, guard.exchange)] if guard.exchange else []),
            *keeping(plan),
            *compressing(plan.seed, plan.compression),
            *keeping_texts(plan, task, whole),
            *bodies.watchers(),
        ],
    )


def client_secret(plan: Plan, number: int, *names: object) -> int:
    """A seed of one client's own, which no server can compute; without `names` the one the others follow from."""
    if plan.private_seed is None:
        raise ValueError("a client needs a private seed: plan.with_secrets()")
    root = derive(plan.private_seed, "client", number)
    return derive(root, *names) if names else root


def build_remote(plan: Plan, number: int, send: Handler) -> Remote:
    """The server as this client sees it. Where many bring what they learnt, nothing leaves that is not a number."""
    own = derive(plan.private_seed or 0, "client", number)
    smaller = [one.sent for one in compressing(derive(own, "back"), plan.compression)]
    return Remote(number, send, watchers=[*([refuse_lost_numbers] if plan.rounds.merges else []), *smaller])


def build_client(
    plan: Plan, task: Task, number: int, send: Handler, device: torch.device | str = "cpu"
) -> ClientNetwork:
    """One client's side. It never builds the body."""
    if plan.private_seed is None:
        raise ValueError("a client needs a private seed: plan.with_secrets()")
    cut = cut_shapes(plan, task)
    own = derive(plan.private_seed, "client", number)
    spec, body = plan.guard_of(number), None
    guard = spec.build(cut.shared, derive(plan.seed, "guard"), derive(own, "guard"), task)
    with seeded(_start(plan, number, "head")):
        head = plan.net.head_of(number, task.shape)
    with seeded(_start(plan, number, "tail")):
        tail = plan.net.tail(task.shape, task.classes) if plan.protocol.labels_stay_home else None
        if plan.protocol.has_body and not plan.protocol.crosses:
            with seeded(derive(plan.seed, "body")):  # as a server would have it
                body = plan.net.body(task.shape)
        split = plan.protocol.client(head if body is None else Chained(head, body), tail, guard, cut)
    _start_from_file(plan, task, head=head, body=body, tail=tail)
    seed = derive(plan.private_seed, "adapters", 0 if plan.shared_client_network else number)
    _fix(plan, seed, number, head=head, tail=tail)
    _fix(plan, derive(plan.seed, "adapters"), number, body=body)
    _refuse_unwatchable(plan, head)
    split.to(device)
    optimizer = plan.client_optimizer.build(split.parameters())
    if optimizer is not None:
        spec.attach(optimizer, split)
    return ClientNetwork(number, split, optimizer, build_remote(plan, number, send))


def _refuse_unwatchable(plan: Plan, head: nn.Module) -> None:
    """A ValueError where detectors would look at gradients that there are none of."""
    looking = next((one for one in plan.client_detectors if one.reads_gradients), None)
    if looking is not None and not any(parameter.requires_grad for parameter in head.parameters()):
        raise ValueError(
            f"{looking!r} looks at the gradients of the head's first layer, and nothing in the head trains here: "
            "take a network, or adapters, of which the client trains a layer before the cut, or leave it out"
        )


def _start(plan: Plan, number: int, part: str) -> int:
    """The seed that a client's part starts from. Shared heads start alike on every client; own heads do not.

    What is handed on and never changes does not travel, so every client has to make the same: from the public seed.
    Nothing is given away by that, since whatever is handed on goes by way of the server.
    """
    assert plan.private_seed is not None
    if part in plan.fixed_parts and plan.hands_on:
        return derive(plan.seed, part)
    return derive(derive(plan.private_seed, "start", 0 if plan.shared_client_network else number), part)


def _start_from_file(plan: Plan, task: Task, **parts: nn.Module | None) -> None:
    """Fill this side's parts, where a plan names a file."""
    if plan.start is not None:
        plan.start.fill(plan.net, task, {name: part for name, part in parts.items() if part is not None})


def _fix(plan: Plan, seed: int, client: int | None, **parts: nn.Module | None) -> None:
    """Parts that never train, and the adapters on them."""
    for name, part in parts.items():
        if part is None or name not in plan.fixed_parts:
            continue
        if plan.adapters is None:
            fix(part)
        else:
            plan.adapters.put_on(name, part, derive(seed, name), client)
