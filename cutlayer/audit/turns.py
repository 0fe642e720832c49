"""Turns of one batch as a server sees them that hands weights on: the messages, and the weights before and after."""

import copy

from torch import Tensor

from ..attacks.base import Turn
from ..core.message import Kind, Message
from ..core.seeds import derive
from ..core.server import Server
from ..core.state import load_optimizer
from ..training.batches import as_batch
from ..training.build import build_client, freeze
from ..training.plan.plan import Plan
from ..training.step import export, learn, load
from .victim import Victim, _even, _order


def why_no_turns(plan: Plan) -> str | None:
    """Why the gradient of a single batch is nowhere to be seen in such a training; None: it is."""
    if not plan.hands_on or not plan.client_parts_train:
        return "here no client's weights pass through the server's hands as they learn"
    if plan.local_steps != 1 or plan.micro_batches != 1:
        return "here a turn has several batches or pieces, whose gradients are added up (local_steps=1 has one)"
    return None


def turns_of(victim: Victim) -> list[Turn]:
    """For the samples that are judged, batch by batch: a turn of the client, each from the weights it has now."""
    run, number = victim.run, victim.network.number
    plan = run.plan
    body = copy.deepcopy(run.server.body)
    freeze(body)
    heard: list[tuple[Message, Message]] = []
    server = Server(body, None, seed=plan.seed)

    def listen(message: Message) -> Message:
        heard.append((message, answer := server.handle(message)))
        return answer

    # Built anew: what a guard has hooked to an optimizer is lost in a copy of it.
    network = build_client(plan, run.task, number, listen, run.device)
    start = export(victim.network, optimizer=not plan.rounds.fresh)
    shown = not plan.rounds.merges  # where rounds merge, the optimizer's state stays home
    secret, turns = derive(plan.private_seed or 0, "judged"), []
    pick = _order(run, number)[: len(victim.truth)]
    for place, index in enumerate(_even(pick, plan.batch_size)):
        load(network, start)
        load_optimizer(network.optimizer, start)
        before = export(network, optimizer=shown)
        learn(network, as_batch(run.samples[number], index, derive(secret, place)).to(run.device))
        turns.append(Turn(*_up_and_back(heard), before, export(network, optimizer=shown)))
        heard.clear()
    return turns


def _up_and_back(heard: list[tuple[Message, Message]]) -> tuple[Message, Tensor]:
    """What was sent of a batch, and the gradient that the server answered it with."""
    upload = next(message for message, _ in heard if message.kind in (Kind.FORWARD, Kind.LOSS))
    return upload, next(answer["dz"] for message, answer in heard if message.kind is Kind.BACKWARD)
