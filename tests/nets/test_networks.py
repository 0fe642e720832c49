"""The published networks: parameter counts and shapes as the papers print them, and what they refuse."""

import pytest
import torch
from torch import nn

from cutlayer.nets import MnistNet, Net, ResNet18, SimpleCNN, count_parameters, shapes
from cutlayer.spec import names, spec, summary

DIGIT, COLOUR = (1, 28, 28), (3, 32, 32)

# network, input, (head, body, tail) parameters for 10 classes, z, u
# SimpleCNN and ResNet18: LightSplit, Table II. MnistNet: counted by hand from UnSplit's layers.
PUBLISHED = [
    (SimpleCNN(), DIGIT, (520, 435_162, 5_130), (20, 12, 12), (512,)),
    (SimpleCNN(depth=2), DIGIT, (4_160, 435_162, 5_130), (20, 12, 12), (512,)),
    (SimpleCNN(depth=2, norm="group"), DIGIT, (4_160, 435_162, 5_130), (20, 12, 12), (512,)),
    (MnistNet(), DIGIT, (208, 44_220, 850), (8, 12, 12), (84,)),
    (MnistNet(cut=4), DIGIT, (3_424, 41_004, 850), (16, 8, 8), (84,)),
    (ResNet18(), COLOUR, (9_536, 11_166_976, 5_130), (64, 8, 8), (512,)),
    (ResNet18(depth=2), COLOUR, (83_520, 11_092_992, 5_130), (64, 8, 8), (512,)),
    (ResNet18(depth=2, extra=True), COLOUR, (83_520, 11_166_976, 5_130), (64, 8, 8), (512,)),
    (ResNet18(norm="group"), COLOUR, (9_536, 11_166_976, 5_130), (64, 8, 8), (512,)),
    # 3*64*9 + 2*64 in the stem of small images
    (ResNet18(stem="cifar"), COLOUR, (1_856, 11_166_976, 5_130), (64, 32, 32), (512,)),
    (ResNet18(stem="cifar", depth=2), COLOUR, (75_840, 11_092_992, 5_130), (64, 32, 32), (512,)),
]
NETS = [row[0] for row in PUBLISHED]
SOME = [SimpleCNN(depth=2), MnistNet(), MnistNet(cut=4), ResNet18(depth=2)]


@pytest.mark.parametrize(("net", "shape", "counts", "z", "u"), PUBLISHED, ids=lambda value: repr(value))
def test_counts_and_shapes_are_the_published_ones(net, shape, counts, z, u):
    with torch.device("meta"):
        parts = net.head(shape), net.body(shape), net.tail(shape, 10)
    assert tuple(map(count_parameters, parts)) == counts
    assert shapes(net, shape) == (z, u)


@pytest.mark.parametrize("net", SOME, ids=repr)
@pytest.mark.parametrize("shape", [DIGIT, COLOUR, (2, 20, 36)], ids=str)
def test_other_sizes_and_channels_train(net, shape):
    parts = nn.Sequential(net.head(shape), net.body(shape), net.tail(shape, 7))
    scores = parts(torch.randn(2, *shape))
    assert scores.shape == (2, 7)
    scores.sum().backward()
    assert all(parameter.grad is not None for parameter in parts.parameters())


@pytest.mark.parametrize("net", NETS, ids=repr)
def test_a_network_can_be_typed(net):
    assert spec(repr(net), "nets") == net
    assert isinstance(net, Net)


def test_only_networks_can_be_typed_and_each_has_a_summary_with_its_cut():
    found = names("nets")
    assert sorted(found) == ["MnistNet", "ResNet18", "SimpleCNN"]
    for thing in found.values():
        assert "cut at" in summary(thing)
        assert summary(thing).endswith(".")


def test_shapes_draws_no_random_number():
    before = torch.get_rng_state()
    shapes(ResNet18(), COLOUR)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("net", SOME, ids=repr)
def test_a_part_alone_is_a_function_of_its_seed(net):
    for build in (net.head, net.body):
        torch.manual_seed(5)
        once = build(DIGIT).state_dict()
        torch.manual_seed(5)
        again = build(DIGIT).state_dict()
        assert all(torch.equal(once[key], again[key]) for key in once)


def test_resnet_parts_have_the_parameter_names_of_a_torchvision_checkpoint():
    shallow, deep = ResNet18(), ResNet18(depth=2)
    with torch.device("meta"):
        known = {*shallow.head(COLOUR).state_dict(), *shallow.body(COLOUR).state_dict()}
        moved = {*deep.head(COLOUR).state_dict(), *deep.body(COLOUR).state_dict()}
    assert known == moved
    assert len(known) == 122 - 2  # torchvision.models.resnet18 has 122 entries, two of them fc
    assert {"conv1.weight", "layer1.0.bn2.running_var", "layer2.0.downsample.0.weight"} <= known


def test_resnet_convolutions_start_from_kaiming_fan_out():
    torch.manual_seed(0)
    weight = ResNet18().head(COLOUR).get_parameter("conv1.weight")  # 3 -> 64 channels: in and out differ
    assert weight.std().item() == pytest.approx((2 / (64 * 7 * 7)) ** 0.5, rel=0.03)


def test_a_block_adds_its_shortcut():
    block = ResNet18().body(COLOUR).get_submodule("layer1.0").eval()
    nn.init.zeros_(block.bn2.weight)  # the residual branch then gives 0
    x = torch.rand(2, 64, 4, 4)
    assert torch.equal(block(x), x)


def test_group_norm_keeps_samples_apart():
    for net, shape in [(ResNet18(depth=2, norm="group"), COLOUR), (SimpleCNN(depth=2, norm="group"), DIGIT)]:
        head = net.head(shape)
        x = torch.randn(3, *shape)
        assert torch.allclose(head(x)[:1], head(x[:1]), atol=1e-5)


@pytest.mark.parametrize("net", [SimpleCNN(), MnistNet(), ResNet18()], ids=repr)
@pytest.mark.parametrize("shape", [(28, 28), (784,), (1, 1, 28, 28), (0, 28, 28)], ids=str)
def test_inputs_that_are_no_images_are_refused(net, shape):
    for build in (net.check, net.head, net.body, lambda shape: net.tail(shape, 10)):
        with pytest.raises(ValueError, match=r"reads \(channels, height, width\).*published for .*; got \("):
            build(shape)


@pytest.mark.parametrize("net", [SimpleCNN(), MnistNet()], ids=repr)
def test_the_smallest_image_works_and_a_smaller_one_is_refused(net):
    assert shapes(net, (1, 16, 16)).u
    with pytest.raises(ValueError, match=r"at least 16x16 pixels.*got \(1, 15, 16\)"):
        net.check((1, 15, 16))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: SimpleCNN(depth=3), "depth is 1 or 2; got 3"),
        (lambda: SimpleCNN(depth=2, norm="layer"), "norm is 'batch' or 'group'; got 'layer'"),
        (lambda: SimpleCNN(norm="group"), r"SimpleCNN\(depth=1\) has no layer for norm='group'"),
        (lambda: MnistNet(cut=3), "cut is 2 or 4; got 3"),
        (lambda: ResNet18(stem="big"), "stem is 'imagenet' or 'cifar'; got 'big'"),
        (lambda: ResNet18(depth=0), "depth is 1 or 2; got 0"),
        (lambda: ResNet18(norm="layer"), "norm is 'batch' or 'group'; got 'layer'"),
        (lambda: ResNet18(extra=True), "extra=True .* needs depth=2, got depth=1"),
    ],
)
def test_settings_that_mean_nothing_are_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()
