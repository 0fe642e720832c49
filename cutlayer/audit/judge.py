"""The judge: holds the truth, shows an attack only what it may know, and says what its pictures are worth."""

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import ceil
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

from ..attacks import Attack, Attacker, Decoder, Knowledge, KnownGuard
from ..attacks.base import REQUIRED
from ..attacks.labels import named
from ..core.batch import Batch, Task
from ..core.guard import GuardModule
from ..core.message import Kind, Message
from ..core.remote import Remote
from ..core.seeds import derive, generator, seeded
from ..core.server import Server
from ..core.split import Split, each
from ..data.base import Parts, Samples
from ..engines.local.run import LocalRun, Progress, as_batch
from ..guards.c3 import Unbind
from ..metrics.images import FIGURES, scores
from ..metrics.lpips import LPIPS
from ..training.build import build_client, freeze
from ..training.plan.plan import Plan, cut_shapes
from ..training.step import load
from .detector_trial import DetectorTrial

CONTROL_MARGIN = 0.1  # NCC above the class-mean image that an attack must reach on the unguarded cut
CONTROL_ABOVE_CHANCE = 0.05  # accuracy or AUC above chance that an attack on another secret must reach there
MOST_OBSERVED = 4096  # samples of the victim's data whose messages an attacker may study
NAMED = "which class each group is that it sorted samples into (the judge names them as fits best)"
CONSTANT = 1e-3  # standard deviation across reconstructions below which they are all the same picture

Scores = dict[str, float | None]


class Victim:
    """One client at the end of training: what it would send now for some of its private images, and the truth."""

    def __init__(self, run: LocalRun, images: int, client: int = 0):
        self.run, self.network = run, run.networks[client]
        if run.shared:
            load(self.network, run.shared)
        samples = run.samples[client]
        order = torch.randperm(len(samples), generator=generator(run.plan.seed))
        pick, self.unscored = order[:images], order[images:]
        self.y = samples.y[pick]
        self.s = {name: values[pick] for name, values in samples.s.items()}
        self.truth = samples.images(pick.to(samples.y.device))
        self.box = WhiteBox(self.network.split, run.plan.batch_size)
        observed = replay(run, client, pick, "judged")
        self.messages, self.rows = observed.messages, observed.rows
        self.observed = replay(run, client, order[:MOST_OBSERVED], "observed").messages
        self.history: list[Message] | None = None  # of the training, where it was recorded

    def given_away(self, share: float) -> tuple[Tensor, Tensor]:
        """A share of this client's images with their labels, or as many as are not scored."""
        samples = self.run.samples[self.network.number]
        pick = self.unscored[: max(1, round(share * len(samples)))].to(samples.y.device)
        if not len(pick):
            raise ValueError("an attacker cannot be given private images if all are scored: lower --images")
        return samples.images(pick), samples.y[pick]

    def strangers(self) -> "Observed":
        """The same conversation about samples that were not trained on."""
        test = self.run.parts.test
        pick = torch.randperm(len(test), generator=generator(self.run.plan.seed))[: len(self.truth)]
        return replay(self.run, self.network.number, pick, "strangers", test)

    def fewer(self, most: int | None) -> "Victim":
        """The same victim, judged on its first images only."""
        if most is None or most >= len(self.truth):
            return self
        short = copy.copy(self)
        short.truth, short.y = self.truth[:most], self.y[:most]
        short.s = {name: values[:most] for name, values in self.s.items()}
        short.messages, short.rows = _first(self.messages, self.rows, most)
        return short

    @property
    def seen(self) -> Tensor:
        """What stands for each image, one row a sample."""
        return torch.cat([each(m["z"], rows) for m, rows in zip(uploads(self.messages), self.rows, strict=True)])


class Observed(NamedTuple):
    """A conversation with the server, and for each upload which row stands for which sample."""

    messages: list[Message]
    rows: list[Tensor | None]


