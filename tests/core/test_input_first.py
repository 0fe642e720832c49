"""Two passes through autograd give every bit of one: that of the input first, those of the weights later."""

import gc
import weakref
from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from cutlayer.core import input_first as passes
from cutlayer.core.input_first import input_first
from cutlayer.core.stepping import backward
from cutlayer.nets.lora import LoRA

PICTURES = (6, 4, 9, 9)
ROWS = (5, 12)
TEXTS = (3, 7, 8)


class Places(nn.Module):
    """A weight that is added: it feeds the way itself, with no layer between."""

    def __init__(self, *shape):
        super().__init__()
        self.at = nn.Parameter(torch.randn(shape))

    def forward(self, z):
        return z + self.at


class Looked(nn.Module):
    """A table beside the way: its gradients have rows that nobody asked for."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(11, 8)

    def forward(self, z):
        return torch.cat([z, self.table(torch.arange(z.shape[1]) % 3).expand(len(z), -1, -1)], 2)


class Apart(nn.Module):
    """Nodes with several outputs, of which one goes nowhere."""

    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, z):
        first, second, _ = z.split(4, 1)
        return self.one(first) * torch.sigmoid(self.other(second)) + second[:, :3]


class Doubled(nn.Module):
    """Somebody changes a gradient on its way."""

    def __init__(self):
        super().__init__()
        self.layer, self.heard = nn.Linear(12, 5), 0

    def forward(self, z):
        u = self.layer(z)
        u.register_hook(self.heed)
        return torch.tanh(u)

    def heed(self, gradient):
        return 2 * gradient


class Lower(nn.Module):
    """Weights are made smaller numbers of on their way."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(12, 9), nn.ReLU(), nn.Linear(9, 3))

    def forward(self, z):
        with torch.autocast("cpu", torch.bfloat16):
            return self.layers(z).float()


class Read(nn.Module):
    """One place after the other."""

    def __init__(self):
        super().__init__()
        self.read, self.last = nn.LSTM(8, 6, batch_first=True), nn.Linear(6, 3)

    def forward(self, z):
        return self.last(self.read(z)[0])


class Twice(nn.Module):
    """One layer in two places: its gradients are a sum."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(12, 12)

    def forward(self, z):
        return self.layer(torch.relu(self.layer(z)))


class Negated(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z, weight):
        ctx.save_for_backward(z, weight)
        return -z * weight

    @staticmethod
    def backward(ctx, du):
        z, weight = ctx.saved_tensors
        return -du * weight, -(du * z).sum(0)


class Own(nn.Module):
    """A function of somebody's own."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(12))

    def forward(self, z):
        return Negated.apply(z, self.weight)


