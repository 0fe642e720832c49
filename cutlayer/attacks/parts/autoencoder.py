"""An encoder of the attacker's own and the decoder that reads it, trained together on auxiliary images."""

from math import prod

import torch
from torch import Tensor, nn

from ...core.guard import Shape
from ...core.stepping import adam
from ...metrics.readers import MLPReader, start_at
from .view import View

INVERSES = ("auto", "conv", "mlp")
LEAST_CHANNELS = 16


class Encoder(nn.Module):
    """From an image to rows of any shape, linear up to the end (FSHA's pilot has no activations).

    `positive` ends it in a ReLU, as most heads end: a client cannot be driven to values it has no way to send, and a
    client that can send both signs can also leave one out.
    """

    def __init__(self, image: Shape, shape: Shape, width: int, positive: bool):
        super().__init__()
        layers: list[nn.Module] = []
        if len(shape) == 3:
            sides, channels = image[1:], image[0]
            while all(side // 2 >= small for side, small in zip(sides, shape[1:], strict=True)):
                layers += [nn.Conv2d(channels, width, 4, stride=2, padding=1)]
                sides, channels = tuple(side // 2 for side in sides), width
            layers += [nn.Conv2d(channels, shape[0], 3, padding=1), _Fit(shape[1:])]
        else:
            layers += [nn.Flatten(), nn.Linear(prod(image), prod(shape)), nn.Unflatten(1, shape)]
        self.layers = nn.Sequential(*layers, *([nn.ReLU()] if positive else []))
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images)


class Inverse(nn.Module):
    """From maps back to an image: one convolution at the size of the cut, then doubled up to that of the image."""

    def __init__(self, cut: Shape, image: Shape, width: int):
        super().__init__()
        doublings = 0
        while all(small * 2 ** (doublings + 1) <= side for small, side in zip(cut[1:], image[1:], strict=True)):
            doublings += 1
        start = tuple(side >> doublings for side in image[1:])
        layers: list[nn.Module] = [_Fit(start), nn.Conv2d(cut[0], width, 3, padding=1), nn.LeakyReLU(0.1)]
        for _ in range(doublings):
            narrower = max(LEAST_CHANNELS, width // 2)
            layers += [nn.ConvTranspose2d(width, narrower, 4, 2, 1), nn.LeakyReLU(0.1)]
            width = narrower
        self.layers = nn.Sequential(*layers, _Fit(image[1:]), nn.Conv2d(width, image[0], 3, padding=1))
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, rows: Tensor) -> Tensor:
        return self.layers(rows).sigmoid()


class _Fit(nn.Module):
    """Maps of the given size: the border cut off, as unpadded convolutions do, or put back; else scaled."""

    def __init__(self, size: Shape):
        super().__init__()
        self.size = tuple(size)

    def forward(self, maps: Tensor) -> Tensor:
        missing = [side - has for side, has in zip(self.size, maps.shape[2:], strict=True)]
        if not any(missing):
            return maps
        if any(abs(gap) >= side for gap, side in zip(missing, self.size, strict=True)):
            return nn.functional.interpolate(maps, size=self.size, mode="bilinear")
        (high, wide) = missing
        return nn.functional.pad(maps, (wide // 2, wide - wide // 2, high // 2, high - high // 2))


class Autoencoder(nn.Module):
    """An encoder and the inverse that reads it, with the guard between them where a view is given.

    `inverse` "auto" reads maps with convolutions and everything else fully connected: a projection mixes places, and
    a convolution cannot tell them apart again.
    """

    def __init__(
        self,
        image: Shape,
        own: Shape,
        width: int,
        hidden: int,
        inverse: str,
        *,
        positive: bool,
        view: View | None = None,
    ):
        super().__init__()
        self.view = view
        self.encoder = Encoder(image, own, width, positive)
        shape = own if view is None else view.shape
        if inverse == "conv" and len(shape) != 3:
            raise ValueError(f"inverse='conv' reads maps, and rows of shape {shape} are none: take 'mlp' or 'auto'")
        conv = len(shape) == 3 and inverse != "mlp"
        self.inverse: nn.Module = Inverse(shape, image, width) if conv else MLPReader(shape, image, hidden)
        self.error = float("nan")  # mean squared, over the last batches

    def encode(self, images: Tensor, step: int) -> Tensor:
        """Images as they would arrive if the encoder were the client's head."""
        own = self.encoder(images)
        return own if self.view is None else self.view.sent(own, images, None, step)

    def learn(self, aux: Tensor, steps: int, rate: float, batch: int) -> None:
        """Minimise the squared error on `aux`, then stand still: a target that moves is harder to reach."""
        start_at(self.inverse, aux)
        optimizer = adam([*self.encoder.parameters(), *self.inverse.parameters()], rate)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
        errors = []
        for step in range(steps):
            images = some(aux, batch)
            error = (self.inverse(self.encode(images, step)) - images).square().mean()
            optimizer.zero_grad()
            error.backward()
            optimizer.step()
            schedule.step()
            errors.append(float(error.detach()))
        last = errors[-max(1, steps // 10) :]
        self.error = sum(last) / len(last)
        self.requires_grad_(False)


def some(rows: Tensor, count: int) -> Tensor:
    """Rows drawn with replacement."""
    return rows[torch.randint(len(rows), (count,)).to(rows.device)]
