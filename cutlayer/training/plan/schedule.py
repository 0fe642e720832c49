"""Who learns when: a pass gives every client its next batches, and a round is what ends in one merge.

From which weights the next round starts is a rule's business; what a client may do in it is its role's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

import torch
from torch import nn

from ...core.seeds import derive, generator
from ...core.spec import Spec
from ...rules import FedAvg, Rule
from ..bodies import Copies, Gathered, Optimizing, RoundBodies
from ..fused_wave import refuse_mixing
from .roles import Role, Roles

if TYPE_CHECKING:
    from .plan import Plan

__all__ = ["Relay", "SplitFed", "Wave"]


class Turn(NamedTuple):
    """Client `client` learns from its batches `first` to `last` (not included) of this epoch."""

    client: int
    first: int
    last: int
    frozen: bool = False  # forward only: the server learns, the client does not
    inherits: bool = True  # a frozen client takes over the newest shared head first


@dataclass(frozen=True, repr=False)
class Rounds(Spec):
    """How the clients of a pass share a round."""

    merges: ClassVar[bool] = True  # all of a pass start alike, and a rule makes one state of what they bring
    own_bodies: ClassVar[bool] = False  # a copy of the body for each client of a round, merged like the heads
    waves: ClassVar[bool] = False  # the body steps once for all clients of a round
    fused: ClassVar[bool] = False  # the body computes the batches of all clients of a round in one pass
    fresh: ClassVar[bool] = False  # clients' optimizers start anew in every round, instead of living on
    ahead: ClassVar[int] = 0  # batches whose heads are computed before the step before them is over

    def arranged(self, turns: list[Turn], seed: int) -> list[tuple[Turn, ...]]:
        """The rounds of one pass, from the turns of all clients that take part in it."""
        return [tuple(turns)] if turns else []

    def weight(self, samples: int) -> int:
        """How much a client's update counts that has learnt from so many samples."""
        return samples

    def refuse_unfit_plan(self, plan: "Plan") -> None:
        """A ValueError where these rounds cannot be a plan's, with what would work; before anything is built."""
        rule = plan.rule
        if not self.merges and rule.merges:
            raise ValueError(
                f"{rule!r} merges what several clients bring, and in a relay one follows the other: "
                "take rounds=SplitFed() or Wave()"
            )
        if rule.merges and rule != FedAvg() and not plan.shared_client_network and not self.own_bodies:
            raise ValueError(f"{rule!r} has nothing to merge: heads are the clients' own, and there is one body")
        if self.ahead:
            refuse_unfit_ahead(self, plan)

    def bodies(self, body: nn.Module, make_optimizer: Optimizing, rule: Rule) -> RoundBodies:
        """What becomes of the server's body in a round."""
        return RoundBodies(body, make_optimizer(body.parameters()))


@dataclass(frozen=True, repr=False)
class Relay(Rounds):
    """One client after the other, each from where the last one stopped (sequential split learning).

    With `ahead=1` a client sends its next batch while a gradient is on its way: faster on a slow link, and what is
    before the cut learns from gradients one step old.
    """

    ahead: Literal[0, 1] = 0  # type: ignore[misc]  # batches of a turn that are begun before the step before is over
    merges = False

    def __post_init__(self) -> None:
        _refuse_other_than_one(self)

    def arranged(self, turns: list[Turn], seed: int) -> list[tuple[Turn, ...]]:
        return [(turn,) for turn in turns]


@dataclass(frozen=True, repr=False)
class Wave(Rounds):
    """All clients at once: one batch each, one step of the body from the mean of their gradients, heads merged.

    Parallel split learning (Madill 2025, Eq. 4.1 with weights='even'). `fused` computes the body once for all
    batches together: the same gradients, faster, and refused for bodies where batches would see each other.
    """

    weights: Literal["rows", "even"] = "rows"  # of a client's gradient: as its batch has rows, or all alike
    fused: bool = False  # type: ignore[misc]
    waves = True

    def __post_init__(self) -> None:
        if self.weights not in ("rows", "even"):
            raise ValueError(f"weights is rows (as large as a client's batch) or even; got {self.weights!r}")

    def refuse_unfit_plan(self, plan: "Plan") -> None:
        super().refuse_unfit_plan(plan)
        if plan.local_steps != 1 or plan.micro_batches != 1:
            raise ValueError("a wave is one batch of every client, in one piece: local_steps=1 and micro_batches=1")
        if self.fused and not plan.protocol.crosses:
            raise ValueError(
                f"a fused wave has one body for all, and in {plan.protocol} no body is shared: fused=False"
            )
        if self.fused and plan.roles.learning(plan.clients) < plan.clients:
            raise ValueError("a fused wave answers all clients alike, and frozen ones get no gradient: fused=False")

    def weight(self, samples: int) -> int:
        return 1 if self.weights == "even" else samples

    def bodies(self, body: nn.Module, make_optimizer: Optimizing, rule: Rule) -> RoundBodies:
        if self.fused:
            refuse_mixing(body)
        return Gathered(body, make_optimizer(body.parameters()), self.weights)


