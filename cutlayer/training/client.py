"""A client with its data: it follows orders, whether they come from this process or from afar."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from ..core.batch import Batch, Task
from ..core.errors import NonFinite, ProtocolError
from ..core.guard import GuardModule
from ..core.message import Handler, Kind, Message
from ..core.seeds import derive
from ..core.state import State, load_optimizer, optimizer_state
from ..data.base import Samples
from ..detectors import ClientAssets, SentBatch, swap_guard
from ..guards import Guard, NoGuard
from ..rules import Latest
from ..rules.base import NET, OPTIMIZER
from ..wire.ledger import Ledger
from .asleep import Asleep, Layout
from .batches import as_batch, epoch_batches, in_batches, on
from .build import build_client, build_remote, build_server
from .detection import KEPT, ClientDetection
from .evaluation import Score, score
from .labels import refuse_unfit_labels
from .micro_batches import Post, learn_in_micro_batches
from .orders import PURPOSES, numbers, weights_in
from .plan.optimizers import set_rate
from .plan.plan import Plan
from .plan.schedule import Relay
from .plan.shapes import cut_shapes, steps_per_epoch
from .step import NO_HOOKS, ClientNetwork, StepHooks, export, feed, learn, load, predict

EVALUATION_BATCH = 500


class Client:
    """One client's network and samples. All its randomness is a function of (private seed, client, step)."""

    def __init__(
        self,
        plan: Plan,
        task: Task,
        number: int,
        samples: Samples,
        held_out: Mapping[str, Samples],
        send: Handler,
        *,
        post: Post | None = None,
        ledger: Ledger,
        device: torch.device | str = "cpu",
        share: Tensor | None = None,
    ):
        """`samples` are its own; or everybody's, of which it has those that `share` names."""
        refuse_unfit_labels(plan, task, samples.y)
        if plan.poison is not None:
            plan.poison.refuse_unfit(task)
        self.plan, self.device, self.ledger = plan, torch.device(device), ledger
        self.scored: Score | None = None  # of the last evaluation
        self.number, self._task, self._send = number, task, send
        self._network: ClientNetwork | None = None
        self._steps, self._peaks, self._asleep = 0, dict[str, float](), Asleep()
        self.correction = plan.rule.correction()
        size = min(plan.batch_size, len(samples if share is None else share))
        apart = not plan.guard.mixes_samples and samples.y.dim() == 1
        self._post = post
        self._pool, self._share = samples, share
        own = self._own() if plan.client_detectors else None
        self.detection = ClientDetection(
            plan.client_detectors, task, size, self.secret("watch"), self._honest, apart, own
        )
        self._samples: Samples | None = None
        self.held_out = held_out
        self.spares: list[ClientNetwork] = []  # networks without an owner: where one lies, none needs to be built
        self.on_step: Callable[[int, Mapping[str, float]], None] = lambda epoch, terms: None

    # ----------------------------------------------------------- a network only while it is needed
    @property
    def network(self) -> ClientNetwork:
        """Its network; built, or woken up, when it is first asked for."""
        return self._woken()

    def _woken(self, known: bool = False) -> ClientNetwork:
        """Its network. With `known` all its weights will be replaced, so one that another client gave up will do."""
        if self._network is None:
            state, self._asleep = self._asleep.state(self.device), Asleep()
            whole = any(name.startswith(NET) for name in state)
            client = self._built(known or whole)
            if whole:
                load(client, state)
            elif state:
                load_optimizer(client.optimizer, state)
            return client
        return self._network

    def _built(self, known: bool) -> ClientNetwork:
        if self._network is None:
            # Only where there is no guard: one may be lacking in a network of another client, or hold its secrets.
            if known and self.spares and isinstance(self.plan.guard_of(self.number), NoGuard):
                remote, spare = build_remote(self.plan, self.number, self._send), self.spares.pop()
                load_optimizer(spare.optimizer, {})
                client = ClientNetwork(self.number, spare.split, spare.optimizer, remote)
            else:
                self.spares.clear()
                client = build_client(self.plan, self._task, self.number, self._send, self.device)
            client.steps, client.peaks = self._steps, self._peaks
            client.remote.continue_at(self._steps * self.plan.micro_batches)
            self._network = client
        return self._network

    @property
    def samples(self) -> Samples:
        """Its own. Those of a share are copied out of the pool while the client is awake."""
        if self._samples is None:
            own, poison = self._pool if self._share is None else self._pool[self._share], self.plan.poison
            if poison is not None and self.number in poison.members(self.plan.clients, self.plan.seed):
                own = poison.spoiled(own, derive(self.plan.seed, "poison", self.number))
            self._samples = on(own, self.device)
        return self._samples

    @property
    def labels(self) -> Tensor:
        """Of its samples, without a look at these."""
        return self._pool.y if self._share is None else self._pool.y[self._share]

    @property
    def count(self) -> int:
        """Of its samples."""
        return len(self._pool if self._share is None else self._share)

    @property
    def awake(self) -> bool:
        return self._network is not None

    @property
    def steps(self) -> int:
        return self._steps if self._network is None else self._network.steps

    @property
    def peaks(self) -> dict[str, float]:
        return self._peaks if self._network is None else self._network.peaks

    def sleep(self, layout: Layout, keeps: bool) -> None:
        """Give the network up; with `keeps`, what it has learnt is laid down in one piece of memory."""
        if self._network is not None:
            self._steps, self._peaks = self._network.steps, self._network.peaks
            stays = export(self._network, copies=False) if keeps else self._kept_optimizer()
            self._asleep = Asleep.of(stays, layout) if stays else Asleep()
            # A guard may hold secrets of its client, which no other may get.
            if (
                isinstance(self.plan.guard_of(self.number), NoGuard)
                and not self.spares
                and not self.plan.client_detectors
            ):
                self.spares.append(self._network)
            self._network = None
        if self._share is not None:
            self._samples = None

    def own_state(self) -> State:
        """Everything of this client that the next of its turns depends on, awake or not."""
        state = self._asleep.state(self.device)
        if self._network is not None or not state:
            state = export(self.network)
        return state | self.memory()

    def memory(self) -> State:
        """What is this client's own beside shared weights: its half of a rule, what its detectors remember, and an
        optimizer that lives on."""
        remembered = self.correction.tensors() if self.correction is not None else {}
        own = self._kept_optimizer() | self.detection.tensors()
        return own | {f"memory.{name}": tensor for name, tensor in remembered.items()}

    def _kept_optimizer(self) -> State:
        if not self.plan.keeps_optimizers:
            return {}
        state = optimizer_state(self._network.optimizer) if self._network is not None else {}
        asleep = self._asleep.state(self.device) if self._network is None else {}
        return state | {name: t for name, t in asleep.items() if name.startswith(OPTIMIZER)}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Go back to what `own_state` or `memory` once was."""
        if self.correction is not None:
            self.correction.load({n.removeprefix("memory."): t for n, t in state.items() if n.startswith("memory.")})
        self.detection.load({name: t for name, t in state.items() if name.startswith(KEPT)})
        own = {n: t.to(self.device) for n, t in state.items() if not n.startswith(("memory.", KEPT))}
        if any(name.startswith(NET) for name in own):
            load(self.network, own)
        if own or self.awake:
            load_optimizer(self.network.optimizer, own)
        else:
            self._asleep = Asleep()

    @property
    def batches(self) -> int:
        """How many there are in an epoch."""
        return steps_per_epoch([self.count], self.plan.batch_size, self.plan.least_batch) if self.count else 0

    def handle(self, order: Message) -> Message:
        """Learn for a turn, or evaluate. Weights that come along are taken over first."""
        self.detection.halt_if_alarmed(self.number)
        if order.kind in (Kind.TURN, Kind.WEIGHTS):
            epoch, first, last, frozen = numbers(order, "turn", 4)
            if order.step != self.steps:
                raise ProtocolError(f"{order}: this client stands at step {self.steps}")
            self.take_over(order)
            learnt, brought = self._follow(order, epoch, first, last, bool(frozen))
            samples = torch.tensor([learnt])
            return Message(order.kind, self.number, self.network.steps, {"samples": samples, **brought})
        if order.kind is Kind.EVALUATE:
            purpose, epoch = numbers(order, "what", 2)
            if not 0 <= purpose < len(PURPOSES):
                raise ProtocolError(f"{order} asks for an evaluation this client does not know")
            return order.reply(score=torch.tensor(self.evaluate_with(weights_in(order), PURPOSES[purpose], epoch)))
        raise ProtocolError(f"a client does not follow {order}")

    def take_over(self, order: Message) -> None:
        """Start from what the last client left, where heads are shared."""
        if weights := weights_in(order):
            load(self._woken(known=True), weights)
        if self.plan.rounds.fresh:
            load_optimizer(self.network.optimizer, {})

    def _follow(self, order: Message, epoch: int, first: int, last: int, frozen: bool) -> tuple[int, State]:
        """(samples, weights to bring). Where many bring theirs, one whose numbers are gone has learnt from none."""
        start = export(self.network) if self.plan.rounds.merges else {}
        try:
            if frozen:
                return self.turn(epoch, first, last, frozen=True), {}
            return self._corrected_turn(order, epoch, first, last)
        except NonFinite:
            if not self.plan.rounds.merges:
                raise
            load(self.network, start)
            load_optimizer(self.network.optimizer, start)
            self.continue_at(order.step + last - first)
            brought = {name: t for name, t in start.items() if not name.startswith(OPTIMIZER)}
            return 0, brought if order.kind is Kind.WEIGHTS and not frozen else {}

    def _corrected_turn(self, order: Message, epoch: int, first: int, last: int) -> tuple[int, State]:
        """(samples, weights to bring) of a turn, with the client's half of the rule where it has one."""
        client, correction, weighs = self.network, self.correction, order.kind is Kind.WEIGHTS
        parameters = dict(client.split.named_parameters()) if correction is not None else {}
        hooks = NO_HOOKS
        if correction is not None and weighs and first < last:
            correction.start(parameters, order.tensors)
            hooks = StepHooks(before_step=lambda: correction.adjust(parameters))
        learnt = self.turn(epoch, first, last, hooks=hooks) if first < last or not weighs else 0
        if not weighs:
            return learnt, {}
        brought = export(client, optimizer=not self.plan.rounds.merges)
        if correction is not None and first < last:
            rate = self.plan.client_optimizer.lr * self.plan.schedule.factor(epoch, self.plan.epochs)
            brought |= correction.brought(parameters, last - first, rate)
        return learnt, dict(sorted(brought.items()))

    def turn(self, epoch: int, first: int, last: int, frozen: bool = False, hooks: StepHooks = NO_HOOKS) -> int:
        """Learn from batches `first` to `last` (not included) of this epoch; returns how many samples they had.

        A frozen client only feeds the server with them.
        """
        if not 0 <= first < last <= self.batches:
            raise ProtocolError(f"batches {first} to {last} of an epoch that has {self.batches}")
        factor = self.plan.schedule.factor(epoch, self.plan.epochs)
        set_rate(self.network.optimizer, self.plan.client_optimizer.lr * factor)
        learnt = 0
        for index in self.order(epoch)[first:last]:
            terms = self._feed(index) if frozen else self._learn(index, hooks)
            learnt += len(index)
            self.ledger.samples["training"] += len(index)
            self.on_step(epoch, terms)
            self.detection.halt_if_alarmed(self.number)
        return learnt

    def _feed(self, index: Tensor) -> dict[str, float]:
        # One piece, numbered as the last of its batch, by which the server knows that the batch is whole.
        self.network.remote.continue_at((self.network.steps + 1) * self.plan.micro_batches - 1)
        return feed(self.network, self.batch(index))

    def _learn(self, index: Tensor, hooks: StepHooks) -> dict[str, float]:
        if self.plan.client_detectors:
            return self.detection.learn(self.network, self.batch(index), hooks)
        if self.plan.micro_batches == 1:
            return learn(self.network, self.batch(index), hooks=hooks)
        pieces, seed = self.micro_batches(index), self.secret("step", self.network.steps)
        batches = [as_batch(self.samples, piece, derive(seed, place)) for place, piece in enumerate(pieces)]
        # The last piece of a batch always has the last number, by which the server knows it.
        first = (self.network.steps + 1) * self.plan.micro_batches - len(pieces)
        return learn_in_micro_batches(self.network, batches, first, self._post or _at_once(self._send), hooks)

    def _own(self) -> ClientAssets:
        """What this client's detectors may use of its own."""
        cut, public = cut_shapes(self.plan, self._task), derive(self.plan.seed, "guard")
        undo = self.plan.guard_of(self.number).undo(cut.shared, public)

        def some(most: int) -> SentBatch:
            pick = torch.arange(len(self._pool)) if self._share is None else self._share
            batch = as_batch(self._pool, pick[:most])
            return SentBatch(batch.x, batch.y, batch.s, batch.x.new_zeros(len(batch.x), 0))

        def guard(new: Guard) -> GuardModule:
            old, private = self.plan.guard_of(self.number), self.secret("guard")
            return swap_guard(
                old, new, cut.shared, public=public, private=private, task=self._task, device=self.device
            )

        return ClientAssets(some, guard, undo.to(self.device) if undo is not None else None)

    def _honest(self, steps: int) -> Iterator[tuple[ClientNetwork, Batch]]:
        """A rehearsal with a server of the client's own making, on its own samples; nothing of it stays."""
        plan = replace(
            self.plan, client_detectors=(), rounds=Relay(), rule=Latest(), private_seed=self.secret("rehearsal"),
            seed=self.secret("server") % 2**31,
        )  # fmt: skip
        server = build_server(plan, self._task, self.device)
        client = build_client(plan, self._task, self.number, server.handle, self.device)
        batches = [index for epoch in range(steps // self.batches + 1) for index in self.order(epoch)]
        for number, index in enumerate(batches[:steps]):
            yield client, as_batch(self.samples, index, self.secret("rehearsal", number))

    def micro_batches(self, index: Tensor) -> tuple[Tensor, ...]:
        """The pieces a batch travels in; a small last batch has fewer."""
        most = len(index) // max(2, self.plan.guard.least_batch)
        return index.tensor_split(max(1, min(self.plan.micro_batches, most)))

    def evaluate_with(
        self, weights: State, purpose: str, epoch: int, samples: Samples | None = None
    ) -> tuple[int, int]:
        """As `evaluate`, of the shared weights where there are some. A head of the client's own is put back then."""
        before = export(self.network) if weights and self.plan.roles.keeps_heads else {}
        if weights:
            load(self.network, weights)
        found = self.evaluate(purpose, epoch, samples)
        if before:
            load(self.network, before)
        return found

    def evaluate(self, purpose: str, epoch: int, samples: Samples | None = None) -> tuple[int, int]:
        """(right, all) of the samples held out for `purpose`, or of others; of pixels, where each has a class.

        Guards act here as they do in service. One that mixes samples gets batches of the size it was trained with: in
        a larger one it would find closer neighbours.
        """
        seen = on(self.held_out[purpose] if samples is None else samples, self.device)
        if not len(seen):
            return 0, 0
        size = self.plan.batch_size if self.plan.guard.mixes_samples else EVALUATION_BATCH
        found = torch.cat(
            [
                predict(self.network, [as_batch(seen, index, self.secret(purpose, epoch, number))]).argmax(1)
                for number, index in enumerate(in_batches(torch.arange(len(seen)), size, self.plan.least_batch))
            ]
        )
        self.ledger.samples["predicting"] += len(seen)
        self.scored = score(found, seen.y, self._task.classes)
        return self.scored.right, self.scored.samples

    def secret(self, *names: object) -> int:
        assert self.plan.private_seed is not None
        return derive(derive(self.plan.private_seed, "client", self.number), *names)

    def order(self, epoch: int) -> list[Tensor]:
        """Which samples each batch of an epoch has. The server cannot tell: the order is a secret."""
        return epoch_batches(self.count, self.plan.batch_size, self.secret("order", epoch), self.plan.least_batch)

    def batch(self, index: Tensor) -> Batch:
        return as_batch(self.samples, index, self.secret("step", self.network.steps))

    def continue_at(self, steps: int) -> None:
        """Number the coming steps from `steps` on, and draw their randomness accordingly."""
        self._steps = steps
        if self._network is not None:
            self._network.steps = steps
            self._network.remote.continue_at(steps * self.plan.micro_batches)


def _at_once(send: Handler) -> Post:
    """In one process there is nothing to wait for."""

    def post(message: Message) -> Callable[[], Message]:
        answer = send(message)
        return lambda: answer

    return post