def replay(run: LocalRun, client: int, pick: Tensor, purpose: str, samples: Samples | None = None) -> Observed:
    """What the server would receive now for these samples: every message of a training step, nobody learning.

    In train mode, batch by batch, as the server saw them; the last short batch joins the one before.
    """
    split, body = copy.deepcopy(run.networks[client].split), copy.deepcopy(run.server.body)
    freeze(split)
    freeze(body)
    heard, rows = [], []
    server = Server(body, None, seed=run.plan.seed)

    def listen(message: Message) -> Message:
        heard.append(_apart(message, split.guard))
        return server.handle(message)

    split.guard.register_forward_hook(
        lambda module, given, guarded: rows.append(module.unmixed(guarded.seen, guarded.rows)[1])
    )
    remote = Remote(client, listen)
    secret = derive(run.plan.private_seed or 0, purpose)
    for step, index in enumerate(_even(pick, run.plan.batch_size)):
        batch = as_batch(run.samples[client] if samples is None else samples, index, derive(secret, step)).to(
            run.device
        )
        with seeded(batch.seed, run.device):
            terms = split.train().terms(batch, remote)
            terms["task"].backward()
    return Observed(heard, rows)


@torch.no_grad()
def _apart(message: Message, guard: GuardModule) -> Message:
    """A message as an attacker reads it: what any server would take apart first, it is given so."""
    tensors = dict(message.tensors)
    if "z" in tensors:
        tensors["z"] = guard.unmixed(tensors["z"], None)[0]
    return Message(message.kind, message.client, message.step, tensors)


def _for_rows_apart(body: nn.Module) -> nn.Module:
    """A copy of the server's network that reads such messages: it does not take them apart again."""
    body = copy.deepcopy(body)
    for name, module in list(body.named_modules()):
        if isinstance(module, Unbind):
            body.set_submodule(name, nn.Identity())
    return body


def _first(messages: Sequence[Message], rows: Sequence[Tensor | None], most: int) -> Observed:
    """A conversation without the rows that stand for none of the first `most` samples."""
    kept: dict[int, tuple[Tensor, Tensor]] = {}  # by step: rows that are left, and which of them stands for a sample
    fewer: list[Tensor | None] = []
    for message, index in zip(uploads(messages), rows, strict=True):
        if most <= 0:
            break
        whole = torch.arange(len(message["z"]), device=message["z"].device) if index is None else index
        kept[message.step] = whole[:most].unique(return_inverse=True)
        fewer.append(None if index is None else kept[message.step][1])
        most -= len(whole[:most])
    return Observed([_shortened(m, *kept[m.step]) for m in messages if m.step in kept], fewer)


def _shortened(message: Message, used: Tensor, anew: Tensor) -> Message:
    tensors = dict(message.tensors)
    for name in ("z", "du"):
        if name in tensors and tensors[name].dim():  # where labels travel, du is the scale of the loss
            tensors[name] = tensors[name][used]
    if "y" in tensors:
        tensors["y"] = tensors["y"][: len(anew)]
    if "rows" in tensors:
        tensors["rows"] = anew
    return replace(message, tensors=tensors)


def uploads(messages: Sequence[Message]) -> list[Message]:
    """Those that carry activations."""
    return [message for message in messages if message.kind is not Kind.BACKWARD]


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


def _unguarded(split: Split) -> Split:
    bare = copy.deepcopy(split)
    bare.guard = GuardModule()
    return bare


