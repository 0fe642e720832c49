"""What a round makes of the server's body: one that steps at every batch, one that steps once, or a copy a client."""

import copy
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor, nn

from ..core.bodies import Bodies
from ..core.errors import NonFinite
from ..core.lost_numbers import finite
from ..core.message import Handler, Kind, Message, Watcher
from ..core.state import State, fixed_names, load_changing, load_optimizer, named, optimizer_state, unnamed
from ..rules import Rule
from .laid_by import laid_by

Optimizing = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer | None]
Kept = tuple[State, State]  # of a body: its weights and statistics, and its optimizer


class RoundBodies(Bodies):
    """One body, which steps at every batch (Relay, SplitFed version 2), as the coordinator of rounds sees it."""

    copies = False  # whether each client of a round has a body of its own, to be merged

    def open_round(self) -> None:
        """Clients begin a round."""

    def commit(self, client: int) -> None:
        """What a client brought counts."""

    def close_round(self) -> None:
        """All that counts has been committed."""

    def collect(self, client: int) -> State:
        """What a client's turn has made of its body."""
        return named(self.body)

    def take_over(self, state: Mapping[str, Tensor]) -> None:
        """A merged body, or an earlier one."""
        load_changing(self.body, unnamed(state))
        self.updates += 1

    def before_turn(self) -> Kept | None:
        """The body as it is, to come back to if a client spoils it; None: no client's turn can."""
        return named(self.body), optimizer_state(self.optimizer)

    def go_back(self, kept: Kept) -> None:
        self.take_over(kept[0])
        load_optimizer(self.optimizer, kept[1])
        self.body.zero_grad()

    def lost_numbers(self) -> str:
        """Which weights of the body are no numbers any more; empty if all are."""
        for name, tensor in self.body.state_dict().items():
            if tensor.is_floating_point() and not finite(tensor):
                return f"it leaves the body with NaN or infinity ({name})"
        return ""

    def watchers(self) -> list[Watcher]:
        """Who must stand before the server's answers."""
        return []

    def trainable(self) -> list[nn.Parameter]:
        return [parameter for parameter in self.body.parameters() if parameter.requires_grad]

    # What outlives a round beside the body and its optimizer, for snapshots: by client, the optimizer of its copy.
    def kept(self) -> dict[int, State]:
        return {}

    def restore(self, kept: Mapping[int, State]) -> None:
        """Go back to what `kept` once was."""


class Gathered(RoundBodies):
    """One step for all clients of a round, from the mean of their gradients (Wave)."""

    def __init__(self, body: nn.Module, optimizer: torch.optim.Optimizer | None, weights: str):
        """`weights`: a client's gradient counts as its batch has "rows", or all are "even"."""
        super().__init__(body, optimizer)
        self.weights = weights
        self._pending: dict[int, tuple[float, list[Tensor]]] = {}  # by client, until it is known whether they count
        self._sum: list[Tensor] = []
        self._weight = 0.0

    def open_round(self) -> None:
        self._pending.clear()
        self._sum, self._weight = [], 0.0

    def weight(self, rows: float) -> float:
        return rows if self.weights == "rows" else 1.0

    def learnt(self, client: int, rows: int) -> None:
        weight = self.weight(rows)
        # Taken from the body, and weighed, summed and divided in place: as large as the body, new ones are dear.
        found = [torch.zeros_like(p) if p.grad is None else p.grad.mul_(weight) for p in self.trainable()]
        self.body.zero_grad(set_to_none=True)
        if not all(map(finite, found)):
            raise NonFinite("its gradients of the body are not finite")
        self._pending[client] = weight, found

    def commit(self, client: int) -> None:
        if client in self._pending:
            weight, found = self._pending.pop(client)
            self._sum = [a.add_(b) for a, b in zip(self._sum, found, strict=True)] if self._sum else found
            self._weight += weight

    def close_round(self) -> None:
        if not self._weight:
            return
        for parameter, total in zip(self.trainable(), self._sum, strict=True):
            parameter.grad = total.div_(self._weight)
        self._sum, self._weight = [], 0.0
        self.step()

    def forget(self, client: int) -> None:
        self._pending.pop(client, None)
        super().forget(client)

    def before_turn(self) -> None:
        return None  # a client's gradients are looked at before they count

    def watchers(self) -> list[Watcher]:
        return [self.keep_statistics] if any(True for _ in self.body.buffers()) else []

    def keep_statistics(self, message: Message, answer: Handler) -> Message:
        """A watcher: one client's batch may not leave statistics to the others that are no numbers."""
        if message.kind not in (Kind.FORWARD, Kind.LOSS):
            return answer(message)
        before = [buffer.clone() for buffer in self.body.buffers()]
        reply = answer(message)
        if not all(finite(b) for b in self.body.buffers() if b.is_floating_point()):
            for buffer, kept in zip(self.body.buffers(), before, strict=True):
                buffer.data.copy_(kept)  # beside autograd: others still have their backward pass to come
            raise NonFinite("its batch would leave statistics of the body that are not finite")
        return reply


