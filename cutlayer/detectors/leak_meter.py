"""How much a client gives away while it trains: it reads its own messages, and estimates what a server could see."""

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, sqrt
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from ..core.columns import Column
from ..core.seeds import derive, generator, seeded
from ..guards.base import Guard
from ..metrics.columns import skill
from ..metrics.common_words import commonest
from ..metrics.components import Components
from ..metrics.images import ncc, ssim
from ..metrics.readers import (
    SMALLEST_FOR_SSIM,
    Before,
    Chosen,
    ConvReader,
    MLPReader,
    Reader,
    best_reader,
    fit,
    ridge,
)
from ..metrics.row_readers import Pairs, Size, train_reader
from ..metrics.series import correlation_either
from ..metrics.text_readers import train_text_reader
from ..metrics.texts import token_accuracy
from .base import ClientContext, Detector, SentBatch, StepView, Watch

log = logging.getLogger("cutlayer.watch")

OF_KIND = {
    "images": ("ssim", "ncc"),
    "records": ("skill",),
    "series": ("correlation",),
    "texts": ("token_accuracy",),
}
FIGURES = (*(name for names in OF_KIND.values() for name in names), "accuracy")
BLIND = {"accuracy": "naming the commonest value", "token_accuracy": "naming the commonest words of each class"}
POLICIES = ("warn", "stop", "strengthen")
SECONDS, SHARE = 20.0, 0.1  # CPU time it may take: so much, or this share of the training's if that is more
FEWEST = 64  # pairs: fewer teach a reader nothing, and leave too few to score it on
HELD = 8  # one in so many images is not trained on, and scored
ROOM = 0.05  # above the floor, in the budget that is proposed instead of one nobody can keep
WIDTH, HIDDEN, COMPONENTS, BATCH = 32, 512, 128, 16  # of the readers: as small as they come without losing to Decoder
TRIAL, FEWEST_STEPS = 5, 30  # steps to tell what one costs; with fewer than this a network has not learnt to read
ABSENT = -9.0  # in a snapshot: below anything a figure can be, and a number
SURE = 1.96  # standard errors on either side: 95 %


# What an audited decoder saw at most beyond the estimate, rounded up, over all runs in docs/evidence/leakmeter.json
# (a test compares). A budget is compared with the estimate and this. Of attributes nothing was measured; of records
# and series little (at most 0.08 and 0.01, in fifteen and four runs on made-up sets), of texts less (at most 0.05, in
# four runs on a made-up language), so it is taken wider.
MARGIN = {"ssim": 0.08, "ncc": 0.06, "skill": 0.1, "correlation": 0.05, "token_accuracy": 0.1, "accuracy": 0.0}


class Budget(NamedTuple):
    """What is limited (ssim or ncc of images, skill of records, correlation of series, token_accuracy of texts, or
    accuracy: that of the attribute), and to what."""

    figure: str
    most: float


