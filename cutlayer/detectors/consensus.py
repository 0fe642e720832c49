"""Cosine to consensus: a client whose batches look on average unlike those of all others."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, inf
from statistics import mean, median
from typing import Any, Literal

import torch
from torch import Tensor

from ..core.message import Handler, Kind, Message
from ..core.seeds import derive, generator
from .parts.server_context import ServerContext, ServerDetector, ServerWatch

CONSISTENT = 1.4826  # times the median absolute deviation is a Gaussian's standard deviation
LEAST = 3  # clients: of two, neither is the odd one out
UNITS = 256  # that are dealt out at most: beyond, neighbouring batches of a client are one
OWN = 8  # units that a client has even so, parts of batches if need be
MANY = 2048  # but where clients are very many, of all together
ENOUGH = 5  # rounds on which a client is judged


@dataclass(frozen=True, repr=False)
class ConsensusCosine(ServerDetector):
    """At the server: which client's mean representation points away from that of the others.

    A round is an epoch, or `window` passes over the clients: c = cos(mean of a client's rows, mean of all others'
    means), and z = (median − c) / (1.4826 MAD) says how far below the others it lies. The threshold is by default
    that which as many clients with the same batches, dealt out at random within each pass, exceed in a share `alarms`
    of the rounds; with `clean` rounds at the start that are known to be honest, it is what a share `alarms` of these
    exceed. A client is suspected once it was flagged in most of its last five rounds. A round's rows stay in memory
    until it is over.
    """

    signature: Literal["output", "input"] = "output"  # what the body makes of a batch, or what the client sent
    leave_one_out: bool = True  # the consensus a client is compared with is that of the others
    sides: Literal[1, 2] = 1  # 2: a client nearer to the consensus than all others is flagged as well
    window: int = 0  # passes over the clients; 0: an epoch, all samples of every client
    alarms: float = 0.02  # the wanted share of honest rounds with an alarm
    threshold: float | None = None  # fixed instead: 3.0 is the usual rule, which honest rounds exceed often
    clean: int = 0
    shuffles: int = 199

    def __post_init__(self) -> None:
        if self.signature not in ("output", "input"):
            raise ValueError(f"signature is output (of the body) or input (what is sent); got {self.signature!r}")
        if self.sides not in (1, 2):
            raise ValueError(f"sides is 1 (far from the consensus) or 2 (near to it as well); got {self.sides!r}")
        if not isinstance(self.window, int) or self.window < 0:
            raise ValueError(f"window is how many passes over the clients, or 0 for an epoch; got {self.window!r}")
        if not 0 < self.alarms < 1:
            raise ValueError(f"alarms is a share of the honest rounds, in (0, 1); got {self.alarms}")
        if self.threshold is not None and not 0 < self.threshold < inf:
            raise ValueError(f"threshold is how many deviations are flagged, above 0; got {self.threshold}")
        if not isinstance(self.clean, int) or self.clean < 0 or not isinstance(self.shuffles, int):
            raise ValueError(f"clean and shuffles are whole numbers; got {self.clean!r} and {self.shuffles!r}")
        if self.threshold is not None and self.clean:
            raise ValueError("threshold is fixed, so clean rounds have nothing to say: give one of them")
        if self.threshold is None:
            counted = self.clean or self.shuffles
            if floor(self.alarms * (counted + 1)) < 1:
                what = "clean" if self.clean else "shuffles"
                raise ValueError(
                    f"{what}={counted} cannot tell what happens in a share of {self.alarms:.2g} of the rounds: "
                    f"it takes {_least(self.alarms)} of them"
                )

    def start(self, context: ServerContext) -> "Consensus":
        if context.passing < LEAST:
            raise ValueError(
                f"{self!r}: a consensus needs {LEAST} clients in a pass, with fewer nobody is the odd one out; "
                f"there are {context.passing}"
            )
        if self.signature == "output" and not context.answers:
            raise ValueError(
                f"{self!r}: where labels come along, what the body makes of a batch never leaves the server: "
                "take signature='input', or the protocol UShaped"
            )
        has, what = (context.passes, "passes") if self.window else (context.epochs, "epochs")
        needs = (self.window or 1) * (self.clean + 1)
        if needs > has:
            whose = "the clean rounds and one more take" if self.clean else "a round takes"
            raise ValueError(
                f"{self!r}: {whose} {needs} {what}, the plan has {has}: a smaller window, or more epochs"
            )
        return Consensus(self, context)


class Consensus(ServerWatch):
    """All clients of one run, round by round."""

    def __init__(self, spec: ConsensusCosine, context: ServerContext):
        self.spec, self.context = spec, context
        self._rows: dict[tuple[int, int], Tensor] = {}  # by client and step: a message that comes twice counts once
        self._when: dict[tuple[int, int], int] = {}  # in which pass of the round they came
        self._turn: dict[tuple[int, int], Tensor] = {}  # of turns that are not over
        self._came: set[int] = set()
        self._passes = 0
        self.rounds: list[dict[str, Any]] = []

    def __call__(self, message: Message, handle: Handler) -> Message:
        reply = handle(message)
        if message.kind in (Kind.FORWARD, Kind.LOSS):
            seen = reply["u"] if self.spec.signature == "output" else message["z"]
            self._turn[message.client, message.step] = seen.detach().flatten(1).float().clone()
        return reply

    def turned(self, clients: Sequence[int]) -> None:
        if self._came & set(clients):  # who comes again begins another pass
            self._close_pass()
        self._rows |= {key: rows for key, rows in self._turn.items() if key[0] in clients}
        self._when |= {key: self._passes for key in self._turn if key[0] in clients}
        self._turn.clear()
        self._came |= set(clients)
        if len(self._came) >= self.context.passing:
            self._close_pass()

    def _close_pass(self) -> None:
        self._came, self._passes = set(), self._passes + 1
        if self._passes == self.spec.window:
            self._close_round()

    def epoch_over(self) -> None:
        if self._came:
            self._close_pass()
        if not self.spec.window:
            self._close_round()

    def _close_round(self) -> None:
        clients = sorted({client for client, _ in self._rows})
        if len(clients) >= LEAST:
            self._judge(clients, in_units(self._rows, self._when))
        self._rows, self._when, self._passes = {}, {}, 0

    def _judge(self, clients: list[int], units: "Units") -> None:
        spec, number = self.spec, len(self.rounds)
        found, how = scores(units, spec.leave_one_out), self._threshold(units, number)
        flagged = [one for one, z in zip(clients, found, strict=True) if self._sided(z) > how]
        self.rounds.append(
            {
                "z": {one: round(z, 3) for one, z in zip(clients, found, strict=True)},
                "threshold": None if how == inf else round(how, 3),
                "flagged": flagged,
            }
        )

    def _sided(self, z: float) -> float:
        return abs(z) if self.spec.sides == 2 else z

    def _threshold(self, units: "Units", number: int) -> float:
        spec = self.spec
        if spec.threshold is not None:
            return spec.threshold
        if spec.clean:
            honest = [max(map(self._sided, one["z"].values())) for one in self.rounds[: spec.clean]]
            return exceeded_by(honest, spec.alarms) if number >= spec.clean else inf
        draw = generator(derive(self.context.seed, "shuffle", number))
        dealt = torch.stack([units.inner(units.dealt(draw)) for _ in range(spec.shuffles)])
        z = _robust(_cosines(dealt, spec.leave_one_out))
        return exceeded_by((z.abs() if spec.sides == 2 else z).amax(1).tolist(), spec.alarms)

    # ------------------------------------------------------------------ what came of it
    def flagged(self) -> list[list[int]]:
        return [one["flagged"] for one in self.rounds]

    def suspects(self) -> list[int]:
        """Flagged in most of the last rounds they were in."""
        last: dict[int, list[bool]] = {}
        for one in self.rounds:
            for client in one["z"]:
                last.setdefault(client, []).append(client in one["flagged"])
        return sorted(client for client, flags in last.items() if 2 * sum(flags[-ENOUGH:]) > ENOUGH)

    def report(self, malicious: Collection[int] | None = None) -> dict[str, Any]:
        judged = [one for one in self.rounds if one["threshold"] is not None]
        flagged = [client for one in judged for client in one["flagged"]]
        told: dict[str, Any] = {
            "detector": repr(self.spec),
            "rounds": len(judged),
            "alarms": sum(bool(one["flagged"]) for one in judged),
            "threshold": round(median(one["threshold"] for one in judged), 3) if judged else None,
            "flagged": {client: flagged.count(client) for client in sorted(set(flagged))},
            "first_alarm": next((place for place, one in enumerate(self.rounds) if one["flagged"]), None),
            "suspects": self.suspects(),
            "course": self.rounds,
        }
        return told if malicious is None else told | {"against": self._against(judged, set(malicious))}

    def _against(self, judged: Sequence[Mapping[str, Any]], malicious: set[int]) -> dict[str, Any]:
        """How right it was, round by round and in its last word."""
        theirs = [one for one in judged if malicious & set(one["z"])]
        hits = [set(one["flagged"]) & malicious for one in theirs]
        others = [set(one["flagged"]) - malicious for one in judged]
        z = [abs(one["z"][client]) for one in theirs for client in malicious if client in one["z"]]
        return {
            "malicious": sorted(malicious),
            "z": round(median(z), 3) if z else None,
            "detected": sum(map(bool, hits)) / len(theirs) if theirs else None,
            "false_alarms": sum(map(bool, others)) / len(judged) if judged else None,
            "f1": mean(f1(set(one["flagged"]), malicious & set(one["z"])) for one in theirs) if theirs else None,
            "f1_suspects": f1(set(self.suspects()), malicious),
        }

    # --------------------------------------------------------------------- carry it on
    def snapshot(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors = {f"{client}.{step}.{self._when[client, step]}": t for (client, step), t in self._rows.items()}
        told = {"came": sorted(self._came), "passes": self._passes, "rounds": list(self.rounds)}
        return tensors, told | {"messages": len(tensors)}

    def restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        if len(tensors) != facts.get("messages", len(tensors)):
            raise ValueError(
                f"a snapshot has {len(tensors)} of the {facts['messages']} messages that {self.spec!r} had seen of "
                "its round: it is not whole, go back to an earlier one"
            )
        self._rows, self._when = {}, {}
        for name, rows in tensors.items():
            client, step, when = map(int, name.split("."))
            self._rows[client, step], self._when[client, step] = rows, when
        self._turn.clear()
        self._came, self._passes = set(facts["came"]), facts["passes"]
        # Plain facts come from JSON, whose keys are text.
        self.rounds = [{**one, "z": {int(client): z for client, z in one["z"].items()}} for one in facts["rounds"]]


# ---------------------------------------------------------------------------- the statistic
@dataclass(frozen=True)
class Units:
    """What is dealt out: neighbouring rows of one client in one pass, or in some passes that follow each other.

    While a network learns, rows of one pass differ from those of the next, and a wild step shows in one batch. Deals
    that mixed passes or single rows would not know that, and honest rounds would exceed what they say.
    """

    products: Tensor  # inner products of the units' means, times the rows of both
    counts: Tensor  # rows of each
    owner: Tensor  # each unit's client, from 0 up
    when: Tensor  # the pass or passes it is from

    def dealt(self, draw: torch.Generator) -> Tensor:
        """Owners of the same units, dealt out at random: everybody has as many of each pass as before."""
        in_order = self.when.argsort(stable=True)
        mixed = (self.when + torch.rand(len(self.when), generator=draw, dtype=torch.float64)).argsort()
        owner = torch.empty_like(self.owner)
        owner[mixed] = self.owner[in_order]
        return owner

    def inner(self, owner: Tensor) -> Tensor:
        """Inner products of the clients' means."""
        many = int(self.owner.max()) + 1
        zero = self.products.new_zeros
        rows = zero(many, len(owner)).index_add_(0, owner, self.products)
        both = zero(many, many).index_add_(1, owner, rows)
        counts = zero(many).index_add_(0, owner, self.counts)
        return both / (counts[:, None] * counts[None, :])


