"""A guard: what a client does to its activations before they leave, and how the server reads them."""

from dataclasses import dataclass
from math import inf
from typing import ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn

from ..core.batch import Task
from ..core.guard import GuardModule, Shape
from ..core.plan_view import PlanView
from ..core.search import Fixed, Search
from ..core.spec import Spec
from .parts.claims import Claim


class Release(NamedTuple):
    """Noise was added: from here on everything is post-processing and costs nothing more."""

    noise: str  # "gaussian" or "laplace"
    multiplier: float  # scale of the noise over how far one sample moves the batch (L2, for Laplace L1)


class Bound(NamedTuple):
    """What holds of the rows at one stage whatever the data: the ground of any (ε, δ) claim.

    Neighbours are batches in which one sample was replaced by another (replace-one).
    """

    norm: float | None = None  # no row is longer than this, in the p-norm
    moves: float | None = None  # replacing one sample moves all rows of a batch, taken as one vector, by at most this
    p: int = 2
    why: str = "no row is bounded: put Clip(norm=...) before the noise"  # why `moves` is not known
    release: Release | None = None
    apart: bool = True  # each row follows from one sample; `behind` keeps track of it


@dataclass(frozen=True, repr=False)
class Guard(Spec):
    """The description of a guard: frozen, comparable, typable. Modules are built from it.

    `public` is a seed that both sides know, `private` one that only the client has.
    """

    always_shown: ClassVar[int] = 1
    # A client-only guard leaves what is sent as it is: it is a penalty, or another way to learn. The server's copy of
    # a plan does not mention it.
    client_only: ClassVar[bool] = False
    # One row of what leaves depends on other samples of the batch; two such guards do not stack.
    mixes_samples: ClassVar[bool] = False
    # It looks at the samples behind the rows (labels, inputs), so rows must still be samples.
    reads_samples: ClassVar[bool] = False
    # It goes by the class of each sample: labels of pixels give it nothing to go by.
    reads_classes: ClassVar[bool] = False
    # Most of what leaves is exactly zero, and the wire leaves zeros out.
    makes_zeros: ClassVar[bool] = False
    # Zeros made before do not survive it: every coordinate that leaves mixes all that came in, or stands for others.
    fills_zeros: ClassVar[bool] = False
    # It is there for fewer bytes, and for nothing else.
    only_compresses: ClassVar[bool] = False
    # It writes the bytes of what it lets through (`GuardModule.packed`); they fit nothing that is changed behind it.
    packs: ClassVar[bool] = False
    # What it reads has to be pictures: the cut is the network's input, and no guard before it changes them.
    reads_pictures: ClassVar[bool] = False
    # Client and server exchange the server's half now and then: "copy" it to the client, or "replace" it from there.
    exchange: ClassVar[str] = ""
    # It changes how the client learns from the gradients of a whole batch.
    reads_gradients: ClassVar[bool] = False
    # The guard itself decides what stays home, and a Bypass takes that instead of whole channels.
    holds_back: ClassVar[bool] = False
    # Meant to be fitted to a network that is trained and frozen; an audit starts it from the unguarded one.
    post_hoc: ClassVar[bool] = False
    # What to take where a client has fewer samples than `least_batch`, as a refusal puts it.
    instead: ClassVar[str] = "another guard"
    # It does to a sample what it would do to it alone, without a penalty over the batch: DP-SGD's bound on one
    # sample's share of the gradient holds beside it.
    acts_alone: ClassVar[bool] = False
    # What it adds to the loss teaches a head the task without a server.
    learns_at_home: ClassVar[bool] = False
    # What it lets through is chance until it has learnt: a client that is frozen from the start sends nothing of use.
    has_to_learn: ClassVar[bool] = False
    # It draws in training to learn by it, and not in service: what it draws is no cover of what is predicted.
    rests_in_service: ClassVar[bool] = False
    # `--guard all` tries it: it stands by itself, and at any cut.
    in_suite: ClassVar[bool] = True
    # What it does in a step follows from tensors alone, nothing is counted, drawn or decided in Python: on a GPU such
    # a step may be captured as a graph.
    capturable: ClassVar[bool] = False
    # What is said where it claims nothing.
    no_claim: ClassVar[str] = "none: empirical"

    @classmethod
    def usual(cls) -> Self:
        """The setting that `--guard all` takes: the paper's where it names one."""
        return cls()

    def stages(self) -> tuple["Guard", ...]:
        """The guards that act one after another: this one, or the parts of a chain."""
        return (self,)

    @property
    def least_batch(self) -> int:
        """The fewest samples this guard can work on."""
        return 1

    @property
    def least_to_learn(self) -> int:
        """The fewest samples at a time that it can learn from; in service `least_batch` will do."""
        return self.least_batch

    @property
    def least_in_service(self) -> int:
        """The fewest samples at a time that it can send when nothing is learnt: 1, where it is a penalty alone."""
        return self.least_batch

    def least_rows(self, shape: Shape) -> int:
        """The fewest samples this guard can work on at a cut of this shape."""
        return self.least_batch

    @property
    def fan_out(self) -> int:
        """How many rows the server's half makes of each that comes. With more than one, the client's samples are the
        first of them, in their order."""
        return 1

    @property
    def attributes(self) -> tuple[str, ...]:
        """Sensitive attributes the data must have for this guard to train."""
        return ()

    @property
    def has_key(self) -> bool:
        """Whether what leaves hangs on a secret that each client draws once, for good."""
        return False

    @property
    def draws_anew(self) -> bool:
        """Whether two messages of one sample differ though the head stands still: in noise, in which bits or values
        leave, in who shares the row. Several of them then show more than one."""
        return self.mixes_samples

    def out_shape(self, shape: Shape) -> Shape:
        """The shape that leaves, or a ValueError that says why this guard does not fit this cut."""
        return shape

    def build(self, shape: Shape, public: int, private: int, task: Task | None = None) -> GuardModule:
        """The client's module. `task` is there for guards that must know the shape of an input."""
        raise NotImplementedError(f"{type(self).__name__} needs build(self, shape, public, private, task)")

    def lift(self, shape: Shape, public: int) -> nn.Module:
        """The server's module: from what was sent back to the shape the body reads. It trains with the body.

        A module in it that does what `GuardModule.unmixed` does marks itself `takes_apart = True`: rows that an
        attacker was given apart already do not go through it again.
        """
        return nn.Identity()

    def undo(self, shape: Shape, public: int) -> nn.Module | None:
        """The public map back to the shape of the cut that an attacker would use; None: read what was sent."""
        return None

    def without(self, module: GuardModule, place: int) -> GuardModule:
        """The client's module, with the stage at `place` replaced by one that changes nothing."""
        return GuardModule()

    def refuse_unfit_plan(self, plan: PlanView) -> None:
        """A ValueError where this guard cannot work in a plan, with what would; before anything is built."""
        if plan.batch_size < self.least_to_learn:
            raise ValueError(
                f"{self} needs {self.least_to_learn} samples at a time, and --batch-size is {plan.batch_size}: take "
                f"--batch-size {self.least_to_learn} or more"
            )
        if plan.batch_size // plan.micro_batches < self.least_to_learn:
            raise ValueError(
                f"{self} needs {self.least_to_learn} samples in each micro-batch: fewer micro-batches, or a larger "
                "batch"
            )
        if self.reads_gradients and plan.micro_batches > 1:
            raise ValueError(f"{self} reads the gradients of whole batches: use micro_batches=1")
        if self.reads_gradients and plan.rule.correction() is not None:
            raise ValueError(f"{plan.rule!r} adds to the clients' gradients, which {self!r} replaces")
        if self.exchange and (plan.rounds.own_bodies or plan.rounds.waves):
            raise ValueError(
                f"{self!r} exchanges the server's half with one client at a time: take rounds=Relay() or "
                "SplitFed(version=2)"
            )
        if self.exchange == "replace" and plan.clients > 1 and not plan.shared_client_network:
            raise ValueError(
                f"{self} replaces the server's decoder by the client's, and clients with heads of their own would "
                "replace each other's: share the heads, or take LFQ(decoder='server')"
            )

    def attach(self, optimizer: torch.optim.Optimizer, client: nn.Module) -> None:
        """Called once, when the client's optimizer exists: for guards that change how the client learns."""

    def claims(self, shape: Shape) -> tuple[Claim, ...]:
        """What may be said of what leaves, for every input and every attacker; measured effects are no claims. Each
        with its check: `cutlayer check` holds it against what is sent, alone and in chains."""
        return ()

    def claim(self, shape: Shape) -> str:
        """The claims that hold of what leaves in the end, as one line. Guards state theirs in `claims`."""
        found = standing(self, shape)
        if len(found) == 1:
            return found[0].sentence()
        said = [f"{type(one.part).__name__}: {one.sentence()}" for one in found if one.claims]
        return "; ".join(said) or Guard.no_claim

    def message_bits(self, shape: Shape) -> int | None:
        """The most bits of a sample that one message carries behind this guard; None: it fixes no number."""
        return None

    def bound(self, before: Bound) -> Bound:
        """What this guard makes of a bound on its input. Nothing is known unless a guard shows it."""
        if self.client_only or before.release is not None:
            return before
        if before.moves is None:
            return Bound(why=before.why)
        return Bound(
            why=f"nothing is known of how far {self} lets one sample move what leaves: put Clip(norm=...) behind it"
        )

    def releases_weights(self) -> Release | None:
        """The noise in one epoch of the client's learning, over how far replacing one record moves its gradients;
        None: this guard leaves them as they are."""
        return None

    def calibrated(self, before: Bound) -> "Guard":
        """This guard with every number settled: noise that was asked for as an ε gets its scale here."""
        return self

    def over(self, epochs: int) -> "Guard":
        """This guard in a run of so many epochs: noise that was asked for as an ε of the run follows from them."""
        return self

    def public_part(self) -> "Guard":
        """What the server may know of this guard."""
        return NoGuard() if self.client_only else self


