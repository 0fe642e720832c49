"""FORA: a substitute head that is taught to speak like the client's, and a reader trained on the substitute."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn

from ..guards.base import Shape
from ..message import Message
from .base import FORMS, Attack, Attacker, Knowledge, smashed
from .critic import Critic, gradient_penalty
from .mmd import mk_mmd
from .prior import Drawn, learn_to_draw
from .readers import ConvReader, MLPReader, Standardised, fit
from .substitute import BLOCKS, Substitute
from .view import View

READERS = ("auto", "conv", "mlp")
BUDGETS = ("quick", "standard", "paper")
PASSES = 2  # over the auxiliary images where a guard may draw anew each time
NEXT_TO_DEAD = 1e-2  # of the overall spread: channels that vary less are measured by this instead


@dataclass(frozen=True, repr=False)
class FORA(Attack):
    """Feature-oriented reconstruction: a substitute head aligned with the messages, then inverted. No labels needed.

    The substitute is built from the shape of the cut alone and learns to make, from auxiliary images, activations
    that are distributed like the client's: `mix` of MK-MMD and 1 - `mix` of a critic with gradient `penalty`. A
    reader trained on the substitute then reads the client's messages. This is the snapshot form: the client has
    finished learning. `knows` says how the guard enters, `prior` (FORA-G) lets a generator draw the picture.
    """

    knows: str = "oblivious"
    steps: int = 300  # that align the substitute
    reader_steps: int = 300
    mix: float = 1.0
    penalty: float = 10.0
    width: int = 32  # of the substitute, at least; its last stage is as wide as the cut
    reader_width: int = 64
    hidden: int = 1024  # of a fully connected reader
    critic_width: int = 32
    critic_depth: int = 2
    batch: int = 64
    rate: float = 3e-3
    critic_rate: float = 3e-4
    blocks: str = "vgg"
    reader: str = "auto"  # "conv" for maps, else "mlp"
    prior: bool = False
    needs: ClassVar[tuple[str, ...]] = ("aux", "observed", "guard")
    forms: ClassVar[tuple[str, ...]] = FORMS

    def __post_init__(self) -> None:
        whole = ("steps", "reader_steps", "width", "reader_width", "hidden", "critic_width", "critic_depth")
        if any(not isinstance(getattr(self, name), int) or getattr(self, name) < 1 for name in whole):
            raise ValueError(f"{self}: {', '.join(whole)} are whole numbers from 1 up")
        if not isinstance(self.batch, int) or self.batch < 2:
            raise ValueError(f"{self}: batch is a whole number from 2 up: distributions are compared")
        if not 0 <= self.mix <= 1:
            raise ValueError(f"{self}: mix is the share of MK-MMD, 0 to 1; the rest is the critic's")
        if min(self.rate, self.critic_rate) <= 0 or self.penalty < 0:
            raise ValueError(f"{self}: rate and critic_rate are above 0, penalty is 0 or more")
        for name, known in (("knows", FORMS), ("blocks", BLOCKS), ("reader", READERS)):
            if getattr(self, name) not in known:
                raise ValueError(f"FORA: {name} is one of {', '.join(known)}; got {getattr(self, name)!r}")

    @classmethod
    def sized(cls, budget: str) -> Self:
        """The settings for a first look, for a report, or those of the released code (hours on a CPU)."""
        if budget not in BUDGETS:
            raise ValueError(f"budget is one of {', '.join(BUDGETS)}; got {budget!r}")
        if budget == "quick":
            return cls(steps=200, reader_steps=200)
        if budget == "standard":
            return cls()
        # run.sh of the release. Its default without that script is mix=1, where the critic has no say at all.
        return cls(
            steps=40_000, reader_steps=20_000, mix=0.8, penalty=1000.0, width=64, reader_width=256, critic_width=256,
            critic_depth=6, rate=1e-4,
        )  # fmt: skip

    def bar(self, data: str, net: str) -> tuple[str, float] | None:
        # Measured for MNIST-5000 on MnistNet at both cuts: 0.96 and 0.85. A small generator blurs more than that.
        known = data == "Digits()" and net.startswith("MnistNet") and not self.prior
        return ("ssim", 0.75) if known else None

    def attacker(self, knowledge: Knowledge, seed: int) -> Attacker:
        return Impersonator(self, knowledge, seed)


class Impersonator(Attacker):
    """FORA at work: all its learning is done when it is made."""

    def __init__(self, spec: FORA, knowledge: Knowledge, seed: int):
        assert knowledge.aux is not None and knowledge.observed is not None
        aux = knowledge.aux
        if aux.dim() != 4:
            raise ValueError(f"FORA reconstructs images (N, C, H, W); these inputs have the shape {tuple(aux.shape)}")
        self.view = View(spec.knows, knowledge, seed).to(aux.device)
        seen = self.read(knowledge.observed)
        self.batch = min(spec.batch, len(aux), len(seen))
        # A negative number at the cut says that no ReLU stands there.
        signed = bool((seen < 0).any())
        self.substitute = Substitute(tuple(aux.shape[1:]), self.view.own, spec.width, spec.blocks, signed).to(aux)
        theirs = Scale.of(seen)
        self._align(spec, theirs, seen, aux)
        self.mmd = self._distance(theirs, seen, aux)
        with torch.no_grad():
            passes = PASSES if len(self.view.copies) else 1
            own = _rows(torch.cat([self.features(aux, round) for round in range(passes)]))
            aux = aux.repeat(passes, 1, 1, 1)
        self.kind, network = _network(spec, tuple(own.shape[1:]), aux)
        trained = fit(network.to(aux), own, aux, steps=spec.reader_steps)
        # The client's messages are measured by their own means and deviations, what is left of a gap closes here.
        self.reader = Standardised(trained.network.eval(), *Scale.of(_rows(seen)))

    def reconstruct(self, messages: Sequence[Message]) -> Tensor:
        return self.reader(_rows(self.read(messages))).clamp(0, 1)

    @torch.no_grad()
    def read(self, messages: Sequence[Message]) -> Tensor:
        """What was received, in the space where `features` are compared with it; one row for each uploaded."""
        return self.view.read(smashed(messages))

    @torch.no_grad()
    def features(self, images: Tensor, draw: int = 0) -> Tensor:
        """The substitute's features of `images` as they would have been sent: whoever has the client's for the same
        images can say how close they are. With the statistics of their own batch, as the client's are."""
        chunks = images.tensor_split(max(1, len(images) // self.batch))
        step = -1 - draw * len(chunks)  # draws of a guard that no step of learning had
        return torch.cat(
            [self.view.sent(self.substitute(x), x, None, step - place) for place, x in enumerate(chunks)]
        )

    def remarks(self) -> dict[str, object]:
        return {"reader": self.kind, "mmd": round(self.mmd, 4)}

    def _align(self, spec: FORA, theirs: "Scale", seen: Tensor, aux: Tensor) -> None:
        critic = Critic(self.view.shape, spec.critic_width, spec.critic_depth).to(aux)
        optimizer = torch.optim.Adam(self.substitute.parameters(), spec.rate)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, spec.rate, total_steps=spec.steps)
        judge = torch.optim.Adam(critic.parameters(), spec.critic_rate)
        for step in range(spec.steps):
            z, own = theirs(_some(seen, self.batch)), theirs(self._sent(_some(aux, self.batch), step))
            loss = spec.mix * mk_mmd(z, own)
            if spec.mix < 1:
                loss = loss + (1 - spec.mix) * critic(own).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            if spec.mix < 1:
                own = own.detach()
                verdict = critic(z).mean() - critic(own).mean() + spec.penalty * gradient_penalty(critic, z, own)
                judge.zero_grad()
                verdict.backward()
                judge.step()

    def _sent(self, images: Tensor, step: int) -> Tensor:
        return self.view.sent(self.substitute(images), images, None, step)

    @torch.no_grad()
    def _distance(self, theirs: "Scale", seen: Tensor, aux: Tensor, rounds: int = 8) -> float:
        """What is left of the discrepancy; near 0 (also below) where nothing is left that these rows could show."""
        constant = 2 / (self.batch - 1)
        found = [
            mk_mmd(theirs(_some(seen, self.batch)), theirs(self._sent(_some(aux, self.batch), step))) - constant
            for step in range(rounds)
        ]
        return float(torch.stack(found).mean())


class Scale(NamedTuple):
    """Where rows lie and how wide they spread: by channel for maps, else by coordinate."""

    mean: Tensor
    std: Tensor

    @classmethod
    def of(cls, rows: Tensor) -> "Scale":
        over = (0, 2, 3) if rows.dim() == 4 else (0,)
        least = max(1e-6, NEXT_TO_DEAD * float(rows.std()))
        return cls(rows.mean(over, keepdim=True), rows.std(over, keepdim=True).clamp_min(least))

    def __call__(self, rows: Tensor) -> Tensor:
        return (rows - self.mean) / self.std


def _rows(seen: Tensor) -> Tensor:
    """Maps as they are, anything else as flat rows: what readers take."""
    return seen if seen.dim() == 4 else seen.flatten(1)


def _some(rows: Tensor, count: int) -> Tensor:
    return rows[torch.randperm(len(rows))[:count].to(rows.device)]


def _network(spec: FORA, cut: Shape, images: Tensor) -> tuple[str, nn.Module]:
    """The inverse network for messages of shape `cut`, and what kind it is."""
    image = tuple(images.shape[1:])
    kind = spec.reader if spec.reader != "auto" else "conv" if len(cut) == 3 else "mlp"
    if kind == "conv" and len(cut) != 3:
        raise ValueError(f"{spec}: a convolution reads maps, and these messages have the shape {cut}: reader='mlp'")
    if spec.prior:
        generator = learn_to_draw(images, spec.reader_width, spec.reader_steps)
        return f"{kind} into a prior", Drawn(cut, spec.reader_width, spec.hidden, generator, convolve=kind == "conv")
    if kind == "conv":
        return kind, ConvReader(cut, image, spec.reader_width)
    return kind, MLPReader(cut, image, spec.hidden)