class Ignored(nn.Module):
    """z leads nowhere."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(12))

    def forward(self, z):
        return z.detach() * self.weight


def adapted():
    body = nn.Sequential(OrderedDict({"query": nn.Linear(12, 12), "relu": nn.ReLU(), "last": nn.Linear(12, 3)}))
    LoRA(rank=2, at="query").put_on("body", body, 1, None)
    return body


def partly_frozen():
    body = nn.Sequential(nn.Linear(12, 9), nn.ReLU(), nn.Linear(9, 8), nn.ReLU(), nn.Linear(8, 3))
    body[2].requires_grad_(False)
    body[4].weight.requires_grad_(False)
    return body


TWO = {
    "convolutions": lambda: nn.Sequential(nn.Conv2d(4, 6, 3, bias=False), nn.ReLU(), nn.Conv2d(6, 5, 3)),
    "with statistics": lambda: nn.Sequential(
        nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(54, 3)
    ),
    "of groups": lambda: nn.Sequential(nn.GroupNorm(2, 4), nn.ConvTranspose2d(4, 3, 2), nn.Dropout(0.5), nn.GELU()),
    "one layer": lambda: nn.Linear(12, 3),
    "norms of layers": lambda: nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.LayerNorm(8)),
    "attention": lambda: nn.TransformerEncoderLayer(8, 2, 16, 0.1, batch_first=True),
    "places": lambda: nn.Sequential(Places(7, 8), nn.Linear(8, 8)),
    "a table": lambda: nn.Sequential(Looked(), nn.Linear(16, 4)),
    "several outputs": Apart,
    "a weight of two": lambda: nn.Sequential(weight_norm(nn.Linear(12, 7)), nn.ReLU(), nn.Linear(7, 3)),
    "adapters": adapted,
    "partly frozen": partly_frozen,
    "a hook on the way": Doubled,
    "bfloat16": Lower,
    "one place after the other": Read,
    "slopes": lambda: nn.Sequential(nn.Linear(12, 8), nn.PReLU(8), nn.Linear(8, 3)),
}
ONE = {
    "no weights": lambda: nn.Sequential(nn.ReLU(), nn.Flatten()),
    "nothing at all": nn.Identity,
    "all frozen": lambda: nn.Linear(12, 3).requires_grad_(False),
    "the same weights twice": Twice,
    "a function of its own": Own,
    "z leads nowhere": Ignored,
}
BY_THE_WAY = (nn.BatchNorm2d, nn.GroupNorm, nn.LayerNorm, nn.LSTM, nn.PReLU)  # what they get costs nothing more there
AT = {"convolutions": PICTURES, "with statistics": PICTURES, "of groups": PICTURES}
AT |= dict.fromkeys(("norms of layers", "attention", "places", "a table", "one place after the other"), TEXTS)


def made(name, dtype=torch.float32):
    torch.manual_seed(3)
    body = (TWO | ONE)[name]().to(dtype)
    # What is left after a piece of a batch: gradients are added to it.
    for parameter in body.parameters():
        if parameter.requires_grad and parameter.ndim > 1:
            parameter.grad = torch.randn_like(parameter)
    return body


def walked(body, z, walk):
    z = z.clone().requires_grad_()
    torch.manual_seed(5)
    u = body(z)
    u = u if u.requires_grad else u + 0 * z.sum()
    walk(u, torch.randn_like(u), z)
    return [z.grad, *(parameter.grad for parameter in body.parameters())]


def one_pass(u, du, z):
    backward(u, du)


def two_passes(u, du, z):
    rest = input_first(u, du, z)
    assert rest is not None
    rest()


# Of doubles torch uses an LSTM's weights anew at every place, which is no case for two passes.
DOUBLES = [(name, torch.float64) for name in TWO if name != "one place after the other"]


@pytest.mark.parametrize(("name", "dtype"), [*((name, torch.float32) for name in TWO), *DOUBLES])
def test_two_passes_give_the_bits_of_one(name, dtype):
    z = torch.randn(AT.get(name, ROWS), dtype=dtype)
    one, two = (walked(made(name, dtype), z, walk) for walk in (one_pass, two_passes))
    assert [gradient is None for gradient in one] == [gradient is None for gradient in two]
    for ours, theirs in zip(two, one, strict=True):
        assert ours is None or (torch.equal(ours, theirs) and ours.stride() == theirs.stride())


@pytest.mark.parametrize("name", TWO)
def test_the_first_pass_has_the_input_and_leaves_the_weights_of_layers(name):
    body = made(name)
    layers = [layer for layer in body.modules() if not isinstance(layer, BY_THE_WAY)]
    waiting = [parameter for layer in layers for parameter in layer.parameters(recurse=False)]
    before = [None if parameter.grad is None else parameter.grad.clone() for parameter in waiting]
    z = torch.randn(AT.get(name, ROWS)).requires_grad_()
    u = body(z)
    assert input_first(u, torch.ones_like(u), z) is not None and z.grad is not None
    for parameter, kept in zip(waiting, before, strict=True):
        assert parameter.grad is None if kept is None else torch.equal(parameter.grad, kept)


@pytest.mark.parametrize("name", ONE)
def test_where_one_pass_is_all_or_two_might_differ_nothing_is_done(name):
    body, z = made(name), torch.randn(ROWS).requires_grad_()
    before = [None if parameter.grad is None else parameter.grad.clone() for parameter in body.parameters()]
    u = body(z)
    assert input_first(u, torch.ones_like(u), z) is None and z.grad is None
    for parameter, kept in zip(body.parameters(), before, strict=True):
        assert parameter.grad is kept is None or torch.equal(parameter.grad, kept)


def test_a_hook_on_a_weight_is_called_once_and_what_it_makes_of_a_gradient_counts():
    heard = []
    z = torch.randn(ROWS)
    gradients = []
    for walk in (one_pass, two_passes):
        body = made("one layer")
        body.weight.grad = None
        body.weight.register_hook(lambda gradient: heard.append("on its way") or gradient.clamp(-0.1, 0.1))
        body.weight.register_post_accumulate_grad_hook(lambda weight: heard.append("there"))
        gradients.append(walked(body, z, walk)[1])
        assert heard == ["on its way", "there"]
        heard.clear()
    assert torch.equal(*gradients) and gradients[0].abs().max() == 0.1


def test_nothing_of_a_step_is_held_once_it_is_walked(monkeypatch):
    """Neither by waiting for a collector: graphs are as large as a batch of all layers."""
    seen = weakref.WeakSet()
    monkeypatch.setattr(passes, "_Seen", type("Heard", (passes._Seen,), {"__init__": lambda self: seen.add(self)}))
    body, z = made("convolutions"), torch.randn(PICTURES).requires_grad_()
    gc.collect()
    gc.disable()
    try:
        for finish in (True, False):
            u = body(z)
            rest = input_first(u, torch.ones_like(u), z)
            assert len(seen) == 2
            if finish:
                rest()
            del u, rest
            assert not seen
    finally:
        gc.enable()
