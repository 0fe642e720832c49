"""TextEncoder with a mask: padding changes nothing, however much there is; without one it is a word."""

import pytest
import torch

from cutlayer.core.features import Chained, features
from cutlayer.nets import TextEncoder


def encoder(pad, length):
    net = TextEncoder(layers=2, width=8, heads=2, at=1, vocabulary=12, pad=pad)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        parts = net.head((length,)), net.body((length,)), net.tail((length,), 3)
    for part in parts:
        for weight in part.parameters():
            torch.nn.init.normal_(weight, generator=torch.Generator().manual_seed(weight.numel()))
    return Chained(*parts)


@pytest.mark.parametrize("pad", ["mask", "fixed"])
def test_how_much_padding_there_is(pad):
    short, long = encoder(pad, 6), encoder(pad, 9)
    with torch.no_grad():
        long[0].positions.weight[:6] = short[0].positions.weight
    x = torch.tensor([[3, 4, 5, 0, 0, 0], [1, 2, 3, 4, 5, 6]])
    answers = [features(net(torch.nn.functional.pad(x, (0, more)))).z for net, more in ((short, 0), (long, 3))]
    assert torch.allclose(*answers, rtol=1e-4, atol=1e-5) == (pad == "mask")


def test_a_text_without_words_has_an_answer():
    answer = features(encoder("mask", 4)(torch.zeros(2, 4, dtype=torch.int64))).z
    assert torch.isfinite(answer).all()


def test_another_way_to_pad_is_refused():
    with pytest.raises(ValueError, match="TextEncoder: pad is 'fixed' or 'mask'; got 'left'"):
        TextEncoder(pad="left")
