"""A plan in one process: server, clients and what lies between them, for whoever wants to look at all of it."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from ...core.draws import steps_still
from ...core.message import Handler, Watcher, through
from ...core.state import State, unfix
from ...data.base import Parts, Samples
from ...nets.lora import folded
from ...nets.server_network import ServerNetwork
from ...nets.weights import whole_state
from ...training import loop
from ...training.batches import shares_of, task_of
from ...training.build import build_server
from ...training.client import Client, batches_of
from ...training.coordinator import Coordinator
from ...training.device import keep_pages
from ...training.enough import refuse_few_samples, sample_counts
from ...training.faster import AS_ALWAYS, Faster
from ...training.fused_wave import Fusion
from ...training.laws import refuse_broken_net
from ...training.own_data import OwnData, Uplink
from ...training.plan.plan import Plan
from ...training.plan.schedule import Turn
from ...training.progress import StepEvent
from ...training.step import ClientNetwork, Learn, learn, load
from .asleep import Seat
from .captured import CapturedSteps, why_not_captured
from .carrier import FusedDoor, LocalCarrier
from .pool import ClientPool, PooledClient

Part = TypeVar("Part")


class _Each(Sequence[Part]):
    """What each of many clients has, looked at one by one."""

    def __init__(self, clients: Sequence[Client], part: Callable[[Client], Part]):
        self._clients, self._part = clients, part

    def __len__(self) -> int:
        return len(self._clients)

    def __getitem__(self, place: Any) -> Any:
        return self._part(self._clients[place])


def _as_it_is(handler: Handler) -> Handler:
    return handler


class LocalRun:
    """A plan in motion. `train` may be stopped after any round, `snapshot` and `restore` carry it on exactly."""

    def __init__(
        self,
        plan: Plan,
        parts: Parts,
        *,
        classes: int,
        device: torch.device | str = "cpu",
        at_server: Sequence[Watcher] = (),
        wrap: Callable[[Handler], Handler] = _as_it_is,
        faster: Faster = AS_ALWAYS,
    ):
        self.plan = plan = plan.with_secrets()
        self.parts, self.device = parts, torch.device(device)
        self.task = task_of(parts.private, classes)
        refuse_broken_net(plan.net, self.task)
        keep_pages()
        shares = shares_of(plan, parts.private)
        # And what does not fit the cut, by the name it was given.
        refuse_few_samples(plan, self.task, sample_counts(shares, parts))
        faster.refuse_unfit(self.device)
        faster.begin()
        self.server = build_server(plan.public(), self.task, self.device)
        faster.prepare(*[part for name, part in self.server.body.named_children() if name in ("body", "tail")])
        batches = [batches_of(plan, len(share)) for share in shares]
        self.coordinator = Coordinator(plan, self.server, batches)
        self.progress, self.timetable = self.coordinator.progress, self.coordinator.timetable
        self.ledger = self.coordinator.ledger
        fused = FusedDoor(self.server.handle, Fusion(self.server), self.device) if plan.rounds.fused else None
        door = through([*at_server, *self.coordinator.watches], fused or self.server.handle)
        watched = bool(at_server or self.coordinator.watches or wrap is not _as_it_is)
        self._why_eager = why_not_captured(plan, self.device, watched)
        self.captured = CapturedSteps(self.server, self.ledger) if self._why_eager is None else None
        # Merged rounds leave a client out whose numbers are lost, before the server learns from them.
        unwatched = not (watched or self.server.watchers) and steps_still(self.server.optimizer)
        plain: Learn = partial(learn, late=not plan.rounds.merges, unwatched=unwatched)
        uplink = Uplink(through([self.ledger], wrap(door)), self.ledger, learn=self.captured or plain)
        held_out, spares = {"validate": parts.val, "test": parts.test}, list[Seat]()
        self.clients = ClientPool(
            [
                PooledClient(
                    plan, self.task, number, OwnData(parts.private, held_out, share), uplink, self.device,
                    self._stepped, spares=spares, faster=faster,
                )
                for number, share in enumerate(shares)
            ]
        )  # fmt: skip
        self.carrier = LocalCarrier(self.coordinator, self.clients, parts, fused)
        self.progress.peaks = self.clients.peaks
        assert self.clients.awake(0, keeps=True).network  # a network or guard that cannot be built says so now

    def _stepped(self, epoch: int, terms: Mapping[str, float]) -> None:
        self.progress.learnt(terms)

    @property
    def why_eager(self) -> str | None:
        """Why its steps are not captured as graphs; None: they are, or will be."""
        return self._why_eager if self.captured is None else self.captured.why_not

    @property
    def networks(self) -> Sequence[ClientNetwork]:
        """Each is woken up when it is looked at."""
        return _Each(self.clients, lambda client: client.network)

    def newest(self, client: int) -> ClientNetwork:
        """A client's network with the shared weights, where there are some."""
        network = self.networks[client]
        if shared := self.coordinator.shown(client):
            load(network, shared)
        return network

    @property
    def samples(self) -> Sequence[Samples]:
        """Each client's own."""
        return _Each(self.clients, lambda client: client.samples)

    def train(
        self,
        *,
        on_step: Callable[[StepEvent], None] = lambda event: None,
        on_round: Callable[[], None] = lambda: None,
        on_epoch: Callable[[], None] = lambda: None,
        stop: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Run to the end, or until `stop` says so between two rounds. True: the plan is finished."""
        return loop.train(
            self.coordinator, self.carrier, on_step=on_step, on_round=on_round, on_epoch=on_epoch, stop=stop
        )

    def take(self, turns: Sequence[Turn]) -> None:
        """One round by itself."""
        loop.take_round(self.coordinator, self.carrier, turns)

    def evaluate(self, samples: Samples) -> list[float]:
        """Accuracy of every distinct client network: one number for shared heads, one per client for own heads."""
        return self.carrier.accuracies("validate" if samples is self.parts.val else "test", samples)

    def use_best(self) -> None:
        """Go back to the best epoch, where one was kept."""
        loop.back_to_best(self.coordinator, self.carrier)

    def batch_of(self, client: int, step: int) -> Tensor:
        """Which of its samples a client's step was about."""
        party, (whole, number) = self.clients[client], divmod(step, self.plan.micro_batches)
        epoch, place, frozen = self.timetable.place(client, whole)
        if frozen:  # never in pieces
            return party.order(epoch)[place]
        pieces = party.micro_batches(party.order(epoch)[place])
        return pieces[number - self.plan.micro_batches]  # counted from the last

    # ------------------------------------------------------------------------- networks
    def network(self) -> State | None:
        """Head, body and tail as one state dict that `--start` reads; None where clients have their own or none."""
        if not self.plan.protocol.has_body:
            return None
        if not self.plan.shared_client_network and self.plan.clients > 1:
            return None
        adapters = self.plan.adapters
        widest = max(range(self.plan.clients), key=adapters.rank_of) if adapters is not None else 0
        split = self.newest(widest).split
        if not self.plan.protocol.crosses:
            parts = {name: folded(part) for name, part in split.head.named_children()}
            return whole_state(self.plan.net, head=parts["0"], body=parts["1"], tail=folded(split.tail))
        there = self.server.body
        assert isinstance(there, ServerNetwork)
        tail = split.tail if self.plan.protocol.labels_stay_home else there.tail
        return whole_state(self.plan.net, head=folded(split.head), body=folded(there.body), tail=folded(tail))

    def start_from(self, other: "LocalRun") -> None:
        """Take over the networks of another run of the same plan, but not its guard: to fit a guard to them."""
        unfix(self.server.body)
        for party in self.clients:
            party.keep_whole()
        for number, client in enumerate(self.networks):
            for name, module in other.newest(number).split.named_children():
                if name != "guard":
                    client.split.get_submodule(name).load_state_dict(module.state_dict())
        for name, module in other.server.body.named_children():
            if name != "lift":
                self.server.body.get_submodule(name).load_state_dict(module.state_dict())

    # ---------------------------------------------------------------------- carry it on
    def tensors(self) -> State:
        """Everything of server and clients that the next turn depends on."""
        return self.coordinator.tensors() | self.carrier.keep(self.progress.step)

    def snapshot(self) -> tuple[State, dict[str, Any]]:
        """(tensors, plain facts): all that the next step depends on, and what the report will say."""
        return self.coordinator.snapshot(self.carrier.keep(self.progress.step))

    def restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        self.coordinator.restore(tensors, facts)
        self.carrier.rewind(self.progress.step, tensors)
