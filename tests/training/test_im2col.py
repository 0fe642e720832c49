"""A convolution as matrix products is the convolution, in value and gradient; what does not fit stays as it is."""

from itertools import product

import pytest
import torch
from torch import nn

from cutlayer.training.im2col import MOST_PLACES, Im2colConv2d, multiply

FORMS = [
    form
    for form in product((1, 2, 3, 5), (1, 2, 3), (0, 1, 3), ((1, 2), (4, 7), (8, 8)))
    if min(form[3]) + 2 * form[2] >= form[0]
]


def found(conv, x, dy=None):
    """What comes out, and the gradients of the input and of all weights."""
    x = x.clone().requires_grad_()
    y = conv(x)
    conv.zero_grad()
    y.backward(torch.randn(y.shape, generator=torch.Generator().manual_seed(2), dtype=y.dtype) if dy is None else dy)
    return [y.detach(), x.grad, *(parameter.grad for parameter in conv.parameters())]


def as_products(conv):
    multiply(conv)
    assert type(conv) is Im2colConv2d
    return conv


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("kernel", "stride", "padding", "side"), FORMS)
def test_values_and_gradients_are_those_of_the_convolution(kernel, stride, padding, side, bias):
    conv = nn.Conv2d(5, 6, kernel, stride, padding, bias=bias).double()
    x = torch.rand(3, 5, *side, dtype=torch.double, generator=torch.Generator().manual_seed(1))
    wanted = found(conv, x)
    for one, other in zip(found(as_products(conv), x), wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_gradients_nobody_wants_are_not_computed():
    conv = as_products(nn.Conv2d(2, 3, 3, padding=1))
    conv.weight.requires_grad_(False)
    x = torch.rand(2, 2, 4, 4, requires_grad=True)
    conv(x).sum().backward()
    assert conv.weight.grad is None and x.grad is not None


def test_a_large_map_is_left_to_the_library(monkeypatch):
    conv, side = as_products(nn.Conv2d(1, 1, 3, padding=1)), int(MOST_PLACES**0.5)
    taken = []
    monkeypatch.setattr("cutlayer.training.im2col._Convolved.apply", lambda *given: taken.append(given) or given[0])
    for one in (side, side + 1):
        conv(torch.rand(1, 1, one, one))
    assert len(taken) == 1


@pytest.mark.parametrize(
    "conv",
    [
        nn.Conv2d(4, 4, 3, groups=2),
        nn.Conv2d(4, 4, 3, dilation=2),
        nn.Conv2d(4, 4, (3, 1)),
        nn.Conv2d(4, 4, 3, stride=(1, 2)),
        nn.Conv2d(4, 4, 3, padding="same"),
        nn.Conv2d(4, 4, 3, padding="valid"),
        nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"),
        nn.Conv1d(4, 4, 3),
        nn.ConvTranspose2d(4, 4, 3),
    ],
    ids=str,
)
def test_other_convolutions_stay_as_they_are(conv):
    before = type(conv)
    multiply(nn.Sequential(conv))
    assert type(conv) is before


def test_what_has_another_number_format_is_left_to_the_library():
    conv = as_products(nn.Conv2d(2, 3, 3))
    with torch.autocast("cpu", torch.bfloat16):
        assert conv(torch.rand(1, 2, 4, 4)).dtype is torch.bfloat16


def test_names_and_weights_stay_as_they_are():
    part = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU())
    before = part.state_dict(keep_vars=True)
    multiply(part)
    after = part.state_dict(keep_vars=True)
    assert after.keys() == before.keys() and all(after[name] is before[name] for name in before)