def behind(guard: Guard, before: Bound) -> tuple[Guard, Bound]:
    """A guard with its numbers settled, and what holds behind it. Rows that were mixed never come apart again."""
    settled = guard.calibrated(before)
    return settled, settled.bound(before)._replace(apart=before.apart and not guard.mixes_samples)


class Standing(NamedTuple):
    """What a part of a chain may still claim of what leaves in the end."""

    part: Guard  # with its numbers settled
    claims: tuple[Claim, ...]
    lost_to: Guard | None  # the first later part that took a claim away

    def sentence(self) -> str:
        if not self.claims and self.lost_to is not None:
            return f"none: {self.lost_to} changes what leaves behind it"
        return "; ".join(claim.text for claim in self.claims) or self.part.no_claim


def standing(guard: Guard, shape: Shape) -> list[Standing]:
    """Of each part, the claims that survive every later one. A part that leaves what is sent alone keeps them all."""
    found: list[Standing] = []
    bound = Bound()
    for part in guard.stages():
        settled, bound = behind(part, bound)
        for place, (earlier, claims, lost_to) in enumerate(found):
            kept = tuple(one for one in claims if settled.client_only or one.survives(settled, shape))
            if len(kept) < len(claims):
                found[place] = Standing(earlier, kept, lost_to or part)
        found.append(Standing(settled, settled.claims(shape), None))
        shape = settled.out_shape(shape)
    return found


