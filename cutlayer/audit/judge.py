"""The judge: holds the truth, shows an attack only what it may know, and says what its pictures are worth."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from ..attacks import Attack, Attacker
from ..attacks.labels import named
from ..core.message import Message
from ..core.outside import plain
from ..core.seeds import derive, seeded
from ..core.split import each
from ..data.base import Parts
from ..metrics.images import FIGURES, scores
from ..metrics.lpips import LPIPS
from .knowledge import after_training
from .rows import Row, Scores
from .victim import Victim, uploads

NAMED = "which class each group is that it sorted samples into (the judge names them as fits best)"


def judge(
    attack: Attack,
    victim: Victim,
    data: Parts,
    seed: int,
    lpips: LPIPS | None = None,
    again: int = 0,
    attacker: Attacker | None = None,
) -> tuple[Row, Tensor | None]:
    """One attack on one victim: the figures of a table row, and the pictures where the attack makes some.

    `again` counts repetitions with other random numbers of the attacker's. `attacker` is the one that took part in
    this victim's training, where the attack is an active one.
    """
    if attack.active and attacker is None:
        raise ValueError(f"{attack} takes part in the training: what is over cannot be hijacked, run an audit")
    knowledge = after_training(victim, data)
    if "private" in attack.needs:
        knowledge = replace(knowledge, private=victim.given_away(attack.private_share))  # type: ignore[attr-defined]
    knowledge = knowledge.only(attack.needs)
    victim = victim.fewer(attack.most_images)
    began = time.perf_counter()
    with seeded(derive(seed, "attack", plain(attack), again), victim.truth.device):
        attacker = attacker or attack.attacker(knowledge, derive(seed, "attacker", again))
        figures, pictures = _SCORED[attack.secret](attack, attacker, victim, lpips)
    row = {
        "attack": repr(attack),
        "plain": repr(attack.base()),
        "form": getattr(attack, "knows", ""),
        "secret": attack.secret,
        "knows": [*attack.in_words(), *([NAMED] if attack.clusters else [])],
        "ceiling": attack.ceiling(victim.run.plan.guard),
        "seed": seed,
        "tries": again + 1,
        "n": len(victim.truth),
        **figures,
        "seconds": round(time.perf_counter() - began, 2),
        **attacker.remarks(),
    }
    return cast(Row, row), pictures  # figures and remarks are known by name only; a test compares them


Scored = tuple[Mapping[str, Any], Tensor | None]
NO_PICTURE: Scores = dict.fromkeys(FIGURES)


def _images(attack: Attack, attacker: Attacker, victim: Victim, lpips: LPIPS | None) -> Scored:
    forward = uploads(victim.messages)
    guess = for_each_sample(attacker.reconstruct(forward), forward, victim.rows)
    figures = scores(victim.truth, guess, lpips)
    near = _likeness(attacker, victim, forward) if isinstance(attacker, Substituting) else {}
    return {**figures, "metric": "ssim", "value": figures["ssim"], "chance": None, **near}, guess.cpu()


@runtime_checkable
class Substituting(Protocol):
    """An attacker with a head of its own in the client's place: what it would send, and what the client did send, in
    one space."""

    def features(self, images: Tensor) -> Tensor: ...

    def read(self, messages: Sequence[Message]) -> Tensor: ...


@torch.no_grad()
def _likeness(attacker: Substituting, victim: Victim, forward: Sequence[Message]) -> dict[str, float]:
    """How near a substitute's rows are to the client's for the same private images, which only the judge can say."""
    theirs = for_each_sample(attacker.read(forward), forward, victim.rows).flatten(1)
    own = attacker.features(victim.truth.to(theirs)).flatten(1)
    return {
        "feature_mse": float((own - theirs).square().mean()),
        "feature_cosine": float(cosine_similarity(own, theirs).mean()),
    }


def _values(attack: Attack, attacker: Attacker, victim: Victim, lpips: LPIPS | None) -> Scored:
    """Labels or an attribute: how often right, against always naming the commonest value."""
    truth = victim.y if attack.secret == "labels" else victim.s[attack.attribute]  # type: ignore[attr-defined]
    forward = uploads(victim.messages)
    found = for_each_sample(attacker.infer(victim.messages), forward, victim.rows).to(truth.device)
    chance = float(truth.bincount().max() / len(truth))
    if attack.clusters:
        found, by_naming = named(found, truth)
        chance = max(chance, by_naming)
    right = float((found == truth).double().mean())
    return {**NO_PICTURE, "metric": "accuracy", "value": right, "chance": chance}, None


def _membership(attack: Attack, attacker: Attacker, victim: Victim, lpips: LPIPS | None) -> Scored:
    """Scores of members against those of strangers (test samples): the area under the ROC curve."""
    sides = []
    for messages, rows in ((victim.messages, victim.rows), victim.strangers()):
        sides.append(for_each_sample(attacker.infer(messages), uploads(messages), rows).double().flatten())
    members, strangers = sides
    wins = (members[:, None] > strangers[None]).double() + 0.5 * (members[:, None] == strangers[None]).double()
    return {**NO_PICTURE, "metric": "auc", "value": float(wins.mean()), "chance": 0.5}, None


_SCORED: dict[str, Callable[[Attack, Attacker, Victim, LPIPS | None], Scored]] = {
    "images": _images,
    "labels": _values,
    "attribute": _values,
    "membership": _membership,
}


def for_each_sample(found: Tensor, messages: Sequence[Message], rows: Sequence[Tensor | None]) -> Tensor:
    """Where samples shared a row, what was found for it is the attacker's answer for each of them."""
    pieces = found.split([len(message["z"]) for message in messages])
    return torch.cat([each(piece, index) for piece, index in zip(pieces, rows, strict=True)])