@dataclass(frozen=True, repr=False)
class LeakMeter(Detector):
    """Trains the strongest reader on the client's own images and what it sent for them: how much can be seen so far.

    Once `samples` pairs were sent, every `every` steps, and at the end; images that were held out are scored. This is
    an estimate of what servers could reconstruct, and no bound: audited decoders saw a little more, and the most they
    did (MARGIN) is added before `budget`, such as 'ssim<=0.35', is compared: what may be seen at most. `policy` is
    what happens above it: 'warn', 'stop', or 'strengthen', the next guard of `ladder`. It costs 20 CPU-seconds, or a
    tenth of the training where that is more; the last look at a budget up to 10 more.
    """

    reads_gradients: ClassVar[bool] = False
    suspects: ClassVar[bool] = False
    audited: ClassVar[tuple[str, ...]] = ("leak", "leak_so_far", "exceeded")
    budget: str = ""
    policy: str = "warn"
    ladder: tuple[Guard, ...] = ()
    attribute: str = ""  # a sensitive attribute to read as well
    every: int = 200
    samples: int = 512
    steps: int = 300  # of a reader's training

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise ValueError(f"policy is one of {', '.join(map(repr, POLICIES))}; got {self.policy!r}")
        if not isinstance(self.samples, int) or self.samples < FEWEST:
            raise ValueError(f"samples is at least {FEWEST}, to train a reader and to score it; got {self.samples!r}")
        for name in ("every", "steps"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} is a whole number from 1 up; got {value!r}")
        if not isinstance(self.ladder, tuple) or not all(isinstance(one, Guard) for one in self.ladder):
            raise ValueError(f"ladder is a tuple of guards, the weakest first; got {self.ladder!r}")
        if (self.policy == "strengthen") != bool(self.ladder):
            raise ValueError("policy='strengthen' and ladder=(Gaussian(scale=0.5), ...) go together: give both")
        limit = self.limit
        if self.policy != "warn" and limit is None:
            raise ValueError(f"policy={self.policy!r} needs a budget to be exceeded, e.g. budget='ssim<=0.35'")
        if limit is not None and limit.figure == "accuracy" and not self.attribute:
            raise ValueError("accuracy is that of an attribute: name it, e.g. attribute='gender'")

    @property
    def limit(self) -> Budget | None:
        if not self.budget:
            return None
        figure, _, most = str(self.budget).replace(" ", "").partition("<=")
        try:
            value = float(most)
        except ValueError:
            value = float("nan")
        if figure not in FIGURES or not 0 < value < 1:
            raise ValueError(
                f"budget is one of {', '.join(FIGURES)} and the most it may be, in (0, 1), e.g. 'ssim<=0.35'; "
                f"got {self.budget!r}"
            )
        return Budget(figure, value)

    def refuse_unfit(self, context: ClientContext) -> None:
        limit, kind = self.limit, context.task.kind
        if kind not in OF_KIND:
            raise ValueError(
                f"{self!r} reads {', '.join(OF_KIND)}, and these inputs are {kind}: leave it out, and run an audit"
            )
        if limit is not None and limit.figure not in (*OF_KIND[kind], "accuracy"):
            instead = OF_KIND[kind][0]
            raise ValueError(
                f"{self!r}: the inputs of this task are {kind}, of which {limit.figure} says nothing: "
                f"limit {instead}, e.g. budget='{instead}<=0.5'"
            )
        if limit is not None and limit.figure == "ssim" and min(context.task.shape[1:]) < SMALLEST_FOR_SSIM:
            raise ValueError(
                f"SSIM needs images of at least {SMALLEST_FOR_SSIM} pixels a side, these have "
                f"{context.task.shape[1:]}: limit ncc instead, e.g. budget='ncc<=0.5'"
            )
        if self.attribute and self.attribute not in context.task.attributes:
            there = ", ".join(context.task.attributes) or "none"
            raise ValueError(f"{self!r} reads an attribute {self.attribute!r} of the data; they have {there}")
        if context.own is None:
            return
        for one in self.ladder:
            context.own.guard(one)
        own = context.own.samples(self.samples)
        if len(own.x) < FEWEST:
            raise ValueError(f"{self!r} learns from at least {FEWEST} {kind}; this client has {len(own.x)}")
        if limit is not None:
            self._refuse_unreachable(limit, own, context.own.columns)

    def _refuse_unreachable(self, limit: Budget, own: SentBatch, columns: Sequence[Column]) -> None:
        """Against what a server has that knows the class of each image and looks at no message at all."""
        half = torch.arange(len(own.x)) % 2 == 0
        found = floors(own.pick(half), own.pick(~half), self.attribute, columns)
        floor, margin = found[limit.figure], MARGIN[limit.figure]
        if limit.most < floor + margin:
            what = BLIND.get(limit.figure, "the mean of each class")
            work = min(0.99, ceil(100 * (floor + margin + ROOM)) / 100)
            raise ValueError(
                f"{self!r}: nobody can keep this budget, for {what} reaches {limit.figure} {floor:.3f} on this "
                f"client's data without a look at any message, and estimates are taken to be {margin:g} too low: "
                f"'{limit.figure}<={work:.2f}' would work"
            )

    def on_trial(self) -> "LeakMeter":
        return replace(self, policy="warn", ladder=())

    def watch(self, context: ClientContext) -> Watch:
        return _Meter(self, context)


def why_not_kept(told: Mapping[str, Any]) -> str | None:
    """Why the budget was not kept, from a meter's report or an audit's row; None: it was, or there is none."""
    if told.get("exceeded"):
        seen = ", ".join(f"{name} {value:.3f}" for name, value in told["leak_so_far"].items())
        return f"the budget of {told['detector']} was passed: a reader of what was sent saw {seen}"
    if told.get("budget_margin") is not None and not told["leak"]:
        return f"the budget of {told['detector']} was never measured: too little was sent"
    return None


def _is_over(limit: Budget, estimate: float) -> bool:
    return estimate + MARGIN[limit.figure] > limit.most


