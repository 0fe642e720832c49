"""A simulated client behind the server's own body, a decoder that inverts it, and critics that keep it alike."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, one_hot

from ...core.guard import Shape
from ...core.message import Kind, Message
from ...core.stepping import adam
from ...metrics.images import ssim
from ...metrics.readers import SMALLEST_FOR_SSIM, ConvReader, MLPReader, start_at
from ...nets.base import check_choice
from ...nets.server_network import ServerNetwork
from ..base import EVERY, FORMS, Attacker, Knowledge
from .sdar_nets import Conditional, Scale, Simulator, feature_critic, image_critic, published_decoder
from .view import View, lifts, matches
from .viewing import Viewing

READERS = ("auto", "conv", "batchnorm", "mlp")
RECENT = 4  # messages that stand for how the client speaks at a moment of its training
CLASSIFIERS = ("server", "own")
# "paper" is SDAR's configuration for CIFAR-10 and ResNet-20. There a critic's rate is its adversary's times its
# weight: over a few hundred steps such a critic learns nothing, so the smaller sizes let it learn faster.
SIZES: dict[str, dict[str, Any]] = {
    "quick": {"steps": 150, "batch": 32},
    "standard": {},
    "paper": {
        "steps": 20_000,
        "width": 64,
        "blocks": 3,
        "hidden": 1024,
        "batch": 128,
        "lambda2": 1e-5,
        "decoder_rate": 5e-4,
        "critic_rate": 2e-5,
        "structure": 0.0,
    },
}
AT_ONCE = 256  # rows that are read together


@dataclass(frozen=True, repr=False)
class Simulation(Viewing):
    """A simulated client learns the task behind the server's own body; a decoder inverts it. SDAR and PCAT are two
    settings of it."""

    steps: int = 400
    width: int = 16  # of the critics' first layer; the decoder is four times as wide
    blocks: int = 1
    hidden: int = 512  # of the MLP reader
    batch: int = 64
    lambda1: float = 0.02
    lambda2: float = 0.0
    rate: float = 1e-3
    decoder_rate: float = 2e-3
    critic_rate: float = 5e-4
    structure: float = 0.1  # weight of 1 - SSIM in the decoder's loss: the judge scores it
    conditional: bool = True
    flip: float = 0.2
    classifier: str = "server"  # where labels travel: the server's, or one of its "own", learnt as in the U shape
    aligned: bool = False  # auxiliary batches have the labels of the observed ones, where those travel
    reader: str = "auto"  # "conv" for maps, else "mlp"; "batchnorm" is the decoder of SDAR's release
    alongside: bool = False  # learn from the messages and bodies of the training as they came, not from its end
    knows: str = EVERY
    told: ClassVar[tuple[str, ...]] = ("task", "aux", "aux_labels", "observed", "net", "body", "guard")
    # Behind a DCT, compared coefficient by coefficient, SSIM 0.41 to 0.44; as lifted maps 0.22 to 0.26. Behind a
    # projection the lifted form is the stronger one.
    quick_forms: ClassVar[tuple[str, ...]] = ("oblivious", "matched", "matched+lift")

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.steps, self.width, self.hidden) < 1 or self.batch < 2 or self.blocks < 0:
            raise ValueError(f"{self}: steps, width and hidden are from 1 up, batch from 2, blocks from 0")
        if min(self.lambda1, self.lambda2, self.structure) < 0:
            raise ValueError(f"{self}: lambda1, lambda2 and structure weight parts of a loss: 0 or more")
        if min(self.rate, self.decoder_rate, self.critic_rate) <= 0:
            raise ValueError(f"{self}: rate, decoder_rate and critic_rate are above 0")
        if not 0 <= self.flip <= 1:
            raise ValueError(f"{self}: flip is the share of labels drawn at random, 0 to 1")
        check_choice("classifier", self.classifier, CLASSIFIERS)
        check_choice("reader", self.reader, READERS)
        check_choice("knows", self.knows or FORMS[0], FORMS)

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]
        return (*self.told, *(("history", "bodies") if self.alongside else ()))

    @classmethod
    def sized(cls, budget: str) -> Self:
        """The setting for a budget; "paper" has the published widths, rates and iterations."""
        check_choice("budget", budget, tuple(SIZES))
        return cls(**SIZES[budget])

    def attacker(self, knowledge: Knowledge, seed: int) -> Attacker:
        return Simulating(self, knowledge, seed)


class Simulating(Attacker):
    """The simulation at work. It trains when it is made; what it keeps are networks, no data."""

    def __init__(self, spec: Simulation, knowledge: Knowledge, seed: int):
        assert knowledge.task and knowledge.observed and knowledge.net and knowledge.guard
        assert knowledge.aux is not None and knowledge.aux_labels is not None
        images, labels = knowledge.aux, knowledge.aux_labels
        self.spec, self.task = spec, knowledge.task
        messages = _uploads(knowledge.observed)
        vanilla = any("y" in message.tensors for message in messages)
        # Labels that say something of every pixel (segmentation) are no condition for a whole message.
        self.told = self.task.classes if vanilla and labels.dim() == 1 else 0
        tail = "none" if not vanilla else spec.classifier
        self.server = OwnServer(knowledge, lifted=lifts(spec.knows), classifier=tail).to(images)
        seen = torch.cat([self.server.read(message["z"]) for message in messages])
        shares = torch.cat([self._shares(message) for message in messages])
        shape = tuple(seen.shape[1:])
        self.reader, build = _reader(spec, shape, self.task.shape)

        self.view = View(spec.knows, spec.keys, knowledge, seed, lift=self.server.lift).to(images)
        # What a guard learns with its client, the attacker's copy learns with the simulator.
        self.view.copies.requires_grad_(True)
        head = knowledge.net.head(self.task.shape)
        self.simulator = Simulator(head, self.task.shape, knowledge.guard.shape, self.view.own).to(images)
        self.scale = Scale(seen)
        pictures = spec.secret == "images"
        self.decoder = self._conditional(build, shape).to(images) if pictures else None
        # From half grey it draws better: SSIM 0.83 and 0.87 on the open cut (digits, 150 steps of PCAT), from the
        # images' brightness 0.57 and 0.66. Of lifted projections (LightSplit(32)) it then learns one blank picture.
        projected = messages[0]["z"].dim() == 2 and len(shape) == 3  # vectors that the lift made maps of
        if self.decoder is not None and projected and matches(spec.knows):
            start_at(self.decoder, images)
        critic = partial(feature_critic, width=spec.width, blocks=spec.blocks)
        self.critic = self._conditional(critic, shape).to(images) if spec.lambda1 else None

        held = max(2 * knowledge.guard.spec.least_batch, len(images) // 10)
        if held >= len(images):
            raise ValueError(f"{spec} learns from auxiliary images; {len(images)} are too few: raise --aux-samples")
        moments = self._moments(knowledge) if spec.alongside else [Moment(seen, shares, self.scale, None)]
        self._train(images[held:], labels[held:], moments)
        self.found = self._measure(images[:held], labels[:held], seen, shares)
        if self.decoder is not None:
            self.decoder.eval().requires_grad_(False)

    def reconstruct(self, messages: Sequence[Message]) -> Tensor:
        return torch.cat([self._decode(message) for message in _uploads(messages)])

    @torch.no_grad()
    def read(self, messages: Sequence[Message]) -> Tensor:
        """What was received, in the space where the simulated client's messages are compared with it."""
        return torch.cat([self.server.read(message["z"]) for message in _uploads(messages)])

    @torch.no_grad()
    def features(self, images: Tensor) -> Tensor:
        """What the simulated client would send for these images, by the statistics of their own batches."""
        chunks = images.tensor_split(max(1, len(images) // self.spec.batch))
        return torch.cat(
            [self.view.sent(self.simulator(x), x, None, self.spec.steps + place) for place, x in enumerate(chunks)]
        )

    @torch.no_grad()
    def infer(self, messages: Sequence[Message]) -> Tensor:
        """The label that the server's own network, with the attacker's tail in the U shape, finds behind each row."""
        return torch.cat([self.server(self.server.read(message["z"])) for message in _uploads(messages)]).argmax(1)

    def remarks(self) -> dict[str, object]:
        return {**self.found, **self.view.remarks()}

    def _moments(self, knowledge: Knowledge) -> "list[Moment]":
        """What it learns from, moment by moment: the newest messages, and its own body of that epoch."""
        messages, bodies = _uploads(knowledge.history or ()), knowledge.bodies or ()
        if not messages or not bodies:
            raise ValueError(f"{self.spec} learns alongside the training, of which nothing was recorded")
        states = [self.server.state_of(body) for body in bodies]
        found = []
        for place in range(len(messages)):
            recent, state = (
                messages[max(0, place - RECENT + 1) : place + 1],
                states[place * len(states) // len(messages)],
            )
            seen = torch.cat([self.server.read(message["z"]) for message in recent])
            found.append(Moment(seen, torch.cat([self._shares(message) for message in recent]), Scale(seen), state))
        return found

    def _train(self, images: Tensor, labels: Tensor, moments: "Sequence[Moment]") -> None:
        """Learn for `steps`, through all moments of the client's training in turn."""
        spec, last, scale = self.spec, self.server.state_of(None), self.scale
        present: Moment | None = None
        simulator = _adam([self.simulator, self.view, self.server.tail], spec.rate)
        decoder = _adam([self.decoder], spec.decoder_rate) if self.decoder is not None else None
        critic = _adam([self.critic], spec.critic_rate) if self.critic is not None else None
        second = second_critic = None
        if spec.lambda2 and self.decoder is not None:
            second = self._conditional(partial(image_critic, width=spec.width), self.task.shape).to(images)
            # As published: it hardly moves, and next to nothing is lost without it.
            second_critic = _adam([second], spec.decoder_rate * spec.lambda2)
        aux = Pool(labels, self.task.classes)
        for step in range(spec.steps):
            if (now := moments[step * len(moments) // spec.steps]) is not present:
                present, self.scale = now, now.scale
                self.server.take_over(now.body)
            pick = torch.randint(len(now.seen), (spec.batch,)).to(now.seen.device)
            z, their = self.scale(now.seen[pick]), now.shares[pick]
            index = aux.like(their) if spec.aligned and self.told else aux.any(spec.batch)
            x, y = images[index], labels[index]
            ours = self._one_hot(y, x)

            sent = self._sent(x, y, step)
            # The body is surer than a fresh tail can be: wrong labels keep the simulator from that.
            taught = y if self.server.has_classifier else flipped(y, self.task.classes, spec.flip)
            loss = cross_entropy(self.server(sent), taught)
            if self.critic is None or critic is None:
                _gradients(loss, simulator)
            else:
                fake = self.critic(self.scale(sent), ours)
                _gradients(loss + spec.lambda1 * verdict(fake, 1), simulator, keep=True)
                _gradients(verdict(self.critic(z, their), 1) + verdict(fake, 0), critic)
                critic.step()
            simulator.step()

            if self.decoder is not None and decoder is not None:
                with torch.no_grad():
                    sent = self.scale(self._sent(x, y, step))
                loss = self._error(self.decoder(sent, ours), x)
                if second is None or second_critic is None:
                    _gradients(loss, decoder)
                else:
                    fake = second(self.decoder(z, their), their)
                    _gradients(loss + spec.lambda2 * verdict(fake, 1), decoder, keep=True)
                    _gradients(verdict(second(x, ours), 1) + verdict(fake, 0), second_critic)
                    second_critic.step()
                decoder.step()
        self.scale = scale
        self.server.take_over(last)

    @torch.no_grad()
    def _measure(self, images: Tensor, labels: Tensor, seen: Tensor, shares: Tensor) -> dict[str, object]:
        """How well the simulation went, on held-out auxiliary images: all that the attacker itself can know."""
        sent = self._sent(images, labels, self.spec.steps)
        right = (self.server(sent).argmax(1) == labels).double().mean()
        found: dict[str, object] = {"reader": self.reader, "task_accuracy": round(float(right), 4)}
        if self.critic is not None:
            self.critic.eval()
            ours = self.critic(self.scale(sent), self._one_hot(labels, sent)) < 0
            theirs = self.critic(self.scale(seen[: len(sent)]), shares[: len(sent)]) > 0
            # 0.5: the critic cannot tell the simulator's messages from the victim's.
            found["told_apart"] = round(float((ours.double().mean() + theirs.double().mean()) / 2), 4)
        return found

    def _conditional(self, build: Callable[[Shape], nn.Module], shape: Shape) -> Conditional:
        return Conditional(build, shape, self.told if self.spec.conditional else 0)

    def _sent(self, images: Tensor, labels: Tensor, step: int) -> Tensor:
        """What the simulated client sends, where it is compared with the victim's."""
        return self.view.sent(self.simulator(images), images, labels, step)

    def _error(self, guess: Tensor, truth: Tensor) -> Tensor:
        error = (guess - truth).square().mean()
        if not self.spec.structure or min(truth.shape[2:]) < SMALLEST_FOR_SSIM:
            return error
        return error + self.spec.structure * (1 - ssim(guess, truth).mean())

    @torch.no_grad()
    def _decode(self, message: Message) -> Tensor:
        assert self.decoder is not None
        seen, shares = self.scale(self.server.read(message["z"])), self._shares(message)
        return torch.cat(
            [self.decoder(*rows) for rows in zip(seen.split(AT_ONCE), shares.split(AT_ONCE), strict=True)]
        )

    @torch.no_grad()
    def _shares(self, message: Message) -> Tensor:
        """What the server knows of the labels behind each row, as shares of the classes."""
        z, y, rows = message["z"], message.tensors.get("y"), message.tensors.get("rows")
        if not self.told:
            return z.new_zeros(len(z), 0)
        if y is None:  # a prediction: the server has its own opinion
            return self.server(self.server.read(z)).softmax(1)
        each = self._one_hot(y, z)
        if rows is None:
            return each
        total = z.new_zeros(len(z), self.task.classes).index_add(0, rows, each)
        return total / total.sum(1, keepdim=True).clamp_min(1)

    def _one_hot(self, labels: Tensor, like: Tensor) -> Tensor:
        return one_hot(labels, self.told).to(like) if self.told else like.new_zeros(len(labels), 0)


class OwnServer(nn.Module):
    """The attacker's network, a frozen copy in evaluation mode; in the U shape it needs a tail of its own.

    `classifier` says which one: "server" where the body ends with it, "none" where it ends without one, and "own" to
    put a fresh one in the place of the server's.

    A client's messages enter by `read`. It changes them only for an attacker that works behind the guard's lift: then
    the lift is the first part of the body, and the simulator, which has no guard, speaks to the parts behind it.
    (For a learned lift this is the server's own map, not the public one: the rest of the body knows no other.)
    """

    def __init__(self, knowledge: Knowledge, *, lifted: bool, classifier: str):
        super().__init__()
        assert knowledge.body is not None and knowledge.net is not None and knowledge.task is not None
        body = copy.deepcopy(knowledge.body)
        self.lift: nn.Module = nn.Identity()
        if lifted:
            assert isinstance(body, ServerNetwork)
            self.lift, body.lift = body.lift, nn.Identity()
        if classifier == "own":
            assert isinstance(body, ServerNetwork)
            body.tail = nn.Identity()
        self.body = body
        self.requires_grad_(False)
        self.eval()
        self.has_classifier = classifier == "server"
        fresh = None if self.has_classifier else knowledge.net.tail(knowledge.task.shape, knowledge.task.classes)
        self.tail = nn.Identity() if fresh is None else fresh

    @torch.no_grad()
    def read(self, seen: Tensor) -> Tensor:
        """An observed message in the space of comparison."""
        return self.lift(seen)

    def state_of(self, body: nn.Module | None) -> dict[str, Tensor]:
        """The weights of another copy of the server's network, or its own; those of a part that is not used here are
        left out."""
        state = (self.body if body is None else body).state_dict()
        return {name: state[name].clone() for name in self.body.state_dict()}

    def take_over(self, state: Mapping[str, Tensor] | None) -> None:
        if state is not None:
            self.body.load_state_dict(state)

    def forward(self, z: Tensor) -> Tensor:
        """One score a class."""
        return self.tail(self.body(z))


class Moment(NamedTuple):
    """What an attacker has at one moment of the training."""

    seen: Tensor
    shares: Tensor
    scale: Scale
    body: dict[str, Tensor] | None  # None: as it is at the end


class Pool:
    """The attacker's samples, to be drawn at random or with given labels."""

    def __init__(self, labels: Tensor, classes: int):
        self.count, self.device = len(labels), labels.device
        if labels.dim() == 1:
            self.order = labels.argsort(stable=True).cpu()
            self.counts = labels.bincount(minlength=classes).cpu()
            self.starts = self.counts.cumsum(0) - self.counts

    def any(self, count: int) -> Tensor:
        return torch.randint(self.count, (count,)).to(self.device)

    def like(self, shares: Tensor) -> Tensor:
        """One sample for each row, its label drawn from the row's shares of the classes."""
        labels = torch.multinomial(shares.cpu(), 1).flatten()
        within = (torch.rand(len(labels)) * self.counts[labels]).long()
        same = self.order[(self.starts[labels] + within).clamp_max(self.count - 1)]
        # A class the attacker has no sample of: any will do.
        return torch.where(self.counts[labels] > 0, same, torch.randint(self.count, (len(labels),))).to(self.device)


def flipped(labels: Tensor, classes: int, share: float) -> Tensor:
    """Labels of which a share is drawn anew among all classes, the true one included."""
    drawn = torch.randint(classes, labels.shape).to(labels.device)
    return torch.where(torch.rand(labels.shape).to(labels.device) < share, drawn, labels)


def verdict(logits: Tensor, truth: int) -> Tensor:
    """Cross entropy of a critic that should say: 1, the victim's (or a real image); 0, the attacker's own."""
    return binary_cross_entropy_with_logits(logits, torch.full_like(logits, truth))


def _gradients(loss: Tensor, optimizer: torch.optim.Optimizer, keep: bool = False) -> None:
    """Gradients for one optimizer's parameters alone: whoever the loss passes through learns nothing from it."""
    optimizer.zero_grad()
    loss.backward(inputs=[p for group in optimizer.param_groups for p in group["params"]], retain_graph=keep)


def _adam(pupils: Sequence[nn.Module], rate: float) -> torch.optim.Optimizer:
    return adam((p for pupil in pupils for p in pupil.parameters() if p.requires_grad), rate)


def _reader(spec: Simulation, shape: Shape, image: Shape) -> tuple[str, Callable[[Shape], nn.Module]]:
    name = spec.reader if spec.reader != "auto" else "conv" if len(shape) == 3 else "mlp"
    if name == "mlp":
        return name, partial(MLPReader, image=image, width=spec.hidden)
    if len(shape) != 3:
        raise ValueError(f"{spec}: a convolution cannot read messages of shape {shape}; use reader='mlp'")
    if name == "batchnorm":
        return name, partial(published_decoder, image=image)
    return name, partial(ConvReader, image=image, width=4 * spec.width)


def _uploads(messages: Sequence[Message]) -> list[Message]:
    return [message for message in messages if message.kind is not Kind.BACKWARD]
