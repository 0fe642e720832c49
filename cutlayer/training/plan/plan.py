"""A run as plain objects: what is trained on what, cut where, guarded how. A recipe returns one."""

import secrets
from dataclasses import dataclass, field, fields, replace
from hashlib import sha256
from math import inf
from typing import Any, get_args, get_origin

from ...core.batch import Task as Task
from ...core.compressor import Compression as Compression
from ...core.outside import plain_names
from ...core.spec import Spec
from ...data.base import Source
from ...data.fashion import Fashion
from ...data.partitions import IID, Partition
from ...data.poisons import Poison
from ...detectors import Detector, ServerDetector
from ...guards import Guard, NoGuard
from ...nets.at_layers import CutAtLayers
from ...nets.base import Net
from ...nets.lora import LoRA
from ...nets.simple_cnn import SimpleCNN
from ...rules import FedAvg, Latest, Rule
from ..protocols import Protocol, UShaped
from .code import net_parts, outside
from .fields import FIELDS
from .lr_schedules import Constant, Schedule
from .optimizers import Adam, Optimizer
from .pretrained import Pretrained
from .roles import AllActive, Roles
from .schedule import Relay, Rounds

__all__ = ["Plan"]

PARTS = ("head", "body", "tail")
MOST_MICRO_BATCHES = 8
LEAST = {
    "clients": 1, "local_steps": 0, "epochs": 0, "batch_size": 2, "micro_batches": 1, "patience": 0, "aux_samples": 0
}  # fmt: skip
Part = Net | Rounds | Roles | Rule | Guard | Detector | ServerDetector | Poison | Protocol
# Fields that each side has for itself: no other is told of them.
OWN = (
    "data",
    "partition",
    "val_share",
    "aux_samples",
    "client_detectors",
    "server_detectors",
    "poison",
    "private_seed",
)


