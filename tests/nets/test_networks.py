"""The published networks: parameter counts and shapes as the papers print them, and what they refuse."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode

from cutlayer.core.spec import names, spec, summary
from cutlayer.nets import (
    MLP,
    VGG16,
    DeepLabV3,
    FSAClient,
    FSHAClient,
    HuggingFace,
    LeNet,
    MicronNet,
    MnistNet,
    MobileNet,
    MobileNetV3Large,
    Net,
    Own,
    ResNet18,
    ResNet20,
    ResNet50,
    Segmenter,
    SignalNet,
    SimpleCNN,
    TextDecoder,
    TextEncoder,
    Timm,
    Whole,
    count_parameters,
    shapes,
)

DIGIT, COLOUR, FACE = (1, 28, 28), (3, 32, 32), (3, 218, 178)

# network, input, classes, (head, body, tail) parameters, z, u
PUBLISHED = [
    # LightSplit, Table II
    (SimpleCNN(), DIGIT, 10, (520, 435_162, 5_130), (20, 12, 12), (512,)),
    (SimpleCNN(depth=2), DIGIT, 10, (4_160, 435_162, 5_130), (20, 12, 12), (512,)),
    (MicronNet(), COLOUR, 43, (824, 411_192, 12_943), (29, 14, 14), (300,)),
    (MicronNet(depth=2), COLOUR, 43, (8_451, 411_192, 12_943), (29, 14, 14), (300,)),
    (ResNet18(), COLOUR, 10, (9_536, 11_166_976, 5_130), (64, 8, 8), (512,)),
    (ResNet18(depth=2), COLOUR, 100, (83_520, 11_092_992, 51_300), (64, 8, 8), (512,)),
    (ResNet18(depth=2, extra=True), COLOUR, 10, (83_520, 11_166_976, 5_130), (64, 8, 8), (512,)),
    # 3*64*9 + 2*64 in the stem of small images
    (ResNet18(stem="cifar"), COLOUR, 10, (1_856, 11_166_976, 5_130), (64, 32, 32), (512,)),
    (ResNet18(stem="cifar", depth=2), COLOUR, 10, (75_840, 11_092_992, 5_130), (64, 32, 32), (512,)),
    # PRISM and SL-FC cut after torchvision's sixth child; 73,984 a block of layer1
    (ResNet18(depth=3), COLOUR, 10, (9_536 + 2 * 73_984, 11_166_976 - 2 * 73_984, 5_130), (64, 8, 8), (512,)),
    (ResNet18(depth=4), COLOUR, 10, (683_072, 11_181_642 - 683_072 - 5_130, 5_130), (128, 4, 4), (512,)),
    # FORA's last split point; LFQ's layers 7 and 8 of Fig. 2.8
    (ResNet18(depth=5), COLOUR, 10, (2_782_784, 8_393_728, 5_130), (256, 2, 2), (512,)),
    (ResNet18(depth=6, stem="cifar"), COLOUR, 10, (11_168_832, 0, 5_130), (512, 4, 4), (512,)),
    (ResNet18(blocks=7), COLOUR, 10, (6_455_872, 4_720_640, 5_130), (512, 1, 1), (512,)),
    (ResNet18(depth=4, stem="cifar"), COLOUR, 10, (675_392, 10_493_440, 5_130), (128, 16, 16), (512,)),
    # UnSplit's layers, by hand
    (MnistNet(), DIGIT, 10, (208, 44_220, 850), (8, 12, 12), (84,)),
    (MnistNet(cut=4), DIGIT, 10, (3_424, 41_004, 850), (16, 8, 8), (84,)),
    # VQ-VAE compression: client, and server with its classifier
    (LeNet(), DIGIT, 10, (4_800, 148_874 - 1_290, 1_290), (32, 6, 6), (128,)),
    (VGG16(), COLOUR, 10, (2_915_648, 131_385_866 - 40_970, 40_970), (512, 4, 4), (4096,)),
    (MobileNetV3Large(), FACE, 2, (93_200, 4_111_394 - 2_562, 2_562), (80, 14, 12), (1280,)),
    # SEAL, Table 4: 67,039,140 in all, 9,536 of them the client's. Plain: torchvision's 25,557,032 with 1000 classes
    (ResNet50(wide=True), COLOUR, 100, (9_536, 67_039_140 - 9_536 - 204_900, 204_900), (64, 8, 8), (2048,)),
    (ResNet50(), COLOUR, 1000, (9_536, 25_557_032 - 9_536 - 2_049_000, 2_049_000), (64, 8, 8), (2048,)),
    # the first bottleneck: 64*64 + 9*64*64 + 64*256, a shortcut of 64*256, and 2*(64 + 64 + 256 + 256) in the norms
    (ResNet50(depth=2), COLOUR, 10, (9_536 + 75_008, 23_423_488, 20_490), (256, 8, 8), (2048,)),
    (ResNet50(depth=3), COLOUR, 10, (9_536 + 215_808, 23_282_688, 20_490), (256, 8, 8), (2048,)),
    (ResNet50(depth=5), COLOUR, 10, (8_543_296, 14_964_736, 20_490), (1024, 2, 2), (2048,)),
    (ResNet50(depth=6), (3, 224, 224), 1000, (23_508_032, 0, 2_049_000), (2048, 7, 7), (2048,)),
    (ResNet50(blocks=15), COLOUR, 10, (23_508_032 - 4_462_592, 4_462_592, 20_490), (2048, 1, 1), (2048,)),
    # torchvision's deeplabv3_resnet50 has 42,004,074 with the 2,365,205 of the auxiliary classifier; LFQ's cut
    (DeepLabV3(), (3, 513, 513), 21, (23_508_032, 16_125_440, 5_397), (2048, 65, 65), (256, 65, 65)),
    (ResNet50(depth=4), COLOUR, 10, (225_344 + 1_219_584, 22_063_104, 20_490), (512, 4, 4), (2048,)),
    # FORA's MobileNet has 3,217,226 with 10 classes; a separable block c -> d has 11c + cd + 2d
    (MobileNet(level=1), COLOUR, 10, (928, 3_217_226 - 10_250 - 928, 10_250), (32, 16, 16), (1024,)),
    (MobileNet(), COLOUR, 10, (928 + 2_528, 3_203_520, 10_250), (64, 16, 16), (1024,)),
    (MobileNet(level=3), COLOUR, 10, (3_456 + 9_152 + 18_048, 3_176_320, 10_250), (128, 8, 8), (1024,)),
    (MobileNet(level=4), COLOUR, 10, (30_656 + 34_688 + 68_864, 3_072_768, 10_250), (256, 4, 4), (1024,)),
    # SDAR's ResNet-20 with convolutional shortcuts has 272,474 with 10 classes
    (ResNet20(level=3), COLOUR, 10, (464 + 3 * 4_672, 257_344, 650), (16, 32, 32), (64, 8, 8)),
    (ResNet20(), COLOUR, 10, (14_480 + 14_528, 242_816, 650), (32, 16, 16), (64, 8, 8)),
    (ResNet20(level=5), COLOUR, 10, (29_008 + 18_560, 224_256, 650), (32, 16, 16), (64, 8, 8)),
    (ResNet20(level=6), COLOUR, 10, (47_568 + 18_560, 205_696, 650), (32, 16, 16), (64, 8, 8)),
    (ResNet20(level=7), COLOUR, 10, (66_128 + 57_728, 147_968, 650), (64, 8, 8), (64, 8, 8)),
    (ResNet20(level=8), COLOUR, 10, (123_856 + 73_984, 73_984, 650), (64, 8, 8), (64, 8, 8)),
    (ResNet20(level=9), COLOUR, 10, (272_474 - 650, 0, 650), (64, 8, 8), (64, 8, 8)),
    # FSHA: 9cd + d a convolution; a block has two, a strided one three. The last block and the tail are ours.
    (FSHAClient(level=1), COLOUR, 10, (1_920 + 73_856, 2_951_040, 2_570), (64, 16, 16), (256,)),
    (FSHAClient(level=2), COLOUR, 10, (75_776 + 295_296, 2_655_744, 2_570), (128, 8, 8), (256,)),
    (FSHAClient(level=3), COLOUR, 10, (371_072 + 295_168, 2_360_576, 2_570), (128, 8, 8), (256,)),
    (FSHAClient(), COLOUR, 10, (666_240 + 1_180_416, 1_180_160, 2_570), (256, 4, 4), (256,)),
    # FSA: no norms in 32 and 64 channels, and none in the stem at level 1
    (FSAClient(level=1), COLOUR, 10, (864, 36_864 + 131_072 + 525_568 + 2_099_712, 2_570), (32, 32, 32), (256,)),
    (FSAClient(), COLOUR, 10, (864 + 64 + 36_864, 131_072 + 525_568 + 2_099_712, 2_570), (32, 32, 32), (256,)),
    (FSAClient(level=3), COLOUR, 10, (37_792 + 131_072, 525_568 + 2_099_712, 2_570), (64, 16, 16), (256,)),
    # ours, by hand
    (Segmenter(), (3, 64, 64), 5, (928 + 9_280, 499_008, 325), (32, 32, 32), (64, 16, 16)),
    (SignalNet(), (2, 128), 5, (2 * 32 * 7 + 64, 10_368 + 24_832, 645), (32, 64), (128,)),
    (MLP(), (13,), 3, (13 * 64 + 64, 64 * 32 + 32, 99), (64,), (32,)),
    (MLP(widths=(5, 4, 6)), (13,), 2, (70, 24 + 30, 14), (5,), (6,)),
    # a block of width w has 12ww + 13w; words, and 16 places
    (TextEncoder(), (16,), 2, (5016 * 64 + 49_984, 49_984 + 128, 130), (16, 64), (16, 64)),
    (TextEncoder(at=0), (16,), 2, (5016 * 64, 2 * 49_984 + 128, 130), (16, 64), (16, 64)),
    (TextDecoder(width=32), (9,), 40, (5009 * 32 + 12_704, 12_704 + 64, 33 * 40), (9, 32), (9, 32)),
    (Whole(), DIGIT, 10, (0, 520 + 435_162, 5_130), DIGIT, (512,)),
]
NETS = [row[0] for row in PUBLISHED]
NORMED = [row[:3] for row in PUBLISHED if hasattr(row[0], "norm") and row[0] != SimpleCNN()]
SOME = [
    *(SimpleCNN(depth=2), MnistNet(), MnistNet(cut=4), LeNet(), MicronNet(), ResNet18(depth=2), ResNet20()),
    *(MobileNet(), FSHAClient(level=2), FSAClient(), MobileNetV3Large()),
]
IMAGES = [*SOME, ResNet50(), VGG16(), Segmenter()]
SMALLEST = {
    **{SimpleCNN(): 16, MnistNet(): 16, LeNet(): 8, MicronNet(): 20, VGG16(): 32, FSHAClient(): 2},
    **dict.fromkeys(
        [ResNet18(), ResNet20(), ResNet50(), MobileNet(), MobileNetV3Large(), FSAClient(), Segmenter()], 1
    ),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("net", "shape", "classes", "counts", "z", "u"), PUBLISHED, ids=lambda value: repr(value))
def test_counts_and_shapes_are_the_published_ones(net, shape, classes, counts, z, u):
    with torch.device("meta"):
        parts = net.head(shape), net.body(shape), net.tail(shape, classes)
    assert tuple(map(count_parameters, parts)) == counts
    assert shapes(net, shape) == (z, u)


@pytest.mark.parametrize(
    ("net", "shape", "classes"),
    [pytest.param(*case, marks=() if place % 3 == 0 else pytest.mark.campaign) for place, case in enumerate(NORMED)],
    ids=lambda value: repr(value),
)
def test_group_norm_takes_the_place_of_every_batch_norm(net, shape, classes):
    group = replace(net, norm="group")
    for part in ("head", "body"):
        with torch.device("meta"):
            batched, grouped = (list(getattr(kind, part)(shape).modules()) for kind in (net, group))
        norms = [one for one in grouped if isinstance(one, nn.GroupNorm)]
        assert len(norms) == sum(isinstance(one, nn.modules.batchnorm._BatchNorm) for one in batched)
        assert not any(isinstance(one, nn.modules.batchnorm._BatchNorm) for one in grouped)
        assert count_parameters(grouped[0]) == count_parameters(batched[0])
    assert shapes(group, shape) == shapes(net, shape)


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
    assert set(found.values()) == {type(net) for net in NETS} | {Own, Timm, HuggingFace}
    for thing in found.values():
        assert "cut at" in summary(thing)
        assert summary(thing).endswith(".")


@pytest.mark.parametrize("net", [ResNet18(), VGG16(), MobileNetV3Large(), FSAClient()], ids=repr)
def test_shapes_draws_no_random_number(net):
    before = torch.get_rng_state()
    shapes(net, COLOUR)
    assert torch.equal(before, torch.get_rng_state())


class NoStorage(TorchDispatchMode):
    """Fails when a tensor of more than a few kilobytes is made outside the meta device."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.device.type != "meta":
            assert result.numel() < 10_000, f"{function} made {tuple(result.shape)}"
        return result


