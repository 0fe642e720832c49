"""One client's turn: learn from a batch, predict, and hand its weights on."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from math import isfinite

import torch
from torch import Tensor

from .batch import Batch
from .errors import NonFinite
from .remote import Remote
from .seeds import seeded
from .split import Split

State = dict[str, Tensor]  # weights and optimizer state by name: what a relay hands on


@dataclass
class Client:
    """A party that owns data: its network, its optimizer (None: frozen) and its door to the server."""

    number: int
    split: Split
    optimizer: torch.optim.Optimizer | None
    remote: Remote
    steps: int = 0
    last_terms: dict[str, float] = field(default_factory=dict)


def learn(client: Client, batch: Batch) -> dict[str, float]:
    """One step; returns the loss term by term."""
    client.split.train()
    with seeded(batch.seed, batch.x.device):
        terms = client.split.terms(batch, client.remote)
        values = {name: float(term.detach()) for name, term in terms.items()}
        _check(client, values)
        loss = reduce(torch.add, terms.values())
        # A frozen client has nothing of its own to update, but the server is owed its gradient.
        loss.backward()
    if client.optimizer is not None:
        client.optimizer.step()
        client.optimizer.zero_grad()
    client.steps += 1
    client.last_terms = values
    return values


@torch.no_grad()
def predict(client: Client, batches: Iterable[Batch]) -> Tensor:
    """Logits for `batches`, in evaluation mode on both sides; nothing is held or learnt."""
    client.split.eval()
    return torch.cat([client.split(batch, client.remote).logits for batch in batches])


def export(client: Client) -> State:
    """Copies of everything the next client needs to go on: weights, statistics and optimizer state."""
    state = {f"net.{name}": tensor.detach().clone() for name, tensor in client.split.state_dict().items()}
    return state | optimizer_state(client.optimizer)


def load(client: Client, state: Mapping[str, Tensor]) -> None:
    net = {name.removeprefix("net."): t for name, t in state.items() if name.startswith("net.")}
    client.split.load_state_dict(net)
    load_optimizer(client.optimizer, state)


def optimizer_state(optimizer: torch.optim.Optimizer | None) -> State:
    """The tensors an optimizer carries from step to step, by parameter number and name."""
    if optimizer is None:
        return {}
    return {
        f"optimizer.{number}.{name}": value.detach().clone()
        for number, entries in optimizer.state_dict()["state"].items()
        for name, value in entries.items()
        if isinstance(value, Tensor)
    }


def load_optimizer(optimizer: torch.optim.Optimizer | None, state: Mapping[str, Tensor]) -> None:
    if optimizer is None:
        return
    entries: dict[int, State] = {}
    for key, value in state.items():
        if key.startswith("optimizer."):
            _, number, name = key.split(".", 2)
            # torch keeps the tensors it is given; without a copy two clients would share their momentum.
            entries.setdefault(int(number), {})[name] = value.clone()
    optimizer.load_state_dict({"state": entries, "param_groups": optimizer.state_dict()["param_groups"]})


def _check(client: Client, values: Mapping[str, float]) -> None:
    broken = [name for name, value in values.items() if not isfinite(value)]
    if not broken:
        return
    # When the activations themselves are gone every term is; the one that was largest before drove them there.
    culprit = max(broken, key=lambda name: abs(client.last_terms.get(name, 0.0)))
    before = (
        ", ".join(f"{name} {value:.4g}" for name, value in client.last_terms.items())
        or "none, this is the first step"
    )
    raise NonFinite(
        f"training turned non-finite at step {client.steps} of client {client.number}: {culprit} is "
        f"{values[culprit]}. Terms at the step before: {before}. Lower the learning rate"
        + (f" or the weight of {culprit}." if culprit != "task" else ".")
    )
