"""Server and clients in one process: messages are function calls, and everything else is as between machines."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..course import Best as Best
from ..course import Course
from ..course import Progress as Progress
from ..data.base import Parts, Samples
from ..message import Handler, Message, Watcher, through
from ..nets.weights import whole_state
from ..parties import build_server
from ..plan import Plan
from ..seeds import derive
from ..split import Bypass
from ..turn import Client, State, export, load
from ..worker import Worker, refuse_too_few
from ..worker import as_batch as as_batch
from ..worker import task_of as task_of


class LocalRun(Course):
    """A plan in motion. `train` may be stopped after any turn, `snapshot` and `restore` carry it on exactly."""

    def __init__(
        self,
        plan: Plan,
        parts: Parts,
        *,
        classes: int,
        device: torch.device | str = "cpu",
        at_server: Sequence[Watcher] = (),
        wrap: Callable[[Handler], Handler] = lambda handler: handler,
    ):
        plan = plan.with_secrets()
        self.parts, self.device = parts, torch.device(device)
        self.task = task_of(parts.private, classes)
        shares = plan.partition.assign(parts.private, plan.clients, derive(plan.seed, "partition"))
        counts = {f"client {number}": len(share) for number, share in enumerate(shares)}
        refuse_too_few(plan, counts | {"the validation data": len(parts.val), "the test data": len(parts.test)})
        server = build_server(plan.public(), self.task, self.device)
        super().__init__(plan, server, [])
        corridor = through([self.ledger], wrap(through(at_server, server.handle)))
        held_out = {"validate": parts.val, "test": parts.test}
        self.workers = [
            Worker(
                plan, self.task, number, parts.private[share], held_out, corridor, ledger=self.ledger, device=device
            )
            for number, share in enumerate(shares)
        ]
        self.batches = [worker.batches for worker in self.workers]
        self.steps = plan.epochs * sum(self.batches)
        for worker in self.workers:
            worker.on_step = lambda epoch, terms: self.learnt(terms)

    @property
    def clients(self) -> list[Client]:
        return [worker.client for worker in self.workers]

    @property
    def samples(self) -> list[Samples]:
        """Each client's own."""
        return [worker.samples for worker in self.workers]

    def ask(self, client: int, order: Message) -> Message:
        return self.workers[client].handle(order)

    def batch_of(self, client: int, step: int) -> Tensor:
        """Which of its samples a client's step was about."""
        worker, (whole, number) = self.workers[client], divmod(step, self.plan.pieces)
        epoch, place = divmod(whole, self.batches[client])
        pieces = worker.pieces(worker.order(epoch)[place])
        return pieces[number - self.plan.pieces]  # counted from the last

    def peaks(self) -> dict[str, float]:
        names = {name for client in self.clients for name in client.peaks}
        return {name: max(client.peaks.get(name, 0.0) for client in self.clients) for name in sorted(names)}

    # ---------------------------------------------------------------- evaluation
    def accuracies(self, purpose: str) -> list[float]:
        return self._accuracies(purpose, None)

    def _accuracies(self, purpose: str, samples: Samples | None) -> list[float]:
        alike = self.plan.shared and self.plan.guarded is None
        found = []
        for worker in self.workers[:1] if alike else self.workers:
            if self.shared:
                load(worker.client, self.shared)
            right, count = worker.evaluate(purpose, self.epoch, samples)
            found += [right / count] if count else []
        return found

    def evaluate(self, samples: Samples) -> list[float]:
        """Accuracy of every distinct client network: one number for shared heads, one per client for own heads."""
        return self._accuracies("validate" if samples is self.parts.val else "test", samples)

    def best_now(self) -> dict[str, Tensor]:
        return self.tensors()

    def use_best(self) -> None:
        """Go back to the best epoch, where one was kept."""
        if self.best.tensors:
            self.load(self.best.tensors)

    def network(self) -> State | None:
        """Head, body and tail as one state dict that `--weights` reads; None where clients have their own."""
        if not self.plan.shared and self.plan.clients > 1:
            return None
        split = self.clients[0].split
        if self.shared:
            load(self.clients[0], self.shared)
        body = list(self.server.body)[2 if self.plan.protocol is Bypass else 1]  # type: ignore[call-overload]
        tail = split.tail if self.plan.protocol.labels_stay_home else self.server.body[-1]  # type: ignore[index]
        return whole_state(self.plan.net, head=split.head, body=body, tail=tail)

    def start_from(self, other: "LocalRun") -> None:
        """Take over the networks of another run of the same plan, but not its guard: to fit a guard to them."""
        for client, theirs in zip(self.clients, other.clients, strict=True):
            if other.shared:
                load(theirs, other.shared)
            for name, module in theirs.split.named_children():
                if name != "guard":
                    client.split.get_submodule(name).load_state_dict(module.state_dict())
        # The first part of the server's side is the guard's lift.
        for ours, module in zip(list(self.server.body)[1:], list(other.server.body)[1:], strict=True):  # type: ignore[call-overload]
            ours.load_state_dict(module.state_dict())

    # -------------------------------------------------------------- carry it on
    def tensors(self) -> State:
        tensors = super().tensors()
        for client in self.clients if not self.shared else ():
            tensors |= {f"client{client.number}/{name}": t for name, t in export(client).items()}
        return tensors

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        super().load(tensors)
        for client in self.clients:
            prefix = f"client{client.number}/"
            own = {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
            if state := self.shared or own:
                load(client, {name: t.to(self.device) for name, t in state.items()})

    def restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        super().restore(tensors, facts)
        for worker, steps in zip(self.workers, self.taken, strict=True):
            worker.continue_at(steps)
