"""Server and clients in one process: messages are function calls, and everything else is as between machines."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean
from typing import Any

import torch
from torch import Tensor

from ..batch import Batch, Task, epoch_batches, in_batches
from ..data.base import Parts, Samples
from ..ledger import DOWN, UP, Ledger
from ..message import Handler, Kind, Message, Watcher, through
from ..nets.weights import whole_state
from ..optimizers import set_rate
from ..parties import build_client, build_server
from ..plan import Plan, steps_per_epoch
from ..rounds import turns
from ..rules import Update
from ..seeds import derive
from ..split import Bypass
from ..turn import Client, State, export, learn, load, load_optimizer, lost_numbers, optimizer_state, predict

EVALUATION_BATCH = 500


@dataclass(frozen=True)
class Progress:
    """Where a run stands after a step."""

    epoch: int
    step: int
    steps: int
    terms: Mapping[str, float]


@dataclass
class Best:
    """The best epoch so far by validation accuracy."""

    accuracy: float = -1.0
    epoch: int = 0
    tensors: dict[str, Tensor] = field(default_factory=dict)


class LocalRun:
    """A plan in motion. `train` may be stopped after any step, `snapshot` and `restore` carry it on exactly."""

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
        self.plan, self.device = plan.with_secrets(), torch.device(device)
        self.parts = parts
        self.task = task_of(parts.private, classes)
        self.server = build_server(self.plan.public(), self.task, self.device)
        self.ledger = Ledger()
        corridor = through([self.ledger], wrap(through(at_server, self.server.handle)))
        shares = plan.partition.assign(parts.private, plan.clients, derive(plan.seed, "partition"))
        self.samples = [_on(parts.private[share], self.device) for share in shares]
        self._refuse_too_few_samples()
        self.clients = [
            build_client(self.plan, self.task, number, corridor, self.device) for number in range(plan.clients)
        ]
        self.steps = plan.epochs * steps_per_epoch([len(own) for own in self.samples], plan.batch, plan.least_batch)
        self.shared: State = {}  # what a relay last brought back; empty while heads are the clients' own
        self.epoch = self.turn = self.step = 0
        self.sums: dict[str, tuple[float, int]] = {}  # of each term: total, and how many batches had it
        self.seconds = 0.0
        self.history: list[dict[str, Any]] = []
        self.best = Best()

    # ------------------------------------------------------------------ training
    def train(
        self,
        *,
        on_step: Callable[[Progress], None] = lambda progress: None,
        on_epoch: Callable[[], None] = lambda: None,
        stop: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Run to the end, or until `stop` says so between two steps. True: the plan is finished."""
        while not self.finished():
            if not self._epoch(on_step, stop):
                return False
            on_epoch()
        return True

    def finished(self) -> bool:
        patience = self.plan.patience
        return self.epoch >= self.plan.epochs or bool(patience and self.epoch - self.best.epoch >= patience)

    def _epoch(self, on_step: Callable[[Progress], None], stop: Callable[[], bool]) -> bool:
        self._set_rates()
        orders = [
            epoch_batches(len(own), self.plan.batch, self._secret(client, "order", self.epoch), self.plan.least_batch)
            for client, own in enumerate(self.samples)
        ]
        schedule = list(turns([len(order) for order in orders], self.plan.turn))
        while self.turn < len(schedule):
            if stop():
                return False
            began = time.perf_counter()
            client, first, last = schedule[self.turn]
            self._take_over(self.clients[client])
            learnt = 0
            for index in orders[client][first:last]:
                terms = learn(self.clients[client], self._batch(client, index))
                learnt += len(index)
                self.ledger.samples["training"] += len(index)
                self.step += 1
                for name, value in terms.items():
                    total, count = self.sums.get(name, (0.0, 0))
                    self.sums[name] = (total + value, count + 1)
                on_step(Progress(self.epoch, self.step, self.steps, terms))
            self._bring_back(self.clients[client], learnt)
            self.turn += 1
            self.seconds += time.perf_counter() - began
        self._close_epoch()
        return True

    def _close_epoch(self) -> None:
        self.turn, self.epoch = 0, self.epoch + 1
        row: dict[str, Any] = {"epoch": self.epoch, "step": self.step, "seconds": round(self.seconds, 3)}
        row |= {name: total / count for name, (total, count) in self.sums.items()}
        self.sums = {}
        self._refuse_non_finite_weights()
        if len(self.parts.val):
            accuracies = self.evaluate(self.parts.val)
            row["val"] = mean(accuracies)
            if row["val"] > self.best.accuracy:
                self.best = Best(row["val"], self.epoch, self._tensors() if self.plan.patience else {})
        self.history.append(row)

    def _take_over(self, client: Client) -> None:
        """Start from what the last client left, where heads are shared."""
        if self.shared:
            self.ledger.note(Message(Kind.WEIGHTS, client.number, client.steps, self.shared), DOWN)
            load(client, self.shared)

    def _bring_back(self, client: Client, samples: int) -> None:
        if self.plan.shared and self.plan.clients > 1:
            update = Update(export(client), samples)
            self.ledger.note(Message(Kind.WEIGHTS, client.number, client.steps, update.state), UP)
            self.shared = self.plan.rule(self.shared, [update])

    def _refuse_too_few_samples(self) -> None:
        least = self.plan.guard.least_batch
        counts = {f"client {number}": len(own) for number, own in enumerate(self.samples)}
        counts |= {"the validation data": len(self.parts.val), "the test data": len(self.parts.test)}
        for whose, count in counts.items():
            if 0 < count < least or (count == 0 and whose.startswith("client") and least > 1):
                raise ValueError(
                    f"{whose} has {count} samples, {self.plan.guard} needs {least} at a time: "
                    "fewer clients, more data, or a smaller k"
                )

    def _batch(self, client: int, index: Tensor) -> Batch:
        return as_batch(self.samples[client], index, self._secret(client, "step", self.clients[client].steps))

    def batch_of(self, client: int, step: int) -> Tensor:
        """Which of its samples a client's step was about. The server cannot tell: the order is a secret."""
        count, least = len(self.samples[client]), self.plan.least_batch
        epoch, place = divmod(step, steps_per_epoch([count], self.plan.batch, least))
        return epoch_batches(count, self.plan.batch, self._secret(client, "order", epoch), least)[place]

    def _secret(self, client: int, *names: object) -> int:
        assert self.plan.private_seed is not None
        return derive(derive(self.plan.private_seed, "client", client), *names)

    def _set_rates(self) -> None:
        factor = self.plan.schedule.factor(self.epoch, self.plan.epochs)
        set_rate(self.server.optimizer, self.plan.server_optimizer.lr * factor)
        for client in self.clients:
            set_rate(client.optimizer, self.plan.client_optimizer.lr * factor)

    def _refuse_non_finite_weights(self) -> None:
        for name, tensor in self._tensors().items():
            if tensor.is_floating_point() and not torch.isfinite(tensor).all():
                raise lost_numbers(f"the weights are non-finite after step {self.step} ({name})", self._peaks())

    def _peaks(self) -> dict[str, float]:
        """The largest value of each term over all clients."""
        names = {name for client in self.clients for name in client.peaks}
        return {name: max(client.peaks.get(name, 0.0) for client in self.clients) for name in sorted(names)}

    # ---------------------------------------------------------------- evaluation
    def evaluate(self, samples: Samples) -> list[float]:
        """Accuracy of every distinct client network: one number for shared heads, one per client for own heads.

        Guards act here as they do in service. One that mixes samples gets batches of the size it was trained with: in
        a larger one it would find closer neighbours.
        """
        seen = _on(samples, self.device)
        purpose = "validate" if samples is self.parts.val else "test"
        size = self.plan.batch if self.plan.guard.mixes_samples else EVALUATION_BATCH
        pieces = in_batches(torch.arange(len(seen)), size, self.plan.least_batch)
        accuracies = []
        for client in self.clients[:1] if self.plan.shared and self.plan.guarded is None else self.clients:
            if self.shared:
                load(client, self.shared)
            batches = (
                as_batch(seen, index, self._secret(client.number, purpose, self.epoch, number))
                for number, index in enumerate(pieces)
            )
            accuracies.append(float((predict(client, batches).argmax(1) == seen.y).double().mean()))
            self.ledger.samples["predicting"] += len(seen)
        return accuracies

    def use_best(self) -> None:
        """Go back to the best epoch, where one was kept."""
        if self.best.tensors:
            self._load(self.best.tensors)

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
    def snapshot(self) -> tuple[State, dict[str, Any]]:
        """(tensors, plain facts): all that the next step depends on, and what the report will say."""
        tensors = self._tensors() | {f"best/{name}": tensor for name, tensor in self.best.tensors.items()}
        facts = {
            "epoch": self.epoch,
            "turn": self.turn,
            "step": self.step,
            "client_steps": [client.steps for client in self.clients],
            "sums": self.sums,
            "seconds": self.seconds,
            "history": self.history,
            "best": [self.best.accuracy, self.best.epoch],
            "ledger": self.ledger.as_dict(),
        }
        return tensors, facts

    def restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        self._load({name: tensor for name, tensor in tensors.items() if not name.startswith("best/")})
        self.epoch, self.turn, self.step = facts["epoch"], facts["turn"], facts["step"]
        self.sums = {name: (total, count) for name, (total, count) in facts["sums"].items()}
        self.seconds, self.history = facts["seconds"], list(facts["history"])
        kept = {name.removeprefix("best/"): t for name, t in tensors.items() if name.startswith("best/")}
        accuracy, epoch = facts["best"]
        self.best = Best(accuracy, epoch, kept)
        restored = Ledger.from_dict(facts["ledger"])
        self.ledger.bytes, self.ledger.messages = restored.bytes, restored.messages
        self.ledger.samples = restored.samples
        for client, steps in zip(self.clients, facts["client_steps"], strict=True):
            client.steps = steps
            client.remote.continue_at(steps)

    def _tensors(self) -> State:
        tensors = {f"server/net.{name}": t.clone() for name, t in self.server.body.state_dict().items()}
        tensors |= {f"server/{name}": t for name, t in optimizer_state(self.server.optimizer).items()}
        tensors |= {f"shared/{name}": t for name, t in self.shared.items()}
        for client in self.clients if not self.shared else ():
            tensors |= {f"client{client.number}/{name}": t for name, t in export(client).items()}
        return tensors

    def _load(self, tensors: Mapping[str, Tensor]) -> None:
        own: dict[str, State] = {}
        for key, tensor in tensors.items():
            party, name = key.split("/", 1)
            own.setdefault(party, {})[name] = tensor.to(self.device)
        server = own.get("server", {})
        self.server.body.load_state_dict(
            {k.removeprefix("net."): t for k, t in server.items() if k.startswith("net.")}
        )
        load_optimizer(self.server.optimizer, server)
        self.shared = own.get("shared", {})
        for client in self.clients:
            state = self.shared or own.get(f"client{client.number}")
            if state:
                load(client, state)


def task_of(samples: Samples, classes: int) -> Task:
    """What both sides are told of the data."""
    attributes = {name: int(values.max()) + 1 for name, values in samples.s.items() if len(values)}
    return Task(tuple(samples.x.shape[1:]), classes, attributes)


def as_batch(samples: Samples, index: Tensor, seed: int = 0) -> Batch:
    """Rows of `samples` as the batch of one step, in torch's default precision."""
    images = samples.images(index.to(samples.y.device)).to(torch.get_default_dtype())
    return Batch(images, samples.y[index], {name: values[index] for name, values in samples.s.items()}, seed)


def _on(samples: Samples, device: torch.device) -> Samples:
    if device.type == "cpu":
        return samples
    moved = {name: values.to(device) for name, values in samples.s.items()}
    return Samples(samples.x.to(device), samples.y.to(device), moved, samples.identity)
