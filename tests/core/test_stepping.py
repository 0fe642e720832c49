"""A lean step is torch's own, bit for bit."""

import pytest
import torch
from torch import nn

from cutlayer.core import stepping
from cutlayer.core.stepping import adam, adamw, backward, step

WAYS = {
    "SGD": (torch.optim.SGD, {"lr": 0.1}),
    "SGD, decay": (torch.optim.SGD, {"lr": 0.1, "weight_decay": 0.01}),
    "momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    "Nesterov": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "nesterov": True}),
    "dampened": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.5}),
    "Adam": (torch.optim.Adam, {"lr": 0.01}),
    "Adam, decay": (torch.optim.Adam, {"lr": 0.01, "weight_decay": 0.01, "betas": (0.8, 0.95)}),
    "AMSGrad": (torch.optim.Adam, {"lr": 0.01, "amsgrad": True}),
    "AdamW": (torch.optim.AdamW, {"lr": 0.01}),
}


ON_A_GPU = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))


def trained(way, steps, take, dtype=torch.float32, device="cpu"):
    kind, settings = WAYS[way]
    draw = torch.Generator().manual_seed(1)
    shapes = ((7,), (40, 13), (6, 3, 5, 5), ())
    parameters = [nn.Parameter(torch.randn(shape, generator=draw).to(device, dtype)) for shape in shapes]
    optimizer = kind([{"params": parameters[:2]}, {"params": parameters[2:], "lr": 0.03}], **settings)
    for number in range(steps):
        for place, parameter in enumerate(parameters):
            gradient = torch.randn(parameter.shape, generator=draw).to(device, dtype)
            # One of them is not part of every step.
            parameter.grad = None if place == 1 and number % 3 == 1 else gradient
        for group in optimizer.param_groups:
            group["lr"] *= 0.9
        take(optimizer)
    kept = [value for one in optimizer.state.values() for value in one.values() if isinstance(value, torch.Tensor)]
    return [parameter.detach() for parameter in parameters] + kept


@pytest.mark.parametrize("device", ["cpu", ON_A_GPU])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("way", WAYS)
def test_the_bits_are_torchs(way, dtype, device):
    ours, theirs = (trained(way, 7, take, dtype, device) for take in (step, lambda optimizer: optimizer.step()))
    assert len(ours) == len(theirs)
    assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("way", WAYS)
def test_many_numbers_step_some_after_the_others(way, monkeypatch):
    monkeypatch.setattr(stepping, "_TOGETHER", 100)
    ours, theirs = (trained(way, 4, take) for take in (step, lambda optimizer: optimizer.step()))
    assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


def test_runs_of_numbers_leave_none_out():
    some = [torch.zeros(size) for size in (30, 80, 20, 500, 1, 2)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stepping, "_TOGETHER", 100)
        runs = [[len(one) for one in run] for run, _, _ in stepping._by_caches(some, some, [])]
    assert runs == [[30], [80, 20], [500], [1, 2]]


def test_most_steps_are_lean(monkeypatch):
    """But for the first, which begins what an optimizer keeps."""
    calls = []
    torchs = torch.optim.Adam.step
    monkeypatch.setattr(torch.optim.Adam, "step", lambda self: (calls.append(1), torchs(self)))
    trained("Adam", 7, step)
    assert len(calls) <= 2


def test_who_hangs_in_an_optimizer_is_heard():
    parameter = nn.Parameter(torch.ones(3))
    optimizer, heard = torch.optim.SGD([parameter], 0.1), []
    optimizer.register_step_pre_hook(lambda *given: heard.append(parameter.detach().clone()))
    parameter.grad = torch.ones(3)
    step(optimizer)
    assert [one.tolist() for one in heard] == [[1, 1, 1]]
    assert torch.equal(parameter.detach(), torch.full((3,), 0.9))


@pytest.mark.parametrize("device", ["cpu", ON_A_GPU])
def test_a_walk_through_autograd_is_torchs(device):
    """Of a loss, and of what a gradient was given for, twice, so that gradients add up."""
    found = []
    for walk in (backward, torch.Tensor.backward):
        draw = torch.Generator().manual_seed(1)
        x, w = (torch.randn(5, 5, generator=draw).to(device).requires_grad_() for _ in range(2))
        given = torch.randn(5, 5, generator=draw).to(device)
        walk((x @ w).tanh(), given)
        walk((x @ w).square().mean())
        found += [x.grad, w.grad]
    assert all(torch.equal(one, other) for one, other in zip(found[:2], found[2:], strict=True))


def test_what_has_no_gradient_of_its_own_needs_one():
    with pytest.raises(RuntimeError):
        backward(torch.randn(3, requires_grad=True) * 2)
    with pytest.raises(RuntimeError):
        backward(torch.randn(3, requires_grad=True) * 2, torch.ones(4))


# ------------------------------------------------------------------ one pass over memory
@pytest.mark.parametrize(
    ("lean", "plain"),
    [
        (lambda own: adam(own, 0.01), lambda own: torch.optim.Adam(own, 0.01)),
        (lambda own: adam(own, 0.01, amsgrad=True), lambda own: torch.optim.Adam(own, 0.01, amsgrad=True)),
        (lambda own: adamw(own, 0.01, 0.1), lambda own: torch.optim.AdamW(own, 0.01, weight_decay=0.1)),
    ],
    ids=["Adam", "AMSGrad", "AdamW"],
)
def test_a_fused_step_is_the_same_but_for_rounding_wherever_channels_lie(lean, plain):
    ends = []
    for kind in (lean, plain):
        torch.manual_seed(0)
        network = nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU(), nn.Conv2d(5, 4, 3)).double()
        network[2].to(memory_format=torch.channels_last)
        optimizer = kind(network.parameters())
        for _ in range(5):
            optimizer.zero_grad()
            network(torch.rand(2, 3, 8, 8, dtype=torch.float64)).square().mean().backward()
            optimizer.step()
        ends.append(torch.cat([one.detach().flatten() for one in network.parameters()]))
    assert torch.allclose(*ends, rtol=0, atol=1e-12)
