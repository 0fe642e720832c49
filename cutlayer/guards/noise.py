"""Noise on what leaves: calibrated to an ε, at a given scale, or as the baseline that claims nothing."""

from dataclasses import dataclass, field, replace
from math import sqrt
from typing import ClassVar

from torch import Tensor

from ..core.batch import Batch, Task
from ..core.guard import Guarded, GuardModule, Shape
from ..core.plan_view import PlanView
from ..core.search import Between, Search
from .base import Bound, Guard, Release
from .parts.calibration import gaussian_multiplier, in_run
from .parts.claims import Claim, Sent
from .parts.noise import SPREAD, draw

NOISED = "the rows carry noise already, and noise has no bound: clip before all noise, and ask for ε once"


@dataclass(frozen=True, repr=False)
class Gaussian(Guard):
    """Gaussian noise on every number that leaves: of a given scale, or of the scale that gives (epsilon, delta).

    An ε is meant per release. A sample is released once an epoch and once with every prediction, so a run costs more:
    the privacy ledger adds it up. per="run" means the ε of all epochs of a plan instead, with the noise that takes.
    Calibrated after Balle & Wang (2018), to how far Clip lets a sample move the batch.
    """

    scale: float | None = None
    epsilon: float | None = None
    delta: float = 1e-5
    per: str = "release"
    epochs: int | None = field(default=None, init=False, repr=False, compare=False)  # of the plan it stands in
    fills_zeros: ClassVar[bool] = True
    acts_alone: ClassVar[bool] = True
    search: ClassVar[Search] = {"scale": Between(0.05, 5.0, log=True)}

    def __post_init__(self) -> None:
        _check_one_of(self, self.scale, self.epsilon)
        if not isinstance(self.delta, float) or not 0 < self.delta < 1:
            raise ValueError(f"Gaussian's delta is a probability well below 1/samples, e.g. 1e-5; got {self.delta!r}")
        if self.per not in ("release", "run"):
            raise ValueError(f"Gaussian's epsilon is per 'release' (one epoch) or per 'run' (all); got {self.per!r}")

    @classmethod
    def usual(cls) -> "Gaussian":
        return cls(scale=0.5)

    def out_shape(self, shape: Shape) -> Shape:
        _settled(self, self.scale)
        return shape

    def refuse_unfit_plan(self, plan: PlanView) -> None:
        super().refuse_unfit_plan(plan)
        _settled(self, self.scale)  # alone in its plan, nothing bounds what it is added to

    @property
    def draws_anew(self) -> bool:
        return True

    def build(self, shape: Shape, public: int, private: int, task: Task | None = None) -> GuardModule:
        return _AddNoise("gaussian", _settled(self, self.scale), private)

    def claims(self, shape: Shape) -> tuple[Claim, ...]:
        scale = _settled(self, self.scale)
        text = f"Gaussian noise of standard deviation {scale:.4g} on every number that leaves"
        return (Claim(text, lambda sent: _is_noised(sent, scale * SPREAD["gaussian"])),)

    def calibrated(self, before: Bound) -> "Gaussian":
        if self.epsilon is None:
            return self
        # What is bounded in L1 is bounded in L2 as well.
        moves, epochs = _moves(self, before), self.epochs if self.per == "run" else 1
        if epochs is None:
            return self  # not in a plan yet
        return replace(self, scale=moves * gaussian_multiplier(self.epsilon, self.delta, epochs), epsilon=None)

    def over(self, epochs: int) -> "Gaussian":
        return in_run(self, epochs) if self.epsilon is not None and self.per == "run" else self

    def bound(self, before: Bound) -> Bound:
        if before.release is not None or before.moves is None or self.scale is None:
            return before._replace(norm=None)
        return Bound(p=before.p, why=NOISED, release=Release("gaussian", self.scale / before.moves))


