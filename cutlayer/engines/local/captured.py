"""Training steps as CUDA graphs: a small network's step is hundreds of launches, and a graph is one.

A step is captured whole, both sides of the cut and both optimizers, once it has been seen a few times with the same
shapes, rates and tensors. It computes what the plain step computes; what cannot be captured runs as always.
"""

from collections.abc import Iterator, Mapping
from functools import partial, reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ...core.batch import Batch
from ...core.compressor import Compression
from ...core.server import Server
from ...core.state import drop_gradients
from ...core.stepping import backward
from ...training.awaited import Awaited, Figures
from ...training.bodies import RoundBodies
from ...training.plan.plan import Plan
from ...training.step import NO_HOOKS, ClientNetwork, StepHooks, exchange_lift, in_training, learn, read_late
from ...wire.ledger import Ledger, Noted

MOST_KEPT = 32  # clients whose graphs are kept, those that stepped last: each holds a batch and its share of the pool


class CapturedSteps:
    """`learn` for clients of one process on a CUDA device. `why_not` says what cannot be captured, once known."""

    def __init__(self, server: Server, ledger: Ledger):
        self.server, self.ledger = server, ledger
        self.why_not: str | None = None
        self._looked = False  # at a plain step, for what a graph would repeat
        self._stands: dict[int, tuple[float, ...]] = {}  # by client, what the graphs below were captured with
        self._kept: dict[int, dict[Any, _Captured]] = {}
        self._plain = set[Any]()  # shapes that a plain step had
        self._walked: dict[int, tuple[tuple[nn.Module, ...], list[Mapping[str, Tensor | None]]]] = {}
        self._pool: Any = None

    def __call__(self, client: ClientNetwork, batch: Batch, hooks: StepHooks = NO_HOOKS) -> Figures:
        if self.why_not is not None or hooks is not NO_HOOKS:
            return learn(client, batch, hooks=hooks, late=True)
        exchange_lift(client)  # between two steps, captured or not
        stands = (*self._rates(client), *self._tensors(client))
        shapes = batch.x.shape, batch.y.shape, tuple(batch.s)
        if self._stands.get(client.number) != stands:
            # Tensors were replaced, a rate is another or momentum is still to be made: a plain step, and look again.
            self._start_anew(client.number, stands)
            self._plain.add(shapes)
            return learn(client, batch, late=True)
        if not self._looked:
            return self._look(client, batch)
        if shapes not in self._plain:  # kernels are loaded and chosen when a shape is new, and not while capturing
            self._plain.add(shapes)
            return learn(client, batch, late=True)
        kept = self._kept[client.number]
        if shapes not in kept:
            captured = self._capture(client, batch)
            if captured is None:
                return learn(client, batch, late=True)
            kept[shapes] = captured
        return self._replay(client, kept[shapes], batch)

    def _start_anew(self, number: int, stands: tuple[float, ...]) -> None:
        for held in (self._stands, self._kept):
            held.pop(number, None)
        while len(self._kept) >= MOST_KEPT:
            oldest = next(iter(self._kept))
            del self._kept[oldest], self._stands[oldest]
            self._walked.pop(oldest, None)
        self._stands[number], self._kept[number] = stands, {}

    def _look(self, client: ClientNetwork, batch: Batch) -> Figures:
        """A plain step, looked at closely: a graph would repeat the random numbers it was captured with."""
        self._looked = True
        with Draws() as draws:
            found = learn(client, batch)
        if draws.by:
            self.why_not = f"a step draws random numbers ({draws.by})"
        elif told := [name for name, value in client.split.guard.notes.items() if not isinstance(value, Tensor)]:
            self.why_not = f"the guard computes figures of a step on the CPU ({', '.join(told)})"
        return found

    def _capture(self, client: ClientNetwork, batch: Batch) -> "_Captured | None":
        still = Batch(batch.x.clone(), batch.y.clone(), {name: v.clone() for name, v in batch.s.items()}, batch.seed)
        graph, step = torch.cuda.CUDAGraph(), client.remote.next_step()
        updates = self.server.bodies.version(client.number)
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        client.remote.continue_at(step)
        drawn = torch.cuda.get_rng_state(batch.x.device)
        try:
            with self.ledger.recording() as crossed, torch.cuda.graph(graph, pool=self._pool):
                terms = client.split.terms(still, client.remote)
                figures = terms | client.split.guard.notes
                values = torch.stack([value.detach().double() for value in figures.values()])  # type: ignore[union-attr]
                # In this thread, as plain steps: what a library begins with in another may not be done in a capture.
                backward(reduce(torch.add, terms.values()))
                if client.optimizer is not None:
                    client.optimizer.step()
                    drop_gradients(client.optimizer)
                counted = [fact for one in crossed if not isinstance(one.found, int) for fact in one.found.facts]
                facts = torch.cat([fact.reshape(-1).long() for fact in counted] or [values])
        except RuntimeError as error:
            self.why_not = f"this step cannot be captured: {str(error).splitlines()[0]}"
            torch.cuda.synchronize()
            _draw_again_from(drawn, batch.x.device)
            self.server.forget(client.number)
            client.split.zero_grad()  # what was captured of them was never computed
            client.remote.continue_at(step)
            return None
        messages = client.remote.next_step() - step
        client.remote.continue_at(step)
        self.server.settled(client.number)
        bodies = self.server.bodies
        assert isinstance(bodies, RoundBodies)
        steps = bodies.updates - updates
        bodies.updates = updates
        return _Captured(graph, still, list(terms), list(figures), values, crossed, facts, messages, steps)

    def _replay(self, client: ClientNetwork, captured: "_Captured", batch: Batch) -> Figures:
        in_training(client)
        captured.batch.x.copy_(batch.x)
        captured.batch.y.copy_(batch.y)
        for name, values in batch.s.items():
            captured.batch.s[name].copy_(values)
        captured.graph.replay()
        self.ledger.again(captured.crossed, captured.facts)
        for _ in range(captured.numbers):
            client.remote.next_step()
        assert isinstance(self.server.bodies, RoundBodies)
        self.server.bodies.updates += captured.updates
        client.steps += 1
        return Awaited(
            captured.figures, captured.values, partial(read_late, client, captured.terms, client.steps - 1)
        )

    def _tensors(self, client: ClientNetwork) -> tuple[int, ...]:
        """Where everything lies that a step reads or writes beside its batch."""
        places = [t.data_ptr() for held in self._held(client) for t in held.values() if t is not None]
        for optimizer in (client.optimizer, self.server.optimizer):
            for entries in optimizer.state.values() if optimizer is not None else ():
                places += [value.data_ptr() for value in entries.values() if isinstance(value, Tensor)]
        return tuple(places)

    def _held(self, client: ClientNetwork) -> list[Mapping[str, Tensor | None]]:
        """Where modules of both sides keep their tensors. Walking through them takes longer than a small step."""
        body = self.server.bodies.of(client.number)
        parts = (body, client.split, *client.split.children())
        known = self._walked.get(client.number)
        if known is None or known[0] != parts:
            inside = [part for side in parts[:2] for part in side.modules()]
            found: list[Mapping[str, Tensor | None]] = [part._parameters for part in inside]
            known = self._walked[client.number] = (parts, found + [part._buffers for part in inside])
        return known[1]

    def _rates(self, client: ClientNetwork) -> Iterator[float]:
        for optimizer in (client.optimizer, self.server.optimizer):
            for group in optimizer.param_groups if optimizer is not None else ():
                yield group["lr"]