def in_units(rows: Mapping[tuple[int, int], Tensor], when: Mapping[tuple[int, int], int]) -> Units:
    """By (client, step) what came, and in which pass."""
    clients, passes = sorted({client for client, _ in rows}), sorted(set(when.values()))
    own = max(2, min(OWN, MANY // len(clients)))
    blocks = min(len(passes), max(own, UNITS // len(clients)))
    # One pass says nothing of how batches differ, so its rows may as well be dealt out finely.
    pieces = ceil((own if blocks > 1 else max(own, UNITS // len(clients))) / blocks)
    block = {one: number * blocks // len(passes) for number, one in enumerate(passes)}
    place = {client: number for number, client in enumerate(clients)}
    lots: dict[tuple[int, int], list[Tensor]] = {}
    for key in sorted(rows):
        lots.setdefault((block[when[key]], place[key[0]]), []).append(rows[key])
    whole = {key: torch.cat(found).double().cpu() for key, found in lots.items()}
    usual = {at: median(len(own) for (when, _), own in whole.items() if when == at) for at in set(block.values())}
    # Of one size, whoever they come from: who has few rows is dealt few, and its mean stays as uncertain as it is.
    parts = [
        (part, owner, at)
        for (at, owner), own in whole.items()
        for part in own.tensor_split(max(1, round(len(own) * pieces / usual[at])))
        if len(part)
    ]
    sums = torch.stack([part.sum(0) for part, _, _ in parts])
    counts = torch.tensor([float(len(part)) for part, _, _ in parts], dtype=torch.float64)
    owner, at = (torch.tensor([part[place] for part in parts]) for place in (1, 2))
    return Units(sums @ sums.T, counts, owner, at)


def scores(units: Units, leave_one_out: bool) -> list[float]:
    """z of every client: how many robust deviations its cosine lies below the median of all."""
    found: list[float] = _robust(_cosines(units.inner(units.owner), leave_one_out)).tolist()
    return found


def _cosines(means: Tensor, leave_one_out: bool) -> Tensor:
    """cos(a client's mean, the mean of the others' means), from the inner products of the means alone."""
    to_all = torch.ones_like(means)
    if leave_one_out:
        to_all = to_all - torch.eye(means.shape[-1]).to(means)
    to_all = to_all / to_all.sum(-1, keepdim=True)
    aside = (to_all * means).sum(-1)
    consensus = (to_all @ means * to_all).sum(-1).clamp(min=0).sqrt()
    own = means.diagonal(dim1=-2, dim2=-1).clamp(min=0).sqrt()
    return aside / (own * consensus).clamp(min=torch.finfo(means.dtype).tiny)


def _robust(cosines: Tensor) -> Tensor:
    """(median − c) / (1.4826 MAD): large where a client points away from the others."""
    # torch's own median takes the lower of the two in the middle.
    below = cosines.quantile(0.5, dim=-1, keepdim=True) - cosines
    spread = CONSISTENT * below.abs().quantile(0.5, dim=-1, keepdim=True)
    return below / spread.clamp(min=torch.finfo(cosines.dtype).eps)  # clients alike to the last digit


def exceeded_by(honest: Sequence[float], share: float) -> float:
    """The value that a new one, exchangeable with these, exceeds with a probability of at most `share`."""
    place = floor(share * (len(honest) + 1))
    return sorted(honest, reverse=True)[place - 1] if place else inf


def f1(flagged: set[int], malicious: set[int]) -> float:
    return 2 * len(flagged & malicious) / (len(flagged) + len(malicious)) if flagged or malicious else 1.0


def _least(share: float) -> int:
    """The fewest honest rounds with which `exceeded_by` knows a value."""
    count = max(1, floor(1 / share) - 2)
    while floor(share * (count + 1)) < 1:
        count += 1
    return count
