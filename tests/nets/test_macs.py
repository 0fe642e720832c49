"""Counting without running: multiply-accumulates by hand, and no trace left on the module."""

import copy

import pytest
import torch
from torch import nn

from cutlayer.nets import VGG16, MobileNetV3Large, ResNet18, ResNet50, count_macs, count_parameters, out_shape

# layer, one sample, multiply-accumulates by hand
BY_HAND = [
    (nn.Conv2d(2, 3, 3), (2, 5, 5), 3 * 3 * 3 * (2 * 3 * 3)),
    (nn.Conv2d(4, 6, 3, padding=1, groups=2), (4, 5, 5), 6 * 5 * 5 * (2 * 3 * 3)),
    (nn.Conv1d(2, 3, 3, stride=2), (2, 9), 3 * 4 * (2 * 3)),
    (nn.ConvTranspose2d(3, 2, 2, stride=2), (3, 4, 4), 4 * 4 * (3 * 2 * 2 * 2)),
    (nn.Linear(7, 5), (7,), 35),
    # five tokens of width 8: q, k, v and what follows attention; every pair of tokens twice; two linear layers
    (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (5, 8), 5 * 8 * 32 + 2 * 5 * 5 * 8 + 2 * 5 * 8 * 16),
    (nn.Linear(7, 5, bias=False), (3, 7), 3 * 35),
    (nn.Sequential(nn.ReLU(), nn.BatchNorm2d(2), nn.MaxPool2d(2)), (2, 4, 4), 0),
]


@pytest.mark.parametrize(("layer", "shape", "macs"), BY_HAND, ids=lambda value: str(value))
def test_macs_by_hand(layer, shape, macs):
    assert count_macs(layer, shape) == macs


def test_macs_of_the_resnet_stem():
    # 7x7 over 3 channels, 64 x 16 x 16 outputs: LightSplit's 2.41 M for the client at L1H
    assert count_macs(ResNet18().head((3, 32, 32)), (3, 32, 32)) == 64 * 16 * 16 * 3 * 7 * 7 == 2_408_448


@pytest.mark.parametrize(
    ("net", "billions"),
    [(ResNet18(), 1.814), (ResNet50(), 4.089), (ResNet50(wide=True), 11.398), (VGG16(), 15.470),
     (MobileNetV3Large(), 0.217)],
    ids=repr,
)  # fmt: skip
def test_macs_are_those_torchvision_prints_for_its_models(net, billions):
    # These hold strides and kernel sizes, which parameter counts do not.
    shape = (3, 224, 224)
    with torch.device("meta"):
        whole = nn.Sequential(net.head(shape), net.body(shape), net.tail(shape, 1000))
    assert round(count_macs(whole, shape) / 1e9, 3) == billions


def test_a_product_without_a_module_counts_too():
    class Projection(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("basis", torch.randn(12, 4))

        def forward(self, z):
            return z.flatten(1) @ self.basis

    assert count_macs(Projection(), (3, 2, 2)) == 12 * 4
    assert count_parameters(Projection()) == 0


def test_counting_leaves_the_module_as_it_was():
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Dropout())
    state, random = copy.deepcopy(module.state_dict()), torch.get_rng_state()
    assert out_shape(module, (1, 5, 6)) == (2, 3, 4)
    count_macs(module, (1, 5, 6))
    assert all(torch.equal(state[key], value) for key, value in module.state_dict().items())
    assert all(part.training and not part._forward_hooks for part in module.modules())
    assert torch.equal(random, torch.get_rng_state())
