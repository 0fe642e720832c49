"""A plan in motion, whoever carries the messages: whose turn it is, from which weights, and how it went so far."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import mean
from typing import Any

import torch
from torch import Tensor

from ..core.errors import NonFinite
from ..core.message import Kind, Message
from ..core.seeds import derive
from ..core.server import Server
from ..core.state import State, load_optimizer, named, optimizer_state
from ..detectors import ServerContext, ServerWatch
from ..rules import Update, sound
from ..rules.base import CONTROL, MEMORY, NET, STAT
from ..wire.ledger import DOWN, UP, Ledger
from .bodies import RoundBodies
from .orders import weights_in
from .plan.optimizers import set_rate
from .plan.plan import Plan
from .plan.roles import Frozen, Role
from .plan.schedule import Turn, Wave, epoch_rounds
from .step import lost_numbers


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


class Coordinator:
    """The server's side of a run. An engine says how a client is asked (`ask`), and how what it has is kept."""

    def __init__(self, plan: Plan, server: Server, batches: Sequence[int]):
        self.plan, self.server, self.batches = plan, server, list(batches)
        self.ledger = Ledger()
        self.shared: State = {}  # what was last brought back or merged; empty while heads are the clients' own
        self.memory: State = {}  # what the rule remembers; no client sees it
        self.rejected: list[dict[str, Any]] = []  # updates that were not merged, and why
        self.taken = [0] * plan.clients  # steps of each client so far
        self.epoch = self.turn = self.step = 0
        self.lock = threading.RLock()  # an engine may answer several clients at a time
        self.sums: dict[str, tuple[float, int]] = {}  # of each term: total, and how many batches had it
        self.seconds = 0.0
        self.history: list[dict[str, Any]] = []
        self.best = Best()
        self._on_step: Callable[[Progress], None] = lambda progress: None
        self._schedules: dict[int, list[tuple[Turn, ...]]] = {}
        self.watches: list[ServerWatch] = []
        assert isinstance(server.bodies, RoundBodies)
        self.bodies = server.bodies

    def start_detectors(self) -> list[ServerWatch]:
        """The server's own detectors, once it is known how many batches clients have; messages pass through them."""
        plan, longest = self.plan, max(self.batches, default=0)
        passes = plan.epochs * -(-longest // (plan.local_steps or max(1, longest)))
        context = ServerContext(
            plan.clients,
            plan.clients_per_round or plan.clients,
            plan.epochs,
            passes,
            plan.protocol.labels_stay_home,
            derive(plan.seed, "watch"),
        )
        self.watches = [one.start(context) for one in plan.server_detectors]
        return self.watches

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
        """Between two rounds."""

    def gather(self, turns: Sequence[Turn]) -> list[Message | None]:
        """The answers of all clients of a round, one after the other; None of those whose update is rejected."""
        return [self.committed(turn, self._answer(turn)) for turn in turns]

    def committed(self, turn: Turn, done: Message | None) -> Message | None:
        """In the order of the turns: what a client brought is looked at, and counts or is left out."""
        if done is None or not self.plan.rounds.merges:
            return done
        with self.lock:
            if self.relays and not turn.frozen and (why := sound(self.shared, [self._update(done)])[1]):
                self.reject(turn.client, why[0])
                return None
            if not self.bodies.copies:  # those count when they are merged
                self.bodies.commit(turn.client)
        return done

    def _update(self, done: Message) -> Update:
        rounds = self.plan.rounds
        even = isinstance(rounds, Wave) and rounds.weights == "even"
        return Update(weights_in(done), 1 if even else int(done["samples"]))

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
        return self.plan.shared_client_network and (self.plan.clients > 1 or self.plan.rounds.merges)

    def _run_epoch(self, stop: Callable[[], bool]) -> bool:
        factor = self.plan.schedule.factor(self.epoch, self.plan.epochs)
        set_rate(self.server.optimizer, self.plan.server_optimizer.lr * factor)
        schedule = self.schedule(self.epoch)
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

    @property
    def alike(self) -> bool:
        """Whether all clients have one and the same network, so that one of them can speak for all."""
        return (
            self.plan.shared_client_network and self.plan.guarded_clients is None and not self.plan.roles.keeps_heads
        )

    def heads_of_their_own(self) -> frozenset[int]:
        """Clients that hold on to another head than the shared one."""
        plan = self.plan
        if not plan.shared_client_network or not plan.roles.keeps_heads:
            return frozenset()
        parts = plan.roles.at(0, plan.clients, plan.seed)
        return frozenset(client for client, role in enumerate(parts) if role is Role.FROZEN)

    def schedule(self, epoch: int) -> list[tuple[Turn, ...]]:
        """The rounds of an epoch."""
        if epoch not in self._schedules:
            plan = self.plan
            if len(self._schedules) > 1:  # of very many clients one is long
                self._schedules.clear()
            self._schedules[epoch] = epoch_rounds(
                plan.rounds,
                plan.roles,
                self.batches,
                plan.local_steps,
                plan.clients_per_round,
                epoch=epoch,
                seed=plan.seed,
            )
        return self._schedules[epoch]

    @cached_property
    def steps(self) -> int:
        """Of the whole plan, all clients together."""
        alike = self.plan.clients_per_round is None and not isinstance(self.plan.roles, Frozen)
        epochs = range(1 if alike else self.plan.epochs)
        count = sum(turn.last - turn.first for epoch in epochs for one in self.schedule(epoch) for turn in one)
        return count * (self.plan.epochs if alike else 1)

    def take(self, turns: Sequence[Turn]) -> None:
        """One round, and which weights the next one starts from."""
        if self.relays and self.plan.rounds.merges and not self.shared:
            self._begin_alike(turns[0].client)
        self.server.open_round({turn.client for turn in turns if turn.frozen})
        self.bodies.open_round()
        answers = self.gather(turns)
        with self.lock:  # somebody may be predicting
            self.bodies.close_round()
        came = [(turn, done) for turn, done in zip(turns, answers, strict=True) if done is not None]
        if self.plan.rounds.merges:
            with self.lock:
                self._merge(came)
        elif self.relays and came and not came[-1][0].frozen:
            done = came[-1][1]
            self.shared = self.plan.rule(self.shared, [Update(weights_in(done), int(done["samples"]))])
        for watch in self.watches:
            watch.turned([turn.client for turn, _ in came])

    def order(self, turn: Turn) -> Message:
        """What a client is told to do, and the weights it starts from."""
        what = torch.tensor([self.epoch, turn.first, turn.last, int(turn.frozen)])
        if not self.relays or (turn.frozen and not (turn.inherits and self.shared)):
            return Message(Kind.TURN, turn.client, self.taken[turn.client], {"turn": what})
        kinds = (NET, STAT) if turn.frozen else self.plan.rule.travels
        start = {name: tensor for name, tensor in self.shared.items() if name.startswith(kinds)}
        return Message(Kind.WEIGHTS, turn.client, self.taken[turn.client], {"turn": what, **start})

    def shown(self) -> State:
        """The shared weights, for clients that do not learn from them now."""
        return {name: t for name, t in self.shared.items() if not name.startswith(CONTROL)}

    def _answer(self, turn: Turn) -> Message | None:
        """A client's answer to its order. In a round of several, one whose numbers are gone is left out."""
        order = self.order(turn)
        with self.lock:
            self.ledger.note(order, DOWN)
        merges = self.plan.rounds.merges
        before = self.bodies.before_turn() if merges else None
        done = self.ask(turn.client, order)
        with self.lock:
            self.ledger.note(done, UP)
            self.taken[turn.client] += turn.last - turn.first
        lost = self.bodies.lost_numbers() if before is not None else ""
        if merges and not int(done["samples"]):
            lost = "its numbers were gone (NaN or infinity) before its turn was over"
        if not lost:
            return done
        with self.lock:
            if before is not None:
                self.bodies.go_back(before)
            self.reject(turn.client, lost)
        return None

    def reject(self, client: int, why: str) -> None:
        """An update is left out of its round, which goes on."""
        self.server.forget(client)
        self.rejected.append({"client": client, "epoch": self.epoch + 1, "round": self.turn, "why": why})

    def _begin_alike(self, client: int) -> None:
        """All clients start from one client's weights. It makes no step for it."""
        order = Message(Kind.WEIGHTS, client, self.taken[client], {"turn": torch.tensor([self.epoch, 0, 0, 0])})
        self.ledger.note(order, DOWN)
        done = self.ask(client, order)
        self.ledger.note(done, UP)
        brought = Update(weights_in(done), 1)
        if why := sound({}, [brought])[1]:
            raise NonFinite(f"client {client} cannot give the others their first weights: {why[0]}")
        self.shared = {name: t for name, t in brought.state.items() if name.startswith((NET, STAT))}

    def _merge(self, came: Sequence[tuple[Turn, Message]]) -> None:
        """One state of what the clients of a round brought: their heads, and their bodies where each has its own."""
        body = _body(named(self.server.body)) if self.bodies.copies else {}
        heads: dict[int, Update] = {}
        bodies: dict[int, Update] = {}
        for turn, done in came:
            head = {turn.client: self._update(done)} if self.relays and not turn.frozen else {}
            samples = int(done["samples"])
            own = {turn.client: Update(_body(self.bodies.collect(turn.client)), samples)} if body else {}
            if why := sound(body, list(own.values()))[1]:
                self.reject(turn.client, why[0])
                continue
            self.bodies.commit(turn.client)
            heads, bodies = heads | head, bodies | own
        if heads and heads.keys() == bodies.keys():  # together: a robust rule looks at a client as a whole
            whole = [Update({**heads[one].state, **bodies[one].state}, heads[one].samples) for one in heads]
            merged = self._merged({**self.shared, **body}, whole)
        else:  # a frozen client's body has learnt, and its head has nothing to say
            merged = self._merged(self.shared, list(heads.values())) | self._merged(body, list(bodies.values()))
        if bodies:
            self.bodies.take_over({_unbody(name): t for name, t in merged.items() if _unbody(name)})
        if heads:
            self.shared = dict(sorted((name, t) for name, t in merged.items() if not _unbody(name)))

    def _merged(self, current: State, updates: list[Update]) -> State:
        """By the rule, whose memory stays here."""
        rule = self.plan.rule
        if 0 < len(updates) < rule.least:  # a median of one is that one
            why = f"{len(updates)} update(s) in this round, and {rule!r} needs {rule.least}: none is merged"
            self.rejected.append({"client": None, "epoch": self.epoch + 1, "round": self.turn, "why": why})
        if len(updates) < rule.least:
            return current
        merged = rule.among(len(updates), self.plan.clients)({**current, **self.memory}, updates)
        self.memory |= {name: t for name, t in merged.items() if name.startswith(MEMORY)}
        return {name: t for name, t in merged.items() if name.startswith((NET, STAT, CONTROL))}

    def learnt(self, terms: Mapping[str, float] | None = None) -> None:
        """A step was made; `terms` are those of its loss, where the engine is told."""
        self.step += 1
        for name, value in (terms or {}).items():
            total, count = self.sums.get(name, (0.0, 0))
            self.sums[name] = (total + value, count + 1)
        self._on_step(Progress(self.epoch, self.step, self.steps, terms or {}))

    def so_far(self) -> dict[str, Any]:
        """The history's row of an epoch, as far as it has come."""
        row: dict[str, Any] = {"epoch": self.epoch, "step": self.step, "seconds": round(self.seconds, 3)}
        return row | {name: total / count for name, (total, count) in self.sums.items()}

    def _close_epoch(self) -> None:
        self.turn, self.epoch = 0, self.epoch + 1
        for watch in self.watches:
            watch.epoch_over()
        row = self.so_far()
        self.sums = {}
        self._refuse_non_finite_weights()
        if accuracies := self.accuracies("validate"):
            row["val"] = mean(accuracies)
            if row["val"] > self.best.accuracy:
                self.best = Best(row["val"], self.epoch, self.best_now() if self.plan.patience else {})
        if lost := [one for one in self.rejected if one["epoch"] == self.epoch]:
            row["rejected"] = len(lost)
            if len(lost) >= sum(len(one) for one in self.schedule(self.epoch - 1)):
                raise lost_numbers(
                    f"every update of epoch {self.epoch} was left out; the last: {lost[-1]['why']}", {}
                )
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
        tensors |= {f"memory/{name}": t.clone() for name, t in self.memory.items()}
        for client, state in self.bodies.kept().items():
            tensors |= {f"copies/{client}.{name}": t.clone() for name, t in state.items()}
        return tensors | {f"shared/{name}": t.clone() for name, t in self.shared.items()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        device = next((p.device for p in self.server.body.parameters()), torch.device("cpu"))
        own: dict[str, State] = {"server": {}, "shared": {}, "memory": {}, "copies": {}}
        for key, tensor in tensors.items():
            party, name = key.split("/", 1)
            if party in own:
                own[party][name] = tensor.to(device)
        net = {k.removeprefix("net."): t for k, t in own["server"].items() if k.startswith("net.")}
        self.server.body.load_state_dict(net)
        self.server.body.zero_grad()
        load_optimizer(self.server.optimizer, own["server"])
        self.shared, self.memory = own["shared"], own["memory"]
        kept: dict[int, State] = {}
        for key, tensor in own["copies"].items():
            client, name = key.split(".", 1)
            kept.setdefault(int(client), {})[name] = tensor
        self.bodies.restore(kept)

    def snapshot(self) -> tuple[State, dict[str, Any]]:
        """(tensors, plain facts): all that the next step depends on, and what the report will say."""
        tensors = self.tensors() | {f"best/{name}": tensor for name, tensor in self.best.tensors.items()}
        facts: dict[str, Any] = {
            "epoch": self.epoch,
            "turn": self.turn,
            "step": self.step,
            "client_steps": list(self.taken),
            "sums": dict(self.sums),
            "seconds": self.seconds,
            "history": list(self.history),
            "best": [self.best.accuracy, self.best.epoch],
            "ledger": self.ledger.as_dict(),
            "rejected": list(self.rejected),
        }
        for place, watch in enumerate(self.watches):
            seen, said = watch.snapshot()
            tensors |= {f"watch/{place}.{name}": tensor for name, tensor in seen.items()}
            facts.setdefault("watches", []).append(said)
        return tensors, facts

    def restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        self.load({name: tensor for name, tensor in tensors.items() if not name.startswith(("best/", "watch/"))})
        for place, (watch, said) in enumerate(zip(self.watches, facts.get("watches", []), strict=False)):
            mine = f"watch/{place}."
            watch.restore({name.removeprefix(mine): t for name, t in tensors.items() if name.startswith(mine)}, said)
        self.epoch, self.turn, self.step = facts["epoch"], facts["turn"], facts["step"]
        self.taken = list(facts["client_steps"])
        self.sums = {name: (total, count) for name, (total, count) in facts["sums"].items()}
        self.seconds, self.history = facts["seconds"], list(facts["history"])
        kept = {name.removeprefix("best/"): t for name, t in tensors.items() if name.startswith("best/")}
        accuracy, epoch = facts["best"]
        self.best = Best(accuracy, epoch, kept)
        self.rejected = list(facts.get("rejected", []))
        restored = Ledger.from_dict(facts["ledger"])
        self.ledger.bytes, self.ledger.messages = restored.bytes, restored.messages
        self.ledger.samples = restored.samples


# Bodies are merged beside heads, under names no client has.
_BODY = "server/"


def _body(state: State) -> State:
    return {f"{kind}.{_BODY}{name}": t for (kind, name), t in ((key.split(".", 1), t) for key, t in state.items())}


def _unbody(name: str) -> str:
    """The name of a body's tensor in its own state; empty for what is not a body's."""
    kind, _, rest = name.partition(".")
    return f"{kind}.{rest.removeprefix(_BODY)}" if rest.startswith(_BODY) and kind in ("net", "stat") else ""
