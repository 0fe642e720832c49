"""A client with its data: it follows orders, whether they come from this process or from afar."""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from functools import cached_property, partial

import torch
from torch import Tensor, nn

from ..core.batch import Batch, Task
from ..core.errors import NonFinite, ProtocolError
from ..core.guard import Shape
from ..core.message import Kind, Message
from ..core.seeds import derive
from ..core.state import State, load_optimizer, optimizer_state
from ..data.base import Samples
from ..data.streamed import soon_of
from ..rules import Correction
from ..rules.base import NET, OPTIMIZER
from .ahead import learn_ahead
from .awaited import Figures
from .batches import epoch_batches, micro_batches, on, training_batch
from .build import build_client, client_secret
from .detection import KEPT, ClientDetection
from .evaluation import Score, evaluated
from .labels import refuse_unfit_labels
from .micro_batches import at_once, learn_in_micro_batches
from .orders import PURPOSES, numbers, weights_in
from .own_data import OwnData, Uplink
from .plan.optimizers import set_rate
from .plan.plan import Plan
from .plan.roles import Phase, SendOnce
from .plan.shapes import cut_shapes, steps_per_epoch
from .rehearsal import Party, assets, honest_steps
from .send_once import batches_again, learn_at_home, send, send_again
from .step import NO_HOOKS, ClientNetwork, StepHooks, export, feed, load