class _Meter(Watch):
    def __init__(self, spec: LeakMeter, context: ClientContext):
        super().__init__()
        self.spec, self._context = spec, context
        self._columns = context.own.columns if context.own is not None else ()
        self._pairs: deque[SentBatch] = deque()
        self._rows: list[dict[str, Any]] = []
        self._began, self._spent, self._last = time.process_time(), 0.0, 0.0
        self._readers: tuple[str, ...] = ("conv", "mlp")  # after the first time, the better of them
        self._postponed, self._rung, self._step = 0, 0, 0
        self._steps = spec.steps  # of a reader's training, this time
        self._first = ceil(spec.samples / max(1, context.batch))  # after so many steps there is enough to look at

    def look(self, look: StepView) -> None:
        if look.sent is None:
            return
        self._pairs.append(look.sent)
        self._step = look.step
        while sum(len(one.x) for one in self._pairs) - len(self._pairs[0].x) >= self.spec.samples:
            self._pairs.popleft()
        if (look.step + 1) % self.spec.every == 0:
            self._measure(more_to_come=True)
        elif look.step + 1 == self._first:
            self._measure(more_to_come=True, early=True)

    def finish(self) -> None:
        if not self._rows or self._rows[-1]["step"] != self._step:
            self._measure(more_to_come=False)

    # ------------------------------------------------------------------------ a measurement
    def _measure(self, *, more_to_come: bool, early: bool = False) -> None:
        pairs = SentBatch.together(list(self._pairs)).newest(self.spec.samples) if self._pairs else None
        if pairs is None or len(pairs.x) < FEWEST:
            return
        room = self._allowance() - self._spent
        if not more_to_come and self.spec.limit is not None:
            room = max(room, SECONDS / 2)  # a budget is never left unmeasured in the end
        elif self._last * (2 if more_to_come else 1) > room:  # what the end will cost is kept back
            self._postponed += 1
            return
        began = time.process_time()
        before = self._readers
        self._steps = max(1, self.spec.steps // 2) if early else self.spec.steps
        row = {"step": self._step, **self._read(*self._apart(pairs), room)}
        if early:
            self._readers = before  # which network reads a head that has learnt nothing says little of later ones
        self._last = time.process_time() - began
        self._spent += self._last
        self._rows.append(row | {"seconds": round(self._last, 2)})
        self._judge(row)

    def _allowance(self) -> float:
        """CPU-seconds for all measurements so far."""
        return max(SECONDS, SHARE * (time.process_time() - self._began - self._spent))

    def _apart(self, pairs: SentBatch) -> tuple[SentBatch, SentBatch]:
        """(to learn from, to score): the same image is never in both, however often it was sent."""
        names = [image.numpy().tobytes() for image in pairs.x.detach().cpu().contiguous()]
        which = {name: place for place, name in enumerate(dict.fromkeys(names))}
        draw = torch.randperm(len(which), generator=generator(derive(self._context.seed, "held out", self._step)))
        held = draw[torch.tensor([which[name] for name in names])] < max(2, len(which) // HELD)
        return pairs.pick(~held), pairs.pick(held)

    def _read(self, known: SentBatch, held: SentBatch, room: float) -> dict[str, Any]:
        """All figures of one measurement."""
        seed = derive(self._context.seed, "readers", self._step)
        names = ("mean", "ridge", *self._readers)
        each = room / (1 + len(self._readers)) if len(self._readers) > 1 else room / 2
        found: Chosen = best_reader(
            self.spec, names, known.seen, seed, lambda name: self._train(name, known, held, each),
            lambda read: float(_likeness(read(held.seen), held.x, known.x, self._columns).mean()),
        )  # fmt: skip
        if trained := [name for name in self._readers if name in found.scores]:
            self._readers = (max(trained, key=lambda name: found.scores[name]),)
        guess = found.read(held.seen)
        measure = _likeness(guess, held.x, known.x, self._columns)
        spread = float(measure.std(correction=1)) / sqrt(len(measure))
        floor = floors(known, held, self.spec.attribute, self._columns)
        figure = main_figure(held.x)
        row: dict[str, Any] = {"reader": found.name, "ssim": None, "ncc": None}
        if held.x.dim() == 4:
            row["ncc"] = float(ncc(held.x, guess.clamp(0, 1)).mean())
        row["readers"] = {name: round(score, 4) for name, score in found.scores.items()}
        row[figure] = float(measure.mean())
        row |= {"plus_minus": SURE * spread, "floor": floor[figure], "held_out": len(held.x)}
        if self.spec.attribute:
            row |= self._attribute(known, held, seed, each) | {"chance": floor["accuracy"]}
        return row

    def _train(self, name: str, known: SentBatch, held: SentBatch, room: float) -> Reader | None:
        seen, images = known.seen, known.x
        if name == "mean":
            return _Constant(_usual(images))
        if images.dim() != 4:  # records, series or texts
            undo = self._context.own.undo if self._context.own is not None else None
            size = Size(self._steps, WIDTH, HIDDEN, BATCH, room)
            train = train_text_reader if _are_texts(images) else train_reader
            return train(name, size, Pairs(seen, images, held.seen, held.x), undo)
        if name == "ridge":
            return ridge(seen, images, held.seen, held.x)
        shape = tuple(images.shape[1:])
        step: nn.Module | None
        make: Callable[[], nn.Module]
        if name == "conv":
            step = self._context.own.undo if self._context.own is not None else None
            inputs = seen if step is None else step(seen).detach()
            if inputs.dim() != 4:
                return None
            make = lambda: ConvReader(tuple(inputs.shape[1:]), shape, WIDTH)  # noqa: E731
        else:
            step = Components(seen, COMPONENTS)
            inputs = step(seen)
            make = lambda: MLPReader((inputs.shape[1],), shape, HIDDEN)  # noqa: E731
        began = time.process_time()
        fit(make().to(inputs), inputs, images, steps=TRIAL, batch=BATCH)
        one = max(1e-9, (time.process_time() - began) / TRIAL)
        steps = min(self._steps, int(room / one))
        if steps < min(FEWEST_STEPS, self._steps):
            return None
        # A step may turn out dearer than the trial said: `room` is what it may cost all the same.
        return Before(step, fit(make().to(inputs), inputs, images, steps=steps, batch=BATCH, seconds=room))

    def _attribute(self, known: SentBatch, held: SentBatch, seed: int, room: float) -> dict[str, float]:
        """How often the better of two classifiers is right on images it has not seen."""
        truth, wanted = known.s[self.spec.attribute].long(), held.s[self.spec.attribute].long()
        count = self._context.task.attributes[self.spec.attribute]
        targets = [one_hot(some, count).to(known.seen.dtype) for some in (truth, wanted)]
        guesses = [ridge(known.seen, targets[0], held.seen, targets[1], clamp=False)(held.seen)]
        with seeded(derive(seed, "attribute"), known.seen.device):
            step = Components(known.seen, COMPONENTS)
            inputs = step(known.seen)
            network = nn.Sequential(
                nn.Linear(inputs.shape[1], HIDDEN // 2), nn.ReLU(), nn.Dropout(0.5), nn.Linear(HIDDEN // 2, count)
            ).to(inputs)
            read = fit(
                network,
                inputs,
                truth,
                steps=self.spec.steps,
                rate=1e-3,
                batch=BATCH,
                loss=cross_entropy,
                decay=1e-2,
                seconds=room,
            )
        guesses.append(read(step(held.seen)))
        right = [(guess.argmax(1) == wanted).double().mean() for guess in guesses]
        share = float(max(right))
        return {"accuracy": share, "accuracy_plus_minus": SURE * sqrt(share * (1 - share) / len(wanted))}

    # ------------------------------------------------------------------------- what follows
    def _judge(self, row: Mapping[str, Any]) -> None:
        limit = self.spec.limit
        if limit is None or not _is_over(limit, row[limit.figure]):
            return
        spread = row["accuracy_plus_minus" if limit.figure == "accuracy" else "plus_minus"]
        over = (
            f"after step {row['step']} a reader ({row['reader']}) sees {limit.figure} {row[limit.figure]:.3f} "
            f"(± {spread:.3f}; audits saw up to {MARGIN[limit.figure]:g} more) in what was sent, and the "
            f"budget is {limit.most:g}"
        )
        own = self._context.own
        if self.spec.policy == "strengthen" and self._rung < len(self.spec.ladder) and own is not None:
            guard = self.spec.ladder[self._rung]
            self._climb(self._rung + 1)
            self._rows[-1]["guard"] = repr(guard)
            log.warning("LeakMeter: %s. From now on the guard is %r", over, guard)
        elif self.spec.policy == "warn":
            log.warning("LeakMeter: %s", over)
        else:
            self.alarm = over + (" (the ladder ends here)" if self.spec.ladder else "")

    def _climb(self, rung: int) -> None:
        self._rung = rung
        if rung and self._context.own is not None:
            self.guard = self._context.own.guard(self.spec.ladder[rung - 1])
            self._pairs.clear()  # they tell of the guard before
            self._readers = ("conv", "mlp")

    @property
    def figures(self) -> dict[str, float]:
        if not self._rows:
            return {}
        row = self._rows[-1]
        names = {name: f"leak_{name}" for name in (*FIGURES[:-1], "plus_minus", "floor")}
        names |= {"accuracy": f"leak_{self.spec.attribute}", "chance": f"leak_{self.spec.attribute}_chance"}
        return {shown: row[name] for name, shown in names.items() if row.get(name) is not None}

    def report(self) -> dict[str, Any]:
        figures = [name for name in FIGURES if any(row.get(name) is not None for row in self._rows)]
        worst = {name: max(row[name] for row in self._rows if row.get(name) is not None) for name in figures}
        limit = self.spec.limit
        return {
            "leak": self._rows,
            "leak_so_far": worst,  # what once was sent cannot be taken back
            # None: there is no budget, or nothing was measured.
            "exceeded": _is_over(limit, worst[limit.figure]) if limit and limit.figure in worst else None,
            "budget_margin": None if limit is None else MARGIN[limit.figure],
            "guard": repr(self.spec.ladder[self._rung - 1]) if self._rung else None,
            "postponed": self._postponed,
            "cpu_seconds": round(self._spent, 2),
            "cpu_seconds_allowed": round(self._allowance(), 2),
        }

    # ------------------------------------------------------------------------------ snapshots
    _KEPT = (
        "step", "ssim", "ncc", "plus_minus", "floor", "held_out", "accuracy", "accuracy_plus_minus", "chance",
        "skill", "correlation", "token_accuracy",
    )  # fmt: skip

    def tensors(self) -> dict[str, Tensor]:
        lines = [[ABSENT if row.get(n) is None else float(row[n]) for n in self._KEPT] for row in self._rows]
        measured = torch.tensor(lines, dtype=torch.float64).reshape(-1, len(self._KEPT))
        return {"measured": measured, "rung": torch.tensor([self._rung])}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self._rows = []
        for line in tensors["measured"].tolist():
            row = {name: value for name, value in zip(self._KEPT, line, strict=False) if value != ABSENT}
            self._rows.append(row | {name: int(row[name]) for name in ("step", "held_out")})
        self._climb(int(tensors["rung"]))


@torch.no_grad()
def floors(
    known: SentBatch, held: SentBatch, attribute: str = "", columns: Sequence[Column] = ()
) -> dict[str, float]:
    """What is reached on `held` without a message: the class mean, and an attribute's commonest value."""
    guess = _usual(known.x).expand_as(held.x)
    if known.y.dim() == 1:  # where every pixel has a class, an image has none
        means = {int(c): _usual(known.x[known.y == c]) for c in known.y.unique()}
        guess = torch.stack([means.get(int(c), guess[0]) for c in held.y])
    found = {main_figure(held.x): float(_likeness(guess, held.x, known.x, columns).mean())}
    if held.x.dim() == 4:
        found["ncc"] = float(ncc(held.x, guess).mean())
    if attribute:
        # Of both together: the few that are held out may have hardly any of the commonest value.
        values = torch.cat([known.s[attribute], held.s[attribute]]).long().bincount()
        found["accuracy"] = float(values.max() / values.sum())
    return found


def main_figure(x: Tensor) -> str:
    """The figure that readers of such inputs are chosen by."""
    if x.dim() == 4:
        return "ssim" if min(x.shape[2:]) >= SMALLEST_FOR_SSIM else "ncc"
    if _are_texts(x):
        return "token_accuracy"
    return "correlation" if x.dim() == 3 else "skill"


def _are_texts(x: Tensor) -> bool:
    """Token ids are names and no amounts: there is no mean of them."""
    return not x.is_floating_point()


def _usual(x: Tensor) -> Tensor:
    """What one would say of any of these, unseen."""
    return commonest(x) if _are_texts(x) else x.mean(0)


@torch.no_grad()
def _likeness(guess: Tensor, truth: Tensor, known: Tensor, columns: Sequence[Column]) -> Tensor:
    if _are_texts(truth):
        return token_accuracy(truth, guess)
    if truth.dim() != 4:
        return correlation_either(truth, guess) if truth.dim() == 3 else skill(truth, guess, known, columns)
    measure = ssim if min(truth.shape[2:]) >= SMALLEST_FOR_SSIM else ncc
    return measure(truth, guess.clamp(0, 1))


class _Constant(nn.Module):
    image: Tensor

    def __init__(self, image: Tensor):
        super().__init__()
        self.register_buffer("image", image)

    def forward(self, z: Tensor) -> Tensor:
        return self.image.expand(len(z), *self.image.shape)
