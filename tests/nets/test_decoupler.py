"""DISCO's decoupler: the first layer's channels are fields of the image, however that is computed."""

import pytest
import torch
from torch.nn.functional import conv2d, interpolate

from cutlayer.bench.decoupler import Published
from cutlayer.nets import ResNet18
from cutlayer.nets.base import shapes
from cutlayer.nets.decoupler import FieldConvolution


@pytest.fixture(scope="module")
def layer():
    torch.manual_seed(0)
    return FieldConvolution(3, 64, 7, stride=2, padding=3, bias=False).double()


def test_it_is_the_published_loop_over_patches(layer):
    """Patch after patch, enlarged, convolved with all channels and added up, with the gradients of that."""
    x = torch.rand(2, 3, 32, 24, dtype=torch.double)
    wanted = []
    for image in x:
        for top in range(0, 32, 4):
            for left in range(0, 24, 3):
                patch = image[None, :, top : top + 4, left : left + 3]
                large = interpolate(patch, size=(32, 24), mode="bilinear", align_corners=False)
                wanted.append(conv2d(large, layer.weight, None, 2, 3).sum(1)[0])
    wanted = torch.stack(wanted).reshape(2, 64, 16, 12)
    found = layer(x)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(Published.forward(layer, x), wanted)  # that it is measured against
    for one in (found, wanted):
        layer.zero_grad()
        one.square().sum().backward(retain_graph=True)
        slope = layer.weight.grad.clone()
        if one is found:
            own = slope
    torch.testing.assert_close(own, slope)


def test_a_channel_tells_of_its_field_alone(layer):
    x = torch.rand(1, 3, 32, 32, dtype=torch.double)
    other = x.clone()
    other[:, :, 4:8, 8:12] = 0  # the second row's third field
    changed = (layer(x) != layer(other)).flatten(2).any(2)[0]
    assert changed.nonzero().flatten().tolist() == [1 * 8 + 2]


def test_the_network_behind_it_is_the_same():
    plain, decoupled = ResNet18(depth=4), ResNet18(stem="fields", depth=4)
    assert shapes(plain, (3, 64, 64)) == shapes(decoupled, (3, 64, 64))
    state = {name: tensor.shape for name, tensor in plain.head((3, 64, 64)).state_dict().items()}
    assert state == {name: tensor.shape for name, tensor in decoupled.head((3, 64, 64)).state_dict().items()}
    with pytest.raises(ValueError, match=r"8x8 fields of one size, and 218x178 pixels are no multiples of 8"):
        decoupled.head((3, 218, 178))
