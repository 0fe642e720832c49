"""Labels that never left: the gradient a client sends back points away from its class, whatever guards the cut."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import vjp, vmap
from torch.nn.functional import cross_entropy

from ..core.batch import Task
from ..core.message import Message
from ..core.seeds import derive, generator, seeded
from .base import ANY_INPUT, Attack, Attacker, Knowledge
from .parts.exchanges import as_it_answered, exchanges, unit

READS = ("gradients", "features")
LEARNS = ("match", "labels")
ITERATIONS = 100  # of k-means, at most
WARM, KEPT = 25, 4  # steps that every clone of a tail gets, and how many clones learn on
SHUFFLES = 10  # of the clusters, to see what naming them by the truth gives by itself


class _LabelAttack(Attack):
    """What both have in common: they sort samples into classes and cannot know what a class is called.

    Renaming the classes of the client's tail changes none of its messages, so the names are the judge's to give.
    """

    secret: ClassVar[str] = "labels"
    clusters: ClassVar[bool] = True
    inputs: ClassVar[tuple[str, ...]] = ANY_INPUT


@dataclass(frozen=True, repr=False)
class LabelClustering(_LabelAttack):
    """Labels from the directions of the gradients sent back: spherical k-means, a cluster a class (U-shaped).

    Before a linear tail the gradient is W^T (p - y): all of a class point away from its row of W. `reads="features"`
    sorts the server's own features instead and is the baseline: what a class gives away by being learnt at all.
    """

    reads: str = "gradients"
    restarts: int = 32

    def __post_init__(self) -> None:
        if self.reads not in READS:
            raise ValueError(f"LabelClustering: reads is one of {', '.join(READS)}; got {self.reads!r}")
        if not isinstance(self.restarts, int) or self.restarts < 1:
            raise ValueError(f"{self}: restarts is a whole number from 1 up")

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("task", "observed", "body") if self.reads == "features" else ("task", "observed")

    @classmethod
    def suite(cls, budget: str, task: Task, labels_stay_home: bool) -> list[Attack]:
        return [cls(), cls(reads="features")] if labels_stay_home else []

    def attacker(self, knowledge: Knowledge, seed: int) -> Attacker:
        return _Sorting(self, knowledge, seed)


@dataclass(frozen=True, repr=False)
class TailEnumeration(_LabelAttack):
    """Labels by trying each one: a clone of the tail, and the class whose gradient is most like the one sent back.

    UnSplit's label inference (Erdogan, Kupcu and Cicek 2022) with what a server does receive, the gradient at the
    tail's input; the authors' code compares the gradient of the tail's weights, which stays home. The clone learns
    along: to give the gradients it saw ("match"), or to predict the labels it inferred ("labels", as published).
    Classes that start as one stay so: many clones start, and the one that explains the gradients best counts.
    """

    learns: str = "match"
    starts: int = 32
    steps: int = 200  # of the clones that start best
    rate: float = 3e-3
    batch: int = 64
    needs: ClassVar[tuple[str, ...]] = ("task", "net", "body", "observed")

    def __post_init__(self) -> None:
        whole = ("starts", "steps", "batch")
        if any(not isinstance(getattr(self, name), int) or getattr(self, name) < 1 for name in whole):
            raise ValueError(f"{self}: {', '.join(whole)} are whole numbers from 1 up")
        if self.learns not in LEARNS:
            raise ValueError(f"TailEnumeration: learns is one of {', '.join(LEARNS)}; got {self.learns!r}")
        if self.rate <= 0:
            raise ValueError(f"{self}: rate is above 0")

    @classmethod
    def sized(cls, budget: str) -> Self:
        if budget == "paper":
            return cls(starts=100, steps=1000)
        return cls(starts=16) if budget == "quick" else cls()

    @classmethod
    def suite(cls, budget: str, task: Task, labels_stay_home: bool) -> list[Attack]:
        return [cls.sized(budget)] if labels_stay_home else []

    def attacker(self, knowledge: Knowledge, seed: int) -> Attacker:
        return _Trying(self, knowledge, seed)


class _Sorting(Attacker):
    def __init__(self, spec: LabelClustering, knowledge: Knowledge, seed: int):
        assert knowledge.task is not None and knowledge.observed is not None
        self.body = None if knowledge.body is None else as_it_answered(knowledge.body)
        seen = self._directions(knowledge.observed)
        self.centres = spherical_kmeans(seen, knowledge.task.classes, derive(seed, "clusters"), spec.restarts)
        self.tightness = float((seen @ self.centres.T).amax(1).mean())

    @torch.no_grad()
    def infer(self, messages: Sequence[Message]) -> Tensor:
        return (self._directions(messages) @ self.centres.T).argmax(1)

    def remarks(self) -> dict[str, object]:
        return {"tightness": round(self.tightness, 4)}

    @torch.no_grad()
    def _directions(self, messages: Sequence[Message]) -> Tensor:
        steps = exchanges(messages)
        read = [
            self.body(step.forward["z"], **step.forward.beside) if self.body is not None else step.backward["du"]
            for step in steps
        ]
        return unit(torch.cat(read).flatten(1).double())


class _Trying(Attacker):
    def __init__(self, spec: TailEnumeration, knowledge: Knowledge, seed: int):
        assert knowledge.task is not None and knowledge.net is not None
        assert knowledge.body is not None and knowledge.observed is not None
        task = knowledge.task
        self.body = as_it_answered(knowledge.body)
        u, du = self._pairs(knowledge.observed)
        tails = []
        for start in range(spec.starts):
            with seeded(derive(seed, "tail", start), u.device):
                tails.append(knowledge.net.tail(task.shape, task.classes).to(u).eval())
                _follow(tails[-1], u, du, spec, WARM)
        best = sorted(tails, key=lambda tail: explained(tail, u, du), reverse=True)[:KEPT]
        with seeded(derive(seed, "on"), u.device):
            for tail in best:
                _follow(tail, u, du, spec, spec.steps)
        self.tail = max(best, key=lambda tail: explained(tail, u, du)).requires_grad_(False)
        self.match = explained(self.tail, u, du)

    @torch.no_grad()
    def infer(self, messages: Sequence[Message]) -> Tensor:
        return torch.cat([likeness(self.tail, *pair).argmax(1) for pair in _chunks(*self._pairs(messages), 256)])

    def remarks(self) -> dict[str, object]:
        return {"match": round(self.match, 4)}

    @torch.no_grad()
    def _pairs(self, messages: Sequence[Message]) -> tuple[Tensor, Tensor]:
        steps = exchanges(messages)
        u = torch.cat([self.body(step.forward["z"], **step.forward.beside) for step in steps])
        return u, torch.cat([step.backward["du"] for step in steps])


@torch.no_grad()
def explained(tail: nn.Module, u: Tensor, du: Tensor) -> float:
    """How like the gradients the most fitting candidates are, on average: 1, all of them to the letter."""
    return float(torch.cat([likeness(tail, *pair).amax(1) for pair in _chunks(u, du, 256)]).mean())


def _follow(tail: nn.Module, u: Tensor, du: Tensor, spec: TailEnumeration, steps: int) -> None:
    """Train a clone along: infer, learn from what was inferred, batch by batch."""
    optimizer = torch.optim.Adam(tail.parameters(), spec.rate)
    for _ in range(steps):
        pick = torch.randint(len(u), (spec.batch,)).to(u.device)
        best, inferred = likeness(tail, u[pick], du[pick]).max(1)
        loss = (1 - best).mean() if spec.learns == "match" else cross_entropy(tail(u[pick]), inferred)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def likeness(tail: nn.Module, u: Tensor, du: Tensor) -> Tensor:
    """Cosine of each observed gradient with the one that each class would have given: samples x classes.

    Directions, not distances: the mean over a batch of unknown size scales du, and a clone is never as sure as the
    client's tail.
    """
    return (unit(candidates(tail, u).flatten(2)) * unit(du.flatten(1))[:, None]).sum(2)


def candidates(tail: nn.Module, u: Tensor) -> Tensor:
    """The gradient of a sample's loss at the tail's input, were its label 0, 1, ...: J^T (softmax - one-hot)."""
    logits, back = vjp(tail, u)  # type: ignore[misc]
    names = torch.eye(logits.shape[1]).to(logits)
    at_logits = logits.softmax(1)[None] - names[:, None]  # classes x samples x classes
    return vmap(lambda error: back(error)[0])(at_logits).transpose(0, 1)


def spherical_kmeans(rows: Tensor, count: int, seed: int, restarts: int) -> Tensor:
    """Unit centres that unit rows are closest to in direction (Dhillon and Modha 2001), the best of some starts."""
    draw = generator(seed)
    best, most = rows[:0], -float("inf")
    for _ in range(restarts):
        centres = _spread_out(rows, count, draw)
        assigned = torch.full((len(rows),), -1, device=rows.device)
        for _ in range(ITERATIONS):
            before, assigned = assigned, (rows @ centres.T).argmax(1)
            if torch.equal(before, assigned):
                break
            # A product, not index_add: that one is not reproducible on a GPU.
            member = torch.nn.functional.one_hot(assigned, count).to(rows.dtype)
            sums = member.T @ rows
            centres = torch.where(sums.norm(dim=1, keepdim=True) > 0, unit(sums), centres)  # an empty one stays
        closeness = float((rows @ centres.T).amax(1).sum())
        if closeness > most:
            best, most = centres, closeness
    return best


def _spread_out(rows: Tensor, count: int, draw: torch.Generator) -> Tensor:
    """Starting centres far from each other (k-means++)."""
    chosen = [int(torch.randint(len(rows), (1,), generator=draw))]
    far = 1 - rows @ rows[chosen[0]]
    for _ in range(count - 1):
        weights = far.clamp_min(0).cpu() + 1e-12
        chosen.append(int(torch.multinomial(weights, 1, generator=draw)))
        far = torch.minimum(far, 1 - rows @ rows[chosen[-1]])
    return rows[chosen]


def _chunks(u: Tensor, du: Tensor, size: int) -> list[tuple[Tensor, Tensor]]:
    return list(zip(u.split(size), du.split(size), strict=True))


def named(clusters: Tensor, truth: Tensor) -> tuple[Tensor, float]:
    """(clusters under the names that fit the truth best, what this naming alone makes of clusters that mean nothing).

    The second is the chance level of a sorting: the same clusters dealt out at random, then named as generously.
    """
    count = 1 + int(max(clusters.max(), truth.max()))

    def overlap(dealt: Tensor) -> NDArray[np.int64]:
        return torch.bincount(dealt * count + truth, minlength=count * count).reshape(count, count).numpy()

    device, clusters, truth = truth.device, clusters.cpu().long(), truth.cpu()
    names = torch.from_numpy(assignment(overlap(clusters)))
    draw, right = generator(0), 0.0
    for _ in range(SHUFFLES):
        dealt = overlap(clusters[torch.randperm(len(clusters), generator=draw)])
        right += float(dealt[np.arange(count), assignment(dealt)].sum()) / len(truth) / SHUFFLES
    return names[clusters].to(device), right


def assignment(gain: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each row its own column, with the largest total (Hungarian method: one shortest augmenting path a row)."""
    cost = gain.max() - gain.astype(float)
    size = len(cost)
    row_price, column_price = np.zeros(size + 1), np.zeros(size + 1)
    owner = np.full(size + 1, -1)  # of each column; the last one is where a row enters
    for row in range(size):
        owner[size], column = row, size
        least, came_from, done = np.full(size, np.inf), np.full(size, size), np.zeros(size + 1, bool)
        while owner[column] >= 0:
            done[column] = True
            at = owner[column]
            reduced = cost[at] - row_price[at] - column_price[:size]
            closer = ~done[:size] & (reduced < least)
            least[closer], came_from[closer] = reduced[closer], column
            nearest = int(np.where(done[:size], np.inf, least).argmin())
            step = least[nearest]
            row_price[owner[done]] += step
            column_price[done] -= step
            least[~done[:size]] -= step
            column = nearest
        while column != size:
            owner[column] = owner[came_from[column]]
            column = came_from[column]
    columns = np.empty(size, dtype=np.int64)
    columns[owner[:size]] = np.arange(size)
    return columns
