"""What a reconstruction scores that follows from no message: the floors that an attack must beat."""

from dataclasses import replace

import torch
from torch import Tensor

from ..attacks import Decoder
from ..core.seeds import derive, seeded
from ..data.base import Parts
from ..metrics.images import CHUNK, scores
from ..metrics.lpips import LPIPS
from ..metrics.recognition import identified
from ..training.build import build_client
from .knowledge import after_training
from .row_scores import figures_of
from .rows import Floors
from .text_floors import commonest, commonest_of_class, likeliest
from .text_floors import nearest as nearest_text
from .victim import Victim, WhiteBox, ends_still

# Made without any message. (The unaligned decoder reads them, so what it gets is leakage, not a floor.)
BLIND = ("blank", "mean", "class_mean", "prior")


def blind_guess(floors: Floors, figure: str = "ssim_either") -> float:
    """The best guess that needs no message, in one of the figures; at least 0, which is what nothing is worth."""
    found = (floors[name].get(figure, floors[name].get("ssim")) for name in BLIND if name in floors)
    return max([0.0, *(value for value in found if value is not None)])


def floors(victim: Victim, data: Parts, seed: int, lpips: LPIPS | None = None) -> Floors:
    """What no attack at all would score: a reconstruction must beat these to have come from the messages."""
    if not len(data.aux):
        raise ValueError(
            "there are no auxiliary images, so no guess to compare with: set some aside (--aux-samples N)"
        )
    truth, aux = victim.truth, data.aux.images().to(victim.truth.device)
    if victim.run.task.kind == "texts":
        return _of_texts(victim, data, aux, seed)
    pictures = truth.dim() == 4
    guesses = {"blank": torch.zeros_like(truth)} if pictures else {"nearest": nearest(truth, aux)}
    guesses["mean"] = aux.mean(0).expand_as(truth)
    if victim.y.dim() == 1:  # where every pixel has a class, an image has none
        guesses["class_mean"] = _class_means(aux, data.aux.y.to(truth.device), victim)
    guesses["unaligned"] = _unaligned(victim, data, seed)
    if not pictures:
        return {name: figures_of(truth, guess, data) for name, guess in guesses.items()}
    return {
        name: {**scores(truth, guess, lpips), "identified": float(identified(truth, guess).mean())}
        for name, guess in guesses.items()
    }


def _of_texts(victim: Victim, data: Parts, aux: Tensor, seed: int) -> Floors:
    """The commonest word of every place stands for a mean; `prior` is what a model of the language would write."""
    truth, task = victim.truth, victim.run.task
    guesses = {"nearest": nearest_text(truth, aux), "mean": commonest(aux).expand_as(truth)}
    if victim.y.dim() == 1:
        guesses["class_mean"] = commonest_of_class(aux, data.aux.y.to(truth.device), task.classes, victim.y)
    guesses["prior"] = likeliest(aux).expand_as(truth)
    guesses["unaligned"] = _unaligned(victim, data, seed)
    return {name: figures_of(truth, guess, data) for name, guess in guesses.items()}


def nearest(truth: Tensor, aux: Tensor) -> Tensor:
    """For each of the victim's the auxiliary one that is most like it. Only the judge can pick it: it shows how well
    a stranger's would do, and is no blind guess."""
    spread = aux.flatten(1).std(0).clamp_min(1e-6)
    distances = [torch.cdist(some.flatten(1) / spread, aux.flatten(1) / spread) for some in truth.split(CHUNK)]
    return aux[torch.cat(distances).argmin(1)]


def _class_means(aux: Tensor, labels: Tensor, victim: Victim) -> Tensor:
    """For each of the victim's images the mean auxiliary image of its class."""
    means = [aux[labels == c].mean(0) if (labels == c).any() else aux.mean(0) for c in range(victim.run.task.classes)]
    return torch.stack(means)[victim.y.to(labels.device)]


def _unaligned(victim: Victim, data: Parts, seed: int) -> Tensor:
    """A decoder trained on a head that is not the victim's: what decoding alone gives without alignment."""
    run = victim.run
    stranger_plan = replace(run.plan, private_seed=derive(seed, "a stranger's head"))
    stranger = build_client(stranger_plan, run.task, 0, lambda message: message, run.device)
    box = WhiteBox(stranger.split, run.plan.batch_size, ends_still(run.plan))
    knowledge = replace(after_training(victim, data), encode=box, undo=None)
    decoder = Decoder(steps=150, readers=("conv", "mlp"))
    with seeded(derive(seed, "unaligned"), victim.truth.device):
        return decoder.attacker(knowledge.only(decoder.needs), seed).reconstruct(victim.messages)
