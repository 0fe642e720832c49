"""LFQ: a small encoder turns the cut into a few bits a sample, a decoder makes activations of them again."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from math import ceil, log, prod
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss, softplus

from ..core.batch import Batch, Task
from ..core.guard import Guarded, GuardModule, Shape
from ..core.search import Between, OneOf, Search
from ..core.seeds import derive, seeded
from ..wire.codecs.entropy import Coded
from ..wire.codecs.parts.gridded import Gridded, grid_type
from ..wire.codecs.parts.smallest import Smallest
from .base import Guard
from .parts.claims import Claim, Sent

LEVELS = ("fixed", "learned")
SCALES = ("none", "client", "affine")
DECODERS = ("server", "client")
PRETRAINING_RATE = 3e-3
HEADER = 26  # bytes a batch, at most: how codes are packed, and the two values they stand for
MOMENTUM = 0.1  # of the running size of what the encoder gives, as BatchNorm's
MOST_VALUES = 256  # of a dimension: what the entropy coder has tables for


@dataclass(frozen=True, repr=False)
class LFQ(Guard):
    """A learned code of groups · bits signs at each of a few positions; one bit of each leaves (VQ-VAE with LFQ).

    Lookup-free quantisation (Madill's thesis, 2025, ch. 2): no codebook exists, so none travels. `depth` stages of
    depthwise-separable convolutions shrink the maps by `stride` each. The task's loss gets `beta` · squared distance
    to the nearest level, `entropy` · (entropy of a bit given its sample - `gamma` · entropy of its use in the batch),
    and `recon` · squared error of what the decoder makes of the bits.

    `decoder="server"`: it trains with the body, and the client copies it for its reconstruction term. "client": it
    trains at home by that term alone, and replaces the server's. Either happens after `freq` messages.
    `values` levels for each dimension, evenly from -1 to 1, instead of the two of a bit: log2(values) bits leave.
    `coded`: frequent levels take fewer bits (Eq. 2.8; extra `entropy`), at most what they take without.
    `levels="learned"`: values of their own for each bit, in the decoder, instead of ±1. `scale="client"`: the levels
    are as large as what the client's encoder gives; "affine": that is first moved and scaled, dimension by dimension,
    by the mean and spread of the client's own batches. `pre` steps of autoencoding on the first batch come before all
    others: for a network that is trained already (`start`).
    A cut of two dimensions is read as tokens x features: positions are tokens, and features its channels.
    """

    groups: int = 1
    bits: int = 13
    quantizers: int = 1  # for each group; bits are independent, so these are just more of them
    depth: int = 1
    stride: int = 2
    levels: str = "fixed"
    scale: str = "none"
    beta: float = 0.25
    entropy: float = 0.1
    gamma: float = 1.0
    recon: float = 0.5
    decoder: str = "server"
    freq: int = 100
    pre: int = 0
    values: int = 2
    coded: bool = False
    always_shown: ClassVar[int] = 2
    fills_zeros: ClassVar[bool] = True
    only_compresses: ClassVar[bool] = True
    packs: ClassVar[bool] = True
    search: ClassVar[Search] = {"groups": OneOf(1, 2, 4), "bits": Between(2, 16)}

    def __post_init__(self) -> None:
        for name, least in {"groups": 1, "bits": 1, "quantizers": 1, "depth": 1, "freq": 1, "pre": 0}.items():
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise ValueError(f"LFQ's {name} is a whole number from {least} up; got {value!r}")
        if self.stride not in (1, 2, 3):
            raise ValueError(
                f"LFQ's stride is 1 (as many positions as the cut), 2 or 3, as its kernels are; got {self.stride!r}"
            )
        for name, known in (("levels", LEVELS), ("scale", SCALES), ("decoder", DECODERS)):
            if getattr(self, name) not in known:
                raise ValueError(f"LFQ's {name} is one of {', '.join(known)}; got {getattr(self, name)!r}")
        for name in ("beta", "entropy", "gamma", "recon"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 <= value < float("inf"):
                raise ValueError(f"LFQ's {name} is a weight, a number from 0 up; got {value!r}")
        if not isinstance(self.values, int) or not 2 <= self.values <= MOST_VALUES:
            raise ValueError(f"LFQ's values is a whole number from 2 to {MOST_VALUES}; got {self.values!r}")
        if self.decoder == "client" and not self.recon:
            raise ValueError("a decoder at the client learns from the reconstruction alone: LFQ(recon=0.5, ...)")
        if self.decoder == "server" and self.pre:
            raise ValueError(
                "pre-training makes a decoder at the client, which has to be sent: LFQ(decoder='client')"
            )

    @property
    def capturable(self) -> bool:  # type: ignore[override]
        return not self.pre  # a first batch that trains an autoencoder is no step like the others

    @property
    def exchange(self) -> str:  # type: ignore[override]  # a class variable elsewhere
        return "copy" if self.decoder == "server" else "replace"

    def out_shape(self, shape: Shape) -> Shape:
        if len(shape) not in (2, 3):
            raise ValueError(
                f"{self} needs a cut of channels x height x width, or of tokens x features; this one is {shape}"
            )
        return (self.groups * self.quantizers * self.bits, *self._sizes(shape)[-1])

    def bits_of_a_sample(self, shape: Shape) -> int:
        """What one activation of this shape leaves in; the ratio of the thesis is 32 · prod(shape) over it."""
        return prod(self.out_shape(shape)) * self.value_bits

    @property
    def value_bits(self) -> int:
        """Of one dimension, where frequencies do not count."""
        return (self.values - 1).bit_length()

    def message_bits(self, shape: Shape) -> int | None:
        return (
            self.bits_of_a_sample(shape) if self.scale != "client" else None
        )  # the size of a batch's levels tells, too

    @property
    def draws_anew(self) -> bool:
        return True  # BatchNorm in every stage: a code hangs on the batch it is in

    def build(self, shape: Shape, public: int, private: int, task: Task | None = None) -> GuardModule:
        decoder = self._decoder(shape, public)  # both sides start from the same one
        with seeded(private):
            return _Codes(self, self._encoder(shape), decoder.requires_grad_(self.decoder == "client"))

    def lift(self, shape: Shape, public: int) -> nn.Module:
        return self._decoder(shape, public).requires_grad_(self.decoder == "server")

    def claims(self, shape: Shape) -> tuple[Claim, ...]:
        bits = self.bits_of_a_sample(shape)

        def holds(sent: Sent) -> bool:
            return sent.size <= HEADER + ceil(bits * len(sent.seen) / 8)

        return (Claim(f"a sample leaves in {bits} bits", holds),)

    def public_part(self) -> Guard:
        """How the client weighs its terms is its own business."""
        return LFQ(
            groups=self.groups, bits=self.bits, quantizers=self.quantizers, depth=self.depth, stride=self.stride,
            levels=self.levels, decoder=self.decoder, values=self.values, coded=self.coded,
        )  # fmt: skip

    def _sizes(self, shape: Shape) -> list[Shape]:
        """Of the maps: at the cut, and behind each stage."""
        sizes = [_as_map(shape)[1:]]
        for _ in range(self.depth):
            sizes.append(tuple((side - 1) // self.stride + 1 for side in sizes[-1]))
        return sizes

    def _encoder(self, shape: Shape) -> nn.Sequential:
        width, layers = _as_map(shape)[0], list[nn.Module]()
        if len(shape) == 2:
            layers.append(TokensFirst())
        for stage in range(self.depth):
            layers += [nn.Conv2d(width, width, 3, self.stride, 1, groups=width), *_behind(width)]
            if stage + 1 < self.depth:
                layers += [nn.Conv2d(width, width, 1), *_behind(width)]
        return nn.Sequential(*layers, nn.Conv2d(width, self.out_shape(shape)[0], 1))

    def _decoder(self, shape: Shape, public: int) -> nn.Sequential:
        codes, width, sizes = self.out_shape(shape)[0], _as_map(shape)[0], self._sizes(shape)
        with seeded(derive(public, "lift")):
            layers: list[nn.Module] = [Levels(codes) if self.levels == "learned" else nn.Identity()]
            layers += [nn.Conv2d(codes, width, 1), *_behind(width)]
            for stage in reversed(range(self.depth)):
                layers += [_larger(width, self.stride, sizes[stage + 1], sizes[stage]), *_behind(width)]
                layers += [nn.Conv2d(width, width, 1), *(_behind(width) if stage else ())]
            if len(shape) == 2:
                layers.append(TokensFirst(back=True))
        return nn.Sequential(*layers)


def _as_map(shape: Shape) -> Shape:
    """Channels, height and width: tokens stand below each other, and their features are channels."""
    return shape if len(shape) == 3 else (shape[1], shape[0], 1)


class TokensFirst(nn.Module):
    """Tokens x features as a map that is one pixel wide, or such a map as tokens again."""

    def __init__(self, back: bool = False):
        super().__init__()
        self.back = back

    def forward(self, z: Tensor) -> Tensor:
        return z.squeeze(3).transpose(1, 2) if self.back else z.transpose(1, 2).unsqueeze(3)


class Levels(nn.Module):
    """Two values for each bit: ±1 becomes centre ± spread."""

    def __init__(self, codes: int):
        super().__init__()
        self.centre = nn.Parameter(torch.zeros(codes, 1, 1))
        self.log_spread = nn.Parameter(torch.zeros(codes, 1, 1))

    @property
    def spread(self) -> Tensor:
        return self.log_spread.exp()  # never 0: no level passes the other

    def forward(self, seen: Tensor) -> Tensor:
        return self.centre + self.spread * seen


class _Codes(GuardModule):
    """Encoder, signs, and the client's decoder."""

    age: Tensor
    size: Tensor
    started: Tensor

    def __init__(self, spec: LFQ, encoder: nn.Sequential, decoder: nn.Sequential):
        super().__init__()
        self.spec, self.encoder, self.decoder = spec, encoder, decoder
        # Persistent: whoever takes over a relay goes on from here.
        self.register_buffer("age", torch.zeros((), dtype=torch.long))  # messages since the last exchange
        self.register_buffer("started", torch.tensor(not spec.pre))
        self.register_buffer("size", torch.ones(()))
        if spec.scale == "affine":
            channels = encoder[-1].out_channels
            assert isinstance(channels, int)
            # The client's own a and b of each dimension (thesis, Sec. 2.4.4), as what they follow from.
            self.norm = nn.BatchNorm2d(channels, affine=False, momentum=MOMENTUM)

    def lift_due(self, step: int) -> dict[str, Tensor] | None:
        if int(self.age) < self.spec.freq:
            return None
        if self.spec.decoder == "server":
            return {}
        return {name: tensor.detach().clone() for name, tensor in self.decoder.state_dict().items()}

    def take_lift(self, state: Mapping[str, Tensor]) -> None:
        self.age.zero_()
        if self.spec.decoder == "server":
            self.decoder.load_state_dict(state)

    def forward(self, z: Tensor, batch: Batch) -> Guarded:
        # An audit encodes in training mode, too, but nothing learns there.
        learns = self.training and torch.is_grad_enabled()
        if learns and self.spec.pre and not self.started:
            self._autoencode(z.detach())
        codes = self._codes(z)
        # A captured step cannot be looked at; `seen` holds NaN then as well, and so does the loss.
        captured = z.is_cuda and torch.cuda.is_current_stream_capturing()
        if not captured and not torch.isfinite(codes.soft).all():
            # Signs would look as if nothing had happened. Alike for all rows: no sample's own numbers leave instead.
            self.packed = None
            return Guarded(codes.soft * torch.nan)
        self.packed = Smallest((codes.grid, Coded(codes.grid))) if self.spec.coded else codes.grid
        if not learns:
            return Guarded(codes.seen)
        self.age += 1
        use = level_use(codes.grid.codes.reshape(codes.soft.shape), self.spec.values)
        # Of each bit that is sent: 1 where all levels of a dimension come equally often.
        self.notes = {"bits used": -torch.xlogy(use, use).sum(0).mean().detach().double() / log(self.spec.values)}
        return Guarded(codes.seen, self._penalties(z, codes))

    def _codes(self, z: Tensor) -> "_Latent":
        soft, size = self.encoder(z).contiguous(), self.size.to(z)
        if isinstance(levels := self.decoder[0], Levels):
            # Not learnt here: levels follow what the decoder makes of them.
            soft = (soft - levels.centre.detach()) / levels.spread.detach()
        if self.spec.scale == "client" and self.training:
            size = soft.detach().abs().mean().clamp_min(torch.finfo(z.dtype).tiny)
            self.size.lerp_(size.to(self.size), MOMENTUM)
        if self.spec.scale == "affine":
            soft = self.norm(soft)
        steps = self.spec.values - 1
        place = (
            (soft.detach() >= 0) if steps == 1 else ((soft.detach() / size + 1) * (steps / 2)).round().clamp(0, steps)
        )
        unit = size[None].to(grid_type(z.dtype))
        grid = Gridded(place.flatten(1).to(torch.int32), -unit, (2 / steps) * unit, self.spec.value_bits)
        hard = grid.value().to(z).reshape(soft.shape)
        return _Latent(soft, hard, hard + (soft - soft.detach()), size, grid)  # exactly `hard`, gradient of `soft`

    def _penalties(self, z: Tensor, codes: "_Latent") -> dict[str, Tensor]:
        spec, levels = self.spec, self.decoder[0]
        unit = levels.spread.detach() if isinstance(levels, Levels) else 1.0
        terms = {
            "LFQ commitment": (spec.beta, lambda: (unit * (codes.soft - codes.hard)).square().mean()),
            "LFQ entropy": (spec.entropy, lambda: self._entropy(codes, unit)),
            # The target is a constant: a head that shrinks its activations would lower the error, and help nobody.
            "LFQ reconstruction": (spec.recon, lambda: mse_loss(self.decoder(codes.seen), z.detach())),
        }
        return {name: weight * term() for name, (weight, term) in terms.items() if weight}

    def _entropy(self, codes: "_Latent", unit: Tensor | float) -> Tensor:
        if self.spec.values == 2:
            # How much likelier a one is: squared distances to both levels, (x + s)² - (x - s)² = 4 s x.
            return entropy_term(4 * unit**2 * codes.size * codes.soft, self.spec.gamma)
        levels = torch.linspace(-1, 1, self.spec.values, device=codes.soft.device).to(codes.soft) * codes.size
        apart = -(unit * (codes.soft - levels.view(-1, 1, 1, 1, 1))).square()
        return entropy_of_levels(apart.log_softmax(0), self.spec.gamma)

    def _autoencode(self, z: Tensor) -> None:
        """All steps on the first batch: later, messages that hang on these weights may be under way."""
        self.started.fill_(True)
        both = [*self.encoder.parameters(), *self.decoder.parameters()]
        optimizer = torch.optim.Adam(both, PRETRAINING_RATE)
        for _ in range(self.spec.pre):
            optimizer.zero_grad()
            reduce(torch.add, self._penalties(z, self._codes(z)).values()).backward()
            optimizer.step()
        optimizer.zero_grad()
        self.age.fill_(self.spec.freq)  # the server should have this decoder


class _Latent(NamedTuple):
    soft: Tensor  # what the encoder gives, in units in which the levels are ±size
    hard: Tensor  # the nearer level
    seen: Tensor  # the same, with the gradient of `soft` (a straight-through estimate)
    size: Tensor
    grid: Gridded  # the same as codes


def level_use(codes: Tensor, values: int) -> Tensor:
    """How often each level comes in a batch, levels x dimensions."""
    return torch.stack([(codes == level).double().mean((0, 2, 3)) for level in range(values)])


def entropy_of_levels(log_p: Tensor, gamma: float) -> Tensor:
    """As `entropy_term`, in nats a dimension, for any number of levels: levels x batch x dimensions x positions."""
    p = log_p.exp()
    mean = p.mean((1, 3, 4))
    return -(p * log_p).sum(0).mean() + gamma * torch.xlogy(mean, mean).sum(0).mean()


def entropy_term(logits: Tensor, gamma: float) -> Tensor:
    """E[H(bit | sample)] - gamma · H(mean over the batch), in nats a bit; bits are channels, and independent.

    The thesis prints the sum of -p log p as a loss that spreads the use of codes; minimised, it does the opposite.
    The signs here are those of LFQ (Yu et al., 2024): each bit sure of itself, both values used alike.
    """
    p = logits.sigmoid()
    given = softplus(logits) - logits * p  # the entropy of p, whatever the size of the logits
    return given.mean() - gamma * _entropy(p.mean((0, 2, 3))).mean()


def _entropy(p: Tensor) -> Tensor:
    """Of bits, in nats."""
    p = p.clamp(1e-6, 1 - 1e-6)
    return -(p * p.log() + (1 - p) * (1 - p).log())


def _behind(width: int) -> tuple[nn.Module, nn.Module]:
    """What follows every convolution but the last (thesis, Sec. 2.5.1)."""
    # Codes that are all alike have no variance, and 1/sqrt(eps) is what BatchNorm then makes of a gradient.
    return nn.ReLU(), nn.BatchNorm2d(width, eps=1e-2)


def _larger(width: int, stride: int, small: Shape, large: Shape) -> nn.Module:
    """The transposed depthwise convolution from one size of map to exactly the other."""
    missing = [side - ((little - 1) * stride + 1) for little, side in zip(small, large, strict=True)]
    return nn.ConvTranspose2d(width, width, 3, stride, 1, output_padding=(missing[0], missing[1]), groups=width)