def _draw_again_from(state: Tensor, device: torch.device) -> None:
    """A capture that fails leaves the device's generator waiting for its end, and dropout is refused from then on."""
    fresh = torch.Generator(device)
    fresh.set_state(state)
    index = torch.cuda.current_device() if device.index is None else device.index
    torch.cuda.default_generators[index].graphsafe_set_state(fresh.graphsafe_get_state())


class _Captured(NamedTuple):
    """A step that only needs its batch."""

    graph: "torch.cuda.CUDAGraph"
    batch: Batch
    terms: list[str]  # of the loss
    figures: list[str]  # these, and what the guard notes
    values: Tensor  # of the figures
    crossed: list[Noted]
    facts: Tensor  # that their bytes hang on
    numbers: int  # of steps at the remote, that the messages took
    updates: int  # of the body


class Draws(TorchDispatchMode):
    """Notices operations that draw random numbers: `by` names the first."""

    def __init__(self) -> None:
        super().__init__()
        self.by = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags and not self.by:
            self.by = str(func)
        return func(*args, **(kwargs or {}))


def why_not_captured(plan: Plan, device: torch.device, watched: bool) -> str | None:
    """Why steps of a plan run as they are, from what is known before the first one; None: they may be captured."""
    if device.type != "cuda":
        return f"graphs are CUDA's, and this runs on {device.type}"
    if watched:
        return "somebody stands at the server and may rewrite what crosses"
    if plan.client_detectors or plan.micro_batches > 1 or plan.rounds.fused or plan.rounds.merges:
        return "detectors, micro-batches, waves and merged rounds do more in a step than compute"
    if plan.rounds.ahead:
        return "a step begins before the one before it is over"
    if not plan.guard.capturable:
        return f"{plan.guard} does more in a step than tensors tell"
    if plan.compression != Compression():
        return "answers or gradients are compressed, which may draw"
    return None
