"""A user's own network behaves like the published ones."""

import pytest
import torch
from torch import nn

from cutlayer.nets import Own, shapes


def lenet():
    return nn.Sequential(
        nn.Conv2d(1, 4, 5), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 16, 6), nn.ReLU(), nn.Linear(6, 3)
    )


def with_item():
    # Reads a number out of a tensor, as stochastic depth schedules do: impossible on the meta device.
    return nn.Sequential(nn.Conv2d(1, 4, 5), nn.Dropout(torch.linspace(0, 0.5, 3)[1].item()), nn.Flatten())


SHAPE = (1, 8, 8)


def test_parts_of_an_own_network():
    net = Own(lenet, "1", "5")
    assert shapes(net, SHAPE) == ((4, 4, 4), (6,))
    parts = net.head(SHAPE), net.body(SHAPE), net.tail(SHAPE, 3)
    keys = [sorted(part.state_dict()) for part in parts]
    assert keys == [["0.bias", "0.weight"], ["3.bias", "3.weight"], ["5.bias", "5.weight"]]
    assert nn.Sequential(*parts)(torch.randn(2, *SHAPE)).shape == (2, 3)


def test_a_part_comes_from_its_own_seed():
    net = Own(lenet, "1", "5")
    torch.manual_seed(4)
    whole = lenet()
    torch.manual_seed(4)
    assert torch.equal(net.body(SHAPE).get_parameter("3.weight"), whole[3].weight)


def test_shapes_of_a_factory_that_reads_numbers_from_tensors():
    before = torch.get_rng_state()
    assert shapes(Own(with_item, "0"), SHAPE) == ((4, 4, 4), (64,))
    assert torch.equal(before, torch.get_rng_state())


def test_its_text_holds_no_address():
    assert repr(Own(lenet, "1", "5")) == "Own(make=lenet, at='1', back='5')"
    assert Own(lenet, "1") == Own(lenet, "1")
    assert hash(Own(lenet, "1")) == hash(Own(lenet, "1"))


def test_an_input_it_cannot_take():
    Own(lenet, "1", "5").check(SHAPE)
    with pytest.raises(ValueError, match=r"Own\(make=lenet.* cannot take inputs of shape \(3, 8, 8\): "):
        Own(lenet, "1", "5").check((3, 8, 8))


def test_a_tail_with_another_number_of_classes():
    for net in (Own(lenet, "1", "5"), Own(lenet, "1")):
        with pytest.raises(ValueError, match=r"gives \(3,\) for a sample; 10 classes need \(10,\)"):
            net.tail(SHAPE, 10)
