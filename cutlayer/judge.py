"""The judge: holds the truth, shows an attack only what it may know, and says what its pictures are worth."""

import copy
import time
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .attacks import Attack, Decoder, Knowledge
from .batch import Batch
from .data.base import Parts
from .engines.local import LocalRun, as_batch
from .lpips import LPIPS
from .message import Kind, Message
from .metrics import scores
from .parties import build_client, freeze
from .plan import Plan, cut_shapes
from .seeds import derive, generator, seeded
from .split import Split
from .turn import load

CONTROL_MARGIN = 0.1  # NCC above the class-mean image that an attack must reach on the unguarded cut
CONSTANT = 1e-3  # standard deviation across reconstructions below which they are all the same picture

Scores = dict[str, float | None]


class Victim:
    """One client at the end of training: what it would send now for some of its private images, and the truth."""

    def __init__(self, run: LocalRun, images: int, client: int = 0):
        self.run, self.client = run, run.clients[client]
        if run.shared:
            load(self.client, run.shared)
        samples = run.samples[client]
        pick = torch.randperm(len(samples), generator=generator(run.plan.seed))[:images]
        self.y = samples.y[pick]
        self.truth = samples.images(pick.to(samples.y.device))
        self.box = WhiteBox(self.client.split, run.plan.batch)
        # In train mode, batch by batch, as the server saw them; the last short batch joins the one before.
        secret = derive(run.plan.private_seed or 0, "observed")
        self.messages = [
            Message(
                Kind.FORWARD,
                client,
                step,
                {"z": self.box.send(as_batch(samples, index, derive(secret, step)))},
            )
            for step, index in enumerate(_even(pick, run.plan.batch))
        ]

    @property
    def seen(self) -> Tensor:
        return torch.cat([message["z"] for message in self.messages])


class WhiteBox:
    """The client's head and guard, copied: images and labels to what would be sent. Holds no data of the client."""

    def __init__(self, split: Split, batch: int):
        self.split, self.batch = copy.deepcopy(split), batch
        self.split.tail = torch.nn.Identity()
        freeze(self.split)

    @torch.no_grad()
    def send(self, batch: Batch) -> Tensor:
        return self.split.train().send(batch)

    def __call__(self, images: Tensor, labels: Tensor) -> Tensor:
        rows = torch.arange(len(images), device=images.device)
        return torch.cat(
            [self.send(Batch(images[i], labels[i], seed=n)) for n, i in enumerate(_even(rows, self.batch))]
        )


def _even(index: Tensor, size: int) -> list[Tensor]:
    """Chunks of `size`, or a little more: BatchNorm needs every batch to be about as large as in training."""
    return list(index.tensor_split(max(1, len(index) // size)))


def judge(
    attack: Attack, victim: Victim, data: Parts, seed: int, lpips: LPIPS | None = None
) -> tuple[dict[str, Any], Tensor]:
    """One attack on one victim: the figures of a table row, and the pictures."""
    run, device = victim.run, victim.truth.device
    cut = cut_shapes(run.plan, run.task)
    undo = run.plan.guard.public_part().undo(cut.shared, derive(run.plan.seed, "guard"))
    knowledge = Knowledge(
        aux=data.aux.images().to(device),
        aux_labels=data.aux.y.to(device),
        encode=victim.box,
        undo=undo.to(device) if undo is not None else None,
    )
    began = time.perf_counter()
    with seeded(derive(seed, "attack", repr(attack)), device):
        attacker = attack.attacker(knowledge.only(attack.needs), derive(seed, "attacker"))
        guess = attacker.reconstruct(victim.messages)
    seconds = time.perf_counter() - began
    figures = scores(victim.truth, guess, lpips)
    row = {
        "attack": repr(attack),
        "knows": attack.knows(),
        "seed": seed,
        "n": len(victim.truth),
        **figures,
        "metric": "ssim",
        "value": figures["ssim"],
        "chance": None,
        "seconds": round(seconds, 2),
        **attacker.remarks(),
    }
    return row, guess.cpu()


def floors(victim: Victim, data: Parts, seed: int, lpips: LPIPS | None = None) -> dict[str, Scores]:
    """What no attack at all would score: a picture must beat these to have come from the messages."""
    truth, aux = victim.truth, data.aux.images().to(victim.truth.device)
    labels = data.aux.y.to(truth.device)
    class_means = torch.stack(
        [aux[labels == c].mean(0) if (labels == c).any() else aux.mean(0) for c in range(victim.run.task.classes)]
    )
    guesses = {
        "blank": torch.zeros_like(truth),
        "mean": aux.mean(0).expand_as(truth),
        "class_mean": class_means[victim.y.to(truth.device)],
        "unaligned": _unaligned(victim, data, seed),
    }
    return {name: scores(truth, guess, lpips) for name, guess in guesses.items()}


def _unaligned(victim: Victim, data: Parts, seed: int) -> Tensor:
    """A decoder trained on a head that is not the victim's: what decoding alone gives without alignment."""
    run = victim.run
    stranger_plan = replace(run.plan, private_seed=derive(seed, "a stranger's head"))
    stranger = build_client(stranger_plan, run.task, 0, lambda message: message, run.device)
    knowledge = Knowledge(
        aux=data.aux.images().to(victim.truth.device),
        aux_labels=data.aux.y.to(victim.truth.device),
        encode=WhiteBox(stranger.split, run.plan.batch),
    )
    with seeded(derive(seed, "unaligned"), victim.truth.device):
        return Decoder(steps=150, readers=("conv", "mlp")).attacker(knowledge, seed).reconstruct(victim.messages)


def why_control_failed(attack: Attack, row: dict[str, Any], class_mean: Scores, plan: Plan) -> str | None:
    """Why the positive control failed; None: the attack works on the unguarded cut."""
    if row["recon_std"] < CONSTANT:
        return "on the unguarded cut it returned the same picture for every image"
    bar = attack.bar(repr(plan.data), repr(plan.net))
    metric, least = bar or ("ncc", (class_mean["ncc"] or 0.0) + CONTROL_MARGIN)
    if row[metric] < least:
        return f"on the unguarded cut it reached {metric} {row[metric]:.3f}, below its bar of {least:.3f}"
    return None


def why_invalid(row: dict[str, Any], control: str | None) -> str | None:
    if control is not None:
        return f"the attack failed its control: {control}"
    if row["recon_std"] < CONSTANT:
        return "the attack failed: it returned the same picture for every image, which says nothing about the guard"
    return None
