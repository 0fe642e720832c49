"""Laws of `cut`: the parts are the model, in bits, in weights and while training."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from cutlayer.nets import MnistNet, cut
from cutlayer.nets.resnet import Block


def sequential():
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 8), nn.ReLU(), nn.Linear(8, 5)
    )


class Written(nn.Module):
    """A forward with functions, a reused activation, a size, and further arguments that have defaults."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3)
        self.conv2 = nn.Conv2d(4, 4, 3)
        self.act = nn.ReLU()
        self.drop = nn.Dropout(0.5)
        self.fc1 = nn.Linear(4 * 16, 8)
        self.fc2 = nn.Linear(8, 5)

    def forward(self, x, mask=None, *, scale=2.0):
        if mask is not None:
            x = x * mask
        x = F.max_pool2d(self.act(self.conv1(x)), 1)
        x = self.act(self.conv2(x)) * scale
        x = self.drop(self.fc1(x.view(x.size(0), -1)))
        return self.fc2(torch.tanh(x))


class Residual(nn.Module):
    """Blocks inside blocks, BatchNorm, and a parameter and a buffer that forward reads by itself."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(4)
        self.layer1 = nn.Sequential(Block(4, 4, 1, "batch"), Block(4, 8, 2, "batch"))
        self.layer2 = nn.Sequential(Block(8, 8, 1, "batch"))
        self.gain = nn.Parameter(torch.tensor([1.5]))
        self.register_buffer("offset", torch.tensor([0.25]))
        self.fc = nn.Linear(8, 5)

    def forward(self, x):
        gain = self.gain
        x = torch.relu(self.bn1(self.conv1(x - self.offset * 2)))
        x = self.layer2(self.layer1(x))
        return self.fc((x * gain).mean((2, 3)))


class Choosing(nn.Module):
    """A block that no tracer can read, with its own functional dropout; the model around it is plain."""

    class Inner(nn.Module):
        def forward(self, x):
            x = F.dropout(x, 0.5, training=self.training)
            return x if x.sum() > 0 else -x

    def __init__(self):
        super().__init__()
        self.first, self.inner, self.last = nn.Conv2d(3, 2, 3), self.Inner(), nn.Linear(72, 5)

    def forward(self, x):
        return self.last(self.inner(self.first(x)).flatten(1))


CUTS = [
    (sequential, "0", None),
    (sequential, "1", "5"),
    (Written, "conv1", None),
    (Written, "conv1", "fc2"),
    (Written, "conv2", "fc1"),
    (Residual, "bn1", "fc"),
    (Residual, "layer1.0", "fc"),
    (Residual, "layer1.0", "layer2"),
    (Residual, "layer1.0", "layer2.0"),
    (Residual, "layer1", "fc"),
    (Residual, "layer1.1", None),
    (Choosing, "first", "last"),
]
every_cut = pytest.mark.parametrize(("make", "at", "back"), CUTS)


def composed(parts):
    return nn.Sequential(*parts)


def run(module, x, seed=3):
    torch.manual_seed(seed)
    return module(x)


@every_cut
@pytest.mark.parametrize("training", [True, False])
def test_the_parts_give_the_bits_of_the_model(make, at, back, training):
    torch.manual_seed(0)
    model = make()
    parts = cut(copy.deepcopy(model), at, back)
    model.train(training)
    for part in parts:
        part.train(training)
    for step in range(2):  # BatchNorm's first step changes what its second sees
        x = torch.randn(4, 3, 8, 8)
        assert torch.equal(run(composed(parts), x, step), run(model, x, step))
    state = model.state_dict()
    after = {key: value for part in parts for key, value in part.state_dict().items()}
    assert all(torch.equal(state[key], after[key]) for key in state)


@every_cut
def test_each_weight_is_in_one_part_under_its_own_name_and_is_not_a_copy(make, at, back):
    model = make()
    parts = cut(model, at, back)
    found = [item for part in parts for item in part.named_parameters()]
    assert sorted(name for name, _ in found) == sorted(name for name, _ in model.named_parameters())
    assert all(parameter is dict(model.named_parameters())[name] for name, parameter in found)
    assert sorted(key for part in parts for key in part.state_dict()) == sorted(model.state_dict())


@every_cut
def test_a_step_through_the_parts_is_a_step_of_the_model(make, at, back):
    torch.manual_seed(0)
    model = make()
    twin = copy.deepcopy(model)
    parts = composed(cut(twin, at, back))
    x, y = torch.randn(4, 3, 8, 8), torch.tensor([0, 1, 2, 3])
    start = copy.deepcopy(model.state_dict())
    for network in (model, parts):
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        F.cross_entropy(run(network, x), y).backward()
        optimizer.step()
    assert all(torch.equal(value, twin.state_dict()[key]) for key, value in model.state_dict().items())
    assert any(not torch.equal(start[key], value) for key, value in twin.state_dict().items())


@every_cut
def test_cutting_leaves_the_model_as_it_was(make, at, back):
    model = make()
    next(model.children()).eval()
    attributes, modes = set(vars(model)), [module.training for module in model.modules()]
    cut(model, at, back)
    assert set(vars(model)) == attributes
    assert [module.training for module in model.modules()] == modes


@every_cut
def test_parts_can_be_copied_and_copies_train_apart(make, at, back):
    parts = cut(make(), at, back)
    twins = copy.deepcopy(parts)
    x = torch.randn(4, 3, 8, 8)
    assert torch.equal(run(composed(twins), x), run(composed(parts), x))
    with torch.no_grad():
        for parameter in twins.head.parameters():
            parameter.zero_()
    assert all(parameter.abs().sum() > 0 for parameter in parts.head.parameters() if parameter.dim() > 1)


def test_the_cut_is_where_it_was_asked_for():
    torch.manual_seed(0)
    model = Residual().eval()
    x = torch.randn(2, 3, 8, 8)
    parts = cut(model, "layer1.0", "fc")
    z = model.layer1[0](torch.relu(model.bn1(model.conv1(x - 0.5))))
    assert torch.equal(parts.head(x), z)
    assert torch.equal(parts.body(z), (model.layer2(model.layer1[1](z)) * 1.5).mean((2, 3)))
    assert [name for name, _ in parts.tail.named_parameters()] == ["fc.weight", "fc.bias"]


def test_without_back_the_tail_does_nothing():
    assert isinstance(cut(sequential(), "0").tail, nn.Identity)


def test_a_buffer_is_read_at_every_call_and_not_once():
    model = Residual().eval()
    parts = cut(model, "bn1", "fc")
    x = torch.randn(2, 3, 8, 8)
    model.offset.fill_(3.0)
    assert torch.equal(composed(parts)(x), model(x))


def test_a_module_with_two_names_can_be_cut_by_either():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Conv2d(3, 4, 3)
            self.alias = self.stem
            self.fc = nn.Linear(144, 5)

        def forward(self, x):
            return self.fc(torch.relu(self.alias(x)).flatten(1))

    model = Twice()
    x = torch.randn(2, 3, 8, 8)
    for name in ("stem", "alias"):
        assert torch.equal(composed(cut(model, name, "fc"))(x), model(x))


def test_a_published_network_cut_by_name_is_itself():
    net, shape = MnistNet(), (1, 28, 28)
    model = nn.Sequential(net.head(shape), net.body(shape), net.tail(shape, 10))
    parts = cut(model, "0", "2")
    assert [sum(p.numel() for p in part.parameters()) for part in parts] == [208, 44_220, 850]


class Attends(nn.Module):
    """Of what the layer gives one value is read; libraries unpack the others all the same."""

    def __init__(self):
        super().__init__()
        self.attention, self.out = nn.MultiheadAttention(4, 2, batch_first=True), Attended()
        self.fc = nn.Linear(4, 2)

    def forward(self, x):
        first, _weights = self.attention(x, x, x)
        return self.fc(self.out(first)["last"])


class Attended(nn.Module):
    def forward(self, x):
        return {"last": x * 2, "all": (x,)}


@pytest.mark.parametrize("at", ["attention", "out"])
def test_of_several_values_the_one_that_is_read_crosses(at):
    model, x = Attends(), torch.rand(3, 5, 4)
    head, body, _ = cut(model, at, shape=(5, 4))
    assert head(x).shape == (3, 5, 4)
    assert torch.equal(body(head(x)), model(x))
