"""A generative prior: what images of this kind look like at all, learnt from auxiliary ones."""

from math import prod

import torch
from torch import Tensor, nn

from ...core.guard import Shape
from ...metrics.readers import fit, start_at
from .substitute import Substitute

LATENT = 64
JITTER = 0.2  # of a code while the generator learns: neighbouring codes must give neighbouring pictures


class Generator(nn.Module):
    """From a code on a sphere to an image. Learns as the decoder of a noisy autoencoder."""

    def __init__(self, image: Shape, width: int):
        super().__init__()
        doublings, sides = 0, image[1:]
        while doublings < 2 and all(side % 2 ** (doublings + 1) == 0 for side in sides):
            doublings += 1
        small = tuple(side >> doublings for side in sides)
        self.sphere = nn.LayerNorm(LATENT, elementwise_affine=False)
        layers: list[nn.Module] = [nn.Linear(LATENT, width * prod(small)), nn.Unflatten(1, (width, *small))]
        for _ in range(doublings):
            narrower = max(16, width // 2)
            layers += [nn.LeakyReLU(0.1), nn.ConvTranspose2d(width, narrower, 4, 2, 1)]
            width = narrower
        layers += [nn.LeakyReLU(0.1), nn.Conv2d(width, width, 3, padding=1), nn.LeakyReLU(0.1)]
        self.layers = nn.Sequential(*layers, nn.Conv2d(width, image[0], 3, padding=1), nn.Sigmoid())

    def forward(self, code: Tensor) -> Tensor:
        code = self.sphere(code)
        return self.layers(code + JITTER * torch.randn_like(code) if self.training else code)


def learn_to_draw(images: Tensor, width: int, steps: int) -> Generator:
    """A generator of images like these, frozen."""
    image = tuple(images.shape[1:])
    generator = Generator(image, width)
    start_at(generator, images)
    encoder = Substitute(image, (LATENT,), max(16, width // 4), signed=True)
    fit(nn.Sequential(encoder, generator).to(images), images, images, steps=steps)
    return generator.requires_grad_(False).eval()


class Drawn(nn.Module):
    """A reader that finds a code and leaves the drawing to a generator that is not its own."""

    def __init__(self, cut: Shape, width: int, hidden: int, generator: Generator, convolve: bool):
        super().__init__()
        layers: list[nn.Module] = []
        channels = cut[0]
        if convolve:
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.LeakyReLU(0.1)]
            cut = (width, *cut[1:])
        layers += [nn.Flatten(), nn.Linear(prod(cut), hidden), nn.LeakyReLU(0.1), nn.Linear(hidden, LATENT)]
        self.code, self.generator = nn.Sequential(*layers), generator

    def forward(self, z: Tensor) -> Tensor:
        return self.generator(self.code(z))