class Copies(RoundBodies):
    """A copy of the body for each client of a round, merged like the heads (SplitFed version 1)."""

    copies = True

    def __init__(
        self,
        body: nn.Module,
        optimizer: torch.optim.Optimizer | None,
        make_optimizer: Optimizing,
        rule: Rule,
        fresh: bool,
    ):
        """`fresh`: the copies' optimizers start anew in every round. `rule` may add to the copies' gradients."""
        super().__init__(body, optimizer)
        self._make, self._rule, self._fresh = make_optimizer, rule, fresh
        self._own: dict[int, _Copy] = {}
        self._spent: dict[int, State] = {}
        self._kept: dict[int, State] = {}

    def open_round(self) -> None:
        self._own.clear()
        self._spent.clear()

    def _copy(self, client: int) -> "_Copy":
        if client not in self._own:
            body = _copied(self.body)
            optimizer = self._make(body.parameters())
            load_optimizer(optimizer, self._kept.get(client, {}))
            for mine, whole in zip(_groups(optimizer), _groups(self.optimizer), strict=True):
                mine["lr"] = whole["lr"]  # as the schedule has it
            self._own[client] = _Copy(body, optimizer, _corrected(self._rule, body))
        return self._own[client]

    def of(self, client: int) -> nn.Module:
        return self._copy(client).body

    def version(self, client: int) -> int:
        return self._copy(client).updates

    def learnt(self, client: int, rows: int) -> None:
        self._copy(client).step()

    def forget(self, client: int) -> None:
        self._own.pop(client, None)
        self._spent.pop(client, None)
        super().forget(client)

    def collect(self, client: int) -> State:
        """What a client's turn has made of its copy, which is gone then; the body's own if there is none."""
        copy = self._own.pop(client, None)
        side: Bodies = self if copy is None else copy
        if not self._fresh:
            self._spent[client] = optimizer_state(side.optimizer)
        return named(side.body, copies=copy is None)

    def commit(self, client: int) -> None:
        if client in self._spent:
            self._keep(client, self._spent.pop(client))

    def before_turn(self) -> None:
        return None  # a copy that is spoilt is not merged

    def kept(self) -> dict[int, State]:
        return self._kept

    def restore(self, kept: Mapping[int, State]) -> None:
        self._kept = {}
        for client, state in kept.items():
            self._keep(client, dict(state))

    def _keep(self, client: int, state: State) -> None:
        """Until its next round: what all of them remember may be as large as so many bodies."""
        self._kept.pop(client, None)
        self._kept[client] = laid_by(state, others=len(self._kept))


class _Copy(Bodies):
    """One client's body for a round; `correct` is what a rule adds to its gradients."""

    def __init__(self, body: nn.Module, optimizer: torch.optim.Optimizer | None, correct: Callable[[], None]):
        super().__init__(body, optimizer)
        self._correct = correct

    def step(self) -> None:
        if self.optimizer is not None:
            self._correct()
        super().step()


def _copied(body: nn.Module) -> nn.Module:
    """Of what never changes all copies have the same tensors: a frozen base is in memory once."""
    fixed, state = fixed_names(body), body.state_dict(keep_vars=True)
    return copy.deepcopy(body, {id(tensor): tensor for name, tensor in state.items() if name in fixed})


def _corrected(rule: Rule, body: nn.Module) -> Callable[[], None]:
    """What a rule adds to the gradients of one client's copy of the body."""
    correction = rule.correction()
    if correction is None:
        return lambda: None
    parameters = {name: p for name, p in body.named_parameters() if p.requires_grad}
    correction.start(parameters, named(body))
    return lambda: correction.adjust(parameters)


def _groups(optimizer: torch.optim.Optimizer | None) -> list[dict[str, object]]:
    return [] if optimizer is None else optimizer.param_groups
