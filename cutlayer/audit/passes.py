"""Passes over a client's data: what the server sees of each sample, epoch after epoch, and which row was whose."""

import copy
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

from ..attacks import Pass
from ..core.guard import Guarded
from ..core.message import Kind, Message
from ..core.seeds import derive, generator, seeded
from ..core.split import Split
from ..core.state import load_changing, unnamed
from ..engines.local.run import LocalRun
from ..training.batches import as_batch, in_batches
from .victim import MOST_OBSERVED, Victim, WhiteBox, uploads

FINISHED = 3  # passes of a client that has finished learning, where none of its training was recorded
Item = TypeVar("Item")


class Passed(NamedTuple):
    """One pass, and what only the judge knows of it: for each sample, the row that stood for it."""

    told: Pass
    rows: Tensor


def one_pass(run: LocalRun, number: int, least: int, client: int = 0) -> Passed:
    """A pass as an epoch has it, in a secret order of its own, through the client as it is now; nobody learns.

    `number`: how many epochs are finished; below 1: all are, and passes are told apart by it.
    The samples are those of a `Victim`, the scored ones first, at least `least`.
    """
    samples = run.samples[client]
    order = torch.randperm(len(samples), generator=generator(run.plan.seed))[: max(least, MOST_OBSERVED)]
    secret = derive(run.plan.private_seed or 0, "pass", number)
    shuffled = torch.randperm(len(order), generator=generator(secret))
    epoch = number - 1 if number > 0 else run.plan.epochs - 1
    still = run.plan.roles.phase(epoch).frozen
    box, made = WhiteBox(_as_it_is(run, client), run.plan.batch_size, still), list[Guarded]()

    def remember(module: nn.Module, given: Any, guarded: Guarded) -> None:
        made.append(guarded)

    hook = box.split.guard.register_forward_hook(remember)
    messages, rows, before = [], torch.empty(len(order), dtype=torch.long), 0
    with seeded(secret, run.device):
        for step, places in enumerate(in_batches(shuffled, run.plan.batch_size, run.plan.least_batch)):
            box.send(as_batch(samples, order[places], derive(secret, step)).to(run.device))
            guarded = made.pop()
            seen, index = box.split.guard.unmixed(guarded.seen.detach(), guarded.rows)
            rows[places] = before + (torch.arange(len(places)) if index is None else index.cpu())
            messages.append(Message(Kind.FORWARD, client, step, {"z": seen}))
            before += len(seen)
    hook.remove()
    return Passed(Pass(messages, box), rows.to(run.device))


def _as_it_is(run: LocalRun, client: int) -> Split:
    split = copy.deepcopy(run.networks[client].split)
    if shared := run.coordinator.shown(client):
        load_changing(split, unnamed(shared))
    return split


def passes_of(victim: Victim) -> list[Passed]:
    """Those that were recorded while this victim learnt, else some of the finished client."""
    if victim.passes is None:
        own = victim.network.number
        victim.passes = [one_pass(victim.run, -1 - place, len(victim.truth), own) for place in range(FINISHED)]
    return victim.passes


def order_of(victim: Victim) -> list[Tensor]:
    """For each pass, and last for the messages that are judged: which row stands for each sample."""
    return [*(one.rows for one in passes_of(victim)), _judged_rows(victim)]


def _judged_rows(victim: Victim) -> Tensor:
    found, before = [], 0
    for message, index in zip(uploads(victim.messages), victim.rows, strict=True):
        count = len(message["z"])
        found.append(before + (torch.arange(count).to(message["z"].device) if index is None else index))
        before += count
    return torch.cat(found)


class Lazily(Sequence[Item]):
    """A list that is made when it is first looked at: few attacks ask for passes, and they take a while."""

    def __init__(self, make: Callable[[], list[Item]]):
        self._make = make

    def __len__(self) -> int:
        return len(self._make())

    def __getitem__(self, place: Any) -> Any:
        return self._make()[place]


@runtime_checkable
class Linking(Protocol):
    """An attacker that says which rows of earlier passes, from the newest back, it takes for the samples of these."""

    def linked(self, messages: Sequence[Message]) -> list[Tensor]: ...


def links_right(attacker: Linking, victim: Victim) -> float | None:
    """The share of its links that lead to a row of the same sample, or of one of those that share the row. None: it
    has linked nothing."""
    now = _judged_rows(victim)
    found = attacker.linked(uploads(victim.messages))
    shares = []
    for one, rows in zip(reversed(passes_of(victim)), found, strict=False):
        same = one.rows[: len(now)] == rows.to(now)[now]
        shares.append(len(now[same].unique()) / len(now.unique()))
    return sum(shares) / len(shares) if shares else None
