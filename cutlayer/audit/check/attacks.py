"""Laws of attacks, on an unguarded toy cut."""

import copy
import pickle
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any

import torch
from torch import nn

from ...attacks import Attack, Attacker, Knowledge
from ...attacks.base import IN_WORDS
from ...core.message import Handler, Kind, Message
from ...core.seeds import seeded
from ...engines.local.run import LocalRun
from ...training.laws import TASK, need
from ..hijack import Training, hijack
from ..judge import judge
from ..knowledge import after_training
from ..victim import Victim, uploads
from .toys import Skipped, toy_parts, toy_plan

SECRETS = ("images", "labels", "membership", "attribute")
IMAGES = 16


@dataclass(frozen=True)
class Told(Knowledge):
    """Knowledge that remembers what of it was looked at."""

    looked_at: set[str] = field(default_factory=set)

    def __getattribute__(self, name: str) -> object:
        if name in IN_WORDS:
            object.__getattribute__(self, "looked_at").add(name)
        return object.__getattribute__(self, name)


@cache
def _victim() -> Victim:
    heard: list[Message] = []
    bodies: list[nn.Module] = []

    def listen(message: Message, handle: Handler) -> Message:
        heard.append(message)
        return handle(message)

    run = LocalRun(toy_plan(epochs=1), toy_parts(), classes=TASK.classes, at_server=[listen])
    run.train(on_epoch=lambda: bodies.append(copy.deepcopy(run.server.body)))
    victim = Victim(run, IMAGES)
    victim.bodies = bodies
    victim.history = [message for message in heard if message.kind is not Kind.PREDICT]
    return victim


def _attacker(attack: Attack) -> Attacker:
    _refuse_other_inputs(attack)
    knowledge = after_training(_victim(), _victim().run.parts)
    if "private" in attack.needs:
        private = _victim().given_away(attack.private_share)  # type: ignore[attr-defined]
        knowledge = Knowledge(**{**_all(knowledge), "private": private})
    told = Told(**_all(knowledge.only(attack.needs)))
    try:
        with seeded(0):
            return attack.attacker(told, 0)
    except (TypeError, AttributeError) as error:
        unsaid = sorted(told.looked_at - set(attack.needs))
        if not unsaid:
            raise
        raise AssertionError(
            f"it was not told {', '.join(unsaid)}, looks at it and breaks ({error}): add it to needs, or do without"
        ) from error


def _refuse_other_inputs(attack: Attack) -> None:
    if "images" not in attack.inputs:
        raise Skipped(f"the toys are images, and it reads {' and '.join(attack.inputs)}: try it in an audit of these")


def _all(knowledge: Knowledge) -> dict[str, Any]:
    return {one.name: getattr(knowledge, one.name) for one in fields(Knowledge)}


def says_what_it_knows(attack: Attack) -> None:
    """needs and secret are words that a report can explain"""
    unknown = set(attack.needs) - set(IN_WORDS)
    need(not unknown, f"needs has {', '.join(sorted(unknown))}; there is {', '.join(IN_WORDS)}")
    need(attack.secret in SECRETS, f"secret is {attack.secret!r}; there is {', '.join(SECRETS)}")
    if attack.secret == "attribute":
        need(hasattr(attack, "attribute"), "an attack on an attribute has a field `attribute`")


def needs_what_it_says(attack: Attack) -> None:
    """it works with what is in needs, and nothing else"""
    if attack.active:
        raise Skipped("an active attack is prepared before the training, see the next law")
    _attacker(attack)


def gives_the_right_shape(attack: Attack) -> None:
    """it runs on an unguarded toy cut: a picture in [0, 1], or one finding, for each sample"""
    if attack.secret == "attribute" and getattr(attack, "attribute", "") not in TASK.attributes:
        raise Skipped(f"the toys have no attribute {getattr(attack, 'attribute', '')!r}, only 'odd'")
    if attack.active:
        own = _victim().run
        run, attacker, *_ = hijack(attack, Training(own.plan, own.parts, TASK))
        victim = Victim(run, IMAGES)
    else:
        attacker, victim = _attacker(attack), _victim()
    messages = victim.messages
    if attack.secret == "images":
        found = attacker.reconstruct(uploads(messages))
        need(
            tuple(found.shape) == (IMAGES, *TASK.shape),
            f"{IMAGES} pictures of {TASK.shape} are asked for; reconstruct gives {tuple(found.shape)}",
        )
        need(bool(torch.isfinite(found).all()), "some pixels are no numbers")
        need(bool(found.min() >= 0 and found.max() <= 1), "pictures are in [0, 1]: end with sigmoid or clamp")
    else:
        found = attacker.infer(messages)
        need(len(found) == IMAGES, f"{IMAGES} samples were sent; infer gives {len(found)} findings")


def makes_a_row(attack: Attack) -> None:
    """the judge makes a row of a report of it, the same one twice"""
    _refuse_other_inputs(attack)
    if attack.active or (attack.secret == "attribute" and getattr(attack, "attribute", "") not in TASK.attributes):
        raise Skipped("see the law before")
    state = torch.get_rng_state()
    rows = [judge(attack, _victim(), _victim().run.parts, 0)[0] for _ in range(2)]
    need(
        {**rows[0], "seconds": 0} == {**rows[1], "seconds": 0},
        "twice the same attack gives two results: draw from torch's generator, which is seeded, or from `seed`",
    )
    need(torch.equal(state, torch.get_rng_state()), "it changes the random numbers of the process")


def leaves_the_victim_alone(attack: Attack) -> None:
    """it changes nothing of what it looks at, and a passive one nothing of a training it watches"""
    if attack.active:
        raise Skipped("an active attack answers the client: that is what it is for")
    before = {name: tensor.clone() for name, tensor in _victim().run.tensors().items()}
    attacker = _attacker(attack)
    changed = [name for name, tensor in _victim().run.tensors().items() if not torch.equal(tensor, before[name])]
    need(not changed, f"it changes {changed[0] if changed else ''}: train a copy.deepcopy of what you are given")
    runs = [LocalRun(toy_plan(epochs=1), toy_parts(), classes=TASK.classes, at_server=at) for at in ((), [attacker])]
    for run in runs:
        run.train()
    alone, watched = (run.tensors() for run in runs)
    need(
        all(torch.equal(tensor, watched[name]) for name, tensor in alone.items()),
        "a training that it watches gives other weights: hand on what came, or say active = True",
    )


def can_be_written_down(attack: Attack) -> None:
    """its attacker can be pickled, and finds the same afterwards"""
    if attack.active:
        raise Skipped("an active attacker is never handed on")
    attacker = _attacker(attack)
    again = pickle.loads(pickle.dumps(attacker))
    messages = uploads(_victim().messages) if attack.secret == "images" else _victim().messages
    one, other = (
        (each.reconstruct if attack.secret == "images" else each.infer)(messages) for each in (attacker, again)
    )
    need(torch.equal(one, other), "read back, it finds something else")


LAWS = (
    says_what_it_knows,
    needs_what_it_says,
    gives_the_right_shape,
    makes_a_row,
    leaves_the_victim_alone,
    can_be_written_down,
)