@dataclass(frozen=True, repr=False)
class SplitFed(Rounds):
    """Heads start alike and are merged after every round; version 1 has a body for each client, version 2 one body.

    In version 1 the bodies are merged like the heads. In version 2 the one body learns from the clients in an order
    that is drawn for every round (Thapa et al. 2022). `ahead` as in `Relay`.
    """

    version: Literal[1, 2] = 1
    fresh: bool = False  # type: ignore[misc]  # momentum and the like start anew in every round: stateless clients
    ahead: Literal[0, 1] = 0  # type: ignore[misc]

    def __post_init__(self) -> None:
        _refuse_other_than_one(self)
        if self.version not in (1, 2):
            raise ValueError(f"SplitFed has version 1 (a body a client) and 2 (one body); got {self.version!r}")

    @property
    def own_bodies(self) -> bool:  # type: ignore[override]
        return self.version == 1

    def bodies(self, body: nn.Module, make_optimizer: Optimizing, rule: Rule) -> RoundBodies:
        if self.version == 2:
            return super().bodies(body, make_optimizer, rule)
        return Copies(body, make_optimizer(body.parameters()), make_optimizer, rule, self.fresh)

    def arranged(self, turns: list[Turn], seed: int) -> list[tuple[Turn, ...]]:
        if self.version == 2:
            lot = torch.randperm(len(turns), generator=generator(derive(seed, "order"))).tolist()
            turns = [turns[place] for place in lot]
        return super().arranged(turns, seed)


def _refuse_other_than_one(rounds: Rounds) -> None:
    if type(rounds.ahead) is not int or rounds.ahead not in (0, 1):
        raise ValueError(
            f"ahead is 0, or 1: one batch is begun before the step before it is over; got {rounds.ahead!r}"
        )


def refuse_unfit_ahead(rounds: Rounds, plan: "Plan") -> None:
    """A ValueError where no batch of a plan can be begun before the step before it is over."""
    guard, exact = plan.guard, "ahead=0"
    reasons = {
        "a turn of one batch has no next one: take local_steps=2 or more, or 0 for a whole epoch": plan.local_steps
        == 1,
        "pieces of a batch are in flight already: take micro_batches=1, or " + exact: plan.micro_batches > 1,
        f"nothing crosses in {plan.protocol} that would be waited for: take {exact}": not plan.protocol.crosses,
        f"clients that {plan.roles!r} freezes wait for no gradient: take roles=AllActive(), or {exact}": (
            plan.roles.freezes
        ),
        f"a client's detectors look at one step at a time: take {exact}": bool(plan.client_detectors),
        f"{guard!r} reads the gradients of one step at a time: take {exact}": guard.reads_gradients,
        f"{guard!r} exchanges the server's half between two steps, and there is no between: take {exact}": bool(
            guard.exchange
        ),
    }
    for why, unfit in reasons.items():
        if unfit:
            raise ValueError(f"{rounds!r}: {why}")


def epoch_rounds(
    rounds: Rounds,
    roles: Roles,
    batches: Sequence[int],
    length: int,
    take: int | None = None,
    *,
    epoch: int = 0,
    seed: int = 0,
) -> list[tuple[Turn, ...]]:
    """One epoch: passes over the clients, `length` batches a turn (0: all of them), until every batch was used.

    `length=1` in a relay is LightSplit's Alg. 1. Clients with less data drop out earlier. With `take`, each pass has
    so many clients, drawn anew; the batches of the others wait for the next epoch.
    """
    longest = max(batches, default=0)
    length = length or longest
    passes = -(-longest // length) if longest else 0
    found: list[tuple[Turn, ...]] = []
    for number in range(passes):
        place, count = derive(seed, "pass", epoch, number), epoch * passes + number
        first = number * length
        there = [client for client, have in enumerate(batches) if first < have]
        if take is not None and take < len(there):
            lot = torch.randperm(len(there), generator=generator(place))[:take]
            there = [there[one] for one in sorted(lot.tolist())]
        parts, still = roles.at(count, len(batches), seed), roles.phase(epoch).frozen
        turns = [
            Turn(
                client,
                first,
                min(first + length, batches[client]),
                still or parts[client] is Role.FROZEN,
                roles.takes_over(epoch, number) if still else roles.inherits(count),
            )
            for client in there
            if parts[client] is not Role.OUT
        ]
        found += rounds.arranged(turns, place)
    return found
