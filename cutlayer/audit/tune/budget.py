"""What a plan may leak, lose and cost; budgets that nothing can meet are refused before anything is trained."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isfinite, log2
from typing import NamedTuple

import torch

from ...core.batch import Batch, Task, made_up
from ...core.message import Message
from ...core.remote import Remote
from ...core.seeds import generator
from ...training.build import build_client, build_server
from ...training.facts.sides import sides
from ...training.plan.plan import Plan
from ...wire import frames

NAMES = ("leak", "loss", "bytes", "client_macs")


@dataclass(frozen=True)
class Budget:
    """None: as little as possible, but no limit."""

    leak: float | None = None  # share of what the unguarded cut gives away
    loss: float | None = None  # points of accuracy below the unguarded cut
    bytes: float | None = None  # of a sample's guarded activations on their way up
    client_macs: int | None = None  # multiply-accumulates of a client for one sample

    def __post_init__(self) -> None:
        if not self.limits():
            raise ValueError(
                "name a budget: --leak 0.2 (share of the open cut's leak), --loss 2 (points), --bytes 200"
            )
        for name, limit in self.limits().items():
            if not isfinite(limit) or limit < 0:
                raise ValueError(f"{option(name)} is a number from 0 up; got {limit}")
        if self.leak is not None and self.leak > 1:
            raise ValueError(f"--leak is a share of what the unguarded cut gives away, 0 to 1; got {self.leak}")

    def limits(self) -> dict[str, float]:
        return {name: limit for name in NAMES if (limit := getattr(self, name)) is not None}

    def over(self, found: "Mapping[str, float | None]") -> dict[str, float]:
        """By how much of each limit it is missed, where it is; what is not known misses nothing."""
        missed = {}
        for name, limit in self.limits().items():
            value = found.get(name)
            if value is not None and value > limit:
                missed[name] = (value - limit) / max(limit, SMALLEST[name])
        return missed

    def used(self, found: "Mapping[str, float | None]") -> float | None:
        """By what plans within the budget are ranked, the least first; None where that is not known.

        Of leak and loss both limits are named: the shares of them that are used, added up, for who names both says
        what of the one is worth how much of the other. One is named: it is a limit, and the other is as little as
        possible. None is named: all that the open cut leaks is worth 100 points.
        """
        named = [name for name in WHOLE if getattr(self, name) is not None]
        weighed = [name for name in WHOLE if len(named) != 1 or name not in named]
        values = [found.get(name) for name in weighed]
        known = [value for value in values if value is not None]
        if len(known) < len(values):
            return None
        return sum(value / self._worth(name) for name, value in zip(weighed, known, strict=True))

    def asks_for_less(self, found: "Mapping[str, float | None]") -> bool:
        """Whether a message of fewer bytes might serve it better: it is over a limit that those are good for, or what
        it leaks takes more of the budget than what it loses."""
        missed = self.over(found)
        if not missed:
            leak, loss = (
                self.used({"leak": 0.0, "loss": 0.0, name: found.get(name) or 0.0}) or 0.0 for name in WHOLE
            )
            return leak >= loss
        return set(missed) != {"loss"}

    def rule(self) -> str:
        """The same in words."""
        match [name for name in WHOLE if getattr(self, name) is not None]:
            case [limit]:
                least = next(name for name in WHOLE if name != limit)
                return f"the least {least} within {option(limit)}"
            case [_, _]:
                return "the smallest shares of --leak and --loss, added up"
        return "the least leak and loss, where all that the open cut leaks is worth 100 points"

    def _worth(self, name: str) -> float:
        limit = getattr(self, name)
        return WHOLE[name] if limit is None else max(limit, SMALLEST[name])


WHOLE = {"leak": 1.0, "loss": 100.0}  # of what decides between plans within the budget: all there is of it
SMALLEST = {"leak": 0.05, "loss": 1.0, "bytes": 1.0, "client_macs": 1.0}  # what a limit of 0 is measured by


def option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


class Cost(NamedTuple):
    """What a plan costs, known before it is trained."""

    bytes: float  # of message 1, a sample, as the untrained network sends it
    client_macs: int


def cost(plan: Plan, task: Task) -> Cost:
    message, rows = _first_message(plan, task)
    return Cost(frames.size(message) / rows, sides(plan, task)["client"]["macs"])


def _first_message(plan: Plan, task: Task) -> tuple[Message, int]:
    """What an untrained client sends of one batch."""
    plan = replace(plan, private_seed=0)
    server = build_server(plan, task)
    client = build_client(plan, task, 0, server.handle)
    sent: list[Message] = []

    def listen(message: Message) -> Message:
        sent.append(message)
        return server.handle(message)

    client.remote = Remote(0, listen)
    batch = Batch(made_up(task, plan.batch_size, generator(0)), torch.zeros(plan.batch_size, dtype=torch.long))
    with torch.no_grad():
        client.split.eval()(batch, client.remote)
    return sent[0], plan.batch_size


def refuse_impossible(budget: Budget, plan: Plan, task: Task) -> None:
    """Limits below what any guard costs, and limits that ask for nothing."""
    message, rows = _first_message(plan, task)
    # Of no rows: numbers may take fewer bytes than plain floats do, where many of them are zeros.
    empty = {name: tensor[:0] for name, tensor in message.tensors.items()}
    frame = frames.size(replace(message, tensors=empty, packed={})) / rows
    bare = cost(plan, task)
    if budget.bytes is not None and budget.bytes < max(frame, 1 / rows):
        raise ValueError(
            f"--bytes {budget.bytes:g} cannot be met: a message's frame alone takes {frame:.2f} bytes a sample in "
            f"batches of {rows}. Raise --bytes or --batch-size"
        )
    if budget.client_macs is not None and budget.client_macs < bare.client_macs:
        raise ValueError(
            f"--client-macs {budget.client_macs:,} cannot be met: the client's own layers take {bare.client_macs:,}, "
            "and no guard takes any of them away. Raise it, or cut earlier"
        )
    asks = {
        "leak": budget.leak is not None and budget.leak < 1,
        "bytes": budget.bytes is not None and budget.bytes < bare.bytes,
    }
    if not any(asks.values()):
        raise ValueError(
            f"the unguarded cut meets these budgets: it takes {bare.bytes:,.0f} bytes a sample. Ask for a --leak "
            "below 1 or for fewer --bytes"
        )


def refuse_contradiction(budget: Budget, accuracy: float, classes: int) -> None:
    """Once the unguarded accuracy is known: so few bits cannot name so many labels (Fano's inequality)."""
    if budget.bytes is None or budget.loss is None or classes < 2:
        return
    wrong = min(1.0, max(0.0, 1 - accuracy + budget.loss / 100))
    if wrong >= 1 - 1 / classes:
        return
    doubt = 0.0 if wrong in (0.0, 1.0) else -wrong * log2(wrong) - (1 - wrong) * log2(1 - wrong)
    needed = log2(classes) - doubt - wrong * log2(max(1, classes - 1))
    if 8 * budget.bytes < needed:
        raise ValueError(
            f"--bytes {budget.bytes:g} and --loss {budget.loss:g} contradict each other: naming one of {classes} "
            f"labels right {100 * (1 - wrong):.1f} % of the time takes {needed:.2f} bits a sample whatever the guard"
        )
