"""What `cut` refuses, each in words that say the way out."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from cutlayer.nets import cut


class Plain(nn.Module):
    """Four layers to misuse; subclasses write the forward."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 3, 3, padding=1)
        self.conv2 = nn.Conv2d(3, 3, 3, padding=1)
        self.conv3 = nn.Conv2d(3, 3, 3, padding=1)
        self.bn = nn.BatchNorm2d(3, affine=False)
        self.unused = nn.Linear(2, 2)
        self.blocks = nn.ModuleList([nn.Conv2d(3, 3, 1)])
        self.gain = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return self.conv3(self.conv2(self.conv1(x)))


def plain(forward):
    """A `Plain` whose forward is the given function."""
    return type("Drawn", (Plain,), {"forward": forward})()


def test_a_name_that_does_not_exist():
    with pytest.raises(ValueError, match=r"no module 'conv'; did you mean .*'conv1'.*children are: conv1, conv2"):
        cut(Plain(), "conv")
    with pytest.raises(ValueError, match=r"no module 'zzz'; its children are: conv1, .*unused"):
        cut(Plain(), "conv1", "zzz")
    with pytest.raises(ValueError, match="no module ''"):
        cut(Plain(), "")


def test_a_module_that_forward_does_not_call():
    for name in ("unused", "blocks"):
        with pytest.raises(ValueError, match=f"'{name}' exists, but forward never calls it"):
            cut(Plain(), name)


def test_a_module_that_is_called_twice():
    model = plain(lambda self, x: self.conv3(self.conv1(self.conv1(x))))
    with pytest.raises(ValueError, match="'conv1' is called 2 times; name a module that is called once"):
        cut(model, "conv1")


def test_back_before_at():
    with pytest.raises(ValueError, match="back has to come after at, but forward calls 'conv1' before 'conv2'"):
        cut(Plain(), "conv2", "conv1")


def test_back_inside_at_or_equal_to_it():
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), nn.Linear(2, 2))
    for at, back in [("0", "0"), ("0", "0.1"), ("0.0", "0")]:
        with pytest.raises(ValueError, match=f"not inside it; got at='{at}', back='{back}'"):
            cut(model, at, back)


def test_an_empty_body():
    with pytest.raises(ValueError, match="the body is empty: nothing is computed between 'conv1' and 'conv2'"):
        cut(Plain(), "conv1", "conv2")
    with pytest.raises(ValueError, match="the body is empty: nothing is computed between 'conv3' and the end"):
        cut(Plain(), "conv3")


@pytest.mark.parametrize(
    ("forward", "source"),
    [
        (lambda self, x: self.conv3(self.conv2(x) + x), "the input"),
        (lambda self, x: self.conv3(self.conv2(y := self.conv1(x)) + y), "'conv1'"),
        (lambda self, x: self.conv3(self.conv2(y := torch.relu(x)) + y), "the result of relu"),
    ],
)
def test_a_skip_connection_over_the_first_cut(forward, source):
    with pytest.raises(ValueError, match=f"cannot cut after 'conv2': a skip connection from {source} passes over"):
        cut(plain(forward), "conv2")


def test_a_skip_connection_over_the_second_cut():
    def over_the_body(self, x):
        z = self.conv1(x)
        return self.conv3(torch.relu(z)) + z

    def over_back(self, x):
        u = self.conv2(self.conv1(x))
        return self.conv3(torch.relu(u)) + u

    def past_the_body(self, x):
        z = self.conv1(x)
        torch.relu(z)
        return self.conv3(z)

    for forward, source in [(over_the_body, "conv1"), (over_back, "conv2"), (past_the_body, "conv1")]:
        with pytest.raises(ValueError, match=f"cannot cut before 'conv3': a skip connection from '{source}'"):
            cut(plain(forward), "conv1", "conv3")


def test_a_side_branch_that_nothing_uses():
    def forward(self, x):
        self.conv1(x)
        return self.conv3(self.gain * 2)

    with pytest.raises(ValueError, match="the output of 'conv1' is not used after the cut"):
        cut(plain(forward), "conv1")


