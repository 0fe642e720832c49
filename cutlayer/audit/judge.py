"""The judge: holds the truth, shows an attack only what it may know, and says what its pictures are worth."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
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
from ..metrics.bootstrap import RECOGNISED
from ..metrics.images import CHUNK, FIGURES, scores, ssim_either
from ..metrics.lpips import LPIPS
from ..metrics.recognition import identified
from .eye import named as class_named
from .kinds import KINDS, in_its_words
from .knowledge import after_training
from .passes import Linking, links_right
from .refusal import refusals
from .row_scores import spread, worth
from .rows import Remarks, Row, Scores, shown
from .uncertainty import intervals, sampled
from .victim import Observed, Victim, uploads

WORST = 10  # samples that are shown because they were read best
MEASURED = Row.__annotations__.keys() - Remarks.__annotations__.keys()  # what no attacker says of itself
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
    this victim's training, where the attack is an active one. Who lacks something for its work raises `NotTried`.
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
        with refusals(attack, ValueError):
            attacker = attacker or attack.attacker(knowledge, derive(seed, "attacker", again))
        with refusals(attack):
            figures, pictures = _scorer(attack, victim, data)(attack, attacker, victim, lpips)
    kind = KINDS[victim.run.task.kind]
    row = {
        "attack": repr(attack),
        "plain": repr(attack.base()),
        "form": getattr(attack, "knows", ""),
        "secret": kind.secret if attack.secret == "images" else attack.secret,
        "target": getattr(attack, "attribute", ""),
        "knows": [in_its_words(kind, told) for told in (*attack.in_words(), *([NAMED] if attack.clusters else []))],
        "ceiling": attack.ceiling(victim.run.plan.guard),
        "white_box": attack.white_box,
        "below_default": attack.below_default(),
        "seed": seed,
        "tries": again + 1,
        "n": len(victim.truth),
        **figures,
        "seconds": round(time.perf_counter() - began, 2),
        **_remarks(attack, attacker),
    }
    row["interval"] = intervals({**row, "guard": shown(victim.run.plan.guard)})
    return cast(Row, row), pictures  # figures and remarks are known by name only; a test compares them


def _remarks(attack: Attack, attacker: Attacker) -> dict[str, object]:
    """What an attacker says of itself: never what the judge measures, and all of it can be written down."""
    said = attacker.remarks()
    if taken := sorted(said.keys() & MEASURED):
        raise ValueError(f"{attack}: remarks() names {', '.join(taken)}, which the judge measures: take another name")
    for name, value in said.items():
        try:
            json.dumps(value)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{attack}: remarks() has {name}, which is a {type(value).__name__} that no file can hold: use "
                "numbers, words, and lists of these"
            ) from error
    return said


Scored = tuple[Mapping[str, Any], Tensor | None]
NO_PICTURE: Scores = dict.fromkeys(FIGURES)


def _images(attack: Attack, attacker: Attacker, victim: Victim, lpips: LPIPS | None) -> Scored:
    forward = uploads(victim.messages)
    guess = attacker.reconstruct(forward)
    if not attack.each_sample:
        guess = for_each_sample(guess, forward, victim.rows)
    lost = ~guess.isfinite().flatten(1).all(1)
    guess = torch.where(lost[:, None, None, None], 0.0, guess)
    figures = scores(victim.truth, guess, lpips)
    near: dict[str, Any] = _likeness(attacker, victim, forward) if isinstance(attacker, Substituting) else {}
    if isinstance(attacker, Linking) and not attack.each_sample:
        near["links_right"] = links_right(attacker, victim)
    each_image = torch.cat(
        [ssim_either(a, b.clamp(0, 1)) for a, b in zip(victim.truth.split(CHUNK), guess.split(CHUNK), strict=True)]
    )
    best = each_image.sort(descending=True, stable=True).indices[:WORST].tolist()
    told = {
        "metric": "ssim",
        "value": figures["ssim_either"],
        "chance": None,
        "broken": int(lost.sum()),
        "above_half": float((each_image > RECOGNISED).double().mean()),
        "worst": [[number, round(float(each_image[number]), 4)] for number in best],
        "sampled": sampled(each_image, victim.units),
    }
    return {**figures, **told, **_recognised(victim, guess), **near}, guess.cpu()


def _recognised(victim: Victim, guess: Tensor) -> dict[str, Any]:
    """What a bad picture may still give away: which private image it is, and of which class."""
    own = identified(victim.gallery, guess)
    found: dict[str, Any] = {
        "identified": float(own.mean()),
        "identified_chance": 1 / len(victim.gallery),
        "identified_each": sampled(own, victim.units),
    }
    seen = class_named(victim.run.parts, victim.truth, guess, victim.y)
    if seen is not None:
        found |= {"class_named": seen.reconstructions, "class_originals": seen.originals, "class_chance": seen.chance}
    return found


def _rows(data: Parts, attack: Attack, attacker: Attacker, victim: Victim, lpips: LPIPS | None) -> Scored:
    """Records of a table, or series."""
    forward, kind = uploads(victim.messages), KINDS[victim.run.task.kind]
    heard = victim.messages if attack.whole_steps else forward
    guess = for_each_sample(attacker.reconstruct(heard), forward, victim.rows).to(victim.truth)
    lost = ~guess.isfinite().flatten(1).all(1)
    guess = guess.nan_to_num(0.0, 0.0, 0.0)
    figures, each_row = worth(victim.truth, guess, data, victim.units)
    near = _likeness(attacker, victim, forward) if isinstance(attacker, Substituting) else {}
    best = each_row.sort(descending=True, stable=True).indices[:WORST].tolist()
    told = {
        "metric": kind.metric,
        "value": figures[kind.statistics["value"]],
        "chance": None,
        "broken": int(lost.sum()),
        "recon_std": spread(victim.truth, guess),
        "above_half": float((each_row > RECOGNISED).double().mean()),
        "worst": [[number, round(float(each_row[number]), 4)] for number in best],
        "sampled": sampled(each_row, victim.units),
    }
    return {**NO_PICTURE, **figures, **told, **near}, guess.cpu()


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
    if len(own) != len(theirs):
        return {}  # a head for each row, and samples that share one
    return {
        "feature_mse": float((own - theirs).square().mean()),
        "feature_cosine": float(cosine_similarity(own, theirs).mean()),
    }


def _values(attack: Attack, attacker: Attacker, victim: Victim, lpips: LPIPS | None) -> Scored:
    """Labels or an attribute: how often right, against always naming the commonest value."""
    truth = victim.y if attack.secret == "labels" else victim.s[attack.attribute]  # type: ignore[attr-defined]
    forward = uploads(victim.messages)
    found = for_each_sample(_one_each(attacker.infer(victim.messages)), forward, victim.rows).to(truth.device)
    chance = float(truth.bincount().max() / len(truth))
    if attack.clusters:
        found, by_naming = named(found, truth)
        chance = max(chance, by_naming)
    right = (found == truth).double()
    told = {"metric": "accuracy", "value": float(right.mean()), "chance": chance, "broken": 0}
    return {**NO_PICTURE, **told, "sampled": sampled(right, victim.units)}, None


def _membership(attack: Attack, attacker: Attacker, victim: Victim, lpips: LPIPS | None) -> Scored:
    """Scores of members against those of strangers (test samples): the area under the ROC curve."""
    sides, broken = [], 0
    own, others = Observed(victim.messages, victim.rows, victim.units), victim.strangers()
    for messages, rows, _ in (own, others):
        side = for_each_sample(_one_each(attacker.infer(messages)), uploads(messages), rows).double()
        broken += int(side.isnan().sum())
        sides.append(side.nan_to_num())
    members, strangers = sides
    wins = (members[:, None] > strangers[None]).double() + 0.5 * (members[:, None] == strangers[None]).double()
    told = {"metric": "auc", "value": float(wins.mean()), "chance": 0.5, "broken": broken}
    # Ranks tell as much as the scores, and survive being rounded.
    ranks = torch.cat(sides).unique(return_inverse=True)[1].double().split([len(members), len(strangers)])
    drawn = {"sampled": sampled(ranks[0], own.units), "strangers": sampled(ranks[1], others.units)}
    return {**NO_PICTURE, **told, **drawn}, None


_SCORED: dict[str, Callable[[Attack, Attacker, Victim, LPIPS | None], Scored]] = {
    "images": _images,
    "labels": _values,
    "attribute": _values,
    "membership": _membership,
}


def _scorer(
    attack: Attack, victim: Victim, data: Parts
) -> Callable[[Attack, Attacker, Victim, LPIPS | None], Scored]:
    rebuilds_rows = attack.secret == "images" and victim.run.task.kind != "images"
    return partial(_rows, data) if rebuilds_rows else _SCORED[attack.secret]


def _one_each(found: Tensor) -> Tensor:
    if found.numel() != len(found):
        raise ValueError(
            f"infer gives a tensor {tuple(found.shape)}, and one number for each row is asked for: of the scores of "
            "classes take argmax(1)"
        )
    return found.reshape(-1)


def for_each_sample(found: Tensor, messages: Sequence[Message], rows: Sequence[Tensor | None]) -> Tensor:
    """Where samples shared a row, what was found for it is the attacker's answer for each of them."""
    sizes = [len(message["z"]) for message in messages]
    if len(found) != sum(sizes):
        raise ValueError(f"the attack gives {len(found)} answers for the {sum(sizes)} rows that were sent: one each")
    pieces = found.split(sizes)
    return torch.cat([each(piece, index) for piece, index in zip(pieces, rows, strict=True)])