class Client:
    """One client's network and samples. All its randomness is a function of (private seed, client, step)."""

    def __init__(
        self,
        plan: Plan,
        task: Task,
        number: int,
        own: OwnData,
        uplink: Uplink,
        device: torch.device | str = "cpu",
        on_step: Callable[[int, Mapping[str, float]], None] = lambda epoch, terms: None,
    ):
        refuse_unfit_labels(plan, task, own.labels)
        if plan.poison is not None:
            plan.poison.refuse_unfit(task)
        self.plan, self.task, self.number, self.own, self.uplink = plan, task, number, own, uplink
        self.device, self.ledger, self._on_step = torch.device(device), uplink.ledger, on_step
        self.scored: Score | None = None  # of the last evaluation
        self.at_best = False  # whether it stands at the best epoch, not at the last
        self.detour: tuple[int, ...] = ()  # where this step was made before with other samples: it draws anew then
        self.correction = plan.rule.correction()
        self._root: int | None = None  # all its secrets follow from
        self._network: ClientNetwork | None = None
        self._samples: Samples | None = None
        self._epoch: tuple[int, list[Tensor]] | None = None  # the one that it learns in, and its batches
        self.detection = self._detection()

    def _detection(self) -> ClientDetection:
        plan, own = self.plan, self.own
        party = Party(plan, self.task, self.number, self.device)
        return ClientDetection(
            plan.client_detectors,
            self.task,
            min(plan.batch_size, own.count),
            self.secret("watch"),
            lambda steps: honest_steps(party, steps, self.samples, self.order),
            not plan.guard.mixes_samples and own.labels.dim() == 1,
            assets(party, own) if plan.client_detectors else None,
        )

    # ----------------------------------------------------------------------- what it has
    @property
    def network(self) -> ClientNetwork:
        """Its network, built when it is first asked for."""
        if self._network is None:
            self._network = build_client(self.plan, self.task, self.number, self.uplink.send, self.device)
        return self._network

    @property
    def samples(self) -> Samples:
        """Its own, on its device; spoilt, if it is one of an experiment's malicious clients."""
        if self._samples is None:
            own, poison = self.own.samples(), self.plan.poison
            if poison is not None and self.number in poison.members(self.plan.clients, self.plan.seed):
                own = poison.spoiled(own, derive(self.plan.seed, "poison", self.number))
            self._samples = on(own, self.device)
        return self._samples

    @property
    def batches(self) -> int:
        """How many there are in an epoch."""
        return batches_of(self.plan, self.own.count)

    @property
    def steps(self) -> int:
        return self.network.steps

    @property
    def peaks(self) -> dict[str, float]:
        """The largest value of each term of its loss so far."""
        return self.network.peaks

    def secret(self, *names: object) -> int:
        if self._root is None:
            self._root = client_secret(self.plan, self.number)
        return derive(self._root, *names)

    def order(self, epoch: int) -> list[Tensor]:
        """Which samples each batch of an epoch has. The server cannot tell: the order is a secret."""
        return epoch_batches(self.own.count, self.plan.batch_size, self.secret("order", epoch), self.plan.least_batch)

    def batch(self, index: Tensor, later: int = 0) -> Batch:
        """Of the next step, or of one so many steps later."""
        return self._batch(index, self._drawn(later))

    def _batch(self, index: Tensor, seed: int) -> Batch:
        """Of a share nothing is copied for it, where samples are read as they lie in the pool."""
        if self._samples is None and self.plan.poison is None and self.device.type == "cpu":
            return training_batch(self.plan, self.own.pool, self.own.places(index), seed)
        return training_batch(self.plan, self.samples, index, seed)

    def _drawn(self, later: int = 0) -> int:
        """From which the numbers of the next step are drawn."""
        return self.secret("step", self.steps + later, *self.detour)

    def micro_batches(self, index: Tensor) -> tuple[Tensor, ...]:
        return micro_batches(self.plan, index)

    # ---------------------------------------------------------------------------- orders
    def handle(self, order: Message) -> Message:
        """Learn for a turn, or evaluate. Weights that come along are taken over first."""
        self.detection.halt_if_alarmed(self.number)
        if order.kind in (Kind.TURN, Kind.WEIGHTS):
            return self._turn(order)
        if order.kind is Kind.EVALUATE:
            purpose, epoch = numbers(order, "what", 2)
            if not 0 <= purpose < len(PURPOSES):
                raise ProtocolError(f"{order} asks for an evaluation this client does not know")
            return order.reply(score=torch.tensor(self.evaluate_with(weights_in(order), PURPOSES[purpose], epoch)))
        raise ProtocolError(f"a client does not follow {order}")

    def take_over(self, order: Message) -> None:
        """Start from what the last client left, where heads are shared."""
        if weights := weights_in(order):
            load(self._network_to_fill(), weights)
        if self.plan.rounds.fresh:
            load_optimizer(self.network.optimizer, {})

    def _network_to_fill(self) -> ClientNetwork:
        """Its network, of which all weights are about to be replaced."""
        return self.network

    def _turn(self, order: Message) -> Message:
        """Learn as ordered, and bring what was learnt where weights are handed on.

        Where several share a round, one whose numbers are gone says that it has learnt from no sample.
        """
        epoch, first, last, frozen = numbers(order, "turn", 4)
        if order.step != self.steps:
            raise ProtocolError(f"{order}: this client stands at step {self.steps}")
        self.take_over(order)
        weighs, merges = order.kind is Kind.WEIGHTS and not frozen, self.plan.rounds.merges
        start = export(self.network) if merges else {}
        rule = _RuleHalf(self.correction if weighs and first < last else None, self.network, order)
        try:
            learnt = 0
            if first < last or not (weighs or frozen):  # else it is only shown weights, or asked for its own
                learnt = self.learn(epoch, first, last, frozen=bool(frozen), hooks=rule.hooks)
            brought = export(self.network, optimizer=not merges) if weighs else {}
            brought |= rule.brought(last - first, self._rate(epoch))
        except NonFinite:
            if not merges:
                raise
            load(self.network, start)
            load_optimizer(self.network.optimizer, start)
            self.continue_at(order.step + last - first)
            learnt = 0
            brought = {name: t for name, t in start.items() if weighs and not name.startswith(OPTIMIZER)}
        # In the order of names: frames pad between tensors, and a resumed relay must count the same bytes.
        brought = dict(sorted(brought.items()))
        return Message(order.kind, self.number, self.steps, {"samples": torch.tensor([learnt]), **brought})

    def _rate(self, epoch: int) -> float:
        return self.plan.client_optimizer.lr * self.plan.rate_factor(epoch)

    def learn(self, epoch: int, first: int, last: int, *, frozen: bool = False, hooks: StepHooks = NO_HOOKS) -> int:
        """Learn from batches `first` to `last` (not included) of this epoch; returns how many samples they had.

        A frozen client only feeds the server with them.
        """
        if not 0 <= first < last <= self.batches:
            raise ProtocolError(f"batches {first} to {last} of an epoch that has {self.batches}")
        set_rate(self.network.optimizer, self._rate(epoch))
        learnt, step = 0, self._feed if frozen else self._step
        phase = self.plan.roles.phase(epoch)
        batches = self._batches_of(epoch)
        with closing(self._ahead(batches[first:last], hooks)) as ahead:
            for place, index in enumerate(batches[first:last], start=first):
                # Where this turn ends, the next one of this client most likely begins.
                if self.own.pool.on_disk:
                    self.samples.soon([piece for one in soon_of(batches, place) for piece in self.micro_batches(one)])
                if self.plan.rounds.ahead:
                    terms = next(ahead)
                else:
                    terms = step(index, hooks) if phase is Phase.SPLIT else self._once(phase, epoch, place, index)
                learnt += len(index)
                self.ledger.samples["training"] += len(index)
                self._on_step(epoch, terms)
                self.detection.halt_if_alarmed(self.number)
        return learnt

    def _ahead(self, indices: Sequence[Tensor], hooks: StepHooks) -> Generator[Figures, None, None]:
        """The steps of a turn, each begun while the gradient of the one before it is on its way."""
        # The first is begun before any is over, every other one during the step before it.
        batches = (self.batch(index, later=min(place, 1)) for place, index in enumerate(indices))
        return learn_ahead(self.network, batches, self.uplink.post or at_once(self.uplink.send), hooks)

    def _feed(self, index: Tensor, hooks: StepHooks) -> dict[str, float]:
        # One piece, numbered as the last of its batch, by which the server knows that the batch is whole.
        self.network.remote.continue_at((self.steps + 1) * self.plan.micro_batches - 1)
        return feed(self.network, self.batch(index))

    def _batches_of(self, epoch: int) -> list[Tensor]:
        """Those that it learns from. A turn may be one of very many in its epoch: they are drawn once, and brought to
        the device that the samples are on, where each by itself would be waited for."""
        if self._epoch is None or self._epoch[0] != epoch:
            found = self._batches(epoch)
            if self.device.type == "cuda" and not self.own.pool.on_disk:
                found = list(torch.cat(found).to(self.device).split([len(one) for one in found]))
            self._epoch = epoch, found
        return self._epoch[1]

    def _batches(self, epoch: int) -> list[Tensor]:
        """Which samples each batch has; of a pass that was sent before, in the order that both sides know."""
        roles = self.plan.roles
        if roles.phase(epoch) is not Phase.AGAIN:
            return self.order(epoch)
        assert isinstance(roles, SendOnce)
        sent = torch.cat(self.order(roles.learnt + roles.view(epoch)))
        return [sent[rows] for rows in batches_again(self.plan, self.number, epoch, len(sent))]

    def _once(self, phase: Phase, epoch: int, place: int, index: Tensor) -> dict[str, float]:
        """A step at home, or of a frozen client whose messages the server keeps."""
        if phase is Phase.HOME:
            found = learn_at_home(self.network, self.batch(index))
            self.continue_at(self.steps)  # messages are numbered as if there had been one
            return found
        self.network.remote.continue_at((self.steps + 1) * self.plan.micro_batches - 1)
        if phase is Phase.SEND:
            return send(self.network, self.batch(index))
        reference = torch.tensor([epoch, place, self.own.count])
        seed = self.secret("step", self.steps)
        return send_again(self.network, self.samples.y[index], reference, self._sent_shape, seed)

    @cached_property
    def _sent_shape(self) -> Shape:
        return cut_shapes(self.plan, self.task).sent

    def _step(self, index: Tensor, hooks: StepHooks) -> Figures:
        if self.plan.client_detectors:
            return self.detection.learn(self.network, self.batch(index), hooks)
        if self.plan.micro_batches == 1:
            return self.uplink.learn(self.network, self.batch(index), hooks=hooks)
        pieces, seed = self.micro_batches(index), self._drawn()
        batches = [self._batch(piece, derive(seed, place)) for place, piece in enumerate(pieces)]
        # The last piece of a batch always has the last number, by which the server knows it.
        first = (self.steps + 1) * self.plan.micro_batches - len(pieces)
        post = self.uplink.post or at_once(self.uplink.send)
        return learn_in_micro_batches(self.network, batches, first, post, hooks)

    # ------------------------------------------------------------------------- evaluation
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
        """(right, all) of the samples held out for `purpose`, or of others; of pixels, where each has a class."""
        seen = on(self.own.held_out[purpose] if samples is None else samples, self.device)
        if not len(seen):
            return 0, 0
        drawn = self.evaluated_as(purpose)
        seeds = partial(self.secret, drawn, epoch)
        self.scored = evaluated(self.network, self.plan, seen, self.task.classes, seeds)
        self.ledger.samples["predicting"] += len(seen)
        return self.scored.right, self.scored.samples

    def evaluated_as(self, purpose: str) -> str:
        """The best epoch is tested beside the last, with noise of its own: the same would cancel out between them."""
        return f"{purpose} best" if self.at_best and purpose == "test" else purpose

    # ------------------------------------------------------------------------ carry it on
    def own_state(self) -> State:
        """Everything of this client that the next of its turns depends on."""
        return export(self.network) | self.memory()

    def memory(self) -> State:
        """What is this client's own beside shared weights: its half of a rule, what its detectors remember, and an
        optimizer that lives on."""
        remembered = self.correction.tensors() if self.correction is not None else {}
        own = (self._optimizer_state() if self.plan.keeps_optimizers else {}) | self.detection.tensors()
        return own | {f"memory.{name}": tensor for name, tensor in remembered.items()}

    def _optimizer_state(self) -> State:
        return optimizer_state(self.network.optimizer)

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Go back to what `own_state` or `memory` once was."""
        if self.correction is not None:
            self.correction.load({n.removeprefix("memory."): t for n, t in state.items() if n.startswith("memory.")})
        self.detection.load({name: t for name, t in state.items() if name.startswith(KEPT)})
        self._load_network({n: t.to(self.device) for n, t in state.items() if not n.startswith(("memory.", KEPT))})

    def _load_network(self, state: State) -> None:
        if any(name.startswith(NET) for name in state):
            load(self.network, state)
        load_optimizer(self.network.optimizer, state)

    def continue_at(self, steps: int) -> None:
        """Number the coming steps from `steps` on, and draw their randomness accordingly."""
        self.network.steps = steps
        self.network.remote.continue_at(steps * self.plan.micro_batches)


def trained(network: ClientNetwork) -> dict[str, nn.Parameter]:
    return {name: p for name, p in network.split.named_parameters() if p.requires_grad}


class _RuleHalf:
    """A client's half of a rule during one turn; nothing happens where the rule has none."""

    def __init__(self, correction: Correction | None, network: ClientNetwork, order: Message):
        self._correction, self.hooks = correction, NO_HOOKS
        self._parameters = trained(network) if correction is not None else {}
        if correction is not None:
            correction.start(self._parameters, order.tensors)
            self.hooks = StepHooks(before_step=lambda: correction.adjust(self._parameters))

    def brought(self, steps: int, rate: float) -> State:
        """What travels back beside the weights."""
        return self._correction.brought(self._parameters, steps, rate) if self._correction is not None else {}


def batches_of(plan: Plan, samples: int) -> int:
    """How many batches a client with so many samples has in an epoch."""
    return steps_per_epoch([samples], plan.batch_size, plan.least_batch) if samples else 0
