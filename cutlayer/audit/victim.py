"""What the server has of one client after a training run: messages, the truth behind them, and a white box."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..core.batch import Batch
from ..core.features import Unchanged
from ..core.guard import Guarded, GuardModule
from ..core.message import BESIDE, Kind, Message
from ..core.remote import Remote
from ..core.seeds import derive, generator, seeded
from ..core.server import Server
from ..core.split import Split, each
from ..data.base import Samples
from ..engines.local.run import LocalRun
from ..training.batches import as_batch
from ..training.build import freeze
from ..training.plan.plan import Plan

MOST_OBSERVED = 4096  # samples of the victim's data whose messages an attacker may study


class Victim:
    """One client at the end of training: what it would send now for some of its private images, and the truth.

    `still`: it sends as in service; None: as its training ended.
    """

    def __init__(self, run: LocalRun, images: int, client: int = 0, still: bool | None = None):
        self.still = ends_still(run.plan) if still is None else still
        self.run, self.network = run, run.newest(client)
        samples, order = run.samples[client], _order(run, client)
        pick, self.unscored = order[:images], order[images:]
        self.y = samples.y[pick]
        self.s = {name: values[pick] for name, values in samples.s.items()}
        self.truth = self.gallery = samples.images(pick.to(samples.y.device))
        self.box = WhiteBox(self.network.split, run.plan.batch_size, self.still)
        observed = replay(run, client, pick, "judged", still=self.still)
        self.messages, self.rows, self.units = observed.messages, observed.rows, observed.units
        self.observed = replay(run, client, order[:MOST_OBSERVED], "observed", still=self.still).messages
        self.history: list[Message] | None = None  # of the training, where it was recorded
        self.bodies: list[nn.Module] | None = None  # of the server at the end of each epoch, where they were kept
        self.passes: list[Any] | None = None  # of its last epochs (`audit.passes`), where they were recorded

    @cached_property
    def in_service(self) -> "Victim":
        """The same client, and what it sends of the same images when the network predicts."""
        served = Victim(self.run, len(self.truth), self.network.number, still=True)
        served.history, served.bodies, served.passes = self.history, self.bodies, self.passes
        return served

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
        return replay(self.run, self.network.number, pick, "strangers", test, self.still)

    def fewer(self, most: int | None) -> "Victim":
        """The same victim, judged on its first images only; they are still looked for among all (`gallery`)."""
        if most is None or most >= len(self.truth):
            return self
        short = copy.copy(self)
        short.truth, short.y = self.truth[:most], self.y[:most]
        short.s = {name: values[:most] for name, values in self.s.items()}
        short.messages, short.rows, _ = _first(self.messages, self.rows, most)
        short.units = self.units if self.units is None else self.units[:most]
        return short

    @property
    def seen(self) -> Tensor:
        """What stands for each image, one row a sample."""
        return torch.cat([each(m["z"], rows) for m, rows in zip(uploads(self.messages), self.rows, strict=True)])


def scored(run: LocalRun, images: int, client: int = 0) -> Samples:
    """The private samples that a victim will be judged on, known before it has learnt anything."""
    return run.samples[client][_order(run, client)[:images].to(run.samples[client].y.device)]


def _order(run: LocalRun, client: int) -> Tensor:
    return torch.randperm(len(run.samples[client]), generator=generator(run.plan.seed))


class Observed(NamedTuple):
    """A conversation with the server, and for each upload which row stands for which sample."""

    messages: list[Message]
    rows: list[Tensor | None]
    units: list[int] | None = None  # which samples shared what was sent: equal numbers; None: each was sent alone


def replay(
    run: LocalRun,
    client: int,
    pick: Tensor,
    purpose: str,
    samples: Samples | None = None,
    still: bool | None = None,
) -> Observed:
    """What the server would receive now for these samples: every message of a training step, nobody learning.

    Batch by batch, as the server saw them: in train mode or, where it is `still`, as in service (None: as at the end
    of the training). The last short batch joins the one before.
    """
    still = ends_still(run.plan) if still is None else still
    split, body = copy.deepcopy(run.networks[client].split), copy.deepcopy(run.server.body)
    freeze(split)
    freeze(body)
    heard: list[Message] = []
    rows: list[Tensor | None] = []
    shared: list[Tensor | None] = []
    server = Server(body, None, seed=run.plan.seed)

    def listen(message: Message) -> Message:
        heard.append(_apart(message, split.guard))
        return server.handle(message)

    def remember(module: nn.Module, given: Any, guarded: Guarded) -> None:
        rows.append(split.guard.unmixed(guarded.seen, guarded.rows)[1])
        shared.append(guarded.rows)

    split.guard.register_forward_hook(remember)
    remote = Remote(client, listen)
    secret = derive(run.plan.private_seed or 0, purpose)
    for step, index in enumerate(_even(pick, run.plan.batch_size)):
        batch = as_batch(run.samples[client] if samples is None else samples, index, derive(secret, step)).to(
            run.device
        )
        with seeded(batch.seed, run.device):
            _in_training(split, still)
            terms = split.terms(batch, remote)
            terms["task"].backward()
    return Observed(heard, rows, _units(shared))


def _units(shared: Sequence[Tensor | None]) -> list[int] | None:
    """Rows of all batches, numbered through; None where every sample has one of its own."""
    if any(rows is None for rows in shared):
        return None
    found: list[int] = []
    for rows in shared:
        assert rows is not None
        first = max(found, default=-1) + 1
        found += [first + row for row in rows.tolist()]
    return found


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
        if getattr(module, "takes_apart", False):
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
    for name in ("z", "du", *(f"{BESIDE}{one}" for one in message.beside)):
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
    """The client's head and guard, copied: images and labels to what would be sent. Holds no data of the client.

    Images that want a gradient get one, through the guard. `draw` says which of the guard's random numbers. `still`:
    the client was frozen when it sent, and its messages hang on no other samples of the batch.
    """

    def __init__(self, split: Split, batch: int, still: bool = False):
        self.split, self.batch, self.still = copy.deepcopy(split), batch, still
        self.split.tail = Unchanged()
        freeze(self.split)

    @property
    def table(self) -> nn.Embedding | None:
        """What it looks words up in."""
        tables = (layer for layer in self.split.head.modules() if isinstance(layer, nn.Embedding))
        return next(tables, None)

    @property
    def ids(self) -> int:
        """How many token ids it has a vector for; 0: it reads no words."""
        return 0 if self.table is None else self.table.num_embeddings

    def of_vectors(self, vectors: Tensor, texts: Tensor) -> Tensor:
        """What would be sent for texts whose words had these vectors, with a gradient."""
        assert self.table is not None
        hook = self.table.register_forward_hook(lambda module, given, looked_up: vectors)
        try:
            return _in_training(self.split, self.still).send(Batch(texts, texts.new_zeros(len(texts))))
        finally:
            hook.remove()

    def send(self, batch: Batch) -> Tensor:
        with torch.set_grad_enabled(torch.is_grad_enabled() and batch.x.requires_grad):
            return _in_training(self.split, self.still).send(batch)

    def __call__(self, images: Tensor, labels: Tensor, draw: int = 0) -> Tensor:
        chunks = _even(torch.arange(len(images), device=images.device), self.batch)
        first = draw * len(chunks)
        return torch.cat([self.send(Batch(images[i], labels[i], seed=first + n)) for n, i in enumerate(chunks)])


def ends_still(plan: Plan) -> bool:
    """Whether its clients are frozen at the end, and send as in service."""
    return plan.roles.phase(plan.epochs - 1).frozen


def _in_training(split: Split, still: bool) -> Split:
    """As a client is while it learns, or feeds the server."""
    split.train()
    if still:
        split.head.eval()
        split.guard.eval()
    return split


def _unguarded(split: Split) -> Split:
    bare = copy.deepcopy(split)
    bare.guard = GuardModule()
    return bare


def _even(index: Tensor, size: int) -> list[Tensor]:
    """Chunks of `size`, or a little more: BatchNorm needs every batch to be about as large as in training."""
    return list(index.tensor_split(max(1, len(index) // size)))