def test_shapes_allocates_no_weights():
    with NoStorage():
        assert shapes(VGG16(), COLOUR) == ((512, 4, 4), (4096,))
    with pytest.raises(AssertionError, match="made"), NoStorage():
        VGG16().tail(COLOUR, 10)


def test_scores_of_a_segmentation_fit_labels_per_pixel():
    shape = (3, 13, 18)
    net = nn.Sequential(Segmenter().head(shape), Segmenter().body(shape), Segmenter().tail(shape, 5))
    scores = net(torch.rand(2, *shape))
    assert scores.shape == (2, 5, 13, 18)
    cross_entropy(scores, torch.randint(5, (2, 13, 18))).backward()
    assert all(parameter.grad is not None for parameter in net.parameters())


def test_the_whole_image_reaches_every_pixel_of_a_segmentation():
    torch.manual_seed(0)
    z = torch.rand(1, 32, 32, 32, requires_grad=True)
    Segmenter().body((3, 64, 64)).eval()(z)[..., 0, 0].sum().backward()
    # Convolutions reach 1 + 1 + 2 + 8 of 16 positions; the far corner counts through the image's mean alone.
    assert z.grad[..., 31, 31].abs().sum() > 0


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
    x = torch.rand(2, 64, 4, 4)
    basic = ResNet18().body(COLOUR).get_submodule("layer1.0").eval()
    hijacked = FSHAClient().head(COLOUR)[4]
    bottleneck, wide = ResNet50().body(COLOUR).get_submodule("layer1.1").eval(), torch.rand(2, 256, 4, 4)
    inverted, narrow = MobileNetV3Large().head(COLOUR).get_submodule("features.3").eval(), torch.randn(2, 24, 4, 4)
    for last in (basic.bn2, bottleneck.bn3, inverted.block[-1][1], hijacked.conv2):
        nn.init.zeros_(last.weight)  # the residual branch then gives 0
    nn.init.zeros_(hijacked.conv2.bias)
    for block, value in ((basic, x), (hijacked, x - 0.5), (bottleneck, wide), (inverted, narrow)):
        assert torch.equal(block(value), value)


