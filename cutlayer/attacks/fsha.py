"""FSHA: a server that answers with gradients of its own, until the client's head speaks the server's language."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import ClassVar

import torch
from torch import Tensor

from ..core.message import Handler, Kind, Message
from ..core.seeds import derive, seeded
from ..core.stepping import adam
from .base import EVERY, FORMS, Attack, Attacker, Knowledge, smashed
from .parts.autoencoder import INVERSES, Autoencoder, some
from .parts.critic import Critic, gradient_penalty
from .parts.view import View
from .parts.viewing import Viewing

PROBED = 1.5  # times the usual length of a gradient: of a batch whose labels are wrong
KEPT = 1024  # answers
AT_ONCE = 256  # rows
ENOUGH_FOR_A_KEY = 512  # rows of one client
JOINS = 200  # steps after which detectors are past their warm-up; a short attack keeps half of its own


@dataclass(frozen=True, repr=False)
class FSHA(Viewing):
    """Feature-space hijacking: answers with gradients that make the client's head imitate the attacker's encoder.

    Pasquini et al. 2021. A pilot encoder f̃ and its inverse learn auxiliary images by heart. A critic D learns to tell
    f̃(aux) from the client's z (WGAN-GP), and the client gets ∂/∂z of mean D(z) instead of the gradient of its task.
    Active: it sits in the server's place while the client trains, so an audit trains once more with it, for `steps`
    steps at least. The client's optimizer is the client's (published: Adam at 1e-5 for 10,000 steps).

    `conceal` trains the honest body along: the client sees its task learnt, which the attack does not need.
    `scale` multiplies the answers; it matters to clients without Adam.

    `evade` is for clients that watch: a share of the honest gradient in every answer, the rest as long as it is, and
    nothing but the honest one where it is so long that the labels must be wrong (as SplitSpy does, Fu et al. 2023).
    It needs the honest body, so `conceal` is on then, and `scale` has no part. Where the plan has `back`, a client
    that counts bytes sees that answers are plain floats.
    The first `joins` steps, of all clients together, are answered honestly: detectors are past their warm-up then.
    With `keys="recovered"` so are those in which it still listens for the key of the client that came first.
    """

    steps: int = 1000
    width: int = 32
    hidden: int = 512
    blocks: int = 1
    warm: int = 300  # steps of pilot and inverse before the client comes
    inverse: str = "auto"
    penalty: float = 500.0
    rate: float = 3e-3
    critic_rate: float = 1e-3
    batch: int = 32
    scale: float = 1.0
    conceal: bool = True
    evade: float = 0.0
    joins: int = 0
    knows: str = EVERY
    active: ClassVar[bool] = True
    needs: ClassVar[tuple[str, ...]] = ("task", "aux", "guard")

    def __post_init__(self) -> None:
        super().__post_init__()
        whole = ("steps", "width", "hidden", "blocks", "warm", "batch")
        if any(not isinstance(getattr(self, name), int) or getattr(self, name) < 1 for name in whole):
            raise ValueError(f"{self}: {', '.join(whole)} are whole numbers from 1 up")
        if not 0 <= self.evade < 1 or not isinstance(self.joins, int) or self.joins < 0:
            raise ValueError(f"{self}: evade is a share of the answers in [0, 1), joins a step from 0 up")
        if self.joins >= self.steps:
            raise ValueError(f"{self}: it would answer honestly to the end; joins is below steps={self.steps}")
        if self.joins and not self.evade:
            raise ValueError(f"{self}: only who evades answers honestly at first; give evade, e.g. evade=0.7")
        if min(self.penalty, self.rate, self.critic_rate, self.scale) <= 0:
            raise ValueError(f"{self}: penalty, rate, critic_rate and scale are above 0")
        if self.inverse not in INVERSES or self.knows not in (*FORMS, EVERY):
            raise ValueError(f"inverse is one of {', '.join(INVERSES)}, knows one of {', '.join(FORMS)}; got {self}")

    @classmethod
    def sized(cls, budget: str) -> "FSHA":
        if budget == "paper":
            # Six residual blocks of 256, batches of 64 and 10,000 steps; the task is not learnt.
            return cls(steps=10_000, width=256, hidden=1024, blocks=6, warm=2000, batch=64, conceal=False)
        return cls(steps=2000, width=64, blocks=2, warm=600) if budget == "standard" else cls()

    def least_steps(self) -> int:
        return self.steps

    def bar(self, data: str, net: str) -> tuple[str, float] | None:
        # MSE 0.025 in [0, 1]: what the released logs have between 1,000 and 2,000 steps on MNIST.
        return ("psnr", 16.0) if (data, net) == ("Digits()", "MnistNet()") else None

    def base(self) -> "FSHA":
        return replace(super().base(), evade=0.0, joins=0)

    def honest_steps(self) -> int:
        return self.joins

    def evasions(self) -> tuple[Attack, ...]:
        # Half of the answer honest; and more than half, once detectors are past their warm-up.
        late = min(JOINS, self.steps // 2)
        return () if self.evade else (replace(self, evade=0.5), replace(self, evade=0.7, joins=late))

    def attacker(self, knowledge: Knowledge, seed: int) -> Attacker:
        return _Hijacker(self, knowledge, seed)


class _Hijacker(Attacker):
    def __init__(self, spec: FSHA, knowledge: Knowledge, seed: int):
        assert knowledge.aux is not None and knowledge.task is not None and knowledge.guard is not None
        self.spec, self.seed = spec, seed
        self.aux = knowledge.aux.to(torch.get_default_dtype())
        view = View(spec.knows, spec.keys, knowledge, derive(seed, "view"))
        # Rows of the shape of the cut are what a head makes; those a guard made have both signs, as lifted ones have.
        positive = view.own == knowledge.guard.shape and spec.knows != "lift"
        self.view = view.to(self.aux)
        self.pilot = Autoencoder(
            knowledge.task.shape, view.own, spec.width, spec.hidden, spec.inverse, positive=positive, view=view
        )
        self.critic = Critic(view.shape, spec.width if len(view.shape) == 3 else spec.hidden, spec.blocks)
        self.pilot.to(self.aux)
        self.critic.to(self.aux)
        self.heard: list[Tensor] = []  # of one client, until its key is looked for
        self.listens_to: int | None = None
        self.listening = spec.keys == "recovered" and len(view.copies) > 0
        if not self.listening:
            self.pilot.learn(self.aux, spec.warm, spec.rate, spec.batch)
        # Critics that turn with little momentum keep up with a client that moves (Gulrajani et al. 2017, Alg. 1).
        self.optimizer = adam(self.critic.parameters(), spec.critic_rate, betas=(0.5, 0.9))
        self.waiting: dict[tuple[int, int], Tensor] = {}  # by client and step: what it sent, until it asks for dz
        self.answered: dict[tuple[int, int], Message] = {}  # the last answers, for who asks twice
        self.lengths: deque[float] = deque(maxlen=50)  # of honest gradients, to tell probes by
        self.count = 0
        self.gaps: list[float] = []

    def __call__(self, message: Message, handle: Handler) -> Message:
        if message.kind is not Kind.BACKWARD:
            if message.kind in (Kind.FORWARD, Kind.LOSS):
                if self.listening:
                    self.listen(message)
                else:
                    self.waiting[message.client, message.step] = message["z"]
            # What the honest body answers looks as it should, whoever chose the gradients.
            return handle(message)
        asked = message.client, message.step
        if self.listening or (asked not in self.waiting and asked not in self.answered):
            return handle(message)
        honest = handle(message) if self.spec.conceal or self.spec.evade else None
        z = self.waiting.pop(asked, None)
        if z is not None:
            dz = self.hijack(z)
            if honest is not None and self.spec.evade:
                dz = self.disguise(dz, honest["dz"])
            self.answered[asked] = message.reply(dz=dz)
            while len(self.answered) > KEPT:
                del self.answered[next(iter(self.answered))]
        return self.answered[asked]

    def listen(self, message: Message) -> None:
        """Gather what one client sends, until it is enough to look for its key; then the pilot learns behind it."""
        self.listens_to = message.client if self.listens_to is None else self.listens_to
        if message.client == self.listens_to:
            self.heard.append(message["z"].detach())
        if sum(map(len, self.heard)) >= ENOUGH_FOR_A_KEY:
            self.begin()

    @torch.enable_grad()
    def begin(self) -> None:
        with seeded(derive(self.seed, "key"), self.aux.device):
            if self.heard:
                self.view.find_key(torch.cat(self.heard))
                self.view.to(self.aux)
            self.pilot.learn(self.aux, self.spec.warm, self.spec.rate, self.spec.batch)
        self.listening, self.heard = False, []

    def disguise(self, dz: Tensor, honest: Tensor) -> Tensor:
        """What a detector should see: partly the honest answer, and nothing else where labels look wrong."""
        length = float(honest.norm())
        usual = median(self.lengths) if self.lengths else length
        self.lengths.append(length)
        if length > PROBED * usual or self.count <= self.spec.joins:
            return honest
        own, rows = honest.flatten(1), dz.flatten(1)
        as_long = rows * own.norm(dim=1, keepdim=True) / rows.norm(dim=1, keepdim=True).clamp(min=1e-30)
        return (self.spec.evade * own + (1 - self.spec.evade) * as_long).view_as(honest)

    @torch.enable_grad()
    def hijack(self, z: Tensor) -> Tensor:
        """One step of the critic, and the gradient that takes the client nearer to the pilot."""
        # Under a seed of its own: the caller's is the client's, whose random numbers are neither used nor used up.
        with seeded(derive(self.seed, "step", self.count), self.aux.device):
            z = z.detach().requires_grad_()
            seen = self.view.read(z)
            images = some(self.aux, self.spec.batch)
            own, theirs = self.pilot.encode(images, self.count).detach(), some(seen.detach(), self.spec.batch)
            # Low where the pilot's are, high where the client's are.
            gap = self.critic(own).mean() - self.critic(theirs).mean()
            loss = gap + self.spec.penalty * gradient_penalty(self.critic, theirs, own)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            (dz,) = torch.autograd.grad(self.critic(seen).mean(), z)
        self.count += 1
        self.gaps.append(-float(gap.detach()))
        return self.spec.scale * dz

    @torch.no_grad()
    def reconstruct(self, messages: Sequence[Message]) -> Tensor:
        return torch.cat([self.pilot.inverse(chunk) for chunk in self.read(messages).split(AT_ONCE)])

    @torch.no_grad()
    def read(self, messages: Sequence[Message]) -> Tensor:
        """What was received, in the space where the critic compares it with what the pilot would send."""
        if self.listening:  # the training was too short to hear enough
            self.begin()
        return torch.cat([self.view.read(chunk) for chunk in smashed(messages).to(self.aux).split(AT_ONCE)])

    @torch.no_grad()
    def features(self, images: Tensor) -> Tensor:
        """What the pilot would send for these images: where the client should have been driven to."""
        chunks = images.to(self.aux).split(AT_ONCE)
        return torch.cat([self.pilot.encode(chunk, self.count + place) for place, chunk in enumerate(chunks)])

    def remarks(self) -> dict[str, object]:
        """The error of the pilot on auxiliary images, and how far (Wasserstein) the client still is from it."""
        last = self.gaps[-50:]
        gap = round(sum(last) / max(1, len(last)), 4)
        return {"pilot_mse": round(self.pilot.error, 5), "gap": gap, **self.view.remarks()}