def _even(index: Tensor, size: int) -> list[Tensor]:
    """Chunks of `size`, or a little more: BatchNorm needs every batch to be about as large as in training."""
    return list(index.tensor_split(max(1, len(index) // size)))


def why_untold(attack: Attack, data: Parts, images: int) -> str | None:
    """What an attack needs and this audit cannot give, as one sentence; None: nothing. Known before any training."""
    gives = {
        "aux": len(data.aux) > 0,
        "aux_labels": len(data.aux) > 0,
        "aux_attributes": bool(data.aux.s),
        "private": images < len(data.private),
    }
    missing = [REQUIRED[name] for name in attack.needs if not gives.get(name, True)]
    if missing:
        return f"{attack} needs {' and '.join(missing)}, and there are none to give"
    if attack.reads_classes and data.private.y.dim() > 1:
        return f"{attack} goes by the class of a sample, and here every pixel has its own: leave it out"
    wanted = getattr(attack, "attribute", None)
    if "aux_attributes" in attack.needs and wanted not in data.aux.s:
        return f"{attack} needs {wanted!r} of the auxiliary images; they have {', '.join(sorted(data.aux.s))}"
    return None


def before_training(plan: Plan, task: Task, data: Parts, device: torch.device | str) -> Knowledge:
    """All that an attacker can be told before a client sends anything: for those that take part in the training."""
    cut = cut_shapes(plan, task)
    public, seed = plan.guard.public_part(), derive(plan.seed, "guard")
    undo = public.undo(cut.shared, seed)
    return Knowledge(
        task=task,
        aux=data.aux.images().to(device),
        aux_labels=data.aux.y.to(device),
        aux_attributes={name: values.to(device) for name, values in data.aux.s.items()} or None,
        net=plan.net,
        guard=KnownGuard(public, cut.shared, seed, task),
        undo=undo.to(device) if undo is not None else None,
    )


def after_training(victim: Victim, data: Parts) -> Knowledge:
    """Everything any attacker could be told about this victim; an attack is handed the part that it names."""
    run, before = victim.run, before_training(victim.run.plan, victim.run.task, data, victim.truth.device)
    assert before.guard is not None
    own = derive(derive(run.plan.private_seed or 0, "client", victim.network.number), "guard")
    return replace(
        before,
        observed=victim.observed,
        history=victim.history and [_apart(message, victim.network.split.guard) for message in victim.history],
        body=_for_rows_apart(run.server.body),
        encode=victim.box,
        head=WhiteBox(_unguarded(victim.network.split), run.plan.batch_size),
        guard=replace(before.guard, true_key=own),
    )


class Hijacked(NamedTuple):
    """A run in which an active attacker sat in the server's place, and that attacker."""

    run: LocalRun
    attacker: Attacker
    seconds: float
    trial: DetectorTrial  # of the plan's detectors


def hijack(
    attack: Attack,
    plan: Plan,
    data: Parts,
    task: Task,
    seed: int,
    *,
    device: str = "cpu",
    again: int = 0,
    start: LocalRun | None = None,
    images: int = 128,
    on_step: Callable[[Progress], None] = lambda progress: None,
    stop: Callable[[DetectorTrial], bool] = lambda trial: False,
) -> Hijacked:
    """The plan once more, with an active attacker at the server: for as many epochs as the attack needs, at least the
    plan's, and to the end, for no epoch of it is the best. Detectors are on trial: they stop nobody, and at their
    first alarm the attacker's pictures of `images` samples are judged."""
    began = time.perf_counter()
    with seeded(derive(seed, "attack", repr(attack), again), device):
        knowledge = before_training(plan, task, data, device).only(attack.needs)
        attacker = attack.attacker(knowledge, derive(seed, "attacker", again))
    once = LocalRun(replace(plan, epochs=1), data, classes=task.classes, device=device).steps
    longer = replace(plan, epochs=max(plan.epochs, ceil(attack.least_steps() / once)), patience=0)
    run = LocalRun(longer, data, classes=task.classes, device=device, at_server=[attacker])
    if start is not None:
        run.start_from(start)
    trial = DetectorTrial(run, lambda client: _damage(run, attacker, client, images), attack.honest_steps())

    def after(progress: Progress) -> None:
        trial()
        on_step(progress)

    run.train(on_step=after, stop=lambda: stop(trial))
    trial.finish()
    return Hijacked(run, attacker, time.perf_counter() - began, trial)


def _damage(run: LocalRun, attacker: Attacker, client: int, images: int) -> dict[str, Any]:
    """What an attacker in the middle of a training makes of what a client would send now."""
    samples = run.samples[client]
    pick = torch.randperm(len(samples), generator=generator(run.plan.seed))[:images]
    observed = replay(run, client, pick, "drill")
    forward = uploads(observed.messages)
    truth = samples.images(pick.to(samples.y.device))
    found = scores(truth, _for_each(attacker.reconstruct(forward), forward, observed.rows))
    return {"ssim": found["ssim"], "ncc": found["ncc"]}


def judge(
    attack: Attack,
    victim: Victim,
    data: Parts,
    seed: int,
    lpips: LPIPS | None = None,
    again: int = 0,
    attacker: Attacker | None = None,
) -> tuple[dict[str, Any], Tensor | None]:
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
    with seeded(derive(seed, "attack", repr(attack), again), victim.truth.device):
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
    return row, pictures


Scored = tuple[dict[str, Any], Tensor | None]
NO_PICTURE: Scores = dict.fromkeys(FIGURES)


def _images(attack: Attack, attacker: Attacker, victim: Victim, lpips: LPIPS | None) -> Scored:
    forward = uploads(victim.messages)
    guess = _for_each(attacker.reconstruct(forward), forward, victim.rows)
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
    theirs = _for_each(attacker.read(forward), forward, victim.rows).flatten(1)
    own = attacker.features(victim.truth.to(theirs)).flatten(1)
    return {
        "feature_mse": float((own - theirs).square().mean()),
        "feature_cosine": float(cosine_similarity(own, theirs).mean()),
    }


def _values(attack: Attack, attacker: Attacker, victim: Victim, lpips: LPIPS | None) -> Scored:
    """Labels or an attribute: how often right, against always naming the commonest value."""
    truth = victim.y if attack.secret == "labels" else victim.s[attack.attribute]  # type: ignore[attr-defined]
    forward = uploads(victim.messages)
    found = _for_each(attacker.infer(victim.messages), forward, victim.rows).to(truth.device)
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
        sides.append(_for_each(attacker.infer(messages), uploads(messages), rows).double().flatten())
    members, strangers = sides
    wins = (members[:, None] > strangers[None]).double() + 0.5 * (members[:, None] == strangers[None]).double()
    return {**NO_PICTURE, "metric": "auc", "value": float(wins.mean()), "chance": 0.5}, None


_SCORED: dict[str, Callable[[Attack, Attacker, Victim, LPIPS | None], Scored]] = {
    "images": _images,
    "labels": _values,
    "attribute": _values,
    "membership": _membership,
}


def _for_each(found: Tensor, messages: Sequence[Message], rows: Sequence[Tensor | None]) -> Tensor:
    """Where samples shared a row, what was found for it is the attacker's answer for each of them."""
    pieces = found.split([len(message["z"]) for message in messages])
    return torch.cat([each(piece, index) for piece, index in zip(pieces, rows, strict=True)])


def floors(victim: Victim, data: Parts, seed: int, lpips: LPIPS | None = None) -> dict[str, Scores]:
    """What no attack at all would score: a picture must beat these to have come from the messages."""
    truth, aux = victim.truth, data.aux.images().to(victim.truth.device)
    guesses = {"blank": torch.zeros_like(truth), "mean": aux.mean(0).expand_as(truth)}
    if victim.y.dim() == 1:  # where every pixel has a class, an image has none
        guesses["class_mean"] = _class_means(aux, data.aux.y.to(truth.device), victim)
    guesses["unaligned"] = _unaligned(victim, data, seed)
    return {name: scores(truth, guess, lpips) for name, guess in guesses.items()}


def _class_means(aux: Tensor, labels: Tensor, victim: Victim) -> Tensor:
    """For each of the victim's images the mean auxiliary image of its class."""
    means = [aux[labels == c].mean(0) if (labels == c).any() else aux.mean(0) for c in range(victim.run.task.classes)]
    return torch.stack(means)[victim.y.to(labels.device)]


def _unaligned(victim: Victim, data: Parts, seed: int) -> Tensor:
    """A decoder trained on a head that is not the victim's: what decoding alone gives without alignment."""
    run = victim.run
    stranger_plan = replace(run.plan, private_seed=derive(seed, "a stranger's head"))
    stranger = build_client(stranger_plan, run.task, 0, lambda message: message, run.device)
    knowledge = replace(after_training(victim, data), encode=WhiteBox(stranger.split, run.plan.batch_size), undo=None)
    decoder = Decoder(steps=150, readers=("conv", "mlp"))
    with seeded(derive(seed, "unaligned"), victim.truth.device):
        return decoder.attacker(knowledge.only(decoder.needs), seed).reconstruct(victim.messages)


def why_control_failed(attack: Attack, row: dict[str, Any], class_mean: Scores, plan: Plan) -> str | None:
    """Why the positive control failed; None: the attack works on the unguarded cut."""
    if attack.secret != "images":
        least = row["chance"] + CONTROL_ABOVE_CHANCE
        if row["value"] >= least:
            return None
        return f"on the unguarded cut it reached {row['metric']} {row['value']:.3f}, below its bar of {least:.3f}"
    if row["recon_std"] < CONSTANT:
        return "on the unguarded cut it returned the same picture for every image"
    bar = attack.bar(repr(plan.data), repr(plan.net))
    metric, least = bar or ("ncc", (class_mean["ncc"] or 0.0) + CONTROL_MARGIN)
    if row[metric] < least:
        inverted = "; the negative scores better" if row["ssim_inverted"] > row["ssim"] else ""
        return f"on the unguarded cut it reached {metric} {row[metric]:.3f}, below its bar of {least:.3f}{inverted}"
    return None


def why_invalid(row: dict[str, Any], control: str | None) -> str | None:
    if control is not None:
        return f"the attack failed its control: {control}"
    if row["secret"] == "images" and row["recon_std"] < CONSTANT:
        return "the attack failed: it returned the same picture for every image, which says nothing about the guard"
    return None