@pytest.mark.parametrize(
    "net",
    [LeNet(), MicronNet(), VGG16(), MobileNet(), ResNet18(depth=4), ResNet20(), ResNet50(), FSAClient()],
    ids=repr,
)
def test_the_cut_is_after_the_activation(net):
    z = net.head(COLOUR)(torch.rand(2, *COLOUR))
    assert z.min() == 0 < z.max()


def test_activations_of_mobilenet_v3():
    # Six ReLU blocks, the first with one activation and the others with two, and eight squeezes; then nine Hardswish
    # blocks, the stem, the last convolution and the hidden layer.
    with torch.device("meta"):
        modules = [*MobileNetV3Large().head(FACE).modules(), *MobileNetV3Large().body(FACE).modules()]
    assert sum(isinstance(one, nn.ReLU) for one in modules) == 1 + 5 * 2 + 8
    assert sum(isinstance(one, nn.Hardswish) for one in modules) == 9 * 2 + 3
    assert sum(isinstance(one, nn.Hardsigmoid) for one in modules) == 8
    assert all(one.eps == 1e-3 for one in modules if isinstance(one, nn.BatchNorm2d))


@pytest.mark.parametrize(
    ("net", "shape"),
    [
        *((replace(net, norm="group"), COLOUR) for net in SOME if hasattr(net, "norm")),
        (Segmenter(norm="group"), (3, 16, 16)),
        (SignalNet(norm="group"), (2, 24)),
    ],
    ids=repr,
)
def test_group_norm_keeps_samples_apart(net, shape):
    torch.manual_seed(0)
    parts = nn.Sequential(net.head(shape), net.body(shape))
    for dropout in (one for one in parts.modules() if isinstance(one, nn.Dropout)):
        dropout.eval()
    x = torch.randn(3, *shape)
    assert torch.allclose(parts(x)[:1], parts(x[:1]), atol=1e-4)


