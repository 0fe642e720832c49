"""Images on the scale that published weights were trained on."""

import torch
from torch import Tensor, nn

MEAN, SPREAD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's training images, by colour


class ImageNetScale(nn.Module):
    """Images from 0 to 1 as torchvision's weights expect them. It has nothing that a file of weights would hold."""

    draws_nothing = True

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(MEAN).reshape(-1, 1, 1), persistent=False)
        self.register_buffer("spread", torch.tensor(SPREAD).reshape(-1, 1, 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        assert isinstance(self.mean, Tensor) and isinstance(self.spread, Tensor)
        return (x - self.mean) / self.spread