@dataclass(frozen=True, kw_only=True, repr=False)
class Plan(Spec):
    """One run. Everything here may be shown to the server, except client-only guards and `private_seed`.

    Values are objects, as in `Plan(net=SimpleCNN(), guard=LightSplit(ratio=8), clients=5)`; where a kind stands in
    brackets, `cutlayer list` prints what there is. What does not fit together is refused, with what to write instead.

    Args:
        net: The network, which knows its head, body and tail (nets).
        data: Where the samples come from (data). Each site of a served run names its own.
        protocol: What crosses the cut, and where the labels are (protocols).
        guard: What is done to z, the activation at the cut, before it leaves (guards).
        guarded_clients: How many clients use the guard, the first ones; None: all of them.
        clients: How many clients there are.
        partition: Which client holds which samples of one data set (partitions).
        shared_client_network: One head and tail, handed on (SCH), or one of each per client (PCH).
        rounds: One client after the other, all at once (Wave), or merged after a while (SplitFed) (rounds).
        rule: How the weights that clients bring become one; where rounds merge, FedAvg if nothing else (rules).
        roles: Who learns, and who only feeds the server forward (roles).
        client_detectors: Each client's own detectors, which no server is told of (detectors).
        server_detectors: The server's own, which no client is told of (detectors).
        poison: Experiments: what malicious clients do to their own samples (poisons).
        clients_per_round: Clients drawn for each pass; None: all of them.
        local_steps: Batches a client learns from before the next takes over, or a merge; 0: its whole epoch.
        epochs: Passes over the training data.
        batch_size: Samples per step.
        micro_batches: Pieces that a batch travels in, all in flight at once; BatchNorm sees each piece alone.
        compression: How u and the gradients travel; what goes up is the guard's (compressions).
        client_optimizer: Of head and tail (optimizers).
        server_optimizer: Of the body (optimizers).
        schedule: Of the learning rates, over the epochs (schedules).
        largest_move: Of merged weights in a step, in moves of the client that gets them; 0: not looked at.
        frozen_parts: Parts that do not train: "head", "body", "tail".
        adapters: What trains over a head and body that do not (adapters).
        start: A file with a whole network's weights; each side takes only its own part (starts).
        patience: Epochs without a better validation accuracy before it stops; 0: never.
        val_share: Share of the training data that chooses the best epoch.
        aux_samples: Training samples set aside as the attacker's own data.
        seed: Public: it gives the body, the public maps of guards and the simulated partition.
        private_seed: Gives heads, tails, batch order, keys and noise. Never shown, and the server cannot compute it
            from `seed`. None: drawn afresh.
    """

    net: Net = SimpleCNN()
    data: Source = Fashion()
    protocol: Protocol = UShaped()
    guard: Guard = NoGuard()
    guarded_clients: int | None = None
    clients: int = 1
    partition: Partition = IID()
    shared_client_network: bool = True
    rounds: Rounds = Relay()
    rule: Rule = Latest()
    roles: Roles = AllActive()
    client_detectors: tuple[Detector, ...] = ()
    server_detectors: tuple[ServerDetector, ...] = ()
    poison: Poison | None = None
    clients_per_round: int | None = None
    local_steps: int = 1
    epochs: int = 5
    batch_size: int = 64
    micro_batches: int = 1
    compression: Compression = Compression()
    client_optimizer: Optimizer = Adam()
    server_optimizer: Optimizer = Adam()
    schedule: Schedule = Constant()
    largest_move: float = 8.0
    frozen_parts: tuple[str, ...] = ()
    adapters: LoRA | None = None
    start: Pretrained | None = None
    patience: int = 0
    val_share: float = 0.1
    aux_samples: int = 0
    seed: int = 0
    private_seed: int | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        for one in fields(self):
            if one.name in FIELDS and FIELDS[one.name].kind:
                self._refuse_other_kind(one.name, one.type)
        self._refuse_numbers_out_of_range()
        self._refuse_twice()
        if self.rounds.merges and not self.rule.merges:
            object.__setattr__(self, "rule", FedAvg())
        object.__setattr__(self, "guard", self.guard.over(self.epochs))
        for part in self.parts():
            part.refuse_unfit_plan(self)
        if self.adapters is not None:
            self._refuse_unfit_adapters(self.adapters)

    def parts(self) -> list[Part]:
        """What may refuse to stand in this plan, each for reasons of its own."""
        poisons: list[Part] = [] if self.poison is None else [self.poison]
        detectors: list[Part] = [*self.client_detectors, *self.server_detectors]
        return [self.net, self.rounds, self.roles, self.rule, self.guard, *detectors, *poisons, self.protocol]

    def _refuse_other_kind(self, name: str, kind: Any) -> None:
        value, several = getattr(self, name), get_origin(kind) is tuple
        if several:
            kind = get_args(kind)[0]
        if isinstance(value, type) and issubclass(value, kind):
            since = " since version 0.2" if name == "protocol" else ""
            raise ValueError(
                f"{name} is an object{since}, not the class {value.__name__}: write {name}={value.__name__}(...)"
            )
        if isinstance(value, str) and not several:
            raise ValueError(
                f"{name} cannot be text: write {value} without the quotes, or {name}=spec({value!r}); see: cutlayer "
                f"list {FIELDS[name].kind}"
            )
        fits = isinstance(value, tuple) if several else isinstance(value, kind)
        if not fits or (several and not all(isinstance(one, kind) for one in value)):
            hint = ": ConsensusCosine is a server's detector" if kind is ServerDetector else ""
            raise ValueError(f"{name} cannot be {value!r}{hint}; see: cutlayer list {FIELDS[name].kind}")

    def _refuse_numbers_out_of_range(self) -> None:
        for name, least in LEAST.items():
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise ValueError(f"{name} is a whole number from {least} up; got {value!r}")
        for name in ("seed", "private_seed"):
            value = getattr(self, name)
            if not isinstance(value, int) and (name == "seed" or value is not None):
                raise ValueError(f"{name} is a whole number; got {value!r}")
        if unknown := set(self.frozen_parts) - set(PARTS):
            raise ValueError(f"frozen_parts names parts among {', '.join(PARTS)}; got {', '.join(sorted(unknown))}")
        if self.guarded_clients is not None and not 0 <= self.guarded_clients <= self.clients:
            raise ValueError(
                f"guarded_clients is how many of the {self.clients} client(s) use the guard; "
                f"got {self.guarded_clients}"
            )
        drawn = self.clients if self.clients_per_round is None else self.clients_per_round
        if not isinstance(drawn, int) or not 1 <= drawn <= self.clients:
            raise ValueError(
                f"clients_per_round is how many of the {self.clients} client(s) are drawn for a pass, 1 to "
                f"{self.clients}; got {drawn!r}"
            )
        if self.micro_batches > min(MOST_MICRO_BATCHES, self.batch_size // 2):
            raise ValueError(
                f"micro_batches is at most {MOST_MICRO_BATCHES}, and each has at least two samples of a batch of "
                f"{self.batch_size}; got {self.micro_batches}"
            )
        if not isinstance(self.val_share, int | float) or not 0 <= self.val_share < 1:
            raise ValueError(
                f"val_share is the share of training data for validation, in [0, 1); got {self.val_share!r}"
            )
        if not isinstance(self.largest_move, int | float) or not 0 <= self.largest_move < inf:
            raise ValueError(
                "largest_move is how many times farther than in a client's own steps merged weights may move, from 0 "
                f"(any distance) up; got {self.largest_move!r}"
            )
        if self.patience and not self.val_share:
            raise ValueError("early stopping needs validation data: give val_share a value above 0, or patience=0")

    def _refuse_twice(self) -> None:
        for name in ("frozen_parts", "client_detectors", "server_detectors"):
            several = getattr(self, name)
            for one in several:
                if several.count(one) > 1:
                    raise ValueError(f"{name} has {one!r} twice: leave one out")

    def _refuse_unfit_adapters(self, adapters: LoRA) -> None:
        if adapters.side == "server" and not self.protocol.crosses:
            raise ValueError(f"{adapters!r}: in {self.protocol} no part is the server's: take side='client'")
        if self.unequal_ranks and not self.rounds.merges:
            raise ValueError(
                f"{adapters!r}: a relay hands on the optimizer's state too, which has the rank of whoever left it: "
                "take rounds=SplitFed(), or --own-client-network"
            )
        if self.unequal_ranks and "control." in self.rule.travels:
            raise ValueError(f"{adapters!r}: {self.rule!r} keeps variates of one rank: take another rule")

    @property
    def unequal_ranks(self) -> bool:
        """Whether clients that share their weights have adapters of several ranks."""
        if self.adapters is None or self.adapters.side == "server" or not self.hands_on:
            return False
        return len({self.adapters.rank_of(number) for number in range(self.clients)}) > 1

    @property
    def keeps_optimizers(self) -> bool:
        """Whether each client's optimizer lives on beside weights that are merged."""
        return self.shared_client_network and self.rounds.merges and not self.rounds.fresh

    @property
    def least_batch(self) -> int:
        """The fewest samples a last batch may have: BatchNorm needs two rows, a guard may make one of several."""
        return min(self.batch_size, max(2 * self.guard.least_batch, self.guard.least_to_learn))

    def rate_factor(self, epoch: int) -> float:
        """What the learning rates of an epoch are multiplied by."""
        return self.schedule.factor(*self.roles.stretch(epoch, self.epochs))

    @property
    def fixed_parts(self) -> tuple[str, ...]:
        """Parts whose numbers are those they were built with, adapters apart: they never travel."""
        if self.adapters is None:
            return self.frozen_parts
        return tuple(part for part in PARTS if part in self.frozen_parts or part != "tail")

    @property
    def hands_on(self) -> bool:
        """Whether one head and tail go from client to client, or are merged, by way of the server."""
        return self.shared_client_network and (self.clients > 1 or self.rounds.merges)

    @property
    def alike(self) -> bool:
        """Whether all clients have one and the same network."""
        return (
            self.shared_client_network
            and self.guarded_clients is None
            and not self.roles.keeps_heads
            and not self.unequal_ranks
        )

    @property
    def client_parts_train(self) -> bool:
        """Whether anything of a client's network trains; its guard may, even so."""
        parts = {"head"} | ({"tail"} if self.protocol.labels_stay_home else set())
        parts |= set() if self.protocol.crosses else {"body"}
        adapted = self.adapters is not None and (self.adapters.side != "server" or self.adapters.whole != "")
        return adapted or not parts <= set(self.fixed_parts)

    def public(self) -> "Plan":
        """The server's copy: no client-only guards, no private seed."""
        return replace(self, guard=self.guard.public_part(), client_detectors=(), poison=None, private_seed=None)

    def with_guard(self, guard: Guard) -> "Plan":
        """The same with another guard."""
        return replace(self, guard=guard, roles=self.roles.unguarded() if guard == NoGuard() else self.roles)

    def guard_of(self, client: int) -> Guard:
        """The guard one client uses."""
        return self.guard if self.guarded_clients is None or client < self.guarded_clients else NoGuard()

    def fingerprint(self) -> str:
        """A hash of what both sides agree on before the first step."""
        return sha256(repr(self.agreed()).encode()).hexdigest()[:16]

    def agreed(self) -> dict[str, str]:
        """The public part field by field, without where the data come from: that is each client's own business."""
        told = self._told()
        with plain_names():
            agreed = {name: repr(value) for name, value in told.items()}
            code = outside([*told.values()])
        if code:
            agreed["code"] = ", ".join(f"{name} {source.digest}" for name, source in code.items())
        if outside(self.net) or isinstance(self.net, CutAtLayers):
            agreed |= {f"parameters of the {part}": shown for part, shown in net_parts(self.net).items()}
        if self.start is not None:
            agreed["start"] = repr(self.start.agreed())
        return agreed

    def _told(self) -> dict[str, Any]:
        """The fields that both sides know."""
        public = self.public()
        return {one.name: getattr(public, one.name) for one in fields(public) if one.name not in OWN}

    def code(self) -> dict[str, str]:
        """A digest of all from outside the package that this plan is made of, by the name it is written with."""
        made_of = outside([getattr(self, one.name) for one in fields(self)])
        return {name: source.digest for name, source in made_of.items()}

    def refuse_nameless(self) -> None:
        """Before it is told to another machine: code that cannot be compared there is no plan to agree on."""
        for name, source in outside([*self._told().values()]).items():
            if source.why_not:
                raise ValueError(f"{name} cannot be compared between machines: {source.why_not}")

    def with_secrets(self) -> "Plan":
        """This plan with a private seed; drawn afresh unless one was fixed (tests, audits)."""
        if self.private_seed is not None:
            return self
        return replace(self, private_seed=secrets.randbits(63))
