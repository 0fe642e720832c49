"""Server and clients in one process: messages are function calls, and everything else is as between machines."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from ...core.message import Handler, Message, Watcher, through
from ...core.seeds import derive
from ...core.state import State
from ...data.base import Parts, Samples
from ...nets.server_network import ServerNetwork
from ...nets.weights import whole_state
from ...training.asleep import Layout
from ...training.batches import as_batch as as_batch
from ...training.batches import refuse_too_few
from ...training.batches import task_of as task_of
from ...training.build import build_server
from ...training.client import Client
from ...training.coordinator import Best as Best
from ...training.coordinator import Coordinator
from ...training.coordinator import Progress as Progress
from ...training.fused_wave import FUSED, Fusion
from ...training.laws import refuse_broken_net
from ...training.micro_batches import Ring
from ...training.plan.plan import Plan
from ...training.plan.schedule import Turn, Wave
from ...training.step import ClientNetwork, load

AWAKE = 32  # client networks in memory at once
PASSES = 32  # over the held-out data in one evaluation, at most: more clients than that share them
Part = TypeVar("Part")


class _Each(Sequence[Part]):
    """What each of many clients has, looked at one by one."""

    def __init__(self, clients: Sequence[Client], part: Callable[[Client], Part]):
        self._clients, self._part = clients, part

    def __len__(self) -> int:
        return len(self._clients)

    def __getitem__(self, place: Any) -> Any:
        return self._part(self._clients[place])


class LocalRun(Coordinator):
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
        refuse_broken_net(plan.net, self.task)
        shares = plan.partition.assign(parts.private, plan.clients, derive(plan.seed, "partition"))
        counts = {f"client {number}": len(share) for number, share in enumerate(shares)}
        refuse_too_few(plan, counts | {"the validation data": len(parts.val), "the test data": len(parts.test)})
        server = build_server(plan.public(), self.task, self.device)
        super().__init__(plan, server, [])
        self._inner: Handler = server.handle
        self._at_server = at_server
        corridor = through([self.ledger], wrap(self._door))
        held_out = {"validate": parts.val, "test": parts.test}
        client = partial(Client, ledger=self.ledger, device=self.device)
        self.clients = [
            client(plan, self.task, number, parts.private, held_out, corridor, share=share)
            for number, share in enumerate(shares)
        ]
        self.batches = [client.batches for client in self.clients]
        self.start_detectors()
        self._awake: dict[int, None] = {}  # clients with a network in memory, the one used last at the end
        self._layout, self._busy = Layout(), False
        on_step, spares = (lambda epoch, terms: self.learnt(terms)), list[ClientNetwork]()
        for one in self.clients:
            one.on_step, one.spares = on_step, spares
        assert self.clients[0].network  # a network or guard that cannot be built says so now
        self._used(0)

    def _door(self, message: Message) -> Message:
        return through([*self._at_server, *self.watches], self._inner)(message)

    @property
    def networks(self) -> Sequence[ClientNetwork]:
        """Each is woken up when it is looked at."""
        return _Each(self.clients, lambda client: client.network)

    @property
    def samples(self) -> Sequence[Samples]:
        """Each client's own."""
        return _Each(self.clients, lambda client: client.samples)

    def ask(self, client: int, order: Message) -> Message:
        self._used(client)
        answer = self.clients[client].handle(order)
        self.server.settled(client)
        return answer

    def _used(self, client: int) -> None:
        """A network is needed: only those used last stay in memory, however many clients there are."""
        self._awake.pop(client, None)
        self._awake[client] = None
        while len(self._awake) > AWAKE and not self._busy:
            oldest = next(iter(self._awake))
            del self._awake[oldest]
            self.clients[oldest].sleep(self._layout, keeps=self._keeps_heads)

    @property
    def _keeps_heads(self) -> bool:
        """Whether a client's network is more than what is shared."""
        return not self.shared or self.plan.roles.keeps_heads

    def gather(self, turns: Sequence[Turn]) -> list[Message | None]:
        rounds = self.plan.rounds
        if not (isinstance(rounds, Wave) and rounds.fused):
            return super().gather(turns)
        ring, fusion = Ring(len(turns)), Fusion(self.server)
        posted: dict[int, Message] = {}
        answers: dict[int, Message] = {}

        def together(message: Message) -> Message:
            if message.kind not in FUSED:
                return self.server.handle(message)
            posted[message.client] = message
            ring.switch()  # comes back when every other client has posted its own
            if message.client not in answers:  # the first to come back
                asked = [posted.pop(turn.client) for turn in turns if turn.client in posted]
                answers.update({one.client: answer for one, answer in zip(asked, fusion(asked), strict=True)})
            return answers.pop(message.client)

        self._inner, self._busy = together, True  # all of them are needed to the end
        try:
            found = ring.run([lambda turn=turn: self._answer(turn) for turn in turns])  # type: ignore[misc]
        finally:
            self._inner, self._busy = self.server.handle, False
        return [self.committed(turn, done) for turn, done in zip(turns, found, strict=True)]

    def batch_of(self, client: int, step: int) -> Tensor:
        """Which of its samples a client's step was about."""
        party, (whole, number) = self.clients[client], divmod(step, self.plan.micro_batches)
        epoch, place, frozen = self._place(client, whole)
        if frozen:  # never in pieces
            return party.order(epoch)[place]
        pieces = party.micro_batches(party.order(epoch)[place])
        return pieces[number - self.plan.micro_batches]  # counted from the last

    def _place(self, client: int, step: int) -> tuple[int, int, bool]:
        """(epoch, batch of it, whether it was frozen) of a client's step. Who is not drawn misses some."""
        for epoch in range(self.plan.epochs):
            turns = (turn for round_ in self.schedule(epoch) for turn in round_ if turn.client == client)
            for turn in turns:
                if step < turn.last - turn.first:
                    return epoch, turn.first + step, turn.frozen
                step -= turn.last - turn.first
        raise ValueError(f"client {client} has no such step in this plan")

    def peaks(self) -> dict[str, float]:
        names = {name for client in self.clients for name in client.peaks}
        return {name: max(client.peaks.get(name, 0.0) for client in self.clients) for name in sorted(names)}

    # ---------------------------------------------------------------- evaluation
    def accuracies(self, purpose: str) -> list[float]:
        return self._accuracies(purpose, None)

    def _accuracies(self, purpose: str, samples: Samples | None) -> list[float]:
        alike, found = self.alike, []
        for client in self.clients[:1] if alike else self.clients:
            seen = self.parts.val if purpose == "validate" else self.parts.test
            part = self._part(seen if samples is None else samples, client.number, alike)
            self._used(client.number)
            weights = {} if client.number in self.heads_of_their_own() else self.shared
            right, count = client.evaluate_with(weights, purpose, self.epoch, part)
            found += [right / count] if count else []
        return found

    def _part(self, samples: Samples, number: int, alike: bool) -> Samples:
        """What a client is evaluated on. Many share the samples evenly, so that they cost no more than a few."""
        clients, have = len(self.clients), len(samples)
        if alike or clients <= PASSES or not have:
            return samples
        size = min(have, max(self.plan.least_batch, have * PASSES // clients))
        return samples[(number * size + torch.arange(size)) % have]

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
        """Head, body and tail as one state dict that `--start` reads; None where clients have their own."""
        if not self.plan.shared_client_network and self.plan.clients > 1:
            return None
        split = self.networks[0].split
        if self.shared:
            load(self.networks[0], self.shared)
        if not self.plan.protocol.crosses:
            parts = dict(split.head.named_children())
            return whole_state(self.plan.net, head=parts["0"], body=parts["1"], tail=split.tail)
        there = self.server.body
        assert isinstance(there, ServerNetwork)
        tail = split.tail if self.plan.protocol.labels_stay_home else there.tail
        return whole_state(self.plan.net, head=split.head, body=there.body, tail=tail)

    def start_from(self, other: "LocalRun") -> None:
        """Take over the networks of another run of the same plan, but not its guard: to fit a guard to them."""
        for client, theirs in zip(self.networks, other.networks, strict=True):
            if other.shared:
                load(theirs, other.shared)
            for name, module in theirs.split.named_children():
                if name != "guard":
                    client.split.get_submodule(name).load_state_dict(module.state_dict())
        for name, module in other.server.body.named_children():
            if name != "lift":
                self.server.body.get_submodule(name).load_state_dict(module.state_dict())

    # -------------------------------------------------------------- carry it on
    def tensors(self) -> State:
        tensors = super().tensors()
        for client in self.clients:
            own = client.own_state() if self._keeps_heads else client.memory()
            tensors |= {f"client{client.number}/{name}": t for name, t in own.items()}
            if client.awake:
                self._used(client.number)
        return tensors

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        super().load(tensors)
        found: dict[str, State] = {}
        for key, tensor in tensors.items():
            party, name = key.split("/", 1)
            found.setdefault(party, {})[name] = tensor
        for client in self.clients:
            client.load_state(found.get(f"client{client.number}", {}))
            if not self._keeps_heads and client.awake:
                load(client.network, {name: t.to(self.device) for name, t in self.shared.items()})
            if client.awake:
                self._used(client.number)

    def restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        super().restore(tensors, facts)
        for client, steps in zip(self.clients, self.taken, strict=True):
            client.continue_at(steps)
