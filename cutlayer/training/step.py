"""One client's turn: learn from a batch, predict, and hand its weights on."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial, reduce
from math import isfinite
from types import MappingProxyType
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from ..core.batch import Batch
from ..core.draws import is_still, steps_still
from ..core.errors import NonFinite
from ..core.message import Kind
from ..core.remote import Remote
from ..core.seeds import seeded
from ..core.split import Split
from ..core.state import State, drop_gradients, freeze, load_changing, load_optimizer, named, optimizer_state, unnamed
from ..core.stepping import backward, step
from .awaited import Awaited, Figures, is_far


@dataclass
class ClientNetwork:
    """What a client trains: its half of the network, its optimizer (None: frozen) and its way to the server."""

    number: int
    split: Split
    optimizer: torch.optim.Optimizer | None
    remote: Remote
    steps: int = 0
    peaks: dict[str, float] = field(default_factory=dict)  # the largest value of each term of the loss so far


class StepHooks(NamedTuple):
    """What others do inside a step: look at the gradients (detectors), and add to them (a rule's correction)."""

    after_backward: Callable[[], None] = lambda: None
    before_step: Callable[[], None] = lambda: None


NO_HOOKS = StepHooks()
_UNSEEDED = nullcontext()


class Learn(Protocol):
    """One step of a client, and the loss term by term."""

    def __call__(self, client: ClientNetwork, batch: Batch, *, hooks: StepHooks = NO_HOOKS) -> Figures: ...


def learn(
    client: ClientNetwork,
    batch: Batch,
    update: bool = True,
    hooks: StepHooks = NO_HOOKS,
    late: bool = False,
    unwatched: bool = False,
) -> Figures:
    """One step; returns the loss term by term, and what the guard has to say of it.

    Without `update` the client learns nothing from it: a probe. `late`: nobody waits for a device here. Who looks at
    what is returned does, and only then learns that numbers are lost. `unwatched`: nobody on the way to the server
    draws, and its optimizer does not, so a network that draws nothing need not be seeded.
    """
    in_training(client)
    exchange_lift(client)
    with _UNSEEDED if unwatched and _is_still(client, hooks) else seeded(batch.seed, batch.x.device):
        terms = client.split.terms(batch, client.remote)
        late = late and any(map(is_far, terms.values()))
        told = {} if late else _numbers(client.split.guard.notes | terms)
        values = {} if late else {name: told[name] for name in terms}
        check_terms(client, values, client.steps)
        # A frozen client has nothing of its own to update, but the server is owed its gradient.
        backward(reduce(torch.add, terms.values()))
        hooks.after_backward()
        take_step(client, hooks, update)  # under the step's seed: DP-SGD draws noise here
    client.steps += 1
    if late:
        return Awaited.of(client.split.guard.notes | terms, partial(read_late, client, list(terms), client.steps - 1))
    noted(client, values)
    return values | figures(client, told)


def _is_still(client: ClientNetwork, hooks: StepHooks) -> bool:
    """Whether nothing draws in a step of this client, for sure."""
    if hooks is not NO_HOOKS or client.remote.watched_now:
        return False
    return is_still(client.split) and steps_still(client.optimizer)


def take_step(client: ClientNetwork, hooks: StepHooks = NO_HOOKS, update: bool = True) -> None:
    """With the gradients that are there, which are gone then."""
    if client.optimizer is not None:
        if update:
            hooks.before_step()
            step(client.optimizer)
        drop_gradients(client.optimizer)


def looked_at(client: ClientNetwork, terms: Mapping[str, Tensor]) -> dict[str, float]:
    """The terms of a step's loss as numbers, if they are any."""
    values = _numbers(terms)
    check_terms(client, values, client.steps)
    return values


def read_late(client: ClientNetwork, terms: Sequence[str], step: int, told: Figures) -> Figures:
    """What a step that is over has to say, the loss first. Whether numbers were lost comes out here."""
    values = {name: told[name] for name in terms}
    check_terms(client, values, step)
    noted(client, values)
    return {**values, **told}


def in_training(client: ClientNetwork) -> None:
    """Every step comes here, and a deep network takes its time to be told."""
    if not client.split.training:
        client.split.train()


def feed(client: ClientNetwork, batch: Batch) -> dict[str, float]:
    """A frozen client's step: forward only. The server learns from it; nothing of the client's changes or is kept.

    In the U shape the loss is the client's, so its backward pass runs from there to u and stops.
    """
    in_training(client)
    with seeded(batch.seed, batch.x.device), _frozen(client):
        terms = client.split.terms(batch, client.remote)
        values = looked_at(client, terms)
        if terms["task"].requires_grad:
            backward(terms["task"])
    client.steps += 1
    noted(client, values)
    return values


@contextmanager
def _frozen(client: ClientNetwork) -> Iterator[None]:
    """No parameter of the client wants a gradient, so no activation of the head is kept for one."""
    split = client.split
    parameters = [parameter for parameter in split.parameters() if parameter.requires_grad]
    norms = [module for module in split.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    tracking = [norm for norm in norms if norm.track_running_stats]
    freeze(split)
    split.guard.eval()  # guards act as in service, and train nothing of their own
    try:
        with client.remote.without_gradients():
            yield
    finally:
        split.guard.train()
        for parameter in parameters:
            parameter.requires_grad_(True)
        for norm in tracking:
            norm.track_running_stats = True


def figures(client: ClientNetwork, read: Mapping[str, float] = MappingProxyType({})) -> dict[str, float]:
    """What the guard has to say of the last step; what a device had to say of it was `read` before."""
    notes = client.split.guard.notes.items()
    return {name: read[name] if name in read and isinstance(note, Tensor) else float(note) for name, note in notes}


def _numbers(found: Mapping[str, Tensor | float]) -> dict[str, float]:
    """As they are in Python. Each that lies on a device is a wait for it: several come over together."""
    there = [name for name, one in found.items() if isinstance(one, Tensor) and not one.is_cpu]
    if len(there) < 2:
        return {name: float(one.detach() if isinstance(one, Tensor) else one) for name, one in found.items()}
    together = torch.stack([found[name].detach().double().reshape(()) for name in there])  # type: ignore[union-attr]
    read = dict(zip(there, together.tolist(), strict=True))
    return {name: read[name] if name in read else float(one) for name, one in found.items()}


def noted(client: ClientNetwork, values: Mapping[str, float]) -> None:
    """These were the terms of a step."""
    client.peaks = {name: max(abs(value), client.peaks.get(name, 0.0)) for name, value in values.items()}


def exchange_lift(client: ClientNetwork) -> None:
    """Copy or replace the server's half of the guard, when the guard says that it is time."""
    due = client.split.guard.lift_due(client.steps)
    if due is not None:
        answer = client.remote.ask(Kind.LIFT, client.steps, {}, **{f"lift.{name}": t for name, t in due.items()})
        client.split.guard.take_lift({name.removeprefix("lift."): t for name, t in answer.tensors.items()})


@torch.no_grad()
def predict(client: ClientNetwork, batches: Iterable[Batch]) -> Tensor:
    """Logits for `batches`, in evaluation mode on both sides; nothing is held or learnt."""
    client.split.eval()
    return torch.cat([client.split(batch, client.remote).logits for batch in batches])


def export(client: ClientNetwork, optimizer: bool = True, copies: bool = True) -> State:
    """Copies of everything the next client needs to go on: weights that train, statistics and optimizer state.

    Without `copies` the weights are the client's own, to be read before it goes on.
    """
    state = named(client.split, copies) | (optimizer_state(client.optimizer) if optimizer else {})
    # In the order of names: frames pad between tensors, and a resumed relay must count the same bytes.
    return dict(sorted(state.items()))


def load(client: ClientNetwork, state: Mapping[str, Tensor]) -> None:
    load_changing(client.split, unnamed(state))
    client.split.zero_grad()  # a step that was broken off has left some
    if any(name.startswith("optimizer.") for name in state):  # weights alone leave the optimizer as it is
        load_optimizer(client.optimizer, state)


def lost_numbers(where: str, peaks: Mapping[str, float]) -> NonFinite:
    """The error for a run whose numbers are gone. The term that grew largest while it was a number did it."""
    culprit = max(peaks, key=lambda name: peaks[name], default="task")
    shown = ", ".join(f"{name} {value:.4g}" for name, value in peaks.items()) or "none, this is the first step"
    remedy = "the learning rate" if culprit == "task" else f"the learning rate or the weight of {culprit}"
    return NonFinite(f"{where}; {culprit} did it. Largest values before: {shown}. Lower {remedy}.")


def check_terms(client: ClientNetwork, values: Mapping[str, float], step: int) -> None:
    """Stop where numbers are lost in this step, and name the term that lost them."""
    if not all(map(isfinite, values.values())):
        broken = {name: value for name, value in values.items() if not isfinite(value)}
        where = f"training turned non-finite at step {step} of client {client.number}"
        which = ", ".join(f"{name} is {value}" for name, value in broken.items())
        # A single broken term is the culprit; if all are, the activations went before them.
        peaks = client.peaks if len(broken) == len(values) else {name: client.peaks.get(name, 0.0) for name in broken}
        raise lost_numbers(f"{where} ({which})", peaks)
