"""A critic that tells two kinds of activations apart, kept smooth by a penalty on its gradient (WGAN-GP)."""

from math import prod

import torch
from torch import Tensor, nn

from ...core.guard import Shape


class Critic(nn.Module):
    """One number a row: low for the client's, high for the attacker's own.

    FORA's: strided convolutions down to about 4 pixels, residual blocks, a linear layer, no normalisation (the
    penalty is about single rows). Rows that are no maps get linear layers.
    """

    def __init__(self, cut: Shape, width: int, blocks: int):
        super().__init__()
        layers: list[nn.Module] = []
        if len(cut) == 3:
            sides, channels = list(cut[1:]), cut[0]
            while max(sides) > 4 or not layers:
                stride = 2 if max(sides) > 4 else 1
                layers += [nn.Conv2d(channels, width, 3, stride, 1), *([nn.ReLU()] if max(sides) > 8 else [])]
                sides, channels = [(side + stride - 1) // stride for side in sides], width
            layers += [
                _Residual(nn.Conv2d(width, width, 3, 1, 1), nn.Conv2d(width, width, 3, 1, 1)) for _ in range(blocks)
            ]
            layers += [nn.ReLU(), nn.Flatten(), nn.Linear(width * prod(sides), 1)]
        else:
            layers += [nn.Flatten(), nn.Linear(prod(cut), width)]
            layers += [_Residual(nn.Linear(width, width), nn.Linear(width, width)) for _ in range(blocks)]
            layers += [nn.ReLU(), nn.Linear(width, 1)]
        self.layers = nn.Sequential(*layers).to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, z: Tensor) -> Tensor:
        return self.layers(z).flatten()


class _Residual(nn.Module):
    def __init__(self, first: nn.Module, second: nn.Module):
        super().__init__()
        self.branch = nn.Sequential(nn.ReLU(), first, nn.ReLU(), second)

    def forward(self, z: Tensor) -> Tensor:
        return z + self.branch(z)


def gradient_penalty(critic: nn.Module, theirs: Tensor, own: Tensor) -> Tensor:
    """E[(|grad D(e own + (1 - e) theirs)| - 1)^2], one e a row, the norm over all of a row."""
    share = torch.rand(len(own), *[1] * (own.dim() - 1)).to(own)
    between = (share * own.detach() + (1 - share) * theirs.detach()).requires_grad_()
    (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
    norm = (slope.flatten(1).square().sum(1) + 1e-12).sqrt()  # a norm of exactly 0 has no gradient
    return (norm - 1).square().mean()