@dataclass(frozen=True, repr=False)
class NoGuard(Guard):
    """Nothing: the activation leaves as it is. The row every guard is compared with."""

    capturable: ClassVar[bool] = True
    acts_alone: ClassVar[bool] = True
    in_suite: ClassVar[bool] = False  # an audit has this row anyway
    no_claim: ClassVar[str] = "nothing: the activation leaves as it is"
    search: ClassVar[Search] = Fixed("it is what every guard is compared with")

    def build(self, shape: Shape, public: int, private: int, task: Task | None = None) -> GuardModule:
        return GuardModule()


class Support(nn.Module):
    """The server's half of a guard that drops coordinates: no gradient goes back for what did not come.

    The zeros of the payload are the dropped coordinates, so the answer is as sparse as the question. (A kept
    coordinate that happens to be exactly 0 loses its gradient too; behind a ReLU that gradient is 0 anyway.)
    """

    def forward(self, seen: Tensor) -> Tensor:
        # Not seen * (seen != 0): the gradient of a product has -0.0 among its zeros, and -0.0 is a value on the wire.
        return torch.where(seen != 0, seen, 0.0)


def need_maps(guard: Spec, shape: Shape) -> None:
    if len(shape) != 3:
        raise ValueError(f"{guard} needs a cut of channels x height x width; this one is {shape}")


def need_task(guard: Spec, task: Task | None) -> Task:
    if task is None:
        raise ValueError(f"{guard} must know the inputs it protects: give build(..., task=Task(shape, classes))")
    return task


def refuse_no_ratio(guard: Spec, ratio: object) -> None:
    """What is none at any cut is refused when it is typed: a server knows its cut once the first client is there."""
    if not isinstance(ratio, int | float) or not 1 <= ratio < inf:
        name = type(guard).__name__
        raise ValueError(f"{name}'s ratio is how many times narrower the cut gets, a number from 1 up; got {ratio!r}")


def kept_width(guard: Spec, ratio: float, width: int) -> int:
    """k = floor(width / ratio) (LightSplit, Sec. IV), refused where that is no compression of this width."""
    if ratio > width:
        raise ValueError(f"{guard}: ratio is how many times narrower the cut gets, 1 to {width} here; got {ratio!r}")
    return int(width // ratio)
