"""A plan in motion, whoever carries the messages: whose turn it is, from which weights, and how it went so far."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean
from typing import Any

import torch
from torch import Tensor

from .ledger import DOWN, UP, Ledger
from .message import Kind, Message
from .optimizers import set_rate
from .plan import Plan
from .rounds import Turn, turns
from .rules import Update
from .server import Server
from .turn import State, load_optimizer, lost_numbers, optimizer_state
from .worker import weights_in


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


class Course:
    """The server's side of a run. An engine says how a client is asked (`ask`), and how what it has is kept."""

    def __init__(self, plan: Plan, server: Server, batches: Sequence[int]):
        self.plan, self.server, self.batches = plan, server, list(batches)
        self.ledger = Ledger()
        self.steps = plan.epochs * sum(batches)
        self.shared: State = {}  # what a relay last brought back; empty while heads are the clients' own
        self.taken = [0] * plan.clients  # steps of each client so far
        self.epoch = self.turn = self.step = 0
        self.sums: dict[str, tuple[float, int]] = {}  # of each term: total, and how many batches had it
        self.seconds = 0.0
        self.history: list[dict[str, Any]] = []
        self.best = Best()
        self._on_step: Callable[[Progress], None] = lambda progress: None

    # ------------------------------------------------------------- an engine's part
    def ask(self, client: int, order: Message) -> Message:
        """Have a client follow an order, and return its answer."""
        raise NotImplementedError

    def accuracies(self, purpose: str) -> list[float]:
        """Of every distinct client network on data held out for `purpose`; empty without such data."""
        raise NotImplementedError

    def best_now(self) -> dict[str, Tensor]:
        """Keep what the best epoch so far is made of; returns what of it is kept in memory."""
        return {}

    def after_turn(self) -> None:
        """Between two turns."""

    # -------------------------------------------------------------------- training
    def train(
        self,
        *,
        on_step: Callable[[Progress], None] = lambda progress: None,
        on_epoch: Callable[[], None] = lambda: None,
        stop: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Run to the end, or until `stop` says so between two turns. True: the plan is finished."""
        self._on_step = on_step
        while not self.finished():
            if not self._run_epoch(stop):
                return False
            on_epoch()
        return True

    def finished(self) -> bool:
        patience = self.plan.patience
        return self.epoch >= self.plan.epochs or bool(patience and self.epoch - self.best.epoch >= patience)

    @property
    def relays(self) -> bool:
        """Whether one head and tail are handed on from client to client, by way of the server."""
        return self.plan.shared and self.plan.clients > 1

    def _run_epoch(self, stop: Callable[[], bool]) -> bool:
        factor = self.plan.schedule.factor(self.epoch, self.plan.epochs)
        set_rate(self.server.optimizer, self.plan.server_optimizer.lr * factor)
        schedule = list(turns(self.batches, self.plan.turn))
        while self.turn < len(schedule):
            if stop():
                return False
            began = time.perf_counter()
            self.take(schedule[self.turn])
            self.turn += 1
            self.seconds += time.perf_counter() - began
            self.after_turn()
        self._close_epoch()
        return True

    def take(self, turn: Turn) -> None:
        """One client's turn, and which weights the next one starts from."""
        number, kind = turn.client, Kind.WEIGHTS if self.relays else Kind.TURN
        what = torch.tensor([self.epoch, turn.first, turn.last])
        order = Message(kind, number, self.taken[number], {"turn": what, **self.shared})
        self.ledger.note(order, DOWN)
        done = self.ask(number, order)
        self.ledger.note(done, UP)
        self.taken[number] += turn.last - turn.first
        if self.relays:
            self.shared = self.plan.rule(self.shared, [Update(weights_in(done), int(done["samples"]))])

    def learnt(self, terms: Mapping[str, float] | None = None) -> None:
        """A step was made; `terms` are those of its loss, where the engine is told."""
        self.step += 1
        for name, value in (terms or {}).items():
            total, count = self.sums.get(name, (0.0, 0))
            self.sums[name] = (total + value, count + 1)
        self._on_step(Progress(self.epoch, self.step, self.steps, terms or {}))

    def _close_epoch(self) -> None:
        self.turn, self.epoch = 0, self.epoch + 1
        row: dict[str, Any] = {"epoch": self.epoch, "step": self.step, "seconds": round(self.seconds, 3)}
        row |= {name: total / count for name, (total, count) in self.sums.items()}
        self.sums = {}
        self._refuse_non_finite_weights()
        if accuracies := self.accuracies("validate"):
            row["val"] = mean(accuracies)
            if row["val"] > self.best.accuracy:
                self.best = Best(row["val"], self.epoch, self.best_now() if self.plan.patience else {})
        self.history.append(row)

    def _refuse_non_finite_weights(self) -> None:
        for name, tensor in self.tensors().items():
            if tensor.is_floating_point() and not torch.isfinite(tensor).all():
                raise lost_numbers(f"the weights are non-finite after step {self.step} ({name})", self.peaks())

    def peaks(self) -> dict[str, float]:
        """The largest value of each term of the loss, where the engine is told."""
        return {}

    # ----------------------------------------------------------------- carry it on
    def tensors(self) -> State:
        """Everything of the server's that the next turn depends on."""
        tensors = {f"server/net.{name}": t.clone() for name, t in self.server.body.state_dict().items()}
        tensors |= {f"server/{name}": t for name, t in optimizer_state(self.server.optimizer).items()}
        # Copies: what is kept of the best epoch lies beside it in one file, which holds no tensor twice.
        return tensors | {f"shared/{name}": t.clone() for name, t in self.shared.items()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        device = next((p.device for p in self.server.body.parameters()), torch.device("cpu"))
        own: dict[str, State] = {"server": {}, "shared": {}}
        for key, tensor in tensors.items():
            party, name = key.split("/", 1)
            if party in own:
                own[party][name] = tensor.to(device)
        net = {k.removeprefix("net."): t for k, t in own["server"].items() if k.startswith("net.")}
        self.server.body.load_state_dict(net)
        self.server.body.zero_grad()
        load_optimizer(self.server.optimizer, own["server"])
        self.shared = own["shared"]

    def snapshot(self) -> tuple[State, dict[str, Any]]:
        """(tensors, plain facts): all that the next step depends on, and what the report will say."""
        tensors = self.tensors() | {f"best/{name}": tensor for name, tensor in self.best.tensors.items()}
        facts = {
            "epoch": self.epoch,
            "turn": self.turn,
            "step": self.step,
            "client_steps": list(self.taken),
            "sums": dict(self.sums),
            "seconds": self.seconds,
            "history": list(self.history),
            "best": [self.best.accuracy, self.best.epoch],
            "ledger": self.ledger.as_dict(),
        }
        return tensors, facts

    def restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        self.load({name: tensor for name, tensor in tensors.items() if not name.startswith("best/")})
        self.epoch, self.turn, self.step = facts["epoch"], facts["turn"], facts["step"]
        self.taken = list(facts["client_steps"])
        self.sums = {name: (total, count) for name, (total, count) in facts["sums"].items()}
        self.seconds, self.history = facts["seconds"], list(facts["history"])
        kept = {name.removeprefix("best/"): t for name, t in tensors.items() if name.startswith("best/")}
        accuracy, epoch = facts["best"]
        self.best = Best(accuracy, epoch, kept)
        restored = Ledger.from_dict(facts["ledger"])
        self.ledger.bytes, self.ledger.messages = restored.bytes, restored.messages
        self.ledger.samples = restored.samples