@dataclass(frozen=True, repr=False)
class Laplace(Guard):
    """Laplace noise on every number that leaves: of a given scale, or of the scale that gives epsilon (δ = 0).

    An ε is meant per release, as for Gaussian. It needs Clip(p=1): a bound in L2 is √d times weaker in L1.
    """

    scale: float | None = None
    epsilon: float | None = None
    fills_zeros: ClassVar[bool] = True
    acts_alone: ClassVar[bool] = True
    search: ClassVar[Search] = {"scale": Between(0.05, 5.0, log=True)}

    def __post_init__(self) -> None:
        _check_one_of(self, self.scale, self.epsilon)

    @classmethod
    def usual(cls) -> "Laplace":
        return cls(scale=0.5)

    def out_shape(self, shape: Shape) -> Shape:
        _settled(self, self.scale)
        return shape

    def refuse_unfit_plan(self, plan: PlanView) -> None:
        super().refuse_unfit_plan(plan)
        _settled(self, self.scale)  # alone in its plan, nothing bounds what it is added to

    @property
    def draws_anew(self) -> bool:
        return True

    def build(self, shape: Shape, public: int, private: int, task: Task | None = None) -> GuardModule:
        return _AddNoise("laplace", _settled(self, self.scale), private)

    def claims(self, shape: Shape) -> tuple[Claim, ...]:
        scale = _settled(self, self.scale)
        text = f"Laplace noise of scale {scale:.4g} on every number that leaves"
        return (Claim(text, lambda sent: _is_noised(sent, scale * SPREAD["laplace"])),)

    def calibrated(self, before: Bound) -> "Laplace":
        if self.epsilon is None:
            return self
        moves = _moves(self, before)
        if before.p != 1:
            raise ValueError(
                f"{self}: Laplace noise is calibrated to the L1 norm, and the rows are bounded in L2: "
                "write Clip(norm=..., p=1), or take Gaussian"
            )
        return replace(self, scale=moves / self.epsilon, epsilon=None)

    def bound(self, before: Bound) -> Bound:
        if before.release is not None or before.moves is None or self.scale is None:
            return before._replace(norm=None)
        if before.p != 1:
            # Still true of what leaves, as noise is as likely for either neighbour; but it is no release.
            return before._replace(norm=None, why="Laplace noise needs a bound in L1: write Clip(norm=..., p=1)")
        return Bound(p=1, why=NOISED, release=Release("laplace", self.scale / before.moves))


@dataclass(frozen=True, repr=False)
class Noise(Guard):
    """Noise obfuscation: Laplace noise of a fixed scale on what leaves, bounded by nothing (baseline).

    Titcombe et al. (2021), as in FORA, App. C.1: at training and at inference. The scale means something only next to
    the spread of the activations, which is why each epoch notes noise/std.
    """

    scale: float = 1.0
    fills_zeros: ClassVar[bool] = True
    acts_alone: ClassVar[bool] = True
    search: ClassVar[Search] = {"scale": Between(0.1, 10.0, log=True)}

    def __post_init__(self) -> None:
        _check_number(self, "scale", self.scale)

    @property
    def draws_anew(self) -> bool:
        return True

    def build(self, shape: Shape, public: int, private: int, task: Task | None = None) -> GuardModule:
        return _AddNoise("laplace", self.scale, private)

    def bound(self, before: Bound) -> Bound:
        # Noise is as likely for either neighbour: what one sample moves stays, how long a row is does not.
        return before._replace(norm=None)


class _AddNoise(GuardModule):
    def __init__(self, kind: str, scale: float, private: int):
        super().__init__()
        self.kind, self.scale, self.private = kind, scale, private

    def forward(self, z: Tensor, batch: Batch) -> Guarded:
        if self.training:
            spread = SPREAD[self.kind] * self.scale
            self.notes = {"noise/std": spread / z.detach().std(correction=0).double().clamp_min(1e-12)}
        noise = draw(self.kind, z, self.private, "noise", batch.seed)
        return Guarded(z + (self.scale * noise).to(z))


# ------------------------------------------------------------------ what the guards above refuse
def _check_number(guard: Guard, name: str, value: object) -> None:
    if not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise ValueError(f"{type(guard).__name__}'s {name} is a number above 0; got {value!r}")


def _is_noised(sent: Sent, deviation: float) -> bool:
    """Whether what was added differs from 0 nearly everywhere and spreads as it should: within 6 standard errors of
    its deviation, which for Laplace noise (kurtosis 6) is √5/2 of it over the root of how many there are."""
    if sent.seen.shape != sent.read.shape:
        return False
    added = (sent.seen - sent.read).detach().double()
    error = 6 * sqrt(5 / 4 / added.numel())
    return abs(float(added.std()) / deviation - 1) < error and float((added != 0).double().mean()) > 1 - error


def _check_one_of(guard: Guard, scale: float | None, epsilon: float | None) -> None:
    name = type(guard).__name__
    if (scale is None) == (epsilon is None):
        raise ValueError(f"{name} takes either scale or epsilon: {name}(scale=0.5), or {name}(epsilon=8) behind Clip")
    _check_number(guard, *(("scale", scale) if epsilon is None else ("epsilon", epsilon)))


def _moves(guard: Guard, before: Bound) -> float:
    if before.moves is None:
        raise ValueError(f"{guard} cannot be calibrated: {before.why}")
    return before.moves


def _settled(guard: Guard, scale: float | None) -> float:
    if scale is None and getattr(guard, "per", "") == "run" and getattr(guard, "epochs", None) is None:
        raise ValueError(f"{guard} follows from the epochs of a run: give it to a Plan, or take per='release'")
    if scale is None:
        fix = f"write Chain(Clip(norm=1.0{', p=1' if isinstance(guard, Laplace) else ''}), {guard})"
        raise ValueError(f"{guard} cannot be calibrated: {Bound().why}; {fix}, or give scale=... and claim no ε")
    return scale