@pytest.mark.parametrize("net", IMAGES, ids=repr)
@pytest.mark.parametrize("shape", [(28, 28), (784,), (1, 1, 28, 28), (0, 28, 28)], ids=str)
def test_inputs_that_are_no_images_are_refused(net, shape):
    for build in (net.check, net.head, net.body, lambda shape: net.tail(shape, 10)):
        with pytest.raises(ValueError, match=r"reads \(channels, height, width\).*published for .*; got \("):
            build(shape)


@pytest.mark.parametrize("shape", [(128,), (3, 200)], ids=str)
def test_who_brings_rows_signals_or_texts_to_a_network_of_images_is_told_what_reads_them(shape):
    """The network of a plan that names none reads images, and data of one's own are often none."""
    with pytest.raises(ValueError, match=r"For rows of features take MLP, .* SignalNet, for texts TextEncoder"):
        SimpleCNN().check(shape)


@pytest.mark.parametrize("shape", [(28,), (1, 28, 28), (0, 28), (1, 3)], ids=str)
def test_inputs_that_are_no_signals_are_refused(shape):
    net = SignalNet()
    for build in (net.check, net.head, net.body, lambda shape: net.tail(shape, 10)):
        with pytest.raises(ValueError, match=r"reads \(channels, length\) of at least 4 points.*got \(.*take MLP"):
            build(shape)
    assert shapes(net, (1, 4)).u == (128,)


