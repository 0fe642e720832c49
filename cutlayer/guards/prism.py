"""PRISM: a learned mask routes each coordinate of the cut to the server or into the stream that stays home."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import log_softmax, one_hot

from ..core.batch import Batch, Task
from ..core.guard import Guarded, GuardModule, Shape
from ..core.search import Between, OneOf, Search
from ..core.seeds import seeded
from .base import Guard, Support, need_maps
from .parts.adversary import Opponent, check_opponent, deviations, opponent
from .parts.distance_correlation import LEAST, distance_correlation
from .parts.masking import SCORES, THRESHOLDS, Mask, Masker, kept_scores

PRIVACY = ("information", "adversary", "dcor")
SALIENT = ("server", "home")
COLDEST = 1 / 30  # the temperature in the end
ADVERSARY_WIDTH = 32


@dataclass(frozen=True, repr=False)
class Prism(Guard):
    """A learned mask sends a share `keep` of the coordinates; the rest stays home, and a Bypass brings it back.

    PRISM (Madill's thesis, 2025, ch. 3): z_S = M z leaves, z_C = (1 - M) z stays (Eq. 3.1, 3.2). The masker minimises
    rho · task + (1 - rho) · leak + gamma · (share + entropy) (Eq. 3.6), and the head the task alone.
    `score` is where scores come from, `threshold` how they become a mask. `privacy` is what measures the leak of the
    `attribute` (None: of the input): a bound on the information, the loss of an adversary that guesses it (Eq. 3.5,
    the thesis' own), or distance correlation. The bound is the default because it brings most maskers that start by
    sending the secret to keep it home, and the adversary's loss about half (docs/guards.md has the trials).
    `anneal` steps take the temperature from 1 to 1/30. `salient="home"` turns the task term around: what helps the
    task stays. `rescale` puts a 1x1 convolution behind the mask on either stream.
    """

    keep: float = 0.1
    score: str = "hybrid"
    threshold: str = "topk"
    privacy: str = "information"
    attribute: str | None = None
    rho: float = 0.5
    gamma: float = 0.1
    anneal: int = 1000
    salient: str = "server"
    rescale: bool = False
    reads_samples: ClassVar[bool] = True
    makes_zeros: ClassVar[bool] = True
    holds_back: ClassVar[bool] = True
    no_claim: ClassVar[str] = "none: empirical; the mask, a function of all of z, is seen with what it lets through"
    search: ClassVar[Search] = {"keep": Between(0.02, 0.6, log=True), "privacy": OneOf("information", "adversary")}

    def __post_init__(self) -> None:
        if not isinstance(self.keep, int | float) or not 0 < self.keep < 1:
            raise ValueError(
                f"Prism's keep is the share of coordinates that leave, between 0 and 1; got {self.keep!r}"
            )
        for name, known in (("score", SCORES), ("threshold", THRESHOLDS), ("privacy", PRIVACY), ("salient", SALIENT)):
            if getattr(self, name) not in known:
                raise ValueError(f"Prism's {name} is one of {', '.join(known)}; got {getattr(self, name)!r}")
        if not isinstance(self.rho, int | float) or not 0 <= self.rho <= 1:
            raise ValueError(f"Prism's rho is the task's share of the masker's loss, from 0 to 1; got {self.rho!r}")
        if not isinstance(self.gamma, int | float) or not 0 <= self.gamma < float("inf"):
            raise ValueError(
                f"Prism's gamma is the weight of share and entropy, a number from 0 up; got {self.gamma!r}"
            )
        if not isinstance(self.anneal, int) or self.anneal < 1:
            raise ValueError(f"Prism's anneal is a number of steps, from 1 up; got {self.anneal!r}")
        check_opponent(self, self.attribute, ADVERSARY_WIDTH)

    @property
    def least_batch(self) -> int:
        return LEAST if self.privacy == "dcor" else 1

    @property
    def least_in_service(self) -> int:
        return 1  # what is measured over a batch is a penalty

    @property
    def attributes(self) -> tuple[str, ...]:
        return () if self.attribute is None else (self.attribute,)

    def out_shape(self, shape: Shape) -> Shape:
        need_maps(self, shape)
        if kept_scores(shape, self.keep, self.score) < 1:
            raise ValueError(f"{self} cannot choose among the channels of {shape}: take score='spatial'")
        return shape

    def build(self, shape: Shape, public: int, private: int, task: Task | None = None) -> GuardModule:
        self.out_shape(shape)
        with seeded(private):
            return _Route(self, shape, task)

    def lift(self, shape: Shape, public: int) -> nn.Module:
        # The server's rescaling is the server's: on the client it would fill the zeros before they are left out.
        with seeded(public):
            return nn.Sequential(Support(), _as_it_is(shape[0])) if self.rescale else Support()

    def public_part(self) -> Guard:
        """What is protected, and how hard, is the client's business."""
        return Prism(rescale=self.rescale)


class _Route(GuardModule):
    """One backward pass updates everything, and no two terms share a weight (the disentangled updates of Sec. 3.3.5).

    The head's gradient comes through z, which the mask multiplies as a constant. The masker sees z as a constant: its
    task term is message 4 times z (∂L/∂M = ∂L/∂z_S · z), so it costs no message of its own. As message 4 is as sparse
    as z_S, the masker learns what was worth sending, not what would have been.
    """

    steps: Tensor

    def __init__(self, spec: Prism, shape: Shape, task: Task | None):
        super().__init__()
        self.spec = spec
        self.masker = Masker(shape, spec.keep, spec.score, spec.threshold)
        self.opponent = (
            None if spec.privacy == "dcor" else opponent(spec, shape, task, spec.attribute, ADVERSARY_WIDTH)
        )
        self.rescale = _as_it_is(shape[0]) if spec.rescale else nn.Identity()
        # Persistent: whoever takes over a relay goes on at this temperature.
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def temperature(self) -> float:
        """From 1 down to 1/30, by the same factor every step."""
        return float(COLDEST ** min(1.0, int(self.steps) / self.spec.anneal))

    def forward(self, z: Tensor, batch: Batch) -> Guarded:
        constant, temperature = z.detach(), self.temperature()
        mask = self.masker(constant, temperature)
        seen, home = torch.where(mask.hard, z, 0.0), self.rescale(torch.where(mask.hard, 0.0, z))
        # An audit encodes in training mode, too, but nothing learns there.
        if not (self.training and torch.is_grad_enabled()):
            return Guarded(seen, home=home)
        self.steps += 1
        self.notes = {"kept": mask.hard.to(z).mean(), "temperature": temperature}
        through = mask.lever() * constant  # 0, with the masker's gradient
        leaving = seen.detach() + through
        towards = self.spec.rho if self.spec.salient == "server" else -self.spec.rho
        penalty = {"Prism": self.spec.gamma * self._shape_of(mask), **self._privacy(leaving, batch)}
        return Guarded(seen + towards * through, penalty, home=home)

    def _shape_of(self, mask: Mask) -> Tensor:
        """L_aux of Eq. 3.6: the share that leaves should be `keep`, the soft mask should be zeros and ones."""
        if self.spec.threshold == "topk":
            return mask.entropy()  # the share is what it is, whatever the scores: a constant without a gradient
        return (mask.share() - self.spec.keep).square() + mask.entropy()

    def _privacy(self, leaving: Tensor, batch: Batch) -> dict[str, Tensor]:
        weight = 1 - self.spec.rho
        if self.opponent is None:
            dependence = distance_correlation(self._secret(batch), leaving)
            self.notes["dcor"] = dependence.detach()
            return {"Prism privacy": weight * dependence}
        if self.spec.privacy == "adversary":
            terms = {"Prism adversary": self.opponent(leaving, batch, weight)}
        else:
            # Its own loss is -log q: it fits q to what leaves, and nothing comes back.
            terms = {"Prism adversary": self.opponent(leaving.detach(), batch, 0.0)}
            bound = information(_fixed(self.opponent, leaving), batch, self.spec.attribute)
            terms["Prism privacy"] = weight * bound
            self.notes["information"] = bound.detach()
        self.notes |= self.opponent.notes
        return terms

    def _secret(self, batch: Batch) -> Tensor:
        return batch.x if self.spec.attribute is None else attribute_of(batch, self.spec.attribute)[:, None]


def information(guess: Tensor, batch: Batch, attribute: str | None) -> Tensor:
    """An upper bound on I(secret; z_S), as far as the adversary, whose `guess` this is, fits the data; never below 0.

    vCLUB (Cheng et al. 2020): E log q(s|z) - E log q(s'|z), s' the secret of any row. Inputs are guessed as Gaussians
    in units of their spread, -log q = (guess - x)²; the squares cancel and twice the covariance is left.
    """
    if attribute is None:
        bound = 2 * (guess * deviations(batch.x.to(guess))).mean()
    else:
        log_q, truth = log_softmax(guess, 1), attribute_of(batch, attribute).to(guess.device)
        own = one_hot(truth, guess.shape[1]).to(guess)
        bound = (log_q * (own - own.mean(0))).sum(1).mean()
    return bound.clamp_min(0)


def attribute_of(batch: Batch, name: str) -> Tensor:
    if name not in batch.s:
        raise ValueError(f"this batch does not say {name!r} of its samples: fill Batch.s")
    return batch.s[name].long()


def _fixed(opponent: Opponent, leaving: Tensor) -> Tensor:
    """The opponent's guess with its weights as constants: the gradient goes to what leaves alone."""
    weights = {name: weight.detach() for name, weight in opponent.adversary.named_parameters()}
    guess: Tensor = functional_call(opponent.adversary, weights, (leaving,))
    return guess


def _as_it_is(channels: int) -> nn.Module:
    """A 1x1 convolution that changes nothing before it is trained."""
    convolution = nn.Conv2d(channels, channels, 1, bias=False)
    nn.init.dirac_(convolution.weight)
    return convolution