@pytest.mark.parametrize(
    "forward",
    [
        lambda self, x: (n := x.size(0), self.conv3(self.conv1(x)).view(n, -1))[1],
        lambda self, x: (n := x.shape[0] * 1, self.conv3(self.conv1(x)).view(n, -1))[1],
        lambda self, x: (n := x.shape, self.conv3(self.conv1(x)).view(n))[1],
    ],
)
def test_a_size_read_before_the_cut(forward):
    with pytest.raises(ValueError, match=r"a size read before the cut is used after it .*x.flatten\(1\)"):
        cut(plain(forward), "conv1")


def test_a_module_that_answers_with_several_values():
    class Sentence(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.fc = nn.LSTM(3, 4), nn.Linear(4, 2)

        def forward(self, x):
            out, (hidden, _) = self.lstm(x)
            return self.fc(out) + self.fc(hidden)

    with pytest.raises(ValueError, match=r"cannot cut after 'lstm': .*'lstm'.* exactly one"):
        cut(Sentence(), "lstm")


def test_a_model_that_returns_several_values():
    model = plain(lambda self, x: (x := self.conv2(self.conv1(x)), x + 1))
    with pytest.raises(ValueError, match=r"exactly one tensor, or one called logits .*by the names 0, 1"):
        cut(model, "conv1")


@pytest.mark.parametrize(
    ("forward", "name"),
    [
        (lambda self, x: self.bn(self.conv1(self.bn(x))), "bn.running_mean"),
        (lambda self, x: self.conv2(self.conv1(self.conv2(x))), "conv2.weight"),
        (lambda self, x: self.conv2(self.conv1(x * self.gain)) * self.gain, "gain"),
        (lambda self, x: F.conv2d(torch.relu(self.conv1(x)), self.conv1.weight), "conv1.weight"),
    ],
)
def test_state_that_both_sides_use(forward, name):
    with pytest.raises(ValueError, match=f"'{name}' is used on both sides of a cut"):
        cut(plain(forward), "conv1")


def test_weights_tied_across_the_cut():
    model = Plain()
    model.conv3.weight = model.conv1.weight
    with pytest.raises(ValueError, match=r"'conv3.weight' is used on both sides"):
        cut(model, "conv1")


@pytest.mark.parametrize(
    "forward",
    [
        lambda self, x: self.conv3(self.conv1(x)) if x.sum() > 0 else x,
        lambda self, x, y: self.conv3(self.conv1(x)) + y,
        lambda self, x: self.conv3(self.conv1(x)).view(len(x), -1),
    ],
)
def test_a_forward_that_cannot_be_traced(forward):
    with pytest.raises(ValueError, match=r"torch.fx cannot trace Drawn: .+; or give head, body and tail directly"):
        cut(plain(forward), "conv1")


@pytest.mark.parametrize(
    "forward",
    [
        lambda self, x: self.conv3(F.dropout(self.conv1(x), 0.5, training=self.training)),
        lambda self, x: self.conv3(F.dropout(self.conv1(x), 0.5, self.training)),
        lambda self, x: self.conv3(
            F.batch_norm(self.conv1(x), self.bn.running_mean, self.bn.running_var, training=self.training)
        ),
        lambda self, x: self.conv3(self.bn(self.conv1(x)) if self.training else self.conv1(x)),
    ],
)
@pytest.mark.parametrize("training", [True, False])
def test_a_forward_that_reads_the_training_flag(forward, training):
    model = plain(forward).train(training)
    with pytest.raises(ValueError, match=r"reads self.training .*use the nn.Module form, such as nn.Dropout"):
        cut(model, "conv1")
    assert model.training == training


def test_a_forward_that_creates_a_tensor():
    model = plain(lambda self, x: self.conv3(self.conv1(x)) + torch.randn(1))
    before = set(vars(model))
    with pytest.raises(ValueError, match="creates a tensor, which would be drawn once and for all"):
        cut(model, "conv1")
    assert set(vars(model)) == before