@pytest.mark.parametrize("shape", [(), (0,), (2, 28), (1, 28, 28)], ids=str)
def test_inputs_that_are_no_rows_are_refused(shape):
    net = MLP()
    for build in (net.check, net.head, net.body, lambda shape: net.tail(shape, 10)):
        with pytest.raises(ValueError, match=r"reads \(features,\).*got \(.*take SignalNet, for images SimpleCNN"):
            build(shape)
    assert shapes(net, (1,)).u == (32,)


@pytest.mark.parametrize(("net", "side"), SMALLEST.items(), ids=repr)
def test_the_smallest_image_works_and_a_smaller_one_is_refused(net, side):
    assert shapes(net, (1, side, side)).u
    with pytest.raises(ValueError, match=rf"at least {side}x{side} pixels.*got \(1, {side - 1}, {side}\)"):
        net.check((1, side - 1, side))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: SimpleCNN(depth=3), "depth is 1 or 2; got 3"),
        (lambda: SimpleCNN(depth=2, norm="layer"), "norm is 'batch' or 'group'; got 'layer'"),
        (lambda: SimpleCNN(norm="group"), r"SimpleCNN\(depth=1\) has no layer for norm='group'"),
        (lambda: MnistNet(cut=3), "cut is 2 or 4; got 3"),
        (lambda: ResNet18(stem="big"), "stem is 'imagenet' or 'cifar' or 'fields'; got 'big'"),
        (lambda: ResNet18(depth=0), "depth is 1 or .* or 6; got 0"),
        (lambda: ResNet18(norm="layer"), "norm is 'batch' or 'group'; got 'layer'"),
        (lambda: ResNet18(extra=True), "extra=True .* needs depth=2, got depth=1"),
        (lambda: ResNet18(extra=True, depth=4), "extra=True .* needs depth=2, got depth=4"),
        (lambda: ResNet50(depth=7), "depth is 1 or .* or 6; got 7"),
        (lambda: ResNet50(blocks=17), "blocks is how many residual blocks the head has, 0 to 16; got 17"),
        (lambda: ResNet18(blocks=9), "the head has, 0 to 8; got 9"),
        (lambda: ResNet18(blocks=2, depth=3), "blocks=2 and depth=3 both say where the cut is: leave one of them"),
        (lambda: DeepLabV3(blocks=-1), "0 to 16; got -1"),
        (lambda: ResNet18(scale="cifar"), "scale is 'none' or 'imagenet'; got 'cifar'"),
        (lambda: ResNet50(scale="imagenet").head(DIGIT), "three colours, and these images have 1: scale='none'"),
        (lambda: ResNet50(wide="very"), "wide is True or False; got 'very'"),
        (lambda: ResNet20(level=2), "level is 3 or .* or 9; got 2"),
        (lambda: MobileNet(level=5), "level is 1 or 2 or 3 or 4; got 5"),
        (lambda: FSHAClient(level=0), "level is 1 or 2 or 3 or 4; got 0"),
        (lambda: FSAClient(level=4), "level is 1 or 2 or 3; got 4"),
        (lambda: MicronNet(depth=3), "depth is 1 or 2; got 3"),
        *(
            (lambda kind=kind: kind(norm="layer"), "norm is 'batch' or 'group'; got 'layer'")
            for kind in [
                *(ResNet50, ResNet20, MobileNet, FSHAClient, FSAClient, MicronNet, MobileNetV3Large),
                *(Segmenter, SignalNet),
            ]
        ),
        *(
            (lambda widths=widths: MLP(widths=widths), r"widths is a tuple of two or more whole numbers above 0.*got")
            for widths in [(64,), (64, 0), [64, 32], (64, 3.2), (64, True), 64]
        ),
    ],
)
def test_settings_that_mean_nothing_are_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()
