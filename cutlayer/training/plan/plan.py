"""A run as plain objects: what is trained on what, cut where, guarded how. A recipe returns one."""

import secrets
from dataclasses import dataclass, field, fields, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from ...core.batch import Task as Task
from ...core.compressor import Compressor
from ...core.outside import plain_names
from ...core.spec import Spec
from ...core.split import Split, UShaped
from ...data.base import Source
from ...data.digits import Digits
from ...data.partitions import IID, Partition
from ...data.poisons import Poison
from ...detectors import Detector, ServerDetector
from ...guards import Guard, NoGuard
from ...nets.base import Net
from ...nets.bypass import FUSIONS
from ...nets.simple_cnn import SimpleCNN
from ...rules import FedAvg, Latest, Rule
from ...rules.base import CONTROL
from .code import outside, parts
from .fields import FIELDS
from .lr_schedules import Constant, Schedule
from .optimizers import SGD, Adam, Optimizer
from .roles import AllActive, Frozen, Roles
from .schedule import Relay, Rounds, Wave

__all__ = ["Plan"]

PARTS = ("head", "body", "tail")
MOST_MICRO_BATCHES = 8
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

    `seed` is public: it gives the body, the public maps of guards and the simulated partition. `private_seed` gives
    heads, tails, batch order, keys and noise; it is never shown, and the server cannot compute it from `seed`.
    """

    net: Net = SimpleCNN()
    data: Source = Digits()
    protocol: type[Split] = UShaped
    guard: Guard = NoGuard()
    guarded_clients: int | None = None  # how many clients use the guard, the first ones; None: all of them
    home: float = 0.5  # the share of channels that never leave (Bypass)
    fusion: str = "residual"  # how what stayed home rejoins what the server returns (Bypass)
    clients: int = 1
    partition: Partition = IID()
    shared_client_network: bool = True  # one head and tail, handed on (SCH), or one of each per client (PCH)
    rounds: Rounds = Relay()  # one after the other, all at once (Wave), or merged after a while (SplitFed)
    rule: Rule = Latest()  # how the weights that clients bring become one; where rounds merge, FedAvg if nothing else
    roles: Roles = AllActive()  # who learns, and who only feeds the server forward
    client_detectors: tuple[Detector, ...] = ()  # each client's own detectors, which no server is told of
    server_detectors: tuple[ServerDetector, ...] = ()  # the server's own, which no client is told of
    poison: Poison | None = None  # experiments: what malicious clients do to their own samples
    clients_per_round: int | None = None  # clients drawn for each pass; None: all of them
    local_steps: int = 1  # batches a client learns from before the next takes over, or a merge; 0: its whole epoch
    epochs: int = 5
    batch_size: int = 64
    micro_batches: int = 1  # that a batch travels in, all in flight at once; BatchNorm sees each piece alone
    down: Compressor = Compressor()  # how u comes down: Quantize(bits=8), TopK(share=0.1), ...
    back: Compressor = Compressor()  # how the gradients travel, du up and dz down
    client_optimizer: Optimizer = Adam()
    server_optimizer: Optimizer = Adam()
    schedule: Schedule = Constant()
    frozen_parts: tuple[str, ...] = ()  # parts that do not train: head, body, tail
    weights: str = ""  # a file with a whole network's weights to start from; each side takes only its own part
    skip_tail: bool = False  # leave the classifier out of `weights`: other classes than it was trained for
    patience: int = 0  # epochs without a better validation accuracy before it stops; 0: never
    val_share: float = 0.1  # share of the training data that chooses the best epoch
    aux_samples: int = 0  # training samples set aside as the attacker's own data
    seed: int = 0
    private_seed: int | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        whole = {
            "clients": 1,
            "local_steps": 0,
            "epochs": 0,
            "batch_size": 2,
            "micro_batches": 1,
            "patience": 0,
            "aux_samples": 0,
        }
        for name, least in whole.items():
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise ValueError(f"{name} is a whole number from {least} up; got {value!r}")
        for name, kind in _KINDS.items():
            if not isinstance(getattr(self, name), kind):
                listed = f"cutlayer list {FIELDS[name].kind}"
                which = "Quantize, TopK, RandTopK or SplitFC" if kind is Compressor else listed
                raise ValueError(f"{name} cannot be {getattr(self, name)!r}; see: {which}")
        if not (isinstance(self.protocol, type) and issubclass(self.protocol, Split)):
            raise ValueError(f"protocol is Vanilla, UShaped, Bypass or Federated; got {self.protocol!r}")
        self._refuse_impossible_rounds()
        if unknown := set(self.frozen_parts) - set(PARTS):
            raise ValueError(f"frozen_parts names parts among {', '.join(PARTS)}; got {', '.join(sorted(unknown))}")
        if self.guarded_clients is not None and not 0 <= self.guarded_clients <= self.clients:
            raise ValueError(
                f"guarded_clients is how many of the {self.clients} client(s) use the guard; "
                f"got {self.guarded_clients}"
            )
        if self.micro_batches > min(MOST_MICRO_BATCHES, self.batch_size // 2):
            raise ValueError(
                f"micro_batches is at most {MOST_MICRO_BATCHES}, and each has at least two samples of a batch of "
                f"{self.batch_size}; got {self.micro_batches}"
            )
        if self.fusion not in FUSIONS:
            raise ValueError(f"fusion is one of {', '.join(FUSIONS)}; got {self.fusion!r}")
        if not 0 < self.home < 1:
            raise ValueError(f"home is the share of channels that stay with the client, in (0, 1); got {self.home}")
        if not 0 <= self.val_share < 1:
            raise ValueError(
                f"val_share is the share of training data for validation, in [0, 1); got {self.val_share}"
            )
        if self.patience and not self.val_share:
            raise ValueError("early stopping needs validation data: give val_share a value above 0, or patience=0")

    def _refuse_impossible_rounds(self) -> None:
        if self.rounds.merges and not self.rule.merges:
            object.__setattr__(self, "rule", FedAvg())
        if not self.rounds.merges and self.rule.merges:
            raise ValueError(
                f"{self.rule!r} merges what several clients bring, and in a relay one follows the other: "
                "take rounds=SplitFed() or Wave()"
            )
        if self.clients_per_round is not None and (
            not isinstance(self.clients_per_round, int) or not 1 <= self.clients_per_round <= self.clients
        ):
            raise ValueError(
                f"clients_per_round is how many of the {self.clients} client(s) are drawn for a pass, 1 to "
                f"{self.clients}; got {self.clients_per_round!r}"
            )
        if self.rounds.waves and (self.local_steps != 1 or self.micro_batches != 1):
            raise ValueError("a wave is one batch of every client, in one piece: local_steps=1 and micro_batches=1")
        self.roles.refuse_impossible(self.clients)
        if isinstance(self.rounds, Wave) and self.rounds.fused and not isinstance(self.roles, AllActive):
            raise ValueError("a fused wave answers all clients alike, and frozen ones get no gradient: fused=False")
        if self.rounds.own_bodies and self.protocol.crosses and CONTROL in self.rule.travels:
            raise ValueError(
                f"{self.rule!r} remembers something of every client, and clients' bodies are the server's: "
                "take rounds=SplitFed(version=2), or protocol=Federated"
            )
        learning = self.clients - (self.roles.count(self.clients) if isinstance(self.roles, Frozen) else 0)
        there = min(self.clients_per_round or learning, learning)
        if self.rule.merges and there < self.rule.least:
            raise ValueError(
                f"{self.rule!r} needs {self.rule.least} clients in a round to keep its promise; there are {there}"
            )
        if (
            self.rule.merges
            and self.rule != FedAvg()
            and not self.shared_client_network
            and not self.rounds.own_bodies
        ):
            raise ValueError(f"{self.rule!r} has nothing to merge: heads are the clients' own, and there is one body")
        if CONTROL in self.rule.travels and not (
            isinstance(self.client_optimizer, SGD) and self.client_optimizer.momentum == 0
        ):
            raise ValueError(
                f"{self.rule!r} tells a client's gradient from how far it moved, as in plain descent: take "
                f"client_optimizer=SGD(momentum=0.0), not {self.client_optimizer!r}"
            )
        if self.guard.reads_gradients and self.rule.correction() is not None:
            raise ValueError(f"{self.rule!r} adds to the clients' gradients, which {self.guard!r} replaces")
        if not isinstance(self.client_detectors, tuple) or not all(
            isinstance(one, Detector) for one in self.client_detectors
        ):
            raise ValueError(f"client_detectors cannot be {self.client_detectors!r}; see: cutlayer list detectors")
        if self.client_detectors and (
            self.micro_batches > 1 or not self.protocol.crosses or "head" in self.frozen_parts
        ):
            raise ValueError("detectors look at whole batches that cross, and at a head that trains: micro_batches=1")
        if not isinstance(self.server_detectors, tuple) or not all(
            isinstance(one, ServerDetector) for one in self.server_detectors
        ):
            raise ValueError(
                f"server_detectors cannot be {self.server_detectors!r}: ConsensusCosine is a server's detector"
            )
        if self.server_detectors and (not self.protocol.crosses or getattr(self.rounds, "fused", False)):
            raise ValueError("the server's detectors look at single batches that cross: a cut, and no fused waves")
        if self.poison is not None:
            if not isinstance(self.poison, Poison):
                raise ValueError(f"poison cannot be {self.poison!r}; see: cutlayer list poisons")
            self.poison.count(self.clients)
        if not self.protocol.crosses and not isinstance(self.guard, NoGuard):
            raise ValueError(f"nothing crosses in {self.protocol.__name__} that {self.guard!r} could guard")
        if not self.protocol.crosses and not (self.shared_client_network and isinstance(self.roles, AllActive)):
            raise ValueError(f"{self.protocol.__name__}: without weights that are merged nothing is learnt together")
        if (self.rounds.own_bodies or self.rounds.waves) and self.guard.exchange:
            raise ValueError(
                f"{self.guard!r} exchanges the server's half with one client at a time: take rounds=Relay() or "
                "SplitFed(version=2)"
            )

    @property
    def keeps_optimizers(self) -> bool:
        """Whether each client's optimizer lives on beside weights that are merged."""
        return self.shared_client_network and self.rounds.merges and not self.rounds.fresh

    @property
    def least_batch(self) -> int:
        """The fewest samples a last batch may have: BatchNorm needs two rows, a guard may make one of several."""
        return min(self.batch_size, 2 * self.guard.least_batch)

    def public(self) -> "Plan":
        """The server's copy: no client-only guards, no private seed."""
        return replace(self, guard=self.guard.public_part(), client_detectors=(), poison=None, private_seed=None)

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
        if outside(self.net):
            agreed |= {f"parameters of the {part}": shown for part, shown in parts(self.net).items()}
        if self.weights:  # the file, not where it lies
            agreed["weights"] = sha256(Path(self.weights).read_bytes()).hexdigest()[:16]
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


_KINDS: dict[str, Any] = {
    "net": Net,
    "data": Source,
    "guard": Guard,
    "down": Compressor,
    "back": Compressor,
    "partition": Partition,
    "rule": Rule,
    "rounds": Rounds,
    "roles": Roles,
    "client_optimizer": Optimizer,
    "server_optimizer": Optimizer,
    "schedule": Schedule,
}
